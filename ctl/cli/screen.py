"""The picture of `sched-ctl top`: a table that fits its terminal, drawn again and again.

At 80 columns, as over ssh, the operator, its queue and age, its place among the others, what is in
force, its waits for a CPU, and the verdict; a wider terminal has the rest.
"""

import os
import re
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sched_ctl import show
from sched_ctl.cli import targets
from sched_ctl.errors import UserError, printable
from sched_ctl.kernel.descriptors import readable

__all__ = ["SORTS", "View", "can_redraw", "draw", "live", "pressed", "print_once"]

# What can be sorted by: key of a row, and whether the largest comes first
SORTS = {
    "urgency": ("place", True),
    "queue": ("queue", True),
    "age": ("head_age_s", True),
    "wait": ("wait", True),
    "run": ("run", True),
    "operator": ("operator", False),
    "verdict": ("verdict", False),
    "graph": ("depth", False),
}
VERDICT = 19  # columns of one that names no operator
WIDE = 110  # columns, from which on there is room for all
COLORS = {
    "cpu-starved": "red",
    "single-thread-bound": "magenta",
    "io-bound": "yellow",
    "lock-bound": "yellow",
    "memory-bound": "yellow",
    "backpressured": "cyan",
    "idle": "dim",
    "unknown": "dim",
}
# Arrows and pages come as several characters, which are put into one (Ctrl-N, P, F, B).
SEQUENCES = {"[A": "\x10", "[B": "\x0e", "OA": "\x10", "OB": "\x0e", "[6~": "\x06", "[5~": "\x02"}
SEQUENCE = re.compile(r"\x1b([\[O][0-9;]*[A-Za-z~])")
PAGES = "\x06\x02"
MOVES = {"j": 1, "k": -1, "\x0e": 1, "\x10": -1, "\x06": 1, "\x02": -1}
HELP = """\
 keys
   s     sort by the next column     g          each query's graph, from sources
   /     show only names with this   Esc        show all again
   j k   a line down, up             PgDn PgUp  a page
   h     threads of no operator      p Space    pause
   q     quit                        ?          this page; any key leads back

 columns
   queue    tuples that wait for the operator
   age s    how long the first of them has waited
   place    0 = least urgent, 1 = most urgent; - = all are equal, or not known
   applied  what is in force for the thread
   run      part of the time in which it had a CPU
   wait     part of the time in which it could have run, and had none
   verdict  what holds it:
      cpu-starved               it is not given the CPU that it could use
      single-thread-bound       it always runs: more replicas would help
      io-, memory-, lock-bound  it sleeps at work
      held by X                 X's queue is full
      idle, input-bound         it keeps up, or has nothing to do"""
Answer = dict[str, Any]


@dataclass
class View:
    """How the operators are shown. typing: the filter that is being written, None = none is."""

    sort: str = "urgency"
    only: str = ""
    paused: bool = False
    typing: str | None = None
    first: int = 0  # row at the top
    page: int = 1  # rows that there is room for
    helpers: bool = False  # threads that run no operator are shown, too
    helping: bool = False  # what the keys and columns mean is shown instead

    def press(self, key: str) -> bool:
        """Take a key. Returns False if it says to end."""
        if self.typing is not None:
            if key in "\r\n":
                self.only, self.typing = self.typing, None
            elif key == "\x1b":
                self.typing = None
            elif key in "\x7f\b":
                self.typing = self.typing[:-1]
            elif key.isprintable():
                self.typing += key
            return True
        names = list(SORTS)
        if key in ("q", "\x03", "\x04"):
            return False
        if self.helping or key == "?":  # any key leads back
            self.helping = not self.helping
            return True
        if key == "s":
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
        elif key == "g":
            self.sort = "graph"
        elif key == "h":
            self.helpers = not self.helpers
        elif key == "/":
            self.typing = ""
        elif key in "p ":
            self.paused = not self.paused
        elif key in MOVES:
            rows = MOVES[key] * (self.page if key in PAGES else 1)
            self.first = max(0, self.first + rows)
        elif key == "\x1b":
            self.only = ""
        return True


