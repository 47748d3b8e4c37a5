"""What operators weigh together beside everybody else (backends/scx/weight.py)."""

from typing import Any

import numpy as np
import pytest

from sched_ctl.backends.scx.weight import Weight, fair_weight


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

    def now_ns(self) -> int:
        return 0

    def counter(self, name: str) -> int:
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
