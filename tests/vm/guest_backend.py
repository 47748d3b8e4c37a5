"""The scx backend on every kernel that has a usable sched_ext: it schedules, and it gives back."""

import contextlib
import errno
import fcntl
import functools
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from operators import against_reference
from vm.inside import enough_on, look_until, only_on, skip, text_of
from vm.machine import (
    above_all,
    cpu_s,
    everybody_runs,
    journal,
    native_threads,
    progress,
    schedule,
    spinning,
    steady,
    wait_for,
)

from sched_ctl.backends import Applied
from sched_ctl.backends.scx import backend as backends
from sched_ctl.backends.scx import live
from sched_ctl.backends.scx.backend import Scx
from sched_ctl.backends.scx.probe import features, probe
from sched_ctl.drivers.lab import driver
from sched_ctl.errors import EngineError
from sched_ctl.kernel import sched, schedext
from sched_ctl.kernel.libbpf import BpfError
from sched_ctl.kernel.scheduler import Scheduler
from sched_ctl.lab import engine as lab
from sched_ctl.model.options import ScxOptions
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread
from support import wait_until

KERNELS = ("6.16", "7.3")  # other files have 6.18
CPUS = 1
ICOUNT = True
ICOUNT_SHIFT = 2  # a slow CPU: a second of its time takes less of ours
TIMEOUT_S = 90

MANY = 1_100  # more than a process may have open files
TTL_S = 20.0  # hints count, however late the host serves a file

schedext.kernel_types()  # read once, before the checks are forked


def check_probe() -> None:
    found = probe()
    print(found, features())
    assert found.can
    assert "full mode" in found.because  # partial only for operators that go first


def check_order_and_restore() -> None:
    """The most urgent gets the CPU, a live change turns that round, and all is put back."""
    with spinning(3) as threads:
        log = journal()
        backend = Scx(log, steady(gap=30.0, ttl=TTL_S))  # order decides, however long one waits
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


@enough_on("6.16")  # our arithmetic; on 7.3 in guest_scheduler_smp.py
def check_shares() -> None:
    with spinning(4) as threads:
        backend = Scx(journal(), steady(ttl=TTL_S))
        for shares in ([4, 2, 1, 1], [1, 1, 2, 4]):
            backend.apply(schedule(threads, 0.0, shares=shares))
            look_until(lambda: progress(threads, 2.0), near(shares))
        backend.restore()


@enough_on("6.16")  # our arithmetic
def check_schedules_share_as_their_threads_would() -> None:
    """Four busy threads beside one of another schedule have four fifths, as in the fair class."""
    with spinning(5) as threads:
        backend = Scx(journal(), steady(ttl=TTL_S))

        def look() -> list[float]:
            backend.apply(schedule(threads[:4], 0.0, scope="many"))
            backend.apply(schedule(threads[4:], 0.0, scope="one"))
            return progress(threads, 2.0)

        look()  # nothing is known before that
        look_until(look, near([1] * 5))
        backend.restore()


@enough_on("6.16")  # our arithmetic
def check_schedules_of_two_cgroups_share_as_these_would() -> None:
    """The same with a cgroup each, of weights 100 and 200: a third for all four."""
    root = Path("/sys/fs/cgroup")
    (root / "cgroup.subtree_control").write_text("+cpu")
    many, one = root / "many", root / "one"
    with spinning(5) as threads:
        for folder, weight, members in ((many, 100, threads[:4]), (one, 200, threads[4:])):
            folder.mkdir()
            (folder / "cpu.weight").write_text(str(weight))
            for thread in members:
                (folder / "cgroup.procs").write_text(str(thread.pid))
        backend = Scx(journal(), steady(ttl=TTL_S))

        def look() -> list[float]:
            backend.apply(schedule(threads[:4], 0.0, scope="many"))
            backend.apply(schedule(threads[4:], 0.0, scope="one"))
            return progress(threads, 2.0)

        look()
        look_until(look, near([1, 1, 1, 1, 8]))
        backend.restore()
    wait_until(lambda: not any(text_of(f / "cgroup.procs") for f in (many, one)))
    many.rmdir()
    one.rmdir()
    (root / "cgroup.subtree_control").write_text("-cpu")


