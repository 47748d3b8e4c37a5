"""What operators weigh together beside everybody else (backends/scx/weight.py)."""

import numpy as np
import pytest

from sched_ctl.backends.scx.weight import fair_weight


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
    costs, own = random.lognormal(sigma=2, size=6), random.choice([0.33, 1.0, 3.0], size=6)
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
