"""What a schedule asks of cgroups (backends/cgroups/wanted.py)."""

import numpy as np
import pytest

from sched_ctl.backends.cgroups.wanted import SPREAD, Wanted, wanted_groups
from sched_ctl.model.policy import Spacing, form
from sched_ctl.model.schedule import Group, Schedule
from sched_ctl.model.topology import Thread

SCALE = (1, 10_000, 100)  # of cgroup v2


def schedule(priorities: list[float], groups: dict[str, Group] | None = None) -> Schedule:
    n = len(priorities)
    return Schedule(
        "s",
        "p",
        Spacing.LINEAR,
        tuple(Thread(1, 10 + row, 0) for row in range(n)),
        tuple(f"q/{row}" for row in range(n)),
        form(n, static=np.array(priorities)),
        np.zeros(n),
        np.zeros(n),
        groups or {},
        tuple(("lab:1", "q") for _ in range(n)),
    )


def test_shares_go_to_the_groups_and_whoever_is_in_none_stays_where_it_is() -> None:
    groups = {"a": Group(3.0, (0, 2)), "b": Group(1.0, (3,))}
    wanted = wanted_groups(schedule([1, 2, 3, 4], groups), SCALE, 9, by_priority=True)
    assert wanted.keys == ("a", None, "a", "b")
    assert wanted.weights["a"] == pytest.approx(3 * wanted.weights["b"], rel=0.02)


def test_without_groups_nobody_moves_where_priorities_are_for_others() -> None:
    wanted = wanted_groups(schedule([1, 2]), SCALE, 9, by_priority=False)
    assert wanted == Wanted((None, None), {})


@pytest.mark.parametrize("scale", [SCALE, (2, 262_144, 1024)])
def test_each_thread_has_a_group_of_a_weight_around_the_usual(scale: tuple[int, int, int]) -> None:
    wanted = wanted_groups(schedule([0, 1, 2]), scale, 3, by_priority=True)
    assert wanted.keys == ("q/0#10", "q/1#11", "q/2#12")
    low, middle, high = (wanted.weights[str(key)] for key in wanted.keys)
    assert low == round(scale[2] / SPREAD)
    assert middle == pytest.approx(scale[2], rel=0.02)
    assert high == scale[2] * SPREAD


def test_a_narrow_scale_is_kept() -> None:
    wanted = wanted_groups(schedule([0, 1, 2]), (50, 200, 100), 3, by_priority=True)
    weights = [wanted.weights[str(key)] for key in wanted.keys]
    assert (weights[0], weights[-1]) == (50, 200)


def test_beyond_the_most_groups_threads_of_one_level_share_one() -> None:
    """It weighs what all of them do, and there are no more levels than groups."""
    wanted = wanted_groups(
        schedule([0.0] * 3 + [1.0] * 2 + [0.49, 0.51]), SCALE, 3, by_priority=True
    )
    keys = wanted.keys
    assert len(set(keys[:3])) == len(set(keys[3:5])) == len(set(keys[5:])) == 1
    assert len(set(keys)) == 3 == len(wanted.weights)
    assert wanted.weights[str(keys[0])] == 3 * round(100 / SPREAD)
    assert wanted.weights[str(keys[3])] == 2 * 100 * SPREAD
    many = wanted_groups(schedule(np.linspace(0, 1, 200).tolist()), SCALE, 16, by_priority=True)
    assert 8 < len(many.weights) <= 17


def test_a_group_of_many_weighs_no_more_than_there_is() -> None:
    wanted = wanted_groups(schedule([1.0] * 20 + [0.0]), SCALE, 2, by_priority=True)
    assert wanted.weights[str(wanted.keys[0])] == 10_000
    assert len(wanted_groups(schedule([0.0, 1.0]), SCALE, 1, by_priority=True).weights) <= 2


def test_many_threads_of_a_level_weigh_as_much_more_each_as_few_would() -> None:
    """By thread, whatever the number; a weight below the least there is becomes that."""
    priorities = [1.0] * 250 + [0.5] * 5 + [0.0]
    wanted = wanted_groups(schedule(priorities), SCALE, 3, by_priority=True)
    top, half, last = wanted.keys[0], wanted.keys[250], wanted.keys[-1]
    each = wanted.weights[str(top)] / 250, wanted.weights[str(half)] / 5
    assert wanted.weights[str(top)] == 10_000
    assert each[0] / each[1] == pytest.approx(SPREAD, rel=0.05)
    assert wanted.weights[str(last)] == 1


def test_levels_are_as_far_apart_as_the_groups_allow() -> None:
    two, three = schedule([0.0, 1.0]), schedule([0.0, 0.5, 1.0])
    one_group = wanted_groups(two, SCALE, 1, by_priority=True)
    assert one_group == Wanted(("level 1", "level 2"), {"level 1": 12, "level 2": 800})
    levels = wanted_groups(three, SCALE, 2, by_priority=True)
    assert levels.keys == ("level 1", "level 1", "level 2")
    assert levels.weights == {"level 1": 12 + 98, "level 2": 800}
