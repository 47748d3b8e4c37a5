"""What is known about operators, and what can be derived from it. Pure functions."""
