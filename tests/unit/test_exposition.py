"""The page for Prometheus against Prometheus' own parser, and the dashboard against the page."""

import asyncio
import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import FakeEngine
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.controller.pace import COSTS
from sched_ctl.errors import UserError
from sched_ctl.metrics.verdicts import Verdict
from sched_ctl.probes.sleeps import SleepPlaces
from sched_ctl.service import bottlenecks, endpoint
from sched_ctl.service.shown import Most
from sched_ctl.telemetry.exposition import FAMILIES, page

ALERTS = Path(__file__).parents[2] / "packaging" / "prometheus-alerts.yml"
DASHBOARD = Path(__file__).parents[2] / "packaging" / "grafana-dashboard.json"


def served(*, openly: bool = False) -> str:
    """The page of a controller that has an engine with strange names."""
    engine = FakeEngine("a", {'q"\\\n{}': 3, "größe": 2})

    async def look() -> str:
        settings = Settings(policy=(Section(policy="qs"),), period=0.05)
        controller = Controller(settings, FakeEngine.kind(engine), None)
        try:
            await controller.start()
            await controller.step(controller.rules)
            return bottlenecks.exposed(controller, openly=openly)
        finally:
            controller.close()

    return asyncio.run(look())


def test_where_threads_sleep_is_looked_at_from_one_scrape_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    followed: list[tuple[int, float]] = []
    monkeypatch.setattr(SleepPlaces, "follow", lambda _, found, s: followed.append((len(found), s)))
    assessed = bottlenecks.assessed

    def asleep(controller: Controller, most: Most) -> Iterator[bottlenecks.Found]:
        for one in assessed(controller, most):
            shares = np.where(np.arange(5) < 3, 0.9, 0.0)
            yield replace(one, assessment=replace(one.assessment, blocked=shares))

    monkeypatch.setattr(bottlenecks, "assessed", asleep)
    served()
    assert followed == [(3, bottlenecks.SCRAPED_S)]


def test_what_a_page_costs_makes_no_pass_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    spent_s = [0.0]
    monkeypatch.setattr("time.thread_time", lambda: spent_s[0])
    assessed = bottlenecks.assessed

    def dear(controller: Controller, most: Most) -> Iterator[bottlenecks.Found]:
        spent_s[0] += 100.0
        yield from assessed(controller, most)

    monkeypatch.setattr(bottlenecks, "assessed", dear)

    async def scraped_between() -> list[float]:
        settings = Settings(policy=(Section(policy="qs"),), period=0.05)
        controller = Controller(settings, FakeEngine.kind(FakeEngine("a", {"q": 3})), None)
        try:
            await controller.start()
            await controller.step(controller.rules)
            for _ in range(COSTS):
                bottlenecks.exposed(controller)
                spent_s[0] += 1.0  # what else is done
                await controller.step(controller.rules)
            return [spent_s[0], controller.pace.pass_s]
        finally:
            controller.close()

    assert asyncio.run(scraped_between()) == [101.0 * COSTS, 1.0]


def test_the_page_is_what_prometheus_reads() -> None:
    text = served()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name, family in families.items():
        assert name.startswith("sched_ctl_") and family.documentation
        total = "_total" if family.type == "counter" else ""
        assert FAMILIES[name.removeprefix("sched_ctl_") + total] == (
            family.type,
            family.documentation,
        )
    queues = {
        sample.labels["operator"]: sample.value
        for sample in families["sched_ctl_operator_queue_tuples"].samples
    }
    assert queues['q"\\\n{}/op2'] == 2.0 and queues["größe/op0"] == 3.0
    [passes] = families["sched_ctl_passes"].samples
    assert passes.value == 1 and passes.labels == {"rule": "qs"}
    assert len(text.splitlines()) == len(set(text.splitlines()))  # no series twice


