"""What a controller shows of itself: `status` and `explain`, as plain data with stable keys."""

import math
import os
import re
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from sched_ctl.adapt.race import OS
from sched_ctl.backends import ladder
from sched_ctl.backends.threads.nice import NOTHING_HAD
from sched_ctl.controller import targets, trial
from sched_ctl.controller.loop import Controller
from sched_ctl.controller.rule import Rule
from sched_ctl.drivers import DriverKind
from sched_ctl.engines.engine import Engine
from sched_ctl.engines.owners import COMMON, called, user
from sched_ctl.errors import UserError, near_miss
from sched_ctl.kernel import procfs, psi
from sched_ctl.metrics.catalogue import METRICS, Resolution, evaluate
from sched_ctl.metrics.window import Window
from sched_ctl.model.graph import Array
from sched_ctl.model.normalise import places
from sched_ctl.model.options import Options, by_name
from sched_ctl.model.patterns import fits
from sched_ctl.model.policy import Level
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import PhysicalOperator, Snapshot, Thread
from sched_ctl.probes import threads as probes
from sched_ctl.service import by_query
from sched_ctl.service.shown import left_out, names
from sched_ctl.service.socket import MOST_EXPLAINED

__all__ = [
    "applied",
    "effects",
    "engines",
    "explain",
    "plans",
    "problems",
    "replicas",
    "rows",
    "spared",
    "stalls",
    "status",
    "suspected",
    "threads",
]

MOST_SUSPECTED = 5
REPLICA = re.compile(r" \(\d+/\d+\)$")  # which of how many, at the end of an operator's name
NEAR_OPERATORS = 1000  # compared with a mistyped name, while the control loop waits


def status(controller: Controller) -> dict[str, Any]:
    now_s = time.monotonic()
    up_s = now_s - controller.started_s
    backends = controller.backends
    return {
        "pid": os.getpid(),
        "uptime_s": round(up_s, 3),
        "cpu_share": round((time.process_time() - controller.started_cpu_s) / max(up_s, 1e-9), 5),
        "cpu_s": round(time.process_time(), 6),
        "rss_bytes": _rss_bytes(),
        "stopping": controller.stopping,
        "only_looks": controller.observes,
        "pressure": _pressure(controller),
        "policies": [_rule(rule, now_s) for rule in controller.rules],
        "queries": [
            {"rule": rule.name} | row
            for rule in controller.rules
            for row in by_query.queries(controller, rule)
        ],
        "targets": targets.rows(controller),
        "engines": engines(controller),
        "suspected": [] if controller.engines else suspected(controller.kinds),
        "effects": effects(controller),
        "replicas": replicas(controller),
        "backends": [] if backends is None else list(backends.names),
        "not_taken": [
            {"backend": name, "because": why}
            for name, why in (() if backends is None else backends.steps)
        ],
        "notes": _notes(controller),
        "problems": problems(controller),
    }


def suspected(kinds: Mapping[str, DriverKind]) -> list[str]:
    """Processes that may be engines and do not answer, in words; the first ones."""
    found = (f"pid {pid} looks like {name}" for name, kind in kinds.items() for pid in kind.mains())
    return list(islice(found, MOST_SUSPECTED))


def _pressure(controller: Controller) -> dict[str, Any]:
    """Of the machine, and of each engine's cgroup where the unified hierarchy has one of its own.

    Shares are of the last 10 s; empty where the kernel tells none.
    """
    groups = {
        engine.name: psi.group_of(engine.target.pid)
        for engine in controller.engines.values()
        if engine.target.pid is not None
    }
    pace = controller.pace
    return {
        "noticed": pace.source,
        "passes_left_out": pace.rested,
        "woken": pace.woken,
        "machine": stalls(None),
        "engines": {name: stalls(group) for name, group in groups.items() if group is not None},
    }


def stalls(group: Path | None) -> dict[str, Any]:
    found = {resource: psi.read(psi.path_of(resource, group)) for resource in psi.RESOURCES}
    return {
        resource: {
            "some": pressure.some.avg10_share,
            "full": None if pressure.full is None else pressure.full.avg10_share,
            "some_total_s": pressure.some.total_s,
        }
        for resource, pressure in found.items()
        if pressure is not None
    }


def spared(controller: Controller) -> list[str]:
    """Which engines "auto" leaves alone, and why, in words."""
    return [
        f"{name}: {rule.spared[name]}"
        for rule in controller.rules
        for name in sorted(rule.spared.keys() & controller.engines.keys())
    ]


