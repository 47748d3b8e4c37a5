"""How many replicas operators need, from made-up shares of time."""

from dataclasses import replace

import numpy as np
import pytest
from shares import of, replicated

from plans import plan
from sched_ctl.adapt.parallelism import stages
from sched_ctl.cli.held import replicas
from sched_ctl.model.topology import (
    Edge,
    Thread,
    Topology,
)
from sched_ctl.service.bottlenecks import needs


def test_an_operator_gets_what_its_source_would_emit_if_nothing_held_it() -> None:
    # b runs always and takes 100/s; the source stands before a full queue two thirds of the time.
    found = of(replicated(1, 1, 1), [100, 100, 100], [100] * 3, [0.2, 1.0, 0.1], [0.667, 0, 0])
    assert found.needed[1] == pytest.approx(3.0, rel=0.01)
    assert found.replicas.tolist() == [1, 3, 1]
    assert found.source_held.tolist() == [True, True, True]
    assert found.cpus[1] == pytest.approx(3.0, rel=0.01)


def test_explain_says_what_an_operator_needs() -> None:
    held = of(replicated(1, 1, 1), [100, 100, 100], [100] * 3, [0.2, 1.0, 0.1], [0.667, 0, 0])
    assert needs(held, 1) == "3 at first, has 1; one can do 100 of up to 300.3 tuples/s"
    assert needs(held, 0) is None  # a source
    assert needs(held, 2) is None
    many = of(replicated(1, 8), [80] + [10] * 8, [80] + [10] * 8, [0.1] + [0.05] * 8)
    assert needs(many, 5) == "1 for 80 tuples/s, has 8; one can do 200"
    much = of(replicated(1, 1, 1), [1e5] * 3, [1e5] * 3, [0.2, 1.0, 0.1], [0.667, 0, 0])
    assert needs(much, 1) == "3 at first, has 1; one can do 100k of up to 300.3k tuples/s"


@pytest.mark.parametrize("cpu", ["thread_cpu_time", "cpu_time"])
def test_an_operator_of_several_threads_costs_what_all_of_them_use(cpu: str) -> None:
    """Four threads that run half of the time each, as Spark's executors have them."""
    chain = replicated(1, 1)
    four = tuple(Thread(1, 500 + i, 7) for i in range(4))
    chain = replace(
        chain, operators=(chain.operators[0], replace(chain.operators[1], threads=four))
    )
    found = of(chain, [100, 100], [100, 100], [0.1, 2.0], cpu=cpu)
    assert found.needed[1] == pytest.approx(0.5)
    assert found.cpus[1] == pytest.approx(2.0)


def test_eight_replicas_that_one_could_do_for_are_too_many() -> None:
    found = of(
        replicated(1, 8),
        [80] + [10] * 8,
        [80] + [10] * 8,
        [0.1] + [0.05] * 8,
    )
    assert found.true_rate[1] == pytest.approx(200)
    assert found.replicas.tolist() == [1, 1]
    assert not found.source_held.any()


def test_waiting_for_a_cpu_is_not_useful_time() -> None:
    # On a crowded machine b gets a fifth of a CPU, and could do its 100/s in a replica of its own.
    found = of(replicated(1, 1), [100, 100], [100, 100], [0.1, 0.2], wait=[0.0, 0.8])
    assert found.replicas.tolist() == [1, 1]
    assert found.needed[1] == pytest.approx(0.2)


def test_selectivities_and_branches_multiply_on_the_way_down() -> None:
    # a splits in b (a quarter) and c (the rest); b makes 10 of each tuple for d.
    base = plan({"q": ["a", "b", "c", "d"]}, edges=[])
    edges = (Edge(0, 1, 0.25), Edge(0, 2, 0.75), Edge(1, 3))
    topology = Topology(base.engine, base.operators, edges, base.logical, ())
    found = of(topology, [400, 100, 300, 1000], [400, 1000, 300, 1000], [0.1, 0.5, 0.3, 0.8])
    assert found.rate.tolist() == pytest.approx([400, 100, 300, 1000])
    assert found.needed[1:].tolist() == pytest.approx([0.5, 0.3, 0.8])


def test_replicas_of_one_operator_are_one_stage_and_share_its_load() -> None:
    parts = stages(replicated(2, 3))
    assert parts.names == ("a", "b")
    assert parts.replicas.tolist() == [2, 3]
    assert parts.graph.share.tolist() == pytest.approx([1.0])


def test_what_is_not_known_keeps_what_there_is() -> None:
    nothing = float("nan")
    found = of(replicated(1, 2), [100, nothing, 50], [100, nothing, 50], [0.1, nothing, 0.2])
    assert np.isnan(found.needed[1])
    assert found.replicas.tolist() == [1, 2]
    idle = of(replicated(1, 1), [0, 0], [0, 0], [0.0, 0.0])
    assert idle.replicas.tolist() == [1, 1]


def test_a_cycle_is_said_to_be_unknown() -> None:
    base = plan({"q": ["a", "b", "c"]}, edges=[(0, 1), (1, 2), (2, 1)])
    found = of(base, [10, 20, 20], [10, 20, 10], [0.1, 0.2, 0.2])
    assert np.isnan(found.needed[1:]).all()
    assert found.replicas.tolist() == [1, 1, 1]


def test_the_answer_does_not_depend_on_the_replicas_of_today() -> None:
    """Where nothing is held, one step is enough from wherever it begins (section 3.3 there)."""
    rng = np.random.default_rng(7)
    for _ in range(50):
        cost, rate = rng.uniform(0.005, 0.02), rng.uniform(20, 150)
        least = int(np.ceil(rate * cost / 0.9))
        answers = {
            int(
                of(
                    replicated(1, now),
                    [rate] + [rate / now] * now,
                    [rate] + [rate / now] * now,
                    [0.1] + [rate * cost / now] * now,
                ).replicas[1]
            )
            for now in (least, least + 1, least + 6)
        }
        assert answers == {max(1, int(np.ceil(rate * cost - 0.05)))}


def query(*stages: dict[str, object], cpus: float = 2.0, needed: float | None = 1.0) -> dict:  # type: ignore[type-arg]
    return {"parallelism": list(stages), "cpus": cpus, "needed_cpus": needed, "source_held": True}


def stage(now: int, needed: int, source_held: bool = False) -> dict[str, object]:
    shares = {"rate": 300.0, "true_rate": 100.0, "source_held": source_held}
    return {"operator": "agg", "replicas": now, "needed": needed} | shares


def test_words_say_what_to_change_and_nothing_where_it_is_right() -> None:
    assert replicas(query(stage(3, 3))) == []
    assert replicas(query(stage(1, 3, source_held=True), needed=3.4)) == [
        "agg 1 -> 3 replicas at first: one can do 100 of up to 300 tuples/s",
        "all of it takes up to 3.4 CPUs, and 2 are there",
    ]
    assert replicas(query(stage(8, 1))) == ["agg 8 -> 1 replicas would do for 300 tuples/s"]
    assert replicas(query(stage(8, 1, source_held=True))) == []