@only_on("7.3")
def check_caps_of_more_queries_than_there_is_room_for() -> None:
    """All schedules share it, and a problem says which queries have none."""
    with native_threads(66) as threads:
        backend = Scx(journal(), steady(caps={"*": 1}))
        queries = tuple(("e", f"q{i:02}") for i in range(65))
        many = replace(schedule(threads[:65]), queries=queries)
        few = schedule(threads[65:], scope="few")
        for given, others in ((63, ()), (62, (few,))):
            for other in others:
                assert backend.apply(other).problems == ()
            problem = f"no room for the caps of {65 - given} queries, from e:q{given} on"
            assert backend.apply(many).problems == (problem,)
            assert backend.scheduler is not None
            control = backend.scheduler.control
            assert int(control["nr_groups"]) == 64 and int(control["groups"]["cap"].sum()) == given
        backend.restore()


def near(shares: Sequence[float], within: float = 0.05) -> Callable[[list[float]], bool]:
    """Whether CPU time is divided in these proportions."""
    wanted = np.array(shares) / sum(shares)
    return lambda got: bool(np.abs(np.array(got) / sum(got) - wanted).max() < within)


def check_beside_a_hog() -> None:
    """Operators keep the CPU beside a hog, and the hog keeps its guaranteed share."""
    with spinning(2) as operators, spinning(1) as hogs:
        backend = Scx(journal(), steady(ttl=TTL_S))

        def look() -> tuple[float, ...]:
            backend.apply(schedule(operators, [2.0, 1.0]))
            expired = backend.statistics()["expired"]
            shares = progress([*operators, *hogs], 2.0)
            return (*shares, backend.statistics()["expired"] - expired)

        look_until(look, lambda got: got[0] > 0.7 and got[2] > 0.02 and got[3] == 0)
        print(backend.mode, backend.statistics())
        backend.restore()


@only_on("7.3")
def check_partial_mode_gives_way() -> None:
    """Beside a hog partial mode is left for full mode, soon and with all settings; not before."""
    if schedext.server_share() is None:
        skip("a deadline server for sched_ext")
    # All are forked before the scheduler is attached: a child would keep it so.
    with spinning(2) as operators, spinning(1) as hogs:
        os.kill(hogs[0].pid, signal.SIGSTOP)
        wanted = schedule(operators, [2.0, 1.0])
        log = journal()
        # At the usual 90% for operators the other mode would be loaded with the tenth that is left.
        options = ScxOptions(ttl=TTL_S, precedence="engine", server=50)

        def mode_after(passes: int, pause_s: float = 0.6) -> str:
            for _ in range(passes):
                time.sleep(pause_s)
                assert backend.apply(wanted).problems == ()
                if backend.mode == "full":
                    break
            print(backend.mode, backend.note, backend.statistics())
            return backend.mode

        # While code is read in, operators wait as for a hog: the first may give way for that.
        for _ in range(3):
            backend = Scx(log, options)
            assert backend.apply(wanted).problems == ()
            # A pass takes up to 60 ms, in which operators wait: with longer pauses a small part.
            if mode_after(3, 2.0) == "partial":
                break
            assert backend.restore() == ()
        assert (backend.mode, backend.note) == ("partial", "")
        os.kill(hogs[0].pid, signal.SIGCONT)
        assert mode_after(6) == "full"
        assert "full mode: in partial mode other threads had the CPU" in backend.note
        assert text_of(schedext.ROOT / "state") == "enabled"
        assert schedext.server_share() == 0.05
        assert all(os.sched_getscheduler(t.tid) == sched.OTHER for t in operators)
        # Order, and no more than the guarantee for all others: the hog, and who reads code in.
        look_until(
            lambda: progress([*operators, *hogs], 2.0),
            lambda got: (
                got[0] > 0.7 and got[1] < 0.2 and 0.03 < 1 - sum(got[:2]) < 0.1 < 10 * got[2]
            ),
        )
        assert backend.restore() == ()
        assert not log.state, log.state


