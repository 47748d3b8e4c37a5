"""sched-ctl fleet sweep, and rollout."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sched_ctl.cli import outputs
from sched_ctl.cli.flags import Json, asked
from sched_ctl.cli.fleet_flags import (
    Conf,
    DropIns,
    Master,
    Node,
    Query,
    Since,
    Until,
    check,
    percent,
    spark_of,
)
from sched_ctl.config.settings import ConfigError
from sched_ctl.errors import printable

if TYPE_CHECKING:
    from sched_ctl.pipeline.rollout import State
    from sched_ctl.pipeline.sweep import Choice

__all__ = ["rollout", "sweep"]


def sweep(
    profile_file: Annotated[
        Path, typer.Argument(help="What fleet profile wrote.", metavar="PROFILE")
    ],
    out: Annotated[
        str,
        typer.Argument(help="Folder for results; what is there of this profile is not run again."),
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
    goal: Annotated[
        str, typer.Option(help="latency, median, tail, slowdown or memory.")
    ] = "latency",
    costs: Annotated[
        Path | None,
        typer.Option(
            help="What switches cost, by sched-ctl simulate --calibrate. Default: nothing.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    drop_ins: DropIns = None,
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
    if drop_ins:
        outputs.check_in(drop_ins, sweeping.DROP_IN)
    measured, left_out = sweeping.simulated(profiles.read(profile_file))
    for machine, why in left_out.items():
        print(f"left out: {printable(f'{machine}: {why}')}", file=sys.stderr)
    per_hop = calibrate.load(costs) if costs else None
    policies, loads = policy or sweeping.POLICIES, load or [0.8, 0.9]
    with spark_of("sweep", master, conf) as spark:
        rows = sweeping.sweep(spark, measured, out, policies, loads, seeds, duration, per_hop)
    choices = sweeping.best(rows)
    said = _write_priors(drop_ins, choices, goal) if drop_ins else ""
    if json:
        show.emit_json([asdict(choice) for choice in choices])
    else:
        _show_choices(choices, said)


def _write_priors(folder: Path, choices: "list[Choice]", goal: str) -> str:
    from sched_ctl.pipeline import prior
    from sched_ctl.pipeline import sweep as sweeping

    return prior.write(folder, sweeping.DROP_IN, sweeping.priors(choices, goal))


def _show_choices(choices: "list[Choice]", said: str) -> None:
    from sched_ctl import show

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
    if said:
        show.text(said)


def rollout(
    fleet: Annotated[str, typer.Argument(help="Folder that ingest made.", metavar="FLEET")],
    folder: Annotated[
        Path, typer.Argument(help="Folder for a folder of each node.", metavar="DIR")
    ],
    policy: Annotated[
        str | None, typer.Option("--policy", "-p", help="To begin with one.", show_default=False)
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="Policy to judge against. Default: os, if it ran.", show_default=False),
    ] = None,
    share: Annotated[
        float, typer.Option(help="Of the nodes of each kind, first.", min=0.0, max=1.0)
    ] = 0.1,
    since: Since = None,
    until: Until = None,
    node: Node = None,
    query: Query = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Bring a policy to the fleet in stages: run it again, and it judges the first nodes.

    Better there by the test of `compare`: files for the rest; worse: files taken away. --since,
    --until and --query say by which records it judges. When it begins, those nodes take part that
    have such records, and that --node names. The policy is for all queries of a node.

    Example: sched-ctl fleet rollout /srv/fleet /srv/drop-ins -p balanced
    """
    from msgspec import to_builtins

    from sched_ctl import show

    check()
    from sched_ctl.pipeline import rollout as rolling
    from sched_ctl.pipeline import trust
    from sched_ctl.pipeline.choice import chosen
    from sched_ctl.pipeline.store import Fleet as Folder

    with asked():
        choice = chosen(since, until, node or (), query or ())
    state = rolling.read(folder)
    _refuse_another(folder, state, policy)
    with spark_of("rollout", master, conf) as spark:
        state = rolling.advanced(
            spark, fleet, folder, state, policy=policy or "", base=base, share=share, choice=choice
        )
        first = Folder(spark, fleet, rolling.read_of(state, choice))
        warning = "" if json else trust.warned(first)
    if json:
        show.emit_json(to_builtins(state))
    else:
        _show_stage(folder, state, warning)


def _refuse_another(folder: Path, state: "State | None", policy: str | None) -> None:
    """Raises ConfigError where none begins, or one of another policy has begun."""
    from sched_ctl.plugins import registry

    if state is None and policy is None:
        raise ConfigError(f"no roll-out has begun in {folder}", "--policy NAME begins one")
    if state is not None and policy not in (None, state.policy):
        raise ConfigError(
            f"the roll-out in {folder} is of {state.policy}", "another folder for another policy"
        )
    if policy is not None:
        with asked():
            registry.policy(policy)


def _show_stage(folder: Path, state: "State", warning: str) -> None:
    from sched_ctl import show
    from sched_ctl.pipeline.rollout import NAME

    where = {"first": f"on {len(state.first)} nodes first", "rest": "everywhere", "back": "nowhere"}
    show.text(f"{state.policy}: {where[state.stage]}" + (f"; {state.why}" if state.why else ""))
    show.text(f"drop-ins for /etc/sched-ctl/sched-ctl.d: {folder}/NODE/{NAME}")
    if warning:
        show.text(warning)
