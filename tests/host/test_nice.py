"""The nice backend on real threads: what /proc says afterwards."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from victims import Victim, plan, state

from sched_ctl.backends.threads import sweep
from sched_ctl.backends.threads.nice import Nice
from sched_ctl.backends.undo import journal as journals
from sched_ctl.backends.undo import put_back as undo
from sched_ctl.backends.undo.journal import Journal, JournalError
from sched_ctl.backends.undo.records import Process, Set
from sched_ctl.drivers.threads import thread_of
from sched_ctl.kernel import procfs, sched
from sched_ctl.model.options import NiceOptions
from sched_ctl.model.topology import Thread
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root")]

BELOW = NiceOptions(best=0)  # the whole range, whatever the threads weigh


def nices(threads: tuple[Thread, ...]) -> list[int]:
    return [sched.get_nice(thread.tid) for thread in threads]


def test_sets_nice_alone_and_puts_it_back(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(5)
    sched.set_nice(threads[1].tid, 7)
    sched.set_policy(threads[2].tid, sched.BATCH, reset_on_fork=True)
    sched.set_nice(threads[3].tid, -5)
    before = victim.everything()
    backend = Nice(journal, BELOW)
    done = backend.apply(plan(threads, [1, 2, 3, 4, np.nan]))
    # The second had 7 of its own, and so has the place of 7 in 7..17; the fourth -5 in -5..5.
    assert nices(threads) == [10, 14, 3, -5, 5]
    assert {sched.get_policy(threads[row].tid)[0] for row in (0, 1, 3, 4)} == {sched.OTHER}
    assert sched.get_policy(threads[2].tid) == (sched.BATCH, True), "somebody else's choice"
    assert done.writes == 4 and not done.problems
    assert backend.applied(threads[0]) == {"nice": 10, "policy": "SCHED_OTHER"}
    assert sched.get_nice(victim.pid) == 0, "a thread that nobody named"
    assert backend.restore() == ()
    assert victim.everything() == before
    assert backend.applied(threads[0]) == {}
    for thread in threads:  # as the fixture wants them
        sched.set_nice(thread.tid, 0)
        sched.set_policy(thread.tid, sched.OTHER)


def test_who_was_left_alone_is_ordered_when_it_may_be(victim: Victim, journal: Journal) -> None:
    """It was real-time for a while; the schedule has the same threads all the time."""
    threads = victim.threads(2)
    sched.set_policy(threads[0].tid, sched.RR, reset_on_fork=True, priority=1)
    backend = Nice(journal, NiceOptions(best=0, recheck=0.1))
    schedule = plan(threads, [1, 2])
    try:
        for _ in range(3):
            assert any(str(threads[0].tid) in told for told in backend.apply(schedule).problems)
        assert nices(threads) == [0, 0] and backend.applied(threads[0]) == {}
    finally:
        sched.set_policy(threads[0].tid, sched.OTHER)
    wait_until(lambda: backend.apply(schedule).problems == ())
    assert nices(threads) == [10, 0]
    assert backend.apply(schedule).writes == 0
    assert backend.restore() == ()
    assert nices(threads) == [0, 0]


@pytest.mark.parametrize("how", ["restored", "by the journal"])
def test_what_somebody_else_has_set_since_stays(
    victim: Victim, journal: Journal, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    threads = victim.threads(4)
    backend = Nice(journal, BELOW)
    backend.apply(plan(threads, [1, 2, 3, 4]))
    backend.apply(plan(threads, [4, 2, 3, 1]))
    assert nices(threads) == [0, 7, 3, 10]
    sched.set_nice(threads[0].tid, 7)  # a value that we set as well, but not here
    sched.set_policy(threads[1].tid, sched.IDLE)
    if how == "restored":
        assert backend.restore() == ()
    else:
        assert journals.restore(Journal(journal.path)) == []
        journal.clear()
    assert nices(threads) == [7, 0, 0, 0]
    assert [sched.get_policy(t.tid)[0] for t in threads] == [0, sched.IDLE, 0, 0]
    assert f"thread {threads[0].tid} keeps nice 7" in caplog.text
    assert f"thread {threads[1].tid} stays SCHED_IDLE" in caplog.text
    sched.set_nice(threads[0].tid, 0)  # as the fixture wants them
    sched.set_policy(threads[1].tid, sched.OTHER)


def test_one_killed_between_journal_and_change_is_put_back(
    victim: Victim, journal: Journal
) -> None:
    """The journal then tells of a value that the thread has not got yet."""
    [thread] = victim.threads(1)
    Nice(journal, BELOW).apply(plan([thread, *victim.threads(1)], [1, 2]))
    assert nices((thread,)) == [10]
    journal.write([Set([(*thread.key, 3)])])
    assert journals.restore(Journal(journal.path)) == []
    journal.clear()
    assert nices((thread,)) == [0]


@pytest.mark.parametrize("own", [0, 5, 12, 19, -5])
def test_nobody_gets_above_the_nice_value_of_his_own(
    victim: Victim, journal: Journal, own: int
) -> None:
    threads = victim.threads(4)
    for thread in threads:
        sched.set_nice(thread.tid, own)
    backend = Nice(journal, BELOW)
    backend.apply(plan(threads, [1, 2, 3, 4]))
    now = nices(threads)
    assert now == sorted(now, reverse=True) and len(set(now)) == (1 if own == 19 else 4)
    assert min(now) == own and max(now) == min(19, own + BELOW.worst)
    assert backend.restore() == ()
    assert nices(threads) == [own] * 4
    for thread in threads:  # as the fixture wants them
        sched.set_nice(thread.tid, 0)


@pytest.mark.parametrize("how", ["restored", "by the journal"])
def test_a_thread_as_young_as_our_coming_keeps_what_it_had(
    victim: Victim, journal: Journal, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Born in the very clock tick of the adoption, it could be taken for a child of ours."""
    threads = victim.threads(3)
    monkeypatch.setattr(procfs, "boot_ticks", lambda: min(t.start_time for t in threads))
    sched.set_policy(threads[2].tid, sched.BATCH, reset_on_fork=True)
    backend = Nice(journal, BELOW)
    backend.apply(plan(threads, [1, 2, 3]))
    assert (backend.restore() if how == "restored" else tuple(journals.restore(journal))) == ()
    assert sched.get_policy(threads[2].tid) == (sched.BATCH, True)
    sched.set_policy(threads[2].tid, sched.OTHER)


