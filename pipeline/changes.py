"""What changed in a fleet: steps and drifts of cost, rate, wait, verdicts and latency.

Each operator (cost, wait, verdicts) and each query (rate, latency) of each node is a series over at
most some 300 slots of time, in which `steps` looks for places where the level changes and does not
elsewhere. Nodes on which the same happens at the same time are one change, and so are operators
that change together.

Two shuffles: rows to slots, which Spark does to the greater part before the shuffle, and the slots
of an operator on all nodes to one task. What comes to the driver are the largest changes, a
thousand at most, how many others there are, and the number of nodes by day.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from sched_ctl.metrics.verdicts import HOLDS
from sched_ctl.pipeline import rollups, steps
from sched_ctl.pipeline.choice import HOUR_MS
from sched_ctl.pipeline.page import clock
from sched_ctl.pipeline.profile import days
from sched_ctl.pipeline.store import Fleet

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

__all__ = [
    "COLUMNS",
    "FIGURES",
    "Change",
    "Search",
    "changes",
    "left_out",
    "named",
    "rows",
    "slot_of",
    "together",
    "told",
]

MINUTE_MS = 60_000
DAY_MS = 86_400_000
SLOTS_MIN = (5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 480, 720, 1440)
MOST_SLOTS = 300
MOST_DAYS = 90  # that are looked at, back from the newest
MOST = 1000  # changes that come to the driver
MOST_SIZE = 0.7  # half or twice as much: beyond that, more nodes count and not more of it
MOST_NAMES = 200  # of nodes of a change
LEAST_TUPLES = 20  # a slot with fewer says nothing of a cost
MAYBE = 1e-3  # chance of a step on one node that counts if others have it at the same time
STOPPED = 100.0  # times less than usual is a rate that has come to nothing
NEAR = 2  # slots: what begins so near to each other is one change


@dataclass(frozen=True)
class Figure:
    """ratio: compared by its logarithm, else by difference. floor, least: see `steps.steps`.

    loaded: follows the load, and so the time of the day: less than two days show no drift.
    """

    ratio: bool
    floor: float
    least: float
    loaded: bool
    of_query: bool


FIGURES = {
    "cost": Figure(True, 0.01, math.log(1.2), False, False),
    "verdicts": Figure(False, 0.2, 0.25, True, False),
    "latency": Figure(True, 0.02, math.log(1.3), True, True),
    "wait": Figure(False, 0.05, 0.15, True, False),
    "rate": Figure(True, 0.02, math.log(1.3), True, True),
}
WORDS = {
    "cost": ("costs {} times as much", "cost"),
    "verdicts": ("is held {} of the time more", "time held"),
    "latency": ("has {} times the latency", "latency"),
    "wait": ("waits for a CPU {} of the time more", "wait for a CPU"),
    "rate": ("has {} times the tuples", "rate"),
}
OUT = (
    "figure string, query string, operator string, engine string, drifts boolean, at bigint, "
    "size double, low double, high double, chance double, nodes array<string>, count int"
)


@dataclass(frozen=True)
class Change:
    """One change on some nodes.

    begin_ms: Unix time of a step, to a slot; of a drift the begin of the data. until_ms: when a
    step was undone, None = it was not; of a drift the end of the data. size, low, high: a ratio,
    or a difference of shares of the time (`ratio`), of a drift in all that time; with its 95%
    interval on the middle node. chance: that mere noise shows this somewhere in a series as
    uneasy, by the model, which was not calibrated: it sorts, and is shown to nobody. nodes: names,
    the first of `count`. others: operators that changed alike.
    """

    figure: str
    engine: str
    query: str
    operator: str
    drifts: bool
    begin_ms: int
    until_ms: int | None
    slot_ms: int
    size: float
    low: float
    high: float
    chance: float
    nodes: tuple[str, ...]
    count: int
    others: tuple[str, ...] = ()

    @property
    def ratio(self) -> bool:
        return FIGURES[self.figure].ratio

    @property
    def label(self) -> str:
        return f"{self.query}/{self.operator}" if self.operator else self.query


def changes(fleet: Fleet) -> tuple[list[Change], int]:
    """Those that matter most first, and how many smaller ones are left out, each by itself.

    Raises UserError where nothing was taken in.
    """
    fleet.require()
    window = days(fleet)
    if window is None:
        return [], 0
    begin, end = max(window[0], window[1] - MOST_DAYS * DAY_MS), window[1]
    slot_ms = slot_of(end - begin)
    settings = fleet.spark.conf
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = settings.get(key)
    search = Search(begin, end, slot_ms)

    def found_in(key: tuple[Any, ...], frame: "pd.DataFrame") -> "pd.DataFrame":
        return search.of(key, frame)

    settings.set(key, "10000")  # a row is small here
    try:
        found = (
            _series(fleet, begin, end, slot_ms)
            .groupBy("engine", "query", "operator")
            .applyInPandas(found_in, OUT)
        )
        rows, left = _largest(found)
    finally:
        settings.set(key, before or "10000")
    return together([_change(row, begin, end, slot_ms) for row in rows]), left


def _largest(found: "DataFrame") -> tuple[list[Any], int]:
    """MOST rows of OUT, those that are wide first, and how many more there are.

    Begin and end of what is over are about as large as each other, and so stay together.
    """
    from pyspark.sql import functions as F  # noqa: N812

    ratio = F.col("figure").isin([name for name, figure in FIGURES.items() if figure.ratio])
    size = F.abs(F.when(ratio, F.log("size")).otherwise(F.col("size")))
    ordered = found.orderBy(
        F.desc(F.least(size, F.lit(MOST_SIZE)) * F.col("count")),
        "chance",
        "figure",
        "query",
        "operator",
        "at",
    )
    rows = ordered.limit(MOST + 1).collect()
    if len(rows) <= MOST:
        return rows, 0
    return rows[:MOST], found.count() - MOST  # all anew: it is seldom


def slot_of(span_ms: int) -> int:
    """Length of a slot (ms): a span has at most MOST_SLOTS of it."""
    for minutes in SLOTS_MIN:
        if span_ms <= minutes * MINUTE_MS * MOST_SLOTS:
            return minutes * MINUTE_MS
    return SLOTS_MIN[-1] * MINUTE_MS


def _series(fleet: Fleet, begin: int, end: int, slot_ms: int) -> "DataFrame":
    """Cost, wait, verdicts by operator, node and slot; rate, latency by query, node and slot.

    Slots of an hour and more are put together from the roll-ups.
    """
    from pyspark.sql import functions as F  # noqa: N812

    rows = _by_hour(fleet) if slot_ms >= HOUR_MS else _by_row(fleet)
    copies = F.greatest(F.size(F.collect_set("replica")), F.lit(1))  # of one name
    slots = (
        rows.where((F.col("t") >= begin) & (F.col("t") < end))
        .withColumn("slot", F.floor((F.col("t") - begin) / slot_ms).cast("int"))
        .groupBy("engine", "query", "operator", "node", "slot")
        .agg(
            F.sum("cpu_us").alias("cpu_us"),
            F.sum("counted_in").alias("counted"),
            F.try_divide(F.sum("wait_us") * 1e-3, F.sum("waited_ms")).alias("wait"),
            F.try_divide(F.sum("held_ms"), F.sum("judged_ms")).alias("verdicts"),
            F.sum("tuples_in").alias("tuples"),
            (F.sum("ms") / copies).alias("ms"),
            # Times spread over decades: the mean of the logarithm is near their median, and one
            # that is absurd hardly moves it.
            F.exp(F.try_divide(F.sum("lat_log"), F.sum("lat_n"))).alias("latency"),
        )
    )
    cost = F.when(F.col("counted") >= LEAST_TUPLES, F.col("cpu_us") / F.col("counted"))
    by_operator = slots.select(
        "engine", "query", "operator", "node", "slot", cost.alias("cost"), "wait", "verdicts"
    )
    by_query = slots.groupBy("engine", "query", "node", "slot").agg(
        F.lit("").alias("operator"),
        # Over the time that was recorded: more replicas for the same tuples are no other rate.
        F.try_divide(F.sum("tuples"), F.max("ms")).alias("rate"),
        F.max("latency").cast("double").alias("latency"),
    )
    both: DataFrame = by_operator.unionByName(by_query, allowMissingColumns=True)
    return both


def _by_hour(fleet: Fleet) -> "DataFrame":
    """An hour's cost is the median of its parts."""
    from pyspark.sql import functions as F  # noqa: N812

    cpu = F.when(F.col("cost_us").isNotNull(), F.col("cost_us") * F.col("counted_in"))
    hours = rollups.merged("hour", fleet.rolled("hour"))
    timed = hours.withColumn("cpu_us", cpu).withColumn("t", F.greatest("hour", "begin"))
    return timed.withColumn("replica", F.lit(0))  # `ms` is that of one already


