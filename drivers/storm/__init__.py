"""Apache Storm 2.x, unmodified."""
