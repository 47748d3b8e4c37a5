"""What a controller shows of itself: `status` and `explain`, as plain data with stable keys."""

import math
import os
import resource
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from sched_ctl import probes
from sched_ctl.bindings import Rule
from sched_ctl.controller import Controller
from sched_ctl.engines import Engine
from sched_ctl.errors import UserError, near_miss
from sched_ctl.graph import Array
from sched_ctl.metrics import METRICS, Resolution, evaluate
from sched_ctl.model import Thread
from sched_ctl.normalise import positions
from sched_ctl.schedule import Schedule
from sched_ctl.window import Window

__all__ = ["engines", "explain", "plans", "problems", "status"]

NEAR_OPERATORS = 1000  # compared with a mistyped name, while the control loop waits


def status(controller: Controller) -> dict[str, Any]:
    now_s = time.monotonic()
    up_s = now_s - controller.started_s
    backends = controller.backends
    return {
        "pid": os.getpid(),
        "uptime_s": round(up_s, 3),
        "cpu_share": round((time.process_time() - controller.started_cpu_s) / max(up_s, 1e-9), 5),
        "rss_bytes": _rss_bytes(),
        "stopping": controller.stopping,
        "policies": [_rule(rule) for rule in controller.rules],
        "engines": engines(controller),
        "backends": [] if backends is None else list(backends.names),
        "not_taken": [
            {"backend": name, "because": why}
            for name, why in (() if backends is None else backends.steps)
        ],
        "notes": _notes(controller),
        "problems": problems(controller),
    }


def _notes(controller: Controller) -> list[str]:
    """What backends have decided by themselves."""
    made = controller.backends
    notes = {} if made is None else {name: getattr(made[name], "note", "") for name in made.names}
    return [f"{name}: {note}" for name, note in notes.items() if note]


def _rule(rule: Rule) -> dict[str, Any]:
    schedule = rule.schedule
    return {
        "name": rule.name,
        "policy": rule.policy.name,
        "chosen": rule.chosen,
        "options": {key: _plain(value) for key, value in rule.policy.options.items()},
        "level": rule.policy.level.value,
        "backend": rule.backend,
        "queries": list(rule.binding.queries),
        "period_s": rule.timer.period_s,
        "passes": rule.passes,
        "missed": rule.timer.missed,
        "engines": list(rule.windows),
        "threads": 0 if schedule is None else len(schedule.threads),
        "groups": 0 if schedule is None else len(schedule.groups),
        "writes": rule.writes,
        "repaired": rule.repaired,
        "gone": rule.applied.gone,
        "stage_ms": {name: round(s * 1e3, 3) for name, s in rule.stage_s.items()},
        "problem": rule.problem,
        "not_set": list(rule.applied.problems),
    }


def engines(controller: Controller) -> list[dict[str, Any]]:
    now_s = time.monotonic()
    return [_engine(engine, now_s) for engine in controller.engines.values()]


def _engine(engine: Engine, now_s: float) -> dict[str, Any]:
    snapshot = engine.snapshot
    topology = None if snapshot is None else snapshot.topology
    return {
        "engine": engine.name,
        "pid": engine.target.pid,
        "state": engine.state,
        "answered_s_ago": None
        if engine.answered_s is None
        else round(now_s - engine.answered_s, 3),
        "poll_ms": round(engine.poll_s * 1e3, 3),
        "polls": engine.polls,
        "failures": engine.failures,
        "queries": [] if topology is None else list(topology.queries),
        "operators": 0 if topology is None else len(topology.operators),
        "threads": 0
        if topology is None
        else len({t for o in topology.operators for t in o.threads}),
        "problem": engine.problem,
        "refused": dict(engine.refused),
        "notes": [] if topology is None else list(topology.notes),
    }


def plans(controller: Controller) -> list[dict[str, Any]]:
    """What each policy decided in its last pass."""
    return [
        {
            "name": rule.name,
            "policy": rule.policy.name,
            "engines": list(rule.windows),
            "problem": rule.problem,
            "threads": [] if rule.schedule is None else _rows(rule.schedule),
        }
        for rule in controller.rules
    ]


def problems(controller: Controller) -> list[str]:
    """Whatever does not work as it should, in words."""
    found = []
    for engine in controller.engines.values():
        if engine.problem is not None:
            found.append(f"{engine.name}: {engine.state}: {engine.problem}")
        found += engine.refused.values()
    for rule in controller.rules:
        if rule.problem is not None:
            found.append(f"policy {rule.name}: {rule.problem}")
        found += [f"policy {rule.name}: {problem}" for problem in rule.applied.problems]
    return found


