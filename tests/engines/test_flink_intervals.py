"""A Flink without pages of its own, which renews what its REST interface tells each few seconds."""

import itertools
from pathlib import Path

import pytest

from engines.cluster import running
from sched_ctl.drivers.flink import driver as flink
from sched_ctl.metrics.window import Window
from sched_ctl.model.topology import Snapshot
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.needs("root", "java")]

RATE = 400
EVERY_S = 4.0  # 10 s by default
WINDOWS = 4


def test_rates_are_those_between_renewals(tmp_path: Path) -> None:
    """Looked at more often than it is renewed: never 0 and then several times the truth."""
    settings = {"metrics.fetcher.update-interval": f"{EVERY_S * 1e3:.0f}"}
    with running(tmp_path / "cluster", ({},), settings=settings) as cluster:
        cluster.submit(name="q", prefix="q-", rate=RATE, work_us=200)
        target = next(target for target in flink.find() if target.pid == cluster.pid)
        driver = flink.kind.connect(target)
        told: list[Snapshot] = []
        looks = 0

        def look() -> bool:
            nonlocal looks
            looks += 1
            now = driver.poll(5.0)
            if told and now.topology is not told[-1].topology:
                told.clear()
            if not told or now.time_s > told[-1].time_s:
                told.append(now)
            return len(told) > WINDOWS + 1

        try:
            wait_until(look, 120, "renewals")
        finally:
            driver.close()
    assert looks > len(told)
    row = [operator.name for operator in told[-1].topology.operators].index("q-work")
    windows = [Window(now, before) for before, now in itertools.pairwise(told[1:])]
    rates = [window.rate("tuples_in")[row] for window in windows]
    assert rates == pytest.approx([RATE] * WINDOWS, rel=0.1), rates
    idle = [window.rate("idle_time")[row] for window in windows]
    assert all(0.5 < part <= 1 for part in idle), idle
