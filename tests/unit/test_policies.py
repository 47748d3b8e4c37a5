"""Every policy by its formula, on chains and on DAGs, and the papers' own examples."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from plans import array, frame, graph, plan, snapshot
from sched_ctl.errors import UserError
from sched_ctl.metrics import backlog
from sched_ctl.metrics.catalogue import evaluate, resolve
from sched_ctl.metrics.window import Window
from sched_ctl.model.patterns import runs_in
from sched_ctl.model.policy import OperatorFrame, Spacing, UrgencyForm
from sched_ctl.model.topology import Topology
from sched_ctl.plugins import registry

NAN = float("nan")
ALL = sorted(registry.policies())


def measured(
    topology: Topology, cost: list[float], selectivity: list[float], head_age: float = 1.0
) -> OperatorFrame:
    """A frame with every metric, from counters of 1000 tuples an operator."""
    n = len(topology.operators)
    now = snapshot(
        topology,
        cost=cost,
        selectivity=selectivity,
        input_rate=[100.0] * n,
        queue_size=[5.0] * n,
        head_age=[head_age] * n,
    )
    needs = {name for policy in ALL for name in registry.policy(policy).needs}
    resolution = resolve(needs | {"cost", "selectivity"}, now.columns, policy="p", engine="e")
    columns = evaluate(resolution, Window(now))
    return OperatorFrame(topology.operators, topology.graph, columns)


def urgency(name: str, of: OperatorFrame, **options: object) -> UrgencyForm:
    return registry.policy(name, options).urgency(of)


CHAIN = plan({"q": ["a", "b", "c"]})
COST, SELECTIVITY = [1.0, 2.0, 4.0], [0.5, 0.4, 1.0]
# By hand: S = .2 .4 1; C = 1+.5*(2+.4*4), 2+.4*4, 4 = 2.8 3.6 4; T = 7
S, C, T = array(0.2, 0.4, 1.0), array(2.8, 3.6, 4.0), 7.0


@pytest.mark.parametrize("name", ALL)
def test_each_says_its_goal_and_fits_any_frame(name: str) -> None:
    policy = registry.policy(name)
    assert policy.name == name
    assert policy.goal
    empty = OperatorFrame((), plan({}).graph, {metric: np.empty(0) for metric in policy.needs})
    assert len(policy.urgency(empty)) == 0
    unknown = frame(CHAIN, **{metric: [NAN] * 3 for metric in policy.needs})
    assert len(policy.urgency(unknown)) == 3
    cycle = plan({"q": ["a", "b", "c"]}, [(0, 1), (1, 0), (1, 2)])
    form = policy.urgency(measured(cycle, COST, SELECTIVITY))
    assert not np.isnan(form.rank).any()


@pytest.mark.parametrize("name", ["min-cost", "min-latency"])
def test_who_has_no_distance_is_in_the_middle(name: str) -> None:
    """On a cycle and above it."""
    loop = plan({"q": [*"abcdefg"]}, [(0, 1), (1, 2), (2, 1), (2, 3), (3, 4), (4, 5), (5, 6)])
    ranks = urgency(name, measured(loop, [1.0] * 7, [1.0] * 7)).rank.tolist()
    assert ranks == [-1.5, -1.5, -1.5, -3, -2, -1, 0]
    only = plan({"q": ["a", "b"]}, [(0, 1), (1, 0)])
    assert urgency(name, measured(only, [1.0] * 2, [1.0] * 2)).rank.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "part", "expected"),
    [
        ("qs", "per_tuple", [1, 1, 1]),
        ("fcfs", "per_second", [1, 1, 1]),
        ("hr", "static", S / C),
        ("rb", "static", S / C / 0.25),
        ("rr", "static", S / C / 0.25),
        ("cqc", "static", S / C),
        ("srpt", "static", 1 / C),
        ("hnr", "static", S / C / T),
        ("lsf", "per_second", [1 / T] * 3),
        ("bsd", "per_second", S / C / T**2),
        ("min-memory", "static", [0.5 / 1, 0.6 / 2, 1 / 4]),
        ("min-cost", "rank", [-2, -1, 0]),
        ("min-cost", "static", [1, 0.5, 0.25]),
        ("min-latency", "rank", [-2, -1, 0]),
        ("min-latency", "static", S / C),
        ("constant", "static", [0, 0, 0]),
    ],
)
def test_the_formula_on_a_chain(name: str, part: str, expected: list[float]) -> None:
    form = urgency(name, measured(CHAIN, COST, SELECTIVITY))
    assert_allclose(getattr(form, part), expected)
    others = {"static", "per_second", "per_tuple"} - {part}
    if part != "rank" and name not in {"min-cost", "min-latency"}:
        assert all((getattr(form, other) == 0).all() for other in others)
        assert (form.rank == 0).all()


def test_an_unknown_cost_is_an_unknown_urgency() -> None:
    of = measured(CHAIN, [1, NAN, 4], SELECTIVITY)
    for name in ("hr", "srpt", "rb", "min-latency"):
        assert np.isnan(urgency(name, of).static).tolist() == [True, True, False]
    assert np.isnan(urgency("hnr", of).static).all()  # T looks upstream too
    for name in ("bsd", "lsf"):  # must be unknown as a whole, not only in its slope
        assert np.isnan(urgency(name, of).static).all()


@pytest.mark.filterwarnings("error")
def test_what_takes_no_time_is_unknown_without_a_warning() -> None:
    none = frame(CHAIN, ideal_time=[0.0, 5e-324, 1.0], head_age=[1.0] * 3)
    form = registry.policy("lsf").urgency(none)
    assert np.isnan(form.static).tolist() == [True, True, False]


def order_of_queries(name: str, **options: object) -> list[int]:
    """AQSIOS, example 1: two queries of one operator each."""
    example = plan({"Q1": ["o"], "Q2": ["o"]})
    form = urgency(name, measured(example, [5e-3, 2e-3], [1.0, 0.33]), **options)
    order = np.argsort(-form.at(array(1, 1), array(3, 3)), kind="stable")
    return [int(query) for query in order]


def run(order: list[int]) -> tuple[float, float]:
    """Mean response (ms) and slowdown of example 1: three tuples at 0, to all queries."""
    cost, survives = [5.0, 2.0], [[True] * 3, [False, True, False]]
    now, responses, slowdowns = 0.0, [], []
    for query in order:
        for emitted in survives[query]:
            now += cost[query]
            if emitted:
                responses.append(now)
                slowdowns.append(now / cost[query])
    return float(np.mean(responses)), float(np.mean(slowdowns))


def test_example_1_of_sharaf_et_al() -> None:
    assert order_of_queries("hr") == [0, 1]
    assert run(order_of_queries("hr")) == (12.25, 3.875)
    assert order_of_queries("hnr") == [1, 0]
    assert run(order_of_queries("hnr")) == pytest.approx((13.0, 2.9))


def test_without_filters_hr_and_hnr_are_srpt() -> None:
    # Sharaf et al. 2006, section 3.5
    costs = [3.0, 1.0, 2.0, 5.0]
    of = measured(plan({f"q{i}": ["o"] for i in range(4)}), costs, [1.0] * 4)
    orders = {
        tuple(np.argsort(-urgency(name, of).static).tolist()) for name in ("hr", "hnr", "srpt")
    }
    assert orders == {(1, 2, 0, 3)}


DIAMOND = plan({"q": ["a", "b", "c", "d"]}, [(0, 1), (0, 2), (1, 3), (2, 3)])


def test_hr_on_a_diamond_counts_both_ways() -> None:
    form = urgency("hr", measured(DIAMOND, [1, 2, 3, 4], [1, 0.5, 0.25, 0.8]))
    assert_allclose(form.static, [0.6 / 9, 0.4 / 4, 0.2 / 4, 0.8 / 4])


def test_min_latency_and_min_cost_put_an_operator_before_all_that_feed_it() -> None:
    # 0 > 1 > 3 and 0 > 3: the longest way counts
    of = measured(plan({"q": list("abcd")}, [(0, 1), (1, 3), (0, 3), (2, 3)]), [1] * 4, [1] * 4)
    for name in ("min-latency", "min-cost"):
        assert urgency(name, of).rank.tolist() == [-2, -1, -1, 0]
    assert urgency("min-cost", of, order="upstream").rank.tolist() == [2, 1, 1, 0]


def test_min_memory_on_a_fork_counts_every_copy() -> None:
    of = measured(plan({"q": list("abc")}, [(0, 1), (0, 2)]), [1, 1, 1], [0.75, 1, 1])
    assert_allclose(urgency("min-memory", of).static, [1 - 1.5, 1, 1])


def test_round_robin_asks_for_equal_groups_and_cqc_for_classes() -> None:
    groups = registry.policy("rr").groups
    assert groups is not None
    assert groups("lab:1", "etl") == ("etl", 1.0)
    classes = registry.policy("cqc", {"weights": {"high*": 4, "low*": 1}}).groups
    assert classes is not None
    assert classes("lab:1", "high-1") == classes("lab:1", "high-2") == ("high*", 4.0)
    assert classes("lab:1", "x") == ("other", 1.0)


def test_rb_makes_queries_alike() -> None:
    of = measured(plan({"p": ["a", "b"], "q": ["a", "b"]}), [1, 1, 100, 100], [0.5, 1, 0.5, 1])
    static = urgency("rb", of).static
    assert_allclose(static[:2], static[2:])
    assert static.max() == 1


def test_random_repeats_with_its_seed_and_draws_again_each_period() -> None:
    of = measured(CHAIN, COST, SELECTIVITY)
    one, same, other = (registry.policy("random", {"seed": seed}) for seed in (1, 1, 2))
    first = one.urgency(of).static
    assert_allclose(first, same.urgency(of).static)
    assert (first != one.urgency(of).static).any()
    assert (first != other.urgency(of).static).all()


def caches_of(function: Any) -> list[Any]:
    """Caches that a function uses, or functions that it uses."""
    used = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    found = [one for one in used if hasattr(one, "cache_info")]
    return found + [cache for one in used if callable(one) for cache in caches_of(one)]


@pytest.mark.parametrize("name", ["constant", "multi-class"])
def test_names_that_come_and_go_are_not_all_remembered(name: str) -> None:
    """An engine's user chooses them, and the controller is root's."""
    policy, many = registry.policy(name), 70_000
    for first in range(0, many, 10):
        names = plan({f"q{query}": ["a"] for query in range(first, first + 10)})
        policy.urgency(frame(names, **{metric: [1.0] * 10 for metric in policy.needs}))
    sizes = [cache.cache_info().currsize for cache in caches_of(policy.urgency)]
    assert sizes and max(sizes) <= 1 << 16


def test_constant_takes_the_first_pattern_that_fits() -> None:
    of = measured(plan({"etl": ["parse", "sink"], "lr": ["parse"]}), [1] * 3, [1] * 3)
    table = {"etl/s*": 5, "etl": 2, "*/parse": 1}
    assert urgency("constant", of, priorities=table).static.tolist() == [2, 5, 1]
    assert urgency("constant", of, priorities={"x": 1}, default=9.0).static.tolist() == [9, 9, 9]


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("etl", [1, 0, 1, 0]),
        ("flink:e*", [1, 0, 0, 0]),
        ("flink:127.0.0.1:8081:etl", [1, 0, 0, 0]),
        ("storm:n:8080/etl", [0, 0, 1, 0]),
        ("pod:ingest/*", [0, 0, 1, 1]),
    ],
)
def test_a_pattern_means_the_same_to_all_policies(pattern: str, meant: list[int]) -> None:
    """Two engines that run queries of the same names; the second moves into a pod and out again."""
    engines = "flink:127.0.0.1:8081", "storm:n:8080"
    names = plan({"1": ["a", "b"], "2": ["a", "b"]}).operators
    operators = tuple(replace(o, query="etl" if o.name == "a" else "x") for o in names)
    policies = [
        registry.policy("constant", {"priorities": {pattern: 1}}),
        registry.policy("multi-class", {"classes": {pattern: "rr", "*": "hr"}}),
    ]
    needs = frozenset().union(*(policy.needs for policy in policies))
    of = OperatorFrame(
        operators,
        graph(4),
        {metric: np.ones(4) for metric in needs},
        np.array([0, 0, 1, 1], dtype=np.intp),
        engines,
    )
    groups = registry.policy("cqc", {"weights": {pattern: 4}}).groups
    assert groups is not None
    for place in ("pod:ingest/one", None, "pod:ingest/two"):
        runs_in(engines[1], () if place is None else (place,))
        expected = meant if place or not pattern.startswith("pod:") else [0] * 4
        try:
            constant, classes = (policy.urgency(of) for policy in policies)
            shares = [groups(*query)[1] for query in of.queries]
        finally:
            runs_in(engines[1], ())
        assert constant.static.tolist() == expected
        assert (classes.rank + 1).tolist() == expected
        assert shares == [4.0 if fits else 1.0 for fits in expected]


def test_multi_class_puts_classes_first_and_keeps_their_policies() -> None:
    of = measured(
        plan({"low": ["a", "b"], "High-1": ["a"], "other": ["a"]}),
        [1, 2, 3, 4],
        [0.5, 1, 1, 1],
    )
    form = urgency("multi-class", of, classes={"[Hh]igh*": "fcfs", "low": "min-cost"})
    # HIGH over both ranks of LOW's min-cost over the rest
    assert form.rank.tolist() == [-2, -1, 0, -3]
    assert form.per_second.tolist()[:3] == [0, 0, 1]
    assert form.static.tolist()[:3] == [1, 0.5, 0]
    assert np.isnan(form.static[3])


def test_multi_class_by_default_is_that_of_haren() -> None:
    policy = registry.policy("multi-class")
    assert policy.needs == {"head_age", "global_selectivity", "global_cost"}
    assert policy.spacing is Spacing.LOGARITHMIC


# One operator x shared by three segments (Sharaf et al. 2006, section 7): x > {1, 2, 3}
SHARED = plan({"q": ["x", "1", "2", "3"]}, [(0, 1), (0, 2), (0, 3)])
SHARED_COST, SHARED_SELECTIVITY = [1.0, 1.0, 2.0, 10.0], [1.0, 1.0, 0.9, 0.1]


def best_set(
    cost: Sequence[float], selectivity: Sequence[float], power: int = 1
) -> Mapping[str, float]:
    """Priority of x, shared by segments x > i, from the definitions: every subset is tried.

    Of a set: sum(S_i / T_i^power) / SC with SC = sum(C_i) - (N - 1) c_x.
    """
    c, s = cost, selectivity
    rows = range(1, len(c))

    def together(chosen: Sequence[int]) -> float:
        worth = sum(s[0] * s[i] / (c[0] + c[i]) ** power for i in chosen)
        return worth / (sum(c[0] + s[0] * c[i] for i in chosen) - (len(chosen) - 1) * c[0])

    alone = [s[i] / (c[0] + c[i]) ** power / (c[0] + s[0] * c[i]) for i in rows]
    sets = [chosen for n in range(len(rows)) for chosen in combinations(rows, n + 1)]
    return {
        "max": together([1 + int(np.argmax(alone))]),
        "sum": together(rows),
        "pdt": max(map(together, sets)),
    }


@pytest.mark.parametrize("rule", ["max", "sum", "pdt"])
def test_shared_operators(rule: str) -> None:
    of = measured(SHARED, SHARED_COST, SHARED_SELECTIVITY)
    form = urgency("hnr", of, sharing=rule)
    assert form.static[0] == pytest.approx(best_set(SHARED_COST, SHARED_SELECTIVITY)[rule])
    # what is behind x runs by its own rate: s / (c T), T = c_x + c
    assert_allclose(form.static[1:], [1 / 1 / 2, 0.9 / 2 / 3, 0.1 / 10 / 11])


def test_the_tree_is_the_best_set_of_random_segments() -> None:
    random = np.random.default_rng(5)
    for _ in range(300):
        n = int(random.integers(2, 7))
        shape = plan({"q": [f"o{i}" for i in range(n + 1)]}, [(0, i) for i in range(1, n + 1)])
        cost = np.exp(random.normal(0, 1.5, n + 1)).tolist()
        selectivity = random.uniform(0.01, 1, n + 1).tolist()
        of = measured(shape, cost, selectivity)
        hnr, bsd = best_set(cost, selectivity)["pdt"], best_set(cost, selectivity, 2)["pdt"]
        assert urgency("hnr", of).static[0] == pytest.approx(hnr, rel=1e-9)
        assert urgency("bsd", of).per_second[0] == pytest.approx(bsd, rel=1e-9)


def test_the_tree_is_a_proper_part_where_that_is_best() -> None:
    # x with two good segments and a bad one: 1 alone < 1 and 2 > all three
    of = measured(SHARED, [1.0, 0.1, 0.1, 10.0], [1.0, 1.0, 0.9, 0.1])
    values = {rule: urgency("hnr", of, sharing=rule).static[0] for rule in ("max", "sum", "pdt")}
    assert values["pdt"] > values["max"] > values["sum"]
    t = 1.1
    assert values["pdt"] == pytest.approx((1 / t + 0.9 / t) / 1.2)


def test_sharing_changes_nothing_on_chains() -> None:
    of = measured(CHAIN, COST, SELECTIVITY)
    chosen: dict[str, list[str]] = {
        "hr": [],
        "hnr": ["none"],
        "bsd": ["none"],
        "balanced": ["none"],
    }
    for name, more in {"hr": [], **chosen}.items():
        plain = urgency(name, of)
        for rule in ("max", "sum", "pdt", *more):
            other = urgency(name, of, sharing=rule)
            assert_allclose(other.static, plain.static)
            assert_allclose(other.per_second, plain.per_second)


def test_a_fork_counts_by_its_best_branches_unless_told_otherwise() -> None:
    # Of the three, the third adds next to nothing for ten times the cost
    of = measured(SHARED, [1.0, 0.1, 0.1, 10.0], [1.0, 1.0, 0.9, 0.1])
    for name, part in (("hnr", "static"), ("bsd", "per_second"), ("balanced", "static")):
        tree = getattr(urgency(name, of), part)
        none = getattr(urgency(name, of, sharing="none"), part)
        assert tree[0] > 2 * none[0]
        assert_allclose(tree[1:], none[1:])


def test_a_shared_operator_of_unknown_branches() -> None:
    of = measured(SHARED, [1, 1, NAN, 10], SHARED_SELECTIVITY)
    assert urgency("hr", of, sharing="pdt").static[0] == pytest.approx(0.5)
    assert np.isnan(urgency("hr", of, sharing="sum").static[0])


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("hnr", {"sharing": "ptd"}, "did you mean 'pdt'"),
        ("bsd", {"sharing": "x"}, "no sharing 'x'"),
        ("hr", {"sharing": "none"}, "no sharing"),
        ("min-cost", {"order": "up"}, "no order 'up'"),
        ("constant", {"level": "physcal"}, "did you mean 'physical'"),
        ("constant", {"priorities": {"a": NAN}}, "not a finite number"),
        ("cqc", {"weights": {"a": 0}}, "above 0"),
        ("multi-class", {"classes": {"a": "bsdd"}}, "did you mean 'bsd'"),
        ("multi-class", {"classes": {"a": "hr"}, "options": {"b": {}}}, "b, which is no class"),
    ],
)
def test_bad_options(name: str, options: Mapping[str, object], text: str) -> None:
    with pytest.raises(UserError, match=text):
        registry.policy(name, options)


def test_light_first_places_every_operator_of_a_light_query_above_those_of_a_heavy_one() -> None:
    both = plan({"light": ["a", "b"], "heavy": ["c", "d"]})

    def rank(*cpu_use: float, utilisation: Sequence[float] = (0.1, 0.1, 1.0, 0.3)) -> list[float]:
        of = urgency("light-first", frame(both, cpu_use=cpu_use, utilisation=utilisation))
        assert len(set(of.at(np.zeros(4), np.zeros(4)))) == 1
        return [float(value) for value in of.rank]

    none = [0, 0, 0, 0]
    assert rank(0.02, 0.02, 0.5, 0.4) == [1, 1, 0, 0]
    # .36 and .6 of a CPU: the heavy one is at 1.25 of the mean; a little more, and it is above.
    assert rank(0.18, 0.18, 0.3, 0.29) == none
    assert rank(0.18, 0.18, 0.3, 0.31) == [1, 1, 0, 0]
    assert rank(NAN, NAN, NAN, NAN) == none
    # One that uses much but keeps up is not heavy, nor one that is saturated and uses little.
    assert rank(0.02, 0.02, 0.5, 0.4, utilisation=(0.1, 0.1, 0.9, NAN)) == none
    assert rank(0.02, 0.02, 0.5, 0.4, utilisation=(1.0, 1.0, 0.9, 0.9)) == none
    with pytest.raises(UserError, match="must be above 1"):
        registry.policy("light-first", {"heavy": 1})


def test_who_uses_much_is_told_by_those_whose_use_is_known() -> None:
    """Of a query that has just come it is not: the others were heavy beside it for a minute."""
    three = plan({"new": ["a", "b"], "one": ["c"], "other": ["d"]})

    def marked(*cpu_use: float, of: Topology = three) -> list[str]:
        seen = frame(of, cpu_use=cpu_use, utilisation=(NAN, NAN, 1.0, 0.1))
        return sorted(query for _, query in backlog.seen(seen, 1.0))

    assert marked(1.2, 1.2, 0.4, 0.35) == []
    assert marked(NAN, NAN, 0.4, 0.35) == []
    assert marked(1.2, NAN, 0.4, 0.35) == [], "half of it"
    assert marked(NAN, NAN, 0.4, 0.1) == ["one"]
    assert marked(NAN, NAN, 0.4, NAN) == [], "nobody to compare it with"
    # What runs on another node uses nothing here, and nobody will ever tell of it.
    away = replace(three.operators[1], threads=())
    apart = replace(three, operators=(three.operators[0], away, *three.operators[2:]))
    assert marked(0.1, NAN, 0.4, 0.1, of=apart) == ["one"]


@pytest.mark.parametrize("name", ["hr", "hnr", "srpt", "bsd", "balanced"])
def test_a_heavy_query_goes_last_whatever_its_results_cost(name: str) -> None:
    both = plan({"light": ["a", "b"], "heavy": ["c", "d"]})
    # The last operator of the heavy query is the cheapest of all.
    of = measured(both, [1e-3, 2e-3, 4e-3, 1e-6], [1, 1, 1, 1])
    apart = urgency(name, of)
    assert apart.rank.tolist() == [0, 0, 0, 0]
    use = {"cpu_use": array(0.02, 0.02, 0.5, 0.4), "utilisation": array(0, 0, 1, 1)}
    seen = OperatorFrame(of.operators, of.graph, {**of.columns, **use})
    beside = urgency(name, seen)
    assert beside.rank.tolist() == [1, 1, 0, 0]
    assert_allclose(beside.static, apart.static)
    assert_allclose(beside.per_second, apart.per_second)
    if name != "srpt":  # which has no options
        assert urgency(name, seen, heavy=0).rank.tolist() == [0, 0, 0, 0]
        with pytest.raises(UserError, match="must be above 1"):
            registry.policy(name, {"heavy": 0.5})
    # Alone, it is nobody's burden: nothing changes.
    alone = OperatorFrame(of.operators, of.graph, {**seen.columns, "cpu_use": array(0, 0, 0, 0)})
    assert urgency(name, alone).rank.tolist() == [0, 0, 0, 0]
    inside = urgency("multi-class", seen, classes={"*": name})
    assert len(set(inside.rank)) == 2


def test_what_a_policy_wants_is_left_out_where_the_engine_has_it_not() -> None:
    policy = registry.policy("hr")
    assert policy.wants == {"cpu_use", "utilisation"}

    def found(*provides: str) -> frozenset[str]:
        return resolve(policy.needs, provides, policy="hr", engine="e", wants=policy.wants).needs

    told = ("global_selectivity", "global_cost")
    assert found(*told) == policy.needs
    assert found(*told, "cpu_time") == policy.needs | {"cpu_use"}
    assert found(*told, "cpu_time", "idle_time") == policy.needs | policy.wants


def test_light_first_orders_each_of_its_ranks_by_another_policy() -> None:
    both = plan({"light": ["a", "b"], "heavy": ["c", "d"]})
    of = measured(both, [1e-3, 2e-3, 4e-3, 1e-6], [1, 1, 1, 1])
    use = {"cpu_use": array(0.02, 0.02, 0.5, 0.4), "utilisation": array(0, 0, 1, 1)}
    of = OperatorFrame(of.operators, of.graph, {**of.columns, **use})
    ranks, within = urgency("light-first", of, within="balanced"), urgency("balanced", of)
    assert ranks.rank.tolist() == [1, 1, 0, 0]
    assert_allclose(ranks.per_second, within.per_second)
    assert_allclose(ranks.static, within.static)
    # Two ranks of its own stay apart, and inside those of light and heavy.
    order = urgency("light-first", of, within="min-latency").rank
    assert order[2] < order[3] < order[0] < order[1]
    for inner in ("light-first", "no-such"):
        with pytest.raises(UserError):
            registry.policy("light-first", {"within": inner})


def test_chain_breaks_ties_by_age_and_by_nothing_else() -> None:
    """Equal operators go by the older head; a difference of a thousandth is above any age."""
    equal = plan({"one": ["a"], "two": ["b"]})
    made = urgency("chain", measured(equal, [1.0, 1.0], [1.0, 1.0]))
    older = made.at(array(0.5, 0.6), array(0, 0))
    assert older[1] > older[0]
    made = urgency("chain", measured(equal, [0.999, 1.0], [1.0, 1.0]))
    older = made.at(array(0.0, 100_000.0), array(0, 0))
    assert older[0] > older[1]
    # The tie is a part of the least steepness, however small that is.
    made = urgency("chain", measured(equal, [1e6, 1.0], [1.0, 1.0]))
    assert 0 < made.per_second[0] == made.per_second[1] < 1e-9 * made.static.min() * 1.001


def test_chain_knows_no_tie_where_nothing_frees_memory() -> None:
    two = plan({"q": ["a", "b"]})
    made = urgency("chain", frame(two, cost=[NAN] * 2, selectivity=[1, 1], tuple_size=[1, 1]))
    assert made.per_second.tolist() == [0, 0]


def test_balanced_doubles_after_so_many_ideal_times() -> None:
    of = measured(CHAIN, COST, SELECTIVITY)
    once = urgency("balanced", of, patience=10.0).at(array(0, 0, 0), array(0, 0, 0))
    twice = urgency("balanced", of, patience=10.0).at(array(*[10 * T] * 3), array(0, 0, 0))
    assert_allclose(twice, 2 * once)
    with pytest.raises(UserError, match=r"patience 0\.0 must be above 0"):
        registry.policy("balanced", {"patience": 0})


def test_balanced_without_any_known_time_takes_a_second() -> None:
    metrics = registry.policy("balanced").needs
    columns = {name: [1.0] * 3 for name in metrics} | {"ideal_time": [NAN, 0.0, NAN]}
    of = frame(CHAIN, **columns)
    assert np.isnan(urgency("balanced", of).per_second).any()
    some = {**columns, "ideal_time": [2.0, 4.0, NAN]}
    growth = urgency("balanced", frame(CHAIN, **some), sharing="none").per_second
    assert np.isfinite(growth).any()


def test_a_policy_of_several_is_steady_only_if_all_are() -> None:
    still = {"high": "hr", "low": "min-cost"}
    assert registry.policy("multi-class", {"classes": still}).steady
    assert not registry.policy("multi-class", {"classes": {"high": "hr", "low": "random"}}).steady


def test_what_wake_ups_do_not_tell_is_named() -> None:
    assert registry.policy("hr").beyond_wake_ups
    assert "cost" not in registry.policy("hr").beyond_wake_ups
    assert registry.policy("min-cost").beyond_wake_ups == ()
