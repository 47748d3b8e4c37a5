"""What `sched-ctl waits --stacks` shows: where threads sleep, woken by whom, behind whose lock."""

import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sched_ctl.errors import UserError

if TYPE_CHECKING:
    from sched_ctl.probes.holders import Held
    from sched_ctl.probes.stacks import Place

__all__ = ["held_in_words", "holders", "show_stacks"]

SHOWN, FRAMES, WAKERS = 6, 4, 2
WIDTH = 78


def show_stacks(
    pids: Collection[int],
    tids: Collection[int] | None,
    seconds: float,
    *,
    json: bool,
    folded: Path | None,
    flame: Path | None,
) -> None:
    """Look, and print or write what was seen. Raises UserError."""
    from sched_ctl import show
    from sched_ctl.cli import outputs
    from sched_ctl.cli.flame import svg
    from sched_ctl.kernel import tracing
    from sched_ctl.probes import stacks

    for path in filter(None, (folded, flame)):
        outputs.check(path)
    try:
        places = stacks.look(pids, tids, seconds)
    except tracing.Unavailable as error:
        raise UserError(f"no stacks can be taken: {error}", "see sched-ctl check") from None
    sums = stacks.folded(places)
    if folded is not None:
        lines = (f"{';'.join(map(_word, s))} {us}\n" for s, us in sums.items())
        outputs.write(folded, "".join(lines))
    if flame is not None:
        outputs.write(flame, svg(sums, f"asleep in {seconds:g} s", "us"))
    if json:
        show.emit_json([asdict(place) for place in places])
        return
    for line in in_words(places):
        show.text(line)
    if len(places) > SHOWN:
        show.text()
        show.text(f"{len(places) - SHOWN} more: --json has all, --flame FILE draws them")


def in_words(places: Sequence["Place"]) -> Iterable[str]:
    """Who waits for another's lock, then who sleeps longest; of stacks the innermost frames."""
    if not places:
        yield "no thread of it went to sleep"
    for place in sorted(places, key=lambda one: one.held is None)[:SHOWN]:
        yield ""
        yield f"{place.name} ({place.tid})"
        yield f"  asleep    {place.seconds:.3f} s, {place.times} times"
        if place.held is not None:
            who = f"{place.held.lock}, {place.share:.0%} of the looks"
            yield from _line("waits for", [who])
            yield from _line("held by", _holder(place.held))
        yield from _line("java", [*map(_short, place.java)])
        yield from _line("user", () if place.java else place.user)
        yield from _line("kernel", place.kernel)
        for waker in place.wakers[:WAKERS]:
            if waker.tid >= 0:
                told = [f"{waker.name} {waker.times} times", *waker.frames[: FRAMES // 2]]
                yield from _line("woken by", told)


def holders(threads: Iterable[tuple[int, int]]) -> dict[int, "Held"]:
    """Who has the lock that each of these threads, of (process, id), waits for; by thread."""
    from sched_ctl.probes import stacks

    by_process: dict[int, list[int]] = {}
    for pid, tid in threads:
        by_process.setdefault(pid, []).append(tid)
    found: dict[int, Held] = {}
    for pid, tids in by_process.items():
        found |= stacks.holders_of(pid, tids)
    return found


def held_in_words(held: "Held") -> str:
    return f"{held.lock}, held by {' < '.join(_holder(held)[: FRAMES + 1])}"


def _holder(held: "Held") -> list[str]:
    """Who it is, and where, innermost first."""
    return [f"{held.name} ({held.holder})", *map(_short, held.at)]


def _line(label: str, frames: Sequence[str]) -> Iterable[str]:
    if frames:
        more = [f"{len(frames) - FRAMES} more"] if len(frames) > FRAMES else []
        text = " < ".join([*frames[:FRAMES], *more])
        indent = " " * 12
        yield from textwrap.wrap(
            text,
            WIDTH,
            initial_indent=f"  {label:<10}",
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )


def _short(frame: str) -> str:
    """Without the package: java.lang.Thread.sleep (Native Method) is Thread.sleep."""
    method, _, source = frame.partition(" (")
    name = ".".join(method.rsplit(".", 2)[-2:])
    line = source.rstrip(")").rpartition(":")[2]
    return f"{name}:{line}" if line.isdecimal() else name


def _word(frame: str) -> str:
    """A semicolon parts frames, a line stacks."""
    return frame.replace(";", ":").replace("\n", " ")
