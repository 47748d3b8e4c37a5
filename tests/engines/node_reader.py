"""What a controller on this node knows of a Flink cluster, as lines of JSON, until it is killed.

    node_reader.py ADDRESS

Run in the namespaces of a node, where /proc shows its processes alone. A line has, by operator:
whether it is away, its threads, and what is known of it; or an error.
"""

import json
import sys
import time

import numpy as np

from sched_ctl.drivers import Target
from sched_ctl.drivers.flink import driver as flink
from sched_ctl.errors import EngineError
from sched_ctl.metrics.catalogue import evaluate, resolve
from sched_ctl.metrics.window import Window
from sched_ctl.model.topology import Snapshot
from sched_ctl.probes.threads import ThreadTimes

METRICS = ("arrival_age", "head_age", "cost", "global_cost", "queue_size")
EVERY_S = 0.2
WINDOW = 10  # polls


def told(now: Snapshot, then: Snapshot) -> dict[str, object]:
    resolution = resolve(METRICS, now.columns, policy="p", engine="e")
    columns = evaluate(resolution, Window(now, then))
    found: dict[str, object] = {"notes": now.topology.notes}
    for row, operator in enumerate(now.topology.operators):
        values = {name: float(columns[name][row]) for name in METRICS}
        found[operator.name] = {
            "away": operator.away,
            "threads": len(operator.threads),
            **{name: value if np.isfinite(value) else None for name, value in values.items()},
        }
    return found


def main() -> None:
    driver = flink.connect(Target("flink", sys.argv[1]))
    times = ThreadTimes()
    seen: list[Snapshot] = []
    while True:
        try:
            answer = driver.poll(2)
            columns = {**answer.columns, **times.read(answer.topology)}
            seen.append(Snapshot(answer.topology, answer.time_s, columns))
            line: dict[str, object] = told(seen[-1], seen[-WINDOW:][0])
        except EngineError as error:
            line = {"error": str(error)}
        print(json.dumps(line), flush=True)
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
