"""What operators weigh together beside everybody else (backends/scx/weight.py)."""

from typing import Any

import numpy as np
import pytest

from sched_ctl.backends.scx.weight import (
    LEAST_S,
    SMOOTH_S,
    Lately,
    Weight,
    fair_weight,
    threads_of,
)


def fair_share(costs: np.ndarray, own: np.ndarray, hog: float = 1.0) -> tuple[np.ndarray, float]:
    """CPU shares of a saturated query's threads and of a hog beside them, by water-filling.

    Each thread's share is in proportion to its cost, as tuples pass all of them; the one that is
    short of CPU time first has what its weight gives it beside the hog.
    """
    rate = 1 / (costs.sum() + hog * float((costs / own).max()))
    cpu = costs * rate
    return cpu, 1.0 - float(cpu.sum())


@pytest.mark.parametrize("seed", range(20))
def test_a_saturated_query_weighs_what_it_does_without_an_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    costs, own = (
        random.lognormal(sigma=2, size=6),
        random.choice(np.array([0.33, 1.0, 3.0]), size=6),
    )
    cpu, hog = fair_share(costs, own)
    awake = np.ones(6)  # as if the order let none of them sleep
    weight = fair_weight(np.ones(6, dtype=np.intp), cpu, awake, own)
    assert hog == pytest.approx(1 / (1 + weight))
    faster = fair_weight(np.ones(6, dtype=np.intp), 1.7 * cpu, awake, own)
    assert faster == pytest.approx(weight)  # however much it gets now


def test_queries_add_up_and_one_that_gets_nothing_still_wants_a_cpu() -> None:
    queries = np.array([1, 1, 2, 2, 0, 0])
    cpu = np.array([0.4, 0.4, 0.0, 0.0, 0.05, 0.1])
    wanted = np.array([1.0, 0.9, 1.0, 0.2, 0.06, 0.1])
    assert fair_weight(queries, cpu, wanted, np.ones(6)) == pytest.approx(2 + 1 + 0.06 + 0.1)
    none = np.zeros(0)
    assert fair_weight(np.zeros(0, dtype=np.intp), none, none, none) == 0


class Told:
    """What `Weight` uses of a scheduler."""

    def __init__(self) -> None:
        self.limits = {"WEIGHT_ONE": 1024, "MAX_QUERIES": 8}
        self.weights = np.zeros(8, dtype=np.uint32)
        fields = ("run_ns", "queued_ns", "wait_ns", "weight")
        self.threads = np.zeros(6, dtype=[(name, np.uint64) for name in fields])
        self.control: dict[str, int] = {}
        self.clock_ns = 0
        self.weighed_ns: int | None = None  # what they ran over the weight they had; None: 1

    def now_ns(self) -> int:
        return self.clock_ns

    def counter(self, name: str) -> int:
        if name == "weighed_ns" and self.weighed_ns is not None:
            return self.weighed_ns
        return int(self.threads["run_ns"].sum())


def test_a_floor_has_the_weight_that_its_query_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    told: Any = Told()
    weight = Weight(told)
    slots, queries = np.arange(1, 6), np.array([1, 1, 2, 3, 0])
    no = np.zeros(5, dtype=np.bool_)
    weight.of(slots, queries, no)
    assert told.weights.tolist() == [0, 1024, 1024, 1024, 0, 0, 0, 0]  # as long as nothing is known
    weight.of(slots, queries, queries == 3)
    assert told.weights.tolist()[:4] == [0, 1024, 1024, 0]
    for _ in range(20):
        told.threads["run_ns"][1:] += np.array([300, 150, 400, 0, 0], dtype=np.uint64) * 1_000_000
        now_s += 1.0
        weight.of(slots, queries, no)
        weight.look()
    # Its dearest thread wants a CPU all the time, and the other half of it; the third query,
    # which runs not at all, is as before.
    assert told.weights.tolist()[:4] == [0, 1536, 1024, 1024]
    moved = np.array([2, 2, 1, 3, 0])
    weight.of(slots, moved, no)
    assert told.weights.tolist()[:4] == [0, 1024, 1024, 1024]


S = 1_000_000_000