def test_the_page_is_open_metrics_where_that_is_asked_for() -> None:
    text = served(openly=True)
    assert text.endswith("\n# EOF\n")
    read = openmetrics.text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    families = {family.name: family for family in read}
    assert families["sched_ctl_passes"].type == "counter"
    [built] = families["sched_ctl_build_info"].samples
    assert built.value == 1 and re.fullmatch(r"\d+\.\d+.*", built.labels["version"])


def test_a_verdict_is_one_of_series_that_stay() -> None:
    families = {family.name: family for family in text_string_to_metric_families(served())}
    for of in ("operator", "query"):
        verdicts = families[f"sched_ctl_{of}_verdict"].samples
        who = {(s.labels[of], s.labels["engine"]) for s in verdicts}
        words = {s.labels["verdict"] for s in verdicts}
        assert "cpu-starved" in words and len(verdicts) == len(who) * len(words)
        assert sum(s.value for s in verdicts) == len(who)


def test_the_alerts_ask_for_what_the_page_has() -> None:
    text = ALERTS.read_text()
    asked = set(re.findall(r"sched_ctl_(\w+)", text))
    assert len(asked) > 5 and asked <= FAMILIES.keys()
    [held] = re.findall(r'verdict=~"([^"]+)"', text)
    assert set(held.split("|")) <= {verdict.word for verdict in Verdict}


def test_names_of_families_follow_the_conventions() -> None:
    for name, (kind, meaning) in FAMILIES.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name) and meaning
        assert (kind == "counter") == name.endswith("_total")
        assert not re.search(r"_(ms|us|percent|share)$", name), "base units"


def test_the_dashboard_asks_for_what_the_page_has() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [str(v["query"]) for v in dashboard["templating"]["list"]]
    asked = set(re.findall(r"sched_ctl_(\w+)", " ".join(queries)))
    asked = {name if name in FAMILIES else name.removesuffix("_bucket") for name in asked}
    assert len(asked) > 10 and asked <= FAMILIES.keys()
    states = set(re.findall(r'state="(\w+)"', " ".join(queries)))
    assert states and states <= set(re.findall(r'state="(\w+)"', PAGE_WITH_SHARES))
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


def operators(count: int) -> dict[str, Any]:
    shares = ("run", "wait", "backpressured", "blocked", "idle", "confidence")
    row: dict[str, Any] = dict.fromkeys(shares, 0.2)
    row |= {"queue": 1.0, "head_age_s": float("inf"), "place": None, "verdict": "idle"}
    return {
        "queries": [],
        "rows": [row | {"engine": "e", "operator": f"q/{i}"} for i in range(count)],
        "left_out": {"queries": 2, "operators": 5},
    }


STATUS: dict[str, Any] = {
    "uptime_s": 1.0,
    "cpu_s": 0.1,
    "rss_bytes": 1,
    "problems": [],
    "pressure": {"passes_left_out": 0, "machine": {}, "engines": {}},
    "policies": [],
    "targets": [],
    "engines": [],
    "effects": [],
}
PAGE_WITH_SHARES = page(STATUS, operators(1))


def test_a_page_has_no_value_that_is_not_known() -> None:
    text = page(STATUS, operators(3))
    assert "sched_ctl_operators_left_out{} 5.0" in text
    assert "sched_ctl_queries_left_out{} 2.0" in text
    assert text.count("sched_ctl_operator_queue_tuples{") == 3
    assert " inf" not in text and "operator_place{" not in text
    assert list(text_string_to_metric_families(text))


