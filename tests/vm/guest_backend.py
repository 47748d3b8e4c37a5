"""The scx backend on every kernel that has a usable sched_ext: it schedules, and it gives back."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from vm.inside import look_until, skip, text_of
from vm.machine import (
    everybody_runs,
    journal,
    native_threads,
    progress,
    schedule,
    spinning,
    wait_for,
)

from sched_ctl.backends.scx import Scx, ScxOptions, features, probe
from sched_ctl.kernel import sched, schedext
from sched_ctl.kernel.scheduler import Scheduler

KERNELS = ("6.16", "7.3")  # other files have 6.18
CPUS = 1
ICOUNT = True
ICOUNT_SHIFT = 2  # a slow CPU: a second of its time takes less of ours
TIMEOUT_S = 90

MANY = 2_000
TTL_S = 20.0  # hints count, however late the host serves a file

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
        backend = Scx(log, ScxOptions(gap=30.0, ttl=TTL_S))  # order decides, however long one waits
        applied = backend.apply(schedule(threads, [3.0, 2.0, 1.0]))
        print(backend.mode, applied, [backend.applied(thread) for thread in threads])
        assert not applied.problems
        assert schedext.attached() == "sched_ctl"
        look_until(lambda: progress(threads, 1.0), lambda got: got[0] > 0.6 and sum(got[1:]) < 0.2)
        unchanged = backend.apply(schedule(threads, [3.0, 2.0, 1.0]))
        assert (unchanged.writes, unchanged.unchanged) == (0, 3), unchanged
        backend.apply(schedule(threads, [1.0, 2.0, 3.0]))
        # Who waits already keeps its place until it runs: at the latest when it is rescued.
        time.sleep(2 * backend.options.starvation / 1e3)
        look_until(lambda: progress(threads, 1.0), lambda got: got[2] > 0.6)
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
        look_until(lambda: progress(threads, 1.0), lambda got: min(got) > 0.2)


def check_shares() -> None:
    with spinning(4) as threads:
        backend = Scx(journal(), ScxOptions(ttl=TTL_S))
        for shares in ([4, 2, 1, 1], [1, 1, 2, 4]):
            backend.apply(schedule(threads, 0.0, shares=shares))
            look_until(lambda: progress(threads, 2.0), near(shares))
        backend.restore()


def near(shares: Sequence[float], within: float = 0.05) -> Callable[[list[float]], bool]:
    """Whether CPU time is divided in these proportions."""
    wanted = np.array(shares) / sum(shares)
    return lambda got: bool(np.abs(np.array(got) / sum(got) - wanted).max() < within)


def check_beside_a_hog() -> None:
    """Operators keep the CPU beside a hog, and the hog keeps its guaranteed share."""
    with spinning(2) as operators, spinning(1) as hogs:
        backend = Scx(journal())
        backend.apply(schedule(operators, [2.0, 1.0]))
        look_until(
            lambda: (*progress([*operators, *hogs], 2.0), backend.statistics()["expired"]),
            lambda got: got[0] > 0.7 and got[2] > 0.02 and got[3] == 0,
        )
        print(backend.mode, backend.statistics())
        backend.restore()


def check_partial_mode_gives_way() -> None:
    """Beside a hog partial mode is left for full mode, soon and with all settings; not before."""
    if schedext.server_share() is None:
        skip("a deadline server for sched_ext")
    # All are forked before the scheduler is attached: a child would keep it so.
    with spinning(2) as operators, spinning(1) as hogs:
        os.kill(hogs[0].pid, signal.SIGSTOP)
        log = journal()
        backend = Scx(log, ScxOptions(ttl=TTL_S))
        wanted = schedule(operators, [2.0, 1.0])

        def mode_after(passes: int) -> str:
            for _ in range(passes):
                time.sleep(0.6)
                assert backend.apply(wanted).problems == ()
                if backend.mode == "full":
                    break
            print(backend.mode, backend.note, backend.statistics())
            return backend.mode

        assert backend.apply(wanted).problems == ()
        assert (mode_after(4), backend.note) == ("partial", "")
        os.kill(hogs[0].pid, signal.SIGCONT)
        assert mode_after(6) == "full"
        assert "full mode: in partial mode other threads had the CPU" in backend.note
        assert text_of(schedext.ROOT / "state") == "enabled"
        assert schedext.server_share() == 0.05
        assert all(os.sched_getscheduler(t.tid) == sched.OTHER for t in operators)
        # Order, and no more than the guarantee for the hog.
        look_until(
            lambda: progress([*operators, *hogs], 2.0),
            lambda got: got[0] > 0.7 and got[1] < 0.2 and 0.03 < got[2] < 0.1,
        )
        assert backend.restore() == ()
        assert not log.state, log.state


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
            options = ScxOptions(mode=mode, slice=5, until_block=True, ttl=TTL_S)
            backend = Scx(journal(), options)
            backend.apply(schedule(threads, [2.0, 1.0]))
            assert backend.mode == mode
            look_until(lambda: progress(threads, 1.0), lambda got: got[0] > got[1])
            backend.restore()


def check_cgroups_that_come_later() -> None:
    """The cpu controller is given to cgroups while the scheduler runs: weights hold then."""
    control = Path("/sys/fs/cgroup/cgroup.subtree_control")
    assert "cpu" not in text_of(control).split()
    assert "none has" in dict(features())["cgroups"]
    with spinning(1) as threads:
        backend = Scx(journal(), ScxOptions(mode="full"))
        backend.apply(schedule(threads))
        assert backend.scheduler is not None
        assert not backend.scheduler.cgroups
        control.write_text("+cpu")
        try:
            backend.apply(schedule(threads))
            assert backend.scheduler.cgroups
            assert dict(features())["cgroups"].endswith("hold")
            assert schedext.attached() == "sched_ctl"
            everybody_runs(threads)
            backend.restore()
        finally:
            control.write_text("-cpu")


def check_mixed_form() -> None:
    """Both parts of a form count: the slope wins in the end over a head start."""
    with spinning(2) as threads:
        backend = Scx(journal(), ScxOptions(ttl=TTL_S))
        backend.apply(schedule(threads, [0.0, 1.0], per_second=[10.0, 0.1]))
        look_until(lambda: progress(threads, 1.0), lambda got: min(got) > 0.02)
        print(backend.applied(threads[0]))
        backend.restore()
