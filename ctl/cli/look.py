"""Commands that only look: check, engines, policies, plan, status, explain, config."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sched_ctl.cli.flags import DEFAULT_RUN_DIR, Json, RunDir, with_settings
from sched_ctl.config.settings import Settings
from sched_ctl.errors import UserError

if TYPE_CHECKING:
    from sched_ctl.controller.loop import Controller

__all__ = ["add_to"]

MOST_EFFECTS = 30
WOKEN_S = 1.5  # that it is looked who wakes whom, for a draft's edges
SOURCES = {
    "counted": "engine",
    "reported": "engine's mean",
    "little": "queues",
    "unknown": "",
}


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

    logging.getLogger().setLevel(logging.ERROR)
    found = asyncio.run(look(settings, drivers.drivers()))
    if json:
        show.emit_json(found)
        return
    for name, why in drivers.problems().items():
        show.text(f"{name}: {why}")
    if not found:
        missing = no_engine(settings, drivers.drivers())
        show.text(missing.message)
        show.text(f"hint: {missing.hint}")
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
                "; ".join(filter(None, [engine["problem"], *engine["notes"][:3]])),
            )
            for engine in found
        ),
    )
    for engine in found:
        show.text(f"{engine['engine']}: ordered {engine['ordered']}")
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
    here = finding.found(known)
    for one in known:
        if pids := [pid for mine in here[one.name].values() for pid in mine]:
            more = f" and {len(pids) - 3} more" if len(pids) > 3 else ""
            told = "not taken" if one.threads else "only whole processes can be ordered, not taken"
            show.text(
                f"program:{one.name}: runs here (pid {', '.join(map(str, pids[:3]))}{more}), "
                f"{told} unless named: --engine program:{one.name}"
            )


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
    edges = {} if found else drafts.edges_seen(pid, WOKEN_S)
    rows: list[dict[str, Any]] = [
        {
            "tid": thread.tid,
            "name": thread.name,
            "pattern": match and match.pattern,
            "role": match and match.role,
            "query": match and match.query,
            "operator": match and match.operator,
            "also": list(match.others) if match else [],
        }
        for thread, match in matches
    ]
    if json:
        drafted = None if found else drafts.draft(pid, threads, edges)
        show.emit_json({"program": found and found.name, "threads": rows, "draft": drafted})
        return
    if found is None:
        show.text(f"no declaration means process {pid}. A first draft, by its threads' names:")
        show.text("")
        for line in drafts.draft(pid, threads, edges).split("\n"):
            show.copied(line)
        if drafts.pooled(threads):
            show.text("")
            show.text(
                "Its threads have no names of their own, as those of a pool: only the whole "
                "process can be ordered against others."
            )
        return
    show.text(f"process {pid} is of the program {found.name}")
    show.table(
        (">tid", "thread", "is", "query", "operator", "by the pattern"),
        (
            (
                row["tid"],
                row["name"],
                row["role"] or "left alone",
                row["query"] or "",
                row["operator"] or "",
                (row["pattern"] or "none") + ("; others, too" if row["also"] else ""),
            )
            for row in rows
        ),
    )
    if found.whole and not any(row["role"] == OPERATOR for row in rows):
        show.text(program.WHOLE)


def _queries(engine: dict[str, Any]) -> str:
    names = engine["queries"]
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
        ("policy", "best at", "needs", "options"),
        (
            (
                row["policy"],
                row["goal"],
                ", ".join(row["needs"]) or "nothing",
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
) -> None:
    """Show the schedule that load would apply now, and apply nothing.

    Examples: sched-ctl plan --policy hr;  sched-ctl plan --engine flink --json
    """
    from sched_ctl import show
    from sched_ctl.plugins import drivers
    from sched_ctl.service import session as loading
    from sched_ctl.service import views
    from sched_ctl.service.sections import check_sections

    check_sections(settings)
    logging.getLogger().setLevel(logging.WARNING)
    controller = loading.plan(settings, drivers.drivers(), observe)
    if save is not None:
        _save(save, controller)
    plans = views.plans(controller)
    problems = views.problems(controller)
    if json:
        show.emit_json(plans)
    else:
        for rule in plans:
            _show_plan(rule)
        for problem in problems:
            show.text(problem)
    for rule in plans:
        if rule["problem"]:
            raise UserError(f"policy {rule['name']}: {rule['problem']}")
    if not any(rule["threads"] for rule in plans):
        raise UserError(
            f"nothing to schedule: {'; '.join(problems[:5]) or 'no policy selects any thread'}",
            "sched-ctl engines shows what is found",
        )


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


def _show_plan(rule: dict[str, Any]) -> None:
    from sched_ctl import show

    if not rule["threads"]:
        return
    threads = sorted(rule["threads"], key=_least_urgent_last)
    sets = list(dict.fromkeys(name for row in threads for name in row["sets"]))
    columns: dict[str, Callable[[dict[str, Any]], object]] = {
        ">tid": lambda row: row["tid"],
        "operator": _whose,
        "group": lambda row: row["group"] and f"{_here(rule, row['group'])} ({row['share']:g})",
        ">queue": lambda row: show.number(row["queue_size"]),
        ">age s": lambda row: show.number(row["head_age_s"]),
        ">urgency": lambda row: show.number(row["evaluated"]),
        ">place": lambda row: show.number(row["normalised"], 2),
        "backend": lambda row: row["backend"],
    } | {f">{name}": lambda row, name=name: row["sets"].get(name) for name in sets}
    if not any(row["group"] for row in threads):
        del columns["group"]
    if sets:  # which say it
        del columns[">place"]
    if len({row["backend"] for row in threads}) == 1:
        del columns["backend"]
    show.table(
        tuple(columns),
        ([told(row) for told in columns.values()] for row in threads),
        title=f"{rule['name']}: policy {rule['policy']}, by backend {rule['backend']}",
    )


def _here(rule: dict[str, Any], group: str) -> str:
    """The name of a group without its engine's, where there is one engine alone."""
    return group.removeprefix(f"{rule['engines'][0]}/") if len(rule["engines"]) == 1 else group


