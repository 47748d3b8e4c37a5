"""Liebre 0.1, unmodified."""
