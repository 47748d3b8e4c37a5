"""sched-ctl waits: how long a program's threads wait for a CPU, traced in the kernel."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sched_ctl.cli.flags import Json
from sched_ctl.errors import UserError

if TYPE_CHECKING:
    from sched_ctl.probes.waits import Waits

__all__ = ["add_to"]

NAMED = 2  # of those behind whom a thread waits, or who wake it, in a table


def add_to(app: typer.Typer) -> None:
    app.command()(waits)


def waits(
    pid: Annotated[int, typer.Argument(help="The process.", min=1)],
    seconds: Annotated[float, typer.Option(help="How long to look.", min=0.1, max=3600)] = 5.0,
    json: Json = False,
) -> None:
    """Trace how long each thread waits for a CPU, behind whom, and who wakes it.

    Loads a tracing program into the kernel for that time. It changes nothing, and nothing of the
    controller needs it. Example: sched-ctl waits 4711 --seconds 10
    """
    import time

    from sched_ctl import show
    from sched_ctl.kernel import procfs, tracing
    from sched_ctl.probes.waits import waits_of

    if procfs.stat(pid) is None:
        raise UserError(f"there is no process {pid}", "sched-ctl engines shows those of engines")
    try:
        with tracing.Tracer([pid], wakings=True) as tracer:
            time.sleep(seconds)
            threads, occupants, wakings = tracer.threads(), tracer.occupants(), tracer.wakings()
    except tracing.Unavailable as error:
        raise UserError(f"nothing can be traced: {error}", "see sched-ctl check") from None
    found = [
        waits_of(tid, one["slots"].tolist(), int(one["wait_ns"]), occupants, wakings)
        for tid, one in threads.items()
    ]
    found.sort(key=lambda one: -one.wait_s)
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
        "median_s": known(one.median_s),
        "long_s": known(one.long_s),
        "behind": [{"tid": t, "name": names[t], "share": part} for t, part in one.behind],
        "woken_by": [{"tid": t, "name": names[t], "times": times} for t, times in one.woken_by],
    }