def _by_row(fleet: Fleet) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    counted = F.col("cpu_us").isNotNull() & F.col("tuples_in").isNotNull()
    holds = F.col("verdict").isin([int(v) for v in HOLDS])
    latency = F.coalesce(F.col("latency_us"), F.col("age_ms") * 1000)

    def real(column: Any) -> Any:
        return column.cast("double")

    return (
        fleet.read("operator")
        .where("d > 0")
        .select(
            F.split("engine", ":")[0].alias("engine"),
            *("query", "operator", "replica", "node", "t"),
            real(F.when(counted, F.col("cpu_us"))).alias("cpu_us"),
            real(F.when(counted, F.col("tuples_in"))).alias("counted_in"),
            real(F.col("wait_us")).alias("wait_us"),
            real(F.when(F.col("wait_us").isNotNull(), F.col("d"))).alias("waited_ms"),
            real(F.when(holds, F.col("d")).when(F.col("verdict") > 0, 0)).alias("held_ms"),
            real(F.when(F.col("verdict") > 0, F.col("d"))).alias("judged_ms"),
            real(F.col("tuples_in")).alias("tuples_in"),
            real(F.col("d")).alias("ms"),
            F.log(F.when(latency > 0, latency)).alias("lat_log"),
            F.when(latency > 0, 1).alias("lat_n"),
        )
    )


