"""Engines as the controller has them: found, asked, whose they are, and what came of it."""
