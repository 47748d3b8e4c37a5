"""From snapshots to schedules: selection, levels, threads, helpers, groups, several engines."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import thread_time
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from plans import array, frame, plan, snapshot
from sched_ctl.decide import decision
from sched_ctl.decide.decision import HELPER_RULES, decide
from sched_ctl.decide.layout import Layout, SameObjects, layout_of
from sched_ctl.errors import UserError
from sched_ctl.metrics.backlog import KEEPS_UP, LATELY, MEMORY, SEEN_BY
from sched_ctl.metrics.catalogue import resolve
from sched_ctl.metrics.window import Window
from sched_ctl.model.normalise import nice_values
from sched_ctl.model.policy import Level, Memory, OperatorFrame, Policy, UrgencyForm, form
from sched_ctl.model.schedule import Schedule, without
from sched_ctl.model.targets import Target
from sched_ctl.model.topology import (
    Edge,
    HelperThread,
    LogicalOperator,
    PhysicalOperator,
    Snapshot,
    Thread,
    Topology,
)
from sched_ctl.plugins import registry

NAN = float("nan")


def scheduled(policy: str | Policy, *snapshots: Snapshot, **arguments: object) -> Schedule:
    chosen = registry.policy(policy) if isinstance(policy, str) else policy
    windows = {now.topology.engine: Window(now) for now in snapshots}
    resolutions = {
        name: resolve(
            chosen.needs,
            {*window.now.columns, *window.now.logical},
            policy=chosen.name,
            engine=name,
        )
        for name, window in windows.items()
    }
    return decide("main", chosen, windows, resolutions, **arguments)  # type: ignore[arg-type]


def by_label(schedule: Schedule) -> Mapping[str, float]:
    return dict(zip(schedule.operators, schedule.form.static.tolist(), strict=True))


def constant(level: str = "physical", **priorities: float) -> Policy:
    table = {name.replace("_", "/"): value for name, value in priorities.items()}
    return registry.policy("constant", {"priorities": table, "level": level})


TWO = plan({"etl": ["a", "b"], "lr": ["a"]})


def test_every_thread_gets_the_urgency_of_its_operator() -> None:
    now = snapshot(TWO, queue_size=[1, 5, 3], head_age=[0.1, 0.2, NAN])
    schedule = scheduled("qs", now)
    assert schedule.operators == ("etl/a", "etl/b", "lr/a")
    assert [thread.tid for thread in schedule.threads] == [100, 101, 102]
    assert schedule.form.per_tuple.tolist() == [1, 1, 1]
    assert_allclose(schedule.queue_size, [1, 5, 3])
    assert_allclose(schedule.head_age_s, [0.1, 0.2, NAN])  # shown though QS does not need it
    assert schedule.scope == "main"
    assert not schedule.groups


def test_selection_of_queries() -> None:
    now = snapshot(TWO, queue_size=[1, 5, 3])
    some = scheduled("qs", now, select={"lab:1": frozenset({"etl", "x"}), "y": frozenset({"lr"})})
    assert some.operators == ("etl/a", "etl/b")
    assert some.queries == (("lab:1", "etl"), ("lab:1", "etl"))
    nothing = scheduled("qs", now, select={"lab:2": frozenset({"etl"})})
    assert nothing.threads == ()
    assert len(nothing.form) == 0


def test_thousands_of_queries_are_cheap_to_select() -> None:
    now = chains(10_000)
    start = thread_time()
    scheduled("hr", now)
    everything = thread_time() - start
    start = thread_time()
    select = {"lab:1": frozenset(now.topology.queries)}
    assert len(scheduled("hr", now, select=select).threads) == 10_000
    assert thread_time() - start < 10 * everything


def test_metrics_of_a_selected_query_are_those_of_the_whole_graph() -> None:
    # two queries share operator 0; C of 0 counts both branches even if one query is selected
    topology = plan({"p": ["0", "1"], "q": ["2"]}, [(0, 1), (0, 2)])
    now = snapshot(topology, cost=[1, 2, 4], selectivity=[1, 1, 1])
    schedule = scheduled("srpt", now, select={"lab:1": frozenset({"p"})})
    assert_allclose(schedule.form.static, [1 / 7, 1 / 2])


def test_several_engines_are_compared_in_one_frame() -> None:
    one = snapshot(plan({"q": ["a"]}, engine="lab:1"), queue_size=[1])
    two = snapshot(plan({"q": ["a"]}, engine="flink:2", first_tid=200), queue_size=[9])
    seen: list[OperatorFrame] = []

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        seen.append(frame)
        return form(len(frame), static=frame["queue_size"])

    policy = Policy("p", urgency, frozenset({"queue_size"}), "g")
    schedule = scheduled(policy, one, two)
    assert len(seen) == 1
    assert schedule.form.static.tolist() == [1, 9]


def test_engines_may_get_the_same_metric_in_different_ways() -> None:
    one = snapshot(plan({"q": ["a"]}, engine="lab:1"), tuples_in=[10], cpu_time=[10])
    two = snapshot(
        plan({"q": ["a"]}, engine="flink:2", first_tid=200), tuples_in=[10], busy_time=[5]
    )
    now = [replace(s, columns=dict(s.columns) | {"tuples_out": array(10)}) for s in (one, two)]
    assert_allclose(scheduled("srpt", *now).form.static, [1, 2])


def test_no_engine_gives_an_empty_schedule() -> None:
    assert scheduled("hr").threads == ()


def threads_of(*tids: int) -> tuple[Thread, ...]:
    return tuple(Thread(1, tid, 7) for tid in tids)


def test_several_threads_of_an_operator_and_several_operators_of_a_thread() -> None:
    topology = Topology(
        "e",
        (
            PhysicalOperator("q", "a", ("a",), threads=threads_of(1, 2)),
            PhysicalOperator("q", "b", ("b",), threads=threads_of(2, 3)),
            PhysicalOperator("r", "c", ("c",), threads=threads_of(2)),
            PhysicalOperator("q", "d", ("d",)),
        ),
        (),
        (),
        (),
    )
    schedule = scheduled(constant(q_a=1, q_b=3, r_c=2), snapshot(topology), shares={"lab:1:r": 2})
    assert [thread.tid for thread in schedule.threads] == [1, 2, 3]
    assert schedule.form.static.tolist() == [1, 3, 3]
    assert schedule.operators == ("q/a", "q/b", "q/b")
    # a thread belongs to the query whose operator decided
    assert {name: group.rows for name, group in schedule.groups.items()} == {"e/q": (0, 1, 2)}


def test_a_thread_waits_with_its_most_urgent_operator() -> None:
    topology = Topology(
        "e",
        (
            PhysicalOperator("q", "a", ("a",), threads=threads_of(1)),
            PhysicalOperator("q", "b", ("b",), threads=threads_of(1)),
            PhysicalOperator("q", "c", ("c",), threads=threads_of(1)),
        ),
        (),
        (),
        (),
    )
    schedule = scheduled("fcfs", snapshot(topology, head_age=[3, NAN, 5]))
    assert schedule.operators == ("q/c",)
    assert schedule.head_age_s.tolist() == [5]
    unknown = scheduled("fcfs", snapshot(topology, head_age=[NAN, NAN, NAN]))
    assert len(unknown.threads) == 1


# a > b fused, c in two replicas; d is unknown to the logical view
FUSED = Topology(
    "e",
    (
        PhysicalOperator("q", "a+b", ("a", "b"), threads=threads_of(1)),
        PhysicalOperator("q", "c/0", ("c",), 0, 2, threads_of(2)),
        PhysicalOperator("q", "c/1", ("c",), 1, 2, threads_of(3)),
        PhysicalOperator("q", "d", ("?",), threads=threads_of(4)),
    ),
    (Edge(0, 1, 0.5), Edge(0, 2, 0.5)),
    tuple(LogicalOperator("q", name) for name in "abc"),
    (Edge(0, 1), Edge(1, 2)),
)


def test_the_transformation_rule() -> None:
    policy = constant("logical", q_a=5, q_b=2, q_c=3)
    schedule = scheduled(policy, snapshot(FUSED))
    assert schedule.operators == ("q/a+b", "q/c/0", "q/c/1", "q/d")
    # fused: the largest of its logical ones; replicas: each; unknown: neutral
    assert_allclose(schedule.form.static, [5, 3, 3, NAN])


def test_a_logical_policy_sees_logical_metrics() -> None:
    seen: list[OperatorFrame] = []

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        seen.append(frame)
        return form(len(frame), per_tuple=1.0)

    policy = Policy("p", urgency, frozenset({"queue_size"}), "g", level=Level.LOGICAL)
    schedule = scheduled(policy, snapshot(FUSED, queue_size=[7, 1, 2, 9]))
    assert seen[0]["queue_size"].tolist() == [7, 0, 3]
    assert [operator.name for operator in seen[0].operators] == ["a", "b", "c"]
    assert_allclose(schedule.queue_size, [7, 3, 3, NAN])


def test_ranks_decide_before_urgencies_in_the_transformation() -> None:
    def urgency(frame: OperatorFrame) -> UrgencyForm:
        return form(len(frame), rank=array(1, 0, 0), static=array(1, 9, NAN))

    policy = Policy("p", urgency, frozenset(), "g", level=Level.LOGICAL)
    schedule = scheduled(policy, snapshot(FUSED))
    assert (schedule.form.rank[0], schedule.form.static[0]) == (1, 1)


HELPED = plan(
    {"q": ["a", "b"], "r": ["c"]},
    helpers=(
        HelperThread(Thread(1, 201, 7), "flusher", 1),
        HelperThread(Thread(1, 202, 7), "network"),
        HelperThread(Thread(1, 203, 7), "gc"),
        HelperThread(Thread(1, 204, 7), "flusher", 2),
        HelperThread(Thread(1, 101, 7), "network"),  # is an operator's thread already
    ),
)


def test_helper_threads_by_role() -> None:
    rules = {"flusher": "follow", "net*": "top", "gc": "neutral"}
    schedule = scheduled(constant(q_a=1, q_b=2, r_c=3), snapshot(HELPED), helpers=rules)
    assert by_label(schedule) == pytest.approx(
        {"q/a": 1, "q/b": 2, "r/c": 3, "lab:1: flusher": 3, "lab:1: network": 0, "lab:1: gc": NAN},
        nan_ok=True,
    )
    assert len(schedule.threads) == len(set(schedule.threads)) == 7
    nice = dict(zip(schedule.threads, nice_values(schedule).tolist(), strict=True))
    top = nice[Thread(1, 202, 7)]
    assert top == 0
    assert all(value > top for thread, value in nice.items() if thread.tid != 202)


def test_helpers_without_a_rule_are_left_alone() -> None:
    assert len(scheduled(constant(), snapshot(HELPED)).threads) == 3
    assert len(scheduled(constant(), snapshot(HELPED), helpers={"*": "leave"}).threads) == 3
    first = scheduled(constant(), snapshot(HELPED), helpers={"gc": "leave", "*": "top"})
    assert Thread(1, 203, 7) not in first.threads


def test_flushers_are_named_beside_their_operators() -> None:
    _, b, c = (operator.threads[0] for operator in HELPED.operators)
    first, second = Thread(1, 201, 7), Thread(1, 204, 7)
    schedule = scheduled(constant(), snapshot(HELPED))
    assert schedule.flushers == ((first, b), (second, c))
    assert without(schedule, {c}).flushers == ((first, b),)
    chosen = scheduled(constant(), snapshot(HELPED), select={"lab:1": frozenset({"q"})})
    assert chosen.flushers == ((first, b),)
    for rule in HELPER_RULES:  # a word of the user's counts
        assert not scheduled(constant(), snapshot(HELPED), helpers={"flusher": rule}).flushers


def test_a_helper_rule_may_name_the_kind_of_engine() -> None:
    kind = HELPED.engine.partition(":")[0]
    assert len(scheduled(constant(), snapshot(HELPED), helpers={f"{kind}:*": "top"}).threads) > 3
    assert len(scheduled(constant(), snapshot(HELPED), helpers={"other:*": "top"}).threads) == 3


def test_helpers_of_queries_that_are_not_selected_are_left_alone() -> None:
    schedule = scheduled(
        constant(q_b=2),
        snapshot(HELPED),
        select={"lab:1": frozenset({"q"})},
        helpers={"flusher": "follow"},
    )
    assert schedule.operators == ("q/a", "q/b", "lab:1: flusher")
    assert schedule.threads[2].tid == 201


def test_a_follower_shares_the_group_and_the_wait() -> None:
    now = snapshot(HELPED, head_age=[1, 2, 3])
    schedule = scheduled("fcfs", now, helpers={"*": "follow"}, shares={"q": 4, "*": 0.5})
    by_tid = {thread.tid: i for i, thread in enumerate(schedule.threads)}
    assert schedule.head_age_s[by_tid[201]] == 2
    assert np.isnan(schedule.form.static[by_tid[203]])  # serves nobody: neutral
    groups = schedule.groups
    assert {name: group.share for name, group in groups.items()} == {"lab:1/q": 4, "lab:1/r": 0.5}
    assert by_tid[201] in groups["lab:1/q"].rows
    assert by_tid[204] in groups["lab:1/r"].rows
    assert not any(by_tid[203] in group.rows for group in groups.values())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"helpers": {"gc": "folow"}}, "did you mean 'follow'"),
        ({"shares": {"q": 0}}, "share of 'q' is 0"),
        ({"shares": {"q": NAN}}, "share of 'q' is nan"),
    ],
)
def test_bad_bindings(arguments: Mapping[str, object], text: str) -> None:
    with pytest.raises(UserError, match=text):
        scheduled(constant(), snapshot(HELPED), **arguments)


def test_a_policy_may_ask_for_groups_and_the_user_wins() -> None:
    now = snapshot(TWO, cost=[1, 1, 1], selectivity=[1, 1, 1])
    rr = {name: (g.share, g.rows) for name, g in scheduled("rr", now).groups.items()}
    assert rr == {"lab:1/etl": (1, (0, 1)), "lab:1/lr": (1, (2,))}
    cqc = registry.policy("cqc", {"weights": {"*": 3}})
    assert {n: g.rows for n, g in scheduled(cqc, now).groups.items()} == {"lab:1/*": (0, 1, 2)}
    user = scheduled("rr", now, shares={"lr": 5}).groups
    assert {name: group.share for name, group in user.items()} == {"lab:1/etl": 1, "lab:1/lr": 5}


def test_a_new_topology_of_equal_parts_is_scheduled_anew() -> None:
    first, second = plan({"q": ["a"]}), plan({"q": ["a"]})
    assert scheduled(constant(q_a=1), snapshot(first)).threads == second.operators[0].threads
    restarted = replace(
        second, operators=(replace(second.operators[0], threads=(Thread(1, 100, 8),)),)
    )
    assert scheduled(constant(), snapshot(restarted)).threads == (Thread(1, 100, 8),)


def chains(operators: int) -> Snapshot:
    topology = plan({f"q{i}": list("abcde") for i in range(operators // 5)})
    random = np.random.default_rng(1)
    tuples = random.integers(1, 1000, operators).astype(np.float64)
    return Snapshot(
        topology,
        1.0,
        {
            "tuples_in": tuples,
            "tuples_out": tuples * random.random(operators),
            "cpu_time": tuples * random.random(operators),
            "head_age": random.random(operators),
        },
    )


@pytest.mark.parametrize("policy", ["hr", "bsd", "chain"])
def test_a_pass_grows_no_faster_than_the_operators(policy: str) -> None:
    few, many = chains(1000), chains(10_000)
    took: dict[int, list[float]] = {1000: [], 10_000: []}
    for now in [few, many] * 15:  # in turns, and by CPU time: the machine may be busy
        start = thread_time()
        scheduled(policy, now)
        took[len(now.topology.operators)].append(thread_time() - start)
    assert min(took[10_000]) < 30 * min(took[1000])


def test_an_unknown_urgency_loses_even_from_a_higher_rank() -> None:
    def urgency(frame: OperatorFrame) -> UrgencyForm:
        return form(len(frame), rank=array(1, 0, 0), static=array(NAN, 9, 3))

    policy = Policy("p", urgency, frozenset(), "g", level=Level.LOGICAL)
    schedule = scheduled(policy, snapshot(FUSED))
    assert (schedule.form.rank[0], schedule.form.static[0]) == (0, 9)


def test_who_spins_without_input_is_below_all_who_have_some() -> None:
    spinning = replace(plan({"q": ["a", "b", "c"], "r": ["d"]}), idle_spins=True)

    def levels(policy: Policy, topology: Topology) -> list[float]:
        now = snapshot(topology, queue_size=[0, 5, NAN, 3])
        return [float(level) for level in nice_values(scheduled(policy, now))]

    hr_like = constant(q_a=9, q_b=2, q_c=1, r_d=3)  # unknown stays where it is
    a, b, c, d = levels(hr_like, spinning)
    assert d < b < c < a
    assert np.argmin(levels(hr_like, replace(spinning, idle_spins=False))) == 0
    assert len(set(levels(constant(q_a=1, q_b=1, q_c=1, r_d=1), spinning))) == 1  # no order
    ranks = replace(hr_like, urgency=lambda frame: form(len(frame), rank=array(2, 1, 0, 0)))
    a, b, c, d = levels(ranks, spinning)
    assert b < c == d < a
    # A policy that knows the queues says it itself.
    by_queue = replace(hr_like, needs=frozenset({"queue_size"}))
    assert levels(by_queue, spinning) == levels(by_queue, replace(spinning, idle_spins=False))


def test_where_all_spin_without_input_nothing_changes() -> None:
    spinning = replace(plan({"q": ["a", "b"]}), idle_spins=True)
    schedule = scheduled(constant(q_a=1, q_b=2), snapshot(spinning, queue_size=[0, 0]))
    assert by_label(schedule) == {"q/a": 1, "q/b": 2}


def test_queries_of_the_same_name_in_two_engines_are_two() -> None:
    first = plan({"etl": ["a", "b"]})
    second = plan({"etl": ["a", "b"]}, engine="lab:2", first_tid=200)
    same = {"selectivity": [1.0, 1.0], "input_rate": [1.0, 1.0]}
    light = snapshot(first, **same, cost=[1, 2], cpu_use=[0.01, 0.02], utilisation=[0.1, 0.1])
    heavy = snapshot(second, **same, cost=[9, 9], cpu_use=[0.6, 0.2], utilisation=[1.0, 0.3])
    assert scheduled("light-first", light, heavy).form.rank.tolist() == [1, 1, 0, 0]
    rates = scheduled("rb", light, heavy).form.static
    assert [rates[:2].max(), rates[2:].max()] == [1, 1]


@pytest.mark.parametrize("every_s", [1, 3, 5, 30])
def test_two_saturated_queries_do_not_take_turns_in_having_nothing(every_s: int) -> None:
    """The share of the CPU is what our own order gives: who is last uses little, and wants all."""
    both = plan({"a": ["x", "y"], "b": ["x", "y"]})

    def flips(*, remembered: bool, asked_s: float = 600, window_s: int = 10) -> int:
        """How often another query goes first, from a time on at which a had most of the CPU."""
        used = [0.8] * window_s  # by a, each second; b has the rest
        memory: Memory = {}
        first, changes = 0.0, 0
        while len(used) < asked_s:
            share = float(np.mean(used[-window_s:]))
            columns = {"cpu_use": [share / 2] * 2 + [(1 - share) / 2] * 2, "utilisation": [1.0] * 4}
            now = replace(snapshot(both, **columns), time_s=float(len(used)))
            schedule = scheduled("light-first", now, memory=memory if remembered else {})
            memory = schedule.memory
            rank = schedule.form.rank
            leads = float(np.sign(rank[0] - rank[2]))  # 0: the two share the CPU
            changes += leads != first
            first = leads
            used += [0.5 + leads / 2] * every_s
        return changes

    assert flips(remembered=True) <= 4
    if every_s >= 5:
        assert flips(remembered=False) >= 15  # else nothing is shown


def test_who_was_heavy_is_not_for_ever() -> None:
    both = plan({"light": ["a", "b"], "heavy": ["c", "d"]})

    def seen(time_s: float, use: Sequence[float], busy: float, memory: object) -> Schedule:
        columns = {"cpu_use": use, "utilisation": [0.1, 0.1, busy, 0.3]}
        now = replace(snapshot(both, **columns), time_s=time_s)
        return scheduled("light-first", now, memory=memory)

    much, little = [0.02, 0.02, 0.5, 0.4], [0.4, 0.4, 0.1, 0.0]
    heavy = seen(5.0, much, 1.0, {})
    light = {("lab:1", "light"): 5.0}
    assert heavy.memory == {MEMORY: {("lab:1", "heavy"): 5.0}, KEEPS_UP: light, LATELY: {}}
    assert seen(6.0, little, 1.0, heavy.memory).form.rank.tolist() == [1, 1, 0, 0]
    assert seen(6.0, little, 1.0, {}).form.rank.tolist() == [0, 0, 0, 0]
    # It keeps up now, or has used little for a minute.
    caught_up = seen(6.0, little, 0.9, heavy.memory)
    assert caught_up.form.rank.tolist() == [0, 0, 0, 0] and not caught_up.memory[MEMORY]
    long_ago = seen(70.0, little, 1.0, heavy.memory)
    assert long_ago.form.rank.tolist() == [0, 0, 0, 0] and not long_ago.memory[MEMORY]


def test_a_policy_of_somebody_else_has_memory_and_options_of_its_own() -> None:
    """Its options mean nothing outside it, though it looks at the same metrics as ours."""
    both = plan({"etl": ["a", "b"], "other": ["c", "d"]})

    def count(frame: OperatorFrame, now_s: float) -> Mapping[tuple[str, str], float]:
        before = frame.memory.get("theirs.times", {})
        return {query: before.get(query, 0) + 1 for query in frame.queries}

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        times = frame.memory["theirs.times"]
        return form(len(frame), static=np.array([times[frame.queries[q]] for q in frame.query]))

    theirs = Policy(
        name="theirs",
        urgency=urgency,
        needs=SEEN_BY,
        goal="",
        options={"heavy": "etl*", "targets": "none"},
        remembers={"theirs.times": count},
    )
    columns = {"cpu_use": [0.02, 0.02, 0.5, 0.4], "utilisation": [0.1, 0.1, 1.0, 0.3]}
    first = scheduled(theirs, snapshot(both, **columns))
    assert first.form.static.tolist() == [1] * 4
    assert scheduled(theirs, snapshot(both, **columns), memory=first.memory).form.static.max() == 2
    # As a class among others, it has that of its own queries, and ours goes on with its own.
    mixed = registry.policy("light-first", {"within": "constant"})
    mixed = replace(mixed, remembers={**mixed.remembers, **theirs.remembers})
    memory = scheduled(mixed, snapshot(both, **columns)).memory
    assert memory.keys() == {MEMORY, KEEPS_UP, LATELY, "theirs.times"}
    assert list(memory[MEMORY]) == [("lab:1", "other")]


def test_each_class_of_multi_class_remembers_its_own_queries() -> None:
    both = plan({"high-a": ["a"], "low-b": ["b"], "low-c": ["c"]})
    same = {"cost": [1, 1, 1], "selectivity": [1, 1, 1], "head_age": [0, 0, 0]}
    use = {"cpu_use": [0.02, 0.02, 0.9], "utilisation": [0.1, 0.1, 1.0]}
    now = snapshot(both, **same, **use)
    schedule = scheduled("multi-class", now)
    assert list(schedule.memory[MEMORY]) == [("lab:1", "low-c")]
    assert not schedule.strict
    assert scheduled(registry.policy("multi-class", {"strict": True}), now).strict


def test_who_was_heavy_is_remembered_below_targets_too() -> None:
    both = plan({"light": ["a", "b"], "heavy": ["c", "d"]})
    same = {name: [1.0] * 4 for name in ("cost", "selectivity", "input_rate", "head_age")}
    much, little = [0.02, 0.02, 0.5, 0.4], [0.4, 0.4, 0.1, 0.0]
    policy = registry.policy("deadline", {"targets": (Target(queries=("light",), latency="1h"),)})
    first = scheduled(policy, snapshot(both, **same, cpu_use=much, utilisation=[0, 0, 1.0, 0.3]))
    now = snapshot(both, **same, cpu_use=little, utilisation=[0, 0, 1.0, 0.3])
    assert len(set(scheduled(policy, now, memory=first.memory).form.rank)) == 2
    assert len(set(scheduled(policy, now).form.rank)) == 1


def test_topologies_are_the_same_where_they_are_the_very_same_objects() -> None:
    one, other, like = plan({"q": ["a"]}), plan({"r": ["a"]}), plan({"q": ["a"]})
    assert SameObjects((one, other)) == SameObjects((one, other))
    assert hash(SameObjects((one, other))) == hash(SameObjects((one, other)))
    assert SameObjects((one,)) != SameObjects((like,))
    assert SameObjects((one, other)) != SameObjects((one, like))
    assert SameObjects((one, other)) != SameObjects((like, other))
    assert SameObjects((one,)) != SameObjects((one, other))
    assert SameObjects(()) == SameObjects(()) != one


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda frame: 3, "policy odd returned int \\(.*test_scheduling.py:[0-9]+\\)"),
        (lambda frame: form(1, static=1.0), r"policy odd returned rank of shape \(1,\) for 2 op"),
        (
            lambda frame: replace(form(2), static=np.array(["a", "b"])),
            r"policy odd returned static of shape \(2,\)",
        ),
    ],
)
def test_a_policy_that_returns_something_else_is_named(made: Any, text: str) -> None:
    of = frame(plan({"q": ["a", "b"]}))
    with pytest.raises(UserError, match=text):
        decision._checked(Policy("odd", made, frozenset(), "none"), of)


def test_what_is_not_finite_is_unknown_and_takes_nobody_along() -> None:
    shape = replace(form(3), static=array(1, np.inf, 3), per_second=array(1, 2, 3))
    made = decision._checked(
        Policy("odd", lambda frame: shape, frozenset(), "none"), frame(plan({"q": ["a", "b", "c"]}))
    )
    assert made.static.tolist()[::2] == [1, 3] and np.isnan(made.static[1])
    assert made.per_second.tolist() == [1, 0, 3]


def test_what_is_not_finite_keeps_its_rank() -> None:
    """Two classes: in the lower one an operator of unknown cost, and one whose cost is 0."""
    shape = replace(form(4), rank=array(0, -1, -1, np.inf), static=array(1, np.nan, np.inf, 2))
    made = decision._checked(
        Policy("odd", lambda frame: shape, frozenset(), "none"),
        frame(plan({"high": ["a"], "low": ["b", "c", "d"]})),
    )
    assert made.rank.tolist()[:3] == [0, -1, -1] and np.isnan(made.rank[3])
    assert made.static[0] == 1 and np.isnan(made.static[1:]).all()


def laid_out(topology: Topology, **rules: str) -> Layout:
    return layout_of(
        SameObjects((topology,)), Level.PHYSICAL, None, tuple((k, v) for k, v in rules.items())
    )


def test_labels_and_queries_are_of_whoever_decides_and_of_the_role_where_nobody_does() -> None:
    helper = HelperThread(Thread(1, 500, 7), "gc", None)
    layout = laid_out(plan({"q": ["a", "b"]}, helpers=(helper,)), gc="top")
    place = np.array([1, 0, -1])
    assert layout.labels_by(place) == ("q/b", "q/a", "lab:1: gc")
    assert layout.queries_by(place) == (("lab:1", "q"), ("lab:1", "q"), None)
    assert layout.only_place is not None
    assert layout.labels_by(layout.only_place) == ("q/a", "q/b", "lab:1: gc")
    assert layout.top.tolist() == [False, False, True]
    assert layout.depth.tolist() == [1, 2]


def test_only_operators_each_with_its_thread_are_straight() -> None:
    assert laid_out(plan({"q": ["a"]})).straight
    assert laid_out(plan({"q": ["a", "b"]})).straight
    assert not laid_out(plan({})).straight
    one = plan({"q": ["a", "b"]})
    crossed = replace(one.operators[0], threads=one.operators[1].threads)
    assert not laid_out(replace(one, operators=(crossed, one.operators[1]))).straight


def test_depths_count_from_the_sources_and_helpers_are_nowhere() -> None:
    serves = HelperThread(Thread(1, 500, 7), "flush", 1)
    schedule = scheduled(
        "fcfs",
        snapshot(plan({"q": ["a", "b", "c"]}, helpers=(serves,)), head_age=[1, 2, 3]),
        helpers={"flush": "follow"},
    )
    assert schedule.depth.tolist() == [1, 2, 3, 0]
    assert scheduled("fcfs", snapshot(plan({"q": ["a"]}), head_age=[1])).depth.tolist() == [1]


def test_nobody_stands_where_nothing_is_held_and_memory_is_told_the_latest_clock() -> None:
    told: list[float] = []

    def remember(of: OperatorFrame, now_s: float) -> Mapping[tuple[str, str], float]:
        told.append(now_s)
        return {}

    policy = replace(registry.policy("qs"), remembers={"x": remember})
    one = snapshot(plan({"q": ["a"]}), 5.0, queue_size=[900])
    other = snapshot(plan({"q": ["a"]}, engine="lab:2", first_tid=900), 7.0, queue_size=[1])
    schedule = scheduled(policy, one, other, standing=True)
    assert (schedule.standing, schedule.grain) == (False, None)
    scheduled(policy)
    assert told == [7.0, 0.0]


@pytest.mark.parametrize(("needs", "asked"), [("queue_size", True), ("input_rate", False)])
def test_costs_are_looked_at_where_samples_count(needs: str, asked: bool) -> None:
    seen: list[OperatorFrame] = []

    def urgency(of: OperatorFrame) -> UrgencyForm:
        seen.append(of)
        return form(len(of))

    now = snapshot(plan({"q": ["a"]}), queue_size=[2], cost=[3], input_rate=[1])
    scheduled(Policy("p", urgency, frozenset({needs}), "g"), now)
    assert ("cost" in seen[0].columns) is asked


def test_what_a_tuple_is_worth_is_told_once_one_engine_has_reports() -> None:
    one = snapshot(plan({"q": ["a"]}), 5.0, queue_size=[3], cost=[1e-3])
    other = snapshot(plan({"q": ["a"]}, engine="lab:2", first_tid=900), queue_size=[1], cost=[1])
    qs = registry.policy("qs")
    windows = {"lab:1": Window(one, lately=(one,)), "lab:2": Window(other)}
    ways = {
        name: resolve(qs.needs, window.now.columns, policy="qs", engine=name)
        for name, window in windows.items()
    }
    assert decide("main", qs, windows, ways).grain == 1.0
