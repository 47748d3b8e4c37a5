"""What is made of the fleet's figures without Spark: the sweep's choice, drop-ins, drawings."""

import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sched_ctl.config.files import load
from sched_ctl.config.settings import Prior
from sched_ctl.errors import UserError
from sched_ctl.pipeline import expire, page, prior, sweep
from sched_ctl.pipeline.compare import Compared
from sched_ctl.pipeline.store import Batch, Keep
from sched_ctl.service.sections import check_sections
from sched_ctl.sim import Costs
from sched_ctl.telemetry import profiles


def rows(**by_policy: float) -> list[dict[str, Any]]:
    """Figures that are the same at each load but for a factor that all share."""
    return [
        {
            "machine": "fast, 2 CPUs",
            "policy": policy,
            "load": at,
            "seed": seed,
            "duration": 1.0,
            "mean": value * at * (1 + 0.01 * ((seed * 7 + len(policy)) % 3)),
            "p50": 1 / value,
            "p99": value,
            "slowdown": 2.0,
            "memory": 1.0,
            "stable": True,
        }
        for policy, value in by_policy.items()
        for at in (0.5, 1.0)
        for seed in range(4)
    ]


def test_the_best_policy_with_its_margin() -> None:
    choices = {c.goal: c for c in sweep.best(rows(os=4.0, hr=1.0, qs=2.0))}
    assert (choices["latency"].policy, choices["latency"].next_policy) == ("hr", "qs")
    assert choices["latency"].margin == pytest.approx(1.0, rel=0.05)
    assert choices["latency"].gain == pytest.approx(0.75, rel=0.05)
    assert choices["latency"].sure
    assert choices["median"].policy == "os", "half of all tuples pay for the others' mean"
    assert not choices["slowdown"].sure  # all alike
    # A task that one policy has not run counts for none.
    partly = [r for r in rows(hr=1.0, qs=2.0) if (r["policy"], r["load"]) != ("qs", 1.0)]
    assert {c.goal: c for c in sweep.best(partly)}["tail"].margin == pytest.approx(1.0)
    assert sweep.best(rows(hr=1.0)) == []


def test_rows_stay_no_longer_than_their_roll_ups() -> None:
    entries: list[Batch] = []
    fleet: Any = SimpleNamespace(
        keep=Keep(), since=lambda _: None, new_folder=lambda: "f", commit=entries.append
    )
    day_s = 86_400
    for keep, first in (
        (Keep(rows=30), {"operator": "1970-04-11"}),
        (Keep(hours=50), {"operator": "1970-03-22", "hour": "1970-03-22"}),
        (Keep(rows=30, hours=50), {"operator": "1970-04-11", "hour": "1970-03-22"}),
    ):
        moved = expire.expire(fleet, keep, now_s=130.0 * day_s)
        assert {kind: moved[kind] for kind in moved if kind in ("operator", "hour")} == first
        assert entries.pop().since == moved


def test_a_drop_in_is_a_configuration(tmp_path: Path) -> None:
    choices = sweep.best(rows(os=4.0, hr=1.0, qs=2.0))
    folder = tmp_path / "sched-ctl.d"
    path = folder / sweep.DROP_IN
    assert prior.write(folder, path.name, sweep.priors(choices, "latency")) == f"wrote {path}"
    assert "75% below the system's own" in path.read_text()
    measured = [prior.Prior("os", "m, 2 CPUs", "etl", "Measured."), *sweep.priors(choices, "tail")]
    prior.write(folder, "55-measured.toml", measured[::-1])
    (tmp_path / "sched-ctl.toml").write_text("")
    settings = load(tmp_path / "sched-ctl.toml")
    check_sections(settings)
    assert [section.policy for section in settings.policy] == ["auto"]
    assert [p.policy for p in settings.prior] == ["os", "hr", "hr"]
    assert settings.prior[0] == Prior(policy="os", machine="m, 2 CPUs", queries=("etl",))
    assert settings.prior[1].machine == "fast, 2 CPUs"


