"""Targets in the simulator: which policies, and what became of each target under them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from sched_ctl import show as screen
from sched_ctl.cli.targets import percent
from sched_ctl.config.settings import ConfigError
from sched_ctl.controller.rule import automatic
from sched_ctl.controller.targets import words
from sched_ctl.errors import near_miss
from sched_ctl.metrics.feasibility import Standing
from sched_ctl.model.patterns import fits, names_of
from sched_ctl.model.targets import Target
from sched_ctl.sim.node import Node
from sched_ctl.sim.setting import Setting
from sched_ctl.sim.sweep import Row
from sched_ctl.sim.targets import judged

__all__ = ["check", "options", "policies", "rows", "show"]

# --scheduler -> the backend that it stands for
BACKENDS = {"user": "pool", "os": "nice", "scx": "scx", "fifo": "realtime"}
SOME = 8  # queries that an error names


def policies(scheduler: str) -> tuple[str, ...]:
    """What "auto" takes without targets, and with them.

    The former is left out where it puts heavy queries last: in the simulator nobody is heavy.
    """
    backend = _backend(scheduler)
    without, by_targets = automatic(backend)[0], automatic(backend, targets=True)[0]
    return (by_targets,) if without == "light-first" else (without, by_targets)


def options(policy: str, node: Node, setting: Setting) -> Mapping[str, object]:
    """Of a policy that goes by targets: these, and for the rest what "auto" takes."""
    if policy != "deadline" or not node.targets:
        return {}
    return {"targets": node.targets, "others": automatic(_backend(setting.scheduler))[0]}


def _backend(scheduler: str) -> str:
    return BACKENDS.get(scheduler, scheduler)  # one that there is not is refused later


def check(node: Node, targets: Sequence[Target]) -> None:
    """Raises ConfigError for a target that is no query's."""
    used = replace(node, targets=tuple(targets)).targeted.values()
    engine, queries = node.topology.engine, node.topology.queries
    for target in targets:
        if any(one is target for one in used):
            continue
        names = " ".join(target.queries)
        given = f"--target {names}={target.latency}"
        if any(fits(target.queries, *names_of(engine, query)) for query in queries):
            raise ConfigError(
                f"{given}: its queries have an earlier target, which counts",
                "leave it out, or put it before that",
            )
        more = ", ..." if len(queries) > SOME else ""
        raise ConfigError(
            f"{given}: it is for no query of {node.name}{near_miss(names, queries)}",
            f"its queries: {', '.join(queries[:SOME])}{more}",
        )


def rows(entry: Row) -> list[dict[str, Any]]:
    """What became of each target, as plain data; None = unknown."""
    standings = judged(entry.results[0].node, entry.results[0].setting.cpus)
    found = []
    for part in entry.targets:
        asked = part.target
        figures = {
            "response_s": part.response_s,
            "p50_s": part.p50_s,
            "p99_s": part.p99_s,
            **({} if asked is None else {"met": part.met, "within_s": part.within_s}),
        }
        found.append(
            {
                "target": None if asked is None else str(asked),
                "latency_s": None if asked is None else asked.latency_s,
                "share": None if asked is None else asked.share,
                "figures": {
                    name: {"mean": _known(mean), "half_width_95": _known(half)}
                    for name, (mean, half) in figures.items()
                },
                "queries": {query: _known(met) for query, met in part.queries.items()},
                "keep": None if asked is None else len(part.keeps),
                "cannot": {
                    query: words(standings[query])
                    for query in part.queries
                    if asked is not None and standings[query].standing is Standing.OVER
                },
            }
        )
    return found


def show(entries: Sequence[Row]) -> None:
    """A table of all policies at all loads; nothing where there are no targets."""
    if not any(entry.targets for entry in entries):
        return
    screen.text()
    screen.table(
        (
            *("policy", "load", "target", ">met", ">±", ">keep it", ">within"),
            *(">mean ms", ">p50", ">p99"),
        ),
        [line for entry in entries for line in _lines(entry)],
        title="Targets",
    )
    screen.text("Met: tuples in time; within: the latency that the share asked for has kept, ms.")
    for load, some in groupby(entries, key=lambda entry: entry.load):
        for line in _told(load, list(some)):
            screen.text(line)


def _lines(entry: Row) -> Iterator[list[str]]:
    for number, part in enumerate(entry.targets):
        first = ["", ""] if number else [entry.policy, f"{entry.load:g}"]
        times = [
            screen.number(_known(1e3 * figure))
            for figure, _ in (part.response_s, part.p50_s, part.p99_s)
        ]
        if part.target is None:
            yield [*first, "(others)", "", "", "", "", *times]
            continue
        (met, half), within_s = part.met, part.within_s[0]
        yield [
            *first,
            str(part.target),
            percent(_known(met)),
            percent(_known(half)),
            f"{len(part.keeps)} of {part.known}",
            screen.number(_known(1e3 * within_s)),
            *times,
        ]


def _told(load: float, entries: Sequence[Row]) -> Iterator[str]:
    """What targets cost the others at a load, and whose cannot be met."""
    base = entries[0]
    for entry in entries[1:]:
        for mine, first in zip(entry.targets, base.targets, strict=True):
            if mine.target is None and first.response_s[0] > 0 and mine.response_s[0] > 0:
                mean, median, p99 = (
                    screen.number(one[0] / other[0])
                    for one, other in (
                        (mine.response_s, first.response_s),
                        (mine.p50_s, first.p50_s),
                        (mine.p99_s, first.p99_s),
                    )
                )
                yield (
                    f"at {load:g} under {entry.policy} the others' mean is {mean} times that under "
                    f"{base.policy}, their median {median} times, their p99 {p99} times"
                )
    for part in rows(base):
        for query, why in part["cannot"].items():
            yield f"at {load:g} target of {query}: {why}"


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