def _notes(controller: Controller) -> list[str]:
    """What backends have decided by themselves."""
    made = controller.backends
    notes = {} if made is None else {name: made[name].note for name in made.names}
    found = [f"{name}: {note}" for name, note in notes.items() if note]
    found += controller.targets.notes(controller)
    found += spared(controller)
    found += [
        f"{called(whose)}: {most.queries} queries, {most.operators} operators beyond the first are "
        "in no answer of top and bottlenecks (the setting 'users' would change that)"
        for whose, most in left_out(controller.engines.values()).items()
    ]
    for rule in controller.rules:
        slower = controller.pace.note(rule.section.period or 1.0)
        found += [] if slower is None else [f"policy {rule.called}: {slower}"]
        instead = rule.instead
        name = f"policy {rule.called}"
        whom = "" if instead.whose == COMMON else f" for {called(instead.whose)}"
        found += [f"{name}: stepped back{whom}: {why}" for why in instead.stepped_back]
        if instead.resting:
            found.append(f"{name}: nothing is enforced{whom}, until policy set")
        elif instead.trial is not None:
            found.append(f"policy {rule.called}: {trial.told(instead.trial)['words']}")
        elif instead.guard is not None:
            found.append(f"policy {rule.called}: guard: {instead.guard.words}")
    return found


def _rule(rule: Rule, now_s: float) -> dict[str, Any]:
    tried = rule.instead.trial
    return {
        "name": rule.name,
        "called": rule.called,
        "for_s": round(now_s - rule.since_s, 3),
        "own": rule.instead.own,
        "phase": rule.instead.phase,
        "policy": OS if tried is not None and tried.own else rule.policy.name,
        "chosen": rule.chosen,
        "options": {key: _plain(value) for key, value in rule.policy.options.items()},
        "level": rule.policy.level.value,
        "backend": rule.backend,
        "queries": list(rule.section.queries),
        "period_s": rule.timer.period_s,
        "passes": rule.passes,
        "missed": rule.timer.missed,
        "engines": list(rule.windows),
        "threads": rule.threads,
        "groups": sum(len(schedule.groups) for schedule in rule.schedules.values()),
        "writes": rule.writes,
        "repaired": rule.repaired,
        "gone": rule.applied.gone,
        "stage_ms": {name: round(s * 1e3, 3) for name, s in rule.stage_s.items()},
        "problem": rule.problem,
        "not_set": list(rule.applied.problems),
        "race": None if tried is None else trial.told(tried),
    }


def effects(controller: Controller) -> list[dict[str, Any]]:
    """What came of it lately, of each query that is looked at; null where nobody tells."""
    only = names(controller.engines.values())
    return [
        {name: _plain(getattr(effect, name)) for name in (*effect.__slots__, "cost_s")}
        for found in controller.outcomes.found.values()
        for effect in found
        if effect.key in only
    ]


def replicas(controller: Controller) -> list[dict[str, Any]]:
    """Of `[[elastic]]` queries: what was done about their replicas, or why nothing, in words."""
    return [
        {"engine": engine, "query": query, "words": words}
        for (engine, query), words in controller.replicas.items()
    ]


def engines(controller: Controller) -> list[dict[str, Any]]:
    now_s = time.monotonic()
    return [_engine(engine, now_s) for engine in controller.engines.values()]


def _engine(engine: Engine, now_s: float) -> dict[str, Any]:
    snapshot = engine.snapshot
    topology = None if snapshot is None else snapshot.topology
    return {
        "engine": engine.name,
        "pid": engine.target.pid,
        "user": None if engine.uid is None else user(engine.uid),
        "runs_in": None if engine.container is None else engine.container.told,
        "ordered": engine.ordered,
        "state": engine.state,
        "answered_s_ago": None
        if engine.answered_s is None
        else round(now_s - engine.answered_s, 3),
        "poll_ms": round(engine.poll_s * 1e3, 3),
        "polls": engine.polls,
        "failures": engine.failures,
        "queries": [] if topology is None else list(topology.queries),
        "processes": []
        if topology is None
        else sorted({thread.pid for one in topology.operators for thread in one.threads}),
        "operators": 0 if topology is None else len(topology.operators),
        "threads": 0
        if topology is None
        else len({t for o in topology.operators for t in o.threads}),
        "problem": engine.problem,
        "refused": dict(engine.refused),
        "notes": [
            *([] if topology is None else topology.notes),
            *([] if engine.costly is None else [engine.costly]),
        ],
    }


