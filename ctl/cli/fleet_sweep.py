"""sched-ctl fleet sweep."""

from pathlib import Path
from typing import Annotated

import typer

from sched_ctl.cli.flags import Json
from sched_ctl.cli.fleet_flags import Conf, Master, check, percent, spark_of
from sched_ctl.config.settings import ConfigError

__all__ = ["sweep"]


def sweep(
    profile_file: Annotated[
        Path, typer.Argument(help="What fleet profile wrote.", metavar="PROFILE")
    ],
    out: Annotated[
        str, typer.Argument(help="Folder for the results; what is there is not run again.")
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="May be repeated.", show_default="six of them"),
    ] = None,
    load: Annotated[
        list[float] | None,
        typer.Option(
            "--load", "-l", help="May be repeated.", min=0.05, max=2, show_default="0.8, 0.9"
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000)] = 3,
    duration: Annotated[
        float, typer.Option(help="Of the arrivals.", metavar="SECONDS", min=1)
    ] = 60.0,
    goal: Annotated[str, typer.Option(help="latency, tail, slowdown or memory.")] = "latency",
    costs: Annotated[
        Path | None,
        typer.Option(
            help="What switches cost, by sched-ctl simulate --calibrate. Default: nothing.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    drop_ins: Annotated[
        Path | None,
        typer.Option(
            help="Folder for a configuration drop-in for each kind of machine.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Try policies in the simulator, spread over the cluster: the best one for each machine."""
    from dataclasses import asdict

    from sched_ctl import show

    check()
    from sched_ctl.pipeline import sweep as sweeping
    from sched_ctl.sim import calibrate
    from sched_ctl.telemetry import profiles

    if goal not in sweeping.GOALS:
        raise ConfigError(f"there is no goal {goal!r}", f"one of: {', '.join(sweeping.GOALS)}")
    measured = profiles.read(profile_file)
    per_hop = calibrate.load(costs) if costs else None
    with spark_of("sweep", master, conf) as spark:
        rows = sweeping.sweep(
            spark,
            measured,
            out,
            policy or sweeping.POLICIES,
            load or [0.8, 0.9],
            seeds,
            duration,
            per_hop,
        )
    choices = sweeping.best(rows)
    written = [] if drop_ins is None else sweeping.write_drop_ins(drop_ins, choices, goal)
    if json:
        show.emit_json([asdict(choice) for choice in choices])
        return
    show.table(
        ("machine", "goal", "best", ">before", "next", ">below os", "sure"),
        (
            (
                c.machine,
                c.goal,
                c.policy,
                f"{c.margin:.1%}",
                c.next_policy,
                percent(c.gain),
                c.sure,
            )
            for c in choices
        ),
    )
    for path in written:
        show.text(f"wrote {path}")
