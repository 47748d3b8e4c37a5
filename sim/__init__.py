"""Discrete-event simulator of a node."""