@only_on("7.3")
def check_a_thousand_threads() -> None:
    with native_threads(MANY) as threads:
        backend = Scx(journal(), steady())
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


@only_on("7.3")
def check_two_schedulers() -> None:
    """A second one is refused in words, whoever comes second.

    It is loaded before: with operators attached, that takes a tenth of a CPU ten times as long.
    """
    with spinning(1) as threads, Scheduler(full=True) as second:
        backend = Scx(journal(), steady())
        backend.apply(schedule(threads))
        assert "ours is attached (sched_ctl)" in probe().because
        try:
            second.attach()
            raise AssertionError("two schedulers were attached")
        except Exception as error:
            assert "ours is attached (sched_ctl)" in str(error), error
        backend.restore()


@enough_on("6.16")  # what they set is read by our program alone
def check_options() -> None:
    for mode in ("partial", "full"):
        with spinning(2) as threads:
            options = ScxOptions(mode=mode, slice=5, until_block=True, ttl=TTL_S)
            backend = Scx(journal(), options)
            backend.apply(schedule(threads, [2.0, 1.0]))
            assert backend.mode == mode
            look_until(lambda: progress(threads, 1.0), lambda got: got[0] > got[1])
            backend.restore()


@enough_on("6.16")  # our own error
def check_who_could_not_be_tied_to_its_slot_is_tried_again() -> None:
    with spinning(1) as threads, mock.patch.object(Scheduler, "adopt") as adopt:
        backend = Scx(journal(), ScxOptions(mode="full", ttl=TTL_S))
        adopt.side_effect = BpfError(errno.ENOMEM, "no memory")
        assert "no memory" in str(backend.apply(schedule(threads, [1.0])).problems)
        adopt.side_effect = None
        for calls in (2, 2):
            assert backend.apply(schedule(threads, [1.0])).problems == ()
            assert adopt.call_count == calls
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
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # as a controller is
            began_s, ran_s = time.monotonic(), cpu_s(threads[0])
            backend.apply(schedule(threads))
            assert backend.scheduler.cgroups
            # Verification takes this CPU long, but not all of it: real time would leave 5%.
            took_s = time.monotonic() - began_s
            share = (cpu_s(threads[0]) - ran_s) / took_s
            above_all()
            print(f"loaded again in {took_s:.1f} s, of which an operator had {share:.0%}")
            assert share > 0.07
            assert dict(features())["cgroups"].endswith("hold")
            assert schedext.attached() == "sched_ctl"
            everybody_runs(threads)
            backend.restore()
        finally:
            control.write_text("-cpu")


@enough_on("7.3")  # our bookkeeping; with a server here
def check_it_leaves_a_machine_on_which_it_orders_nobody() -> None:
    """Not at once: a job that restarts is back soon. The next operator has it loaded again."""
    backend = Scx(journal(), ScxOptions())
    usual = schedext.server_share()
    with spinning(1) as threads:
        assert backend.apply(schedule([])) == Applied()
        assert backend.loaded is None  # for nobody it is not loaded at all
        backend.apply(schedule(threads))
        backend.rest()
        backend.apply(schedule([]))
        backend.rest()
        assert schedext.attached() == "sched_ctl"
        with mock.patch.object(backends, "REST_S", 0.5):
            wait_until(lambda: not backend.rest() and backend.loaded is None, 10)
        assert schedext.attached() is None
        assert schedext.server_share() == usual
        backend.apply(schedule(threads))
        assert schedext.attached() == "sched_ctl"
        everybody_runs(threads)
        backend.restore()


