"""Backends that put threads into groups of their own."""