def test_quantiles_of_latency_stand_beside_the_mean() -> None:
    effect: dict[str, Any] = {"engine": "e", "query": "q", "source": "engine", "time_s": 0.25}
    effect |= {"tuples_in": 9.0, "tuples_out": 9.0, "within_target": None}
    effects = [effect | {"p50_s": 0.125, "p99_s": 2.0}, effect | {"p50_s": None, "p99_s": None}]
    query = {"engine": "e", "query": "q", "verdict": "idle", "confidence": 1.0}
    for told, count in zip(effects, (1, 0), strict=True):
        text = page(STATUS | {"effects": [told]}, operators(0) | {"queries": [query]})
        assert 'sched_ctl_query_seconds{engine="e",query="q",source="engine"} 0.25' in text
        assert text.count('sched_ctl_query_p50_seconds{engine="e",query="q"} 0.125') == count
        assert text.count('sched_ctl_query_p99_seconds{engine="e",query="q"} 2.0') == count
        assert text.count("\nsched_ctl_query_p") == 2 * count


def test_waits_are_a_histogram_a_query() -> None:
    slots = [0] * 32
    slots[0], slots[5], slots[6], slots[31] = 5, 3, 2, 1  # below 1, 33 and 66 us, and long ones
    text = page(STATUS, operators(1), {("e", "q"): [*slots, 2_500_000_000]})
    families = {family.name: family for family in text_string_to_metric_families(text)}
    waits = families["sched_ctl_query_cpu_wait_seconds"]
    assert waits.type == "histogram"
    buckets = {
        float(sample.labels["le"]): sample.value
        for sample in waits.samples
        if sample.name.endswith("_bucket")
    }
    values = [buckets[end] for end in sorted(buckets)]
    assert values == sorted(values) and values[0] == 5 and values[1] == 10
    assert buckets[float("inf")] == 11 and values[-2] == 10
    rest = {s.name.rpartition("_")[2]: s.value for s in waits.samples if "le" not in s.labels}
    assert rest == {"sum": 2.5, "count": 11}


@pytest.mark.parametrize(
    "address", ["9464", "0.0.0.0:9464", "192.168.1.1:80", "localhost:1", "127.0.0.1:0", ":1", "x"]
)
def test_only_this_machine_is_told(address: str) -> None:
    with pytest.raises(UserError):
        endpoint.parsed(address)
    assert endpoint.parsed("[::1]:9464") == ("::1", 9464)


def told(*, openly: bool = False) -> str:
    return "open\n" if openly else "page\n"


def asked(request: bytes, tmp_path: Path) -> bytes:
    """The answer to a request, from a page at a socket."""
    path = tmp_path / "metrics.sock"

    async def ask() -> bytes:
        async with endpoint.serve(str(path), told):
            assert path.stat().st_mode & 0o777 == 0o600
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(request)
            answer = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            return answer

    answer = asyncio.run(ask())
    assert not path.exists()
    return answer


def test_the_page_comes_over_http(tmp_path: Path) -> None:
    answer = asked(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n", tmp_path)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and b"version=0.0.4" in head and body == b"page\n"
    accept = b"accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    head, _, body = asked(
        b"GET /metrics HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n" % accept, tmp_path
    ).partition(b"\r\n\r\n")
    assert b"application/openmetrics-text; version=1.0.0" in head and body == b"open\n"
    assert asked(b"HEAD /metrics HTTP/1.1\r\n\r\n", tmp_path).endswith(b"\r\n\r\n")
    assert b" 404 " in asked(b"GET / HTTP/1.1\r\n\r\n", tmp_path)
    assert b" 405 " in asked(b"POST /metrics HTTP/1.1\r\n\r\n", tmp_path)
    assert asked(b"GET /metrics" + b"x" * 100_000, tmp_path) == b""


def test_whoever_says_nothing_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_S", 2.0)
    path = tmp_path / "metrics.sock"

    async def run(then: Callable[[], Awaitable[bytes]]) -> bytes:
        async with endpoint.serve(str(path), told):
            silent = [socket.socket(socket.AF_UNIX) for _ in range(3)]
            for peer in silent:
                peer.setblocking(False)
                peer.connect(str(path))
            answer = await then()
            for peer in silent:
                peer.close()
            return answer

    async def ask() -> bytes:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return answer

    assert b" 200 " in asyncio.run(run(ask))
