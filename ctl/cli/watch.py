"""The command that looks without touching: watch."""

from typing import Annotated

import typer

from sched_ctl.cli.flags import with_settings
from sched_ctl.config.settings import Settings

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command()(watch)


@with_settings
def watch(
    settings: Settings,
    named: frozenset[str],
    duration: Annotated[
        float | None,
        typer.Option(
            help="Stop after so many seconds.", min=0, show_default=False, metavar="SECONDS"
        ),
    ] = None,
) -> None:
    """Find the engines and look at them, until Ctrl-C; nothing is changed.

    Meanwhile top, bottlenecks, explain and status answer, and --metrics and --record work as with
    load. It takes no lock, and may run beside a controller, which then is the one that answers: for
    this one add --run-dir RUN_DIR/watch.

    Examples: sched-ctl watch;  sched-ctl watch --metrics 127.0.0.1:9464 --record /var/log/sched-ctl
    """
    import sys

    from sched_ctl.controller.loop import Controller
    from sched_ctl.plugins import drivers
    from sched_ctl.service import observe
    from sched_ctl.service.sections import check_sections

    def started(controller: Controller) -> None:
        names = ", ".join(list(controller.engines)[:8]) or "no engine yet"
        print(f"looking at {names}; nothing is changed", file=sys.stderr)
        print("ask with: sched-ctl top, bottlenecks, explain; end with Ctrl-C", file=sys.stderr)

    check_sections(settings)
    observe.run(
        settings,
        drivers.drivers(),
        duration_s=float("inf") if duration is None else duration,
        started=started,
        named=named,
    )
