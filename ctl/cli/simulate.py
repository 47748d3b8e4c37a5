"""sched-ctl simulate: what its options are. What is done with them is in `sweep`."""

from pathlib import Path
from typing import Annotated

import typer

from sched_ctl.cli.flags import Json
from sched_ctl.errors import UserError

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command()(simulate)


def simulate(
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A workload file (bench/workloads/*.graph), or a snapshot (plan --save).",
            metavar="FILE",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="May be repeated; 'os' is the OS's own scheduling."),
    ] = None,
    load: Annotated[
        list[float] | None,
        typer.Option("--load", "-l", help="CPU demand over CPUs; may be repeated.", min=1e-3),
    ] = None,
    scheduler: Annotated[
        str, typer.Option(help="Who chooses what runs: user, os, scx, fifo.")
    ] = "user",
    level: Annotated[str, typer.Option(help="user: decide by operator, or by query.")] = "operator",
    batch: Annotated[
        str, typer.Option(help="user: tuples a turn: a number (at most), all, or half.")
    ] = "1",
    cpus: Annotated[int, typer.Option(min=1, max=1024)] = 1,
    duration: Annotated[
        float, typer.Option(help="Of the arrivals.", metavar="SECONDS", min=1e-3)
    ] = 60.0,
    warm_up: Annotated[
        float | None, typer.Option(help="Tuples before are not counted (default: a tenth of it).")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs with different arrivals.", min=1, max=1000)] = 3,
    seed: Annotated[int, typer.Option(help="The first of them.", min=0)] = 1,
    clusters: Annotated[
        int, typer.Option(help="Clusters of wait-dependent policies; 0: exact.", min=0)
    ] = 0,
    capacity: Annotated[
        int, typer.Option(help="Bound of the queues between operators; 0: none.", min=0)
    ] = 0,
    base_cost_us: Annotated[
        float | None, typer.Option(help="CPU time of a cost of 1 (default: the workload's).")
    ] = None,
    decision_us: Annotated[float, typer.Option(help="Cost of a scheduling decision.", min=0)] = 0.0,
    hop_us: Annotated[
        float | None, typer.Option(help="Overhead of each tuple at each operator.", min=0)
    ] = None,
    wake_us: Annotated[
        float | None, typer.Option(help="Cost of a wake-up, for whoever wakes.", min=0)
    ] = None,
    switch_us: Annotated[
        float | None, typer.Option(help="Cost of a context switch.", min=0)
    ] = None,
    source_us: Annotated[
        float | None,
        typer.Option(help="What bringing tuples takes, each time it interrupts.", min=0),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(help="These four from a file that --calibrate wrote.", metavar="FILE"),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Measure what a hop costs on this machine, print it."),
    ] = False,
    common_stream: Annotated[
        bool, typer.Option("--common-stream", help="All queries see the same tuples.")
    ] = False,
    plots: Annotated[
        Path | None, typer.Option(help="Folder for plots (PNG).", metavar="DIR")
    ] = None,
    json: Json = False,
) -> None:
    """Run queries in the simulator: what a policy can be expected to do at a load.

    The policies are the very ones that schedule real engines. Response times count from a tuple's
    arrival to its result; slowdown is the response time over the tuple's own CPU time.
    """
    from sched_ctl.cli import sweep
    from sched_ctl.sim import calibrate as calibration
    from sched_ctl.sim.setting import Setting

    if calibrate:
        print(calibration.measure().json())
        return
    if source is None:
        raise UserError("what is to be simulated?", "name a workload file, or a snapshot")
    names = policy or ([sweep.OS, "hr"] if scheduler == "os" else ["fcfs", "hr"])
    machine = calibration.load(costs) if costs else calibration.Costs(0.0, 0.0, 0.0, 0.0)
    setting = Setting(
        scheduler=scheduler,
        level=level,
        batch=sweep.batch(batch),
        cpus=cpus,
        duration_s=duration,
        warm_s=duration / 10 if warm_up is None else warm_up,
        seed=seed,
        clusters=clusters,
        capacity=capacity,
        decision_s=decision_us * 1e-6,
        hop_s=machine.hop_s if hop_us is None else hop_us * 1e-6,
        wake_s=machine.wake_s if wake_us is None else wake_us * 1e-6,
        switch_s=machine.switch_s if switch_us is None else switch_us * 1e-6,
        source_s=machine.source_s if source_us is None else source_us * 1e-6,
    )
    made = sweep.nodes(source, load, cpus, base_cost_us, common_stream)
    sweep.run(source, made, names, setting, seeds, plots=plots, json=json)
