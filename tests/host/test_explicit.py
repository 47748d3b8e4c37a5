"""The backends that are taken only by name: real time, slices, quotas. On real threads."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from contenders import SHARES, engine, folder
from victims import Victim, plan

from sched_ctl.backends import Backend, BackendFailed
from sched_ctl.backends.cgroups.quota import Quota
from sched_ctl.backends.threads import realtime, slices
from sched_ctl.backends.threads.nice import Nice
from sched_ctl.backends.threads.realtime import RealTime
from sched_ctl.backends.threads.slices import Slices
from sched_ctl.backends.undo import journal as journals
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.kernel import sched
from sched_ctl.model.options import NiceOptions, QuotaOptions, RealTimeOptions, SliceOptions
from sched_ctl.model.topology import Thread
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root")]

needs_slices = pytest.mark.skipif(not slices.probe().can, reason="needs Linux 6.12 or newer")


def priorities(threads: tuple[Thread, ...]) -> list[tuple[int, bool, int]]:
    found = [sched.get_attributes(thread.tid) for thread in threads]
    return [(one.policy, one.reset_on_fork, one.priority) for one in found]


def test_urgency_becomes_a_real_time_priority(victim: Victim, journal: Journal) -> None:
    assert realtime.probe().can
    threads = victim.threads(3)
    sched.set_nice(threads[0].tid, 4)
    backend = RealTime(journal, RealTimeOptions(highest=9))
    assert backend.apply(plan(threads, [1, 2, 3])).problems == ()
    assert priorities(threads) == [(sched.RR, True, 1), (sched.RR, True, 5), (sched.RR, True, 9)]
    assert backend.applied(threads[2]) == {"priority": 9, "policy": "SCHED_RR"}
    born = victim.thread(int(victim.ask("from 2")))
    assert priorities((born,)) == [(sched.OTHER, False, 0)]
    assert backend.apply(plan(threads, [1, 2, 3])).writes == 0
    # Nothing to say: nobody is above anybody
    backend.apply(plan(threads, [1, 1, 1]))
    assert {one[0] for one in priorities(threads)} == {sched.OTHER}
    backend.apply(plan(threads, [3, 2, 1]))
    assert backend.restore() == ()
    assert priorities(threads) == [(sched.OTHER, False, 0)] * 3
    assert sched.get_nice(threads[0].tid) == 4
    sched.set_nice(threads[0].tid, 0)


def test_real_time_is_put_back_by_the_journal(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(2)
    RealTime(journal, RealTimeOptions(policy="fifo")).apply(plan(threads, [1, 2]))
    assert priorities(threads)[1] == (sched.FIFO, True, 10)
    assert journals.restore(journal) == []
    assert priorities(threads) == [(sched.OTHER, False, 0)] * 2


@pytest.mark.parametrize("first", ["nice", "realtime"])
def test_two_backends_in_one_process_are_put_back_one_after_the_other(
    victim: Victim, journal: Journal, first: str
) -> None:
    """And what threads inherited goes with the last one."""
    threads = victim.threads(4)
    nice, urgent = Nice(journal, NiceOptions(best=0)), RealTime(journal)
    nice.apply(plan(threads[:2], [1, 2]))
    urgent.apply(plan(threads[2:], [1, 2]))
    born = victim.thread(int(victim.ask("from 0")))
    assert sched.get_nice(born.tid) == 10
    one, other = (nice, urgent) if first == "nice" else (urgent, nice)
    assert one.restore() == ()
    if first == "nice":
        assert priorities(threads[2:]) == [(sched.RR, True, 1), (sched.RR, True, 10)]
    else:
        assert [sched.get_nice(thread.tid) for thread in threads[:2]] == [10, 0]
    assert other.restore() == ()
    assert priorities(threads) == [(sched.OTHER, False, 0)] * 4
    assert {sched.get_nice(thread.tid) for thread in (*threads, born)} == {0}


KINDS: dict[str, Callable[[Journal], Backend]] = {
    "nice": lambda journal: Nice(journal, NiceOptions(best=0)),
    "slice": Slices,
    "rr": RealTime,
}


@needs_slices
@pytest.mark.parametrize(
    "order", [f"{one} {other}" for one in KINDS for other in KINDS if one != other]
)
@pytest.mark.parametrize("last", ["leaves", "is restored", "is killed"])
def test_a_thread_of_two_backends_gets_all_back_from_the_last(
    victim: Victim, journal: Journal, order: str, last: str
) -> None:
    """As a helper thread that serves nobody: it is in the schedule of every rule."""
    threads = victim.threads(2)
    helper = threads[1]
    sched.set_nice(helper.tid, 2)
    before = sched.get_attributes(helper.tid)
    one, other = (KINDS[name](journal) for name in order.split())
    other.apply(plan(threads, [1, 2]))
    one.apply(plan(threads, [2, 1]))
    other.apply(plan(threads, [2, 1]))
    one.apply(plan(threads[:1], [1]))
    left = sched.get_attributes(helper.tid)
    kept = {"nice": "nice", "slice": "slice_ns", "rr": "priority"}[order.split()[1]]
    if order != "rr slice":  # the kernel takes no slice of a real-time thread
        assert getattr(left, kept) != getattr(before, kept)
    assert one.restore() == ()
    if last == "leaves":
        other.apply(plan(threads[:1], [1]))
        assert other.restore() == ()
    elif last == "is restored":
        assert other.restore() == ()
    else:
        again = Journal(journal.path)
        assert journals.restore(again) == []
        again.close()
        assert other.restore() == ()
    assert sched.get_attributes(helper.tid) == before
    sched.set_nice(helper.tid, 0)


@pytest.mark.parametrize("last", ["is restored", "is killed"])
def test_of_two_that_set_nice_values_the_one_that_stays_has_its_own(
    victim: Victim, journal: Journal, last: str
) -> None:
    """However many the other one set, each is known as one of ours."""
    threads = victim.threads(2)
    one, other = Nice(journal, NiceOptions(best=0)), Nice(journal, NiceOptions(best=0, worst=3))
    other.apply(plan(threads, [2, 1]))
    for worst in (10, 7, 5):
        one.options = NiceOptions(best=0, worst=worst)
        one.apply(plan(threads, [2, 1]))
    assert sched.get_nice(threads[1].tid) == 5
    assert one.restore() == ()
    assert sched.get_nice(threads[1].tid) == 3
    if last == "is killed":
        again = Journal(journal.path)
        assert journals.restore(again) == []
        again.close()
    assert other.restore() == ()
    assert [sched.get_nice(thread.tid) for thread in threads] == [0, 0]


def test_a_sweep_leaves_the_younger_threads_of_another_backend(
    victim: Victim, journal: Journal
) -> None:
    older = victim.threads(2)
    nice, urgent = Nice(journal, NiceOptions(best=0, recheck=0.1)), RealTime(journal)
    schedule = plan(older, [1, 2])
    nice.apply(schedule)
    younger = victim.threads(2)
    urgent.apply(plan(younger, [1, 2]))
    born = victim.thread(int(victim.ask("from 0")))

    def swept() -> bool:
        nice.apply(schedule)
        return sched.get_nice(born.tid) == 0

    wait_until(swept)
    assert priorities(younger) == [(sched.RR, True, 1), (sched.RR, True, 10)]
    assert nice.restore() == () and urgent.restore() == ()


def test_a_thread_that_spins_is_no_real_time_thread(journal: Journal) -> None:
    with engine(1, "with a collector") as (busy, calm):
        backend = RealTime(journal, RealTimeOptions(bound=0.3))
        try:
            schedule = plan((busy, calm), [2, 1])

            def bounded() -> bool:
                backend.apply(schedule)
                time.sleep(0.2)
                return priorities((busy,))[0][0] == sched.OTHER

            wait_until(bounded, 20)
            assert backend.applied(busy)["bounded"] == "yes"
        finally:
            assert backend.restore() == ()


@needs_slices
def test_urgency_becomes_a_slice(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(3)
    usual = sched.get_attributes(threads[0].tid).slice_ns
    sched.set_nice(threads[0].tid, 4)
    backend = Slices(journal, SliceOptions(short=0.1, long=10))
    assert backend.apply(plan(threads, [1, 2, 3])).problems == ()
    found = [sched.get_attributes(thread.tid).slice_ns / 1e6 for thread in threads]
    assert found[0] == pytest.approx(10, rel=0.11) and found[2] == pytest.approx(0.1, rel=0.11)
    assert found[1] == pytest.approx(1, rel=0.11)
    assert sched.get_nice(threads[0].tid) == 4
    assert backend.apply(plan(threads, [1, 2, 3])).writes == 0
    born = victim.thread(int(victim.ask("from 2")))
    assert sched.get_attributes(born.tid).slice_ns == usual
    assert backend.restore() == ()
    assert {sched.get_attributes(thread.tid).slice_ns for thread in threads} == {usual}
    assert sched.get_nice(threads[0].tid) == 4
    sched.set_nice(threads[0].tid, 0)


@pytest.mark.parametrize("kind", [RealTime, pytest.param(Slices, marks=needs_slices)])
@pytest.mark.parametrize("how", ["restored", "by the journal"])
def test_a_nice_value_that_somebody_sets_meanwhile_is_his(
    victim: Victim, journal: Journal, kind: type[RealTime | Slices], how: str
) -> None:
    """These backends set none."""
    threads = victim.threads(2)
    backend = kind(journal)
    backend.apply(plan(threads, [1, 2]))
    sched.set_nice(threads[0].tid, 7)
    assert (backend.restore() if how == "restored" else tuple(journals.restore(journal))) == ()
    assert [sched.get_nice(thread.tid) for thread in threads] == [7, 0]
    assert priorities(threads) == [(sched.OTHER, False, 0)] * 2
    sched.set_nice(threads[0].tid, 0)


@needs_slices
def test_slices_are_put_back_by_the_journal(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(2)
    usual = sched.get_attributes(threads[0].tid).slice_ns
    Slices(journal).apply(plan(threads, [1, 2]))
    assert sched.get_attributes(threads[1].tid).slice_ns < usual
    assert journals.restore(journal) == []
    assert {sched.get_attributes(thread.tid).slice_ns for thread in threads} == {usual}


@pytest.mark.needs("cgroup1_cpu")
def test_a_quota_holds_though_the_cpu_is_idle(journal: Journal) -> None:
    with engine(4, "with a collector") as threads:
        *operators, collector = threads
        backend = Quota(journal, QuotaOptions(cpus=0.5, period=20))
        with pytest.raises(BackendFailed, match="no shares"):
            backend.apply(plan(operators, [1, 1, 1, 1]))
        try:
            backend.apply(plan(operators, [1, 1, 1, 1], SHARES))
            small, large = folder(operators[0]), folder(operators[2])
            assert [(f / "cpu.cfs_quota_us").read_text() for f in (small, large)] == [
                "2000\n",
                "8000\n",
            ]
            assert (folder(collector) / "cpu.cfs_quota_us").read_text() == "-1\n"
            assert backend.applied(operators[2])["limit"] == 0.4

            def used() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
                texts = [Path(f"/proc/{t.tid}/schedstat").read_text() for t in operators]
                return np.array([float(text.split()[0]) / 1e9 for text in texts])

            began_s, before = time.monotonic(), used()
            wait_until(lambda: (used() - before).sum() > 0.6, 60)
            cpus = (used() - before).sum() / (time.monotonic() - began_s)
            assert cpus < 0.6, "two CPUs are here, half of one is theirs"
        finally:
            assert backend.restore() == ()
