"""Policies and drivers by name, from our folders, and through entry points of others."""
