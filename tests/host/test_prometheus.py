"""A real Prometheus reads a controller, takes the alerts, and answers what the dashboard asks.

Its binaries are unpacked from Debian's archive, not installed: the package starts a server.
"""

import functools
import json
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import debian
import pytest
from labs import SOON_S, loaded, spe

from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root")]

PACKAGING = Path(__file__).parents[2] / "packaging"
ALERTS = PACKAGING / "prometheus-alerts.yml"
# Two gateways, whose engines and queries have equal names.
TWO = [f'engine="lab:1",instance="{gateway}:9464",job="nodes",query="etl"' for gateway in "ab"]
DASHBOARD = PACKAGING / "grafana-dashboard.json"
FOR_TRACING = "sched_ctl_query_cpu_wait_seconds_bucket"  # with `load --trace` alone


@pytest.fixture(scope="module")
def binaries() -> Path:
    """The folder of prometheus and promtool."""
    tree = debian.cache() / "prometheus"
    if not (tree / "usr/bin/prometheus").exists():
        try:
            with debian.archive(debian.release() or "bookworm", tree) as archive:
                archive.unpack("prometheus")
                archive.tree.rename(tree)
        except debian.ArchiveError as error:
            pytest.skip(f"needs Debian's package prometheus: {error}")
    return tree / "usr/bin"


class Server:
    """A Prometheus that scrapes one page each second."""

    def __init__(self, port: int, page: int) -> None:
        self.address = f"http://127.0.0.1:{port}/api/v1/"
        self.page = f"http://127.0.0.1:{page}/metrics"

    def ask(self, what: str, **arguments: str) -> Any:
        query = urllib.parse.urlencode(arguments)
        with urllib.request.urlopen(f"{self.address}{what}?{query}", timeout=SOON_S) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def value(self, expression: str) -> Any:
        return self.ask("query", query=expression)["result"]

    def is_up(self) -> bool:
        try:
            return bool(self.value("up == 1"))
        except OSError:
            return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture
def server(binaries: Path, tmp_path: Path) -> Iterator[Server]:
    port, page = free_port(), free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [
            {"job_name": "sched-ctl", "static_configs": [{"targets": [f"127.0.0.1:{page}"]}]}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # which is YAML, too
    command = [
        *(str(binaries / "prometheus"), f"--config.file={tmp_path / 'prometheus.yml'}"),
        *(f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}"),
    ]
    how = ("--backend", "nice", "--policy", "hr")  # whose operators have places
    with (
        spe("multi") as engine,
        loaded(tmp_path / "run", *how, "--metrics", f"127.0.0.1:{page}", engine=engine),
        (tmp_path / "prometheus.log").open("w") as log,
    ):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield Server(port, page)
        finally:
            process.kill()
            process.wait()


def test_promtool_takes_the_alerts(binaries: Path) -> None:
    subprocess.run([binaries / "promtool", "check", "rules", ALERTS], check=True)


def test_alerts_are_of_each_gateway_by_itself(binaries: Path, tmp_path: Path) -> None:
    bad, good = TWO
    verdict = 'sched_ctl_query_verdict{{{},verdict="{}"}}'
    series = {
        f"sched_ctl_query_target_asked_ratio{{{bad}}}": "0.99+0x20",
        f"sched_ctl_query_target_met_ratio{{{bad}}}": "0.5+0x20",
        f"sched_ctl_query_target_asked_ratio{{{good}}}": "0.99+0x20",
        f"sched_ctl_query_target_met_ratio{{{good}}}": "1+0x20",
        # It does not keep up, and what for alternates.
        verdict.format(bad, "cpu-starved"): "1 0 1 0 1 0 1 0 1 0 1 0",
        verdict.format(bad, "io-bound"): "0 1 0 1 0 1 0 1 0 1 0 1",
        verdict.format(good, "cpu-starved"): "0+0x20",
    }
    labels = dict(part.replace('"', "").split("=", 1) for part in bad.split(","))
    annotations = {
        "SchedCtlTargetMissed": {
            "summary": "etl of lab:1 misses its target",
            "description": "Only 50% of its tuples keep it.",
        },
        "SchedCtlQueryFallsBehind": {
            "summary": "etl of lab:1 does not keep up",
            "description": "Ask: sched-ctl bottlenecks",
        },
    }
    alerts = [
        {
            "eval_time": "8m",
            "alertname": name,
            "exp_alerts": [
                {"exp_labels": labels | {"severity": "warning"}, "exp_annotations": told}
            ],
        }
        for name, told in annotations.items()
    ]
    promtool_tests(binaries, tmp_path, series, alerts)


def promtool_tests(
    binaries: Path, tmp_path: Path, series: dict[str, str], alerts: list[dict[str, Any]]
) -> None:
    """Of our alerts, over series with a sample a minute."""
    values = [{"series": name, "values": text} for name, text in series.items()]
    tests = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": values, "alert_rule_test": alerts}],
    }
    (tmp_path / "tests.yml").write_text(json.dumps(tests))
    done = subprocess.run(
        [binaries / "promtool", "test", "rules", tmp_path / "tests.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_gateway_is_missed_for_as_long_as_it_is_away(binaries: Path, tmp_path: Path) -> None:
    """Beside one that answers; it had another version before."""
    at = 'sched_ctl_build_info{{instance="{}:9464",job="nodes",version="{}"}}'
    series = {
        at.format("a", "1.1"): "1+0x400",
        at.format("b", "1.0"): "1+0x10",
        at.format("b", "1.1"): "_x10 1+0x10 _x400",
    }
    told = {
        "exp_labels": {"instance": "b:9464", "job": "nodes", "severity": "warning"},
        "exp_annotations": {
            "summary": "No sched-ctl answers at b:9464",
            "description": "It ended, or nothing scrapes it. Threads have the system's own order.",
        },
    }
    alerts = [
        {"eval_time": when, "alertname": "SchedCtlAbsent", "exp_alerts": missed}
        for when, missed in (("15m", []), ("40m", [told]), ("5h", [told]))
    ]
    promtool_tests(binaries, tmp_path, series, alerts)


def test_prometheus_reads_a_controller(server: Server, binaries: Path) -> None:
    wait_until(server.is_up, SOON_S, what="a first scrape")
    with urllib.request.urlopen(server.page, timeout=SOON_S) as page:
        subprocess.run([binaries / "promtool", "check", "metrics"], input=page.read(), check=True)
    wait_until(lambda: server.value("sched_ctl_engine_up == 1"), SOON_S, what="its engine")
    wait_until(lambda: server.value("rate(sched_ctl_passes_total[1m]) > 0"), SOON_S, what="passes")

    rules = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 4
    wait_until(
        lambda: all(
            rule["health"] == "ok"
            for group in server.ask("rules")["groups"]
            for rule in group["rules"]
        ),
        SOON_S,
        what="each alert evaluated",
    )
    firing = [rule["name"] for rule in rules if rule["state"] != "inactive"]
    assert "SchedCtlAbsent" not in firing and "SchedCtlEngineSilent" not in firing

    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            ask = functools.partial(server.value, target["expr"].replace("$engine", ".*"))
            if FOR_TRACING in target["expr"]:
                ask()
            else:
                wait_until(ask, SOON_S, what=panel["title"])
