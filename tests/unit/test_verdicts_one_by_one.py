"""Verdicts of whole columns are those that each operator would get by itself, in plain Python.

The shares are drawn from a few values, the limits among them, so that both sides of each are met.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from plans import array, plan
from sched_ctl.metrics import verdicts
from sched_ctl.metrics.verdicts import Assessment, Verdict
from sched_ctl.metrics.window import Window
from sched_ctl.model.graph import Array, Graph
from sched_ctl.model.topology import (
    LogicalOperator,
    PhysicalOperator,
    Snapshot,
    Thread,
    Topology,
)

NAN = math.nan
SHARES = (NAN, 0.0, 0.005, 0.01, 0.05, 0.1, 0.11, 0.2, 0.25, 0.3, 0.5, 0.85, 0.9, 1.0)
COUNTS = (NAN, 0.0, 1.0, 9.0, 16.0, 100.0, 1000.0, 10_000.0)
N = 1500


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
        Verdict.CPU_STARVED: (wait, max(full, blocked, idle, run / 3)),
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
    order = draw.sample(range(n), n)  # the ingresses first
    edges = [(order[a], order[b]) for a in range(n) for b in range(a + 1, n) if draw.random() < 0.3]
    source, target = (np.array([e[i] for e in edges], dtype=np.intp) for i in (0, 1))
    graph = Graph(n, source, target, np.ones(len(edges)))
    code = [draw.choice((Verdict.BACKPRESSURED, Verdict.INPUT_BOUND)) for _ in range(n)]
    idle = [draw.choice((NAN, 0.0, 0.2, 0.7, 1.0)) for _ in range(n)]
    expected: dict[int, int] = {}
    for row in reversed(order):  # from the egresses up
        below = [b for a, b in edges if a == row]
        expected[row] = -1
        if code[row] is Verdict.BACKPRESSURED and below:
            pressed = [0.5 if math.isnan(idle[b]) else 1.0 - idle[b] for b in below]
            fullest = below[pressed.index(max(pressed))]
            expected[row] = expected[fullest] if expected[fullest] >= 0 else fullest
    found = verdicts._limits(graph, np.array(code, dtype=np.int8), np.array(idle))
    assert found.tolist() == [expected[row] for row in range(n)]


def asleep(
    unknown: float, idle: float, full: float, queues: bool, works: bool, before: bool, held: bool
) -> tuple[float, float]:
    """idle, full: what the engine says, per second. queues: whether both queue sizes are known.

    before: whether an operator that it feeds is always at work, and never out of it. held: whether
    that one's queue is full.
    """
    told = not math.isnan(idle)
    said = known(idle) + known(full)
    fits = unknown / said if said > unknown else 1.0
    if not math.isnan(full):
        blocked = full * fits
    elif held or (works and before):
        blocked = unknown
    else:
        blocked = 0.0 if works or queues or told else NAN
    left = max(unknown - known(blocked), 0.0)
    guessed = 0.0 if works else left if queues else NAN
    rest = idle * fits if told else guessed
    if unknown < 0.005:
        rest = rest if told else 0.0
        blocked = 0.0 if math.isnan(blocked) else blocked
    return rest, blocked


@pytest.mark.parametrize("seed", range(40))
def test_what_the_time_asleep_was_for(seed: int) -> None:
    draw = random.Random(seed)
    n = 20
    edges = [(i, i + 1) for i in range(n - 1)]
    topology = plan({"q": [f"o{i}" for i in range(n)]}, edges)
    slept = np.array([draw.choice((0.0, 0.003, 0.005, 0.15, 0.16, 0.5, 0.9)) for _ in range(n)])
    unknown = slept * np.array([draw.choice((1.0, 1.0, 0.5)) for _ in range(n)])
    columns = {
        name: np.array([draw.choice((NAN, 0.0, 0.2, 0.6, 1.0)) for _ in range(n)])
        for name in ("idle_time", "backpressured_time")
    }
    queue, past = (np.array([draw.choice((NAN, 0.0, 5.0)) for _ in range(n)]) for _ in range(2))
    room = np.array([draw.choice((NAN, 0.0, 5.5, 6.0)) for _ in range(n)])
    works = np.array([draw.random() < 0.5 for _ in range(n)])
    now = {"queue_capacity": room} | {k: 100.0 + 10.0 * v for k, v in columns.items()}
    window = Window(
        Snapshot(topology, 20.0, now),
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
            i + 1 < n and room[i + 1] == 5.5 and queue[i + 1] == past[i + 1] == 5.0,
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


@pytest.mark.parametrize("seed", range(10))
def test_who_has_work_in_hand(seed: int) -> None:
    draw = random.Random(seed)
    n = 20
    topology = replace(plan({"q": [f"o{i}" for i in range(n)]}), backoff_s=0.02)
    queue, past = (
        np.array([draw.choice((NAN, 0.0, 2.0, 3.0)) for _ in range(n)]) for _ in range(2)
    )
    rate, backlog = (np.array([draw.choice((0.0, 100.0)) for _ in range(n)]) for _ in range(2))

    def at(time_s: float) -> Snapshot:
        return Snapshot(topology, time_s, {"tuples_in": 5.0 + rate * time_s, "backlog": backlog})

    found = verdicts._works(Window(at(20.0), at(10.0)), queue, past)
    for i in range(n):
        usual = rate[i] * 0.02  # what comes while it backs off
        if math.isnan(queue[i]) or math.isnan(past[i]):
            expected = backlog[i] > 0
        else:
            expected = queue[i] > usual and past[i] > usual
        assert found[i] == expected


@pytest.mark.parametrize("seed", range(10))
def test_what_threads_ran_waited_and_were_robbed_of(seed: int) -> None:
    draw = random.Random(seed)
    threads = [draw.choice((0, 1, 2)) for _ in range(12)]
    operators = tuple(
        PhysicalOperator("q", f"o{i}", (f"o{i}",), threads=tuple(Thread(7, t, 1) for t in range(k)))
        for i, k in enumerate(threads)
    )
    topology = Topology(
        "e", operators, (), tuple(LogicalOperator("q", o.name) for o in operators), ()
    )
    names = ("thread_cpu_time", "cpu_time", "run_delay", "cpu_steal", "cpu_busy")
    grown = {
        name: np.array([draw.choice((NAN, 0.0, 0.2, 0.5, 0.9, 1.7)) for _ in operators])
        for name in names
    }
    then = Snapshot(topology, 10.0, {k: np.where(np.isnan(v), NAN, 3.0) for k, v in grown.items()})
    window = Window(Snapshot(topology, 11.0, {k: 3.0 + v for k, v in grown.items()}), then)
    each, run, wait, stolen = verdicts._awake(window)
    for i, count in enumerate(threads):
        cpu, own, delay, steal, busy = (grown[name][i] for name in names)
        ran = min(cpu / count, 1.0) if count else NAN
        ran = min(own / max(count, 1), 1.0) if math.isnan(ran) else ran
        waited = min(delay / count, 1.0 - known(ran)) if count else NAN
        lost = 0.0
        if busy > 0 and not math.isnan(steal) and not math.isnan(ran):
            lost = ran * steal / busy
        lost = min(lost, max(known(1.0 - ran - known(waited)), 0.0))
        assert each[i] == count or (math.isnan(each[i]) and not count)
        np.testing.assert_allclose(
            (run[i], wait[i], stolen[i]), (ran + lost, waited, lost), atol=1e-9
        )


def test_rows_of_each_group_in_order() -> None:
    group = np.array([2, 0, 2, 5, 0, 2], dtype=np.intp)
    found = [(number, rows.tolist()) for number, rows in verdicts.rows_by(group, 6)]
    assert found == [(0, [1, 4]), (2, [0, 2, 5]), (5, [3])]


def assessment(draw: random.Random, n: int) -> Assessment:
    """Of n operators, any shares with any verdict."""

    def shares() -> Array:
        return np.array([draw.choice((NAN, 0.0, 0.05, 0.1, 0.15, 0.2, 0.6)) for _ in range(n)])

    code = np.array([draw.randrange(8) for _ in range(n)], dtype=np.int8)
    keeps = np.array([draw.choice((1.0, 1.0, 1.0, NAN, 0.0)) for _ in range(n)])
    limit = np.array([draw.choice((-1, -1, draw.randrange(n))) for _ in range(n)], dtype=np.intp)
    sure = np.array([draw.random() for _ in range(n)])
    return Assessment(
        verdict=code,
        confidence=sure,
        limit=limit,
        run=shares(),
        wait=shares(),
        backpressured=shares(),
        blocked=shares(),
        idle=shares(),
        keeps=keeps,
        quality=np.array([draw.choice((0.3, 0.6, 1.0, 1.0)) for _ in range(n)]),
        moved=np.array([draw.choice((NAN, 0.0, 0.0, 0.0, 7.0)) for _ in range(n)]),
        stolen=shares(),
        queue=shares(),
        queue_before=shares(),
        io=shares(),
        memory=shares(),
        gc=shares(),
        backlog=shares(),
        seconds=4.0,
    )


def severity(found: Assessment, row: int) -> float:
    share = {
        Verdict.CPU_STARVED: found.wait,
        Verdict.SINGLE_THREAD_BOUND: found.run,
        Verdict.IO_BOUND: found.blocked,
        Verdict.MEMORY_BOUND: found.blocked,
        Verdict.BACKPRESSURED: found.backpressured,
    }.get(Verdict(found.verdict[row]))
    return 0.0 if share is None else known(float(share[row]))


def worst(found: Assessment, rows: Sequence[int]) -> int:
    def place(row: int) -> float:
        if severity(found, row) > 0:
            return severity(found, row)
        return {Verdict.UNKNOWN: -3.0, Verdict.INPUT_BOUND: -1.0}.get(found.verdict[row], -2.0)

    return max(rows, key=place)


def silent(found: Assessment, rows: Sequence[int]) -> bool:
    moved = [found.moved[row] for row in rows]
    works = [math.isnan(found.moved[row]) and found.run[row] >= 0.1 for row in rows]
    return 0.0 in moved and not any(works) and not any(tuples > 0 for tuples in moved)


@pytest.mark.parametrize("seed", range(60))
def test_who_is_worst_and_whether_all_keep_up(seed: int) -> None:
    draw = random.Random(seed)
    found = assessment(draw, 6)
    if seed % 3:  # mostly none that is held, and none that does not keep up
        kinds = (Verdict.UNKNOWN, Verdict.IDLE, Verdict.INPUT_BOUND)
        code = np.array([int(draw.choice(kinds)) for _ in range(6)], dtype=np.int8)
        keeps = np.where(found.keeps == 0, 1.0, found.keeps)
        found = replace(found, verdict=code, keeps=keeps)
    rows = np.array(draw.sample(range(6), 4), dtype=np.intp)
    mine = rows.tolist()
    assert verdicts.worst(found, rows) == worst(found, mine)
    told = [row for row in mine if found.keeps[row] == 1]
    codes = [Verdict(found.verdict[row]) for row in mine]
    does_not = any(found.keeps[row] == 0 for row in mine) or Verdict.CPU_STARVED in codes
    judged = verdicts.judged(found, rows)
    if not told or does_not or all(code is Verdict.IDLE for code in codes):
        held = verdicts.of_query(found, rows)
        assert (judged.verdict, judged.row) == (found.verdict[held], held)
        assert judged.confidence == found.confidence[held]
    elif silent(found, mine):
        held = verdicts.of_query(found, rows)
        idle = [row for row in mine if found.verdict[row] == Verdict.IDLE]
        works = any(found.run[row] >= 0.1 for row in mine)
        if not idle or works or found.verdict[held] not in (0, 1, 2):
            assert (judged.verdict, judged.row) == (found.verdict[held], held)
        else:
            assert (judged.verdict, judged.row) == (Verdict.IDLE, idle[0])
            assert judged.confidence == 0.6 * min(found.confidence[row] for row in idle)
    else:
        spare = [known(float(found.idle[row])) for row in told]
        worth = min(found.quality[row] for row in told)
        sure = min(min(spare) / 0.2, 1.0) * (worth if len(told) == len(mine) else min(worth, 0.6))
        assert judged.verdict is Verdict.KEEPS_UP
        assert judged.row == told[spare.index(min(spare))]
        assert judged.confidence == pytest.approx(sure)
    assert judged.seconds == 4.0
