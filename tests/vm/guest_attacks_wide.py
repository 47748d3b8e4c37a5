"""An attack on four CPUs in two last-level caches, which take turns: time is exact."""

from vm import attacks

from sched_ctl.kernel import schedext

KERNELS = ("7.3",)
CPUS = 4
SOCKETS = 2
ICOUNT = True
ICOUNT_SHIFT = 2
TIMEOUT_S = 180

schedext.kernel_types()  # read once, before the checks are forked


def check_a_tiny_limit() -> None:
    attacks.tiny_limit()
