"""Thin wrappers over the kernel's interfaces. Nothing here knows of queries."""
