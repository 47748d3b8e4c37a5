"""From metrics and a policy to a schedule. Everything here is a pure function.

The operators of all engines that a policy is bound to form one frame, so that one policy compares
them across engines (Lachesis, section 4). What the policy says about operators is then carried
over to threads: a thread that runs several operators is as urgent as the most urgent of them,
several threads of one operator are equally urgent. For a policy on logical operators this is the
transformation rule (Lachesis, section 4): a fused operator gets the largest of its logical ones,
every replica gets that of its logical one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from sched_ctl.errors import UserError, near_miss
from sched_ctl.frames import join_graphs, subgraph
from sched_ctl.graph import Array, Graph, Index
from sched_ctl.metrics import Resolution, evaluate
from sched_ctl.model import LogicalOperator, PhysicalOperator, Thread, Topology
from sched_ctl.patterns import matcher, matches
from sched_ctl.policy import Level, OperatorFrame, Policy, UrgencyForm
from sched_ctl.schedule import Group, Schedule
from sched_ctl.transform import most_urgent
from sched_ctl.window import Window

__all__ = ["HELPER_RULES", "decide", "matches"]

Mask = npt.NDArray[np.bool_]

# What may be done with a helper thread, by its role
HELPER_RULES = MappingProxyType(
    {
        "follow": "as urgent as the operator it serves; neutral if it serves none",
        "top": "above every operator",
        "neutral": "of unknown urgency: in the middle",
        "leave": "not touched",
    }
)


def decide(
    scope: str,
    policy: Policy,
    windows: Mapping[str, Window],
    resolutions: Mapping[str, Resolution],
    select: Sequence[str] = ("*",),
    shares: Mapping[str, float] = MappingProxyType({}),
    helpers: Mapping[str, str] = MappingProxyType({}),
) -> Schedule:
    """The schedule of one policy binding.

    scope: name of the binding. windows, resolutions: by engine name, of the engines it covers.
    select: query name patterns, see `patterns`. shares: query name pattern -> share of the CPU; if
    any is given, every query becomes a group "engine/query" with the share of the first pattern
    that matches, else 1. helpers: role pattern -> one of `HELPER_RULES`; the first that matches
    counts, a helper without one is left alone. Helpers that serve no operator count as part of
    every binding that covers their engine.

    Raises UserError for an unknown helper rule or a share that is not positive.
    """
    _check(shares, helpers)
    windows = {
        name: window
        if window.level is policy.level
        else Window(window.now, window.then, policy.level)
        for name, window in windows.items()
    }
    layout = _layout(
        _SameObjects(tuple(window.now.topology for window in windows.values())),
        policy.level,
        tuple(select),
        tuple(helpers.items()),
    )
    frame, age, queue = _frame(policy, layout, windows, resolutions)
    form = policy.urgency(frame)
    place = layout.only_place
    if place is None:
        at_present = form.at(age, queue)
        place = most_urgent(form, at_present, layout.owner, layout.row, len(layout.threads))
    decided = place >= 0
    row = layout.row[place] if len(layout.row) else np.zeros(len(place), dtype=np.intp)
    return Schedule(
        scope=scope,
        policy=policy.name,
        spacing=policy.spacing,
        threads=layout.threads,
        operators=_labels(layout, place),
        form=_of_threads(form, row, decided, layout.top),
        head_age_s=_pick(age, row, decided),
        queue_size=_pick(queue, row, decided),
        groups=_groups(layout, place, _grouping(policy, shares)),
    )


@dataclass(frozen=True, eq=False)
class _Layout:
    """All of a schedule that changes only with the topology.

    rows: per engine, the rows of its columns that are in the frame.
    owner, row: who may decide for whom: one entry for each pair of a thread and an operator of
    the frame whose urgency it may get. labels, groups (engine, query): of the pairs.
    roles: (m,) label of a thread that no operator decides for. top: (m,) true if above all.
    """

    rows: tuple[Index, ...]
    operators: tuple[PhysicalOperator, ...] | tuple[LogicalOperator, ...]
    graph: Graph
    threads: tuple[Thread, ...]
    roles: tuple[str, ...]
    top: Mask
    owner: Index
    row: Index
    labels: tuple[str, ...]
    groups: tuple[tuple[str, str], ...]

    @cached_property
    def only_place(self) -> Index | None:
        """(m,) the pair that decides for each thread, if none has a choice; -1: no operator."""
        if len(set(self.owner.tolist())) < len(self.owner):
            return None
        place = np.full(len(self.threads), -1, dtype=np.intp)
        place[self.owner] = np.arange(len(self.owner))
        return place

    @cached_property
    def only_labels(self) -> tuple[str, ...]:
        """(m,) labels if no thread has a choice."""
        return _labels_of(self, self.only_place) if self.only_place is not None else ()


def _labels_of(layout: _Layout, place: Index) -> tuple[str, ...]:
    return tuple(
        layout.labels[at] if at >= 0 else role
        for at, role in zip(place.tolist(), layout.roles, strict=True)
    )


def _labels(layout: _Layout, place: Index) -> tuple[str, ...]:
    return layout.only_labels if place is layout.only_place else _labels_of(layout, place)


class _SameObjects:
    """Topologies as a cache key: equal if they are the very same objects (see `model`)."""

    def __init__(self, topologies: tuple[Topology, ...]) -> None:
        self.topologies = topologies

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.topologies)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _SameObjects)
            and len(self.topologies) == len(other.topologies)
            and all(a is b for a, b in zip(self.topologies, other.topologies, strict=True))
        )


@lru_cache(maxsize=32)
def _layout(
    key: _SameObjects, level: Level, select: tuple[str, ...], rules: tuple[tuple[str, str], ...]
) -> _Layout:
    rows: list[Index] = []
    operators: list[PhysicalOperator | LogicalOperator] = []
    graphs: list[Graph] = []
    threads: dict[Thread, int] = {}
    roles: list[str] = []
    helpers: list[tuple[Thread, bool]] = []
    pairs: list[tuple[int, int, str, tuple[str, str]]] = []  # thread, frame row, label, group
    fits = matcher(select)
    for topology in key.topologies:
        wanted = {query for query in topology.queries if fits(topology.engine, query)}
        of_level: Sequence[PhysicalOperator | LogicalOperator] = topology.operators
        graph = topology.graph
        if level is Level.LOGICAL:
            of_level, graph = topology.logical, topology.logical_graph
        chosen = np.array([i for i, o in enumerate(of_level) if o.query in wanted], dtype=np.intp)
        place = {int(old): len(operators) + new for new, old in enumerate(chosen)}
        rows.append(chosen)
        operators.extend(of_level[i] for i in chosen)
        graphs.append(subgraph(graph, chosen))
        # physical row -> the frame rows that may decide for it
        deciders: dict[int, list[int]] = {}
        if level is Level.PHYSICAL:
            deciders = {old: [new] for old, new in place.items()}
        else:
            physical, logical, _, _ = topology.logical_rows
            for i, j in zip(physical.tolist(), logical.tolist(), strict=True):
                if j in place:
                    deciders.setdefault(i, []).append(place[j])

        def let_decide(
            thread: Thread,
            i: int,
            label: str,
            topology: Topology = topology,
            deciders: dict[int, list[int]] = deciders,
        ) -> None:
            group = (topology.engine, topology.operators[i].query)
            owner = threads.setdefault(thread, len(threads))
            if owner == len(roles):
                roles.append(label)
            pairs.extend((owner, row, label, group) for row in deciders.get(i, []))

        for i, operator in enumerate(topology.operators):
            if operator.query in wanted:
                for thread in operator.threads:
                    let_decide(thread, i, operator.label)
        operator_threads = {t for operator in topology.operators for t in operator.threads}
        for helper in topology.helpers:
            rule = next((r for role, r in rules if fnmatchcase(helper.role, role)), "leave")
            serves = helper.serves
            outside = serves is not None and topology.operators[serves].query not in wanted
            if rule == "leave" or helper.thread in operator_threads or outside or not wanted:
                continue
            label = f"{topology.engine}: {helper.role}"
            if rule == "follow" and serves is not None:
                let_decide(helper.thread, serves, label)
            elif helper.thread not in threads:
                threads[helper.thread] = len(threads)
                roles.append(label)
            helpers.append((helper.thread, rule == "top"))
    highest = [threads[thread] for thread, on_top in helpers if on_top]
    top = np.isin(np.arange(len(threads)), highest)
    owner, row = np.array([pair[:2] for pair in pairs], dtype=np.intp).reshape(-1, 2).T
    return _Layout(
        rows=tuple(rows),
        operators=tuple(operators),  # type: ignore[arg-type]
        graph=join_graphs(graphs),
        threads=tuple(threads),
        roles=tuple(roles),
        top=top,
        owner=owner,
        row=row,
        labels=tuple(pair[2] for pair in pairs),
        groups=tuple(pair[3] for pair in pairs),
    )


def _frame(
    policy: Policy,
    layout: _Layout,
    windows: Mapping[str, Window],
    resolutions: Mapping[str, Resolution],
) -> tuple[OperatorFrame, Array, Array]:
    """The frame, and its operators' head ages and queue sizes (NaN where unknown)."""
    wanted = policy.needs | {"head_age", "queue_size"}
    parts: dict[str, list[Array]] = {metric: [np.empty(0)] for metric in wanted}
    for (engine, window), rows in zip(windows.items(), layout.rows, strict=True):
        columns = evaluate(resolutions[engine], window)
        for metric in wanted:
            # Not every policy needs ages and queues, but who reads the schedule wants to see them.
            column = columns[metric] if metric in columns else window.value(metric)
            parts[metric].append(column[rows])
    joined = {metric: np.concatenate(columns) for metric, columns in parts.items()}
    frame = OperatorFrame(layout.operators, layout.graph, joined)
    return frame, joined["head_age"], joined["queue_size"]


