"""The command that gives a query other numbers of replicas: scale."""

import math
from collections import Counter
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sched_ctl.cli.flags import Json, with_settings
from sched_ctl.cli.log import only_errors
from sched_ctl.config.settings import ConfigError, Settings
from sched_ctl.errors import UserError, near_miss

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sched_ctl.adapt.rescale import Change, Done
    from sched_ctl.service.bottlenecks import Found
    from sched_ctl.service.scaling import Memory

    # Of an engine a query, its change, why that cannot be made, and what it loses, in words
    Row = tuple[Found, str, Change, str | None, str]

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command()(scale)


@with_settings
def scale(
    settings: Settings,
    flags: list[str],
    query: Annotated[
        str | None, typer.Argument(help="Which query; without, all.", show_default=False)
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="[OPERATOR=]N",
            help="So many replicas, of each operator or of one; not what is worked out.",
            show_default=False,
        ),
    ] = None,
    back: Annotated[
        bool, typer.Option("--back", help="As many as before the last change.")
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Do it. The query restarts from its kept state.")
    ] = False,
    observe: Annotated[
        float, typer.Option(help="Look for so long first.", min=1, max=600, metavar="SECONDS")
    ] = 5.0,
    patience: Annotated[
        float,
        typer.Option(
            help="Wait so long for output after a restart, then take it back.",
            min=1,
            max=3600,
            metavar="SECONDS",
        ),
    ] = 60.0,
    json: Json = False,
) -> None:
    """Tell how many replicas a query needs, what they bring and cost; and make it so.

    One step for all of its operators. The seconds without output are measured and remembered, and
    what takes in less than before is taken back. Flink has to use its adaptive scheduler.

    Examples: sched-ctl scale;  sched-ctl scale etl --apply;  sched-ctl scale etl --to parse=3
    """
    import asyncio

    from sched_ctl import show
    from sched_ctl.adapt.rescale import cost_s
    from sched_ctl.engines.roster import wanted_kinds
    from sched_ctl.model.patterns import names_of
    from sched_ctl.plugins import drivers
    from sched_ctl.service import scaling
    from sched_ctl.service.session import no_engine

    if query is None and (to or back or apply):
        raise ConfigError("of which query?", "name it: sched-ctl scale QUERY --apply")
    if to and back:
        raise ConfigError("--to says how many, and --back as many as before", "leave out one")
    only_errors()
    kinds = wanted_kinds(settings, drivers.drivers())
    memory = scaling.memory_of(Path(settings.run_dir))
    found = asyncio.run(scaling.looked(settings, kinds, observe))
    if not found:
        raise no_engine(settings, kinds)
    rows = [
        _plan(one, name, kinds, to or [], _was(memory, one, name) if back else None)
        for one, name in _chosen(found, query)
    ]
    before = memory.read()
    if json and not apply:
        show.emit_json(
            [
                {"engine": one.engine.name, "query": name, "problem": problem}
                | _plain(change, cost_s(before, *_of(change)))
                for one, name, change, problem, _ in rows
            ]
        )
        return
    asked = [word for text in to or [] for word in ("--to", text)] + ["--back"] * back
    meant = Counter(n for one, name in _every(found) for n in {*names_of(one.engine.name, name)})
    for row in rows:
        if not json:
            _show(row, before, None if apply else _typed(meant, row, *flags, *asked, "--apply"))
    if apply:
        [row] = rows
        undo = _typed(meant, row, *flags, "--back", "--apply")
        _apply(row, kinds, memory, patience, json, undo)


def _typed(meant: "Mapping[str, int]", row: "Row", *flags: str) -> str:
    """The command for this query, called by its name alone where that means no other one.

    meant: name -> how many queries it means.
    """
    one, name, *_ = row
    query = name if meant.get(name) == 1 else f"{one.engine.name}/{name}"
    return " ".join(["sched-ctl scale", *map(quote, (query, *flags))])


