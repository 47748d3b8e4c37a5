"""Averages are kept for a fifth of their window, and nothing that tells of now ever is."""

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from fakes import FakeBackend, FakeEngine, backends, drive
from numpy.testing import assert_allclose

from plans import plan, snapshot
from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.metrics.averages import LONGEST_S, PARTS, Averages, window
from sched_ctl.metrics.catalogue import Resolution, evaluate, resolve
from sched_ctl.model.policy import Level
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Snapshot, Topology

NEEDS = frozenset({"global_cost", "queue_size", "head_age", "utilisation"})
PROVIDES = frozenset({"tuples_in", "tuples_out", "cpu_time", "queue_size"})
CHAIN = plan({"q": ["a", "b"]})


def resolution(needs: frozenset[str] = NEEDS, provides: frozenset[str] = PROVIDES) -> Resolution:
    return resolve(needs, provides, policy="p", engine="e")


def at(time_s: float, topology: Topology = CHAIN, cost_s: float = 1e-3) -> Snapshot:
    """100 tuples a second, half of which go on, and as many wait as seconds have passed."""
    n = 100 * time_s
    return snapshot(
        topology,
        time_s,
        tuples_in=[n, n / 2],
        tuples_out=[n / 2, n / 2],
        cpu_time=[cost_s * n, cost_s * n / 2],
        queue_size=[time_s, time_s],
    )


def looked(
    now: Snapshot, then: Snapshot | None, before: Averages | None, made: Resolution
) -> tuple[dict[str, np.ndarray], Averages]:
    at_now, averages = window(now, then, Level.PHYSICAL, None, made, before)
    return dict(evaluate(made, at_now)), averages


def test_what_is_an_average() -> None:
    made = resolution()
    assert made.averaged == {
        "cost", "selectivity", "global_cost", "input_rate", "utilisation"
    }  # fmt: skip
    given = resolution(frozenset({"global_cost"}), PROVIDES | {"cost"})
    assert given.averaged == {"selectivity"}  # what the engine says of itself is of now
    worked_out = replace(given, derived={"cost": "how", "tuples_in": "how", "queue_size": "how"})
    assert worked_out.averaged == {"selectivity", "cost", "global_cost"}


def test_averages_hold_for_a_part_of_their_window_and_queues_never() -> None:
    made = resolution()
    first, averages = looked(at(14.0), at(10.0), None, made)
    assert_allclose(first["cost"], 1e-3)
    part_s = 4.0 / PARTS
    # A cost that has doubled since shows when the part is over, a queue at once.
    soon, same = looked(at(14.0 + 0.9 * part_s, cost_s=2e-3), at(10.0), averages, made)
    assert same is averages
    assert soon["global_cost"] is first["global_cost"]
    assert_allclose(soon["queue_size"], 14.0 + 0.9 * part_s)
    later, new = looked(at(14.0 + 1.1 * part_s, cost_s=2e-3), at(10.0), averages, made)
    assert new is not averages
    assert (later["cost"] > first["cost"]).all()


def test_long_windows_hold_no_longer_than_somebody_would_wait() -> None:
    made = resolution()
    _, averages = looked(at(700.0), at(100.0), None, made)
    assert looked(at(700.0 + 0.9 * LONGEST_S), at(100.0), averages, made)[1] is averages
    assert looked(at(700.0 + 1.1 * LONGEST_S), at(100.0), averages, made)[1] is not averages


@pytest.mark.parametrize("change", ["topology", "resolution", "columns", "no window"])
def test_what_makes_them_another_thing(change: str) -> None:
    made, now, then = resolution(), at(14.01), at(10.0)
    _, averages = looked(at(14.0), then, None, made)
    assert looked(now, then, averages, made)[1] is averages
    if change == "topology":
        now = at(14.01, plan({"q": ["a", "b"]}))
    elif change == "resolution":
        made = resolution()
    elif change == "columns":
        now = Snapshot(now.topology, now.time_s, {**now.columns, "latency": np.ones(2)})
    old = None if change == "no window" else then
    assert looked(now, old, averages, made)[1] is not averages


@pytest.mark.parametrize(
    ("policy", "anew"),
    [
        ("hr", False),
        ("light-first", False),
        ("auto", False),
        ("qs", True),
        ("fcfs", True),
        ("random", True),
    ],
)
def test_a_schedule_is_made_anew_where_it_may_be_another(policy: str, anew: bool) -> None:
    """hr goes by averages alone, others by what waits, or by chance. A calm race needs no more."""
    left_out, schedules, polls = looked_at(FakeEngine(queries={"a": 2, "b": 2}), policy)
    if anew:
        assert all(one is not other for one, other in itertools.pairwise(schedules))
    # Neither made nor is the engine asked while the last one is as good.
    assert left_out == 0 if anew else left_out > 40, (left_out, polls)


def looked_at(engine: FakeEngine, policy: str) -> tuple[int, list[Schedule], int]:
    """Passes left out of 120, the last schedules, and how often the engine was asked."""
    backend = FakeBackend()
    settings = Settings(
        policy=(Section(policy=policy),),
        period=0.01,
        calm_period=0,
        cpu_limit=0,
        discover=5,
        window=100,
    )
    controller = Controller(settings, FakeEngine.kind(engine), backends(backend))

    async def script() -> None:
        # A part of the window is longer than a period as soon as the window is 50 ms long.
        while controller.rules[0].passes + controller.pace.rested <= 120:
            await asyncio.sleep(0.01)

    drive(controller, script)
    return controller.pace.rested, backend.schedules[-30:], engine.polls


class Working(FakeEngine):
    """One that works out what its operators cost, as drivers of wake-ups do."""

    derived: Mapping[str, str] = MappingProxyType({"cost": "by its wake-ups"})

    def poll(self, timeout_s: float) -> Snapshot:
        now = super().poll(timeout_s)
        return replace(now, columns={**now.columns, "cost": np.arange(1.0, 5.0)})


def test_passes_are_left_out_too_where_the_driver_works_out_costs() -> None:
    engine = Working(queries={"a": 2, "b": 2})
    engine.provides |= {"cost"}
    left_out, _, polls = looked_at(engine, "min-cost")
    assert left_out > 40, (left_out, polls)
