"""The fleet on one page: an HTML file that needs nothing else.

Every drawing is from a small table that Spark made: the worst twenty nodes, one point a node and
200th of the time, one cell a node and operator of those, quantiles by policy. What comes to the
driver does not grow with the records.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from shlex import quote
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Struct

from sched_ctl.errors import UserError
from sched_ctl.pipeline import bottlenecks, changes, compare, page, rollups, trust
from sched_ctl.pipeline.choice import HOUR_MS
from sched_ctl.pipeline.profile import days
from sched_ctl.pipeline.store import Fleet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Facts", "Known", "Told", "facts_in", "report", "totals", "whole"]

WORST = 20  # nodes
MOST_NODES = 200  # in the table of nodes
MOST_ROWS = 30  # of the other tables
POINTS = 200
OPERATORS = 60
MOST_BINS = 20_000
MOST_NEW = 5  # of what is new since the last page
LETTERS = 6  # quantiles each way
# Of the lines, on white and on black.
COLOURS = (
    *(("#2563a8", "#74b0f0"), ("#d97706", "#f0a94a"), ("#059669", "#3fc79a")),
    *(("#be185d", "#f472a8"), ("#7c3aed", "#b794f6"), ("#0891b2", "#4cc9e0")),
    *(("#65a30d", "#a3d94f"), ("#9a3412", "#e8885f")),
)
LIGHT, DARK = (
    "".join(f";--s{i}:{pair[dark]}" for i, pair in enumerate(COLOURS)) for dark in (0, 1)
)
SERIES = "\n".join(
    f".s{i}{{stroke:var(--s{i})}}.k.s{i} text{{stroke:none;fill:var(--s{i})}}"
    for i in range(len(COLOURS))
)
STYLE = (
    f"""