def _whose(row: dict[str, Any]) -> str:
    """The operator, and the thread's name where that says something else."""
    operator, name = row["operator"], row["name"]
    return operator if not name or name in operator else f"{operator} ({name})"


def _least_urgent_last(row: dict[str, Any]) -> float:
    """Neutral rows, whose urgency is unknown, lie in the middle."""
    return -0.5 if row["normalised"] is None else -row["normalised"]


def status(run_dir: RunDir = DEFAULT_RUN_DIR, json: Json = False) -> None:
    """Show what the running controller does: policies, engines, problems, its own cost."""
    from sched_ctl import show
    from sched_ctl.cli import targets
    from sched_ctl.service.socket import request

    answer = request(run_dir, "status")
    if json:
        show.emit_json(answer)
        return
    show.text(
        f"controller pid {answer['pid']}, up {answer['uptime_s']:.0f} s, "
        f"{answer['cpu_share']:.2%} of a CPU, {answer['rss_bytes'] / 1e6:.0f} MB"
    )
    for where, stalls in (
        ("machine", answer["pressure"]["machine"]),
        *answer["pressure"]["engines"].items(),
    ):
        show.text(f"pressure: {where}: {_stalls(stalls)}")
    show.table(
        (
            "rule",
            "policy",
            "backend",
            ">period",
            ">passes",
            ">missed",
            ">threads",
            ">writes",
            ">repaired",
            ">pass ms",
        ),
        (
            (
                rule["name"],
                rule["policy"] + (f" ({rule['chosen']})" if rule["chosen"] else ""),
                rule["backend"],
                f"{rule['period_s']:g} s",
                rule["passes"],
                rule["missed"],
                rule["threads"],
                rule["writes"],
                rule["repaired"],
                show.number(sum(rule["stage_ms"].values())),
            )
            for rule in answer["policies"]
        ),
    )
    show.table(
        ("engine", ">pid", "state", ">answered", ">poll ms", ">operators", ">threads", "queries"),
        (
            (
                engine["engine"],
                engine["pid"],
                engine["state"],
                f"{show.number(engine['answered_s_ago'])} s ago"
                if engine["answered_s_ago"] is not None
                else "never",
                show.number(engine["poll_ms"]),
                engine["operators"],
                engine["threads"],
                _queries(engine),
            )
            for engine in answer["engines"]
        ),
    )
    if answer["effects"]:
        _effects(answer["effects"])
    targets.table(answer["targets"])
    for step in answer["not_taken"]:
        show.text(f"backend {step['backend']}: not taken: {step['because']}")
    for note in answer["notes"]:
        show.text(f"note: {note}")
    for engine in answer["engines"]:
        for note in engine["notes"][:10]:
            show.text(f"note: {engine['engine']}: {note}")
    for problem in answer["problems"][:50]:
        show.text(f"problem: {problem}")


