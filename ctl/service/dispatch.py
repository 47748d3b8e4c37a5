"""What the BPF scheduler does at the moment, for `sched-ctl stats`: plain data with stable keys."""

from typing import Any

from sched_ctl.controller.loop import Controller
from sched_ctl.model.topology import Thread

__all__ = ["dispatch"]

MOST_THREADS = 1000


def dispatch(controller: Controller) -> dict[str, Any]:
    """Counters since attaching with a text for each, and each thread's cluster, age and waits.

    {} where no backend of this controller dispatches by itself. threads: those that waited
    longest first, at most a thousand.
    """
    backends = controller.backends
    if backends is None or "scx" not in backends.names:
        return {}
    backend = backends["scx"]
    threads: dict[Thread, dict[str, Any]] = {}
    for rule in controller.rules:
        if rule.backend != "scx":
            continue
        for schedule in rule.schedules.values():
            for thread, label in zip(schedule.threads, schedule.operators, strict=True):
                state = backend.applied(thread)
                if state:
                    who = {"tid": thread.tid, "pid": thread.pid, "name": thread.name}
                    threads[thread] = who | {"operator": label} | dict(state)
    rows = sorted(threads.values(), key=lambda row: -row["wait_max_ms"])
    return {
        "backend": "scx",
        "mode": backend.mode,
        "counters": dict(backend.statistics()),
        "about": dict(backend.about()),
        "threads": rows[:MOST_THREADS],
    }