:root{{color-scheme:light dark;--a:#2563a8;--t:#222;--g:#ffffff;--l:#ccc{LIGHT}}}
@media(prefers-color-scheme:dark){{:root{{--a:#74b0f0;--t:#ddd;--g:#16181c;--l:#444{DARK}}}}}
{SERIES}
"""
    + """
body{font:16px/1.45 system-ui,sans-serif;color:var(--t);background:var(--g);margin:0 auto;
max-width:72rem;padding:0 1rem;overflow-wrap:anywhere}
main{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(24rem,100%),1fr));gap:1.5rem}
figure{margin:0}figcaption{font-weight:600;margin-bottom:.4rem}
svg{width:100%;height:auto;display:block}svg text{font-size:11px;fill:var(--t)}
a{color:var(--a);white-space:nowrap}
.c{fill:none;stroke:var(--t);stroke-dasharray:3 3;stroke-width:2}
.a{fill:var(--a)}.b{fill:none;stroke:var(--l)}.x{fill:none;stroke:var(--l)}
.h text{paint-order:stroke;stroke:var(--g);stroke-width:3px}
.m{fill:none;stroke:var(--t);stroke-width:1.5}.l{fill:none;stroke-width:1.2}
.t{overflow-x:auto}table{border-collapse:collapse;font-size:14px}
th,td{padding:.2rem .6rem;text-align:left;border-bottom:1px solid var(--l);white-space:nowrap}
.r{text-align:right}
@media(max-width:40rem){table{font-size:13px}
th,td{padding:.2rem .3rem;white-space:normal;overflow-wrap:normal}}
"""
)


class Known(Struct, frozen=True):
    """A change as one page told it. lasts: it was not undone."""

    says: str
    figure: str
    engine: str
    labels: list[str]  # those that changed alike, too
    drifts: bool
    up: bool
    lasts: bool
    begin_ms: int
    slot_ms: int


class Facts(Struct, frozen=True):
    """What one page told, for the next one to tell what is new. When: of the newest record, ms."""

    when: int
    changed: list[Known]  # these, too, with what the page has no room for
    held: dict[str, float]  # label -> hours lost


def facts_of(told: "Told") -> Facts:
    return Facts(
        told.span[1],
        [_known(change) for change in told.changed],
        {f"{h.engine} {h.query}/{h.operator} {h.verdict.word}": h.lost_s / 3600 for h in told.held},
    )


def _known(change: changes.Change) -> Known:
    return Known(
        changes.told(change),
        change.figure,
        change.engine,
        [change.label, *change.others],
        change.drifts,
        change.size > (1 if change.ratio else 0),
        change.drifts or change.until_ms is None,
        change.begin_ms,
        change.slot_ms,
    )


def _same(one: Known, other: Known) -> bool:
    """Whether both pages told of one thing: they begin at other times, and so do their slots."""
    near_ms = changes.NEAR * max(one.slot_ms, other.slot_ms)
    return (
        (one.figure, one.engine, one.drifts, one.up, one.lasts)
        == (other.figure, other.engine, other.drifts, other.up, other.lasts)
        and not set(one.labels).isdisjoint(other.labels)
        and (one.drifts or abs(one.begin_ms - other.begin_ms) <= near_ms)
    )


def kept(facts: Facts) -> str:
    text = msgspec.json.encode(facts).decode().replace("<", "\\u003c")
    return f'<script type="application/json" id="facts">{text}</script>'


def facts_in(text: str) -> Facts | None:
    """Of an earlier page; None if it is none, or of a version that kept none."""
    match = re.search(r'<script type="application/json" id="facts">(.*?)</script>', text, re.DOTALL)
    try:
        return None if match is None else msgspec.json.decode(match[1], type=Facts)
    except msgspec.DecodeError:
        return None


def _difference(facts: Facts, last: Facts | None) -> str:
    """What is new since the last page, and what is over."""
    if last is None:
        return ""
    told = last.changed
    new = [f"new: {one.says}" for one in facts.changed if not any(_same(one, t) for t in told)]
    new += [f"held no more: {label}" for label in last.held if label not in facts.held]
    for label, hours in facts.held.items():
        before = last.held.get(label)
        if before is None:
            new.append(f"now held, too: {label} ({hours:.2f} h)")
        elif hours > before * 1.1 + 0.01:
            new.append(f"held {hours - before:.2f} h more: {label}")
    items = "".join(f"<li>{escape(one)}</li>" for one in new[:MOST_NEW])
    if len(new) > MOST_NEW:
        items += f"<li>and {len(new) - MOST_NEW} more</li>"
    text = f"<ul>{items}</ul>" if new else "<p>Nothing is new.</p>"
    return f"<h2>Since the report up to {page.clock(last.when)}</h2>{text}"


def report(fleet: Fleet, last: Facts | None = None) -> str:
    """The page. last: what an earlier one told. Raises UserError if there is nothing to tell of."""
    fleet.require()
    [total] = totals(fleet.rolled("hour")).collect()
    span = days(fleet)
    if not total["rows"] or span is None:
        raise UserError(f"there are no records in {fleet.out}", "sched-ctl fleet ingest first")
    held = bottlenecks.held(fleet)
    changed, left_out = changes.changes(fleet)
    try:
        compared = compare.compare(fleet)
        why = ""
    except UserError as error:
        compared, why = [], error.message
    worst = _worst(fleet)
    names = [row["node"] for row in worst]
    marks = [(change.begin_ms / 1e3, changes.told(change)) for change in changed[:20]]
    figures = [
        page.figure(
            "Worst nodes: share of the time that their operators were held",
            page.bars([(r["node"], r["held"], f"{r['held']:.1%}") for r in worst], "worst nodes"),
        ),
        page.figure(
            "Pressure on the CPUs of the worst nodes",
            page.lines(
                _pressure(fleet, names[:6], *span), "% of the time", "pressure over time", marks
            ),
            "UTC; what changed stands at its begin." if marks else "UTC.",
        ),
        _heat(fleet, names),
        page.figure(
            "Latency by policy, whatever the load",
            page.letter_values(_letters(fleet), "ms", "letter values of latencies"),
            "Boxes hold 1/2, 3/4, 7/8, ... of the records; of a query, the largest counts.",
        ),
    ]
    ratios = [c for c in compared if compare.FIGURES[c.figure]]
    if ratios:
        figures.append(
            page.figure(
                f"Policies against {ratios[0].base} at equal load: ratios, 95% intervals",
                page.forest(
                    [(f"{c.policy}: {c.figure}", c.value, c.low, c.high) for c in ratios],
                    "policies compared",
                ),
            )
        )
    doubts = trust.doubts(fleet)
    told = Told(total, span, figures, held, changed, left_out, compared, why, doubts)
    return whole(told, _nodes(fleet, told, names), _lines(fleet), last)


@dataclass(frozen=True)
class Told:
    """What the page is made of.

    span: days on which the fleet was there, Unix ms; left_out: how many smaller changes there are.
    """

    total: Any
    span: tuple[int, int]
    figures: list[str]
    held: list[bottlenecks.Held]
    changed: list[changes.Change]
    left_out: int
    compared: list[compare.Compared]
    why: str
    doubts: list[trust.Doubt]


def whole(
    told: Told, nodes: Sequence[Sequence[object]], lines: tuple[int, int], last: Facts | None
) -> str:
    """nodes: rows of NODES; lines: good and bad ones."""
    facts = facts_of(told)
    parts = [
        _first(told),
        _difference(facts, last),
        f"<h2>What changed</h2>{_changed(told)}",
        f"<h2>Nodes not to trust</h2>{_doubted(told)}" if told.doubts else "",
        f"<p>{escape(_extent(told, lines))}</p><main>{''.join(told.figures)}</main>",
        f"<h2>What would help most</h2>{_held(told)}",
        f"<h2>Policies</h2>{_policies(told)}",
        f"<h2>Nodes</h2>{page.table(NODES, nodes)}" if nodes else "",
    ]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width,initial-scale=1"><title>Fleet</title>'
        f"<style>{STYLE}</style><h1>Fleet</h1>{''.join(parts)}{kept(facts)}</html>\n"
    )


def _extent(told: Told, lines: tuple[int, int]) -> str:
    hours = (told.span[1] - told.span[0]) / 3.6e6
    return (
        f"{page.clock(told.span[0])} to {page.clock(told.span[1])} UTC ({hours:.3g} h): "
        f"{told.total['nodes']} nodes, {told.total['queries']} queries, "
        f"{told.total['rows']:,} rows of operators from {lines[0]:,} lines; {lines[1]:,} bad lines."
    )


def _changed(told: Told) -> str:
    if not told.changed:
        return "<p>Nothing.</p>"
    rows = changes.rows(told.changed[:MOST_ROWS])
    left = changes.left_out(told.left_out)
    said = f"<p>{left[0].upper()}{left[1:]}.</p>" if left else ""
    return page.table(changes.COLUMNS, rows) + _left(told.changed, "changes") + said


def _doubted(told: Told) -> str:
    doubts = told.doubts[:MOST_ROWS]
    rows = [(page.link(d.node), d.about, d.lines, d.example) for d in doubts]
    return page.table(trust.COLUMNS, rows) + _left(told.doubts)


def _left(found: Sequence[object], verb: str = "") -> str:
    """How many have no room in a table, and which verb tells them."""
    if len(found) <= MOST_ROWS:
        return ""
    where = f": sched-ctl fleet {verb} FLEET --json" if verb else ""
    return f"<p>And {len(found) - MOST_ROWS} more{where}</p>"


def _held(told: Told) -> str:
    if not told.held:
        return "<p>No operator was held.</p>"
    return page.table(
        ("operator", "held by", ">lost", ">of its time there", ">nodes", ">longest", "what helps"),
        [
            (
                f"{h.engine} {h.query}/{h.operator}",
                h.verdict.word,
                f"{h.lost_s / 3600:.2f} h",
                "-" if math.isnan(h.there) else f"{h.there:.1%}",
                h.nodes,
                f"{h.longest_s / 3600:.2f} h",
                h.advice,
            )
            for h in told.held[:MOST_ROWS]
        ],
    ) + _left(told.held, "bottlenecks")


def _policies(told: Told) -> str:
    if not told.compared:
        return f"<p>{escape(told.why)}</p>"
    return page.table(
        ("policy", "against", "figure", ">value", ">95% interval", ">nodes", "what it says"),
        [
            (
                c.policy,
                c.base,
                c.figure,
                f"{c.value:.3g}",
                "-" if math.isnan(c.low) else f"{c.low:.3g} to {c.high:.3g}",
                c.nodes,
                "differs" if c.tells else "the data do not tell",
            )
            for c in told.compared
        ],
    )


def _first(told: Told) -> str:
    """What to do, in at most three sentences: where, and since when."""
    lasting = [c for c in told.changed if c.drifts or c.until_ms is None]
    said = [
        f"Find what was changed at that time: {_linked(changes.told(c), c.nodes)}."
        for c in lasting[:2]
    ]
    for h in told.held[:1]:
        where = changes.named(h.where, h.nodes)
        share = "" if math.isnan(h.there) else f", {h.there:.0%} of all its time there"
        when = f" between {page.clock(h.begin_ms)} and {page.clock(h.end_ms)}" if h.end_ms else ""
        text = f"{h.engine} {h.query}/{h.operator} was held on {where}{when}{share}"
        advice = h.advice.partition(";")[0]
        said.append(f"{_linked(text, h.where)} ({h.verdict.word}): {escape(advice)}.")
    advice = "".join(f"<li>{one}</li>" for one in said)
    return f"<ul>{advice}</ul>" if said else "<p>There is nothing to do.</p>"


def _linked(text: str, nodes: Sequence[str]) -> str:
    """Names of nodes in a text, as links; of "gw-0000..0002" the first."""
    text = escape(text)
    for node in sorted(nodes, key=len, reverse=True)[:3]:
        pattern = rf"(?<![\w.-]){re.escape(escape(node))}(?=\.\.\w|[^\w.-]|$)"
        found = re.search(pattern, text)
        if found:
            text = f"{text[: found.start()]}{page.link(node)}{text[found.end() :]}"
    return text


def _lines(fleet: Fleet) -> tuple[int, int]:
    """Good and bad ones, of the files of the nodes that are chosen; one sent again is one."""
    from pyspark.sql import functions as F  # noqa: N812

    files = fleet.read("file").groupBy("node", "file")
    each = files.agg(F.max_by(F.struct("good", "bad"), "size").alias("it"))
    [row] = each.selectExpr("sum(it.good) AS good", "sum(it.bad) AS bad").collect()
    return row["good"] or 0, row["bad"] or 0


NODES = ("node", "machine", "from", "to", ">held", ">queries", "its own report")


def _nodes(fleet: Fleet, told: Told, worst: Sequence[str]) -> list[tuple[object, ...]]:
    """Rows for the nodes that the page speaks of: what is known, and the command for the rest."""
    from pyspark.sql import functions as F  # noqa: N812

    named = [*worst, *(node for c in told.changed[:MOST_ROWS] for node in c.nodes[:WORST])]
    named += [n for h in told.held[:MOST_ROWS] for n in h.where]
    named += [d.node for d in told.doubts[:MOST_ROWS]]
    rows = (
        fleet.rolled("hour")
        .where(F.col("node").isin(list(dict.fromkeys(named))))
        .groupBy("node")
        .agg(
            F.max("machine").alias("machine"),
            F.min("begin").alias("begin"),
            F.max("end").alias("end"),
            F.count_distinct("query").alias("queries"),
            F.try_divide(F.sum(F.coalesce("held_ms", F.lit(0.0))), F.sum("d")).alias("held"),
        )
        .orderBy("node")
        .limit(MOST_NODES)
        .collect()
    )
    return [
        (
            page.Linked(f'<span id="{page.place(row["node"])}">{escape(row["node"])}</span>'),
            row["machine"] or "-",
            page.clock(row["begin"]),
            page.clock(row["end"]),
            f"{row['held'] or 0:.1%}",
            row["queries"],
            f"sched-ctl fleet report {quote(fleet.out)} node.html --node {quote(row['node'])}",
        )
        for row in rows
    ]


def totals(hours: "DataFrame") -> "DataFrame":
    """Of all nodes, by way of each node's queries: few rows are shuffled, and counts are exact."""
    from pyspark.sql import functions as F  # noqa: N812

    each = hours.groupBy("node", "query").agg(
        F.sum("n").alias("rows"), F.min("begin").alias("begin"), F.max("end").alias("end")
    )
    return each.agg(
        F.coalesce(F.sum("rows"), F.lit(0)).alias("rows"),
        F.count_distinct("node").alias("nodes"),
        F.count_distinct("query").alias("queries"),
        F.min("begin").alias("begin"),
        F.max("end").alias("end"),
    )


def _worst(fleet: Fleet) -> list[Any]:
    from pyspark.sql import functions as F  # noqa: N812

    rows: list[Any] = (
        fleet.rolled("hour")
        .groupBy("node")
        .agg(F.try_divide(F.sum(F.coalesce("held_ms", F.lit(0.0))), F.sum("d")).alias("held"))
        .where("held IS NOT NULL")
        .orderBy(F.desc("held"), "node")
        .limit(WORST)
        .collect()
    )
    return rows


def _pressure(
    fleet: Fleet, nodes: list[str], begin: int, end: int
) -> list[tuple[str, list[page.Point]]]:
    """Points (Unix s, %): of the rows where the whole is short, else of the hours."""
    from pyspark.sql import functions as F  # noqa: N812

    if end - begin < POINTS * HOUR_MS / 2:
        frame = fleet.read("operator").selectExpr("node", "t", "psi_cpu AS psi", "1 AS psi_n")
    else:
        frame = fleet.rolled("hour").selectExpr("node", "hour AS t", "psi", "psi_n")
    step = max(1, (end - begin) // POINTS + 1)
    rows = (
        frame.where(F.col("node").isin(nodes) & F.col("psi").isNotNull())
        .where((F.col("t") >= begin) & (F.col("t") < end))
        .groupBy("node", F.floor((F.col("t") - begin) / step).alias("at"))
        .agg((F.sum("psi") / F.sum("psi_n") / 100).alias("share"))
        .orderBy("node", "at")
        .collect()
    )
    return [
        (node, [((begin + r["at"] * step) / 1e3, r["share"]) for r in rows if r["node"] == node])
        for node in nodes
    ]


def _heat(fleet: Fleet, nodes: list[str]) -> str:
    """Share of the time that each operator was held, of the worst nodes."""
    from pyspark.sql import functions as F  # noqa: N812

    label = F.concat_ws("/", "query", "operator").alias("label")
    share = F.try_divide(F.sum(F.coalesce("held_ms", F.lit(0.0))), F.sum("d"))
    frame = (
        fleet.rolled("hour").where(F.col("node").isin(nodes)).select("node", label, "held_ms", "d")
    )
    top = [
        row["label"]
        for row in frame.groupBy("label")
        .agg(share.alias("s"))
        .orderBy(F.desc("s"), "label")
        .limit(OPERATORS)
        .collect()
    ]
    rows = (
        frame.where(F.col("label").isin(top))
        .groupBy("node", "label")
        .agg(share.alias("s"))
        .collect()
    )
    known = {(row["node"], row["label"]): row["s"] for row in rows if row["s"] is not None}
    values = [[known.get((node, name), math.nan) for name in top] for node in nodes]
    drawn = page.heat(nodes, top, values, "operators by node")
    return page.figure("Operators that were held, on the worst nodes", drawn)


def _letters(fleet: Fleet) -> list[tuple[str, list[float]]]:
    """Policy -> quantiles of the time in the system, or of the age of the oldest tuple (ms)."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = (
        fleet.rolled("turn")
        .where("bin IS NOT NULL")
        .groupBy("policy", "bin")
        .agg(F.sum("n").alias("n"))
        .orderBy("policy", "bin")
        .limit(MOST_BINS)
        .collect()
    )
    low = [0.5 ** (k + 2) for k in reversed(range(LETTERS))]
    wanted = [*low, 0.5, *(1 - q for q in reversed(low))]
    by_policy: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        by_policy.setdefault(row["policy"], []).append((row["bin"], row["n"]))
    return [(name, quantiles(bins, wanted)) for name, bins in by_policy.items()]


def quantiles(bins: Sequence[tuple[int, int]], wanted: Sequence[float]) -> list[float]:
    """Of counts by bin, in order: as if those of a bin were spread evenly over its logarithm."""
    ends = np.cumsum([0, *(n for _, n in bins)]) / sum(n for _, n in bins)
    found = []
    for q in wanted:
        at = min(int(np.searchsorted(ends, q, side="right")) - 1, len(bins) - 1)
        into = (q - ends[at]) / (ends[at + 1] - ends[at])
        found.append(float(2 ** ((bins[at][0] + into) / rollups.BINS)))
    return found
