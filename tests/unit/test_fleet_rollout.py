"""A policy in stages: files on the first nodes, judged, then on the rest, or taken back."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("pyarrow")

from sched_ctl.cli import fleet, fleet_sweep, make_app
from sched_ctl.config.files import load
from sched_ctl.config.settings import ConfigError
from sched_ctl.errors import UserError
from sched_ctl.pipeline import compare, rollout
from sched_ctl.pipeline.choice import Choice
from sched_ctl.pipeline.compare import Compared

NODES = [(f"gw-{n:02}", "fast" if n < 20 else "slow") for n in range(30)]


def said(value: float, half: float, figure: str = "time") -> Compared:
    return Compared("hr", "os", figure, value, value - half, value + half, 4, 900)


def have(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob(f"*/{rollout.NAME}")}


def test_first_some_of_each_kind_then_the_rest(tmp_path: Path) -> None:
    assert rollout.read(tmp_path) is None
    state = rollout.begin(tmp_path, "hr", None, [*NODES, ("../../etc", "fast"), ("", "f")], 0.1)
    assert have(tmp_path) == set(state.first) == {"gw-00", "gw-01", "gw-20"}
    (tmp_path / "sched-ctl.toml").write_text("")
    (tmp_path / "gw-00").rename(tmp_path / "sched-ctl.d")  # as a node has it
    assert [s.policy for s in load(tmp_path / "sched-ctl.toml").policy] == ["hr"]
    (tmp_path / "sched-ctl.d").rename(tmp_path / "gw-00")
    assert rollout.read(tmp_path) == state
    unsure = rollout.go_on(tmp_path, state, [said(0.9, 0.2)])
    assert (unsure.stage, have(tmp_path)) == ("first", set(state.first))
    done = rollout.go_on(tmp_path, unsure, [said(0.7, 0.1), said(1.0, 0.01, "throughput")])
    assert (done.stage, have(tmp_path)) == ("rest", {name for name, _ in NODES})
    assert rollout.go_on(tmp_path, done, [said(2.0, 0.1)]) == done  # it is judged once
    assert rollout.read(tmp_path) == done


def test_who_is_doubtful_is_first_only_where_there_is_nobody_else(tmp_path: Path) -> None:
    doubtful = {"gw-00", "gw-02", *(name for name, kind in NODES if kind == "slow")}
    state = rollout.begin(tmp_path, "hr", None, NODES, 0.1, doubtful)
    assert state.first == ["gw-01", "gw-03", "gw-20"]
    assert sorted([*state.first, *state.rest]) == [name for name, _ in NODES]


@pytest.mark.parametrize(
    "found", [[said(1.4, 0.1)], [said(0.5, 0.1), said(0.9, 0.02, "throughput")]]
)
def test_what_is_worse_goes_back(found: list[Compared], tmp_path: Path) -> None:
    state = rollout.begin(tmp_path, "hr", "os", NODES, 0.5)
    assert len(have(tmp_path)) == 15
    assert rollout.go_on(tmp_path, state, found).stage == "back"
    assert have(tmp_path) == set()


def test_what_cannot_be_judged_does_not_begin(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 nodes are too few"):
        rollout.begin(tmp_path, "hr", None, NODES[:2], 1.0)
    assert rollout.judged([], "hr")[0] == "first"
    (tmp_path / "rollout.json").write_text("{")
    with pytest.raises(UserError, match=r"rollout\.json"):
        rollout.read(tmp_path)


@pytest.mark.parametrize(
    ("counts", "judged", "base"),
    [
        ({"hr": 9, "os": 1, "qs": 5}, "hr", "os"),
        ({"hr": 9, "fcfs": 1, "qs": 5}, "hr", "qs"),
        ({"hr": 9, "fcfs": 1, "qs": 5}, None, "hr"),
        ({"os": 9, "qs": 5}, "os", "qs"),
    ],
)
def test_nothing_is_judged_against_itself(
    counts: dict[str, int], judged: str | None, base: str
) -> None:
    assert compare._base(counts, judged) == base


def test_another_base_can_be_named_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def compared(_: object, base: str | None, since: object) -> list[Compared]:
        asked.append(base)
        return [said(0.9, 0.2)]

    monkeypatch.setattr(rollout, "Fleet", lambda *_: None)
    monkeypatch.setattr(compare, "compare", compared)
    state = rollout.begin(tmp_path, "hr", "fcfs", NODES, 0.1)
    for base in (None, "qs", None):
        state = rollout.advanced(
            None,  # type: ignore[arg-type]
            *("f", tmp_path, state),
            policy="",
            base=base,
            share=0.1,
        )
    assert asked == ["fcfs", "qs", "qs"]
    assert rollout.read(tmp_path) == state


def test_what_a_call_reads_is_chosen_as_with_other_verbs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def advanced(*_: object, choice: Choice, **__: object) -> rollout.State:
        asked.append(choice)
        return rollout.State("hr", None, ["gw-1"], [])

    monkeypatch.setattr(fleet_sweep, "check", lambda: None)
    monkeypatch.setattr(fleet_sweep, "spark_of", lambda *_: nullcontext())
    monkeypatch.setattr(rollout, "advanced", advanced)
    monkeypatch.setattr("sched_ctl.pipeline.store.Fleet", lambda *_: None)
    span = ["--since", "2026-11-22", "--until", "2026-11-22T01:30"]
    told = CliRunner().invoke(
        make_app(),
        ["fleet", "rollout", "f", str(tmp_path), "-p", "hr", "--json", *span,
         "--node", "gw-*", "--query", "etl*", "--query", "!etl2"],
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    hour_ms, begin_ms = 3_600_000, 1_795_305_600_000
    assert asked == [Choice(begin_ms, begin_ms + 2 * hour_ms, ("gw-*",), ("etl*", "!etl2"))]
    # Judged are the first nodes, whichever take part.
    state = rollout.State("hr", None, ["gw-1"], [])
    assert rollout.read_of(state, asked[0]).nodes == ("gw-1",)
    wrong = [*span[:2], "--until", "2026-11-21"]
    told = CliRunner().invoke(
        make_app(), ["fleet", "rollout", "f", str(tmp_path), "-p", "hr", *wrong]
    )
    assert told.exit_code != 0 and len(asked) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["profile", "f", "out", "--since", "foo"],
        ["expire", "f", "--rows", "3x"],
        ["rollout", "f", "none", "-p", "hx"],
    ],
)
def test_what_is_asked_in_a_wrong_way_is_the_command_lines_fault(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (fleet, fleet_sweep):
        monkeypatch.setattr(module, "check", lambda: None)
    told = CliRunner().invoke(make_app(), ["fleet", *arguments])
    assert isinstance(told.exception, ConfigError)