class Search:
    """For `applyInPandas`: the slots of an operator, or a query, on all nodes, to its changes."""

    def __init__(self, begin: int, end: int, slot_ms: int) -> None:
        self.n = max(1, math.ceil((end - begin) / slot_ms))
        self.days = self.n * slot_ms / DAY_MS

    def of(self, key: tuple[Any, ...], frame: "pd.DataFrame") -> "pd.DataFrame":
        import pandas as pd

        engine, query, operator = key
        found: list[tuple[Any, ...]] = []
        for name, figure in FIGURES.items():
            if figure.of_query == (operator == ""):
                for part in self.of_figure(name, frame):
                    found.append((name, query, operator, engine, *part))
        columns = [one.split()[0] for one in OUT.split(", ")]
        return pd.DataFrame(found, columns=columns)

    def of_figure(self, name: str, frame: "pd.DataFrame") -> list[tuple[Any, ...]]:
        """Rows (drifts, at, size, low, high, chance, nodes, count)."""
        figure = FIGURES[name]
        by_node: list[tuple[str, steps.Found]] = []
        series = 0
        for node, part in frame.groupby("node"):
            series += 1
            x = np.full(self.n, np.nan)
            x[part["slot"].to_numpy()] = part[name].to_numpy(dtype=float)
            if name == "rate" and (x > 0).any():
                x[x == 0] = np.median(x[x > 0]) / STOPPED
            if figure.ratio:
                x = np.log(np.where(x > 0, x, np.nan))
            most = steps.MOST_CHANCE if figure.loaded else MAYBE
            stepped = steps.steps(x, figure.floor, figure.least, most)
            by_node += [(str(node), one) for one in stepped]
            stepped = [one for one in stepped if one.chance <= steps.MOST_CHANCE]
            if not figure.loaded or self.days >= 2:
                drifted = steps.drift(
                    x, stepped, figure.floor, figure.least / 2, self.n / self.days
                )
                by_node += [(str(node), drifted)] if drifted else []
        found = []
        for group in _at_once(by_node):
            by_chance = sorted(group, key=lambda f: -f[1].chance)
            chances = [one.chance for one in dict(by_chance).values()]  # of each node its least
            # Load comes to all nodes at once, and proves nothing by that.
            chance = min(chances)
            if not figure.loaded:
                chance = steps.together(chances, series, self.n / (2 * NEAR + 1))
            if chance <= steps.MOST_CHANCE * series:
                found.append(self.row(group, figure.ratio, chance))
        return found

    def row(
        self, group: list[tuple[str, steps.Found]], ratio: bool, chance: float
    ) -> tuple[Any, ...]:
        drifts = group[0][1].at < 0

        def middle(of: str) -> float:
            value = float(np.median([getattr(one, of) for _, one in group]))
            return math.exp(value) if ratio else value

        nodes = sorted({node for node, _ in group})
        return (
            drifts,
            int(np.median([one.at for _, one in group])),
            *(middle(of) for of in ("size", "low", "high")),
            chance,
            nodes[:MOST_NAMES],
            len(nodes),
        )


