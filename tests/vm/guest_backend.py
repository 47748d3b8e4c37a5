"""The scx backend on every kernel that has a usable sched_ext: it schedules, and it gives back."""

import os
import time

import numpy as np
from vm.machine import journal, native_threads, progress, schedule, spinning, wait_for

from sched_ctl.backends.scx import Scx, ScxOptions, features, probe
from sched_ctl.kernel import sched, schedext
from sched_ctl.kernel.scheduler import Scheduler

KERNELS = ("6.16", "7.3")  # other files have 6.18
CPUS = 1
ICOUNT = True
ICOUNT_SHIFT = 2  # a slow CPU: a second of its time takes less of ours
TIMEOUT_S = 90

MANY = 2_000

schedext.kernel_types()  # read once, before the checks are forked


def check_probe() -> None:
    found = probe()
    print(found, features())
    assert found.can
    has_server = schedext.server_share() is not None
    assert ("partial" if has_server else "full") in found.because


def check_order_and_restore() -> None:
    """The most urgent gets the CPU, a live change turns that round, and all is put back."""
    with spinning(3) as threads:
        log = journal()
        backend = Scx(log, ScxOptions(gap=30.0))  # however long one waits, order decides
        applied = backend.apply(schedule(threads, [3.0, 2.0, 1.0]))
        print(backend.mode, applied, [backend.applied(thread) for thread in threads])
        assert not applied.problems
        assert schedext.attached() == "sched_ctl"
        first = progress(threads, 1.0)
        assert first[0] > 0.6, first
        assert sum(first[1:]) < 0.2, first
        unchanged = backend.apply(schedule(threads, [3.0, 2.0, 1.0]))
        assert (unchanged.writes, unchanged.unchanged) == (0, 3), unchanged
        backend.apply(schedule(threads, [1.0, 2.0, 3.0]))
        # Who waits already keeps its place until it runs: at the latest when it is rescued.
        time.sleep(2 * backend.options.starvation / 1e3)
        second = progress(threads, 1.0)
        print(first, second)
        assert second[2] > 0.6, second
        if backend.mode == "partial":
            assert all(os.sched_getscheduler(t.tid) == sched.EXT for t in threads)
        server = schedext.server_share()
        assert backend.restore() == ()
        wait_for("disabled")
        assert all(os.sched_getscheduler(t.tid) == sched.OTHER for t in threads)
        assert not log.state, log.state
        if server is not None:
            assert server == 0.9
            assert schedext.server_share() == 0.05
        even = progress(threads, 1.0)
        assert min(even) > 0.2, even


def check_shares() -> None:
    with spinning(4) as threads:
        backend = Scx(journal())
        backend.apply(schedule(threads, 0.0, shares=[4, 2, 1, 1]))
        got = np.array(progress(threads, 2.0))
        print(got / got.sum())
        assert np.abs(got / got.sum() - np.array([4, 2, 1, 1]) / 8).max() < 0.05, got
        backend.apply(schedule(threads, 0.0, shares=[1, 1, 2, 4]))
        got = np.array(progress(threads, 2.0))
        assert np.abs(got / got.sum() - np.array([1, 1, 2, 4]) / 8).max() < 0.05, got
        backend.restore()


def check_beside_a_hog() -> None:
    """Operators keep the CPU beside a hog, and the hog keeps its guaranteed share."""
    with spinning(2) as operators, spinning(1) as hogs:
        backend = Scx(journal())
        backend.apply(schedule(operators, [2.0, 1.0]))
        got = progress([*operators, *hogs], 2.0)
        print(backend.mode, got, backend.statistics())
        assert got[0] > 0.7, got
        assert got[2] > 0.02, got
        assert backend.statistics()["expired"] == 0
        backend.restore()


def check_thousands_of_threads() -> None:
    with native_threads(MANY) as threads:
        backend = Scx(journal())
        static = np.arange(len(threads), dtype=float)
        began = time.monotonic()
        applied = backend.apply(schedule(threads, static.tolist()))
        adopted_s = time.monotonic() - began
        assert not applied.problems, applied.problems[:3]
        began = time.monotonic()
        applied = backend.apply(schedule(threads, static[::-1].tolist()))
        update_s = time.monotonic() - began
        print(f"adopt {adopted_s:.2f} s, update {update_s:.3f} s, {applied}")
        assert applied.writes > 0.9 * MANY
        assert backend.restore() == ()
        assert all(os.sched_getscheduler(t.tid) == sched.OTHER for t in threads[::100])


def check_two_schedulers() -> None:
    """A second one is refused in words, whoever comes second."""
    with spinning(1) as threads:
        backend = Scx(journal())
        backend.apply(schedule(threads))
        assert "ours is attached (sched_ctl)" in probe().because
        try:
            with Scheduler(full=True) as second:
                second.attach()
            raise AssertionError("two schedulers were attached")
        except Exception as error:
            assert "ours is attached (sched_ctl)" in str(error), error
        backend.restore()


def check_options() -> None:
    for mode in ("partial", "full"):
        with spinning(2) as threads:
            backend = Scx(journal(), ScxOptions(mode=mode, slice=5, until_block=True))
            backend.apply(schedule(threads, [2.0, 1.0]))
            assert backend.mode == mode
            got = progress(threads, 1.0)
            assert got[0] > got[1], got
            backend.restore()


def check_mixed_form() -> None:
    """Both parts of a form count: the slope wins in the end over a head start."""
    with spinning(2) as threads:
        backend = Scx(journal())
        backend.apply(schedule(threads, [0.0, 1.0], per_second=[10.0, 0.1]))
        got = progress(threads, 1.0)
        print(got, backend.applied(threads[0]))
        assert min(got) > 0.02, got
        backend.restore()
