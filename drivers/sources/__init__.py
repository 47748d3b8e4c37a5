"""Metric sources that several engines share."""
