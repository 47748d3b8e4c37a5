"""Backends that change parameters of single threads."""
