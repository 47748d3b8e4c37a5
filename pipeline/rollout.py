"""A policy to a whole fleet in stages, as files: some nodes first, then the rest, or back.

The folder has one of each node's name, with a drop-in for its /etc/sched-ctl/sched-ctl.d, and a
file that says how far it is. Whatever carries configuration carries it; called again, the same
test as `compare` judges the first nodes, by what they recorded before and after.
"""

import math
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, structs

from sched_ctl.errors import UserError
from sched_ctl.pipeline import compare, profile, trust
from sched_ctl.pipeline.choice import HOUR_MS, Choice
from sched_ctl.pipeline.compare import LEAST_NODES, Compared
from sched_ctl.pipeline.store import Fleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JUDGED", "NAME", "State", "advanced", "begin", "go_on", "judged", "read", "read_of"]

STATE = "rollout.json"
NAME = "60-fleet-rollout.toml"
JUDGED = ("time", "latency", "age")  # the first that is known
LEAST_THROUGHPUT = 0.99
ALL = Choice()
MOST_BYTES = 10_000_000


class State(Struct, frozen=True):
    """stage: first, rest (everywhere), or back (nowhere). why: what the last judgement said.

    since_ms: the hour (Unix ms) after the newest record when it began. What the policy did before,
    in a race, say, does not count.
    """

    policy: str
    base: str | None
    first: list[str]
    rest: list[str]
    stage: str = "first"
    why: str = ""
    since_ms: int = 0


def read(folder: Path) -> State | None:
    """How far it is; None if it has not begun. Raises UserError."""
    path = folder / STATE
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} is no state of a roll-out")
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{path}: {error}") from error


def advanced(
    spark: "SparkSession",
    out: str,
    folder: Path,
    state: State | None,
    *,
    policy: str,
    base: str | None,
    share: float,
    choice: Choice = ALL,
) -> State:
    """Begin, or judge the first nodes by what they recorded in the fleet `out`, and go on.

    Raises UserError. base: None = as when it began. choice: of records by which is judged, and of
    nodes that take part, which have such records when it begins.
    """
    if state is None:
        known = profile.nodes(Fleet(spark, out, choice))
        whole = Fleet(spark, out, Choice(nodes=choice.nodes))
        doubtful = {doubt.node for doubt in trust.doubts(whole) if doubt.about != trust.OTHER}
        _, end_ms = profile.days(whole) or (0, 0)
        since_ms = -(-end_ms // HOUR_MS) * HOUR_MS
        return begin(folder, policy, base, known, share, doubtful, since_ms)
    if state.stage != "first":
        return state
    state = structs.replace(state, base=base or state.base)
    try:
        first = Fleet(spark, out, read_of(state, choice))
        found = compare.compare(first, state.base, (state.policy, state.since_ms))
    except compare.Alone:  # only one policy ran till now
        found = []
    return go_on(folder, state, found)


def read_of(state: State, choice: Choice) -> Choice:
    """Of the first nodes, whichever take part."""
    return replace(choice, nodes=tuple(state.first))


def begin(
    folder: Path,
    policy: str,
    base: str | None,
    nodes: Sequence[tuple[str, str]],
    share: float,
    doubtful: Collection[str] = (),
    since_ms: int = 0,
) -> State:
    """Files for the first nodes. nodes: names, with their kinds of machine; share: of each kind.

    doubtful: names of those that are among the first only where there are no others. Raises
    UserError if there are too few to judge by, or a file cannot be written.
    """
    usable = [(kind, name) for name, kind in nodes if re.fullmatch(r"\w[\w.-]{0,120}", name)]
    first: list[str] = []
    for kind in sorted({kind for kind, _ in usable}):
        mine = sorted((name in doubtful, name) for k, name in usable if k == kind)
        first += [name for _, name in mine[: max(1, math.ceil(len(mine) * share))]]
    left = sorted((name in doubtful, name) for _, name in usable if name not in first)
    while len(first) < LEAST_NODES and left:
        first.append(left.pop(0)[1])
    if len(first) < LEAST_NODES:
        raise UserError(f"{len(first)} nodes are too few to judge by: {LEAST_NODES} are needed")
    rest = sorted(name for _, name in left)
    state = State(policy, base, sorted(first), rest, since_ms=since_ms)
    _write(folder, state)
    return state


def go_on(folder: Path, state: State, found: Sequence[Compared]) -> State:
    """Judge the first nodes, and write or remove files as that says. Raises UserError."""
    if state.stage != "first":
        return state
    stage, why = judged(found, state.policy)
    made = structs.replace(state, stage=stage, why=why)
    _write(folder, made)
    return made


def judged(found: Sequence[Compared], policy: str) -> tuple[str, str]:
    """The next stage, and why. first: the data do not tell yet."""
    mine = {one.figure: one for one in found if one.policy == policy}
    lost = mine.get("throughput")
    if lost is not None and lost.tells and lost.high < LEAST_THROUGHPUT:
        return "back", f"throughput {_told(lost)}"
    for figure in JUDGED:
        one = mine.get(figure)
        if one is not None:
            stage = "first" if not one.tells else "rest" if one.value < 1 else "back"
            return stage, f"{figure} {_told(one)}" + ("" if one.tells else ": the data do not tell")
    return "first", f"no record of {policy} at a load at which {policy} and another ran"


def _told(one: Compared) -> str:
    interval = "" if math.isnan(one.low) else f" ({one.low:.3g} to {one.high:.3g})"
    return f"{one.value:.3g}{interval} of {one.base}'s on {one.nodes} nodes"


def _write(folder: Path, state: State) -> None:
    """Files first, so that a state never says more than there is."""
    with_it = {"first": state.first, "rest": [*state.first, *state.rest], "back": []}[state.stage]
    text = f'# A roll-out of the fleet.\n[[policy]]\nname = "auto"\npolicy = "{state.policy}"\n'
    try:
        for node in (*state.first, *state.rest):
            path = folder / node / NAME
            if node in with_it:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            else:
                with suppress(FileNotFoundError):
                    path.unlink()
        whole = folder / f".{STATE}"
        whole.write_bytes(msgspec.json.encode(state))
        whole.replace(folder / STATE)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from error