def _at_once(found: list[tuple[str, steps.Found]]) -> list[list[tuple[str, steps.Found]]]:
    """In groups of the same direction, each of which begins within NEAR slots."""
    groups: list[list[tuple[str, steps.Found]]] = []
    for up in (True, False):
        ordered = sorted((f for f in found if (f[1].size > 0) == up), key=lambda f: f[1].at)
        for one in ordered:
            last = groups[-1][0] if groups else None
            alike = last is not None and (last[1].size > 0) == up
            drifts = one[1].at < 0
            if (
                alike
                and last is not None
                and (last[1].at < 0) == drifts
                and one[1].at - last[1].at <= NEAR
            ):
                groups[-1].append(one)
            else:
                groups.append([one])
    return groups


def _change(row: Any, begin: int, end: int, slot_ms: int) -> Change:
    return Change(
        figure=row["figure"],
        engine=row["engine"],
        query=row["query"],
        operator=row["operator"],
        drifts=row["drifts"],
        begin_ms=begin + max(0, row["at"]) * slot_ms,
        until_ms=end if row["drifts"] else None,
        slot_ms=slot_ms,
        size=row["size"],
        low=row["low"],
        high=row["high"],
        chance=row["chance"],
        nodes=tuple(row["nodes"]),
        count=row["count"],
    )


def together(found: Sequence[Change]) -> list[Change]:
    """Steps that were undone say until when; operators that changed alike are one; in order."""
    gone: set[int] = set()
    made: list[Change] = []
    ordered = sorted(found, key=lambda c: (c.drifts, c.begin_ms))
    for place, one in enumerate(ordered):
        if place in gone:
            continue
        for later in range(place + 1, len(ordered)):
            if later not in gone and _undoes(ordered[later], one):
                gone.add(later)
                one = replace(one, until_ms=ordered[later].begin_ms)
                break
        made.append(one)
    merged: list[Change] = []
    for one in sorted(made, key=lambda c: (c.chance, c.label)):
        for place, other in enumerate(merged):
            if _alike(one, other):
                merged[place] = replace(other, others=(*other.others, one.label))
                break
        else:
            merged.append(one)
    return sorted(merged, key=_weight)


