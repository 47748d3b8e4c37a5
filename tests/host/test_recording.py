"""`load --record` beside a real engine: what is in the files is what the engine did."""

import itertools
import json
from pathlib import Path

import pytest
from labs import SOON_S, loaded, sched_ctl, scheduled, spe

from sched_ctl.telemetry import reading, records
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root", "cc")]


def test_what_is_recorded_is_what_was(tmp_path: Path) -> None:
    run_dir, folder = tmp_path / "run", tmp_path / "telemetry"
    flags = ("--policy", "hr", "--backend", "nice", "--node", "gw", "--record", str(folder))

    def lines() -> list[records.Line]:
        found = [line for path in sorted(folder.glob("gw-*")) for line in reading.read(path)]
        return [line[1] for line in found if not isinstance(line, reading.Bad)]

    def of(policy: str) -> list[records.Record]:
        found = [line for line in lines() if isinstance(line, records.Record)]
        return [record for record in found if record.policy == [policy]]

    with spe() as engine:
        with loaded(run_dir, *flags, "--record-period", "0.5", engine=engine):
            scheduled(run_dir, engine)
            wait_until(lambda: len(of("hr")) > 2, SOON_S)
            sched_ctl("policy", "set", "fcfs", "--run-dir", str(run_dir))
            wait_until(lambda: len(of("fcfs")) > 2, SOON_S)
        assert not list(folder.glob("*.part"))
        told = lines()
        assert [line.seq for line in told] == list(range(told[0].seq, told[0].seq + len(told)))
        topologies = [line for line in told if isinstance(line, records.Topology)]
        topology = topologies[-1]
        assert topology.queries == ["etl"]
        # Told again with another epoch alone: threads may be seen after the first look.
        assert [one.epoch for one in topologies] == list(range(1, len(topologies) + 1))
        assert all(one.ops == topology.ops for one in topologies)
        events = [line for line in told if isinstance(line, records.Event)]
        assert [e.value for e in events if e.what == "policy"] == ["hr nice", "fcfs nice"]
        found = [line for line in told if isinstance(line, records.Record)]
        # One after the other, with nothing between.
        for one, other in itertools.pairwise(found):
            assert abs(one.t + one.d - other.t) <= 2
        sums = {
            name: sum(sum(filter(None, getattr(r, name) or [])) for r in found)
            for name in ("tuples_in", "cpu", "wait")
        }
        assert all(total > 0 for total in sums.values())
        heavy = topology.ops.index("AzureInsert")
        cost_us = sum(r.cpu[heavy] or 0 for r in found if r.cpu) / max(
            1, sum(r.tuples_in[heavy] or 0 for r in found if r.tuples_in)
        )
        assert 300 < cost_us < 1200  # 10 times 40 us, in the workload
    answer = json.loads(sched_ctl("replay", str(folder), "-p", "hr", "-p", "qs", "--json"))
    assert answer["records"] == len(found)
    assert answer["in_force"] == ["fcfs", "hr"]
    assert answer["problems"] == []
    nice = {row["operator"]: row["nice"]["hr"]["mean"] for row in answer["operators"]}
    assert nice["etl/Publish"] < nice["etl/spout"]  # the last has the largest output rate by cost
    assert "orders" in sched_ctl("replay", str(folder), "-p", "hr", "-p", "random")