def _effects(effects: list[dict[str, Any]]) -> None:
    """What came of it, by query; the first ones."""
    from sched_ctl import show

    def ms(seconds: float | None) -> str:
        return "" if seconds is None else f"{show.number(seconds * 1e3)} ms"

    def share(part: float | None) -> str:
        return "" if part is None else f"{part:.1%}"

    show.table(
        ("query", ">in/s", ">out/s", ">time", ">±", "from", ">p50", ">p99", ">in target"),
        (
            (
                f"{effect['engine']} {effect['query']}",
                show.number(effect["tuples_in"]),
                show.number(effect["tuples_out"]),
                ms(effect["time_s"]),
                share(effect["error"]),
                SOURCES[effect["source"]],
                ms(effect["p50_s"]),
                ms(effect["p99_s"]),
                share(effect["within_target"]),
            )
            for effect in effects[:MOST_EFFECTS]
        ),
    )
    if len(effects) > MOST_EFFECTS:
        show.text(f"and {len(effects) - MOST_EFFECTS} more queries, see --json")


def _stalls(stalls: dict[str, Any]) -> str:
    """Words for the shares of the last 10 s: "cpu 12.3%, io 0.2% (full 0.1%)"."""
    parts = []
    for resource, stall in stalls.items():
        full = f" (full {stall['full']:.1%})" if stall["full"] else ""
        parts.append(f"{resource} {stall['some']:.1%}{full}")
    return ", ".join(parts) or "not told by this kernel"


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="THREAD|OPERATOR",
            help="A thread id; or an operator, as query/operator or its name alone; or a thread's "
            "name. Patterns work: 'etl/*'.",
        ),
    ],
    run_dir: RunDir = DEFAULT_RUN_DIR,
    json: Json = False,
) -> None:
    """Tell why a thread has the priority that it has: from its metrics to what is in force."""
    from sched_ctl import show
    from sched_ctl.cli import targets
    from sched_ctl.service.socket import request

    answer = request(run_dir, "explain", {"what": what})
    if json:
        show.emit_json(answer)
        return
    for thread in answer:
        urgency = thread["urgency"]
        show.text()
        show.text(f"{thread['operator']}: thread {thread['tid']} ({thread['name']})")
        show.text(f"  why        {thread['why']}")
        show.text(f"  ordered    {thread['ordered']}")
        show.text(
            f"  urgency    rank {show.number(urgency['rank'])}: "
            f"{show.number(urgency['static'])} + {show.number(urgency['per_second'])} * W + "
            f"{show.number(urgency['per_tuple'])} * Q"
        )
        show.text(
            f"  evaluated  {show.number(thread['evaluated'])} with W = "
            f"{show.number(thread['head_age_s'])} s, Q = {show.number(thread['queue_size'])} tuples"
        )
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
        from sched_ctl.backends import ladder

        sys.stdout.write(dump(settings, {kind.name: kind.options for kind in ladder.KINDS}))
