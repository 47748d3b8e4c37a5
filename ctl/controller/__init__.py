"""What the program is about: the loop, its rules, and what is enforced."""
