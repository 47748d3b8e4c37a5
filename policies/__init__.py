"""Scheduling policies, one a file. `sched_ctl.registry` finds them by entry point."""
