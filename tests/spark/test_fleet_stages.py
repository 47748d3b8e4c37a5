"""A policy that comes to a fleet in stages, by what generated nodes recorded before and after."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sched_ctl.config.files import load
from sched_ctl.pipeline import compare, generate, ingest, prior, rollout
from sched_ctl.pipeline.choice import Choice
from sched_ctl.pipeline.store import Fleet
from sched_ctl.telemetry.records import FileName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.needs("pyspark", "java"), pytest.mark.timeout(1200)]
HOUR_S = 3600
FIRST = ["gw-0000", "gw-0001", "gw-0002"]


def plan(hour: int, *policies: tuple[str, float]) -> generate.Plan:
    return generate.Plan(
        nodes=6, seconds=HOUR_S, queries=2, slow=0.0, level=1, start_s=begin_ms(hour) // 1000,
        seed=3, policies=policies,
    )  # fmt: skip


def begin_ms(hour: int) -> int:
    return (generate.Plan().start_s + hour * HOUR_S) * 1000


def recorded(folder: Path, made: generate.Plan, nodes: list[str] | None = None) -> str:
    generate.generate(folder, made)
    for path in folder.iterdir():
        name = FileName.parse(path.name)
        assert name is not None
        if nodes is not None and name.node not in nodes:
            path.unlink()
    return str(folder)


@pytest.mark.parametrize(("factor", "stage"), [(0.6, "rest"), (1.5, "back")])
def test_the_first_nodes_decide(
    factor: float, stage: str, spark: "SparkSession", tmp_path: Path
) -> None:
    out, folder = str(tmp_path / "out"), tmp_path / "drop-ins"

    def step() -> rollout.State:
        known = rollout.read(folder)
        return rollout.advanced(spark, out, folder, known, policy="hr", base=None, share=0.5)

    def carried() -> set[str]:
        return {path.parent.name for path in folder.glob(f"*/{rollout.NAME}")}

    ingest.ingest(spark, recorded(tmp_path / "before", plan(0, ("os", 1.0))), out)
    # What the policy did there before, in a race, say, was the other way round, and does not count.
    raced = recorded(tmp_path / "raced", plan(1, ("hr", factor**-0.35)), FIRST)
    ingest.ingest(spark, raced, out)
    begun = step()
    assert begun.stage == "first" and begun.first == FIRST
    assert carried() == set(begun.first)
    # Till those nodes have recorded anything under it, it holds.
    held = step()
    assert held.stage == "first" and "no record of hr" in held.why
    after = recorded(tmp_path / "after", plan(2, ("hr", factor)), begun.first)
    ingest.ingest(spark, after, out)
    done = step()
    assert done.stage == stage, done.why
    assert carried() == (set() if stage == "back" else {*begun.first, *begun.rest})
    assert "of os's on 3 nodes" in done.why
    assert step() == done == rollout.read(folder)
    for name in carried():
        (tmp_path / f"{name}.toml").write_text("")
        (folder / name).rename(tmp_path / f"{name}.d")
        assert [s.policy for s in load(tmp_path / f"{name}.toml").policy] == ["hr"]
    # And what was measured is what a race elsewhere begins with.
    made = prior.measured(compare.by_query(Fleet(spark, out)))
    assert {(p.query, p.policy) for p in made} == {
        (query, "hr" if stage == "rest" else "os") for query in ("q0", "q1")
    }
    assert {p.machine for p in made} == {"x86_64 fast, 2 CPUs"}


def test_what_is_chosen_says_who_takes_part_and_what_is_judged(
    spark: "SparkSession", tmp_path: Path
) -> None:
    out = str(tmp_path / "out")

    def step(folder: str, **choice: object) -> rollout.State:
        at = tmp_path / folder
        known = rollout.read(at)
        chosen = Choice(**choice)  # type: ignore[arg-type]
        return rollout.advanced(
            spark, out, at, known, policy="hr", base=None, share=0.5, choice=chosen
        )

    ingest.ingest(spark, recorded(tmp_path / "early", plan(0, ("os", 1.0))), out)
    raced = recorded(tmp_path / "late", plan(1, ("os", 1.0), ("hr", 0.3)), FIRST)
    ingest.ingest(spark, raced, out)
    # Who was not there since then takes no part; what was recorded before the begin never counts.
    late = step("late", since_ms=begin_ms(1))
    assert (late.first, late.rest) == (FIRST, [])
    early = step("early", until_ms=begin_ms(1), queries=("q0",))
    assert len(early.rest) == 3 and early.since_ms == late.since_ms == begin_ms(2)
    # It was worse at first, and is better since.
    for hour, factor in ((2, 1.6), (3, 0.5)):
        made = plan(hour, ("os", 1.0), ("hr", factor))
        ingest.ingest(spark, recorded(tmp_path / str(hour), made, FIRST), out)
    nobody = step("late", queries=("another",))
    assert nobody.stage == "first" and "no record of hr" in nobody.why
    assert step("late", since_ms=begin_ms(3)).stage == "rest"
    assert step("early", until_ms=begin_ms(3), queries=("q1",)).stage == "back"
