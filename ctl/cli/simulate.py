"""sched-ctl simulate: what its options are. What is done with them is in `sweep`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sched_ctl.cli.flags import Json, asked, target, with_sections
from sched_ctl.config.settings import ConfigError
from sched_ctl.model.options import ScxOptions

if TYPE_CHECKING:
    from sched_ctl.sim.setting import Costs, Setting

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command()(simulate)


@dataclass(frozen=True)
class What:
    """What is simulated"""

    source: Annotated[
        Path | None,
        typer.Argument(
            help="A workload (syn, bench/workloads/*.graph), a snapshot (plan --save), "
            "or a profile (fleet profile).",
            metavar="FILE",
        ),
    ] = None
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="May be repeated; 'os' is the OS's own scheduling."),
    ] = None
    load: Annotated[
        list[float] | None,
        typer.Option("--load", "-l", help="CPU demand over CPUs; may be repeated.", min=1e-3),
    ] = None
    cpus: Annotated[int, typer.Option(min=1, max=1024)] = 1
    capacity: Annotated[
        int, typer.Option(help="Bound of the queues between operators; 0: none.", min=0)
    ] = 0
    base_cost_us: Annotated[
        float | None, typer.Option(help="CPU time of a cost of 1 (default: the workload's).")
    ] = None
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="Latency that queries are to keep, as load has it: 'alarm*=50ms,share=0.95'; may "
            "be repeated.",
            metavar="QUERIES=LATENCY",
        ),
    ] = None
    common_stream: Annotated[
        bool, typer.Option("--common-stream", help="All queries see the same tuples.")
    ] = False


@dataclass(frozen=True)
class Length:
    """For how long, and how often"""

    duration: Annotated[
        float, typer.Option(help="Of the arrivals.", metavar="SECONDS", min=1e-3)
    ] = 60.0
    warm_up: Annotated[
        float | None, typer.Option(help="Tuples before are not counted (default: a tenth of it).")
    ] = None
    seeds: Annotated[int, typer.Option(help="Runs with different arrivals.", min=1, max=1000)] = 3
    seed: Annotated[int, typer.Option(help="The first of them.", min=0)] = 1


@dataclass(frozen=True)
class Scheduling:
    """Who chooses what runs"""

    scheduler: Annotated[str, typer.Option(help="user, os, scx, fifo.")] = "user"
    level: Annotated[str, typer.Option(help="user: decide by operator, or by query.")] = "operator"
    batch: Annotated[
        str, typer.Option(help="user: tuples a turn: a number (at most), all, or half.")
    ] = "1"
    clusters: Annotated[
        int | None,
        typer.Option(
            help="Clusters of wait-dependent policies; 0: exact (default: as in the BPF scheduler "
            f"under scx, {ScxOptions().clusters}, else 0).",
            min=0,
        ),
    ] = None


@dataclass(frozen=True)
class PerHop:
    """What a hop costs"""

    costs: Annotated[
        Path | None,
        typer.Option(help="These from a file that --calibrate wrote.", metavar="FILE"),
    ] = None
    hop_us: Annotated[
        float | None, typer.Option(help="Overhead of each tuple at each operator.", min=0)
    ] = None
    wake_us: Annotated[
        float | None, typer.Option(help="Cost of a wake-up, for whoever wakes.", min=0)
    ] = None
    switch_us: Annotated[float | None, typer.Option(help="Cost of a context switch.", min=0)] = None
    source_us: Annotated[
        float | None,
        typer.Option(help="What bringing tuples takes, each time it interrupts.", min=0),
    ] = None
    decision_us: Annotated[float | None, typer.Option(help="user: cost of a decision.", min=0)] = (
        None
    )
    candidate_us: Annotated[
        float | None, typer.Option(help="user: for each operator that it looks at.", min=0)
    ] = None
    queue_us: Annotated[
        float | None,
        typer.Option(help="user: of a decision, in the lock that all workers share.", min=0),
    ] = None

    def read(self) -> "Costs":
        from sched_ctl.sim import calibrate as calibration
        from sched_ctl.sim.setting import Costs

        machine = calibration.load(self.costs) if self.costs else Costs()
        given = {
            name: value * 1e-6
            for name in Costs.__slots__
            if (value := getattr(self, name.removesuffix("_s") + "_us")) is not None
        }
        return replace(machine, **given)


@with_sections
def simulate(
    what: What,
    length: Length,
    scheduling: Scheduling,
    per_hop: PerHop,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Measure what a hop costs on this machine, print it."),
    ] = False,
    plots: Annotated[
        Path | None, typer.Option(help="Folder for plots (PNG).", metavar="DIR")
    ] = None,
    json: Json = False,
) -> None:
    """Run queries in the simulator: what a policy can be expected to do at a load.

    The policies are the very ones that schedule real engines. Response times count from a tuple's
    arrival to its result; slowdown is the response time over the tuple's own CPU time. With
    targets also who keeps them, what that costs the others, and what it would take where one cannot
    be met.
    """
    from sched_ctl.cli import kept, sweep
    from sched_ctl.config import files
    from sched_ctl.sim import calibrate as calibration

    if calibrate:
        print(calibration.as_json(calibration.measure()))
        return
    if what.source is None:
        raise ConfigError("what is to be simulated?", "name a workload, or a snapshot")
    targets = files.targets(map(target, what.target or ()))
    first = sweep.OS if targets or scheduling.scheduler == sweep.OS else "fcfs"
    names = what.policy or [first, *(kept.policies(scheduling.scheduler) if targets else ("hr",))]
    costs = per_hop.read()
    with asked():
        setting = _setting(what, length, scheduling, costs)
    base, common = what.base_cost_us, what.common_stream
    made = sweep.nodes(what.source, what.load, what.cpus, base, common, targets)
    sweep.run(what.source, made, names, setting, length.seeds, plots=plots, json=json)


def _setting(what: What, length: Length, scheduling: Scheduling, costs: "Costs") -> "Setting":
    from sched_ctl.cli import sweep
    from sched_ctl.sim.setting import Setting, User

    usual = ScxOptions().clusters if scheduling.scheduler == "scx" else 0
    clusters = usual if scheduling.clusters is None else scheduling.clusters
    looks = "groups" if clusters else "operators"
    return Setting(
        scheduler=scheduling.scheduler,
        cpus=what.cpus,
        duration_s=length.duration,
        warm_s=length.duration / 10 if length.warm_up is None else length.warm_up,
        seed=length.seed,
        clusters=clusters,
        capacity=what.capacity,
        costs=costs,
        user=User(
            level=scheduling.level,
            batch=sweep.batch(scheduling.batch),
            candidates=looks if costs.candidate_s else "none",
        ),
    )
