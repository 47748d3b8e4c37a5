"""Verdicts of whole columns are those that each operator would get by itself, in plain Python.

The shares are drawn from a few values, the limits among them, so that both sides of each are met.
"""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

from plans import array, plan
from sched_ctl.metrics import verdicts
from sched_ctl.metrics.verdicts import Verdict
from sched_ctl.metrics.window import Window
from sched_ctl.model.graph import Array, Graph
from sched_ctl.model.topology import Snapshot

NAN = math.nan
SHARES = (NAN, 0.0, 0.003, 0.01, 0.05, 0.1, 0.11, 0.2, 0.25, 0.3, 0.5, 0.85, 0.9, 1.0)
COUNTS = (NAN, 0.0, 1.0, 9.0, 10.0, 100.0, 1000.0)
N = 400


def drawn(seed: int, values: Sequence[float], columns: int) -> list[Array]:
    draw = random.Random(seed)
    return [np.array([draw.choice(values) for _ in range(N)]) for _ in range(columns)]


def known(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def keeps_up(run: float, wait: float, idle: float, growth: float, taken: float) -> float:
    more, done = known(growth), known(taken)
    if more > 0.1 * done and more > 4.0 * math.sqrt(max(done + more, 0.0)):
        return 0.0
    if math.isnan(idle):
        return 0.0 if run + known(wait) >= 0.85 else NAN
    stands = done == 0 and run < 0.01 and wait >= 0.1
    return 1.0 if idle >= 0.1 and not stands else 0.0


@pytest.mark.parametrize("seed", range(5))
def test_who_keeps_up(seed: int) -> None:
    run, wait, idle = drawn(seed, SHARES, 3)
    growth, taken = drawn(seed + 100, COUNTS, 2)
    run = np.nan_to_num(run)
    found = verdicts._keeps_up(run, wait, idle, growth, taken)
    rows = zip(run, wait, idle, growth, taken, strict=True)
    np.testing.assert_array_equal(found, [keeps_up(*row) for row in rows])


def judge(
    run: float, wait: float, full: float, blocked: float, idle: float, taken: float, behind: bool
) -> Verdict:
    if math.isnan(run) and math.isnan(idle):
        return Verdict.UNKNOWN
    losses = [known(wait), known(full), known(blocked)]
    most = max(losses)
    if run < 0.01 and most < 0.1 and idle >= 0.9 and not taken > 0:
        return Verdict.IDLE
    if most >= 0.1:
        first = losses.index(most)
        if first == 2:
            return Verdict.IO_BOUND
        if first == 1:
            return Verdict.BACKPRESSURED
        if losses[0] >= 0.25 * (run + losses[0]):
            if behind:
                return Verdict.CPU_STARVED
            if math.isnan(idle):
                return Verdict.UNKNOWN
            if idle >= 0.1:
                return Verdict.INPUT_BOUND
    if (idle < 0.1 and run >= most) or run + losses[0] >= 0.85:
        return Verdict.SINGLE_THREAD_BOUND
    return Verdict.INPUT_BOUND if idle >= 0.1 else Verdict.UNKNOWN


@pytest.mark.parametrize("seed", range(5))
def test_what_holds_it(seed: int) -> None:
    run, wait, full, blocked, idle = drawn(seed, SHARES, 5)
    (taken,) = drawn(seed + 100, COUNTS, 1)
    behind = np.array([random.Random(seed + i).random() < 0.5 for i in range(N)])
    found = verdicts._judge(run, wait, full, blocked, idle, taken, behind)
    rows = zip(run, wait, full, blocked, idle, taken, behind, strict=True)
    assert found.tolist() == [int(judge(*row)) for row in rows]


def margin(code: int, run: float, wait: float, full: float, blocked: float, idle: float) -> float:
    run, wait, full, blocked, idle = map(known, (run, wait, full, blocked, idle))
    share, against = {
        Verdict.IDLE: (1.0, max(wait, full, blocked)),
        Verdict.INPUT_BOUND: (idle, max(wait, full, blocked)),
        Verdict.CPU_STARVED: (wait, max(full, blocked, idle)),
        Verdict.SINGLE_THREAD_BOUND: (run, max(wait, full, blocked, idle)),
        Verdict.IO_BOUND: (blocked, max(wait, full)),
        Verdict.MEMORY_BOUND: (blocked, max(wait, full)),
        Verdict.BACKPRESSURED: (full, max(wait, blocked)),
    }.get(Verdict(code), (0.0, 0.0))
    return share / (share + against) if share > 0 else 0.0


@pytest.mark.parametrize("seed", range(3))
def test_how_sure(seed: int) -> None:
    run, wait, full, blocked, idle = drawn(seed, SHARES, 5)
    code = np.array([random.Random(seed + i).randrange(8) for i in range(N)], dtype=np.int8)
    found = verdicts._margin(code, run, wait, full, blocked, idle)
    rows = zip(code.tolist(), run, wait, full, blocked, idle, strict=True)
    np.testing.assert_allclose(found, [margin(*row) for row in rows])


@pytest.mark.parametrize("seed", range(20))
def test_whom_a_held_one_is_held_by(seed: int) -> None:
    draw = random.Random(seed)
    n = 8
    edges = [(a, b) for a in range(n) for b in range(a + 1, n) if draw.random() < 0.3]
    source, target = (np.array([e[i] for e in edges], dtype=np.intp) for i in (0, 1))
    graph = Graph(n, source, target, np.ones(len(edges)))
    code = [draw.choice((Verdict.BACKPRESSURED, Verdict.INPUT_BOUND)) for _ in range(n)]
    idle = [draw.choice((NAN, 0.0, 0.2, 0.7, 1.0)) for _ in range(n)]
    expected: dict[int, int] = {}
    for row in reversed(range(n)):  # from the egresses up
        below = [b for a, b in edges if a == row]
        expected[row] = -1
        if code[row] is Verdict.BACKPRESSURED and below:
            pressed = [0.5 if math.isnan(idle[b]) else 1.0 - idle[b] for b in below]
            fullest = below[pressed.index(max(pressed))]
            expected[row] = expected[fullest] if expected[fullest] >= 0 else fullest
    found = verdicts._limits(graph, np.array(code, dtype=np.int8), np.array(idle))
    assert found.tolist() == [expected[row] for row in range(n)]


def asleep(
    unknown: float, idle: float, full: float, queues: bool, works: bool, before: bool
) -> tuple[float, float]:
    """idle, full: what the engine says, per second. queues: whether both queue sizes are known.

    before: whether an operator that it feeds is always at work, and never out of it.
    """
    told = not math.isnan(idle)
    said = known(idle) + known(full)
    fits = unknown / said if said > unknown else 1.0
    if not math.isnan(full):
        held = full * fits
    elif works and before:
        held = unknown
    else:
        held = 0.0 if works or queues or told else NAN
    left = max(unknown - known(held), 0.0)
    guessed = 0.0 if works else left if queues else NAN
    rest = idle * fits if told else guessed
    if unknown < 0.005:
        rest = rest if told else 0.0
        held = 0.0 if math.isnan(held) else held
    return rest, held


@pytest.mark.parametrize("seed", range(10))
def test_what_the_time_asleep_was_for(seed: int) -> None:
    draw = random.Random(seed)
    n = 6
    edges = [(i, i + 1) for i in range(n - 1)]
    topology = plan({"q": [f"o{i}" for i in range(n)]}, edges)
    slept = np.array([draw.choice((0.0, 0.003, 0.15, 0.16, 0.5, 0.9)) for _ in range(n)])
    unknown = slept * np.array([draw.choice((1.0, 1.0, 0.5)) for _ in range(n)])
    columns = {
        name: np.array([draw.choice((NAN, 0.0, 0.2, 0.6, 1.0)) for _ in range(n)])
        for name in ("idle_time", "backpressured_time")
    }
    queue, past = (np.array([draw.choice((NAN, 0.0, 5.0)) for _ in range(n)]) for _ in range(2))
    works = np.array([draw.random() < 0.5 for _ in range(n)])
    window = Window(
        Snapshot(topology, 20.0, {k: 100.0 + 10.0 * v for k, v in columns.items()}),
        Snapshot(
            topology, 10.0, {k: np.where(np.isnan(v), NAN, 100.0) for k, v in columns.items()}
        ),
    )
    idle, full, told = verdicts._asleep(window, unknown, slept, queue, past, works)
    for i in range(n):
        never_out = i + 1 < n and 1.0 - slept[i + 1] >= 0.85 and bool(works[i + 1])
        queues = not (math.isnan(queue[i]) or math.isnan(past[i]))
        expected = asleep(
            unknown[i],
            columns["idle_time"][i],
            columns["backpressured_time"][i],
            queues,
            bool(works[i]),
            never_out,
        )
        np.testing.assert_allclose((idle[i], full[i]), expected, atol=1e-12)
        assert told[i] == (not math.isnan(columns["idle_time"][i]))


def test_what_waits_at_both_ends_is_a_backlog() -> None:
    topology = plan({"q": ["a", "b", "c", "d"]})

    def at(time_s: float, *backlog: float) -> Snapshot:
        return Snapshot(topology, time_s, {"backlog": array(*backlog)})

    window = Window(at(20.0, 1, 5, 0, NAN), at(10.0, 1, 0, 5, 5))
    assert verdicts._has_backlog(window).tolist() == [True, False, False, False]
    assert not verdicts._has_backlog(Window(at(20.0, 1, 5, 0, NAN))).any()


@pytest.mark.parametrize("pressure", [NAN, 0.05, 0.1, 0.2, 0.6])
def test_half_of_the_time_asleep_for_memory(pressure: float) -> None:
    memory, blocked = drawn(3, (NAN, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5), 2)
    found = verdicts._for_memory(memory, blocked, pressure)
    expected = [
        (pressure >= 0.1 and pressure >= b / 2) if math.isnan(m) else m >= b / 2
        for m, b in zip(memory, blocked, strict=True)
    ]
    assert found.astype(bool).tolist() == expected
