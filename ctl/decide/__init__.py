"""From metrics and a policy to a schedule. Pure functions."""
