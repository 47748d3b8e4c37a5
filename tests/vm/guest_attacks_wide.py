"""Attacks on four CPUs in two last-level caches, which take turns: time is exact."""

from vm import attacks

from sched_ctl.kernel import schedext

KERNELS = ("6.18",)
CPUS = 4
SOCKETS = 2
ICOUNT = True
ICOUNT_SHIFT = 3
TIMEOUT_S = 240

schedext.kernel_types()  # read once, before the checks are forked


def check_a_fork_bomb() -> None:
    attacks.fork_bomb()


def check_changing_affinity() -> None:
    attacks.changing_affinity()


def check_changing_cpus() -> None:
    attacks.changing_cpus()
