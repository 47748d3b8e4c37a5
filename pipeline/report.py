"""The fleet on one page: an HTML file that needs nothing else.

Every drawing is from a small table that Spark made: the worst twenty nodes, one point a node and
200th of the time, one cell a node and operator of those, quantiles by policy. What comes to the
driver does not grow with the records.
"""

import math
from html import escape
from typing import TYPE_CHECKING, Any

from sched_ctl.errors import UserError
from sched_ctl.metrics.verdicts import HOLDS
from sched_ctl.pipeline import bottlenecks, changes, compare, page
from sched_ctl.pipeline.store import Fleet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["report", "totals"]

WORST = 20  # nodes
POINTS = 200
OPERATORS = 60
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


def report(fleet: Fleet) -> str:
    """The page. Raises UserError if there is nothing to tell of."""
    [total] = totals(fleet.read("operator")).collect()
    if not total["rows"]:
        raise UserError(f"there are no records in {fleet.out}", "sched-ctl fleet ingest first")
    held = bottlenecks.held(fleet)
    changed = changes.changes(fleet)
    try:
        compared = compare.compare(fleet)
        why = ""
    except UserError as error:
        compared, why = [], error.message
    worst = _worst(fleet)
    names = [row["node"] for row in worst]
    figures = [
        page.figure(
            "Worst nodes: share of the time that their operators were held",
            page.bars([(r["node"], r["held"], f"{r['held']:.1%}") for r in worst], "worst nodes"),
        ),
        page.figure(
            "Pressure on the CPUs of the worst nodes",
            page.lines(_pressure(fleet, names[:6]), "% of the time", "pressure over time"),
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
    return whole(total, figures, held, compared, why, fleet, changed)


def whole(
    total: Any,
    figures: list[str],
    held: list[bottlenecks.Held],
    compared: list[compare.Compared],
    why: str,
    fleet: Fleet,
    changed: list[changes.Change],
) -> str:
    hours = (total["end"] - total["begin"]) / 3.6e6
    lines = sum(batch.lines for batch in fleet.batches)
    bad = sum(batch.bad for batch in fleet.batches)
    head = (
        f"{total['nodes']} nodes, {total['queries']} queries, {hours:.3g} h; "
        f"{total['rows']:,} rows of operators from {lines:,} lines; {bad:,} bad lines."
    )
    table = page.table(
        ("operator", "held by", ">lost", ">nodes", ">spans", ">longest", "what helps"),
        [
            (
                f"{h.engine} {h.query}/{h.operator}",
                h.verdict.word,
                f"{h.lost_s / 3600:.2f} h",
                h.nodes,
                h.spans,
                f"{h.longest_s:.0f} s",
                h.advice,
            )
            for h in held[:30]
        ],
    )
    policies = page.table(
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
            for c in compared
        ],
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width,initial-scale=1"><title>Fleet</title>'
        f"<style>{STYLE}</style><h1>Fleet</h1>{_first(changed, held)}"
        f"<p>{escape(head)}</p><main>{''.join(figures)}</main>"
        f"<h2>What would help most</h2>{table if held else '<p>No operator was held.</p>'}"
        f"<h2>Policies</h2>{policies if compared else f'<p>{escape(why)}</p>'}</html>\n"
    )


def _first(changed: list[changes.Change], held: list[bottlenecks.Held]) -> str:
    """What to do, in at most three sentences, and below them what changed."""
    lasting = [change for change in changed if change.drifts or change.until_ms is None]
    said = [f"Look at what came before: {changes.told(change)}." for change in lasting[:2]]
    said += [
        f"{h.engine} {h.query}/{h.operator} was held {h.lost_s / 3600:.2f} h ({h.verdict.word}): "
        f"{h.advice.partition(':')[0].partition(';')[0]}."
        for h in held[:1]
    ]
    advice = "".join(f"<li>{escape(one)}</li>" for one in said)
    table = page.table(changes.COLUMNS, changes.rows(changed[:30]))
    return (
        (f"<ul>{advice}</ul>" if said else "<p>There is nothing to do.</p>")
        + "<h2>What changed</h2>"
        + (table if changed else "<p>Nothing.</p>")
    )


def totals(operators: "DataFrame") -> "DataFrame":
    """Of all nodes, by way of each node's queries: few rows are shuffled, and counts are exact."""
    from pyspark.sql import functions as F  # noqa: N812

    each = operators.groupBy("node", "query").agg(
        F.count("*").alias("rows"),
        F.min("t").alias("begin"),
        F.max(operators.t + operators.d).alias("end"),
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

    held = F.col("verdict").isin([int(v) for v in HOLDS])
    rows: list[Any] = (
        fleet.read("operator")
        .groupBy("node")
        .agg(F.try_divide(F.sum(F.when(held, F.col("d")).otherwise(0)), F.sum("d")).alias("held"))
        .where("held IS NOT NULL")
        .orderBy(F.desc("held"), "node")
        .limit(WORST)
        .collect()
    )
    return rows


def _pressure(fleet: Fleet, nodes: list[str]) -> list[tuple[str, list[page.Point]]]:
    from pyspark.sql import functions as F  # noqa: N812

    frame = fleet.read("operator").where(F.col("node").isin(nodes) & F.col("psi_cpu").isNotNull())
    [ends] = frame.agg(F.min("t").alias("a"), F.max("t").alias("b")).collect()
    if ends["a"] is None:
        return []
    step = max(1, (ends["b"] - ends["a"]) // POINTS + 1)
    rows = (
        frame.groupBy("node", F.floor((F.col("t") - ends["a"]) / step).alias("at"))
        .agg((F.avg("psi_cpu") / 100).alias("share"))
        .orderBy("node", "at")
        .collect()
    )
    return [
        (node, [(r["at"] * step / 1e3, r["share"]) for r in rows if r["node"] == node])
        for node in nodes
    ]


def _heat(fleet: Fleet, nodes: list[str]) -> str:
    """Share of the time that each operator was held, of the worst nodes."""
    from pyspark.sql import functions as F  # noqa: N812

    held = F.col("verdict").isin([int(v) for v in HOLDS])
    label = F.concat_ws("/", "query", "operator").alias("label")
    share = F.try_divide(F.sum(F.when(held, F.col("d")).otherwise(0)), F.sum("d"))
    frame = (
        fleet.read("operator")
        .where(F.col("node").isin(nodes))
        .select("node", label, "verdict", "d")
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

    low = [0.5 ** (k + 2) for k in reversed(range(LETTERS))]
    wanted = [*low, 0.5, *(1 - q for q in reversed(low))]
    latency = F.coalesce(
        F.col("time_us") / 1e3, F.col("latency_us") / 1e3, F.col("age_ms").cast("double")
    )
    rows = (
        fleet.read("operator")
        .where("policy IS NOT NULL")
        .groupBy("node", "engine", "seq", "query", "policy")
        .agg(F.max(latency).alias("ms"))
        .where("ms > 0")
        .groupBy("policy")
        .agg(F.percentile_approx("ms", wanted, 10_000).alias("q"))
        .orderBy("policy")
        .collect()
    )
    return [(row["policy"], row["q"]) for row in rows]
