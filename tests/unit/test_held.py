"""Decisions by samples that are held: a closed loop in which the operators must not take turns.

A diamond of operators on one CPU, whose time goes by the weights of nice values to whoever has
work. Once a second the policy is asked, and its answer stays for a second, in which an operator can
empty its queue a hundred times.
"""

from collections import deque
from itertools import pairwise

import numpy as np
import pytest

from plans import plan, snapshot
from sched_ctl.decide.decision import decide
from sched_ctl.decide.held import LONG_S, SHORT_S, steadily
from sched_ctl.metrics.catalogue import resolve
from sched_ctl.metrics.window import REPORTS, SAMPLES, Window
from sched_ctl.model.graph import Array
from sched_ctl.model.normalise import NICE_STEP, nice_levels
from sched_ctl.model.policy import form
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Snapshot, Topology
from sched_ctl.plugins import registry

NAMES = ("source", "parse", "split", "heavy", "agg", "light", "enrich", "sink")
EDGES = ((0, 1), (1, 2), (2, 3), (2, 5), (3, 4), (5, 6), (4, 7), (6, 7))
COST_S = np.array([2e-5, 4e-5, 2e-5, 2e-4, 2e-5, 4e-5, 4e-5, 2e-5])
VISITS = np.array([1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 1.0])  # of each arrival
# What becomes of the queues for each tuple that an operator is done with
MOVED = -np.eye(len(NAMES))
for source, target in EDGES:
    MOVED[source, target] = 0.5 if source == 2 else 1.0  # the split sends each tuple one way
HOLD_S, STEP_S = 1.0, 0.01
ROUNDS = 30  # in which what is left of a step goes to those that still have work
PASSES = 40
SETTLED = REPORTS  # passes
OF_SAMPLES = sorted(name for name in registry.policies() if registry.policy(name).needs & SAMPLES)


