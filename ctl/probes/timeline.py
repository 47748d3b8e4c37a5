"""A timeline of threads for ui.perfetto.dev: runs, waits behind whom, and who woke them.

The form is Chrome's trace events (Trace Event Format, JSON object form), which Perfetto opens: a
slice is "X" with ts and dur in microseconds, a name "M", a flow from who wakes to who is woken "s"
and "f", a value at a time "C". https://perfetto.dev/docs/getting-started/other-formats
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from sched_ctl.kernel import procfs
from sched_ctl.kernel.runs import PREEMPTED, WAKING, RunLog

__all__ = ["Sample", "events", "record"]

Sample = Mapping[tuple[int, str], float]  # of (process, what): its value now
BEHIND = 3  # who ran meanwhile, by name
LOOK_S = 0.1
Event = dict[str, Any]


def record(
    pids: Collection[int],
    tids: Collection[int] | None,
    seconds: float,
    *,
    names: Mapping[int, str] | None = None,
    sample: Callable[[], Sample] | None = None,
) -> dict[str, Any]:
    """What a file for Perfetto holds. Raises `tracing.Unavailable`.

    names: of threads, where they are not the kernel's own. sample: asked each tenth of a second.
    """
    samples: list[tuple[int, Sample]] = []
    with RunLog(pids) as log:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not log.full:
            if sample is not None:
                now = sample()
                samples.append((time.monotonic_ns(), now))
            time.sleep(min(LOOK_S, seconds))
        rows, full = log.read().tolist(), log.full
    of = {tid: pid for pid in pids for tid in procfs.tids(pid) if tids is None or tid in tids}
    known = names or {}
    found = list(events(rows, of, lambda tid: known.get(tid) or procfs.name_of(tid)))
    start_ns = rows[0][0] if rows else 0
    found += [
        _value(pid, what, value, at_ns - start_ns)
        for at_ns, values in samples
        for (pid, what), value in values.items()
        if at_ns >= start_ns
    ]
    return {
        "traceEvents": found,
        "displayTimeUnit": "ns",
        "otherData": {"full": full, "events": len(rows)},
    }


def events(
    rows: Collection[tuple[int, int, int, int, int]],
    of: Mapping[int, int],
    name_of: Callable[[int], str],
) -> Iterator[Event]:
    """rows: (ns, from, to, CPU, what) in order of time, see bpf/runs.h. of: thread -> process, of
    those that are shown.
    """
    names: dict[int, str] = {0: "idle"}

    def name(tid: int) -> str:
        if tid not in names:
            names[tid] = name_of(tid)
        return names[tid]

    for tid, pid in of.items():
        yield {
            "ph": "M",
            "name": "thread_name",
            "pid": pid,
            "tid": tid,
            "args": {"name": name(tid)},
        }
    if not rows:
        return
    start_ns = next(iter(rows))[0]
    running: dict[int, tuple[int, int]] = {}  # by CPU: since when, who
    waiting: dict[int, tuple[int, int]] = {}  # by thread: since when, who woke it (0 = nobody)
    slept: dict[int, int] = {}  # by thread: when it was last seen to leave its CPU so
    past: dict[int, list[tuple[int, int, int]]] = {}  # by CPU: runs, from, to, who
    for flow, (at_ns, left, came, cpu, what) in enumerate(rows):
        if what == WAKING:
            # Who was woken while it still ran and slept later did not wait; of one that slept, and
            # whose switch is told late, that is not known before it is woken again.
            if came in of and (came not in waiting or waiting[came][0] < slept.get(came, 0)):
                waiting[came] = (at_ns, left)
                if left in of:
                    yield _flow("s", flow, left, of[left], at_ns - start_ns)
                    yield _flow("f", flow, came, of[came], at_ns - start_ns)
            continue
        since_ns, _ = running.get(cpu, (start_ns, left))
        past.setdefault(cpu, []).append((since_ns, at_ns, left))
        if left in of:
            yield _slice("runs", left, of[left], since_ns, at_ns, start_ns, {"cpu": cpu})
            if what == PREEMPTED:
                waiting[left] = (at_ns, 0)
            else:
                slept[left] = at_ns
        running[cpu] = (at_ns, came)
        if came in of and came in waiting:
            ready_ns, waker = waiting.pop(came)
            told: Event = {"cpu": cpu, "behind": _behind(past.get(cpu, []), ready_ns, name)}
            if waker:
                told["woken_by"] = name(waker)
            yield _slice("waits", came, of[came], ready_ns, at_ns, start_ns, told)
    # What lasts, so far
    for cpu, (since_ns, tid) in running.items():
        waiting.pop(tid, None)  # woken while it ran
        if tid in of:
            yield _slice("runs", tid, of[tid], since_ns, at_ns, start_ns, {"cpu": cpu})
    for tid, (ready_ns, _) in waiting.items():
        if ready_ns > slept.get(tid, -1):
            yield _slice("waits", tid, of[tid], ready_ns, at_ns, start_ns, {})


def _behind(
    past: list[tuple[int, int, int]], ready_ns: int, name: Callable[[int], str]
) -> list[str]:
    """Who ran on that CPU since then, longest first."""
    ran: dict[int, int] = {}
    for since_ns, until_ns, who in reversed(past):
        if until_ns <= ready_ns:
            break
        ran[who] = ran.get(who, 0) + until_ns - max(since_ns, ready_ns)
    return [f"{name(who)} ({who})" for who, _ in sorted(ran.items(), key=lambda x: -x[1])[:BEHIND]]


def _slice(
    what: str, tid: int, pid: int, since_ns: int, until_ns: int, start_ns: int, told: Event
) -> Event:
    return {
        "ph": "X",
        "name": what,
        "cat": "sched",
        "pid": pid,
        "tid": tid,
        "ts": (since_ns - start_ns) / 1e3,
        "dur": (until_ns - since_ns) / 1e3,
        "args": told,
    }


def _flow(phase: str, number: int, tid: int, pid: int, ns: int) -> Event:
    """An arrow; it binds to the slice that is open there."""
    end = {"bp": "e"} if phase == "f" else {}
    where = {"pid": pid, "tid": tid, "ts": ns / 1e3}
    return {"ph": phase, "name": "wakes", "cat": "sched", "id": number, **where, **end}


def _value(pid: int, what: str, value: float, ns: int) -> Event:
    args = {"value": value}
    return {"ph": "C", "name": what, "pid": pid, "tid": 0, "ts": ns / 1e3, "args": args}