def _of_threads(form: UrgencyForm, row: Index, decided: Mask, top: Mask) -> UrgencyForm:
    """The form of each thread; of those that no operator decides for, neutral or above all."""
    if decided.all():
        return form.take(row)
    ranks = form.rank[~np.isnan(form.rank)]
    middle = float(np.median(ranks)) if len(ranks) else 0.0
    highest = float(ranks.max()) if len(ranks) else 0.0
    other_rank = np.where(top, highest + 1, middle)
    other_static = np.where(top, 0.0, np.nan)
    return UrgencyForm(
        np.where(decided, _pick(form.rank, row, decided), other_rank),
        np.where(decided, _pick(form.static, row, decided), other_static),
        np.where(decided, _pick(form.per_second, row, decided), 0.0),
        np.where(decided, _pick(form.per_tuple, row, decided), 0.0),
    )


def _pick(column: Array, row: Index, decided: Mask) -> Array:
    if not len(column):
        return np.full(len(row), np.nan)
    return np.where(decided, column[row], np.nan)


Grouping = Callable[[str, str], tuple[str, float]]


def _grouping(policy: Policy, shares: Mapping[str, float]) -> Grouping | None:
    """(engine, query) -> (name of the group inside the engine, share); None for no groups."""
    if shares:

        def by_query(engine: str, query: str) -> tuple[str, float]:
            fitting = (share for name, share in shares.items() if matches(engine, query, [name]))
            return query, next(fitting, 1.0)

        return by_query
    asked = policy.groups
    return None if asked is None else lambda engine, query: asked(query)