def plans(
    controller: Controller, had: Mapping[tuple[int, int], int] = NOTHING_HAD
) -> list[dict[str, Any]]:
    """What each policy decided in its last pass.

    had: nice values that threads had before another controller changed them, by tid and start time.
    spared: engines that "auto" leaves as they are, and why.
    """
    options = by_name(controller.settings.backends)
    return [
        {
            "name": rule.name,
            "policy": rule.policy.name,
            "backend": rule.backend,
            "chosen": rule.chosen,
            "engines": list(rule.windows),
            "problem": rule.problem,
            "spared": dict(rule.spared),
            "queries": by_query.queries(controller, rule),
            "threads": [
                row
                | dict(zip(("engine", "query"), whose or (None, None), strict=True))
                | {"backend": rule.backend_of(domain), "sets": sets, "now": _now(row, sets)}
                for domain, schedule in rule.schedules.items()
                for row, whose, sets in zip(
                    rows(schedule),
                    schedule.queries or (None,) * len(schedule.threads),
                    _sets(rule.backend_of(domain), options, schedule, had),
                    strict=True,
                )
            ],
        }
        for rule in controller.rules
    ]


def _sets(
    backend: str,
    options: Mapping[str, Options],
    schedule: Schedule,
    had: Mapping[tuple[int, int], int],
) -> list[dict[str, Any]]:
    """What a backend would set, of each thread: {"nice": 3}."""
    values = ladder.planned(backend, options, schedule, had)
    return [
        {name: _plain(column[row]) for name, column in values.items()}
        for row in range(len(schedule.threads))
    ]


def _now(row: Mapping[str, Any], sets: Mapping[str, Any]) -> dict[str, Any]:
    """What of that the thread has now."""
    stat = procfs.stat(row["pid"], row["tid"]) if "nice" in sets and row["tid"] else None
    return {} if stat is None else {"nice": stat.nice}


def problems(controller: Controller) -> list[str]:
    """Whatever does not work as it should, in words."""
    found = []
    if controller.not_reloaded is not None:
        found.append(f"the old configuration stays in force: {controller.not_reloaded}")
    if controller.waits.problem is not None:
        found.append(controller.waits.problem)
    if controller.not_recorded is not None:
        found.append(controller.not_recorded)
    for engine in controller.engines.values():
        if engine.problem is not None:
            found.append(_in_words(engine, engine.problem))
        found += engine.refused.values()
    for rule in controller.rules:
        if rule.problem is not None:
            found.append(f"policy {rule.called}: {rule.problem}")
        found += [f"policy {rule.called}: {problem}" for problem in rule.applied.problems]
    return found


def _in_words(engine: Engine, problem: str) -> str:
    """That it does not answer, and what that means for its threads."""
    if engine.state == "silent" and engine.answered_s is not None:
        silent_s = time.monotonic() - engine.answered_s
        return f"{engine.name}: does not answer for {silent_s:.0f} s, order kept: {problem}"
    if engine.state == "new" and engine.target.pid is not None:
        return f"{engine.name}: pid {engine.target.pid} has not answered yet: {problem}"
    return f"{engine.name}: {engine.state}: {problem}"


def explain(controller: Controller, what: str) -> list[dict[str, Any]]:
    """All that is known of the threads that `what` names.

    what: a thread id, or a pattern of an operator ("query/operator", or its last part), of a query
    or of a thread name. Raises UserError if no scheduled thread is meant.
    """
    found = []
    for rule in controller.rules:
        if matching := _scheduled(rule, what):
            metrics = {
                name: (window, evaluate(rule.resolutions[name][1], window))
                for name, window in rule.windows.items()
                if name in rule.resolutions
            }
            found += [
                _thread(controller, rule, domain, row, metrics)
                for domain, row in matching[:MOST_EXPLAINED]
            ]
    if not found:
        if (why := _why_not(controller, what)) is not None:
            raise UserError(f"{what!r} is not ordered now", why)
        raise _unknown(controller, what)
    return found


def threads(controller: Controller, what: str) -> dict[str, Any]:
    """All threads that `what` names, as for `explain`: processes, ids, and how many are ordered.

    Also those that the OS orders. Raises UserError if an engine runs none of them.
    """
    ordered = {
        rule.schedules[domain].threads[row]
        for rule in controller.rules
        for domain, row in _scheduled(rule, what)
    }
    found = ordered.union(*(some for _, _, some in _running(controller, what)))
    if not found:
        raise _unknown(controller, what)
    return {
        "pids": sorted({thread.pid for thread in found}),
        "tids": sorted({thread.tid for thread in found if thread.tid}),
        "ordered": len(ordered),
    }


