"""Scheduling policies, one a file. `sched_ctl.plugins.registry` finds them by entry point."""
