"""What was decided, by query: which goes first, and why, in words.

`plan`, `status` and the log of `load` say the same of it.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sched_ctl.controller.loop import Controller
from sched_ctl.controller.rule import Rule
from sched_ctl.engines.owners import COMMON
from sched_ctl.metrics.backlog import MEMORY
from sched_ctl.metrics.catalogue import evaluate
from sched_ctl.model.normalise import places
from sched_ctl.model.schedule import Schedule
from sched_ctl.service.shown import names

__all__ = ["line", "queries", "told"]

Name = tuple[str, str]  # engine, query

ORDER = {"first": 0, "in turn": 1, "as under the OS": 2, "last": 3}


@dataclass
class _Row:
    """One query. place: that of its most urgent operator, of 0 (least) to 1; None: unknown."""

    operators: set[str] = field(default_factory=set)
    threads: int = 0
    place: float | None = None
    operator: str = ""  # which has that place


def queries(controller: Controller, rule: Rule) -> list[dict[str, Any]]:
    """A row for each query that the rule orders and that is looked at (`shown`); those that go
    first come first.
    """
    only = names(controller.engines.values())
    found = list(_unordered(controller, rule, only))
    for domain, schedule in rule.schedules.items():
        uses = _uses(controller, rule, domain, {engine for engine, _ in only})
        rows = _rows(schedule, None if domain == COMMON else only)
        heavy = set(schedule.memory.get(MEMORY, {})) & rows.keys()
        shares = _shares(rule, schedule)
        for (engine, query), row in rows.items():
            goes, why = _reason(rule, domain, schedule, rows, (engine, query), uses, heavy, shares)
            found.append(
                {
                    "engine": engine,
                    "query": query,
                    "goes": goes,
                    "why": why,
                    "operators": len(row.operators),
                    "threads": row.threads,
                    "place": row.place,
                    "most_urgent": row.operator or None,
                    "cpu_use_of_mean": uses.get((engine, query)),
                }
            )
    return sorted(found, key=lambda row: (ORDER[row["goes"]], -(row["place"] or 0.0)))


def _unordered(controller: Controller, rule: Rule, only: Set[Name]) -> Iterator[dict[str, Any]]:
    """Rows of queries that are left to the OS for a while: nobody is in a schedule meanwhile."""
    for engine, window in rule.windows.items():
        here = controller.engines.get(engine)
        if here is None or not rule.instead.own_in(here.domain):
            continue
        topology = window.now.topology
        by_query: dict[str, list[int]] = {}
        for operator in topology.operators:
            if (engine, operator.query) in only:
                by_query.setdefault(operator.query, []).append(len(operator.threads))
        for query in sorted(controller.claims.of(rule, engine, topology) & by_query.keys()):
            threads = by_query[query]
            yield {
                "engine": engine,
                "query": query,
                "goes": "as under the OS",
                "why": rule.instead.phase,
                "operators": len(threads),
                "threads": sum(threads),
                "place": None,
                "most_urgent": None,
                "cpu_use_of_mean": None,
            }


def line(row: Mapping[str, Any]) -> str:
    """One row in words: "archive: heavy, 1.9 of the mean CPU: goes last"."""
    return f"{row['query']}: {row['why']}: {_goes(row['goes'])}"


def _goes(goes: str) -> str:
    return goes if goes == "as under the OS" else f"goes {goes}"


def _rows(schedule: Schedule, only: Set[Name] | None) -> dict[Name, _Row]:
    found: dict[Name, _Row] = {}
    place = places(schedule)
    for at, whose in enumerate(schedule.queries):
        if only is not None and whose not in only:
            continue
        label = schedule.operators[at]
        if whose is None or not label.startswith(f"{whose[1]}/"):  # a helper thread
            continue
        row = found.setdefault(whose, _Row())
        row.operators.add(label)
        row.threads += 1
        if np.isfinite(place[at]) and (row.place is None or place[at] > row.place):
            row.place, row.operator = float(place[at]), label
    return found


def _uses(controller: Controller, rule: Rule, domain: str, engines: Set[str]) -> dict[Name, float]:
    """CPU use of each query of these engines as multiples of the mean, of those that are known as
    `metrics.backlog` has it; none where nobody is there to compare with.
    """
    used: dict[Name, float] = {}
    unread: set[Name] = set()
    for name, window in rule.windows.items():
        engine = controller.engines.get(name)
        if (
            engine is None
            or engine.domain != domain
            or name not in engines & rule.resolutions.keys()
        ):
            continue
        column = evaluate(rule.resolutions[name][1], window).get("cpu_use")
        if column is None:
            continue
        rows = [((name, o.query), getattr(o, "threads", ())) for o in window.operators]
        for (query, threads), use in zip(rows, column, strict=True):
            if np.isfinite(use):
                used[query] = used.get(query, 0.0) + float(use)
            elif threads:
                unread.add(query)
    known = {query: use for query, use in used.items() if query not in unread}
    mean = sum(known.values()) / len(known) if len(known) > 1 else 0.0
    return {query: use / mean for query, use in known.items()} if mean else {}


def _reason(
    rule: Rule,
    domain: str,
    schedule: Schedule,
    rows: Mapping[Name, _Row],
    query: Name,
    uses: Mapping[Name, float],
    heavy: Set[Name],
    shares: Mapping[Name, float],
) -> tuple[str, str]:
    """How it goes, one of `ORDER`, and why."""
    policy = rule.policy_of(domain)
    if policy.targets and query in schedule.targets:
        return "in turn", "by its target"
    if MEMORY in policy.remembers and heavy and len(heavy) < len(rows):
        part = f", {uses[query]:.2g} of the mean CPU" if query in uses else ""
        return ("last", f"heavy{part}") if query in heavy else ("first", f"light{part}")
    row = rows[query]
    if query in shares:
        return "in turn", f"by its share, {shares[query]:g}"
    if row.place is None or policy.name in ("light-first", "constant"):
        if policy.name != "light-first":
            why = "all are equal, or nothing is known yet"
        elif len(rows) == 1:
            why = "a single query"
        else:
            why = "all queries are heavy" if len(heavy) == len(rows) else "no query is heavy"
        if rule.backend_of(domain) == "pool":  # there is no order that it leaves to others
            return "in turn", f"{why}, so the oldest tuple first"
        return "as under the OS", why
    return "in turn", f"place {row.place:.2f} at most, of {row.operator.rpartition('/')[2]}"


def _shares(rule: Rule, schedule: Schedule) -> Mapping[Name, float]:
    """What the user gave queries of the CPU, where not all have the same."""
    groups = schedule.groups.values() if rule.section.shares else ()
    if len({group.share for group in groups}) < 2:
        return {}
    found: dict[Name, float] = {}
    for group in groups:
        for row in group.rows:
            if (whose := schedule.queries[row]) is not None:
                found.setdefault(whose, group.share)
    return found


def told(controller: Controller, rule: Rule, most: int) -> Iterator[str]:
    """What the log says of the order: a line a query, the first so many of them."""
    found = queries(controller, rule)
    for row in found[:most]:
        yield line(row)
    if len(found) > most:
        yield f"and {len(found) - most} more queries: sched-ctl status"
