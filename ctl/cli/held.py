"""Commands that show what holds operators back: bottlenecks, top."""

from collections import Counter
from contextlib import suppress
from typing import Annotated, Any

import typer

from sched_ctl.cli.flags import DEFAULT_RUN_DIR, Json, RunDir
from sched_ctl.config.settings import ConfigError
from sched_ctl.errors import UserError

__all__ = ["add_to", "most_telling"]

FINE = ("keeps-up", "input-bound", "idle", "unknown")  # verdicts on queries that nothing holds
LEAST_OPERATORS = 3
MOST_LETTERS = 19  # of a word in a table on a terminal; a verdict has as many
MOST_OPERATORS = 10  # of a query on a terminal, where no more are asked for
LAST_LINES = 2  # the prompt, and what is said below all
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
    from sched_ctl.service.idle import nothing
    from sched_ctl.service.socket import request

    answer = request(run_dir, "bottlenecks")
    if json:
        show.emit_json(answer)
        return
    if not answer:
        show.text(nothing(request(run_dir, "status")))
    for query in answer:
        if query["verdict"] == "lock-bound":
            with suppress(UserError):  # its operator has ended
                query["lock"] = _lock(request(run_dir, "threads", {"what": query["operator"]}))
    if everything or not show.is_narrow():
        for query in answer:
            _whole(query, None)
    else:
        _on_a_screen(answer)


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


def _lock(threads: dict[str, Any]) -> str | None:
    """The lock for which most of these threads wait, and who has it, in words."""
    from sched_ctl.cli import stacks
    from sched_ctl.kernel import procfs

    of = [(pid, tid) for tid in threads["tids"] if (pid := procfs.process_of(tid)) is not None]
    found = list(stacks.holders(of).values())
    times = Counter((held.lock, held.holder) for held in found)
    most = max(found, key=lambda held: times[held.lock, held.holder], default=None)
    return None if most is None else stacks.held_in_words(most)


def _on_a_screen(answer: list[dict[str, Any]]) -> None:
    """As much as fits, first what is held back: whole queries, then one line each."""
    from sched_ctl import show

    room = show.height() - LAST_LINES
    shown, held = 0, sum(query["verdict"] not in FINE for query in answer)
    ranked = most_telling(answer)
    for query in ranked:
        most = MOST_OPERATORS
        while not shown and most > LEAST_OPERATORS and _lines(query, most) > room - LAST_LINES:
            most -= 1
        lines = _lines(query, most)
        if shown and lines > room:
            break
        _whole(query, most)
        room -= lines
        shown += 1
    rest = ranked[shown:]
    if not rest:
        return
    show.text()
    for query in rest[: max(0, room - 1)]:
        name = show.short(query["query"], 26)
        show.text(show.short(f"{name}: {said(query)}", show.width()))
    show.text(f"{held} of {len(answer)} queries are held back: --all shows each with its operators")