def test_the_range_is_an_option(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(2)
    backend = Nice(journal, NiceOptions(best=-3, worst=4))
    backend.apply(plan(threads, [1, 2]))
    assert [state(thread.pid, thread.tid)[:2] for thread in threads] == [
        (4, (sched.OTHER, False)),
        (-3, (sched.OTHER, False)),
    ]
    backend.restore()


def test_only_differences_are_written(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(3)
    backend = Nice(journal, BELOW)
    backend.apply(plan(threads, [1, 2, 3]))
    again = backend.apply(plan(threads, [1, 2, 3]))
    assert (again.writes, again.unchanged) == (0, 3)
    moved = backend.apply(plan(threads, [1, 3, 3]))
    assert (moved.writes, moved.unchanged) == (1, 2)
    size = journal.path.stat().st_size
    backend.apply(plan(threads, [1, 2, 3]))
    assert journal.path.stat().st_size < size + 60, "one line: the value that one thread gets"
    backend.restore()


def test_a_value_on_the_edge_between_two_does_not_flip(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(3)

    def wide(dead_band: float) -> NiceOptions:
        return NiceOptions(best=0, worst=19, levels=19, dead_band=dead_band)

    def middle(options: NiceOptions) -> list[int]:
        """Nice of the second thread, whose level moves by a fifth from pass to pass."""
        backend = Nice(journal, options)
        seen = []
        for level in (9.0, 9.6, 9.4, 9.6, 9.4, 9.7, 10.5, 10.3):
            backend.apply(plan(threads, [19, 19 - level, 0]))
            seen.append(sched.get_nice(threads[1].tid))
        backend.restore()
        return seen

    assert middle(wide(0.6)) == [9, 9, 9, 9, 9, 10, 10, 10]
    assert middle(wide(0.5)) == [
        9,
        10,
        9,
        10,
        9,
        10,
        10,
        10,
    ]


def test_a_thread_that_left_the_schedule_is_released(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(3)
    backend = Nice(journal, BELOW)
    backend.apply(plan(threads, [1, 2, 3]))
    backend.apply(plan(threads[:2], [1, 2]))
    assert state(victim.pid, threads[2].tid)[:2] == (0, (sched.OTHER, False))
    assert nices(threads[:2]) == [10, 0]
    backend.apply(plan(threads, [3, 2, 1]))
    assert nices(threads) == [0, 5, 10]
    backend.apply(plan((), []))
    assert nices(threads) == [0, 0, 0]


def test_scopes_do_not_touch_each_others_threads(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(4)
    backend = Nice(journal, BELOW)
    backend.apply(plan(threads[:2], [1, 2], scope="a"))
    backend.apply(plan(threads[2:], [1, 2], scope="b"))
    backend.apply(plan((), [], scope="a"))
    assert nices(threads) == [0, 0, 10, 0]
    backend.restore()


def test_a_reused_thread_id_is_another_thread(victim: Victim, journal: Journal) -> None:
    real = victim.threads(2)
    older = dataclasses.replace(real[0], start_time=real[0].start_time - 1)
    backend = Nice(journal, BELOW)
    done = backend.apply(plan((older, real[1]), [1, 2]))
    assert done.gone == 1 and not done.problems
    assert state(victim.pid, older.tid)[:2] == (0, (sched.OTHER, False))
    backend.restore()


def test_a_thread_that_died_meanwhile_is_no_error(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(3)
    backend = Nice(journal, BELOW)
    backend.apply(plan(threads, [1, 2, 3]))
    victim.end(threads[0].tid, 0)
    done = backend.apply(plan(threads, [3, 2, 1]))
    assert (done.gone, done.writes, done.problems) == (1, 1, ())
    assert nices(threads[1:]) == [5, 10]
    assert backend.restore() == ()


def test_what_others_change_is_repaired(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(4)
    backend = Nice(journal, NiceOptions(best=0, recheck=0.1))
    schedule = plan(threads, [1, 2, 3, 4])
    backend.apply(schedule)
    sched.set_nice(threads[1].tid, 3)
    sched.set_nice(threads[2].tid, 19)
    repaired = 0

    def right() -> bool:
        nonlocal repaired
        repaired += backend.apply(schedule).repaired
        return repaired == 2

    wait_until(right)
    assert nices(threads) == [10, 7, 3, 0]
    backend.restore()


def test_real_time_threads_are_left_alone(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(2)
    sched.set_policy(threads[0].tid, sched.RR, priority=1)
    backend = Nice(journal, BELOW)
    done = backend.apply(plan(threads, [1, 2]))
    assert len(done.problems) == 1 and "SCHED_RR" in done.problems[0]
    assert sched.get_policy(threads[0].tid) == (sched.RR, False)
    backend.restore()
    sched.set_policy(threads[0].tid, sched.OTHER)


def test_children_get_back_what_they_inherited(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(2)
    backend = Nice(journal, BELOW)
    backend.apply(plan(threads, [1, 2]))
    born = int(victim.ask("from 0"))
    child = int(victim.ask("child 0"))
    for tid in (born, child):
        assert sched.get_nice(tid) == 10
    # The driver names one of them: what it has is not what it had
    late = victim.thread(born)
    backend.apply(plan((*threads, late), [1, 2, 1]))
    assert journal.state.adopted[late.tid, late.start_time].nice == 0
    backend.restore()
    assert {found[:2] for found in victim.everything().values()} == {(0, (sched.OTHER, False))}


@pytest.mark.parametrize("recheck", [0.1, 3600])  # what is new is noticed without it
def test_strangers_that_inherited_are_put_back_meanwhile(
    victim: Victim, journal: Journal, recheck: float
) -> None:
    threads = victim.threads(2)
    backend = Nice(journal, NiceOptions(best=0, recheck=recheck))
    schedule = plan(threads, [1, 2])
    backend.apply(schedule)
    born = int(victim.ask("from 0"))

    def put_back() -> bool:
        backend.apply(schedule)
        return (sched.get_nice(born), sched.get_policy(born)[0]) == (0, sched.OTHER)

    wait_until(put_back)
    assert nices(threads) == [10, 0]
    backend.restore()


def test_a_look_at_all_processes_that_takes_long_is_put_off(
    victim: Victim, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may start thousands, and have his threads come and go."""
    now_s, looks, pids = [1000.0], [], procfs.pids

    def slow() -> list[int]:
        looks.append(now_s[0])
        now_s[0] += 1
        return pids()

    monkeypatch.setattr(procfs, "pids", slow)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    threads, backend = victim.threads(2), Nice(journal, BELOW)

    def let_go() -> tuple[int, int]:
        """Looks that it takes, and the nice value of a process that inherited one of ours."""
        backend.apply(plan(threads, [1, 2]))
        child = int(victim.ask("child 0"))
        assert sched.get_nice(child) == 10
        looks.clear()
        backend.apply(plan((), []))
        return len(looks), sched.get_nice(child)

    assert let_go() == (1, 0)
    assert let_go() == (0, 10) and victim.pid in journal.state.processes
    now_s[0] += 100
    backend.apply(plan((), []))
    assert len(looks) == 1 and victim.pid not in journal.state.processes
    assert let_go() == (0, 10)
    assert backend.restore() == ()  # at once


def test_idle_threads_are_looked_at_once_and_few_in_a_pass(
    victim: Victim, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, idle = victim.threads(2), victim.threads(30)
    schedule, backend = plan(threads, [1, 2]), Nice(journal, NiceOptions(best=0, recheck=3600))
    looked: list[int] = []
    passes: list[int] = []
    is_inherited = undo.is_inherited

    def watched(process: Process, found: procfs.Stat) -> bool:
        looked.append(found.tid)
        return is_inherited(process, found)

    monkeypatch.setattr(undo, "is_inherited", watched)
    monkeypatch.setattr(sweep, "MOST", 7)

    def after(tids: set[int]) -> bool:
        before = len(looked)
        backend.apply(schedule)
        passes.append(len(looked) - before)
        return tids <= set(looked)

    wait_until(lambda: after({thread.tid for thread in idle}))
    assert max(passes) == 7 and len(looked) == len(set(looked))
    wait_until(lambda: after(set()) and passes[-1] == 0)
    looked.clear()
    born = int(victim.ask("from 0"))
    wait_until(lambda: after({born}))
    assert looked == [born] and sched.get_nice(born) == 0
    backend.restore()


def test_nothing_is_changed_without_the_journal(victim: Victim, tmp_path: Path) -> None:
    threads = victim.threads(2)
    journal = Journal(tmp_path / "journal")
    journal.close()
    journal._fd = os.open("/dev/full", os.O_RDWR)
    with pytest.raises(JournalError):
        Nice(journal, BELOW).apply(plan(threads, [1, 2]))
    assert {found[:2] for found in victim.everything().values()} == {(0, (sched.OTHER, False))}


CONTROLLER = """
import json, sys, numpy as np
from pathlib import Path
from victims import plan
from sched_ctl.backends import ladder
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.model.topology import Thread
threads = [Thread(*ids) for ids in json.loads(sys.argv[2])]
backend, _ = ladder.choose(sys.argv[3], {}, Journal(Path(sys.argv[1])))
half = tuple(range(len(threads) // 2)), tuple(range(len(threads) // 2, len(threads)))
groups = None if sys.argv[3] == "nice" else {"a": (1, half[0]), "b": (4, half[1])}
random = np.random.default_rng()
print("begin", flush=True)
while True:
    backend.apply(plan(threads, random.permutation(len(threads)), groups))
"""


@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.01, 0.05, 0.3])
@pytest.mark.parametrize(
    "name", ["nice", pytest.param("cgroup1+nice", marks=pytest.mark.needs("cgroup1_cpu"))]
)
def test_everything_is_put_back_after_kill_9(
    victim: Victim, tmp_path: Path, name: str, after_s: float
) -> None:
    threads = victim.threads(20)
    before = victim.everything()
    path = tmp_path / "journal"
    ids = json.dumps([(t.pid, t.tid, t.start_time) for t in threads])
    command = [sys.executable, "-c", CONTROLLER, str(path), ids, name]
    folder = str(Path(__file__).parents[1] / "helpers")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": folder}
    ) as controller:
        assert controller.stdout
        assert controller.stdout.readline() == "begin\n"
        time.sleep(after_s)  # the moment is what the test varies
        controller.send_signal(signal.SIGKILL)
    born = [int(victim.ask("from 3")), int(victim.ask("child 4"))]
    journal = Journal(path)
    assert journals.restore(journal) == []
    after = victim.everything()
    assert {tid: after[tid] for tid in before} == before
    assert {after[tid] for tid in born} == {before[victim.pid]}
    assert not journal.state and not Journal(path).state
    assert journals.restore(journal) == []


def test_ten_thousand_threads_cost_little(journal: Journal) -> None:
    """Nothing to write is one comparison of arrays: no call a thread."""
    me = thread_of(os.getpid(), os.getpid())
    assert me is not None
    backend = Nice(journal, NiceOptions(recheck=3600, best=0, worst=0))
    crowd = (me, *(Thread(me.pid, 10**7 + row, 1) for row in range(9999)))
    schedule = plan(crowd, np.arange(10_000.0).tolist())
    backend.apply(schedule)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        done = backend.apply(schedule)
    finally:
        sys.setprofile(None)
    assert calls < 1000 and done.writes == 0 and done.gone == 9999
    backend.restore()
