"""From metrics and a policy to a schedule. Everything here is a pure function.

The operators of all engines that a policy is bound to form one frame, so that one policy compares
them across engines (Lachesis, section 4). What the policy says about operators is then carried
over to threads: a thread that runs several operators is as urgent as the most urgent of them,
several threads of one operator are equally urgent. For a policy on logical operators this is the
transformation rule (Lachesis, section 4): a fused operator gets the largest of its logical ones,
every replica gets that of its logical one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from sched_ctl.decide.held import steadily
from sched_ctl.decide.idle import without_input_last
from sched_ctl.decide.layout import Layout, SameObjects, layout_of
from sched_ctl.errors import UserError, near_miss
from sched_ctl.metrics import feasibility
from sched_ctl.metrics.catalogue import Resolution, evaluate
from sched_ctl.metrics.feasibility import Judgement
from sched_ctl.metrics.levels import most_urgent
from sched_ctl.metrics.window import SAMPLES, Window
from sched_ctl.model.graph import Array, Index
from sched_ctl.model.median import median
from sched_ctl.model.patterns import first, names_of
from sched_ctl.model.policy import NOTHING, Memory, OperatorFrame, Policy, UrgencyForm
from sched_ctl.model.schedule import Group, Schedule

__all__ = ["HELPER_RULES", "decide"]

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
    select: Mapping[str, frozenset[str]] | None = None,
    shares: Mapping[str, float] = MappingProxyType({}),
    helpers: Mapping[str, str] = MappingProxyType({}),
    memory: Memory = NOTHING,
    stood: Mapping[tuple[str, str], Judgement] = MappingProxyType({}),
    cpus: float = math.inf,
    standing: bool = False,
) -> Schedule:
    """The schedule of one rule.

    scope: name of the rule, and of the owner where there are several. windows, resolutions: by
    engine name, of the engines it covers.
    select: by engine name, the queries that it is about; None = all. shares: query pattern (see
    `patterns`) -> share of the CPU; if any is given, every query becomes a group "engine/query"
    with the share of the first pattern that fits, else 1. helpers: pattern of a role, which may be
    named after its engine or kind as a query -> one of `HELPER_RULES`; the first that fits counts,
    a helper without one is left alone. Helpers that serve no operator count as part of every
    rule that covers their engine. memory: `Schedule.memory` of the rule's last schedule. stood,
    standing: its `targets` and `standing`. cpus: how many there are for these engines.

    Raises UserError for an unknown helper rule or a share that is not positive.
    """
    _check(shares, helpers)
    windows = {
        name: window
        if window.level is policy.level
        else Window(window.now, window.then, policy.level, window.recent, lately=window.lately)
        for name, window in windows.items()
    }
    layout = layout_of(
        SameObjects(tuple(window.now.topology for window in windows.values())),
        policy.level,
        None if select is None else tuple(select.get(name, frozenset()) for name in windows),
        tuple(helpers.items()),
    )
    frame, age, queue = _frame(policy, layout, windows, resolutions, memory)
    now_s = max((window.now.time_s for window in windows.values()), default=0.0)
    memory = policy.remember(frame, now_s)
    frame = frame.remembering(memory)
    frame, judged = _judged(policy, frame, windows, cpus, stood)
    form = without_input_last(policy, _checked(policy, frame), queue, layout.spins)
    topologies = [window.now.topology for window in windows.values()]
    spinning = frozenset(one.engine for one in topologies if one.idle_spins)
    held = any(window.lately for window in windows.values())
    cost_s = frame.columns.get("cost")
    standing, grain = steadily(form, age, queue, cost_s, standing) if held else (False, None)
    place = layout.only_place
    if place is None:
        at_present = form.at(age, queue)
        place = most_urgent(form, at_present, layout.owner, layout.row, len(layout.threads))
    made = partial(
        Schedule,
        scope=scope,
        policy=policy.name,
        spacing=policy.spacing,
        threads=layout.threads,
        groups=_groups(layout, place, _grouping(policy, shares)),
        flushers=layout.flushers,
        memory=memory,
        strict=policy.strict,
        targets=judged,
        standing=standing,
        grain=grain,
        spinning=spinning,
    )
    arrival = np.nan_to_num(frame["arrival_age"])
    if layout.straight:
        return made(
            operators=layout.only_labels,
            queries=layout.only_queries,
            form=form,
            head_age_s=age,
            queue_size=queue,
            depth=layout.depth,
            arrival_age_s=arrival,
        )
    decided = place >= 0
    row = layout.row[place] if len(layout.row) else np.zeros(len(place), dtype=np.intp)
    return made(
        operators=layout.labels_by(place),
        queries=layout.queries_by(place),
        form=_of_threads(form, row, decided, layout.top),
        head_age_s=_pick(age, row, decided),
        queue_size=_pick(queue, row, decided),
        depth=np.where(decided, layout.depth[place], 0) if len(layout.depth) else 0 * place,
        arrival_age_s=np.nan_to_num(_pick(arrival, row, decided)),
    )


def _frame(
    policy: Policy,
    layout: Layout,
    windows: Mapping[str, Window],
    resolutions: Mapping[str, Resolution],
    memory: Memory,
) -> tuple[OperatorFrame, Array, Array]:
    """The frame, and its operators' head ages and queue sizes (NaN where unknown)."""
    wanted = policy.needs | policy.wants | {"head_age", "queue_size", "arrival_age"}
    if policy.needs & SAMPLES:
        wanted |= {"cost"}  # see `held`
    parts: dict[str, list[Array]] = {metric: [] for metric in wanted}
    for (engine, window), rows in zip(windows.items(), layout.rows, strict=True):
        columns = evaluate(resolutions[engine], window)
        for metric in wanted:
            # Not every policy needs ages and queues, but who reads the schedule wants to see them.
            # What a policy wants and the engine does not have is unknown.
            column = columns[metric] if metric in columns else window.value(metric)
            # All rows, in their order, are what is wanted of most engines.
            parts[metric].append(column if len(rows) == len(column) else column[rows])
    joined = {metric: _concatenated(columns) for metric, columns in parts.items()}
    frame = OperatorFrame(
        layout.operators, layout.graph, joined, layout.engine, tuple(windows), memory
    )
    return frame, joined["head_age"], joined["queue_size"]


