"""Who gets no CPU for as long as anybody looks waits for one, and does not sleep."""

import os
import subprocess

import numpy as np
import pytest

from plans import array, plan
from sched_ctl.kernel import procfs
from sched_ctl.metrics.verdicts import Verdict, assess
from sched_ctl.metrics.window import Window
from sched_ctl.model.topology import Snapshot, Thread
from sched_ctl.probes import unserved
from sched_ctl.probes.unserved import MOST, Turns, Unserved
from support import wait_until

A, B, C = (Thread(1, tid, 0, f"t{tid}") for tid in (1, 2, 3))


def looked(*looks: dict[Thread, Turns]) -> Unserved:
    """After looks at A and B, a second apart, of whom these could run."""
    now: dict[Thread, Turns] = {}
    found = Unserved(now.get)
    for second, told in enumerate(looks):
        now.clear()
        now.update(told)
        found.look((A, B), float(second))
    return found


def waited(found: Unserved, seconds: float = 10.0) -> list[float] | None:
    told = found.waited([(A,), (B,), (A, B), (C,)], seconds)
    return None if told is None else told.tolist()


def test_who_could_run_and_had_no_turn_has_waited() -> None:
    found = looked({A: (5, 1)}, {A: (5, 1), B: (3, 1)}, {A: (5, 1), B: (3, 1)})
    assert waited(found) == [2.0, 1.0, 3.0, 0.0]
    assert waited(found, 1.5) == [1.5, 1.0, 2.5, 0.0]  # of the window


@pytest.mark.parametrize(
    "looks",
    [
        [{A: (5, 1)}],
        [{A: (5, 1)}, {A: (6, 2)}],  # it had one
        [{A: (5, 1)}, {A: (9, 1)}],  # it has had one CPU all the time
        [{A: (5, 1)}, {}, {A: (5, 1)}],  # it slept: that is told by the turn that it had before
    ],
)
def test_who_had_a_turn_or_slept_has_not(looks: list[dict[Thread, Turns]]) -> None:
    assert waited(looked(*looks)) == [0.0] * 4


def test_a_wait_that_goes_on_is_told_once_it_is_longer_than_what_the_kernel_counts_late() -> None:
    assert looked({A: (5, 1)}, {A: (5, 1), B: (3, 1)}, {A: (5, 1), B: (3, 1)}).goes_on_s() == {
        A: 2.0
    }
    assert looked({A: (5, 1)}, {A: (5, 1)}, {A: (5, 2)}).goes_on_s() == {}  # it had a turn


def test_who_sleeps_is_forgotten() -> None:
    assert waited(looked({A: (5, 1)}, {})) is None


def test_of_very_many_some_are_looked_at_each_time_and_all_in_turn() -> None:
    many = [Thread(1, tid, 0, "t") for tid in range(1, 2 * MOST)]
    asked: list[Thread] = []

    def ready(thread: Thread) -> Turns:
        asked.append(thread)
        return (0, 1)

    found = Unserved(ready)
    for second in range(4):
        found.look(many, float(second))
        found.look(many, second + 0.1)  # that was just now
    assert len(asked) == 4 * MOST and {*asked} == {*many}
    told = found.waited([(thread,) for thread in many], 10.0)
    assert told is not None and (told >= 1.0).all()


def test_a_wait_that_ended_unseen_is_told_of_its_own_window_only() -> None:
    """Nobody has looked at it since, for there are so many."""
    many = [Thread(1, tid, 0, "t") for tid in range(1, 3 * MOST)]
    turns: list[Turns | None] = [(0, 1)]
    found = Unserved(lambda thread: turns[-1])
    for second in range(6):
        found.look(many, float(second))
    turns.append(None)
    found.look(many, 3600.0)
    told = found.waited([(thread,) for thread in many], 2.0)
    assert told is not None and not told.any()


def test_it_is_starved_and_not_idle() -> None:
    """Of two of whom the engine says that they have no input one could run, but has no turn."""
    topology = plan({"q": ["a", "b"]})

    def at(time_s: float) -> Snapshot:
        columns = {
            "thread_cpu_time": array(3.0, 3.0),
            "run_delay": array(7.0, 7.0),
            "idle_time": array(time_s, time_s),
            "tuples_in": array(10.0, 10.0),
        }
        return Snapshot(topology, time_s, columns)

    window = Window(at(14.0), at(10.0))
    found = assess(window, unserved=array(3.9, 0.0))
    assert [Verdict(code) for code in found.verdict] == [Verdict.CPU_STARVED, Verdict.IDLE]
    assert np.allclose(found.wait, [0.975, 0.0])


def test_the_kernel_tells_what_a_thread_has_had() -> None:
    """This one runs; one that sleeps, and one of its id that was born later, could not run."""
    pid = os.getpid()
    born = procfs.stat(pid)
    assert born is not None
    before = unserved._ready(Thread(pid, pid, born.start_time, "main"))
    assert before is not None and before[0] > 0 and before[1] > 0
    assert unserved._ready(Thread(pid, pid, born.start_time + 1, "another")) is None
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            wait_until(lambda: procfs.name_of(child.pid) == "sleep")
            asleep = procfs.stat(child.pid)
            assert asleep is not None
            thread = Thread(child.pid, child.pid, asleep.start_time, "sleep")
            wait_until(lambda: unserved._ready(thread) is None)
        finally:
            child.kill()