@only_on("7.3")
def check_mixed_form() -> None:
    """Both parts of a form count: the slope wins in the end over a head start."""
    with spinning(2) as threads:
        backend = Scx(journal(), steady(ttl=TTL_S))
        backend.apply(schedule(threads, [0.0, 1.0], per_second=[10.0, 0.1]))
        look_until(lambda: progress(threads, 1.0), lambda got: min(got) > 0.02)
        print(backend.applied(threads[0]))
        backend.restore()


# -- engines that tell what waits for their operators ---------------------------------------------


@contextlib.contextmanager
def engine(
    utilisation: float, seconds: float, delay_s: float = 30.0
) -> Iterator[tuple[driver.LabDriver, list[Thread]]]:
    """The lab engine with SYN; before the delay is over it is idle, which takes no time."""
    arguments = [
        *("--utilisation", str(utilisation), "--cpus", "1", "--duration", str(seconds)),
        *("--burn", "nop", "--delay", str(delay_s), "--warmup", "0", "--drain", "0"),
    ]
    with lab.workload_file("syn") as path, lab.running(path, arguments) as running:
        found = next(target for target in driver.find() if target.pid == running.pid)
        view = driver.connect(found)
        yield view, [o.threads[0] for o in view.poll(1.0).topology.operators]
        view.close()


def told(backend: Scx, wanted: Schedule, by: str) -> bool:
    """Whether, after another pass, all ages are those of the engine ("waker": inherited)."""
    backend.apply(wanted)
    return all(backend.applied(thread)["age_by"] == by for thread in wanted.threads)


def traced() -> Scx:
    """A backend whose scheduler keeps the last events."""
    tracing = functools.partial(Scheduler, trace_records=1 << 16)
    mock.patch("sched_ctl.backends.scx.backend.Scheduler", tracing).start()
    return Scx(journal(), ScxOptions(mode="partial", ttl=TTL_S))


def looks(view: driver.LabDriver, look: Callable[[], None]) -> None:
    """Again and again until the engine ends, from a thread that interrupts everybody."""
    above_all()
    look()  # or the clock leaps while its code is read
    with contextlib.suppress(EngineError):
        while not view.poll(1.0).columns["tuples_in"].any():
            time.sleep(0.25)
        while view.poll(1.0) and view.file["state"] == 1:
            look()
            time.sleep(0.005)


@enough_on("6.16")  # shared memory of ours; 7.3 has lengths in the same rows
def check_ages_that_an_engine_tells() -> None:
    """They are the true head ages, and who runs is the most urgent one by them."""
    backend = traced()
    with engine(0.6, 1.2) as (view, threads):
        slopes = np.random.default_rng(1).exponential(size=len(threads)) + 0.01
        wanted = schedule(threads, per_second=slopes.tolist())
        wait_until(lambda: told(backend, wanted, "engine"))
        scheduler = backend.scheduler
        assert scheduler is not None
        seen = scheduler.threads[1 : len(threads) + 1]
        offset_ns = scheduler.program.array(".bss", "monotonic_offset_ns")
        late_ms: list[float] = []

        def look() -> None:
            # One CPU, and we have it. Tuples may come in meanwhile, but nobody takes one.
            waits = seen["queued_ns"] > 0
            origin_s = (seen["origin_ns"] + offset_ns).astype(np.int64) * 1e-9
            snapshot = view.poll(1.0)
            head_s = snapshot.time_s - snapshot.columns["head_age"]
            known = waits & (snapshot.columns["head_age"] > 0)
            late_ms.extend((head_s - origin_s)[known] * 1e3)

        looks(view, look)
        assert backend.applied(threads[0])["age_by"] == "engine"
        print(
            f"{len(late_ms)} ages:", np.percentile(late_ms, [1, 5, 50, 95, 99]).round(3), "ms late"
        )
        assert len(late_ms) > 50
        # But for those who were queued with nothing to do, and got something meanwhile.
        assert np.percentile(np.abs(late_ms), 90) < 0.05
        wrong, choices = against_reference(scheduler, one_queue=False)
        print(f"{wrong} of {choices} choices differ")
        assert choices > 200
        assert wrong <= choices * 0.002
        assert backend.restore() == ()