class Node:
    """Fluid queues in steps of `STEP_S`. Weights: of who has work, as the fair class has it."""

    def __init__(self, load: float, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.rate = load / float(COST_S @ VISITS)
        self.queue = np.zeros(len(NAMES))
        self.done = np.zeros(len(NAMES))

    def run(self, weight: Array) -> None:
        for _ in range(round(HOLD_S / STEP_S)):
            # Bursts, as an engine's own pauses make them
            self.queue[0] += self.random.poisson(self.rate * STEP_S / 8) * 8
            left_s = STEP_S
            for _ in range(ROUNDS):
                ready = weight * (self.queue > 1e-6)
                total = ready.sum()
                if left_s < 0.02 * STEP_S or not total:
                    break
                left_s -= self._work(ready * (left_s / total))

    def _work(self, cpu_s: Array) -> float:
        done = np.minimum(cpu_s / COST_S, self.queue)
        self.queue += done @ MOVED
        self.done += done
        return float(done @ COST_S)

    def read(self, topology: Topology, time_s: float) -> Snapshot:
        return snapshot(
            topology,
            time_s,
            queue_size=np.floor(self.queue).tolist(),
            tuples_in=self.done.tolist(),
            tuples_out=self.done.tolist(),
            cpu_time=(self.done * COST_S).tolist(),
        )


def loop(policy_name: str, load: float, *, reports: int) -> list[Schedule]:
    """The schedules of a minute, without the first few."""
    topology = plan({"q": NAMES}, EDGES)
    policy = registry.policy(policy_name)
    node, before = Node(load, 5), None
    seen: deque[Snapshot] = deque(maxlen=max(REPORTS, 6))
    provides = frozenset({"queue_size", "tuples_in", "tuples_out", "cpu_time"})
    wants = policy.wants | {"cost"}
    resolution = resolve(policy.needs, provides, policy=policy_name, engine="lab:1", wants=wants)
    weight = np.ones(len(NAMES))
    found = []
    for at in range(PASSES):
        node.run(weight)
        seen.append(node.read(topology, at * HOLD_S))
        lately = tuple(seen)[-reports:] if reports > 1 else ()
        window = Window(seen[-1], seen[0], policy.level, lately=lately)
        made = decide(
            "s",
            policy,
            {"lab:1": window},
            {"lab:1": resolution},
            standing=before is not None and before.standing,
        )
        weight = NICE_STEP ** -np.rint(nice_levels(made, 0, 10))
        found.append(made)
        before = made
    return found[SETTLED:]


def turns(schedules: list[Schedule]) -> float:
    """In which part of the passes none of those on top was on top a pass before."""
    tops = []
    for schedule in schedules:
        nice = np.rint(nice_levels(schedule, 0, 10))
        tops.append(set(np.flatnonzero(nice == nice[1:].min()).tolist()) - {0})
    return float(np.mean([not before & now for before, now in pairwise(tops)]))


def test_one_sample_that_is_held_makes_them_take_turns() -> None:
    assert turns(loop("qs", 0.95, reports=1)) > 0.5  # so the loop below is one that may swing


@pytest.mark.parametrize("load", [0.95, 1.1])
@pytest.mark.parametrize("policy", OF_SAMPLES)
def test_the_top_does_not_alternate(policy: str, load: float) -> None:
    assert turns(loop(policy, load, reports=REPORTS)) <= 0.25


def test_queues_stand_by_the_time_they_take_and_until_they_are_short() -> None:
    sizes = form(2, per_tuple=1.0)
    nothing = np.full(2, np.nan)
    cost = np.array([2e-4, np.nan])

    def stands(queue: float, cost_s: Array | None, stood: bool) -> bool:
        return steadily(sizes, nothing, np.array([queue, 0.0]), cost_s, stood)[0]

    for queue, stood, expected in [(40, False, False), (60, False, True), (40, True, True)]:
        assert stands(queue, cost, stood) is expected, queue
    assert not stands(9, cost, True)
    assert stands(150, None, False) and not stands(90, None, False)  # of a usual cost
    assert SHORT_S < LONG_S
    assert steadily(form(2, static=1.0), nothing, nothing, cost, True) == (False, None)
    ages = form(2, per_second=5.0)
    assert steadily(ages, np.array([0.2, 0.0]), nothing, None, False)[0]
    assert steadily(ages, nothing, nothing, cost, False) == (False, 5.0 * 2e-4)


def test_samples_are_means_over_reports_where_a_decision_is_held() -> None:
    topology = plan({"q": ["a", "b"]})
    seen = tuple(
        snapshot(topology, float(at), queue_size=[at, np.nan], tuples_in=[at, 0]) for at in range(4)
    )
    window = Window(seen[-1], seen[0], lately=seen)
    assert window.value("queue_size")[0] == 1.5 and np.isnan(window.value("queue_size")[1])
    assert window.value("tuples_in")[0] == 3
    assert Window(seen[-1], seen[0]).value("queue_size")[0] == 3
    other = plan({"q": ["a", "b"]})
    assert Window(snapshot(other, 9.0, queue_size=[7, 1]), lately=seen).value("queue_size")[0] == 7


def test_what_a_tuple_is_worth_is_the_usual_of_all_that_wait_by_something() -> None:
    none = np.full(3, np.nan)
    shape = form(3, per_tuple=np.array([1.0, 2.0, 0.0]))
    assert steadily(shape, none, np.ones(3), None, False) == (False, 1.5)
    aged = form(3, per_second=np.array([1.0, 2.0, 3.0]))
    assert steadily(aged, none, np.ones(3), np.array([0.5, np.nan, 0.5]), False)[1] == 1.0
    assert steadily(aged, none, np.ones(3), None, False)[1] == pytest.approx(2e-4)
    assert steadily(form(3, static=1.0), none, np.ones(3), None, True) == (False, None)


def test_an_unknown_cost_is_as_the_others_and_unknown_queues_are_told_by_their_age() -> None:
    shape, age = form(2, per_tuple=1.0), np.array([0.0, LONG_S * 1.01])
    queue = np.array([1.0, 3.0])
    assert steadily(shape, age, queue, np.array([LONG_S / 2.9, np.nan]), False)[0]
    assert not steadily(shape, age, queue, np.array([LONG_S / 3.1, np.nan]), False)[0]
    assert steadily(shape, age, queue, np.array([LONG_S / 2.9, 0.0]), False)[0]
    nothing = np.full(2, np.nan)
    assert steadily(shape, age, nothing, None, False)[0]
    assert not steadily(shape, age / 2, nothing, None, False)[0]
    assert steadily(shape, age, np.array([np.nan, 1.0]), None, False) == (False, 1.0)


def test_a_queue_of_just_the_bound_does_not_stand_and_who_waits_by_nothing_is_not_asked() -> None:
    nothing, sizes = np.full(2, np.nan), form(2, per_tuple=np.array([0.0, 4.0]))
    for queue, stood in ((100.0, False), (20.0, True)):
        assert steadily(sizes, nothing, np.array([queue, 0.0]), None, stood) == (False, 4.0)
        assert steadily(sizes, nothing, np.array([queue + 0.1, 0.0]), None, stood)[0]


def test_two_reports_are_enough_for_a_mean() -> None:
    topology = plan({"q": ["a"]})
    seen = tuple(snapshot(topology, float(at), queue_size=[at]) for at in (3, 5))
    assert Window(seen[-1], seen[0], lately=seen).value("queue_size").tolist() == [4]
