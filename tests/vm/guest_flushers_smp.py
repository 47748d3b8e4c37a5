"""Threads that hand on by a timer what an operator makes: none is forgotten.

With exact time on two CPUs, which take turns.
"""

from vm import flushers

from sched_ctl.kernel import schedext

KERNELS = ("6.18",)
CPUS = 2
ICOUNT = True
ICOUNT_SHIFT = 2
TIMEOUT_S = 120

schedext.kernel_types()  # read once, before the checks are forked


def check_whoever_dies_nobody_is_forgotten() -> None:
    flushers.deaths(4)