def _apply(
    row: "Row",
    kinds: "Mapping[str, Any]",
    memory: "Memory",
    patience_s: float,
    json: bool,
    back: str,
) -> None:
    """back: the command that takes it back."""
    from sched_ctl import show
    from sched_ctl.service import scaling

    one, query, change, problem, _ = row
    if problem is not None:
        raise UserError(f"{query} is left as it is: {problem}")
    if not change.steps:
        if json:
            show.emit_json(None)
        return
    before = memory.last(*_of(change))
    try:
        done = scaling.carried_out(
            one.engine.target,
            kinds[one.engine.target.kind],
            change,
            memory,
            patience_s=patience_s,
            say=(lambda _: None) if json else (lambda line: show.text(f"  {line}")),
        )
    except KeyboardInterrupt:
        if memory.last(*_of(change)) == before:
            show.text("nothing was asked for yet, so nothing was changed")
        else:
            show.text(f"what was asked for stays; take it back: {back}")
        raise
    if json:
        show.emit_json(done)
    else:
        show.text(_outcome(done))
    if done.outcome == "back":
        raise UserError(f"{query} took in less than before, so it is as it was")


def _every(found: "list[Found]") -> "list[tuple[Found, str]]":
    return [(one, name) for one in found for name in one.window.now.topology.queries]


def _chosen(found: "list[Found]", query: str | None) -> "list[tuple[Found, str]]":
    """The queries that are meant; by their names, or with the engine before it."""
    from sched_ctl.model.patterns import names_of

    every = _every(found)
    if query is None:
        return every
    chosen = [(one, name) for one, name in every if query in names_of(one.engine.name, name)]
    if len(chosen) == 1:
        return chosen
    if not chosen:
        names = [name for _, name in every]
        raise UserError(
            f"no engine runs a query {query!r}{near_miss(query, names)}",
            f"queries: {', '.join(names[:10]) or 'none'}",
        )
    first, name = chosen[0]
    raise UserError(
        f"{len(chosen)} engines run a query {query!r}",
        f"say which: sched-ctl scale {quote(f'{first.engine.name}/{name}')}",
    )


def _was(memory: Any, one: "Found", name: str) -> "Mapping[tuple[str, ...], int]":
    done = memory.last(one.engine.name, name)
    if done is None:
        raise UserError(f"{name} was not changed since this machine was started")
    return {tuple(logical): count for logical, count in done.was}


def _plan(
    one: "Found",
    name: str,
    kinds: "Mapping[str, Any]",
    to: list[str],
    was: "Mapping[tuple[str, ...], int] | None",
) -> "Row":
    """The change of one query, and why it cannot be made, in words."""
    from sched_ctl.adapt import parallelism
    from sched_ctl.adapt.rescale import boundless, changed
    from sched_ctl.drivers import EngineError
    from sched_ctl.kernel.cpus import cpus_of
    from sched_ctl.service import scaling

    wanted = parallelism.wanted(one.window, one.assessment)
    parts, topology = wanted.stages, one.window.now.topology
    mine = [at for at, query in enumerate(parts.queries) if query == name]
    limits = boundless(wanted, name)
    problem, loses = None, ""
    try:
        scaler = scaling.scaler_of(one.engine.target, kinds[one.engine.target.kind])
        try:
            limits, loses = dict(scaler.current(name)), scaler.loses
        finally:
            scaler.close()
    except EngineError as error:
        problem = f"{error.message}; {error.hint}" if error.hint else error.message
    except UserError as error:
        problem = error.message
    told = was
    if to and told is None:
        names = {parts.names[at]: parts.logical[at] for at in mine if not parts.graph.ingress[at]}
        if not names:
            notes = "; ".join(topology.notes) or "the engine has told of no edge"
            raise UserError(
                f"{name}: which of its operators feeds which is not known: {notes[:300]}",
                "try again when it has tuples; a longer --observe waits for more reports",
            )
        told = _told(to, names, limits)
    change = changed(wanted, one.engine.name, name, cpus_of(topology.pids), limits, told)
    return one, name, change, problem, loses


