"""Commands around the lab engine: demo, lab."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sched_ctl.cli.flags import DEFAULT_RUN_DIR, Json, RunDir, asked
from sched_ctl.cli.plain import Command
from sched_ctl.config.settings import ConfigError

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command()(demo)
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(cls=_WithTheEngines, context_settings=passed_on)(lab)


class _WithTheEngines(Command):
    """A command whose help ends with the options of the lab engine itself."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from sched_ctl import show
        from sched_ctl.lab import engine

        super().format_help(ctx, formatter)
        show.text("Options of the engine, behind the workload:")
        for option, words in engine.options():
            show.entry(f"  {option}", words)


def demo(
    workload: Annotated[
        str, typer.Option(help="Workload: syn, etl, ..., or a graph file.", metavar="NAME|FILE")
    ] = "mixed",
    load: Annotated[
        float, typer.Option(help="CPU time asked for, as a part of what there is.", min=0.05, max=2)
    ] = 1.2,
    policy: Annotated[
        str,
        typer.Option(help="Policy to compare with the OS; auto = what load takes on this machine."),
    ] = "auto",
    backend: Annotated[str, typer.Option(help="How it reaches the kernel.")] = "auto",
    period: Annotated[
        float, typer.Option(help="Seconds from pass to pass.", min=0.001, metavar="SECONDS")
    ] = 0.5,
    cpus: Annotated[int, typer.Option(help="CPUs that the engine may use.", min=1, max=1024)] = 1,
    phases: Annotated[int, typer.Option(help="Phases under each scheduler.", min=2, max=100)] = 4,
    phase: Annotated[
        float, typer.Option(help="Length of a phase.", min=0.5, max=3600, metavar="SECONDS")
    ] = 6.0,
    slow: Annotated[
        bool,
        typer.Option("--slow", help="Allow for a controller that starts in seconds.", hidden=True),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of arrivals and filters.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the plots.", metavar="DIR")] = Path(
        "sched-ctl-demo"
    ),
    picture: Annotated[
        bool, typer.Option("--picture/--no-picture", help="Draw what was measured.")
    ] = True,
    run_dir: RunDir = DEFAULT_RUN_DIR,
    json: Json = False,
) -> None:
    """See the effect: the built-in lab engine under the OS's own scheduling and under a policy.

    Three light queries run beside one that always has more to do than a CPU can give it. The two
    schedulers take turns (ABBA), so that neither has the better times. Takes about a minute;
    nothing on the machine but the lab engine is touched.

    Examples: sched-ctl demo;  sched-ctl demo --workload syn --load 0.9 --policy hr
    """
    from sched_ctl.demo.results import AUTO, Options
    from sched_ctl.demo.run import run
    from sched_ctl.lab import engine
    from sched_ctl.plugins import registry

    with asked():
        engine.check_name(workload)
        if policy != AUTO:
            registry.policy(policy)
    run(
        Options(
            workload=workload,
            load=load,
            policy=policy,
            backend=backend,
            period_s=period,
            cpus=cpus,
            phases=phases,
            phase_s=phase,
            slow=slow,
            seed=seed,
            out=out if picture else None,
            run_dir=run_dir,
        ),
        json=json,
    )


def lab(
    context: typer.Context,
    workload: Annotated[
        str, typer.Argument(help="Workload: syn, etl, ..., or a graph file.", metavar="NAME|FILE")
    ],
) -> None:
    """Run the lab engine: queries as threads that burn CPU time, until it ends or Ctrl-C.

    Example: sched-ctl lab etl --utilisation 0.9 --cpus 1 --threads pool:2
    """
    from sched_ctl.lab import engine
    from sched_ctl.workloads.resolved import resolved_file

    if workload.startswith("-"):
        raise ConfigError(f"no workload before {workload}", "sched-ctl lab WORKLOAD [OPTION ...]")
    with asked():
        engine.check_name(workload)
    with engine.workload_file(workload) as path:
        resolved = resolved_file(path)
    engine.become(resolved, context.args)
