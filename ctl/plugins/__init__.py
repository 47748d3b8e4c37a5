"""Policies and drivers by name, through entry points."""
