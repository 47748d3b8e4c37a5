"""What a controller tells Prometheus, in its text format (version 0.0.4), or as OpenMetrics 1.0.

Each family is declared once, with its type and meaning; the Grafana dashboard is checked against
these names. https://prometheus.io/docs/instrumenting/exposition_formats/
https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sched_ctl import __version__
from sched_ctl.metrics.verdicts import Verdict
from sched_ctl.probes.waits import SLOT_S

__all__ = ["FAMILIES", "MOST_OPERATORS", "MOST_QUERIES", "OPEN", "TEXT", "page"]

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# Of the engines that are ordered together, on one page. Of all others as many as are looked at.
MOST_OPERATORS = 2000  # each has eighteen series
MOST_QUERIES = 500  # with 25 series each
PREFIX = "sched_ctl_"

# Name without the prefix -> (type, meaning)
FAMILIES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "build_info": ("gauge", "1; the label tells the version"),
        "uptime_seconds": ("gauge", "time since the controller started"),
        "cpu_seconds_total": ("counter", "CPU time that the controller used"),
        "resident_memory_bytes": ("gauge", "memory of the controller"),
        "problems": ("gauge", "things that do not work as they should, see sched-ctl status"),
        "passes_total": ("counter", "passes of a policy"),
        "passes_missed_total": ("counter", "periods that ended while the pass before still ran"),
        "passes_left_out_total": ("counter", "passes that would have changed nothing"),
        "pass_seconds": ("gauge", "time that each stage of the last pass took"),
        "threads": ("gauge", "threads that a policy schedules"),
        "writes_total": ("counter", "changes that a policy had made to threads and cgroups"),
        "repairs_total": ("counter", "changes that somebody else had undone"),
        "engine_up": ("gauge", "1 if the engine answered when it was last asked"),
        "engine_polls_total": ("counter", "answers of an engine, errors included"),
        "engine_poll_seconds": ("gauge", "time that the last answer took"),
        "pressure_seconds_total": ("counter", "time in which some task waited (PSI, some)"),
        "operator_queue_tuples": ("gauge", "tuples waiting in the input queues"),
        "operator_head_age_seconds": ("gauge", "age in the system of the oldest waiting tuple"),
        "operator_backlog_bytes": ("gauge", "bytes waiting in the sockets of an ingress"),
        "operator_place": ("gauge", "place among the others: 0 least, 1 most urgent"),
        "operator_time_ratio": ("gauge", "shares of the time of the operator's threads, by state"),
        "operator_verdict": ("gauge", "1 for what holds the operator back, 0 for all else"),
        "operator_verdict_confidence": ("gauge", "how sure that verdict is, 0 to 1"),
        "query_verdict": ("gauge", "1 for what holds the query back, 0 for all else"),
        "query_verdict_confidence": ("gauge", "how sure that verdict is, 0 to 1"),
        "query_cpu_wait_seconds": (
            "histogram",
            "waits for a CPU of all threads of a query, traced",
        ),
        "query_input_rate": ("gauge", "tuples a second that a query takes in"),
        "query_output_rate": ("gauge", "tuples a second that it gives"),
        "query_seconds": (
            "gauge",
            "mean time of a tuple in the system: from the engine, or by Little's law",
        ),
        "query_p50_seconds": ("gauge", "half of the last tuples were not longer in the system"),
        "query_p99_seconds": ("gauge", "99% of the last tuples were not longer in the system"),
        "query_within_target_ratio": ("gauge", "share of tuples that met the query's target"),
        "race_time_ratio": (
            "gauge",
            "time in the system under an order that auto tried, over that under the system's own",
        ),
        "race_kept": ("gauge", "1 for what auto keeps"),
        "race_price_ratio": ("gauge", "share of the time in the system that trying has cost"),
        "query_target_seconds": ("gauge", "latency that the query is to keep"),
        "query_target_asked_ratio": ("gauge", "share of its tuples that are to keep it"),
        "query_target_met_ratio": ("gauge", "share of its tuples that did, of the last seconds"),
        "query_target_tuples_total": ("counter", "its tuples that were seen to keep it or not"),
        "query_target_met_tuples_total": ("counter", "those of them that kept it"),
        "query_target_possible": ("gauge", "0 if it cannot be met whatever is done"),
        "queries_left_out": ("gauge", f"queries beyond root's first {MOST_QUERIES}, or a user's"),
        "operators_left_out": (
            "gauge",
            f"operators beyond root's first {MOST_OPERATORS}, or a user's",
        ),
    }
)
BUCKETS = range(4, 24, 2)  # slots of a traced histogram at which one of Prometheus' ends
WORDS = tuple(verdict.word for verdict in Verdict)
STATES = ("run", "wait", "backpressured", "blocked", "idle")

Labels = Mapping[str, str]
Sample = tuple[str, Labels, Any]


def page(
    status: Mapping[str, Any],
    screen: Mapping[str, Any],
    waits: Mapping[tuple[str, str], Sequence[int]] = MappingProxyType({}),
    *,
    openly: bool = False,
) -> str:
    """The text of one scrape. status, screen: as the controller's views give them.

    waits: (engine, query) -> how many were shorter than 1, 2, 4 ... times `SLOT_S`, each in
    one slot only; then the ns of all. A value that is not known has no line.
    openly: as OpenMetrics, where a counter's family has no suffix, and the page an end.
    """
    lines: dict[str, list[str]] = {}
    for name, labels, value in (*_samples(status, screen), *_waits(waits)):
        if value is not None and math.isfinite(value):
            told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            line = f"{PREFIX}{name}{{{told}}} {float(value)!r}"
            family = name if name in FAMILIES else name.rpartition("_")[0]
            lines.setdefault(family, []).append(line)
    text = []
    for name, (kind, meaning) in FAMILIES.items():
        if name in lines:
            family = PREFIX + (name.removesuffix("_total") if openly else name)
            text += [f"# HELP {family} {meaning}", f"# TYPE {family} {kind}"]
            text += dict.fromkeys(lines[name])
    return "\n".join(text) + ("\n# EOF\n" if openly else "\n")


def _samples(status: Mapping[str, Any], screen: Mapping[str, Any]) -> Iterator[Sample]:
    yield "build_info", {"version": __version__}, 1
    yield "uptime_seconds", {}, status["uptime_s"]
    yield "cpu_seconds_total", {}, status["cpu_s"]
    yield "resident_memory_bytes", {}, status["rss_bytes"]
    yield "problems", {}, len(status["problems"])
    yield "passes_left_out_total", {}, status["pressure"]["passes_left_out"]
    places = {"machine": status["pressure"]["machine"], **status["pressure"]["engines"]}
    for place, stalls in places.items():
        for resource, stall in stalls.items():
            labels = {"of": place, "resource": resource}
            yield "pressure_seconds_total", labels, stall["some_total_s"]
    for rule in status["policies"]:
        labels = {"rule": rule["name"]}
        chosen = labels | {"policy": rule["policy"], "backend": rule["backend"]}
        yield "threads", chosen, rule["threads"]
        yield "passes_total", labels, rule["passes"]
        yield "passes_missed_total", labels, rule["missed"]
        yield "writes_total", labels, rule["writes"]
        yield "repairs_total", labels, rule["repaired"]
        for stage, milliseconds in rule["stage_ms"].items():
            yield "pass_seconds", labels | {"stage": stage}, milliseconds / 1e3
        if rule["race"] is not None:
            yield from _race(labels, rule["race"])
    told = {(query["engine"], query["query"]) for query in screen["queries"]}
    for effect in status["effects"]:
        if (effect["engine"], effect["query"]) not in told:
            continue
        labels = {"engine": effect["engine"], "query": effect["query"]}
        yield "query_input_rate", labels, effect["tuples_in"]
        yield "query_output_rate", labels, effect["tuples_out"]
        yield "query_seconds", labels | {"source": effect["source"]}, effect["time_s"]
        yield "query_p50_seconds", labels, effect["p50_s"]
        yield "query_p99_seconds", labels, effect["p99_s"]
        yield "query_within_target_ratio", labels, effect["within_target"]
    for engine in status["engines"]:
        labels = {"engine": engine["engine"]}
        yield "engine_up", labels, int(engine["state"] == "ok")
        yield "engine_polls_total", labels, engine["polls"]
        yield "engine_poll_seconds", labels, engine["poll_ms"] / 1e3
    for target in status["targets"]:
        if (target["engine"], target["query"]) not in told:
            continue
        labels = {"engine": target["engine"], "query": target["query"]}
        yield "query_target_seconds", labels, target["latency_s"]
        yield "query_target_asked_ratio", labels, target["share"]
        yield "query_target_met_ratio", labels, target["met"]
        yield "query_target_tuples_total", labels, target["tuples"]
        yield "query_target_met_tuples_total", labels, target["met_tuples"]
        if target["standing"] is not None:
            yield "query_target_possible", labels, int(target["standing"] != "over")
    yield "queries_left_out", {}, screen["left_out"]["queries"]
    yield "operators_left_out", {}, screen["left_out"]["operators"]
    yield from _operators(screen["rows"])
    for query in screen["queries"]:
        labels = {"engine": query["engine"], "query": query["query"]}
        yield from _verdict("query", labels, query["verdict"])
        yield "query_verdict_confidence", labels, query["confidence"]


def _race(labels: Labels, race: Mapping[str, Any]) -> Iterator[Sample]:
    yield "race_price_ratio", labels, race["price"]
    for arm in race["arms"]:
        mine = {**labels, "arm": arm["arm"]}
        yield "race_time_ratio", mine, arm["time_ratio"]
        yield "race_kept", mine, int(arm["arm"] == race["kept"])


def _operators(rows: list[dict[str, Any]]) -> Iterator[Sample]:
    """Those that are known as operators; one that has several threads is told once."""
    known = {(row["engine"], row["operator"]): row for row in rows if row["engine"] is not None}
    for (engine, operator), row in known.items():
        labels = {"engine": engine, "operator": operator}
        yield "operator_queue_tuples", labels, row["queue"]
        yield "operator_head_age_seconds", labels, row["head_age_s"]
        if row.get("backlog") is not None:
            yield "operator_backlog_bytes", labels, row["backlog"]
        yield "operator_place", labels, row["place"]
        for state in STATES:
            yield "operator_time_ratio", labels | {"state": state}, row[state]
        yield from _verdict("operator", labels, row["verdict"])
        yield "operator_verdict_confidence", labels, row["confidence"]


def _verdict(of: str, labels: dict[str, str], word: str) -> Iterator[Sample]:
    """One series for each that there may be: one that comes and goes would leave many behind."""
    for known in WORDS:
        if of == "query" or known != Verdict.KEEPS_UP.word:
            yield f"{of}_verdict", labels | {"verdict": known}, int(known == word)


def _waits(waits: Mapping[tuple[str, str], Sequence[int]]) -> Iterator[Sample]:
    for (engine, query), (*slots, ns) in waits.items():
        name, labels = "query_cpu_wait_seconds", {"engine": engine, "query": query}
        for end in BUCKETS:
            le = {"le": f"{SLOT_S * 2**end:.6g}"}
            yield f"{name}_bucket", labels | le, sum(slots[: end + 1])
        yield f"{name}_bucket", labels | {"le": "+Inf"}, sum(slots)
        yield f"{name}_sum", labels, ns * 1e-9
        yield f"{name}_count", labels, sum(slots)


def _escaped(text: str) -> str:
    """A label's value. Names come from engines: what is no character is replaced."""
    text = text.encode(errors="replace").decode()
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"').replace("\r", " ")