def _log(change: Change) -> float:
    return math.log(change.size) if change.ratio else change.size


def _undoes(later: Change, one: Change) -> bool:
    return (
        not one.drifts
        and not later.drifts
        and (later.figure, later.engine, later.label, later.nodes)
        == (one.figure, one.engine, one.label, one.nodes)
        and abs(_log(later) + _log(one)) < abs(_log(one)) / 3
    )


def _alike(one: Change, other: Change) -> bool:
    return (
        (one.figure, one.drifts, one.nodes, one.engine)
        == (other.figure, other.drifts, other.nodes, other.engine)
        and abs(one.begin_ms - other.begin_ms) <= NEAR * one.slot_ms
        and (one.until_ms is None) == (other.until_ms is None)
        and (_log(one) > 0) == (_log(other) > 0)
        and abs(_log(one) - _log(other)) < abs(_log(other)) / 2
    )


def _weight(change: Change) -> tuple[bool, int, float, int, str]:
    """Causes before effects, what lasts before what is over, the large and wide first."""
    order = list(FIGURES).index(change.figure)
    wide = -abs(_log(change)) * change.count
    return (
        change.until_ms is not None and not change.drifts,
        order,
        wide,
        change.begin_ms,
        change.label,
    )


def named(nodes: Sequence[str], count: int) -> str:
    """Names of nodes, short: those that count on are gw-00..04."""
    parts = [re.fullmatch(r"(.*?)(\d+)", node) for node in sorted(nodes)]
    if count == len(nodes) > 2 and all(parts):
        known = [(part[1], part[2]) for part in parts if part]
        if len({(a, len(b)) for a, b in known}) == 1 and all(
            int(y[1]) - int(x[1]) == 1 for x, y in pairwise(known)
        ):
            return f"{known[0][0]}{known[0][1]}..{known[-1][1]}"
    if count <= 3:
        return ", ".join(sorted(nodes))
    return f"{', '.join(sorted(nodes)[:2])} and {count - 2} more nodes"


def size_of(change: Change, value: float) -> str:
    if change.drifts and change.ratio:
        return f"{value - 1:+.0%}"
    return f"{value:.3g}" if change.ratio else f"{value:+.0%}"


def told(change: Change) -> str:
    """As "pay/agg costs 2.0 times as much on gw-00..04 since 21 Nov 03:00"."""
    sentence, noun = WORDS[change.figure]
    who = change.label + (f" and {len(change.others)} more" if change.others else "")
    where = named(change.nodes, change.count)
    if change.drifts:
        hours = ((change.until_ms or change.begin_ms) - change.begin_ms) / 3.6e6
        moved = f"moved by {size_of(change, change.size)} in {hours:.3g} h"
        return f"the {noun} of {who} {moved} on {where}"
    amount = f"{change.size:.1f}" if change.ratio else f"{abs(change.size):.0%}"
    said = sentence.format(amount)
    if not change.ratio and change.size < 0:
        said = said.replace(" more", " less")
    when = f"since {clock(change.begin_ms)}"
    if change.until_ms is not None:
        when = f"from {clock(change.begin_ms)} to {clock(change.until_ms)}"
    return f"{who} {said} on {where} {when}"


def left_out(count: int) -> str:
    """A sentence on those that `changes` leaves out; "" of none."""
    if not count:
        return ""
    return f"left out, as smaller: {count:,}; --node, --query and --since choose among all"


COLUMNS = ("what changed", ">size", ">95% interval", ">begin (UTC)")


def rows(found: Iterable[Change]) -> list[tuple[object, ...]]:
    """Cells of COLUMNS."""
    return [
        (
            told(change),
            size_of(change, change.size),
            f"{size_of(change, change.low)} to {size_of(change, change.high)}",
            clock(change.begin_ms),
        )
        for change in found
    ]
