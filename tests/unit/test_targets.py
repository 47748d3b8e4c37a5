"""Targets: how they are stated, who can meet them, what `deadline` does, in closed loop."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from typer.testing import CliRunner

from plans import frame, plan
from sched_ctl.adapt.race import Objective
from sched_ctl.cli import make_app
from sched_ctl.config.dump import dump
from sched_ctl.config.files import load
from sched_ctl.config.settings import ConfigError, Section, Settings, resolve
from sched_ctl.controller.rule import make_policy
from sched_ctl.errors import UserError
from sched_ctl.metrics import feasibility
from sched_ctl.metrics.feasibility import Judgement, Load, Standing, feasible
from sched_ctl.model.graph import Array
from sched_ctl.model.normalise import positions
from sched_ctl.model.policy import OperatorFrame
from sched_ctl.model.targets import Target, duration, parsed, target_of
from sched_ctl.model.topology import Edge, LogicalOperator, PhysicalOperator, Topology
from sched_ctl.plugins import registry
from sched_ctl.sim import Node, Setting, simulate
from sched_ctl.sim import Stream as Feed

NAN = float("nan")
MEETS, LATE, OVER = Standing.MEETS, Standing.LATE, Standing.OVER


def target(pattern: str, latency: str, **more: float) -> Target:
    return Target(queries=(pattern,), latency=latency, **more)


# --- as the user states them ---


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50ms", 0.05), ("2s", 2), ("1.5 s", 1.5), ("250us", 250e-6), ("2min", 120), ("1e2ms", 0.1)],
)
def test_a_latency_has_a_unit(text: str, seconds: float) -> None:
    assert_allclose(duration(text), seconds)


@pytest.mark.parametrize("text", ["", "50", "0s", "-1s", "nan", "nanms", "inf s", "2 days", "25h"])
def test_what_is_no_latency_is_refused(text: str) -> None:
    with pytest.raises(UserError) as error:
        duration(text)
    assert error.value.hint


def test_a_hint_names_each_unit_as_it_is_typed() -> None:
    with pytest.raises(UserError) as error:
        duration("soon")
    assert error.value.hint is not None and "us" in error.value.hint
    assert "µs" not in error.value.hint


def test_a_target_of_the_command_line() -> None:
    assert parsed("alarm*=50ms") == {"queries": ["alarm*"], "latency": "50ms"}
    assert parsed("flink:a=b=2s,weight=3,share=0.9") == {
        "queries": ["flink:a=b"],
        "latency": "2s",
        "weight": 3,
        "share": 0.9,
    }
    for text in ("alarm", "=50ms", "alarm=", "a=1s,wieght=2", "a=1s,share", "a=1s,share=much"):
        with pytest.raises(UserError):
            parsed(text)


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("queries = ['a']", "latency", None),
        ("latency = '1s'", "queries", None),
        ("queries = ['a']\nlatency = 50", r"target\[0\].latency", "unit"),
        ("queries = ['a']\nlatency = '0ms'", r"target\[0\].latency", "50ms"),
        ("queries = ['a']\nlatency = '-2s'", r"target\[0\].latency", "50ms"),
        ("queries = ['a']\nlatency = '5 sec'", r"target\[0\].latency: .* 'sec'", "the units"),
        ("queries = ['a']\nlatency = '1s'\nshare = nan", "share", None),
        ("queries = ['a']\nlatency = '1s'\nshare = 99", "share", "share of the tuples"),
        ("queries = ['a']\nlatency = '1s'\nweight = 0", "weight", "larger weight"),
        ("queries = ['a']\nlatency = '1s'\nlatancy = '2s'", "latancy", "did you mean latency"),
        ("queries = []\nlatency = '1s'", "queries", None),
        ("queries = ['']\nlatency = '1s'", "queries: an empty", "pattern"),
        (
            "queries = ['a']\nlatency = '1s'\n[[target]]\nqueries = ['a']\nlatency = '2s'",
            r"target\[1\].queries: a has a target already",
            "leave one",
        ),
    ],
)
def test_a_bad_section_is_told_with_its_place(
    tmp_path: Path, text: str, key: str, hint: str | None
) -> None:
    file = tmp_path / "sched-ctl.toml"
    for section in ("target", "policy.target"):
        head = "[[policy]]\n" if section != "target" else ""
        file.write_text(head + f"[[{section}]]\n" + text.replace("[[target]]", f"[[{section}]]"))
        with pytest.raises(ConfigError, match=key) as error:
            load(file)
        assert str(file) in error.value.message
        assert hint is None or hint in (error.value.hint or "")


def test_flags_go_before_files_and_a_section_before_both(tmp_path: Path) -> None:
    file = tmp_path / "sched-ctl.toml"
    file.write_text("[[target]]\nqueries = ['a']\nlatency = '1s'\n")
    assert resolve(load(file))[0].target == (target("a", "1s"),)
    given = load(file, {"target": [parsed("b=2s")]})
    assert resolve(given)[0].target == (target("b", "2s"),)
    again = tmp_path / "again.toml"
    again.write_text(dump(given))
    assert load(again) == given
    file.write_text("[[policy]]\n[[policy.target]]\nqueries = ['c']\nlatency = '3s'\n")
    assert resolve(load(file))[0].target == (target("c", "3s"),)
    assert resolve(load(file, {"target": [parsed("b=2s")]}))[0].target == (target("b", "2s"),)


def test_the_command_line_says_what_is_wrong() -> None:
    for text, words in (("a=5", "unit"), ("a", "QUERIES=LATENCY"), ("a=1s,share=2", "share")):
        result = CliRunner().invoke(make_app(), ["config", "--target", text])
        assert isinstance(result.exception, ConfigError)
        assert words in f"{result.exception.message} {result.exception.hint}"


def test_of_several_the_first_that_fits_counts() -> None:
    some = (target("alarm1", "10ms"), target("alarm*", "50ms"), target("flink:*", "1s"))
    assert target_of(some, "alarm1") is some[0]
    assert target_of(some, "alarm2") is some[1]
    assert target_of(some, "bulk", "flink:bulk") is some[2]
    assert target_of(some, "bulk") is None


def test_auto_is_deadline_where_there_are_targets() -> None:
    [section] = resolve(Settings(target=(target("a", "1s"),)))
    for backend, others in (("scx", "balanced"), ("nice", "light-first")):
        policy = make_policy(section, backend)
        assert (policy.name, policy.options["others"]) == ("deadline", others)
        assert policy.options["targets"] == section.target
    assert make_policy(resolve(Settings())[0], "scx").name == "balanced"
    named = Settings(policy=(Section(policy="hr"),), target=(target("a", "1s"),))
    assert make_policy(resolve(named)[0], "scx").name == "hr"


@pytest.mark.parametrize(
    ("objective", "behind"), [("all", True), ("median", True), ("mean", False)]
)
def test_auto_lets_half_of_all_tuples_pay_where_the_mean_is_asked_for(
    objective: Objective, behind: bool
) -> None:
    [section] = resolve(Settings(objective=objective))
    fork = plan({"q": ["source", "dear", "cheap"]}, [(0, 1), (0, 2)])
    needs = ("cost", "selectivity", "global_cost", "global_selectivity", "ideal_time")
    of = frame(fork, **{name: [1.0, 9.0, 1.0] for name in needs})
    ranks = make_policy(section, "scx").urgency(of).rank.tolist()
    assert ranks == ([1, 0, 1] if behind else [0, 0, 0])
    assert make_policy(section, "nice").name == "light-first"


# --- who can meet them ---


def asked(**queries: Load) -> dict[feasibility.Query, Load]:
    return {("e", name): load for name, load in queries.items()}


def standings(judged: Mapping[feasibility.Query, Judgement]) -> dict[str, Standing]:
    return {name: judgement.standing for (_, name), judgement in judged.items()}


def test_all_meet_where_the_cpus_are_enough() -> None:
    some = asked(a=Load(0.05, cpus=0.5), b=Load(2, cpus=0.4))
    judged = feasible(some, 1.0, {})
    assert standings(judged) == {"a": MEETS, "b": MEETS}
    assert not any(judgement.why for judgement in judged.values())


def test_past_saturation_the_weight_decides_and_then_who_needs_less() -> None:
    some = asked(a=Load(0.05, cpus=0.7), b=Load(0.05, cpus=0.5), c=Load(0.05, cpus=0.3))
    judged = feasible(some, 1.0, {})
    assert standings(judged) == {"c": MEETS, "b": MEETS, "a": OVER}
    assert "0.70 CPUs" in judged["e", "a"].why and "0.67 CPUs more" in judged["e", "a"].why
    some["e", "a"] = Load(0.05, weight=2, cpus=0.7)
    assert standings(feasible(some, 1.0, {})) == {"a": MEETS, "c": MEETS, "b": OVER}


def test_who_could_meet_its_target_before_stays_and_noise_moves_nobody() -> None:
    before: Mapping[feasibility.Query, Standing] = {}
    random = np.random.default_rng(1)
    seen = set()
    for _ in range(200):
        noise = 1 + random.uniform(-0.04, 0.04, 2)
        some = asked(a=Load(0.05, cpus=0.52 * noise[0]), b=Load(0.05, cpus=0.52 * noise[1]))
        judged = feasible(some, 1.0, before)
        before = {query: judgement.standing for query, judgement in judged.items()}
        seen.add(tuple(sorted(standings(judged).items())))
    # From the first time that they were too much it is the same one, who comes back only with room.
    assert len(seen) <= 2
    [over] = [query for query, standing in before.items() if standing is OVER]
    for cpus, expected in ((0.46, OVER), (0.35, MEETS)):
        some = {query: Load(0.05, cpus=cpus if query == over else 0.5) for query in before}
        assert feasible(some, 1.0, before)[over].standing is expected


def test_a_path_that_takes_longer_than_the_target() -> None:
    judged = feasible(asked(a=Load(0.01, path_s=0.012), b=Load(0.05, cpus=0.9)), 1.0, {})
    assert standings(judged) == {"a": OVER, "b": MEETS}
    assert "target above 13.3 ms" in judged["e", "a"].why


def test_an_operator_that_needs_more_than_its_thread() -> None:
    judged = feasible(asked(a=Load(0.05, cpus=1.5, widest=1.4)), 4.0, {})
    assert standings(judged) == {"a": OVER}
    assert "2 replicas" in judged["e", "a"].why


def test_who_is_late_goes_behind_those_that_it_would_make_late() -> None:
    late = Load(0.05, cpus=0.3, work_s=0.6, slack_s=-0.5)
    other = Load(0.05, cpus=0.3, slack_s=0.04)
    judged = feasible(asked(a=late, b=other), 1.0, {})
    assert standings(judged) == {"a": LATE, "b": MEETS}
    assert "catches up" in judged["e", "a"].why
    # It stays behind until it has caught up, and has been for a while.
    before = {query: judgement.standing for query, judgement in judged.items()}
    nearly = replace(late, work_s=0.01, slack_s=0.01)
    assert standings(feasible(asked(a=nearly, b=other), 1.0, before))["a"] is LATE
    done = replace(late, work_s=0.01, slack_s=0.03)
    assert standings(feasible(asked(a=done, b=other), 1.0, before))["a"] is MEETS
    # No need where nobody suffers: nobody else, who can wait, or who weighs less.
    for others in ({}, {"b": replace(other, slack_s=10.0)}, {"b": replace(other, weight=0.5)}):
        assert standings(feasible(asked(a=late, **others), 1.0, {}))["a"] is MEETS
        # Nor to wait for itself, once its own tuples are in time again.
        assert standings(feasible(asked(a=nearly, **others), 1.0, before))["a"] is MEETS


@pytest.mark.parametrize(
    ("work_s", "told"), [(0.6, "600 ms"), (9.28, "9.28 s"), (12345.0, "12345 s")]
)
def test_a_backlog_is_told_without_an_exponent(work_s: float, told: str) -> None:
    late = Load(0.05, cpus=0.3, work_s=work_s, slack_s=-0.5)
    judged = feasible(asked(a=late, b=Load(0.05, cpus=0.3, slack_s=0.04)), 1.0, {})
    assert judged["e", "a"].why.startswith(f"its backlog of {told} of CPU time")


def test_of_two_that_are_late_the_larger_backlog_waits() -> None:
    some = asked(
        a=Load(0.05, cpus=0.3, work_s=0.6, slack_s=-0.5),
        b=Load(0.05, cpus=0.3, work_s=0.01, slack_s=-0.001),
    )
    assert standings(feasible(some, 1.0, {})) == {"a": LATE, "b": MEETS}


def test_loads_by_hand() -> None:
    """Two operators of 1 and 2 ms, half of the tuples pass; 100 a second, or as they wait."""
    queries = plan({"q": ["a", "b"], "r": ["c"]})
    shown: dict[str, list[float]] = {
        "cost": [1e-3, 2e-3, 1e-3],
        "path_cost": [3e-3, 2e-3, 1e-3],
        "selectivity": [0.5, 1, 1],
        "global_cost": [2e-3, 2e-3, 1e-3],
        "input_rate": [100, 50, 7],
        "queue_size": [4, 10, 9],
        "head_age": [0.01, 0.02, 0.5],
    }
    targets = (target("q", "50ms", weight=3),)
    found = feasibility.loads(frame(queries, **shown), ["lab:1"], targets)
    load = found.pop(("lab:1", "q"))
    assert not found
    assert (load.latency_s, load.weight, load.path_s) == (0.05, 3, 3e-3)
    assert_allclose(load.cpus, 100 * 1e-3 + 50 * 2e-3)
    assert_allclose(load.widest, 0.1)
    assert_allclose(load.work_s, 4 * 2e-3 + 10 * 2e-3)
    assert_allclose(load.slack_s, 0.05 - 0.022)
    # 1000 tuples came in the last 2 s: 500 a second, of which 100 were taken.
    shown |= {"queue_size": [1000, 0, 0], "head_age": [2.0, 0, 0]}
    load = feasibility.loads(frame(queries, **shown), ["lab:1"], targets)["lab:1", "q"]
    assert_allclose(load.cpus, 500 * 1e-3 + 250 * 2e-3)
    assert_allclose(load.slack_s, 0.05 - 2.003)


def test_who_catches_up_needs_no_more_than_what_comes() -> None:
    """It took 1000 tuples a second, of which 100 came: it was told that it needs ten times that."""
    queries = plan({"q": ["a", "b"]})
    shown: dict[str, list[float]] = {
        "cost": [1e-3, 1e-3],
        "path_cost": [2e-3, 1e-3],
        "selectivity": [1, 1],
        "global_cost": [2e-3, 1e-3],
        "input_rate": [1000, 1000],
        "queue_size": [500, 0],
        "head_age": [5.0, 0.0],
    }
    asked = [frame(queries, **shown, **more) for more in ({}, {"arrival_rate": [100, 1000]})]
    judged = [
        feasibility.judge(of, ["lab:1"], (target("q", "50ms"),), 1.0, {})["lab:1", "q"]
        for of in asked
    ]
    assert [one.standing for one in judged] == [OVER, MEETS]
    assert_allclose(judged[1].load.cpus, 0.2)
    assert "arrival_rate" in registry.policy("deadline", {"targets": TARGETS}).wants


def test_what_is_beyond_all_floats_is_unknown_and_takes_no_other_query_along() -> None:
    """`a` makes so much of each tuple that its path has no number, `b` needs more than there is."""
    queries = plan({"a": ["x", "y", "z"], "b": ["w"]})
    shown: dict[str, list[float]] = {
        "cost": [0.0, 1e-3, 0.0, 0.5],
        "path_cost": [np.inf, np.inf, 0.0, 0.5],
        "selectivity": [1e200, 1e200, 1, 1],
        "global_cost": [np.inf, np.inf, 0.0, 0.5],
        "input_rate": [10, 10, 10, 4],
        "queue_size": [0, 1e9, 0, 1],
    }
    targets = (target("a", "50ms", weight=2), target("b", "5s"))
    for largest in (1e200, 1e300):
        shown["selectivity"] = [largest, largest, 1, 1]
        judged = feasibility.judge(frame(queries, **shown), ["lab:1"], targets, 1.0, {})
        load = judged["lab:1", "a"].load
        assert np.isfinite([load.path_s, load.cpus, load.widest, load.work_s, load.slack_s]).all()
        assert judged["lab:1", "b"].standing is OVER


def test_of_guesses_what_is_used_counts_and_no_queue() -> None:
    """The milliseconds since a thread slept are no queue: 4 ms a wake-up, awake for 2 s."""
    queries = plan({"q": ["a", "b"]})
    shown: dict[str, list[float]] = {
        "cost": [4e-3, 2e-3],
        "path_cost": [0.3, 0.2],
        "selectivity": [5, 1],
        "global_cost": [1, 1],
        "input_rate": [30, 20],
        "queue_size": [2000, 2000],
        "head_age": [2.0, 2.0],
    }
    asked = (frame(queries, **shown), ["kernel:1"], (target("q", "50ms"),))
    assert feasibility.loads(*asked)["kernel:1", "q"].widest > 4
    load = feasibility.loads(*asked, guessed=["kernel:1"])["kernel:1", "q"]
    assert_allclose((load.cpus, load.widest), (30 * 4e-3 + 20 * 2e-3, 0.12))
    assert (load.path_s, load.work_s) == (0, 0)
    stands = feasible({("kernel:1", "q"): load}, 1.0, {})["kernel:1", "q"].standing
    assert stands is MEETS, "it is judged by what comes of it"


# --- the policy ---

QUERIES = plan({"alarm": ["a", "b"], "billing": ["c"], "bulk": ["d"], "hopeless": ["e"]})
TARGETS = (target("alarm", "50ms"), target("billing", "20s"), target("hopeless", "1ms"))


def shown(age: list[float], **more: list[float]) -> OperatorFrame:
    columns: dict[str, list[float]] = {
        "cost": [1e-3, 2e-3, 5e-3, 4e-3, 2e-3],
        "path_cost": [3e-3, 2e-3, 5e-3, 4e-3, 2e-3],
        "selectivity": [1, 1, 1, 1, 1],
        "global_cost": [3e-3, 2e-3, 5e-3, 4e-3, 2e-3],
        "global_selectivity": [1, 1, 1, 1, 1],
        "ideal_time": [3e-3, 3e-3, 5e-3, 4e-3, 2e-3],
        "input_rate": [10, 10, 10, 100, 1],
        "queue_size": [1, 1, 1, 1, 1],
        "head_age": age,
    }
    return frame(QUERIES, **{**columns, **more})


def deadline(of: OperatorFrame, age: list[float]) -> tuple[Array, Array]:
    form = registry.policy("deadline", {"targets": TARGETS}).urgency(of)
    return form.rank, form.at(np.array(age), np.ones(len(age)))


def test_the_urgency_is_less_slack_by_hand() -> None:
    age = [0.01, 0.03, 11.0, 9.0, 0.0]
    rank, urgency = deadline(shown(age), age)
    # slack = target - age - rest of the path, billing has less than half of its target left
    assert_allclose(-urgency[:3], [0.05 - 0.01 - 3e-3, 0.05 - 0.03 - 2e-3, 20 - 11 - 5e-3])
    assert rank[0] == rank[1] == rank[2] > rank[3] == rank[4]


def test_others_share_what_is_left_by_their_own_policy() -> None:
    """With who is in no danger, and who cannot meet its target."""
    age = [0.01, 0.03, 1.0, 9.0, 0.0]
    of = shown(age)
    rank, urgency = deadline(of, age)
    assert rank[0] == rank[1] > rank[2] == rank[3] == rank[4]
    balanced = registry.policy("balanced").urgency(of).at(np.array(age), np.ones(5))
    assert_allclose(urgency[2:], balanced[2:])


@pytest.mark.parametrize("others", ["min-memory", "hr", "chain"])
def test_by_nice_others_keep_the_order_of_their_policy(others: str) -> None:
    """Six operators a factor of ten apart, one of which frees no memory, below one of a target."""
    queries = plan({"alarm": ["a"], **{f"q{i}": [f"o{i}"] for i in range(6)}})
    cost = [1e-3, *(10.0**-i for i in range(6))]
    selectivity = [1.0, *[0.5] * 5, 1.5]
    of = frame(
        queries,
        cost=cost,
        selectivity=selectivity,
        global_selectivity=selectivity,
        global_cost=cost,
        ideal_time=cost,
        path_cost=cost,
        tuple_size=[1.0] * 7,
        input_rate=[1.0] * 7,
        queue_size=[1.0] * 7,
        head_age=[0.0] * 7,
    )
    none = np.zeros(7)
    named = registry.policy(others)
    alone = positions(named.urgency(of), none, none, named.spacing)[1:]
    options = {"targets": (target("alarm", "50ms"),), "others": others}
    policy = registry.policy("deadline", options)
    place = positions(policy.urgency(of), none, none, policy.spacing)
    assert place[0] == 1, "what has a target is above all"
    scale = np.ptp(place[1:]) / np.ptp(alone)
    assert_allclose(place[1:] - place[1:].min(), scale * (alone - alone.min()))
    assert scale > 0.3


def test_who_is_late_is_between_by_weight() -> None:
    of = shown([0.0] * 5)
    columns = {
        feasibility.LATENCY: np.array([0.05, 0.05, 2, 2, 2]),
        feasibility.STANDING: np.array([MEETS, MEETS, LATE, LATE, OVER], dtype=float),
        feasibility.WEIGHT: np.array([1.0, 1, 1, 5, 9]),
    }
    of = replace(of, columns={**of.columns, **columns})
    rank, _ = deadline(of, [0.0] * 5)
    # Behind those of its weight or more, before those of less.
    assert rank[3] > rank[0] == rank[1] > rank[2] > rank[4]


def test_what_is_unknown_takes_no_target_away() -> None:
    age = [NAN] * 5
    of = shown(age, path_cost=[NAN] * 5, cost=[NAN] * 5)
    form = registry.policy("deadline", {"targets": TARGETS}).urgency(of)
    assert_allclose(form.static[:2], -0.05)
    assert (form.rank[:2] > form.rank[2:4].max()).all()


def test_options_that_mean_nothing_are_refused() -> None:
    for options in (
        {"targets": [{"queries": ["a"], "latency": "0s"}]},
        {"targets": [{"queries": ["a"], "latency": "1s"}] * 2},
        {"others": "deadline"},
        {"others": "no-such"},
    ):
        with pytest.raises(UserError):
            registry.policy("deadline", options)


# --- in closed loop ---


def node(costs: Mapping[str, float], rates: Mapping[str, float | Array]) -> Node:
    """A query of one operator each."""
    operators = tuple(PhysicalOperator(name, "o", ("o",)) for name in costs)
    logical = tuple(LogicalOperator(name, "o") for name in costs)
    edges: tuple[Edge, ...] = ()
    n = len(costs)
    feeds = tuple(
        Feed((row,), rate)
        if isinstance(rate := rates[name], float)
        else Feed((row,), len(rate) / 20.0, times=rate)
        for row, name in enumerate(costs)
    )
    return Node(
        "targets",
        Topology("sim", operators, edges, logical, edges),
        np.array(list(costs.values())),
        np.ones(n),
        np.zeros(n),
        np.zeros(n),
        np.zeros(n),
        feeds,
    )


def hits(
    of: Node,
    policy: str,
    latency_s: Mapping[str, float],
    scheduler: str = "user",
    **options: object,
) -> dict[str, float]:
    """Share of the tuples of each query within the latency."""
    setting = Setting(scheduler=scheduler, duration_s=20, warm_s=2, seed=3, record=100_000)
    found = simulate(of, registry.policy(policy, options), setting).record
    row, took = found[:, 0].astype(int), found[:, 2] - found[:, 1]
    names = [operator.query for operator in of.topology.operators]
    return {
        name: float((took[row == names.index(name)] <= latency).mean())
        for name, latency in latency_s.items()
    }


@pytest.mark.needs("cc")
@pytest.mark.parametrize("scheduler", ["user", "scx", "os"])
def test_targets_are_met_where_they_can_be(scheduler: str) -> None:
    of = node(
        {"alarm": 1e-3, "billing": 4e-3, "bulk": 8e-3},
        {"alarm": 100.0, "billing": 50.0, "bulk": 75.0},
    )
    latency_s = {"alarm": 0.02, "billing": 0.05}
    targets = (target("alarm", "20ms"), target("billing", "50ms"))
    met = hits(of, "deadline", latency_s, scheduler, targets=targets)
    without = hits(of, "fcfs", latency_s)
    assert all(share < 0.9 for share in without.values()), without
    # Nice values leave the bulk some of the CPU.
    assert all(share >= (0.9 if scheduler == "os" else 0.99) for share in met.values()), met


@pytest.mark.needs("cc")
def test_past_saturation_one_is_late_and_not_one_after_the_other() -> None:
    of = node({"a": 4e-3, "b": 4e-3}, {"a": 160.0, "b": 170.0})
    latency_s = {"a": 0.05, "b": 0.05}
    alone = hits(of, "fcfs", latency_s)  # which is the least slack, for equal targets and costs
    assert all(share < 0.1 for share in alone.values()), alone
    for weight, first in ((1.0, "a"), (2.0, "b")):
        targets = (target("a", "50ms"), target("b", "50ms", weight=weight))
        met = hits(of, "deadline", latency_s, targets=targets)
        assert met[first] >= 0.99, met
        targets = targets[::-1]  # the order says nothing
        assert hits(of, "deadline", latency_s, targets=targets) == met


@pytest.mark.needs("cc")
def test_a_burst_of_one_makes_no_other_late() -> None:
    """2.4 s of work within 0.1 s, beside a query that would be late for as long as it lasts."""
    steady = np.arange(0.0, 20.0, 1 / 40)
    burst = 5 + np.linspace(0, 0.1, 600)
    of = node({"a": 4e-3, "b": 4e-3}, {"a": np.sort([*steady, *burst]), "b": 100.0})
    latency_s = {"a": 0.05, "b": 0.05}
    alone = hits(of, "fcfs", latency_s)
    targets = (target("a", "50ms"), target("b", "50ms"))
    met = hits(of, "deadline", latency_s, targets=targets)
    assert alone["b"] < 0.8, alone
    assert met["b"] >= 0.9, met  # it takes a period to see
    assert met["a"] >= 0.35, met  # of what came later all is in time


def judgement_of(load: Load, cpus: float = 1.0, **others: Load) -> Standing:
    return standings(feasible(asked(a=load, **others), cpus, {}))["a"]


def test_the_edges_of_being_late() -> None:
    late = Load(0.05, cpus=0.5, work_s=0.5, slack_s=-0.1)  # it catches up in a second
    # Who has no slack left is in time, and cannot wait.
    assert judgement_of(late, b=Load(10.0, slack_s=0.0)) is LATE
    assert judgement_of(replace(late, slack_s=0.0), b=Load(10.0, slack_s=0.0)) is MEETS
    assert judgement_of(replace(late, slack_s=0.03), b=Load(10.0, slack_s=0.0)) is MEETS
    # The one that can wait least counts, and who is just as long about it does not suffer.
    assert judgement_of(late, b=Load(10.0, slack_s=9.0), c=Load(10.0, slack_s=0.9)) is LATE
    assert judgement_of(late, b=Load(10.0, slack_s=9.0), c=Load(10.0, slack_s=1.0)) is MEETS
    # Two that are late by as much work: neither is sooner through.
    assert judgement_of(late, b=replace(late, latency_s=0.01)) is MEETS
    # Where nothing is left over, a backlog never goes; one of nothing is gone.
    other = Load(10.0, cpus=0.5, slack_s=1e9)
    assert judgement_of(late, b=other) is LATE
    assert judgement_of(replace(late, work_s=0.0), b=replace(other, slack_s=0.5)) is MEETS


def test_what_is_just_enough_is_enough_but_for_the_path() -> None:
    assert judgement_of(Load(0.05, cpus=1.0)) is MEETS
    assert judgement_of(Load(0.05, cpus=1.001)) is OVER
    assert judgement_of(Load(0.05, widest=1.0)) is MEETS
    assert judgement_of(Load(0.05, path_s=0.05)) is OVER
    wide = feasible(asked(a=Load(0.05, widest=2.0)), 4.0, {})["e", "a"].why
    assert "needs 2.00 CPUs a thread: it would take 3 replicas" in wide
    # What does not compete takes nothing from the others.
    some = asked(a=Load(0.05, cpus=0.9, path_s=1.0, weight=5), b=Load(0.05, cpus=0.9))
    assert standings(feasible(some, 1.0, {})) == {"a": OVER, "b": MEETS}


def test_loads_of_several_threads_and_of_queues_without_an_age() -> None:
    queries = plan({"q": ["a", "b"]})
    two = tuple(
        replace(o, threads=(*o.threads, replace(o.threads[0], tid=o.threads[0].tid + 50)))
        for o in queries.operators
    )
    shown = {
        "cost": [4e-3, 1e-3],
        "path_cost": [5e-3, 1e-3],
        "selectivity": [1.0, 1.0],
        "global_cost": [5e-3, 1e-3],
        "input_rate": [100.0, 100.0],
        "queue_size": [10.0, 0.0],
        "head_age": [0.0, 0.3],
    }
    of = frame(replace(queries, operators=two), **shown)
    [load] = feasibility.loads(of, ["lab:1"], (target("q", "1s"),)).values()
    assert_allclose([load.cpus, load.widest, load.work_s], [0.5, 0.2, 0.05])
    assert_allclose(load.slack_s, 1 - 0.301)
    [none] = feasibility.loads(
        frame(queries, **{**shown, "head_age": [0.0, 0.0]}), ["lab:1"], (target("q", "1s"),)
    ).values()
    assert_allclose(none.slack_s, 1 - 5e-3)
    assert feasibility.loads(of, ["lab:1"], (target("other", "1s"),)) == {}


def test_arrivals_are_what_was_taken_or_what_has_come_since_the_oldest() -> None:
    chain = plan({"q": ["a", "b"], "r": ["c"]}).graph
    taken, queue = np.array([0.5, 9.0, 3.0]), np.array([8.0, 99.0, 8.0])
    nobody = np.full(3, NAN)
    for age, first in ((0.0, 0.5), (0.99, 0.5), (1.0, 8.0), (4.0, 2.0), (80.0, 0.5)):
        came = feasibility.arrivals(chain, nobody, taken, queue, np.array([age, age, 4.0]))
        assert came.tolist() == [first, 0.0, 3.0]
    told = np.array([0.25, 7.0, NAN])
    came = feasibility.arrivals(chain, told, taken, queue, np.array([1.0, 1.0, 1.0]))
    assert came.tolist() == [0.25, 0.0, 8.0]


def test_columns_of_a_target_are_those_of_its_query() -> None:
    queries = plan({"q": ["a", "b"], "r": ["c"]})
    load = Load(0.05, weight=3.0)
    told = feasibility.tell(
        frame(queries), ["lab:1"], {("lab:1", "q"): Judgement(Standing.LATE, load)}
    )
    assert told["target_latency"].tolist()[:2] == [0.05, 0.05]
    assert told["target_standing"].tolist()[:2] == [1.0, 1.0]
    assert told["target_weight"].tolist()[:2] == [3.0, 3.0]
    assert all(np.isnan(column[2]) for column in told.values())
