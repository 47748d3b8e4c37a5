"""Commands that show what holds operators back: bottlenecks, top."""

from typing import Annotated, Any

import typer

from sched_ctl.cli.flags import DEFAULT_RUN_DIR, Json, RunDir
from sched_ctl.config.settings import ConfigError

__all__ = ["add_to", "most_telling"]

FINE = ("keeps-up", "input-bound", "idle", "unknown")  # verdicts on queries that nothing holds
MOST = 3  # queries on a terminal, where no more are asked for
PATIENCE_S = 5.0  # for a controller that is being started at the same time


def add_to(app: typer.Typer) -> None:
    app.command()(bottlenecks)
    app.command()(top)


def bottlenecks(
    everything: Annotated[bool, typer.Option("--all", help="Show all queries.")] = False,
    run_dir: RunDir = DEFAULT_RUN_DIR,
    json: Json = False,
) -> None:
    """Tell what holds each query and operator back, with the evidence.

    A running controller is asked; the first answer takes two seconds, in which the times of the
    threads are read.
    """
    from sched_ctl import show
    from sched_ctl.kernel.sleeping import in_words
    from sched_ctl.service.idle import nothing
    from sched_ctl.service.socket import request

    answer = request(run_dir, "bottlenecks")
    if json:
        show.emit_json(answer)
        return
    if not answer:
        show.text(nothing(request(run_dir, "status")))
    shown = answer if everything or not show.is_narrow() else most_telling(answer)
    for query in shown:
        show.text()
        show.text(f"{query['engine']} {query['query']}: {said(query)}")
        show.text(f"  {query['advice']}")
        if len({horizon["verdict"] for horizon in query["horizons"]}) > 1:
            show.text(f"  by {', '.join(map(horizon_words, query['horizons']))}")
        for line in replicas(query):
            show.text(f"  {line}")
        show.table(
            ("operator", "verdict", ">sure", ">runs", ">CPU wait", ">full", ">asleep", ">no input"),
            (
                (
                    operator["operator"].rpartition("/")[2],
                    verdict(operator),
                    percent(operator["confidence"]),
                    *(
                        percent(operator[share])
                        for share in ("run", "wait", "backpressured", "blocked", "idle")
                    ),
                )
                for operator in query["operators"]
            ),
        )
        for operator in query["operators"]:
            if places := in_words(operator["sleeps"]):
                name = operator["operator"].rpartition("/")[2]
                show.text(f"  of the time that {name} is asleep with work in hand: {places}")
    if len(shown) < len(answer):
        held = sum(query["verdict"] not in FINE for query in answer)
        show.text()
        show.text(f"{held} of {len(answer)} queries are held back: --all shows all of them")


def top(
    once: Annotated[bool, typer.Option("--once", help="Print it once, and end.")] = False,
    sort: Annotated[
        str, typer.Option(help="One of: urgency, queue, age, wait, run, operator, verdict, graph.")
    ] = "urgency",
    only: Annotated[
        str, typer.Option("--filter", help="Show only operators with this in their name.")
    ] = "",
    helpers: Annotated[
        bool, typer.Option("--helpers", help="Show threads that run no operator, too.")
    ] = False,
    interval: Annotated[
        float, typer.Option(help="Seconds from one look to the next.", min=0.2, max=60)
    ] = 2.0,
    run_dir: RunDir = DEFAULT_RUN_DIR,
    json: Json = False,
) -> None:
    """Watch the operators: queues, ages, priorities, waits for a CPU, what holds them back.

    Keys: ? tells them all; s sorts by the next column, / filters by name, q quits.
    """
    from sched_ctl import show
    from sched_ctl.cli import screen
    from sched_ctl.service.socket import request

    if sort not in screen.SORTS:
        raise ConfigError(f"cannot sort by {sort!r}", f"one of: {', '.join(screen.SORTS)}")

    first = request(run_dir, "top", patience_s=PATIENCE_S)
    if json:
        show.emit_json(first)
        return
    view = screen.View(sort=sort, only=only, helpers=helpers)
    if once or not screen.can_redraw():
        screen.print_once(first, view)
    else:
        screen.live(lambda: request(run_dir, "top"), view, interval)


def most_telling(answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many as a screen has, first those that something holds back."""
    return sorted(answer, key=lambda query: query["verdict"] in FINE)[:MOST]


def replicas(query: dict[str, Any]) -> list[str]:
    """What another number of replicas would do, in words; nothing where today's is right."""
    from sched_ctl import show

    more, fewer = [], []
    for stage in query["parallelism"]:
        now, needed = stage["replicas"], stage["needed"]
        name = f"{stage['operator']} {now} -> {needed}"
        bound = " or more" if stage["at_least"] else ""
        could, rate = (show.number(stage[key] or 0.0) for key in ("true_rate", "rate"))
        if needed > now:
            more.append(f"{name}{bound} replicas: one can do {could} of {rate} tuples/s")
        elif needed < now and not stage["at_least"]:
            fewer.append(f"{name} replicas would do for {rate} tuples/s")
    lines = more or fewer
    needed_cpus, cpus = query["needed_cpus"], query["cpus"]
    if more and needed_cpus and needed_cpus > cpus:
        lines.append(f"all of it needs {needed_cpus:.1f} CPUs, and {cpus:g} are there")
    return lines


def said(query: dict[str, Any]) -> str:
    """What holds a query, how sure that is, and how late its tuples are."""
    words = f"{query['verdict']}: {query['operator']} ({percent(query['confidence'])} sure"
    words += ")" if query["settled"] else ", by one short look)"
    if query["late_s"] is not None:
        words += f", {duration(query['late_s'])} late"
        if query["late_p99_s"] is not None:
            words += f", p99 {duration(query['late_p99_s'])}"
    return words


def horizon_words(horizon: dict[str, Any]) -> str:
    return f"the last {horizon['seconds']:.0f} s: {horizon['verdict']}"


def duration(seconds: float) -> str:
    from sched_ctl import show

    whole = seconds >= 1.0
    return f"{show.number(seconds)} s" if whole else f"{show.number(seconds * 1e3)} ms"


def verdict(operator: dict[str, Any]) -> str:
    by = operator["by"]
    return str(operator["verdict"]) + (f" by {by.rpartition('/')[2]}" if by else "")


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
