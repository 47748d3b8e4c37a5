"""What a pattern means, and that it means the same wherever one may be given."""

from collections.abc import Sequence, Set

import numpy as np
import pytest

from plans import plan, snapshot
from sched_ctl.backends.scx.hints import Limits, hints
from sched_ctl.backends.scx.hints import capped as with_caps
from sched_ctl.config.settings import Section
from sched_ctl.controller.claims import Claims
from sched_ctl.controller.rule import Rule
from sched_ctl.decide.decision import decide
from sched_ctl.engines.timers import Timer
from sched_ctl.metrics.catalogue import Resolution, resolve
from sched_ctl.metrics.window import Window
from sched_ctl.model.patterns import engine_fits, first, fits, names_of
from sched_ctl.model.policy import Policy
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread
from sched_ctl.plugins import registry

ENGINE, OTHER = "lab:1", "flink:127.0.0.1:8081"
NOW = snapshot(plan({"etl": ["a"], "lr": ["a"]}, engine=ENGINE))


def test_shell_patterns() -> None:
    assert fits(["*"], "q")
    assert fits(["x", "q[12]"], "q2")
    assert not fits(["Q"], "q")
    assert not fits([], "q")
    assert not fits(["q"], "query")


@pytest.mark.parametrize("name", ["Calc[3]", "billing [v2]", "a*", "is it?"])
def test_a_name_with_signs_of_patterns_is_meant_by_itself(name: str) -> None:
    assert fits([name], name) and not fits([f"!{name}", "*"], name)
    assert not fits([name], "other")


def test_exclusions_win_and_alone_include_the_rest() -> None:
    assert not fits(["!q", "q"], "q")
    assert not fits(["*", "!q"], "q")
    assert fits(["!q"], "p")
    assert not fits(["p", "!q"], "r")
    assert not fits(["!lab:q"], *names_of(ENGINE, "q"))


def test_the_first_pattern_of_a_table_that_fits_has_it() -> None:
    table = {"!a*": 1, "ab": 2, "*": 3}
    assert [first(table, name) for name in ("b", "ab", "ac")] == [1, 2, 3]
    assert first({}, "b") is None


def test_a_declared_program_is_meant_by_its_own_name() -> None:
    names = names_of("program:cameras@1000", "front")
    for pattern in ("cameras/*", "cameras:front", "program:cameras:*", "front", "program:front"):
        assert fits((pattern,), *names), pattern
    assert not fits(("cameras/*",), *names_of("program:archive@0", "cameras"))
    assert not fits(("8081/*",), *names_of("flink:8081", "etl"))


def test_an_engine_is_meant_by_its_name_or_its_kind() -> None:
    assert all(engine_fits([p], OTHER) for p in ("flink", "flink:*", "*:8081", "!lab", OTHER))
    assert not any(engine_fits([p], OTHER) for p in ("flin", "lab", "!flink", "flink:"))


def claimed(section: Section, exclude: Sequence[str] = ()) -> tuple[Set[str], Set[Thread]]:
    """The queries that a section has, and the threads that none may have."""
    claims = Claims([section], exclude, {})
    rule = Rule(section, registry.policy("random"), "nice", Timer(1.0, 0.0))
    return claims.of(rule, ENGINE, NOW.topology), claims.spared(ENGINE, NOW.topology)


def ruled(*patterns: str) -> set[str]:
    """By the `queries` of a section."""
    return set(claimed(Section(name="r", queries=patterns))[0])


def spared(*patterns: str) -> set[str]:
    """By `exclude`."""
    left, threads = claimed(Section(name="r"), patterns)
    assert threads == {o.threads[0] for o in NOW.topology.operators if o.query not in left}
    return set(NOW.topology.queries) - left


def decided(**arguments: object) -> Schedule:
    policy = registry.policy("random")
    found: Resolution = resolve(policy.needs, (), policy="random", engine=ENGINE)
    return decide("s", policy, {ENGINE: Window(NOW)}, {ENGINE: found}, **arguments)  # type: ignore[arg-type]


def shared(pattern: str) -> set[str]:
    """By `shares`."""
    groups = decided(shares={pattern: 7.0}).groups
    return {name.partition("/")[2] for name, group in groups.items() if group.share == 7}


def capped(pattern: str) -> set[str]:
    """By `scx.caps`."""
    limits = Limits(64, 64, 2**20, 2**30, 2**20, 56, 1024)
    caps, _ = with_caps(decided(), {pattern: 3}, limits.groups)
    parts = hints(decided(), limits, caps=caps)
    return {NOW.topology.operators[row].query for part in parts if part.cap for row in part.rows}


@pytest.mark.parametrize("meaning", [ruled, spared, shared, capped])
@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("etl", {"etl"}),
        ("e?l", {"etl"}),
        ("*", {"etl", "lr"}),
        ("lab:etl", {"etl"}),
        ("lab:1:etl", {"etl"}),
        ("lab:1/etl", {"etl"}),
        ("lab:*", {"etl", "lr"}),
        ("lab:2:etl", set()),
        ("flink:*", set()),
        ("ETL", set()),
        ("!etl", {"lr"}),
        ("!lab:1:lr", {"etl"}),
    ],
)
def test_a_pattern_means_the_same_queries_everywhere(
    meaning: object, pattern: str, meant: set[str]
) -> None:
    assert meaning(pattern) == meant  # type: ignore[operator]


def test_patterns_of_policies_have_the_same_rules() -> None:
    by_hand = registry.policy("constant", {"priorities": {"!etl": 2.0, "etl/a": 3.0}})
    assert decided_by(by_hand) == {"etl": 3.0, "lr": 2.0}
    classes = registry.policy("cqc", {"weights": {"!etl": 2.0}}).groups
    assert classes is not None and classes("lab:1", "lr") == ("!etl", 2.0)
    assert classes("lab:1", "etl") == ("other", 1.0)


def decided_by(policy: Policy) -> dict[str, float]:
    found = resolve((), (), policy="constant", engine=ENGINE)
    made = decide("s", policy, {ENGINE: Window(NOW)}, {ENGINE: found})
    queries = [query[1] for query in made.queries if query is not None]
    return dict(zip(queries, np.asarray(made.form.static).tolist(), strict=True))