def _scheduled(rule: Rule, what: str) -> list[tuple[str, int]]:
    """Domains, and rows of the rule's schedules for them."""
    return [
        (domain, row)
        for domain, schedule in rule.schedules.items()
        for row, thread in enumerate(schedule.threads)
        if what == str(thread.tid) or fits((what,), *_names(thread, schedule, row))
    ]


def _running(
    controller: Controller, what: str
) -> Iterator[tuple[str, PhysicalOperator, list[Thread]]]:
    """Operators of the engines, ordered or not, with those of their threads that are meant."""
    for snapshot in _snapshots(controller):
        for operator in snapshot.topology.operators:
            called = fits((what,), *_called(operator.label, operator.query), operator.query)
            meant = [
                thread
                for thread in operator.threads
                if called or what == str(thread.tid) or fits((what,), thread.name)
            ]
            if called or meant:
                yield snapshot.topology.engine, operator, meant


def _unknown(controller: Controller, what: str) -> UserError:
    return UserError(
        f"no scheduled thread or operator is called {what!r}{_near(controller, what)}",
        "sched-ctl status shows engines and queries, sched-ctl plan their operators",
    )


def _names(thread: Thread, schedule: Schedule, row: int) -> tuple[str, ...]:
    label = schedule.operators[row]
    whose = schedule.queries[row] if schedule.queries else None
    if whose is None:
        return (label, thread.name)
    return (*_called(label, whose[1]), thread.name, whose[1])


def _called(label: str, query: str) -> tuple[str, ...]:
    """What a user may call an operator: with its query or without, all its replicas or one."""
    full = (label, label.removeprefix(f"{query}/"))
    return (*full, *(REPLICA.sub("", name) for name in full))


def _thread(
    controller: Controller,
    rule: Rule,
    domain: str,
    row: int,
    metrics: Mapping[str, tuple[Window, Mapping[str, Array]]],
) -> dict[str, Any]:
    schedule, policy = rule.schedules[domain], rule.policy_of(domain)
    thread, label = schedule.threads[row], schedule.operators[row]
    enforced_by = rule.backend_of(domain)
    return {
        **rows(schedule, [row])[0],
        "policy": policy.name,
        "rule": rule.name,
        "ordered": _ordered(controller, domain),
        "runs_in": _container(controller, schedule, row),
        "why": f"policy {policy.name} (for {policy.goal}) is the first that selects it, "
        f"by {' '.join(map(repr, rule.section.queries))}"
        f"{f'; chosen by auto: {rule.chosen}' if rule.chosen else ''}; enforced by {enforced_by}",
        "backend": enforced_by,
        "applied": applied(controller, rule, thread),
        "metrics": _metrics(rule, thread, label, metrics),
        "effects": [e for e in effects(controller) if label.startswith(f"{e['query']}/")],
        "target": _target(controller, schedule, row),
    }


def _target(controller: Controller, schedule: Schedule, row: int) -> dict[str, Any] | None:
    """What became of the target of the thread's query, if it has one."""
    whose = schedule.queries[row] if schedule.queries else None
    told = {(target["engine"], target["query"]): target for target in targets.rows(controller)}
    return None if whose is None else told.get(whose)


def applied(controller: Controller, rule: Rule, thread: Thread) -> dict[str, Any]:
    """What is in force for a thread; empty where nothing is applied."""
    made = controller.backends
    if made is None:
        return {}
    for name in (rule.backend, *rule.fair.values()):
        if name in made.names and (found := made[name].applied(thread)):
            return dict(found)
    return {}


def _container(controller: Controller, schedule: Schedule, row: int) -> str | None:
    """The container in which the thread's engine runs."""
    whose = schedule.queries[row] if schedule.queries else None
    engine = None if whose is None else controller.engines.get(whose[0])
    return None if engine is None or engine.container is None else engine.container.told


def _ordered(controller: Controller, domain: str) -> str:
    """Whose threads this one is compared with, and why."""
    engines = [engine for engine in controller.engines.values() if engine.domain == domain]
    return engines[0].ordered if engines else ""