def most_telling(answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """First those that something holds back."""
    return sorted(answer, key=lambda query: query["verdict"] in FINE)


def _telling(operators: list[dict[str, Any]], most: int | None) -> list[dict[str, Any]]:
    """The so many that are held, or run or wait most; in the order of the graph."""
    if most is None or len(operators) <= most:
        return operators
    ranked = sorted(
        range(len(operators)),
        key=lambda row: (
            operators[row]["verdict"] in FINE,
            -((operators[row]["run"] or 0.0) + (operators[row]["wait"] or 0.0)),
        ),
    )
    return [operators[row] for row in sorted(ranked[:most])]


def _words(query: dict[str, Any]) -> list[str]:
    """What is said above the table, a paragraph each."""
    lines = [f"{query['engine']} {query['query']}: {said(query)}", f"  {query['advice']}"]
    if len({horizon["verdict"] for horizon in query["horizons"]}) > 1:
        lines.append(f"  by {', '.join(map(horizon_words, query['horizons']))}")
    if query.get("lock"):
        lines.append(f"  it waits for {query['lock']}")
    return lines + [f"  {line}" for line in replicas(query)]


def _asleep(operators: list[dict[str, Any]], query: str) -> list[str]:
    """Where operators of the query sleep with work in hand, a paragraph each."""
    from sched_ctl import show
    from sched_ctl.kernel.sleeping import in_words

    return [
        f"  of the time that {show.inside(operator['operator'], query)} is asleep with work in "
        f"hand: {places}"
        for operator in operators
        if (places := in_words(operator["sleeps"]))
    ]


def _lines(query: dict[str, Any], most: int) -> int:
    """Lines that a query takes on a screen, with the empty one before it."""
    from sched_ctl import show

    operators = _telling(query["operators"], most)
    words = [*_words(query), *_asleep(operators, query["query"])]
    hidden = len(operators) < len(query["operators"])
    rows = show.table_lines(*_table(query, operators, MOST_LETTERS * 2))
    return 1 + sum(map(show.lines, words)) + rows + hidden


def _whole(query: dict[str, Any], most: int | None) -> None:
    """A query with its operators; most: of them."""
    from sched_ctl import show

    operators = _telling(query["operators"], most)
    show.text()
    for line in _words(query):
        show.text(line)
    show.table(*_table(query, operators, MOST_LETTERS * (4 if most is None else 2)))
    if len(operators) < len(query["operators"]):
        show.text(f"  and {len(query['operators']) - len(operators)} more operators: --all")
    for line in _asleep(operators, query["query"]):
        show.text(line)


def _table(
    query: dict[str, Any], operators: list[dict[str, Any]], letters: int
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows of operators of a query. letters: of a name, on a terminal."""
    from sched_ctl import show

    def fitted(text: str) -> str:  # a long word would leave no room for a table
        words = show.short(text, letters).split(" ")
        return " ".join(show.short(word, MOST_LETTERS) for word in words)

    shares = ("run", "wait", "backpressured", "blocked", "idle")
    names: tuple[str, ...] = ("sure", "runs", "CPU wait", "full", "asleep", "no input")
    if show.is_narrow():
        names = tuple(name.replace(" ", "\n") for name in names)
    return (
        ("operator", "verdict", *(f">{name}" for name in names)),
        [
            (
                fitted(show.inside(operator["operator"], query["query"])),
                fitted(verdict(operator, query["query"])),
                show.percent(operator["confidence"]),
                *(show.percent(operator[share]) for share in shares),
            )
            for operator in operators
        ],
    )


def replicas(query: dict[str, Any]) -> list[str]:
    """What another number of replicas would do, in words; nothing where today's is right."""
    from sched_ctl import show

    more, fewer = [], []
    for stage in query["parallelism"]:
        now, needed = stage["replicas"], stage["needed"]
        name = f"{stage['operator']} {now} -> {needed}"
        could, rate = (show.number(stage[key] or 0.0) for key in ("true_rate", "rate"))
        if needed > now:
            first, up_to = (" at first", "up to ") if stage["source_held"] else ("", "")
            more.append(f"{name} replicas{first}: one can do {could} of {up_to}{rate} tuples/s")
        elif needed < now and not stage["source_held"]:
            fewer.append(f"{name} replicas would do for {rate} tuples/s")
    lines = more or fewer
    needed_cpus, cpus = query["needed_cpus"], query["cpus"]
    if more and needed_cpus and needed_cpus > cpus:
        most = "takes up to" if query["source_held"] else "needs"
        lines.append(f"all of it {most} {needed_cpus:.1f} CPUs, and {cpus:g} are there")
    return lines


def said(query: dict[str, Any]) -> str:
    """What holds a query, how sure that is, and how late its tuples are."""
    from sched_ctl import show

    named = show.inside(query["operator"], query["query"])
    words = f"{query['verdict']}: {named} ({show.percent(query['confidence'])} sure"
    words += ")" if query["settled"] else ", by one short look)"
    if query["late_s"] is not None:
        words += f", {show.latency(query['late_s'])} late"
        if query["late_p99_s"] is not None:
            words += f", p99 {show.latency(query['late_p99_s'])}"
    return words


def horizon_words(horizon: dict[str, Any]) -> str:
    return f"the last {horizon['seconds']:.0f} s: {horizon['verdict']}"


def verdict(operator: dict[str, Any], query: str) -> str:
    from sched_ctl import show

    by = operator["by"]
    return str(operator["verdict"]) + (f" by {show.inside(by, query)}" if by else "")
