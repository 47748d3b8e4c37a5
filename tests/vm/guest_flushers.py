"""Threads that hand on by a timer what an operator makes: they come right after its batch.

With exact time on one CPU. `guest_flushers_smp.py` has two.
"""

from vm import flushers

from sched_ctl.kernel import schedext

KERNELS = ("6.16", "6.18", "7.3")
CPUS = 1
ICOUNT = True
ICOUNT_SHIFT = 2
TIMEOUT_S = 120

schedext.kernel_types()  # read once, before the checks are forked


def check_a_tuple_waits_for_one_timer() -> None:
    flushers.one_timer()


def check_a_tuple_waits_for_one_timer_where_tuples_are_rare() -> None:
    flushers.one_timer_seldom()


def check_who_has_no_batches_is_left_alone() -> None:
    flushers.left_alone()


def check_nobody_is_held_for_a_busy_operator() -> None:
    flushers.busy_operator()


def check_whoever_dies_nobody_is_forgotten() -> None:
    flushers.deaths()