@only_on("7.3")
def check_queue_lengths_that_an_engine_tells() -> None:
    """QS goes by the lengths of this moment: each choice has the longest of those that wait."""
    backend = traced()
    with engine(0.9, 1.2) as (view, threads):
        wanted = schedule(threads, per_tuple=1.0)

        def exact() -> bool:
            backend.apply(wanted)
            return bool(backend.scheduler and backend.scheduler.control["queues"]["flags"][0])

        wait_until(exact)
        scheduler = backend.scheduler
        assert scheduler is not None
        assert backend.loaded is not None
        rows = [backend.loaded.live.row(thread) for thread in threads]
        looked: list[bool] = []

        def look() -> None:
            before = np.array([int(row["queue_tuples"]) for row in rows])
            sizes = view.poll(1.0).columns["queue_size"]
            after = np.array([int(row["queue_tuples"]) for row in rows])
            looked.extend((before == sizes)[(sizes > 0) & (before == after)])

        looks(view, look)
        right = float(np.mean(looked))
        print(f"{len(looked)} lengths, {right:.1%} as the engine counts")
        assert len(looked) > 100
        assert right > 0.95  # the rest are about to be written
        names = scheduler.program.btf.enum("trace_event")
        compared: dict[int, int] = {}
        choices = differing = wrong = 0
        picked = False
        for record in scheduler.trace():
            if record["event"] == names["TRACE_COMPARE"]:
                compared[int(record["slot"])] = int(record["key"])
            elif record["event"] == names["TRACE_PICK"]:
                picked = True
            elif record["event"] == names["TRACE_RUN"]:
                if picked and len(compared) > 1:
                    choices += 1
                    differing += len(set(compared.values())) > 1
                    wrong += compared[int(record["slot"])] < max(compared.values())
                compared, picked = {}, False
        print(f"{choices} choices, {differing} between different lengths, {wrong} wrong")
        assert differing > 50
        assert wrong <= choices * 0.002
        assert backend.restore() == ()


@only_on("7.3")
def check_an_engine_that_stops_telling() -> None:
    """It hangs, or somebody else takes its rows: ages are inherited until it tells again."""
    backend = Scx(journal(), ScxOptions(mode="partial", ttl=TTL_S))
    with engine(0.3, 600, delay_s=600) as (view, threads):
        pid = threads[0].pid
        wanted = schedule(threads, per_second=1.0)
        wait_until(lambda: told(backend, wanted, "engine"))
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: told(backend, wanted, "waker"))
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: told(backend, wanted, "engine"))
        offer = view.file.live_offer()
        assert offer is not None
        fd = os.memfd_create("live", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, offer.rows * offer.row.itemsize)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with live.hand_over(offer, fd):
            wait_until(lambda: told(backend, wanted, "waker"))
        os.close(fd)
        wait_until(lambda: told(backend, wanted, "engine"))
        # QS with and without.
        lengths = schedule(threads, per_tuple=1.0)
        backend.apply(lengths)
        assert backend.scheduler is not None
        control: Any = backend.scheduler.control
        exact = backend.scheduler.queue_flags["QUEUE_EXACT"]
        assert control["queues"]["flags"][0] == exact
        os.kill(pid, signal.SIGSTOP)
        wait_until(
            lambda: not told(backend, lengths, "engine") and not control["queues"]["flags"][0]
        )
        os.kill(pid, signal.SIGCONT)
        backend.restore()
        wait_for("disabled")
