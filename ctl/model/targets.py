"""What latency a query is to keep: as the user states it, and which target a query has."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from sched_ctl.errors import UserError
from sched_ctl.model.patterns import fits

__all__ = ["FORM", "LONGEST_S", "Target", "duration", "faults", "parsed", "target_of", "targets_of"]

FORM = "QUERIES=LATENCY[,share=SHARE][,weight=WEIGHT]"
UNITS_S = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
LONGEST_S = 86400.0
NUMBER = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*([A-Za-zµ]*)", re.IGNORECASE)


class Target(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[target]]` section: the latency that queries are to keep."""

    queries: Annotated[
        tuple[str, ...],
        Meta(description="queries that are to keep it, as patterns", min_length=1),
    ]
    latency: Annotated[
        str,
        Meta(
            description="longest time until a tuple's result leaves, with its unit (us, ms, "
            "s, min, h); at most a day"
        ),
    ]
    share: Annotated[
        float, Meta(description="share of the tuples that are to keep it", gt=0, le=1)
    ] = 0.99
    weight: Annotated[
        float,
        Meta(
            description="whose target counts where not all can be met: the larger weight",
            gt=0,
            le=1e6,
        ),
    ] = 1.0

    @property
    def latency_s(self) -> float:
        return duration(self.latency)

    def __str__(self) -> str:
        more = f", weight {self.weight:g}" if self.weight != 1 else ""
        return f"{self.share:.4g} of {' '.join(self.queries)} within {self.latency}{more}"


def duration(text: str) -> float:
    """Seconds of a latency such as "50ms". Raises UserError for what is none."""
    match = NUMBER.fullmatch(text.strip())
    units = ", ".join(unit for unit in UNITS_S if unit != "µs")
    if match is None:
        raise UserError(f"{text!r} is no latency", f"a number and its unit ({units}), as 50ms")
    number, unit = float(match[1]), match[2]
    if not unit:
        raise UserError(f"{text!r} has no unit", f"write {text}ms or {text}s")
    if unit not in UNITS_S:
        raise UserError(f"{text!r}: there is no unit {unit!r}", f"the units: {units}")
    seconds = number * UNITS_S[unit]
    if not 0 < seconds <= LONGEST_S:
        raise UserError(f"{text!r} must be above 0 and at most a day", "as 50ms or 2s")
    return seconds


def parsed(text: str) -> dict[str, Any]:
    """A target as on the command line, see `FORM`, as the table that it stands for.

    Raises UserError for another form; values are for whoever makes a `Target` of it to judge.
    """
    head, *more = text.split(",")
    queries, equals, latency = head.rpartition("=")
    if not (equals and queries and latency):
        raise UserError(f"expected {FORM}, got '{text}'", "as 'alarm*=50ms,share=0.95'")
    table: dict[str, Any] = {"queries": [queries], "latency": latency}
    for part in more:
        key, equals, value = part.partition("=")
        if key not in ("share", "weight") or not equals:
            raise UserError(f"'{part}' in '{text}': expected share=... or weight=...", FORM)
        try:
            table[key] = float(value)
        except ValueError:
            raise UserError(f"'{part}' in '{text}': {value!r} is no number", FORM) from None
    return table


def faults(targets: Iterable[Target]) -> Iterable[tuple[int, str, str, str | None]]:
    """What is wrong with targets that no type says: place, key, message and hint of each fault."""
    seen: dict[tuple[str, ...], int] = {}
    for place, target in enumerate(targets):
        try:
            duration(target.latency)
        except UserError as error:
            yield place, "latency", error.message, error.hint
        if any(not pattern for pattern in target.queries):
            yield place, "queries", "an empty pattern", "name a query, or a pattern such as alarm*"
        if (before := seen.setdefault(target.queries, place)) != place:
            yield (
                place,
                "queries",
                f"{' '.join(target.queries)} has a target already, in target[{before}]",
                "leave one of them out",
            )


def target_of(targets: Iterable[Target], *names: str) -> Target | None:
    """The target of a query of these names (see `patterns`): of several, the first that fits."""
    return next((target for target in targets if fits(target.queries, *names)), None)


def targets_of(
    targets: Iterable[Target], queries: Mapping[tuple[str, str], tuple[str, ...]]
) -> dict[tuple[str, str], Target]:
    """Engine and query -> target, of those that have one. queries: with the names of each."""
    found = {query: target_of(targets, *names) for query, names in queries.items()}
    return {query: target for query, target in found.items() if target is not None}