class Run:
    """A scheduler whose operators run, wait and weigh what a test says, second by second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, queries: list[int], fair: bool) -> None:
        self.now_s = 100.0
        monkeypatch.setattr("time.monotonic", lambda: self.now_s)
        told: Any = Told()
        told.clock_ns, told.weighed_ns = 100 * S, 0
        self.told, self.weight = told, Weight(told, fair=fair)
        self.slots = np.arange(1, len(queries) + 1)
        self.queries = np.array(queries)
        self.of()

    def of(self) -> None:
        self.weight.of(self.slots, self.queries, np.zeros(len(self.slots), dtype=np.bool_))

    def go(self, run: list[float], wait: list[float], as_much: float = 1, by_s: float = 1) -> None:
        """Parts of the time. as_much: the threads that operators were counted as together."""
        self.now_s += by_s
        self.told.clock_ns += round(by_s * S)
        rows = self.told.threads[1 : 1 + len(run)]
        rows["run_ns"] += (np.array(run) * by_s * S).astype(np.uint64)
        rows["wait_ns"] += (np.array(wait) * by_s * S).astype(np.uint64)
        self.told.weighed_ns += round(sum(run) * by_s * S / as_much)
        self.weight.look()

    @property
    def part(self) -> float | None:
        part = self.told.control.get("weight_part")
        return None if part is None else part / 1024


def test_operators_that_an_order_keeps_waiting_weigh_what_they_would_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two want the CPU all the time, one runs as much as the other half: 1.5 threads, not 2."""
    run = Run(monkeypatch, [1, 1], fair=True)
    for _ in range(40):
        run.go([0.4, 0.2], [0.6, 0.8], 2)
    assert run.part == pytest.approx(1.5 / 2, abs=0.01)
    assert run.told.weights[1] == pytest.approx(1536, abs=2)


def test_no_more_than_all_of_what_was_counted_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, [1, 1], fair=True)
    for _ in range(10):
        run.go([0.5, 0.5], [0.5, 0.5])
    assert run.part == 1.0


def test_what_is_new_counts_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, [1, 1], fair=True)
    run.go([0.4, 0.2], [0.6, 0.8], 2)
    assert run.part == pytest.approx(1 + (0.75 - 1) / SMOOTH_S, abs=0.01)
    run.go([0.4, 0.2], [0.6, 0.8], 2, by_s=2 * SMOOTH_S)
    assert run.part == pytest.approx(0.75, abs=0.01)  # all at once, and no further


def test_a_look_too_soon_and_operators_that_did_nothing_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(monkeypatch, [1, 1], fair=True)
    run.go([0.4, 0.2], [0.6, 0.8], 2, by_s=LEAST_S / 2)
    assert run.part is None
    run.go([0.4, 0.2], [0.6, 0.8], 2, by_s=SMOOTH_S)
    before = run.part
    assert before == pytest.approx(0.75, abs=0.01)
    run.go([0.004, 0.004], [0.9, 0.9], 9)
    assert run.part == before
    run.go([0.006, 0.006], [0.9, 0.9], 9)
    assert run.part != before


def test_weights_of_floors_are_told_where_others_share_no_cpu_by_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(monkeypatch, [1, 1], fair=False)
    for _ in range(40):
        run.go([0.4, 0.2], [0.6, 0.8], 2)
    assert run.part is None
    assert run.told.weights[1] == pytest.approx(1536, abs=2)


def test_who_waits_since_before_wants_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its wait is not in its sums yet. Who has queued in what seems the future does not wait."""
    run = Run(monkeypatch, [1, 2], fair=True)
    run.told.threads["queued_ns"][1] = run.told.clock_ns
    run.told.threads["queued_ns"][2] = run.told.clock_ns + 10**6 * S
    for _ in range(30):
        run.go([0.0, 0.5], [0.0, 0.0], 2)
    # The first wants a CPU all the time and runs not at all, the second runs for half of it.
    assert run.part == pytest.approx(1.5 / 2, abs=0.01)


def test_own_weights_are_those_that_were_seen_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of three times the weight wants a CPU for a third of the time, for what it runs."""
    run = Run(monkeypatch, [1, 1], fair=True)
    run.told.threads["weight"][1:3] = 3072, 1024
    for nth in range(40):
        run.go([0.6, 0.2], [0.0, 0.0])
        if nth > 5:
            run.told.threads["weight"][1] = 0  # it sleeps
    assert run.told.weights[1] == pytest.approx(1024 * (0.8 / 0.2), rel=0.01)