def _metrics(
    rule: Rule,
    thread: Thread,
    label: str,
    metrics: Mapping[str, tuple[Window, Mapping[str, Array]]],
) -> list[dict[str, Any]]:
    """Of the operators whose priorities may decide for the thread, at the level of the policy."""
    for name, (window, columns) in metrics.items():
        rows = [
            row
            for row, operator in enumerate(window.now.topology.operators)
            if thread in operator.threads
        ]
        rows = [r for r in rows if window.now.topology.operators[r].label == label] or rows
        if not rows:
            continue
        resolution = rule.resolutions[name][1]
        return [
            {"operator": operator} | _metric(resolution, metric, column[row])
            for row, operator in _deciders(window, rows[0])
            for metric, column in columns.items()
        ]
    return []


def _deciders(window: Window, physical: int) -> list[tuple[int, str]]:
    """Rows of the window's columns, and labels, of what a physical operator gets its priority by:
    itself, or under a policy on logical operators each of those that it runs.
    """
    topology = window.now.topology
    if window.level is Level.PHYSICAL:
        return [(physical, topology.operators[physical].label)]
    runs, logical, _, _ = topology.logical_rows
    found = logical[runs == physical].tolist()
    return [(row, f"{topology.logical[row].query}/{topology.logical[row].name}") for row in found]


def _metric(resolution: Resolution, metric: str, value: float) -> dict[str, Any]:
    declared = METRICS.get(metric)
    step = resolution.by_metric.get(metric)
    probed = metric in probes.PROVIDES and step is not None and step.derivation is None
    return {
        "metric": metric,
        "value": _plain(float(value)),
        "unit": "" if declared is None else declared.unit,
        "meaning": "" if declared is None else declared.meaning,
        "how": "schedstat of its threads"
        if probed
        else ""
        if step is None
        else resolution.how(metric),
        "estimated": step is not None and resolution.is_estimate(metric),
    }


def rows(schedule: Schedule, only: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Rows of a schedule (`only` None = all of them), as `plan` shows them."""
    form = schedule.form
    ages, queues = schedule.head_age_s, schedule.queue_size
    evaluated = form.at(ages, queues)
    normalised = places(schedule)
    groups = {row: name for name, group in schedule.groups.items() for row in group.rows}
    wanted = range(len(schedule.threads)) if only is None else only
    return [
        {
            "tid": schedule.threads[row].tid or None,
            "pid": schedule.threads[row].pid,
            "name": schedule.threads[row].name,
            "operator": schedule.operators[row],
            "group": groups.get(row),
            "share": schedule.groups[groups[row]].share if row in groups else None,
            "urgency": {
                "rank": _plain(form.rank[row]),
                "static": _plain(form.static[row]),
                "per_second": _plain(form.per_second[row]),
                "per_tuple": _plain(form.per_tuple[row]),
            },
            "head_age_s": _plain(ages[row]),
            "queue_size": _plain(queues[row]),
            "evaluated": _plain(evaluated[row]),
            "normalised": _plain(normalised[row]),
        }
        for row in wanted
    ]


def _plain(value: Any) -> Any:
    """For JSON: NaN and infinities, which it has not, become null."""
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else None


def _near(controller: Controller, what: str) -> str:
    """The operator that may have been meant, by its label or its last part."""
    labels = {
        name: None
        for snapshot in _snapshots(controller)
        for operator in snapshot.topology.operators[:NEAR_OPERATORS]
        for name in _called(operator.label, operator.query)
    }
    held = [name for name in labels if what.lower() in name.lower()]
    if held:  # the shortest says least beside it
        return f": did you mean {min(held, key=len)!r}?"
    return near_miss(what, labels)


def _why_not(controller: Controller, what: str) -> str | None:
    """Why what an engine runs is in no schedule; None if none runs what is called so."""
    for name, operator, _ in _running(controller, what):
        if not operator.threads:
            return "the engine has it, but its thread is not known: see notes in status"
        engine = controller.engines[name]
        left = [rule for rule in controller.rules if name in rule.spared]
        if left:
            return f"it is {left[0].spared[name]}"
        insteads = [rule.instead for rule in controller.rules]
        own = [one.phase for one in insteads if one.own_in(engine.domain)]
        if own:
            return f"it has the OS's own order now ({own[0]}): see sched-ctl bottlenecks"
        return "the engine has it, but no policy selects it, or it is excluded"
    return None


def _snapshots(controller: Controller) -> Iterator[Snapshot]:
    for engine in controller.engines.values():
        if engine.snapshot is not None:
            yield engine.snapshot


def _rss_bytes() -> int:
    return int(procfs.text("/proc/self/statm").split()[1]) * resource.getpagesize()
