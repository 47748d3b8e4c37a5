"""Threads that hand on by a timer what an operator makes: they come after its batch.

With exact time on one CPU. `guest_flushers_smp.py` has two.
"""

from vm import flushers
from vm.inside import enough_on, only_on

from sched_ctl.kernel import schedext

KERNELS = ("6.18", "7.3")
CPUS = 1
ICOUNT = True
ICOUNT_SHIFT = 2
TIMEOUT_S = 120

schedext.kernel_types()  # read once, before the checks are forked


@enough_on("6.18")  # our marks
def check_who_was_woken_by_a_thread_is_not_held() -> None:
    flushers.woken_by_others()


@only_on("6.18")
def check_nobody_is_held_for_a_busy_operator() -> None:
    flushers.busy_operator()


@only_on("6.18")
def check_without_timers_nobody_is_held() -> None:
    flushers.no_timers()


@only_on("6.18")
def check_whoever_dies_nobody_is_forgotten() -> None:
    flushers.deaths(2)