def _judged(
    policy: Policy,
    frame: OperatorFrame,
    windows: Mapping[str, Window],
    cpus: float,
    stood: Mapping[tuple[str, str], Judgement],
) -> tuple[OperatorFrame, Mapping[tuple[str, str], Judgement]]:
    """How queries stand with their targets, told to the policy with the frame."""
    if not policy.aims or not windows:
        return frame, MappingProxyType({})
    engines = tuple(windows)
    guessed = [name for name, window in windows.items() if window.now.topology.guessed]
    judged = feasibility.judge(frame, engines, policy.aims, cpus, stood, guessed)
    columns = {**frame.columns, **feasibility.tell(frame, engines, judged)}
    return replace(frame, columns=columns), judged


def _concatenated(columns: Sequence[Array]) -> Array:
    if len(columns) == 1:
        return columns[0].copy()  # it is kept with the snapshot, and a policy may write to its own
    return np.concatenate(columns) if columns else np.empty(0)


def _checked(policy: Policy, frame: OperatorFrame) -> UrgencyForm:
    """What the policy says of the frame. What is not finite is unknown, and keeps its rank.

    Raises UserError that names the policy's function where it is not one value an operator.
    """
    form = policy.urgency(frame)
    code = getattr(policy.urgency, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    if not isinstance(form, UrgencyForm):
        raise UserError(f"policy {policy.name} returned {type(form).__name__}{where}")
    columns = []
    for name in ("rank", "static", "per_second", "per_tuple"):
        column = np.asarray(getattr(form, name))
        if column.shape != (len(frame),) or column.dtype.kind not in "fiub":
            raise UserError(
                f"policy {policy.name} returned {name} of shape {column.shape} for "
                f"{len(frame)} operators{where}"
            )
        columns.append(column)
    table = np.array(columns, dtype=np.float64)
    if not np.isinf(table).any():
        return form
    known = np.isfinite(table).all(axis=0)
    rank, static, per_second, per_tuple = table
    return UrgencyForm(
        np.where(np.isfinite(rank), rank, np.nan),
        np.where(known, static, np.nan),
        np.where(known, per_second, 0.0),
        np.where(known, per_tuple, 0.0),
    )


def _of_threads(form: UrgencyForm, row: Index, decided: Mask, top: Mask) -> UrgencyForm:
    """The form of each thread; of those that no operator decides for, neutral or above all."""
    if decided.all():
        return form.take(row)
    ranks = form.rank[~np.isnan(form.rank)]
    middle = median(ranks) if len(ranks) else 0.0
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
    picked = column[row]
    return picked if decided.all() else np.where(decided, picked, np.nan)


Grouping = Callable[[str, str], tuple[str, float]]


def _grouping(policy: Policy, shares: Mapping[str, float]) -> Grouping | None:
    """(engine, query) -> (name of the group inside the engine, share); None for no groups."""
    if shares:

        def by_query(engine: str, query: str) -> tuple[str, float]:
            return query, first(shares, *names_of(engine, query)) or 1.0

        return by_query
    return policy.groups


def _groups(layout: Layout, place: Index, grouping: Grouping | None) -> Mapping[str, Group]:
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
