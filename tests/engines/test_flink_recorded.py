"""What the fleet's tables have of a real Flink that `load --record` watched: what its jobs did."""

from collections import Counter
from itertools import dropwhile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from engines.cluster import Cluster
from engines.compete import loaded
from sched_ctl.metrics.verdicts import Verdict
from sched_ctl.pipeline import parse
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.needs("root", "java", "two_cpus")]

RECORDS = 16
WORK_US = 1000


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [
        row
        for path in sorted(folder.glob("gw-*"))
        for batch in parse.of_file(path.name.removesuffix(".part"), path.read_bytes())
        for row in batch.to_pylist()
    ]


def test_what_a_fleet_learns_of_flink(cluster: Cluster, tmp_path: Path, out: Path) -> None:
    """A job that one thread holds, twice as much as it can do; beside it one that idles."""
    cluster.submit(name="single", rate=2000, work_us=WORK_US, out=out)
    cluster.submit(name="light", rate=50, work_us=20)
    folder = tmp_path / "telemetry"
    flags = ("--policy", "hr", "--backend", "nice", "--node", "gw", "--record", str(folder))

    def recorded() -> bool:
        found = {row["seq"] for row in rows_in(folder) if row["kind"] == "operator"}
        return len(found) > RECORDS

    with loaded(cluster, tmp_path / "load", (*flags, "--record-period", "1"), 2):
        wait_until(recorded, 120, f"{RECORDS} records")
    rows = rows_in(folder)
    assert not [row["why"] for row in rows if row["kind"] == "bad"]
    assert not list(folder.glob("*.part"))
    operators = [row for row in rows if row["kind"] == "operator"]
    assert {row["query"] for row in operators} == {"single", "light"}
    assert {row["policy"] for row in operators} <= {"hr", "os"}

    def of(name: str) -> list[dict[str, Any]]:
        found = [row for row in operators if row["operator"] == name]
        return sorted(found, key=lambda row: int(row["t"]))[1:]  # the first one knows no span

    work = of("single-work")
    took_in = sum(row["tuples_in"] for row in work)
    begin_s, end_s = work[0]["t"] / 1e3, (work[-1]["t"] + work[-1]["d"]) / 1e3
    # Some of its time is Flink's own; a tuple burns WORK_US of the thread's CPU time.
    cost_us = sum(row["cpu_us"] for row in work) / took_in
    rate = took_in / (end_s - begin_s)
    print(f"{cost_us:.0f} us a tuple for {WORK_US}, {rate:.0f} tuples/s taken in")
    assert 0.97 * WORK_US < cost_us < 1.4 * WORK_US
    left = sum(row["tuples_in"] for row in of("single-egress"))
    assert left == pytest.approx(took_in, rel=0.2)

    # Verdicts need some seconds of figures, on a busy machine more of them.
    work = list(dropwhile(lambda row: not row["verdict"], work))
    assert len(work) >= RECORDS / 2
    told = Counter(row["verdict"] for row in work)
    print({Verdict(code).word: count for code, count in told.items()})
    held = {Verdict.SINGLE_THREAD_BOUND, Verdict.CPU_STARVED}  # the machine has others
    assert sum(told[verdict] for verdict in held) >= 0.7 * len(work)
    parse_rows = list(dropwhile(lambda row: not row["verdict"], of("single-parse")))
    by = [row["held_by"] for row in parse_rows if row["verdict"] == Verdict.BACKPRESSURED]
    assert set(by) == {"single-work"}
    assert len(by) >= 0.7 * len(parse_rows)