def test_other_threads_or_queries_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, [1, 1], fair=True)
    run.told.threads["weight"][1:3] = 3072, 1024
    for _ in range(40):
        run.go([0.6, 0.2], [0.0, 0.0])
    known = run.told.weights[1]
    run.of()
    assert run.told.weights[1] == known > 2048
    run.slots = np.arange(1, 2)
    run.queries = np.array([1])
    run.of()
    assert run.told.weights[1] == 1024


def test_a_query_that_hardly_runs_tells_nothing_of_its_weight() -> None:
    queries, own = np.array([1, 1, 2, 2, 0]), np.ones(5)
    threads, enough = threads_of(queries, np.array([0.4, 0.2, 0.004, 0.004, 0.01]), own)
    assert enough.tolist() == [True, True, False, False, True]
    assert threads.tolist() == pytest.approx([1.5, 1.5, 1, 1, 1])


def test_who_is_of_no_query_is_of_nobody_elses() -> None:
    cpu, wanted = np.array([0.4, 0.4, 0.4]), np.array([1.0, 0.5, 0.25])
    for queries in ([0, 1, 0], [0, 0, 1], [1, 0, 0], [2, 0, 0], [0, 0, 2]):
        assert fair_weight(np.array(queries), cpu, wanted, np.ones(3)) == pytest.approx(1.75)


def test_operators_never_weigh_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, [1, 1], fair=True)
    run.go([0.4, 0.2], [0.6, 0.8], 1e6, by_s=SMOOTH_S)
    assert run.told.control["weight_part"] == 1


def test_threads_that_come_and_go_hide_nothing_of_those_that_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though they do each second, in which one who stays is looked at as ever."""
    run = Run(monkeypatch, [1, 1], fair=True)
    run.told.threads["weight"][1:3] = 3072, 1024
    for nth in range(40):
        run.slots, run.queries = np.array([1, 2, 3 + nth % 2]), np.array([1, 1, 2])
        run.of()
        run.go([0.6, 0.2], [0.0, 0.0])
    lately = run.weight._own.tolist()
    assert lately == [3.0, 1.0, 1.0]
    assert run.part is not None


def test_a_light_query_weighs_whole_while_it_wants_a_cpu_and_beside_others_for_its_time() -> None:
    """Twenty light ones rarely want it at once; one that never ran weighs as one thread."""
    own = np.ones(3)
    one = Lately(np.array([1, 1, 0]), np.array([0.1, 0.05, 0.0]), np.array([0.1, 0.1, 0]), own, 1)
    assert one.while_wanting(slice(0, 3)) == pytest.approx([1.0, 0.5, 0.0])
    assert one.while_wanting(slice(2, 3)) is None
    many = Lately(np.arange(1, 21), np.full(20, 0.01), np.full(20, 0.01), np.ones(20), 1)
    weighs = many.while_wanting(slice(0, 20))
    assert weighs is not None and weighs.sum() == pytest.approx(0.2 / (1 - 0.99**20))
    full = Lately(np.array([1, 2, 2]), np.array([0.9, 0, 0]), np.array([1.0, 1.0, 0.5]), own, 1)
    assert full.while_wanting(slice(0, 3)) == pytest.approx([1.0, 0.5, 0.5])


def test_who_is_kept_from_running_weighs_what_it_waits_with() -> None:
    """Else one that is new beside many would have too little to ever show what it weighs."""
    own = np.array([1.0, 1.0, 3.0])
    kept = Lately(np.ones(3, dtype=np.intp), np.array([0.005, 0, 0]), np.ones(3), own, 1)
    assert kept.while_wanting(slice(0, 3)) == pytest.approx([1.0, 1.0, 3.0])
    light = Lately(np.arange(1, 4), np.full(3, 0.003), np.full(3, 0.004), np.ones(3), 1)
    assert light.while_wanting(slice(0, 3)) == pytest.approx([1 / 3] * 3, rel=0.01)
    assert light.while_wanting(slice(0, 2)) is None
