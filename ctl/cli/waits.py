"""sched-ctl waits: how long a program's threads wait for a CPU, traced in the kernel."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sched_ctl.cli.flags import DEFAULT_RUN_DIR, Json, RunDir
from sched_ctl.config.settings import ConfigError
from sched_ctl.errors import UserError

if TYPE_CHECKING:
    from sched_ctl.model.topology import Thread
    from sched_ctl.probes.timeline import Sample
    from sched_ctl.probes.waits import Waits

__all__ = ["add_to", "write_timeline"]

DIGITS = 7  # of a process id, PID_MAX_LIMIT
NAMED = 2  # of those behind whom a thread waits, or who wake it, in a table


def add_to(app: typer.Typer) -> None:
    app.command()(waits)


def waits(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PID|OPERATOR",
            help="A process; or, of a running controller, an operator (query/operator) or a query.",
        ),
    ],
    seconds: Annotated[float, typer.Option(help="How long to look.", min=0.1, max=3600)] = 5.0,
    stacks: Annotated[
        bool,
        typer.Option(
            "--stacks",
            help="Where each thread sleeps, with its stacks, who wakes it, and who holds the lock "
            "that it waits for. Stops a Java process for milliseconds, three times.",
        ),
    ] = False,
    folded: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write stacks as folded lines.")
    ] = None,
    flame: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write stacks as a flame graph (SVG).")
    ] = None,
    probe: Annotated[
        str | None,
        typer.Option(
            metavar="FUNCTION",
            help="Instead: how often each thread calls a function: NAME, LIBRARY:NAME, "
            "kernel:NAME, or usdt:PROVIDER:PROBE. Needs bcc (apt install python3-bpfcc).",
        ),
    ] = None,
    timed: Annotated[
        bool,
        typer.Option(
            "--timed",
            help="With --probe: also how long the calls take. Ends a program that switches stacks "
            "(Go, coroutines) or throws exceptions of C++ while in that function.",
        ),
    ] = False,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead: write when each thread ran and waited, and who woke it, as a timeline "
            "for ui.perfetto.dev.",
        ),
    ] = None,
    run_dir: RunDir = DEFAULT_RUN_DIR,
    json: Json = False,
) -> None:
    """Trace how long each thread waits for a CPU, behind whom, and who wakes it.

    Loads a tracing program into the kernel for that time, and changes nothing. A wait that goes on
    at the end is told if it was seen for 1.2 s or longer.
    Example: sched-ctl waits 4711 --seconds 10
    """
    of_sleep = stacks or folded is not None or flame is not None
    if probe is not None and (of_sleep or perfetto is not None):
        raise ConfigError(
            "--probe shows calls, and nothing else",
            "leave out --stacks, --folded, --flame, --perfetto",
        )
    if timed and probe is None:
        raise ConfigError("--timed is for --probe", "add --probe FUNCTION")
    if perfetto is not None and (of_sleep or json):
        raise ConfigError(
            "--perfetto writes a file, and shows nothing",
            "leave out --stacks, --folded, --flame, --json",
        )
    pids, tids = _meant(what, run_dir)
    if probe is not None:
        _calls(pids, tids, probe, seconds, timed=timed, json=json)
    elif perfetto is not None:
        write_timeline(perfetto, pids, tids, seconds)
    elif of_sleep:
        from sched_ctl.cli.stacks import show_stacks

        show_stacks(pids, tids, seconds, json=json, folded=folded, flame=flame)
    else:
        _waits(pids, tids, seconds, json=json)


def _meant(what: str, run_dir: Path) -> tuple[list[int], set[int] | None]:
    """Processes, and which of their threads; None = all. Raises UserError."""
    from sched_ctl.kernel import procfs
    from sched_ctl.service.socket import request

    if not what.isdecimal():
        threads = request(run_dir, "threads", {"what": what})
        return threads["pids"], set(threads["tids"])
    if len(what) > DIGITS or procfs.stat(int(what)) is None:
        raise UserError(f"there is no process {what}", "sched-ctl engines shows those of engines")
    return [int(what)], None


def _calls(
    pids: list[int],
    tids: set[int] | None,
    function: str,
    seconds: float,
    *,
    timed: bool,
    json: bool,
) -> None:
    from sched_ctl import show
    from sched_ctl.kernel import procfs
    from sched_ctl.probes.functions import calls

    if len(pids) > 1:
        raise UserError(f"{len(pids)} processes run that", "name one of them: " + str(pids[0]))
    told = calls(pids[0], function, seconds, timed=timed)
    found = [one for one in told if tids is None or one.tid in tids]
    rows = [(procfs.name_of(one.tid), one) for one in found]
    if json:
        show.emit_json(
            [{"tid": o.tid, "name": n, "times": o.times, "seconds": o.seconds} for n, o in rows]
        )
        return
    show.table(
        ("thread", ">tid", ">calls", ">s", ">mean us"),
        (
            (
                name,
                one.tid,
                one.times,
                "-" if one.seconds is None else f"{one.seconds:.3f}",
                "-" if one.seconds is None else show.number(one.seconds / one.times * 1e6),
            )
            for name, one in rows
        ),
    )
    if not rows:
        show.text(f"no thread called {function} within {seconds:g} s")


def write_timeline(
    path: Path,
    pids: Sequence[int],
    tids: set[int] | None,
    seconds: float,
    *,
    names: Mapping[int, str] | None = None,
    sample: "Callable[[], Sample] | None" = None,
) -> None:
    """Look for so long, write the file, and say so. Raises UserError; see `probes.timeline`."""
    from json import dumps

    from sched_ctl import show
    from sched_ctl.cli import outputs
    from sched_ctl.kernel import tracing
    from sched_ctl.probes.timeline import record

    outputs.check(path)
    try:
        found = record(pids, tids, seconds, names=names, sample=sample)
    except tracing.Unavailable as error:
        raise UserError(f"nothing can be traced: {error}", "see sched-ctl check") from None
    outputs.write(path, dumps(found))
    full = "; the log was full before the end" if found["otherData"]["full"] else ""
    show.text(f"{len(found['traceEvents'])} events in {path}: open it in ui.perfetto.dev{full}")


def _waits(pids: list[int], tids: set[int] | None, seconds: float, *, json: bool) -> None:
    from sched_ctl import show
    from sched_ctl.kernel import procfs, tracing

    try:
        found = _traced(pids, tids, seconds)
    except tracing.Unavailable as error:
        raise UserError(f"nothing can be traced: {error}", "see sched-ctl check") from None
    names = {0: "-"} | {tid: procfs.name_of(tid) for one in found for tid in _concerned(one)}
    if json:
        show.emit_json([_as_json(one, names) for one in found])
        return
    show.table(
        ("thread", ">tid", ">waits", ">s", ">half < ms", ">99% < ms", "behind", "woken by"),
        (
            (
                names[one.tid],
                one.tid,
                one.waits,
                f"{one.wait_s:.3f}",
                show.number(one.median_s * 1e3),
                show.number(one.long_s * 1e3),
                ", ".join(f"{names[tid]} {part:.0%}" for tid, part in one.behind[:NAMED]),
                ", ".join(f"{names[tid]} {times}" for tid, times in one.woken_by[:NAMED]),
            )
            for one in found
        ),
    )
    for one in found:
        if one.goes_on_s:
            show.text(f"{names[one.tid]} ({one.tid}) still waits, for {one.goes_on_s:.1f} s so far")


def _traced(pids: list[int], tids: set[int] | None, seconds: float) -> "list[Waits]":
    """The waits of these threads, most time first, with those that go on. Raises Unavailable."""
    import time

    from sched_ctl.kernel import tracing
    from sched_ctl.model.topology import Thread
    from sched_ctl.probes.unserved import EVERY_S, Unserved
    from sched_ctl.probes.waits import SLOTS, waits_of

    unserved, known = Unserved(), dict[int, Thread]()
    looks = max(1, int(seconds / EVERY_S))
    with tracing.Tracer(pids, wakings=True) as tracer:
        for _ in range(looks):
            unserved.look(_threads(pids, tids, known), time.monotonic())
            time.sleep(seconds / looks)
        # Before the last look: a wait of which that one says that it goes on is not in them.
        threads, occupants, wakings = tracer.threads(), tracer.occupants(), tracer.wakings()
        # At all: of whom it left out nobody knows whether an earlier wait has ended.
        there = _threads(pids, tids, known)
        unserved.look(there, time.monotonic(), most=len(there))
    goes_on = {thread.tid: wait_s for thread, wait_s in unserved.goes_on_s().items()}
    seen = {tid: (one["slots"].tolist(), int(one["wait_ns"])) for tid, one in threads.items()}
    never = dict.fromkeys(goes_on.keys() - seen.keys(), ([0] * SLOTS, 0))
    found = [
        waits_of(tid, *counted, occupants, wakings, goes_on.get(tid, 0.0))
        for tid, counted in (seen | never).items()
        if tids is None or tid in tids
    ]
    return sorted(found, key=lambda one: -one.wait_s)


def _threads(pids: list[int], tids: set[int] | None, known: "dict[int, Thread]") -> "list[Thread]":
    """Those of the processes that are there now, of these if any are named. known: asked before."""
    from sched_ctl.kernel import procfs
    from sched_ctl.model.topology import Thread

    there = {tid: pid for pid in pids for tid in procfs.tids(pid) if tids is None or tid in tids}
    for tid in there.keys() - known.keys():
        if (of := procfs.stat(there[tid], tid)) is not None:
            known[tid] = Thread(there[tid], tid, of.start_time, of.name)
    return [known[tid] for tid in there if tid in known]


def _concerned(one: "Waits") -> set[int]:
    others = {tid for tid, _ in one.behind} | {tid for tid, _ in one.woken_by}
    return (others | {one.tid}) - {0}


def _as_json(one: "Waits", names: dict[int, str]) -> dict[str, Any]:
    def known(seconds: float) -> float | None:
        return seconds if seconds == seconds else None

    return {
        "tid": one.tid,
        "name": names[one.tid],
        "waits": one.waits,
        "wait_s": one.wait_s,
        "goes_on_s": one.goes_on_s or None,
        "median_s": known(one.median_s),
        "long_s": known(one.long_s),
        "behind": [{"tid": t, "name": names[t], "share": part} for t, part in one.behind],
        "woken_by": [{"tid": t, "name": names[t], "times": times} for t, times in one.woken_by],
    }