def test_what_the_data_do_not_tell_any_more_is_advised_no_more(tmp_path: Path) -> None:
    path = tmp_path / "sched-ctl.d" / prior.MEASURED
    prior.write(path.parent, path.name, [prior.Prior("hr", None, None, "In March.")])
    assert path.exists()
    said = prior.write(path.parent, path.name, [])
    assert not path.exists()
    assert said.startswith(f"removed {path}")
    assert prior.write(path.parent, path.name, []).startswith(f"did not write {path}")
    assert prior.write(tmp_path / "none", path.name, []).startswith("did not write")
    assert not (tmp_path / "none").exists()


def test_machines_that_cannot_be_simulated_are_left_out_and_named() -> None:
    def query(machine: str, cost: float | None) -> profiles.Query:
        operator = profiles.Operator(name="a", cost=cost, selectivity=1.0, input_rate=10.0)
        return profiles.Query(engine="lab", machine=machine, name="q", operators=[operator])

    good = query("m, 2 CPUs", 0.01)
    idle, huge = query("idle, 2 CPUs", None), query("m, 5000 CPUs", 0.01)
    whole = profiles.Profile(queries=[idle, good, huge], made="now")
    left, why = sweep.simulated(whole)
    assert left == profiles.Profile(queries=[good], made="now")
    assert list(why) == ["idle, 2 CPUs", "m, 5000 CPUs"]
    assert "no costs" in why["idle, 2 CPUs"] and "1024" in why["m, 5000 CPUs"]
    with pytest.raises(UserError, match=r"no machine .* can be simulated: .*no costs"):
        sweep.simulated(profiles.Profile(queries=[idle, huge]))


@pytest.mark.parametrize(
    "name",
    [
        'm"\n[[policy]]\npolicy = "constant"\n#',
        "m\n[[policy]]\npolicy = 'constant'",
        'm"]\\u000a',
        "\x7f",
        "\u2028x",
        "x" * 10_000,
        "",
        "no-such-policy",
        '"""',
        "\\",
        "\U0001f600 é",
        "\ud800",
    ],
)
def test_no_name_writes_a_configuration(name: str, tmp_path: Path) -> None:
    """Machines, queries and policies are called whatever somebody wrote into a recorded file."""
    found = [
        prior.Prior("hr", name, None, name),
        prior.Prior("hr", None, name, name),
        prior.Prior(name, None, None, name),
    ]
    path = tmp_path / "sched-ctl.toml"
    path.write_text(prior.text(found))
    settings = load(path)
    assert [section.policy for section in settings.policy] == ["auto"]
    assert {p.machine for p in settings.prior} <= {name, ""}
    assert {q for p in settings.prior for q in p.queries} <= {name, "*"}
    check_sections(settings)


def test_what_was_measured_by_query_is_what_a_race_begins_with() -> None:
    def one(policy: str, value: float, wide: float = 0.05, figure: str = "time") -> Compared:
        return Compared(policy, "os", figure, value, value - wide, value + wide, 5, 100)

    found = {
        ("m", "a"): [one("hr", 0.8), one("qs", 0.6), one("fcfs", 1.4)],
        ("m", "b"): [one("hr", 0.8), one("hr", 0.9, 0.01, "throughput"), one("qs", 0.9)],
        ("m", "c"): [one("hr", 0.99), one("qs", 1.5)],
        ("m", "d"): [one("hr", 1.2), one("qs", 1.5)],
    }
    made = prior.measured(found)
    assert [(p.query, p.policy) for p in made] == [("a", "qs"), ("b", "qs"), ("d", "os")]
    assert made[0].why == "Measured on 5 nodes: time 0.6 of the system's own."


def test_a_query_called_as_a_pattern_speaks_for_no_others() -> None:
    for name in ("*", "q?", "[a]", "!q"):
        assert "[[prior]]" not in prior.text([prior.Prior("hr", None, name, "w")])


