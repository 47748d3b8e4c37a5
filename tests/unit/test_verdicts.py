"""Verdicts from made-up shares of time."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from plans import array, frame, plan
from sched_ctl.decide.starved import only_starved
from sched_ctl.metrics import verdicts
from sched_ctl.metrics.catalogue import evaluate, resolve
from sched_ctl.metrics.verdicts import Assessment, Verdict, assess, codes, of_query, worst
from sched_ctl.metrics.window import Window
from sched_ctl.model.policy import Level, form
from sched_ctl.model.topology import LogicalOperator, PhysicalOperator, Snapshot, Thread, Topology
from sched_ctl.plugins import registry

CHAIN = plan({"q": ["a", "b", "c"]})
S = 4.0  # length of the windows
REST = (0.01, 0.0, 0.98, 0.0, 50.0)  # run, wait, idle, backpressured, tuples a second
Shares = tuple[float | None, float | None, float | None, float | None, float | None]


def window(*rows: Shares, topology: Topology = CHAIN, seconds: float = S, **now: object) -> Window:
    """Of operators that spent such shares of the time; None: nobody tells."""
    names = ("thread_cpu_time", "run_delay", "idle_time", "backpressured_time", "tuples_in")
    columns = {
        name: [row[i] for row in rows]
        for i, name in enumerate(names)
        if any(row[i] is not None for row in rows)
    }

    def at(time_s: float) -> Snapshot:
        made = {
            name: array(*(np.nan if share is None else 100.0 + share * time_s for share in shares))
            for name, shares in columns.items()
        }
        return Snapshot(topology, time_s, made | {k: array(*v) for k, v in now.items()})  # type: ignore[misc]

    return Window(at(10.0 + seconds), at(10.0))


def judged(*rows: Shares, **more: object) -> list[str]:
    found = assess(window(*rows, **more))  # type: ignore[arg-type]
    return [Verdict(code).word for code in found.verdict]


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ((0.0, 0.0, 1.0, 0.0, 0.0), "idle"),
        ((0.0, 0.0, 1.0, 0.0, 5.0), "input-bound"),
        ((0.60, 0.05, 0.33, 0.0, 600.0), "input-bound"),
        ((0.10, 0.40, 0.50, 0.0, 100.0), "input-bound"),  # late, but it keeps up
        ((0.10, 0.80, 0.09, 0.0, 100.0), "cpu-starved"),
        ((0.50, 0.48, 0.01, 0.0, 500.0), "cpu-starved"),
        ((0.97, 0.02, 0.01, 0.0, 970.0), "single-thread-bound"),
        ((0.85, 0.14, 0.00, 0.0, 850.0), "single-thread-bound"),
        ((0.05, 0.02, 0.10, 0.0, 50.0), "io-bound"),
        ((0.05, 0.02, 0.50, 0.0, 50.0), "io-bound"),
        ((0.05, 0.02, 0.03, 0.9, 50.0), "backpressured"),
        ((0.30, 0.15, 0.15, 0.4, 300.0), "backpressured"),
        ((None, None, None, None, 300.0), "unknown"),
        # Woken, and waiting for a CPU, it is still idle in its engine's books.
        ((0.20, 0.75, 0.80, 0.0, 100.0), "cpu-starved"),
        ((0.00, 0.50, 1.00, 0.0, 0.0), "cpu-starved"),
    ],
)
def test_a_share_of_the_time_decides(row: Shares, word: str) -> None:
    assert judged(REST, row, REST) == ["input-bound", word, "input-bound"]


@pytest.mark.parametrize(
    ("run", "wait", "word", "sure"),
    [
        (0.76, 0.24, "single-thread-bound", (0.7, 0.8)),
        (0.74, 0.26, "cpu-starved", (0.5, 0.55)),
        (0.40, 0.60, "cpu-starved", (0.8, 0.85)),
        (0.10, 0.90, "cpu-starved", (0.95, 1.0)),
    ],
)
def test_on_the_edge_of_another_verdict_nobody_is_sure(
    run: float, wait: float, word: str, sure: tuple[float, float]
) -> None:
    """One that waited for a quarter of the time in which it could run was starved for certain."""
    found = assess(window(REST, (run, wait, 0.0, 0.0, 100.0), REST))
    assert Verdict(found.verdict[1]).word == word
    assert sure[0] < found.confidence[1] < sure[1]


def test_shares_add_up_to_one() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        rows = [tuple(rng.uniform(0, 1.2, 5)) for _ in range(3)]
        found = assess(window(*rows))
        total = found.run + found.wait + found.idle + found.backpressured + found.blocked
        np.testing.assert_allclose(total[1:], 1.0, atol=1e-9)  # of an ingress it may be unknown
        assert ((found.confidence >= 0) & (found.confidence <= 1)).all()


def test_time_that_two_sources_tell_is_counted_once() -> None:
    """What a thread ran and what it waited for overlap in their readings: the run counts."""
    found = assess(window(REST, (0.7, 0.6, 0.0, 0.0, 5.0), REST))
    assert found.run[1] == pytest.approx(0.7)
    assert found.wait[1] == pytest.approx(0.3)


def test_the_end_of_a_line_of_backpressured_operators_holds_them_all() -> None:
    full = (0.05, 0.0, 0.05, 0.9, 50.0)
    heavy = (0.98, 0.01, 0.01, 0.0, 50.0)
    topology = plan({"q": ["a", "b", "heavy", "light", "end"]}, [(0, 1), (1, 2), (1, 3), (2, 4)])
    found = assess(window(full, full, heavy, REST, REST, topology=topology))
    assert found.limit.tolist() == [2, 2, -1, -1, -1]
    assert of_query(found, np.arange(5)) == 2
    assert of_query(found, np.array([3, 4])) in (3, 4)
    assert Verdict(found.verdict[2]) is Verdict.SINGLE_THREAD_BOUND


def test_what_comes_while_an_operator_backs_off_is_no_backlog() -> None:
    """One that is done with all 200 tuples a second sleeps 10 ms at a time, and then finds two."""
    rows: list[Shares] = [(0.1, 0.02, None, None, 200.0)] * 3
    asleep = {"topology": replace(CHAIN, backoff_s=0.02), "queue_size": [2.0, 2.0, 30.0]}
    assert judged(*rows, **asleep) == ["input-bound", "input-bound", "io-bound"]
    assert judged(*rows, queue_size=[2.0, 2.0, 30.0]) == ["io-bound"] * 3


def test_a_query_is_held_by_the_operator_that_holds_most_others() -> None:
    topology = plan({"q": ["a", "b", "heavy", "starved"]}, [(0, 1), (1, 2), (0, 3)])
    full = (0.05, 0.0, 0.05, 0.9, 50.0)
    rows = [full, full, (0.90, 0.05, 0.05, 0.0, 9.0), (0.02, 0.92, 0.06, 0.0, 9.0)]
    found = assess(window(*rows, topology=topology))
    assert Verdict(found.verdict[3]) is Verdict.CPU_STARVED
    assert of_query(found, np.arange(4)) == 2  # though the other one waits for longer


def test_time_asleep_is_told_from_queues_where_the_engine_tells_nothing() -> None:
    """As engines do that report counters and queues only."""

    def row(run: float, wait: float = 0.0) -> Shares:
        return (run, wait, None, None, 100.0)

    short = judged(row(0.2), row(0.2), row(0.2), queue_size=(5.0, 0.0, 0.0))
    assert short == ["io-bound", *["input-bound"] * 2]
    found = assess(window(row(0.2), row(0.98), row(0.2), queue_size=(5.0, 900.0, 0.0)))
    words = [Verdict(code).word for code in found.verdict]
    assert words == ["backpressured", "single-thread-bound", "input-bound"]
    assert found.limit.tolist() == [1, -1, -1]
    assert (found.confidence < 0.7).all()
    nothing_known = judged(row(0.2), row(0.98), row(0.3, 0.3))
    assert nothing_known == ["unknown", "single-thread-bound", "unknown"]
    found = assess(window(row(0.2), row(0.98), row(0.5, 0.48)))
    assert Verdict(found.verdict[2]) is Verdict.CPU_STARVED  # which never sleeps, whatever for
    assert np.isnan(found.backpressured[0]) and np.isnan(found.idle[0])  # nobody knows: not 0


SLEEPS = (0.02, 0.0, 0.0, 0.0, 50.0)  # and its engine says that it has no time without input


def test_who_sleeps_before_a_full_queue_is_held_by_it() -> None:
    """Also where the one behind that queue sleeps itself, and whoever is held has no queue."""
    rows: list[Shares] = [(0.05, 0.02, None, None, 100.0)] * 3
    told: dict[str, object] = {"queue_size": (0.0, 64.0, 61.0), "queue_capacity": (64.0,) * 3}
    found = assess(window(*rows, **told))  # type: ignore[arg-type]
    words = [Verdict(code).word for code in found.verdict]
    assert words == ["backpressured", "backpressured", "io-bound"]
    assert found.limit.tolist() == [2, 2, -1]
    assert judged(*rows, queue_size=(0.0, 64.0, 61.0)) == ["input-bound", "io-bound", "io-bound"]
    half = told | {"queue_capacity": (128.0,) * 3}
    assert judged(*rows, **half) == ["input-bound", "io-bound", "io-bound"]


def test_of_several_queues_another_one_may_be_full_at_each_end() -> None:
    topology = plan({"q": ["a", "b", "c"]}, [(0, 1), (0, 2)])

    def at(time_s: float, *sizes: float) -> Snapshot:
        columns = {"thread_cpu_time": 0.05 * time_s, "run_delay": 0.0, "tuples_in": 10 * time_s}
        told = {name: array(*[value] * 3) for name, value in columns.items()}
        queues = {"queue_size": array(0, *sizes), "queue_capacity": array(64, 64, 64)}
        return Snapshot(topology, time_s, told | queues)

    found = assess(Window(at(14, 64, 20), at(10, 30, 64)))
    assert found.verdict[0] == Verdict.BACKPRESSURED
    assert assess(Window(at(14, 64, 20), at(10, 30, 40))).verdict[0] == Verdict.INPUT_BOUND


def test_who_looks_again_and_again_is_not_starved() -> None:
    """Its threads wait for a CPU each time; with tuples that wait, or no such engine, they do."""
    rows: list[Shares] = [(0.014, 0.114, None, None, 0.0)] * 3
    spins: dict[str, object] = {"topology": replace(CHAIN, idle_spins=True)}
    assert judged(*rows, **spins, queue_size=(0.0,) * 3) == ["idle"] * 3
    rarely: list[Shares] = [(0.008, 0.114, None, None, 0.0)] * 3
    assert judged(*rarely, queue_size=(0.0,) * 3) == ["cpu-starved"] * 3
    works: list[Shares] = [(0.06, 0.114, None, None, 1.0)] * 3
    assert judged(*works, **spins, queue_size=(0.0,) * 3) == ["input-bound"] * 3
    # On a slow CPU looks take longer: without a tuple nothing else is known to take so much.
    slow: list[Shares] = [(0.06, 0.114, None, None, 0.0)] * 3
    assert judged(*slow, **spins, queue_size=(0.0,) * 3) == ["idle"] * 3
    # Where nobody counts tuples, it may have had some.
    uncounted = window(*slow, **spins, queue_size=(0.0,) * 3)  # type: ignore[arg-type]
    assert uncounted.base is not None
    for one in (uncounted.now, uncounted.base):
        del one.columns["tuples_in"]  # type: ignore[attr-defined]
    assert [Verdict(code).word for code in assess(uncounted).verdict] == ["input-bound"] * 3
    late: list[Shares] = [(0.008, 0.95, None, None, 0.0)] * 3
    queues: dict[str, object] = {"queue_size": (0.0, 5.0, 0.0)}
    # What waits for the first one nobody knows.
    assert judged(*late, **spins, **queues) == ["cpu-starved", "cpu-starved", "idle"]
    # For room, as well
    some: list[Shares] = [(0.07, 0.66, None, None, 90.0), (0.3, 0.68, None, None, 90.0), REST]
    full: dict[str, object] = {"queue_size": (64.0, 64.0, 0.0), "queue_capacity": (64.0,) * 3}
    assert judged(*some, **spins, **full)[:2] == ["backpressured", "cpu-starved"]
    found = assess(window(*some, **spins, **full))  # type: ignore[arg-type]
    assert found.backpressured[0] == pytest.approx(0.93)
    assert judged(*some, **full)[0] == "cpu-starved"
    # Of a query that is late, who works and waits is starved, and who only looks is not.
    missed = np.ones(3, dtype=np.bool_)
    either = window(works[0], rows[0], works[0], **spins, queue_size=(0.0,) * 3)  # type: ignore[arg-type]
    words = [Verdict(code).word for code in assess(either, missed=missed).verdict]
    assert words == ["cpu-starved", "idle", "cpu-starved"]


@pytest.mark.parametrize("slower", [1.0, 10.0, 30.0])
def test_a_silent_storm_does_not_keep_up(slower: float) -> None:
    """Recorded of a bolt and a spout of Storm 2.8: no tuple was ever counted. slower: so many times
    the CPU time to look for one.
    """
    topology = replace(plan({"quiet": ["act", "listen"]}, edges=[]), idle_spins=True)

    def at(time_s: float, busy_s: Sequence[float], **columns: Sequence[float]) -> Snapshot:
        told = {name: array(*column) for name, column in columns.items()}
        unknown = dict.fromkeys(("tuples_in", "tuples_out"), array(np.nan, np.nan))
        queues = {"queue_size": array(0, 0), "queue_capacity": array(64, 64)}
        looks = {"thread_cpu_time": slower * array(*busy_s)}
        return Snapshot(topology, time_s, looks | told | unknown | queues)

    then = at(2081.195, (0.006555, 0.007966), run_delay=(1.128133, 1.231425))
    now = at(2086.055, (0.020960, 0.021258), run_delay=(4.798453, 4.567756))
    found = assess(Window(now, then))
    assert [Verdict(code) for code in found.verdict] == [Verdict.IDLE] * 2
    query = verdicts.judged(found, np.arange(2))
    assert query.verdict is Verdict.IDLE and query.confidence <= 0.6
    # As soon as it counts one
    first = Snapshot(topology, now.time_s, {**now.columns, "tuples_out": array(np.nan, 20)})
    query = verdicts.judged(assess(Window(first, then)), np.arange(2))
    assert query.verdict is Verdict.KEEPS_UP and query.confidence <= 0.6  # its queues alone tell


def test_a_query_without_tuples_has_nothing_to_keep_up_with() -> None:
    """Of its source nobody knows why it sleeps; one that looks has no input."""
    silent: list[Shares] = [(0.0, 0.0, None, None, 0.0), (0.0, 0.0, 1.0, 0.0, 0.0)]
    topology = plan({"q": ["a", "b", "c"]})
    looks = (0.02, 0.0, 0.9, 0.0, 0.0)
    found = assess(window(*silent, looks, topology=topology))
    query = verdicts.judged(found, np.arange(3))
    assert (query.verdict, query.row) == (Verdict.IDLE, 1) and query.confidence <= 0.6
    # Where nobody counts tuples, nobody knows that none came.
    uncounted = replace(found, moved=array(*[np.nan] * 3))
    assert verdicts.judged(uncounted, np.arange(3)).verdict is Verdict.KEEPS_UP
    held = replace(found, verdict=np.array([Verdict.IO_BOUND, 1, 2], dtype=np.int8))
    assert verdicts.judged(held, np.arange(3)).verdict is Verdict.IO_BOUND


def test_a_query_with_one_at_work_is_not_idle() -> None:
    """At a timer, or at tuples that nobody counts."""
    works: list[Shares] = [(0.6, 0.0, 0.4, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0, 0.0)]
    found = assess(window(*works, topology=plan({"q": ["a", "b"]})))
    assert found.moved.tolist() == [0, 0]
    query = verdicts.judged(found, np.arange(2))
    assert (query.verdict, query.row) == (Verdict.INPUT_BOUND, 0)
    uncounted = replace(found, moved=array(np.nan, 0))
    query = verdicts.judged(uncounted, np.arange(2))
    assert (query.verdict, query.row) == (Verdict.KEEPS_UP, 0)


def test_who_waits_for_a_cpu_is_not_held_by_one_full_queue_and_then_another() -> None:
    """Each had room for a part of the window, so it may have waited before a full CPU alone."""
    chain = plan({"q": ["s", "m", "a", "b"]}, edges=[(0, 1), (1, 2), (1, 3)])
    topology = replace(chain, idle_spins=True)

    def at(time_s: float, *full: float) -> Snapshot:
        columns = {
            "thread_cpu_time": array(*[0.2 * time_s] * 4),
            "run_delay": array(0.0, 0.8 * time_s, 0.0, 0.0),
            "queue_size": array(0, 500, *full),
            "queue_capacity": array(*[1000] * 4),
            "tuples_in": array(*[10 * time_s] * 4),
        }
        return Snapshot(topology, time_s, columns)

    turns = Window(at(12.0, 3, 1000), at(10.0, 1000, 5))
    assert assess(turns).verdict[1] == Verdict.CPU_STARVED
    same = Window(at(12.0, 3, 1000), at(10.0, 5, 1000))
    assert assess(same).verdict[1] == Verdict.BACKPRESSURED


def test_a_source_that_sleeps_is_not_blamed() -> None:
    """It may pace itself, unless something is known to wait before it."""
    made = window(SLEEPS, REST, REST)
    found = assess(made)
    words = [Verdict(code).word for code in found.verdict]
    assert words == ["unknown", "input-bound", "input-bound"]
    assert np.isnan(found.idle[0]) and np.isnan(found.blocked[0]) and np.isnan(found.keeps[0])
    query = verdicts.judged(found, np.arange(3))
    assert query.verdict is Verdict.KEEPS_UP and query.confidence <= 0.6
    for known in ("queue_size", "backlog"):
        found = assess(window(SLEEPS, REST, REST, **{known: (900.0, np.nan, np.nan)}))  # type: ignore[arg-type]
        assert Verdict(found.verdict[0]) is Verdict.IO_BOUND
        assert verdicts.judged(found, np.arange(3)).verdict is Verdict.IO_BOUND


def test_what_a_source_says_of_its_output_counts_without_its_idle_time() -> None:
    topology = plan({"q": ["src", "heavy"]})
    rows: list[Shares] = [(0.05, 0.0, None, 0.9, 50.0), (0.98, 0.01, 0.01, 0.0, 50.0)]
    found = assess(window(*rows, topology=topology))
    assert [Verdict(code).word for code in found.verdict] == [
        "backpressured",
        "single-thread-bound",
    ]
    assert found.limit.tolist() == [1, -1]


def test_who_keeps_up_is_not_starved_unless_it_is_too_late() -> None:
    made = window(REST, (0.1, 0.4, 0.5, 0.0, 100.0), REST)
    found = assess(made)
    assert found.keeps.tolist() == [1, 1, 1]
    query = verdicts.judged(found, np.arange(3))
    assert (query.verdict, query.row) == (Verdict.KEEPS_UP, 1) and query.confidence > 0.9
    found = assess(made, missed=np.ones(3, dtype=np.bool_))
    assert Verdict(found.verdict[1]) is Verdict.CPU_STARVED
    assert verdicts.judged(found, np.arange(3)).verdict is Verdict.CPU_STARVED


def test_a_queue_that_grows_is_not_kept_up_with() -> None:
    made = window(REST, (0.1, 0.4, 0.5, 0.0, 100.0), REST)
    assert made.base is not None
    then = Snapshot(CHAIN, made.base.time_s, {**made.base.columns, "queue_size": array(0, 0, 0)})
    for queue, word in ((20.0, "keeps-up"), (300.0, "cpu-starved")):
        columns = {**made.now.columns, "queue_size": array(0, queue, 0)}
        found = assess(Window(Snapshot(CHAIN, made.now.time_s, columns), then))
        assert verdicts.judged(found, np.arange(3)).verdict.word == word


def test_nothing_arrives_only_where_nothing_did_for_long() -> None:
    rest, rare = (0.0, 0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0, 0.3)
    assert judged(rest, rest, rest) == ["idle"] * 3
    found = assess(window(rest, rest, rest), longer=window(rare, rare, rare, seconds=30.0))
    assert [Verdict(code).word for code in found.verdict] == ["input-bound"] * 3
    assert verdicts.judged(assess(window(rest, rest, rest)), np.arange(3)).verdict is Verdict.IDLE


def test_waiting_for_memory_is_told_by_the_kernel_or_by_pressure() -> None:
    asleep = (0.05, 0.0, 0.05, 0.0, 50.0)
    found = assess(window(REST, asleep, REST), memory_pressure=0.6)
    words = [Verdict(code).word for code in found.verdict]
    assert words == ["input-bound", "memory-bound", "input-bound"]
    found = assess(window(REST, asleep, REST), memory_pressure=0.05)
    assert Verdict(found.verdict[1]) is Verdict.IO_BOUND
    told = window(REST, asleep, REST)
    assert told.base is not None
    for delay, word in ((3.0, "memory-bound"), (0.1, "io-bound")):
        now, before = (
            Snapshot(CHAIN, old.time_s, {**old.columns, "memory_delay": array(0, delayed, 0)})
            for old, delayed in ((told.now, delay), (told.base, 0.0))
        )
        found = assess(Window(now, before), memory_pressure=1.0)  # of others, then
        assert Verdict(found.verdict[1]).word == word


def robbed(row: Shares, stolen: float, busy: float, seconds: float = S) -> Assessment:
    """Where the hypervisor had so many CPUs on average, and the machine so many."""
    made = window(REST, row, REST, seconds=seconds)
    assert made.base is not None
    now, then = (
        Snapshot(
            CHAIN,
            old.time_s,
            {
                **old.columns,
                "cpu_steal": array(*[90 + stolen * old.time_s] * 3),
                "cpu_busy": array(*[900 + busy * old.time_s] * 3),
            },
        )
        for old in (made.now, made.base)
    )
    return assess(Window(now, then))


def test_what_the_hypervisor_took_is_no_sleep() -> None:
    saturated = (0.75, 0.01, 0.0, 0.0, 750.0)
    assert judged(REST, saturated, REST)[1] == "io-bound"  # to who does not know of it
    found = robbed(saturated, stolen=0.48, busy=1.5)
    assert Verdict(found.verdict[1]) is Verdict.SINGLE_THREAD_BOUND
    assert found.run[1] == pytest.approx(0.99) and found.stolen[1] == pytest.approx(0.24)
    assert Verdict(found.verdict[2]) is Verdict.INPUT_BOUND
    # It explains no more than it took, and no more than is missing.
    asleep = (0.05, 0.0, 0.05, 0.0, 50.0)
    assert Verdict(robbed(asleep, stolen=0.48, busy=1.5).verdict[1]) is Verdict.IO_BOUND
    assert robbed(asleep, stolen=1.9, busy=0.1).run[1] == pytest.approx(0.05 + 0.95)
    assert robbed(saturated, stolen=0.0, busy=0.0).run[1] == pytest.approx(0.75)


def test_nothing_is_unknown_where_the_hypervisor_took_all_that_is_missing() -> None:
    rng = np.random.default_rng(2)
    for run, wait in rng.uniform(0.05, 0.5, (300, 2)):
        found = robbed((run, wait, 0.0, 0.0, 5.0), stolen=99.0, busy=1.0, seconds=3.3)
        lost = (found.idle[1], found.backpressured[1], found.blocked[1])
        assert lost == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)
        assert found.run[1] == pytest.approx(1 - wait)


def test_time_in_which_the_jvm_stands_still_is_told_from_io() -> None:
    asleep = (0.05, 0.0, 0.05, 0.0, 50.0)
    told = window(REST, asleep, asleep)
    assert told.base is not None
    then = Snapshot(CHAIN, told.base.time_s, {**told.base.columns, "gc_time": array(9, 9, 9)})
    for paused, word in ((0.6, "memory-bound"), (0.2, "io-bound"), (np.nan, "io-bound")):
        still = array(*[9 + paused * S] * 2, 9)
        now = Snapshot(CHAIN, told.now.time_s, {**told.now.columns, "gc_time": still})
        found = assess(Window(now, then))
        words = [Verdict(code).word for code in found.verdict]
        assert words == ["input-bound", word, "io-bound"]  # who keeps up all the same is not held


def lost(run: float, io: float, memory: float = 0.0, **columns: object) -> Assessment:
    """Of an operator whose engine tells nothing, and the kernel so many shares of its time."""
    row = (run, 0.0, None, None, None)
    made = window(row, row, row)
    assert made.base is not None

    def with_delays(snapshot: Snapshot, factor: float) -> Snapshot:
        delays = {
            "io_delay": array(io * factor, 0, 0),
            "memory_delay": array(memory * factor, 0, 0),
        }
        return Snapshot(CHAIN, snapshot.time_s, {**snapshot.columns, **delays, **columns})  # type: ignore[dict-item]

    return assess(Window(with_delays(made.now, S), with_delays(made.base, 0.0)))


def test_time_lost_to_disks_and_memory_needs_no_word_of_the_engine() -> None:
    """What the kernel counted stands, whether the engine says idle or nothing at all."""
    for shares, word in (((0.1, 0.6), "io-bound"), ((0.1, 0.6, 0.5), "memory-bound")):
        found = lost(*shares)
        assert Verdict(found.verdict[0]).word == word
        assert found.blocked[0] == pytest.approx(0.6) and found.confidence[0] > 0.9
    assert Verdict(lost(0.1, 0.02).verdict[0]) is Verdict.UNKNOWN  # asleep, and nobody says why
    quiet = np.full(3, np.nan)
    found = lost(0.1, 0.6, queue_size=np.zeros(3), idle_time=quiet)
    assert found.idle[0] == pytest.approx(0.3)  # the rest: nothing waits for it


def test_what_waits_in_sockets_is_work_in_hand() -> None:
    found = lost(0.1, 0.0, backlog=array(4096, np.nan, np.nan))
    assert Verdict(found.verdict[0]) is Verdict.IO_BOUND and found.confidence[0] <= 0.6
    assert found.backlog[0] == 4096
    found = lost(0.1, 0.0, backlog=array(0, np.nan, np.nan))
    assert Verdict(found.verdict[0]) is Verdict.UNKNOWN


def test_a_single_snapshot_or_a_blink_says_nothing() -> None:
    rows: Sequence[Shares] = [(0.97, 0.02, 0.01, 0.0, 970.0)] * 3
    assert judged(*rows, seconds=0.1) == ["unknown"] * 3
    now = window(*rows).now
    found = assess(Window(now))
    assert found.verdict.tolist() == [0] * 3 and (found.confidence == 0).all()


def test_an_engine_without_operators() -> None:
    found = assess(window(topology=plan({})))
    assert len(found.verdict) == 0


def replicated() -> Topology:
    """One logical operator after a source, run by two replicas."""
    threads = [(Thread(1, tid, 7),) for tid in range(3)]
    operators = (
        PhysicalOperator("q", "src", ("src",), threads=threads[0]),
        PhysicalOperator("q", "map (1/2)", ("map",), 0, 2, threads[1]),
        PhysicalOperator("q", "map (2/2)", ("map",), 1, 2, threads[2]),
    )
    logical = (LogicalOperator("q", "src"), LogicalOperator("q", "map"))
    return Topology("e", operators, (), logical, ())


def test_the_replica_that_is_held_most_speaks_for_all() -> None:
    rows = [REST, REST, (0.97, 0.02, 0.01, 0.0, 970.0)]
    made = window(*rows, topology=replicated())
    found = assess(made)
    assert worst(found, np.array([1, 2])) == 2
    logical = Window(made.now, made.then, Level.LOGICAL)
    assert codes(logical).tolist() == [Verdict.INPUT_BOUND, Verdict.SINGLE_THREAD_BOUND]


def test_verdicts_are_a_metric() -> None:
    made = window(REST, (0.1, 0.8, 0.1, 0.0, 0.0), REST)
    resolution = resolve({"verdict"}, made.now.columns, policy="p", engine="e")
    assert evaluate(resolution, made)["verdict"].tolist() == [2, 3, 2]
    assert isinstance(assess(made), Assessment)


def test_only_starved_gives_the_place_to_the_one_that_holds() -> None:
    topology = plan({"q": ["in", "parse", "lookup", "out"]}, [(0, 1), (1, 2), (2, 3)])
    columns = frame(
        topology,
        queue_size=(900.0, 16.0, 12.0, 40.0),
        verdict=(
            Verdict.BACKPRESSURED,
            Verdict.BACKPRESSURED,
            Verdict.IO_BOUND,
            Verdict.INPUT_BOUND,
        ),
    )
    plain = registry.policy("qs")
    chosen = only_starved(plain)
    assert chosen.needs == plain.needs | {"verdict"}
    form = chosen.urgency(columns)
    assert form.at(np.zeros(4), columns["queue_size"]).tolist() == [12, 12, 900, 40]


@pytest.mark.parametrize(
    ("held", "queues", "expected"),
    [
        # I/O wants its place; who holds nobody keeps his
        ((Verdict.IO_BOUND, Verdict.CPU_STARVED, Verdict.IDLE), (900, 5, 7), (900, 5, 7)),
        # the one that holds is above already
        ((Verdict.BACKPRESSURED, Verdict.IO_BOUND, Verdict.IDLE), (3, 5, 7), (3, 5, 7)),
        # the one that holds would take the CPU from all others
        ((Verdict.BACKPRESSURED, Verdict.SINGLE_THREAD_BOUND, Verdict.IDLE), (9, 5, 7), (9, 5, 7)),
        ((Verdict.BACKPRESSURED, Verdict.CPU_STARVED, Verdict.IDLE), (9, 5, 7), (9, 5, 7)),
        # nobody is known to hold
        ((Verdict.BACKPRESSURED, Verdict.INPUT_BOUND, Verdict.IDLE), (9, 5, 7), (9, 5, 7)),
        ((Verdict.BACKPRESSURED,) * 3, (9, 5, 7), (9, 5, 7)),
        # of two, the less urgent one
        ((Verdict.BACKPRESSURED, Verdict.IO_BOUND, Verdict.IO_BOUND), (9, 5, 7), (5, 9, 7)),
        ((Verdict.BACKPRESSURED, Verdict.IO_BOUND, Verdict.IDLE), (np.nan, 5, 7), (np.nan, 5, 7)),
    ],
)
def test_only_starved_leaves_all_others_where_they_are(
    held: tuple[Verdict, ...], queues: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    topology = plan({"q": ["a", "b", "c"]}, [(0, 1), (0, 2)])
    columns = frame(topology, queue_size=queues, verdict=held)
    form = only_starved(registry.policy("qs")).urgency(columns)
    np.testing.assert_array_equal(form.at(np.zeros(3), columns["queue_size"]), expected)


def test_only_starved_changes_ranks_too() -> None:
    topology = plan({"q": ["a", "b", "c"]}, [(0, 1), (0, 2)])
    held = (Verdict.BACKPRESSURED, Verdict.IO_BOUND, Verdict.INPUT_BOUND)
    made = form(3, rank=np.array([1.0, 0, 0]), static=np.array([-9.0, 2, 900]))
    policy = replace(registry.policy("constant"), urgency=lambda _: made)
    found = only_starved(policy).urgency(frame(topology, verdict=held))
    assert found.rank.tolist() == [0, 1, 0]
    assert found.static.tolist() == [2, -9, 900]


def test_the_worst_of_unheld_ones_is_who_has_work_and_then_who_is_known() -> None:
    waits, unknown = (0.6, 0.05, 0.33, 0.0, 600.0), (None, None, None, None, 5.0)
    found = assess(window(unknown, waits, REST))
    rows = np.arange(3)
    assert Verdict(found.verdict[0]) is Verdict.UNKNOWN
    assert worst(found, rows) == 1
    assert worst(found, np.array([0, 2])) == 2
    assert worst(found, np.array([0])) == 0
    idle = assess(window((0.0, 0.0, 1.0, 0.0, 0.0), waits, REST))
    assert worst(idle, np.array([0, 1])) == 1


def test_of_two_that_hold_as_many_the_worse_one_counts() -> None:
    topology = plan({"q": ["a", "heavy", "b", "starved"]}, [(0, 1), (2, 3)])
    full = (0.05, 0.0, 0.05, 0.9, 50.0)
    rows = [full, (0.92, 0.05, 0.03, 0.0, 9.0), full, (0.1, 0.5, 0.05, 0.0, 9.0)]
    found = assess(window(*rows, topology=topology))
    assert found.limit.tolist() == [1, -1, 3, -1]
    one, other = found.severity[1], found.severity[3]
    assert of_query(found, np.arange(4)) == (1 if one > other else 3)


def test_an_operator_of_several_threads_waits_by_the_share_of_each() -> None:
    two = tuple(replace(o, threads=(Thread(1, 5, 7), Thread(1, 6, 7))) for o in CHAIN.operators)
    topology = replace(CHAIN, operators=two)
    found = assess(window(REST, (0.4, 1.2, 0.0, 0.0, 5.0), REST, topology=topology))
    assert found.run[1] == pytest.approx(0.2)
    assert found.wait[1] == pytest.approx(0.6)


def test_only_starved_takes_no_place_of_whose_urgency_nobody_knows() -> None:
    topology = plan({"q": ["a", "b"]}, [(0, 1)])
    held = (Verdict.BACKPRESSURED, Verdict.IO_BOUND)
    made = form(2, rank=np.array([1.0, 0.0]), static=np.array([np.nan, 2.0]))
    policy = replace(registry.policy("constant"), urgency=lambda _: made)
    assert only_starved(policy).urgency(frame(topology, verdict=held)) is made
    free = (Verdict.IDLE, Verdict.IO_BOUND)
    assert only_starved(policy).urgency(frame(topology, verdict=free)) is made


@pytest.mark.parametrize(
    ("shares", "word"),
    [
        # run, wait, full, blocked, idle; what loses as much time as another goes before it
        ((0.20, 0.40, 0.0, 0.0, 0.0), "cpu-starved"),
        ((0.30, 0.30, 0.0, 0.30, 0.0), "cpu-starved"),
        ((0.20, 0.0, 0.35, 0.35, 0.10), "backpressured"),
        ((0.50, 0.05, 0.0, 0.0, 0.45), "input-bound"),
        ((0.50, 0.0, 0.0, 0.0, 0.10), "input-bound"),
        ((0.50, 0.0, 0.0, 0.0, 0.099), "single-thread-bound"),
        ((0.05, 0.05, 0.10, 0.05, 0.75), "backpressured"),
        ((0.05, 0.05, 0.099, 0.05, 0.75), "input-bound"),
        ((0.97, 0.0, 0.0, 0.0, np.nan), "single-thread-bound"),
        ((np.nan, np.nan, np.nan, np.nan, np.nan), "unknown"),
    ],
)
def test_the_largest_loss_decides(shares: tuple[float, ...], word: str) -> None:
    run, wait, full, blocked, idle = (array(share) for share in shares)
    behind = np.array([True])
    with np.errstate(all="ignore"):
        [code] = verdicts._judge(run, wait, full, blocked, idle, array(9), behind)
    assert Verdict(code).word == word


def test_idle_is_who_does_nothing_loses_nothing_and_took_nothing() -> None:
    def word(run: float, idle: float, taken: float, wait: float = 0.0) -> str:
        zero = array(0)
        code = verdicts._judge(
            array(run), array(wait), zero, zero, array(idle), array(taken), np.array([False])
        )
        return Verdict(code[0]).word

    assert word(0.0, 1.0, 0.0) == word(0.009, 0.90, np.nan) == "idle"
    assert word(0.0, 1.0, 1.0) == word(0.01, 0.96, 0.0) == "input-bound"
    assert word(0.0, 0.899, 0.0) == "input-bound"
    assert word(0.0, 0.96, 0.0, wait=0.3) != "idle"


def test_what_the_hypervisor_took_is_divided_by_what_each_ran() -> None:
    columns = {"cpu_steal": 1.0, "cpu_busy": 4.0}
    topology = plan({"q": ["a", "b"]})

    def at(time_s: float) -> Snapshot:
        made = {name: array(*([each * time_s] * 2)) for name, each in columns.items()}
        return Snapshot(topology, time_s, made)

    of = Window(at(4.0), at(1.0))
    found = verdicts._stolen(of, array(0.4, 0.8), array(0.5, 0.1))
    np.testing.assert_allclose(found, [0.1, 0.1])  # of the second no more than it has left
    np.testing.assert_allclose(verdicts._stolen(of, array(0.4, np.nan), array(-0.5, 0.1)), [0, 0])


def test_of_those_that_it_feeds_the_one_with_the_least_to_spare_holds() -> None:
    fork = plan({"q": ["a", "b", "c"]}, [(0, 1), (0, 2)]).graph
    codes_ = np.array([Verdict.BACKPRESSURED, Verdict.IDLE, Verdict.IDLE], dtype=np.int8)
    for idle, holder in (
        ((0.9, 0.2), 1 + 1),
        ((0.1, 0.3), 1),
        ((np.nan, 0.6), 1),
        ((0.4, np.nan), 1),
    ):
        spare = array(0.0, *idle)
        assert verdicts._limits(fork, codes_, spare).tolist() == [holder, -1, -1]
    alone = plan({"q": ["a"]}).graph
    assert verdicts._limits(alone, codes_[:1], array(0.0)).tolist() == [-1]


def test_time_asleep_is_for_memory_where_half_of_it_is() -> None:
    memory, blocked = array(0.3, 0.29, np.nan, np.nan), array(0.6, 0.6, 0.6, 0.6)
    assert verdicts._for_memory(memory, blocked, 0.3).tolist() == [True, False, True, True]
    assert verdicts._for_memory(memory, blocked, 0.29).tolist() == [True, False, False, False]
    assert verdicts._for_memory(memory, 0 * blocked, 0.04).tolist()[2:] == [False, False]


def test_the_margin_is_what_decided_over_it_and_the_largest_that_spoke_against() -> None:
    code = np.array(
        [
            *(Verdict.IDLE, Verdict.INPUT_BOUND, Verdict.CPU_STARVED, Verdict.SINGLE_THREAD_BOUND),
            *(Verdict.IO_BOUND, Verdict.MEMORY_BOUND, Verdict.BACKPRESSURED, Verdict.UNKNOWN),
        ],
        dtype=np.int8,
    )

    def each(share: float) -> np.ndarray:
        return np.full(len(code), share)

    found = verdicts._margin(code, each(0.9), each(0.1), each(0.2), each(0.3), each(0.6))
    expected = [1 / 1.3, 0.6 / 0.9, 0.1 / 0.7, 0.9 / 1.5, 0.3 / 0.5, 0.3 / 0.5, 0.2 / 0.5, 0]
    np.testing.assert_allclose(found, expected)
    other = verdicts._margin(code, each(0.1), each(0.7), each(0.2), each(0.3), each(0.0))
    np.testing.assert_allclose(other, [1 / 1.7, 0, 0.7 / 1.0, 0.1 / 0.8, 0.3, 0.3, 0.2 / 0.9, 0])


def spare_and_growth(run: float, wait: float, idle: float, growth: float, taken: float) -> float:
    columns = (array(value) for value in (run, wait, idle, growth, taken))
    with np.errstate(all="ignore"):
        return float(verdicts._keeps_up(*columns)[0])


def test_who_keeps_up_has_time_to_spare_and_no_queue_that_grows() -> None:
    assert spare_and_growth(0.3, 0.1, 0.6, 0, 100) == 1
    assert spare_and_growth(0.3, 0.1, 0.10, 0, 100) == 1
    assert spare_and_growth(0.3, 0.1, 0.099, 0, 100) == 0
    assert np.isnan(spare_and_growth(0.3, 0.1, np.nan, 0, 100))
    assert spare_and_growth(0.45, 0.40, np.nan, 0, 100) == 0  # never out of work
    assert spare_and_growth(0.85, np.nan, np.nan, 0, 100) == 0
    # A tenth of what it took, and four standard deviations of it
    assert spare_and_growth(0.3, 0.1, 0.6, 100, 1000) == 1
    assert spare_and_growth(0.3, 0.1, 0.6, 135, 1000) == 0
    assert spare_and_growth(0.3, 0.1, 0.6, 9_999, 100_000) == 1
    assert spare_and_growth(0.3, 0.1, 0.6, 10_001, 100_000) == 0
    assert spare_and_growth(0.3, 0.1, 0.6, 15, 100) == 1
    assert spare_and_growth(0.3, 0.1, 0.6, 60, 100) == 0
    # Who takes nothing while it waits for a CPU has tuples that wait for it.
    assert spare_and_growth(0.0, 0.3, 0.7, 0, 0) == 0
    assert spare_and_growth(0.0, 0.09, 0.7, 0, 0) == 1
    assert spare_and_growth(0.01, 0.3, 0.7, 0, 0) == 1
    assert spare_and_growth(0.0, 0.3, 0.7, 0, 1) == 1


def test_queues_that_are_derived_count_unless_the_driver_guesses() -> None:
    """An estimate is above 0 for a thread that has just been woken."""
    told = assess(window(REST, REST, REST, queue_size=(1, 2, 3)), array(7, 8, 9))
    assert told.queue.tolist() == [7, 8, 9]
    made = window(REST, REST, REST, queue_size=(1, 2, 3), queue_size_estimate=(1, 1, 1))
    guessed = assess(made, array(7, 8, 9))
    assert guessed.queue.tolist() == [1, 2, 3]


def test_a_queue_that_is_long_and_does_not_grow_is_kept_up_with() -> None:
    found = assess(window(REST, (0.1, 0.1, 0.6, 0.0, 100.0), REST, queue_size=(0, 5000, 0)))
    assert found.keeps.tolist() == [1, 1, 1]


def test_a_query_is_idle_only_if_all_of_it_is() -> None:
    nothing = (0.0, 0.0, 1.0, 0.0, 0.0)
    for row, word in ((REST, "keeps-up"), (nothing, "idle")):
        found = assess(window(nothing, row, nothing))
        assert verdicts.judged(found, np.arange(3)).verdict.word == word


def test_a_source_that_paces_itself_is_held_by_what_the_kernel_or_the_jvm_counts() -> None:
    """The larger of both: a collection may wait for a disk."""
    source = (0.2, 0.0, 0.0, None, 100.0)
    for io_s, gc_s in ((0.3, 0.5), (0.5, 0.3)):
        at = 10.0 + S
        then = window(source, topology=plan({"q": ["a"]}))
        assert then.base is not None
        now = Snapshot(
            then.now.topology,
            at,
            {**then.now.columns, "io_delay": array(io_s * S), "gc_time": array(gc_s * S)},
        )
        base = Snapshot(
            then.now.topology,
            10.0,
            {**then.base.columns, "io_delay": array(0.0), "gc_time": array(0.0)},
        )
        assert assess(Window(now, base)).blocked.tolist() == pytest.approx([0.5])


def test_what_waits_in_sockets_waited_at_both_ends() -> None:
    one = plan({"q": ["a"]})

    def at(time_s: float, backlog: float) -> Snapshot:
        return Snapshot(one, time_s, {"backlog": array(backlog)})

    for then, now, waits in ((5, 5, True), (0, 5, False), (5, 0, False)):
        of = Window(at(4.0, now), at(1.0, then))
        assert verdicts._has_backlog(of).tolist() == [waits]
    assert verdicts._has_backlog(Window(at(4.0, 5))).tolist() == [False]
