"""sched-ctl: schedules the operator threads of stream processing engines from the kernel."""

__version__ = "0.2.0"