def _groups(layout: _Layout, place: Index, grouping: Grouping | None) -> Mapping[str, Group]:
    """A thread is in the group of the query whose operator decides for it."""
    if grouping is None:
        return MappingProxyType({})
    members: dict[tuple[str, str], list[int]] = {}
    for thread, at in enumerate(place.tolist()):
        if at >= 0:
            members.setdefault(layout.groups[at], []).append(thread)
    rows: dict[str, list[int]] = {}
    shares: dict[str, float] = {}
    for (engine, query), threads in members.items():
        name, share = grouping(engine, query)
        rows.setdefault(f"{engine}/{name}", []).extend(threads)
        shares[f"{engine}/{name}"] = share
    return {name: Group(shares[name], tuple(sorted(rows[name]))) for name in rows}


def _check(shares: Mapping[str, float], helpers: Mapping[str, str]) -> None:
    for pattern, share in shares.items():
        if not (np.isfinite(share) and share > 0):
            raise UserError(
                f"the share of {pattern!r} is {share}", "a share is a number above 0; default 1"
            )
    for role, rule in helpers.items():
        if rule not in HELPER_RULES:
            raise UserError(
                f"helper threads {role!r}: no rule {rule!r}{near_miss(rule, HELPER_RULES)}",
                f"one of: {', '.join(HELPER_RULES)}",
            )
