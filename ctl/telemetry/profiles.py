"""What operators are like, as a fleet has measured them: to start from before anything is measured.

`sched-ctl fleet profile` writes such a file. `load --profiles` takes costs and selectivities from
it for operators of which nothing is known yet, and `simulate` runs it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct

from sched_ctl.errors import UserError
from sched_ctl.model.graph import Array
from sched_ctl.model.median import median
from sched_ctl.model.topology import (
    Edge,
    LogicalOperator,
    PhysicalOperator,
    Snapshot,
    Topology,
)
from sched_ctl.telemetry.recorder import kind_here

__all__ = [
    "NoProfile",
    "Operator",
    "Profile",
    "Query",
    "machines",
    "of_file",
    "priors",
    "read",
    "snapshot",
    "write",
]

VERSION = 1
MOST_BYTES = 64 << 20
SELDOM = 1 / 60  # tuples a second
STARTED = ("cost", "selectivity")  # what is started from

Known = Annotated[float, Meta(ge=0, le=1e15)] | None
Quantiles = tuple[Known, Known, Known]  # 10%, 50%, 90%


class NoProfile(UserError):
    """A file that can be read, and is none."""


class Operator(Struct, kw_only=True):
    """One operator on one kind of machine; times in seconds, rates a second and node.

    Quantiles are over nodes and hours. cost_error: half of the 95% interval of the mean cost, as a
    share of it. drift_a_day: growth of the cost in a day, as a share.
    """

    name: str
    cost: Known = None
    cost_quantiles: Quantiles = (None, None, None)
    cost_error: Known = None
    drift_a_day: float | None = None
    selectivity: Known = None
    input_rate: Known = None
    rate_quantiles: Quantiles = (None, None, None)
    wait: Known = None  # share of the time that it waited for a CPU
    queue: Known = None
    nodes: int = 0
    hours: float = 0.0


class Query(Struct, kw_only=True):
    """One query of one kind of engine on one kind of machine. edges: rows of its operators."""

    engine: str
    machine: str
    name: str
    operators: list[Operator]
    edges: list[tuple[int, int, float]] = []


class Profile(Struct, kw_only=True, tag_field="kind", tag="profile"):
    """The file."""

    version: int = VERSION
    made: str = ""
    queries: list[Query]


def write(path: Path, profile: Profile) -> None:
    """Raises UserError."""
    text = msgspec.json.format(msgspec.json.encode(profile), indent=1)
    try:
        path.write_bytes(text + b"\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def read(path: Path) -> Profile:
    """Raises UserError for what cannot be read; NoProfile for what is none, naming the place."""
    hint = "sched-ctl fleet profile writes one"
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    try:
        profile = msgspec.json.decode(data, type=Profile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoProfile(f"{path}: no profile: {error}", hint) from None
    if profile.version != VERSION:
        raise NoProfile(f"{path}: version {profile.version}; this program reads {VERSION}", hint)
    for query in profile.queries:
        n = len(query.operators)
        if not all(0 <= a < n and 0 <= b < n and share >= 0 for a, b, share in query.edges):
            raise NoProfile(f"{path}: query {query.name}: an edge of no operator", hint)
    return profile


def priors(profile: Profile, topology: Topology, here: str) -> Mapping[str, Array]:
    """Metric -> (n,) what the profile says of an engine's operators; NaN where it says nothing.

    here: the kind of this machine. What was measured on like machines goes before the median of
    all others, of which the order of the operators is likely to be right and their costs are not.
    """
    kind = topology.engine.partition(":")[0]
    like: dict[tuple[str, str], Operator] = {}
    others: dict[tuple[str, str], list[Operator]] = {}
    for query in profile.queries:
        if query.engine != kind:
            continue
        for operator in query.operators:
            key = (query.name, operator.name)
            if query.machine == here:
                like[key] = operator
            others.setdefault(key, []).append(operator)
    columns = {metric: np.full(len(topology.operators), np.nan) for metric in STARTED}
    for row, at in enumerate(topology.operators):
        key = (at.query, at.name)
        found = [like[key]] if key in like else others.get(key, [])
        for metric in STARTED:
            known = [getattr(o, metric) for o in found if getattr(o, metric) is not None]
            if known:
                columns[metric][row] = median(known)
    return columns


def of_file(path: str) -> Callable[[Topology], Mapping[str, Array]] | None:
    """`priors` on this machine by a file; None for no path. Raises UserError."""
    if not path:
        return None
    profile = read(Path(path))
    return lambda topology: priors(profile, topology, kind_here())


def machines(profile: Profile) -> list[str]:
    return sorted({query.machine for query in profile.queries})


def snapshot(profile: Profile, where: str | None = None) -> Snapshot:
    """What runs on a machine of a kind, for the simulator. Raises UserError for an unknown one.

    Queries that nothing came to while they were recorded are left out: they take no time. So are
    those of which too little is known; but what tuples seldom come to (`SELDOM`) costs nothing
    where it is not known, and passes nothing on. A rate that is not known is low where those of all
    that follows are.
    where: None = on such as this one if it is known, else on the first.
    """
    if where is None:
        here, known = kind_here(), machines(profile)
        where = here if here in known else next(iter(known), here)
    queries = [query for query in profile.queries if query.machine == where]
    if not queries:
        raise UserError(
            f"the profile knows no machine {where!r}", f"it knows: {'; '.join(machines(profile))}"
        )
    queries = [query for query in queries if _told(query)]
    if not queries:
        raise UserError(
            f"the profile has no costs of what runs on {where!r}",
            "record it for longer, while tuples flow through all operators",
        )
    operators: list[PhysicalOperator] = []
    edges: list[Edge] = []
    figures: dict[str, list[float]] = {"cost": [], "selectivity": [], "input_rate": []}
    for query in queries:
        first = len(operators)
        for operator in query.operators:
            operators.append(PhysicalOperator(query.name, operator.name, (operator.name,)))
            for metric, column in figures.items():
                value = getattr(operator, metric)
                column.append(0.0 if value is None else value)
        edges += [Edge(first + a, first + b, share) for a, b, share in query.edges]
    logical = tuple(LogicalOperator(o.query, o.name) for o in operators)
    name = _name([query.engine for query in queries])
    topology = Topology(f"{name}:profile", tuple(operators), tuple(edges), logical, tuple(edges))
    return Snapshot(topology, 0.0, {k: np.array(v) for k, v in figures.items()})


def _told(query: Query) -> bool:
    """Whether its costs are known, selectivities, and what comes to it."""
    fed, busy = {b for _, b, _ in query.edges}, _busy(query)
    if not any(o.cost is not None for o in query.operators):
        return False
    return all(
        (row in fed or o.input_rate is not None)
        and (row not in busy or None not in (o.cost, o.selectivity))
        for row, o in enumerate(query.operators)
    )


def _busy(query: Query) -> set[int]:
    """Rows of what tuples come to; where no rate is known, what follows on it tells."""
    before: dict[int, list[int]] = {}
    for a, b, _ in query.edges:
        before.setdefault(b, []).append(a)
    left = [row for row, o in enumerate(query.operators) if (o.input_rate or 0.0) >= SELDOM]
    found = set(left)
    while left:
        for row in before.get(left.pop(), ()):
            if row not in found and query.operators[row].input_rate is None:
                found.add(row)
                left.append(row)
    return found


def _name(kinds: Sequence[str]) -> str:
    return "+".join(dict.fromkeys(kinds))