def test_a_task_runs_in_the_simulator() -> None:
    operators = [
        profiles.Operator(name="a", cost=1e-4, selectivity=0.5, input_rate=1000.0),
        profiles.Operator(name="b", cost=1e-3, selectivity=1.0, input_rate=500.0),
    ]
    query = profiles.Query(
        engine="lab", machine="m, 2 CPUs", name="q", operators=operators, edges=[(0, 1, 1.0)]
    )
    assert sweep.cpus_of("m, 2 CPUs") == 2
    assert sweep.cpus_of("m") == 1
    made = profiles.Profile(queries=[query])
    light, heavy = (sweep.task(made, ("m, 2 CPUs", "hr", at, 1, 5.0)) for at in (0.3, 0.55))
    assert heavy["stable"]
    assert not sweep.task(made, ("m, 2 CPUs", "hr", 0.9, 1, 5.0))["stable"]  # b needs 1.5 CPUs
    assert 0.0011 / 2 < light["mean"] < heavy["mean"]
    # Switches that take time make it slower, and are told apart from those that take none.
    costly = sweep.task(made, ("m, 2 CPUs", "hr", 0.3, 1, 5.0), Costs(wake_s=1e-4, switch_s=1e-4))
    assert costly["mean"] > light["mean"] + 1e-4
    assert costly["costs"] != light["costs"] == ""
    # What the engine does for each tuple is in its measured costs.
    assert sweep.task(made, ("m, 2 CPUs", "hr", 0.3, 1, 5.0), Costs(hop_s=1e-3)) == light


def test_a_query_that_was_silent_takes_no_time() -> None:
    busy, silent = (
        profiles.Query(
            engine="lab",
            machine="m, 2 CPUs",
            name=name,
            operators=[profiles.Operator(name="a", cost=cost, selectivity=1.0, input_rate=rate)],
        )
        for name, cost, rate in (("busy", 1e-3, 100.0), ("silent", None, 0.0))
    )
    made = profiles.Profile(queries=[silent, busy])
    assert [o.query for o in profiles.snapshot(made).topology.operators] == ["busy"]
    assert sweep.task(made, ("m, 2 CPUs", "hr", 0.4, 1, 5.0))["stable"]
    with pytest.raises(UserError, match="no costs"):
        profiles.snapshot(profiles.Profile(queries=[silent]))


def test_a_sweep_refuses_policies_whose_turns_would_be_lost(tmp_path: Path) -> None:
    made = profiles.Profile(queries=[])
    for name in ("rr", "cqc"):
        with pytest.raises(UserError, match=f"{name} gives queries turns"):
            sweep.sweep(cast(Any, None), made, str(tmp_path), [name], [0.5], 1, 5.0)


def drawings() -> list[str]:
    nan = math.nan
    return [
        page.bars([("gw-1 <&>", 0.5, "50%"), ("x", 0.0, "0%")], "w"),
        page.bars([], "w"),
        page.lines([(f"n{i}", [(0.0, 1.0), (60.0, 2.0)]) for i in range(8)], "%", "w"),
        page.lines([("n", [])], "%", "w"),
        page.heat(["a", "b"], ["o1", "o2"], [[0.0, 1.0], [nan, 0.5]], "w"),
        page.heat([], [], [], "w"),
        page.letter_values([("hr", [1.0, 2.0, 4.0, 8.0, 16.0]), ("os", [2.0] * 5)], "ms", "w"),
        page.letter_values([], "ms", "w"),
        page.forest([("hr", 0.5, 0.4, 0.6), ("qs", 1.1, nan, nan)], "w"),
    ]


def test_drawings_are_whole_and_inside_their_frame() -> None:
    for drawn in drawings():
        root = ET.fromstring(drawn)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        assert "nan" not in drawn and "inf" not in drawn
        for shape in root.iter():
            for key, limit in (("x", width), ("cx", width), ("y", height), ("cy", height)):
                value = float(shape.attrib.get(key, 0))
                assert -0.1 <= value <= limit + 0.1, (drawn, shape.tag, shape.attrib)
            if "width" in shape.attrib:
                right = float(shape.attrib["x"]) + float(shape.attrib["width"])
                assert right <= width + 0.1
    text = page.table(("a", ">b"), [("<script>", 1)])
    assert "<script>" not in text
    assert re.search(r"<td class=r>1</td>", text)