def draw(answer: Answer, view: View, width: int, height: int) -> RenderableType:
    """The whole picture, no higher than the terminal. height: 0 = as high as it gets."""
    if view.helping:
        return Text(HELP, no_wrap=True, overflow="ellipsis")
    runs_in = answer.get("runs_in", {})
    named = [
        row
        for row in answer["rows"]
        if view.only.lower() in row["operator"].lower()
        or view.only.lower() in runs_in.get(row["engine"], "")
    ]
    helpers = sum(row["query"] is None for row in named)
    rows = [row for row in named if view.helpers or row["query"] is not None]
    key, descending = SORTS[view.sort]
    rows.sort(key=lambda row: _sorted_by(row[key], descending))
    graphs = view.sort == "graph"
    if graphs:  # helpers, which are in no query, last
        rows.sort(key=lambda row: (row["query"] is None, row["engine"] or "", row["query"] or ""))
    head = _head(answer, view)
    room = (
        len(rows) if not height else max(1, height - len(head) - 2)
    )  # the table's head, the last line
    view.page = room
    view.first = min(view.first, max(0, len(rows) - room))
    shown = rows[view.first : view.first + room]
    table = _table(shown, width, graphs)
    below = len(rows) - view.first - len(shown)
    foot = _count(len({row["operator"] for row in named if row["query"] is not None}), "operator")
    if len(named) - helpers != len({row["operator"] for row in named if row["query"] is not None}):
        foot += f" in {_count(len(named) - helpers, 'thread')}"
    if helpers:
        foot += f", {_count(helpers, 'helper')}" + ("" if view.helpers else " (h)")
    foot += f", {below} more below (j, k)" if below else ""
    if height:
        foot += "   s sort  / filter  ? help  q quit"
    if view.typing is not None:
        foot = f"filter: {view.typing}_"
    return Group(*head, table, Text(foot, style="dim", no_wrap=True, overflow="ellipsis"))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def print_once(answer: Answer, view: View) -> None:
    """To standard output; a pipe gets as many columns as there are."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = Console(width=200 if piped else None, highlight=False)
    with console.capture() as captured:
        console.print(draw(answer, view, console.width, 0))
    for line in captured.get().splitlines():
        print(line.rstrip())


def can_redraw() -> bool:
    """Whether there is a terminal that can be written over, with keys: TERM=dumb shows nothing."""
    return sys.stdin.isatty() and sys.stdout.isatty() and not Console().is_dumb_terminal


def live(ask: Callable[[], Answer], view: View, interval_s: float) -> None:
    """Draw until the user ends it. ask: raises UserError if the controller has gone."""
    answer = ask()
    console = Console(highlight=False)
    next_s = time.monotonic() + interval_s
    with (
        _keys() as keys,
        Live(console=console, screen=True, auto_refresh=False) as screen,
    ):
        while True:
            screen.update(draw(answer, view, console.width, console.height), refresh=True)
            for key in keys(max(0.0, next_s - time.monotonic())):
                if not view.press(key):
                    return
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + interval_s
                if not view.paused:
                    answer = ask()


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so long for keys, and returns those that were pressed."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def read(timeout_s: float) -> str:
        if not readable(fd, timeout_s):
            return ""
        typed = os.read(fd, 64)
        if not typed:
            raise UserError("the terminal has gone")
        return pressed(typed.decode(errors="replace"))

    try:
        tty.setcbreak(fd)
        yield read
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def pressed(typed: str) -> str:
    """Keys, one character each, of what a terminal sends for them; unknown ones are left out."""
    return SEQUENCE.sub(lambda found: SEQUENCES.get(found[1], ""), typed)


def _median(effect: Answer) -> str:
    half_s = effect.get("p50_s")
    return "" if half_s is None else f" (half within {show.milliseconds(half_s)})"


def _head(answer: Answer, view: View) -> list[Text]:
    state = "PAUSED, " if view.paused else ""
    rules = ", ".join(map(_rule, answer["policies"]))
    if answer.get("only_looks"):
        rules = "only looking: nothing is changed"
    pressure = "  ".join(
        f"{resource} {stall['some']:.0%}" for resource, stall in answer["pressure"].items()
    )
    filtered = f"   filter: {view.only}" if view.only else ""
    lines = [
        f"{state}{rules}",
        f"pressure: {pressure or 'not told'}   sorted by {view.sort}{filtered}",
    ]
    lines += _order(answer)
    lines += [f"{engine} is in {where}" for engine, where in answer.get("runs_in", {}).items()][:2]
    times = [
        f"{effect['query']} {show.milliseconds(effect['time_s'])} ms{_median(effect)}"
        for effect in answer.get("effects", ())
        if effect["time_s"] is not None
    ]
    if times:
        lines.append(f"time in the system: {', '.join(times[:8])}")
    missed = (t for t in answer["targets"] if t["met"] is not None and t["met"] < t["share"])
    lines += [f"target missed: {targets.in_words(target)}" for target in missed]
    lines += [f"replicas of {r['query']}: {r['words']}" for r in answer.get("replicas", ())]
    for query in answer["queries"]:
        if query["verdict"] not in ("idle", "input-bound", "keeps-up", "unknown"):
            named = show.inside(query["operator"], query["query"])
            lines.append(f"{query['query']} is held by {named}: {query['verdict']}")
    return [Text(printable(line), no_wrap=True, overflow="ellipsis") for line in lines[:7]]


def _rule(rule: Answer) -> str:
    """Whose order is in force, and if only for a phase, for which."""
    name = "" if rule["name"] == rule["policy"] else f"{rule['name']}: "
    order = "the OS's own order" if rule.get("own") else f"{rule['policy']} by {rule['backend']}"
    return name + order + (f" ({rule['phase']})" if rule.get("phase") else "")


def _order(answer: Answer) -> list[str]:
    """Which queries go first, and which last and why; or why an order changes nothing."""
    if answer.get("idle") and not any(rule.get("own") for rule in answer["policies"]):
        return [answer["idle"]]
    found = []
    for goes in ("first", "last"):
        rows = [row for row in answer.get("order", ()) if row["goes"] == goes]
        if rows:
            named = (
                f"{show.short(row['query'], 30)} ({row['why']})"
                if goes == "last"
                else show.short(row["query"], 30)
                for row in rows[:5]
            )
            more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
            found.append(f"{goes}: {', '.join(named)}{more}")
    return found


def _table(rows: list[dict[str, Any]], width: int, graphs: bool) -> Table:
    wide = width >= WIDE
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="reverse")
    before = [("queue", 6), ("age s", 6), ("place", 5)]
    before += [("urgency", 8), ("tid", 8)] if wide else []
    applied = 26 if wide else 8
    after = [("run", 4), ("wait", 4)]
    after += [("full", 4), ("asleep", 6), ("no input", 8), ("sure", 4)] if wide else []
    widths = [least for _, least in (*before, *after)] + [applied]
    left = width - sum(widths) - len(widths) - 1
    # A verdict gets what operators' names do not need.
    verdicts = [printable(_verdict(row, wide)) for row in rows]
    longest = max((len(row["operator"]) for row in rows), default=0)
    verdict = max(VERDICT, min(max(map(len, verdicts), default=0), left - longest))
    room = max(14, left - verdict)
    table.add_column("operator", no_wrap=True, overflow="ellipsis", min_width=14)
    for name, least in before:
        table.add_column(name, justify="right", min_width=least, no_wrap=True)
    table.add_column("applied", min_width=applied, no_wrap=True, overflow="ellipsis")
    for name, least in after:
        table.add_column(name, justify="right", min_width=least, no_wrap=True)
    table.add_column("verdict", no_wrap=True, overflow="ellipsis", min_width=verdict)
    for row, held in zip(rows, verdicts, strict=True):
        more = [show.number(row["urgency"]), str(row["tid"])] if wide else []
        shares = ("run", "wait", "backpressured", "blocked", "idle", "confidence")
        table.add_row(
            _plain(_named(row, room, graphs=graphs)),
            show.number(row["queue"]),
            show.number(row["head_age_s"]),
            "-" if row["place"] is None else f"{row['place']:.2f}",
            *more,
            _plain(_applied(row["applied"], wide)),
            *(show.percent(row[share]) for share in shares[: 6 if wide else 2]),
            Text(show.ends(held, verdict), style=COLORS.get(row["verdict"], "")),
        )
    return table


def _named(row: dict[str, Any], room: int, *, graphs: bool) -> str:
    """An operator, in as many columns; of a helper its role, and whom it helps.

    graphs: further to the right with each step from a source, and whom it feeds.
    """
    label: str = row["operator"]
    if row["query"] is None:
        role = label.rpartition(": ")[2]
        whom = f"of {row['serves']}" if row.get("serves") else row.get("thread") or ""
        return show.ends(f"{role} {whom}".rstrip(), room)
    name = show.inside(label, row["query"])
    if graphs:
        depth, fed = row["depth"] or 0, [show.inside(one, row["query"]) for one in row["feeds"]]
        text = "  " * min(depth, 8) + (name if depth else label)
        text += f" > {', '.join(fed)}" if fed else ""
        return text if len(text) <= room else f"{text[: room - 1]}…"
    left = room - len(name) - 2  # for the query, of which more operators than this one tell
    if len(label) <= room or left < 1:
        return show.ends(label, room)
    return f"{row['query'][:left]}…/{name}"


def _applied(values: dict[str, Any], wide: bool) -> str:
    return " ".join(f"{name} {value}" for name, value in list(values.items())[: 9 if wide else 1])


def _verdict(row: dict[str, Any], wide: bool) -> str:
    if row["by"] is None:
        return str(row["verdict"]) + _place(row, wide)
    by = show.inside(row["by"], row["query"])
    return f"{row['verdict']} by {by}" if wide else f"held by {by}"


def _place(row: dict[str, Any], wide: bool) -> str:
    """Where an operator sleeps most, if that is what holds it: at 80 columns an address fits."""
    if row["verdict"] not in ("io-bound", "memory-bound", "lock-bound") or not row["sleeps"]:
        return ""
    for place in row["sleeps"]["places"][:1]:
        if place["where"] != "unknown":
            share = f" {place['share']:.0%}" if wide else ""
            return f" {place['peer'] or place['where']}{share}"
    return ""


def _sorted_by(value: Any, descending: bool) -> tuple[bool, Any]:
    if value is None:
        return (True, 0)
    return (False, -value if descending else value)


def _plain(text: str) -> Text:
    return Text(printable(text))
