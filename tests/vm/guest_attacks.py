"""A tiny limit, little memory, another scheduler: operators go on, and so does everybody else.

With exact time. `guest_robust_smp.py` has what two CPUs do at the very same moment.
"""

from vm import attacks
from vm.inside import only_on

from sched_ctl.kernel import schedext

KERNELS = ("6.18", "7.3")  # in full and in partial mode
CPUS = 2
ICOUNT = True
ICOUNT_SHIFT = 2
TIMEOUT_S = 120

schedext.kernel_types()  # read once, before the checks are forked


def check_a_tiny_limit() -> None:
    attacks.tiny_limit()


@only_on("6.18")
def check_little_memory() -> None:
    attacks.little_memory()


@only_on("6.18")
def check_another_scheduler() -> None:
    attacks.another_scheduler()
