"""Targets on the screen: what became of them, in a few words."""

from collections.abc import Iterable, Mapping
from typing import Any

from sched_ctl import show

__all__ = ["in_words", "percent", "table"]

Row = Mapping[str, Any]


# standing -> a word that fits a column; what is behind it stands below the table
STANDS = {"meets": "can be met", "late": "late", "over": "cannot", None: "not ordered by"}


def table(targets: Iterable[Row]) -> None:
    """One row a query that has a target, and what there is to say; nothing where none has."""
    rows = list(targets)
    if not rows:
        return
    several = len({row["engine"] for row in rows}) > 1
    show.table(
        (
            *("query", ">target", ">asked", ">met now", ">last hour"),
            *(">p50", ">p99", ">margin", "stands"),
        ),
        (
            (
                _name(row, several),
                show.latency(row["latency_s"]),
                percent(row["share"]),
                percent(row["met"]),
                percent(row["met_hour"]),
                show.latency(row["p50_s"]),
                show.latency(row["p99_s"]),
                show.latency(row["margin_s"]),
                STANDS[row["standing"]],
            )
            for row in rows
        ),
    )
    for row in rows:
        if row["standing"] in ("late", "over"):
            show.text(f"target of {_name(row, several)}: {row['says']}")
        if row["in_the_way"] is not None:
            show.text(f"target of {_name(row, several)}: in the way: {row['in_the_way']}")


def _name(row: Row, several: bool) -> str:
    """With its engine where there are several of these."""
    return f"{row['engine']}:{row['query']}" if several else str(row["query"])


def in_words(row: Row) -> str:
    """One line: "alarm: 98.2% within 50 ms (99% asked), 99.4% in the last hour, p99 61 ms"."""
    met = "not known yet" if row["met"] is None else f"{percent(row['met'])} now"
    hour = "" if row["met_hour"] is None else f", {percent(row['met_hour'])} in the last hour"
    p99 = "" if row["p99_s"] is None else f", p99 {show.latency(row['p99_s'])}"
    way = "" if row["in_the_way"] is None else f"; in the way: {row['in_the_way']}"
    says = "" if row["standing"] in (None, "meets") else f"; {row['says']}"
    asked = f"{percent(row['share'])} within {show.latency(row['latency_s'])}"
    return f"{row['query']}: {asked}: {met}{hour}{p99}{way}{says}"


def percent(share: float | None) -> str:
    """As 98.2%; only all of them are 100%."""
    if share is None:
        return "-"
    text = f"{100 * share:.2f}".rstrip("0").rstrip(".")
    return f"{text}%" if text != "100" or share == 1 else "99.99%"
