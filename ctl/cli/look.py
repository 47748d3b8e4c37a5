"""Commands that only look: check, engines, policies, plan, status, explain, config."""

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sched_ctl.cli.flags import DEFAULT_RUN_DIR, Json, RunDir, with_settings
from sched_ctl.cli.log import only_errors
from sched_ctl.config.settings import Settings
from sched_ctl.errors import UserError, printable

if TYPE_CHECKING:
    from sched_ctl.controller.loop import Controller
    from sched_ctl.model.programs import Match
    from sched_ctl.model.topology import Thread
    from sched_ctl.probes.holders import Held

__all__ = ["add_to"]

log = logging.getLogger(__name__)

LOCK_BOUND = "lock-bound"
WOKEN_S = 1.5  # that it is looked who wakes whom, for a draft's edges


def add_to(app: typer.Typer) -> None:
    for command in (check, engines, policies, plan, status, explain, config):
        app.command()(command)


def check(
    everything: Annotated[
        bool, typer.Option("--all", help="Show all findings, not ten rows at most.")
    ] = False,
    json: Json = False,
) -> None:
    """Tell what this machine can do, why not more, and what to do about it."""
    from sched_ctl import show
    from sched_ctl.cli import check as machine

    findings = machine.check()
    if json:
        show.emit_json([{s: getattr(f, s) for s in f.__slots__} for f in findings])
        return
    words, remedy = machine.verdict(findings)
    show.text(words)
    if remedy is not None:
        show.copied(f"    {remedy}")
    show.text()
    signs = {True: "✓", False: "✗", None: "·"}
    for finding in findings if everything else machine.few(findings):
        show.entry(f"{signs[finding.good]} {finding.topic}", finding.what, finding.do or "")
        if finding.command is not None:
            show.copied(f"{'':{show.ENTRY}}    {finding.command}")
    if not everything:
        show.text()
        show.text(f"all {len(findings)} findings: sched-ctl check --all")


