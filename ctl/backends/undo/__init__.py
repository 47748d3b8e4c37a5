"""What the machine was like before we changed it, and putting it back."""