def _told(
    to: list[str],
    names: "Mapping[str, tuple[str, ...]]",
    limits: "Mapping[tuple[str, ...], tuple[int, int]]",
) -> "dict[tuple[str, ...], int]":
    """What --to says, within what the engine can."""
    told: dict[tuple[str, ...], int] = {}
    for text in to:
        operator, _, number = text.rpartition("=")
        if not number.isdecimal() or not 0 < int(number) <= 1 << 15:
            raise ConfigError(f"--to {text}: {number!r} is no number of replicas", "from 1 on")
        if operator and operator not in names:
            raise ConfigError(
                f"--to {text}: no operator {operator!r} that can have replicas"
                f"{near_miss(operator, names)}",
                f"operators: {', '.join(names) or 'none'}",
            )
        for logical in [names[operator]] if operator else list(names.values()):
            most = limits.get(logical, (0, 1 << 15))[1]
            if int(number) > most:
                raise UserError(
                    f"--to {text}: there is room for {most} replicas",
                    "give the engine more slots (Flink) or tasks (Storm), or take fewer",
                )
            told[logical] = int(number)
    return told


def _of(change: "Change") -> tuple[str, str]:
    return change.engine, change.query


def _plain(change: "Change", cost_s: float) -> dict[str, Any]:
    after_s = change.pays_after_s(cost_s)
    return {
        "steps": [
            {
                "operator": step.operator,
                "now": step.now,
                "to": step.to,
                "rate": _known(step.rate),
                "true_rate": _known(step.true_rate),
            }
            for step in change.steps
        ],
        "held": _known(change.held),
        "holds": _known(change.holds),
        "source_held": change.source_held,
        "cpus": change.cpus,
        "needed_cpus": _known(change.needed_cpus),
        "restart_s": _known(cost_s),
        "pays_after_s": _known(after_s),
    }


def _known(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _show(row: "Row", before: "list[Done]", typed: str | None) -> None:
    """typed: the command that makes it so, unless this is the one."""
    from sched_ctl import show
    from sched_ctl.adapt.rescale import cost_s

    one, name, change, problem, loses = row
    engine = one.engine.name
    show.text()
    if not change.steps:
        why = "" if problem is None else f" ({problem})"
        if change.holds < 0.995:
            show.text(f"{engine} {name}: {_brings(change)}; no more can be had{why}")
        else:
            show.text(f"{engine} {name}: {change.unchanged}{why}")
        return
    all_of_it = "could emit" if change.source_held else "want"
    show.text(f"{engine} {name}: takes in {change.held:.0%} of what its sources {all_of_it}")
    show.table(
        ("operator", ">now", ">to", ">has to take in", ">one can do"),
        (
            (
                step.operator,
                step.now,
                step.to,
                *(
                    f"{show.number(rate)}/s" if math.isfinite(rate) else "-"
                    for rate in (step.rate, step.true_rate)
                ),
            )
            for step in change.steps
        ),
    )
    show.text(f"  {_brings(change)}")
    cost = cost_s(before, *_of(change))
    if math.isfinite(cost):
        after_s = change.pays_after_s(cost)
        pays = f", which pays after {after_s:.0f} s" if math.isfinite(after_s) else ""
        show.text(f"  a restart takes about {cost:.1f} s without output{pays}")
    else:
        show.text("  what a restart takes is not known before the first one")
    if problem is not None:
        show.text(f"  cannot be done: {problem}")
        return
    if loses:
        show.text(f"  it restarts its workers: {loses}")
    if typed is not None:
        show.text(f"  make it so: {typed}")


def _brings(change: "Change") -> str:
    if change.needed_cpus > change.cpus:
        most = "takes up to" if change.source_held else "needs"
        cpus = f"all of it {most} {change.needed_cpus:.1f} CPUs, and {change.cpus:g} are there"
    else:
        cpus = f"needs {change.needed_cpus:.1f} of {change.cpus:g} CPUs"
    threads = sum(step.to - step.now for step in change.steps)
    if change.gain > 1.005:
        return f"{cpus}; it would take in {change.holds:.0%}, {change.gain:.1f} times as much"
    if threads < 0:
        return f"{cpus}; {-threads} threads fewer, and it still takes in {change.holds:.0%}"
    return f"{cpus}; it would take in {change.holds:.0%}"


def _outcome(done: "Done") -> str:
    from sched_ctl import show

    rates = ""
    if done.before is not None and done.after is not None:
        before, after = (show.number(rate, 4) for rate in (done.before, done.after))
        rates = f": took in {before} tuples/s, takes in {after}"
    return f"{done.outcome}{rates}; {done.silent_s or 0:.1f} s without output"