@with_settings
def engines(
    settings: Settings,
    json: Json = False,
    explain: Annotated[
        int | None,
        typer.Option(
            "--explain",
            metavar="PID",
            help="Tell what each thread of a process is by its declaration, or draft one.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the engines on this machine, their queries, and how many threads are known."""
    import asyncio

    if explain is not None:
        _threads(settings, explain, json)
        return

    from sched_ctl import show
    from sched_ctl.plugins import drivers
    from sched_ctl.service.session import look, no_engine

    only_errors()
    found = asyncio.run(look(settings, drivers.drivers()))
    if json:
        show.emit_json(found)
        return
    for name, why in drivers.problems().items():
        show.text(f"{name}: {why}")
    if not found:
        missing = no_engine(settings, drivers.drivers())
        show.text(missing.message)
        show.text(f"hint: {(missing.hint or '').partition('; sched-ctl engines')[0]}")
        _unnamed(settings)
        return
    show.table(
        ("engine", ">pid", "user", "state", "queries", ">operators", ">threads", "remarks"),
        (
            (
                engine["engine"],
                engine["pid"],
                engine["user"],
                engine["state"],
                _queries(engine),
                engine["operators"],
                engine["threads"],
                "; ".join(filter(None, [engine["problem"] or _late(engine), *engine["notes"][:3]])),
            )
            for engine in found
        ),
    )
    for engine in found:
        place = f"in {engine['runs_in']}, " if engine.get("runs_in") else ""
        show.text(f"{engine['engine']}: {place}ordered {engine['ordered']}")
    _unnamed(settings)


def _unnamed(settings: Settings) -> None:
    """Programs of our declarations that run here and are not taken, for nobody named them."""
    from sched_ctl import show
    from sched_ctl.drivers import finding, program

    for trouble in program.broken():
        show.text(f"left out: {trouble}")
    if settings.engine:
        return
    declared = {one.name for one in settings.program}
    known = [one for one in program.shipped().values() if one.name not in declared]
    here = finding.found([*known, *settings.program])

    def processes(name: str) -> list[int]:
        return [pid for mine in here[name].values() for pid in mine]

    taken = {pid for name in declared for pid in processes(name)}
    for one in known:
        if pids := [pid for pid in processes(one.name) if pid not in taken]:
            more = f" and {len(pids) - 3} more" if len(pids) > 3 else ""
            told = "" if one.threads else ", and only as a whole"
            show.text(
                f"program:{one.name} runs here (pid {', '.join(map(str, pids[:3]))}{more}); "
                f"it is ordered if you name it{told}:"
            )
            show.text(f"  sched-ctl load --engine program:{one.name}")


def _threads(settings: Settings, pid: int, json: bool) -> None:
    """What each thread of a process is, by the declaration that means it; else a draft of one."""
    from sched_ctl import show
    from sched_ctl.drivers import drafts, program
    from sched_ctl.drivers.threads import threads_of
    from sched_ctl.model.programs import OPERATOR

    threads = threads_of(pid)
    if not threads:
        raise UserError(f"there is no process {pid}", "its id is in ps -e")
    known = (*settings.program, *program.shipped().values())
    found, matches = drafts.explained(known, pid, threads)
    started = drafts.started_with(pid)
    if found is None and started[0] == "java":
        threads = drafts.told_by_java(pid, threads)
        matches = [(thread, None) for thread in threads]
    edges = {} if found else drafts.edges_seen(pid, WOKEN_S, threads)
    mine = any(match is not None and match.role == OPERATOR for _, match in matches)
    whole = program.WHOLE_NAME if found is not None and found.whole and not mine else None
    rows = [_thread(thread, match, whole) for thread, match in matches]
    drafted = "" if found else drafts.draft(pid, threads, edges, started)
    if json:
        show.emit_json({"program": found and found.name, "threads": rows, "draft": drafted or None})
        return
    if found is None:
        if (engine := _engine_of(settings, pid)) is not None:
            show.text(f"process {pid} is of {engine}, which a driver schedules: it needs no more.")
        _show_draft(pid, drafted)
        return
    _show_threads(pid, found.name, rows)
    if whole:
        show.text(program.WHOLE)


def _thread(thread: "Thread", match: "Match | None", whole: str | None) -> dict[str, Any]:
    """whole: the name of the one operator that all threads of its process are."""
    from sched_ctl.model.programs import OPERATOR

    return {
        "tid": thread.tid,
        "name": thread.name,
        "pattern": match and match.pattern,
        "role": OPERATOR if whole else match and match.role,
        "query": match and match.query,
        "operator": whole or (match and match.operator),
        "also": list(match.others) if match else [],
    }


def _show_threads(pid: int, name: str, rows: list[dict[str, Any]]) -> None:
    """Of a process of a declared program."""
    from sched_ctl import show

    show.text(f"process {pid} is of the program {name}")
    show.table(
        (">tid", "thread", "is", "by the pattern"),
        (
            (
                row["tid"],
                row["name"],
                show.short(_taken_for(row), 26),
                show.short((row["pattern"] or "none") + (" and others" if row["also"] else ""), 25),
            )
            for row in rows
        ),
    )


def _engine_of(settings: Settings, pid: int) -> str | None:
    """The engine that a driver found and that this process is of."""
    import asyncio

    from sched_ctl.plugins import drivers
    from sched_ctl.service.session import look

    only_errors()
    for engine in asyncio.run(look(settings, drivers.drivers())):
        if pid == engine["pid"] or pid in engine["processes"]:
            return str(engine["engine"])
    return None


def _show_draft(pid: int, draft: str) -> None:
    """A declaration to begin with."""
    from sched_ctl import show

    show.text(f"no declaration means process {pid}. A first draft, by its threads' names:")
    show.text("")
    for line in draft.split("\n"):
        show.copied(line)
    if draft.endswith("whole = true"):
        show.text("")
        show.text(
            "Its threads have no names of their own, as those of a pool: only the whole "
            "process can be ordered against others. Of one that has just begun, look again."
        )


def _taken_for(row: dict[str, Any]) -> str:
    """A thread's role; an operator's name, after its query's where that is known."""
    if not row["operator"]:
        return row["role"] or "left alone"
    return "operator " + "/".join(filter(None, (row["query"], row["operator"])))


def _late(engine: dict[str, Any]) -> str | None:
    """Why nothing is known of an engine that was found."""
    late = "has not answered yet: it may lack CPU time; try again"
    return late if engine["state"] == "new" else None


def _queries(engine: dict[str, Any]) -> str:
    names = engine["queries"]
    if not names and engine["state"] == "ok":
        return "none"
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def policies(json: Json = False) -> None:
    """List the policies: what each is best at, what it needs to know, its options."""
    from sched_ctl import show
    from sched_ctl.model.policy import Policy
    from sched_ctl.plugins import registry

    rows: list[dict[str, Any]] = []
    for name, made in registry.policies().items():
        row: dict[str, Any] = {"policy": name, "goal": "", "needs": [], "options": {}}
        try:
            policy = made if isinstance(made, Policy) else registry.policy(name)
        except UserError as error:
            row["goal"] = f"(needs options: {error.message})"
        else:
            row |= {
                "goal": policy.goal,
                "needs": sorted(policy.needs),
                "beyond_wake_ups": list(policy.beyond_wake_ups),
                "level": policy.level.value,
                "spacing": policy.spacing.value,
            }
        row["options"] = {
            option: None if parameter.default is parameter.empty else str(parameter.default)
            for option, parameter in registry.options_of(made).items()
        }
        rows.append(row)
    if json:
        show.emit_json(rows)
        return
    show.table(
        ("policy", "best at", "needs", "by wake-ups", "options"),
        (
            (
                row["policy"],
                row["goal"],
                ", ".join(row["needs"]) or "nothing",
                "no" if row.get("beyond_wake_ups") else "enough",
                ", ".join(f"{k}={v}" if v is not None else k for k, v in row["options"].items()),
            )
            for row in rows
        ),
    )
    for name, why in registry.problems().items():
        show.text(f"{name}: {why}")


@with_settings
def plan(
    settings: Settings,
    json: Json = False,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Also write the engines' graphs and metrics to this file, for simulate.",
            show_default=False,
        ),
    ] = None,
    observe: Annotated[
        float,
        typer.Option(
            help="Seconds between two readings of the engines.",
            min=0.05,
            max=600,
            metavar="SECONDS",
        ),
    ] = 1.0,
    threads: Annotated[
        bool, typer.Option("--threads", help="Show each thread, those of no operator too.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show all queries.")] = False,
) -> None:
    """Show the order that load would apply now, and apply nothing.

    Also tells which operators need more replicas: no order gives those enough.

    Examples: sched-ctl plan --policy hr;  sched-ctl plan --engine flink --json
    """
    from sched_ctl import show
    from sched_ctl.backends.undo import journal as journals
    from sched_ctl.cli import planned
    from sched_ctl.plugins import drivers
    from sched_ctl.runfolder import RunFolder
    from sched_ctl.service import bottlenecks, views
    from sched_ctl.service import session as loading
    from sched_ctl.service.idle import nothing
    from sched_ctl.service.sections import check_sections

    check_sections(settings)
    only_errors()  # what is to be known is told below
    controller = loading.plan(settings, drivers.drivers(), observe)
    if save is not None:
        _save(save, controller)
    journal = RunFolder(Path(settings.run_dir)).journal
    plans = views.plans(controller, journals.had(journal))
    wanting = bottlenecks.wanting(bottlenecks.assessed(controller))
    for rule in plans:
        rule["replicas"] = [row for row in wanting if row["engine"] in rule["engines"]]
    spared = views.spared(controller)
    problems = [*views.problems(controller), *spared]
    empty = not any(rule["threads"] for rule in plans) and not spared
    if json:
        show.emit_json(plans)
        if not empty and (late := _unheard(controller)) is not None:
            print(printable(late), file=sys.stderr)
    elif not empty:  # else the error says all of it
        for rule in plans:
            planned.show_plan(rule, None if everything else planned.MOST_QUERIES)
            if threads:
                planned.show_threads(rule)
        planned.show_replicas(wanting)
        for problem in problems:
            show.text(show.short(problem, 240))
        if (late := _unheard(controller)) is not None:
            show.text(late)
        in_force = _in_force(Path(settings.run_dir), left=journals.is_left(journal))
        _show_changes(plans, views.status(controller), in_force)
    for rule in plans:
        if rule["problem"]:
            raise UserError(f"policy {rule['name']}: {rule['problem']}")
    if empty:
        raise UserError(
            f"nothing to schedule: {'; '.join(problems[:5]) or nothing(views.status(controller))}",
            "sched-ctl engines shows what is found",
        )


def _unheard(controller: "Controller") -> str | None:
    """Which engines a plan is without, in words; none that no policy selects."""
    from sched_ctl.service import views
    from sched_ctl.service.idle import unheard

    claims, sections = controller.claims, [rule.section for rule in controller.rules]
    return unheard(
        {"engines": views.engines(controller)},
        lambda engine: any(claims.covers(section, engine) for section in sections),
    )


def _show_changes(
    plans: Sequence[dict[str, Any]], told: dict[str, Any], in_force: dict[str, Any] | str | None
) -> None:
    """What is in force now, and what load would change of it."""
    from sched_ctl import show
    from sched_ctl.cli import planned
    from sched_ctl.service.idle import idle

    if told["queries"]:
        if (why := idle(told)) is not None:
            show.text(why)
        show.text(planned.changes(plans, in_force))


def _in_force(run_dir: Path, *, left: bool = False) -> dict[str, Any] | str | None:
    """What a controller that runs tells of itself, or why it does not, in words; one that only
    looks has nothing in force. left: an earlier one has not put back all.
    """
    before = "what a controller set stays, though none runs: load would put it back first"
    from sched_ctl.service.socket import NoController, request

    try:
        found: dict[str, Any] = request(run_dir, "status", timeout_s=5.0)
    except NoController:
        return before if left else None
    except UserError as error:
        return f"what is in force is not known: {error.message}"
    if found["only_looks"]:
        return before if left else None
    return found


def _save(path: Path, controller: "Controller") -> None:
    """Write what the one engine that there is runs, and what was measured of it."""
    from sched_ctl.telemetry import snapshots

    engines = [engine for engine in controller.engines.values() if engine.snapshot is not None]
    if len(engines) != 1:
        found = ", ".join(engine.name for engine in engines) or "no engine"
        raise UserError(
            f"--save writes what one engine runs, and found {found}", "choose one with --engine"
        )
    [engine] = engines
    assert engine.snapshot is not None
    provides = engine.provides or frozenset()
    snapshots.save(path, snapshots.measured(engine.snapshot, engine.then(), provides))


def status(
    everything: Annotated[
        bool, typer.Option("--all", help="Show all queries, and the controller's inside.")
    ] = False,
    run_dir: RunDir = DEFAULT_RUN_DIR,
    json: Json = False,
) -> None:
    """Show what the running controller does: policies, queries, what came of it, problems."""
    from sched_ctl import show
    from sched_ctl.cli import standing
    from sched_ctl.service.socket import request

    answer = request(run_dir, "status")
    if json:
        show.emit_json(answer)
        return
    standing.summary(answer, everything=everything)
    if everything:
        standing.inside(answer)


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="THREAD|OPERATOR",
            help="A thread id; an operator, as query/operator or its name alone; a query, for all "
            "its operators; or a thread's name. Patterns work: 'etl/*'.",
        ),
    ],
    run_dir: RunDir = DEFAULT_RUN_DIR,
    json: Json = False,
) -> None:
    """Tell why a thread has the priority that it has: from its metrics to what is in force."""
    from sched_ctl import show
    from sched_ctl.cli import planned, stacks, targets
    from sched_ctl.service.socket import MOST_EXPLAINED, request

    answer = request(run_dir, "explain", {"what": what})
    if len(answer) >= MOST_EXPLAINED:
        ordered = request(run_dir, "threads", {"what": what})["ordered"]
        if ordered > len(answer):
            log.warning("%d of %d threads are told of: name fewer", len(answer), ordered)
    if json:
        show.emit_json(answer)
        return
    held = stacks.holders(
        (thread["pid"], thread["tid"])
        for thread in answer
        if (thread["verdict"] or "").startswith(LOCK_BOUND)
    )
    for thread in answer:
        show.text()
        show.text(f"{thread['operator']}: thread {thread['tid']} ({thread['name']})")
        show.text(f"  why        {thread['why']}")
        show.text(f"  ordered    {thread['ordered']}")
        if thread.get("runs_in"):
            show.text(f"  runs in    {thread['runs_in']}")
        for line in planned.urgency_in_words(thread):
            show.text(line)
        place = thread["normalised"]
        show.text(
            "  place      none: all are equal, or nothing is known"
            if place is None
            else f"  place      {place:.2f} of the range (0 least, 1 most urgent)"
        )
        if thread["target"] is not None:
            show.text(f"  target     {targets.in_words(thread['target'])}")
        if thread["group"] is not None:
            show.text(f"  group      {thread['group']}, share {thread['share']:g}")
        applied = ", ".join(f"{k} {v}" for k, v in thread["applied"].items()) or "nothing"
        show.text(f"  in force   {applied} ({thread['backend']})")
        if thread["verdict"] is not None:
            show.text(f"  held back  {thread['verdict']}")
            if thread["verdict"].startswith(LOCK_BOUND):
                show.text(f"  lock       {_holder(thread, held)}")
        if thread["replicas"] is not None:
            show.text(f"  replicas   needs {thread['replicas']} (sched-ctl scale)")
        for operator in dict.fromkeys(m["operator"] for m in thread["metrics"]):
            if operator != thread["operator"]:
                show.text(f"  metrics of {operator}, which it runs")
            show.table(
                ("metric", ">value", "unit", "how"),
                (
                    (
                        m["metric"],
                        show.number(m["value"]),
                        m["unit"],
                        m["how"] + (" (estimate)" if m["estimated"] else ""),
                    )
                    for m in thread["metrics"]
                    if m["operator"] == operator
                ),
            )


def _holder(thread: dict[str, Any], held: "Mapping[int, Held]") -> str:
    """Who holds the lock that a thread waits for, in words."""
    from sched_ctl.cli.stacks import held_in_words

    if (by := held.get(thread["tid"])) is not None:
        return held_in_words(by)
    return f"nobody was seen to hold it; sched-ctl waits {thread['pid']} --stacks looks longer"


@with_settings
def config(
    settings: Settings,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether the configuration is good.")
    ] = False,
    json: Json = False,
) -> None:
    """Print the configuration in force as a valid file, or check it.

    Files, drop-ins and the flags given here are put together as load would.
    """
    import sys

    from sched_ctl import show
    from sched_ctl.config.dump import dump
    from sched_ctl.engines.roster import wanted_kinds
    from sched_ctl.plugins import drivers
    from sched_ctl.service.sections import check_sections

    check_sections(settings)
    wanted_kinds(settings, drivers.drivers())
    if json:
        import msgspec

        show.emit_json(msgspec.to_builtins(settings))
    elif check:
        print("the configuration is good")
    else:
        sys.stdout.write(dump(settings))
