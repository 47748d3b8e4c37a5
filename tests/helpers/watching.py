"""Verdicts as a controller that applies nothing sees them, window after window."""

import asyncio
import statistics
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.drivers import DriverKind, Target
from sched_ctl.engines.engine import Engine
from sched_ctl.service import bottlenecks

__all__ = ["Seen", "observed", "share", "undisturbed"]

Seen = dict[str, list[dict[str, Any]]]
SETTLE_S = 3.0
ANSWERS_S = 60.0  # on a busy machine an engine takes its time
MOST_WAIT = 0.1  # of a thread's time, or it is not its own doing that holds it


def engines(controller: Controller) -> list[Engine]:
    return list(controller.engines.values())


def observed(target: Target, kind: DriverKind, windows: int) -> Seen:
    """Operator or query -> its verdicts in so many windows."""
    settings = Settings(
        policy=(Section(policy="constant"),),
        engine=(target.engine,),
        period=0.25,
        calm_period=0,
        cpu_limit=0,
    )
    seen: Seen = {}

    async def watch() -> None:
        controller = Controller(settings, {kind.name: kind}, None)
        try:
            await controller.start()
            running = asyncio.create_task(controller.run())
            end_s = time.monotonic() + ANSWERS_S
            while not any(e.snapshot and e.snapshot.topology.queries for e in engines(controller)):
                assert time.monotonic() < end_s, "the engine tells of no query"
                await asyncio.sleep(0.1)
            controller.watch(SETTLE_S + 1)
            await asyncio.sleep(SETTLE_S)
            for _ in range(windows):
                began_s = time.monotonic()
                for query in bottlenecks.bottlenecks(await bottlenecks.look(controller)):
                    seen.setdefault(query["query"], []).append(query)
                    for operator in query["operators"]:
                        seen.setdefault(operator["operator"], []).append(operator)
                await asyncio.sleep(max(0.0, began_s + 0.4 - time.monotonic()))
            controller.stop("seen enough")
            await running
        finally:
            controller.close()

    asyncio.run(watch())
    return seen


def undisturbed(
    target: Target, kind: DriverKind, windows: int, operator: str, pid: int, thread: str
) -> Seen | None:
    """The same, None if others took the CPU of this operator, whose thread in process `pid` has
    this name.

    Whether they did, the kernel says. What is told of the operator has to agree with that.
    """
    before_s, began_s = _waited_s(pid, thread), time.monotonic()
    seen = observed(target, kind, windows)
    wait = (_waited_s(pid, thread) - before_s) / (time.monotonic() - began_s)
    told = statistics.fmean(o["wait"] or 0 for o in seen[operator])
    print(f"{operator} waited for {wait:.3f} of the time, and it is told {told:.3f}")
    if wait >= MOST_WAIT:
        return None
    assert told < 3 * MOST_WAIT  # windows are of the later half of that time
    return seen


def _waited_s(pid: int, name: str) -> float:
    """Time that threads with this name (its first 15 letters) have waited for a CPU so far."""
    waited_ns = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # another that has ended meanwhile
            if (task / "comm").read_text().startswith(name):
                waited_ns.append(int((task / "schedstat").read_text().split()[1]))
    assert waited_ns
    return sum(waited_ns) / 1e9


def share(seen: Seen, name: str, *words: str) -> float:
    """Of the windows, those in which the verdict was one of these."""
    said = [f"{o['verdict']} by {o['by']}" if o.get("by") else o["verdict"] for o in seen[name]]
    print(name, Counter(said))
    return sum(word in words for word in said) / len(said)
