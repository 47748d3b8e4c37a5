"""Attacks on four CPUs in two last-level caches, which take turns: time is exact."""

from vm import attacks
from vm.inside import only_on

from sched_ctl.kernel import schedext

KERNELS = ("6.18", "7.3")
CPUS = 4
SOCKETS = 2
ICOUNT = True
ICOUNT_SHIFT = 3
TIMEOUT_S = 240

schedext.kernel_types()  # read once, before the checks are forked


@only_on("6.18")
def check_a_fork_bomb() -> None:
    attacks.fork_bomb()


@only_on("7.3")
def check_a_tiny_limit() -> None:
    attacks.tiny_limit()


@only_on("6.18")
def check_little_memory() -> None:
    attacks.little_memory()


@only_on("6.18")
def check_changing_affinity() -> None:
    attacks.changing_affinity()


@only_on("6.18")
def check_changing_cpus() -> None:
    attacks.changing_cpus()