def explain(controller: Controller, what: str) -> list[dict[str, Any]]:
    """All that is known of the threads that `what` names.

    what: a thread id, or a pattern of an operator ("query/operator", or its last part), or of a
    thread name. Raises UserError if no scheduled thread is meant.
    """
    found = []
    for rule in controller.rules:
        if rule.schedule is None:
            continue
        matching = [
            row
            for row, (thread, label) in enumerate(
                zip(rule.schedule.threads, rule.schedule.operators, strict=True)
            )
            if what == str(thread.tid)
            or any(fnmatchcase(text, what) for text in _names(thread, label))
        ]
        if matching:
            metrics = {
                name: (window, evaluate(rule.resolutions[name][1], window))
                for name, window in rule.windows.items()
                if name in rule.resolutions
            }
            found += [_thread(controller, rule, row, metrics) for row in matching[:100]]
    if not found:
        raise UserError(
            f"no scheduled thread or operator is called {what!r}{_near(controller, what)}",
            _why_not(controller, what),
        )
    return found


def _names(thread: Thread, label: str) -> tuple[str, ...]:
    return (label, label.rpartition("/")[2], thread.name)


def _thread(
    controller: Controller,
    rule: Rule,
    row: int,
    metrics: Mapping[str, tuple[Window, Mapping[str, Array]]],
) -> dict[str, Any]:
    schedule = rule.schedule
    assert schedule is not None
    thread, label = schedule.threads[row], schedule.operators[row]
    backend = None if controller.backends is None else controller.backends[rule.backend]
    return {
        **_rows(schedule, [row])[0],
        "policy": rule.policy.name,
        "binding": rule.name,
        "why": f"policy {rule.policy.name} (for {rule.policy.goal}) is the first that selects it, "
        f"by {' '.join(map(repr, rule.binding.queries))}"
        f"{f'; chosen by auto: {rule.chosen}' if rule.chosen else ''}; enforced by {rule.backend}",
        "backend": rule.backend,
        "applied": {} if backend is None else dict(backend.applied(thread)),
        "metrics": _metrics(rule, thread, label, metrics),
    }


def _metrics(
    rule: Rule,
    thread: Thread,
    label: str,
    metrics: Mapping[str, tuple[Window, Mapping[str, Array]]],
) -> list[dict[str, Any]]:
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
            entry
            for metric, column in columns.items()
            if len(column) == len(window.now.topology.operators)
            for entry in [_metric(resolution, metric, column[rows[0]])]
        ]
    return []


def _metric(resolution: Resolution, metric: str, value: float) -> dict[str, Any]:
    declared = METRICS.get(metric)
    step = resolution.by_metric.get(metric)
    probed = metric in probes.PROVIDES and step is not None and step.derivation is None
    return {
        "metric": metric,
        "value": _plain(float(value)),
        "unit": "" if declared is None else declared.unit,
        "meaning": "" if declared is None else declared.meaning,
        "how": "schedstat of its threads" if probed else "" if step is None else step.how,
        "estimated": step is not None and resolution.is_estimate(metric),
    }


def _rows(schedule: Schedule, rows: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Rows of a schedule (None = all of them), as `plan` shows them."""
    form = schedule.form
    ages, queues = schedule.head_age_s, schedule.queue_size
    evaluated = form.at(ages, queues)
    normalised = positions(form, ages, queues, schedule.spacing)
    groups = {row: name for name, group in schedule.groups.items() for row in group.rows}
    wanted = range(len(schedule.threads)) if rows is None else rows
    return [
        {
            "tid": schedule.threads[row].tid,
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
    """The scheduled operator that may have been meant, by its label or its last part."""
    labels = {
        name: None
        for rule in controller.rules
        if rule.schedule is not None
        for label in rule.schedule.operators[:NEAR_OPERATORS]
        for name in (label, label.rpartition("/")[2])
    }
    return near_miss(what, labels)


def _why_not(controller: Controller, what: str) -> str:
    for engine in controller.engines.values():
        snapshot = engine.snapshot
        if snapshot is None:
            continue
        for operator in snapshot.topology.operators:
            if what in (operator.label, operator.name):
                if not operator.threads:
                    return "the engine has it, but its thread is not known: see notes in status"
                return "the engine has it, but no policy selects it, or it is excluded"
    return "sched-ctl status shows engines and queries, sched-ctl plan their operators"


def _rss_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
