"""Recorded files that are copied, torn, put together and renamed: does each line count once?

    ./dev run python -m stress.once [--cases 10000] [--at-once 2000] [--seed N] [--folder DIR]

A case is a node: what it recorded comes in several rounds, in any order, whole or not, under any
names; the last round has all of it. Between rounds rows expire, batches are put together, and
ingests are killed. No node may ever count more than it recorded, and in the end each counts all.
"""

import argparse
import gzip
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sched_ctl.pipeline import compact, expire, ingest
from sched_ctl.pipeline.spark import spark
from sched_ctl.pipeline.store import Fleet, Keep
from sched_ctl.telemetry import records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ROUNDS", "Case", "case", "wrong"]

T_MS = 1_800_000_000_000
DAY_MS = 86_400_000
ROUNDS = 4
MOST_KILLS = 3  # of an ingest


Counts = dict[tuple[str, str], tuple[int, int]]


@dataclass(frozen=True)
class Case:
    """rounds: name of a file -> what is in it; counts: day, operator -> rows and tuples of all that
    the node recorded.
    """

    node: str
    rounds: list[dict[str, bytes]]
    counts: Counts


class Killed(BaseException):
    """Stands for a SIGKILL: nothing after it is done."""


class Dead:
    """The file system of a fleet whose process was killed: nothing happens there any more."""

    def delete(self, *_: object) -> None:
        pass


def case(node: str, chance: random.Random) -> Case:
    """What a node recorded, and how it comes."""
    # Numbers that begin anew are told apart by their run. Where that is lost, and rows are gone,
    # nothing is left of lines but their numbers.
    anew = chance.random() < 0.3
    files: dict[str, list[bytes]] = {}
    counts: Counts = {}
    for run in range(chance.randint(1, 3)):
        t = T_MS + run * DAY_MS + chance.randrange(DAY_MS // 2)
        seq = first = 1 if anew else t
        ops = [f"a{run}", f"b{run}"]
        boot, told = chance.choice([(f"{node}-{run}", first), ("", first), ("", 0)])
        if anew:
            boot, told = f"{node}-{run}", first
        for _ in range(chance.randint(1, 3)):
            full = chance.choice((0, 0, 0, 1, 5))  # lines lost as the disk was full
            seq += full
            lines: list[records.Line] = [
                records.Start(node=node, seq=seq, t=t, run=told, boot=boot, machine="m"),
                records.Topology(
                    node=node, seq=seq + 1, t=t, engine="e", epoch=1, queries=["q"],
                    ops=ops, query_of=[0, 0],
                ),
            ]  # fmt: skip
            name = str(records.FileName.of(node, t, seq))
            seq += 2
            if full:
                lines.append(records.Event(node=node, seq=seq, t=t, what="lost", count=full))
                seq += 1
            for _ in range(chance.randint(1, 9)):
                if chance.random() < 0.1:  # some that could not be written
                    count = chance.randint(1, 5)
                    seq += count
                    lines.append(records.Event(node=node, seq=seq, t=t, what="lost", count=count))
                    seq += 1
                fed = [chance.randrange(1000), chance.randrange(1000)]
                lines.append(
                    records.Record(
                        node=node, seq=seq, t=t, d=5000, engine="e", epoch=1, tuples_in=[*fed]
                    )
                )
                for operator, fed_in in zip(ops, fed, strict=True):
                    rows, tuples = counts.get((_day(t), operator), (0, 0))
                    counts[_day(t), operator] = rows + 1, tuples + fed_in
                seq, t = seq + 1, t + 5000
            files[name] = [records.encode(line) for line in lines]
            t += chance.randrange(3_600_000)
    rounds = [
        {f"{at}/{_named(chance, files)}": _sent(chance, files, anew) for at in range(k)}
        for k in chance.choices((0, 1, 2, 4), k=ROUNDS - 1)
    ]
    whole = {f"whole/{name}": b"".join(lines) for name, lines in files.items()}
    return Case(node, [*rounds, whole], counts)


def _day(t_ms: float) -> str:
    return datetime.fromtimestamp(t_ms / 1e3, UTC).strftime("%Y-%m-%d")


def _named(chance: random.Random, files: dict[str, list[bytes]]) -> str:
    """That of one of them, or of before the clock was set, if only to when its battery died."""
    name = records.FileName.parse(chance.choice([*files]))
    assert name is not None
    start = chance.choice([name.start, "19700101T000000Z", "20210101T000000Z"])
    return str(records.FileName(chance.choice([name.node, "x"]), start, name.seq))


def _sent(chance: random.Random, files: dict[str, list[bytes]], anew: bool) -> bytes:
    """Some of them in any order, as one. anew: their runs must not be lost."""
    ways = (_whole, _no_end) if anew else (_whole, _whole, _no_end, _no_begin, _holes, _shuffled)
    parts: list[bytes] = []
    for lines in chance.choices([*files.values()], k=1 if anew else chance.randint(1, 3)):
        parts.append(chance.choice(ways)(chance, lines))
    if chance.random() < 0.3:
        packed = b"".join(map(gzip.compress, parts))
        return packed[: chance.randrange(len(packed))] if chance.random() < 0.3 else packed
    # The end of one line and the begin of another could be a line that nobody wrote.
    return b"".join(part if part.startswith(b'{"k":') else b"\n" + part for part in parts)


def _whole(_: random.Random, lines: list[bytes]) -> bytes:
    return b"".join(lines)


def _no_end(chance: random.Random, lines: list[bytes]) -> bytes:
    data = b"".join(lines)
    return data[: chance.randrange(len(data))]


def _no_begin(chance: random.Random, lines: list[bytes]) -> bytes:
    data = b"".join(lines)
    return data[chance.randrange(len(data)) :]


def _holes(chance: random.Random, lines: list[bytes]) -> bytes:
    return b"".join(line for line in lines if chance.random() < 0.6)


def _shuffled(chance: random.Random, lines: list[bytes]) -> bytes:
    return b"".join(chance.sample(lines, len(lines)))


def wrong(session: "SparkSession", folder: Path, cases: list[Case], chance: random.Random) -> int:
    """Take in what comes, round by round. Returns at how many nodes lines are lost, or count twice.

    Each is told. Raises what an ingest does.
    """
    source, out = folder / "in", str(folder / "out")
    found: set[str] = set()
    for number in range(ROUNDS):
        for each in cases:
            for at, (name, content) in enumerate(each.rounds[number].items()):
                path = source / str(number) / each.node / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                os.utime(path, (T_MS / 1e3 + number, T_MS / 1e3 + number + at))
        for _ in range(chance.randint(0, MOST_KILLS)):
            with _killed(chance.randrange(12)):
                ingest.ingest(session, str(source), out)
        ingest.ingest(session, str(source), out)
        fleet = Fleet(session, out)
        for each, told in _differing(fleet, cases, whole=number == ROUNDS - 1):
            if each.node not in found:
                found.add(each.node)
                print(f"round {number}: {each.node} {told}")
        if chance.random() < 0.7:
            now_s = T_MS / 1e3 + chance.randint(9, 12) * 86_400
            keep = Keep(rows=10, hours=chance.choice((0, 0, 10, 12, 20)))
            expire.expire(fleet, keep, now_s=now_s)
        if chance.random() < 0.5:
            compact.compact(Fleet(session, out))
    return len(found)


def _differing(
    fleet: Fleet, cases: list[Case], *, whole: bool
) -> Iterator[tuple[Case, list[object]]]:
    """Cases of which more counts than was recorded, or not the same if they are whole; with what
    counts, and what was recorded. Days whose roll-ups are out are left out.
    """
    counted: dict[str, Counts] = {}
    rows = fleet.rolled("hour").groupBy("node", "date", "operator")
    for row in rows.agg({"n": "sum", "tuples_in": "sum"}).collect():
        node, day, operator, n, tuples = row
        counted.setdefault(node, {})[day, operator] = n, tuples or 0
    since = fleet.since("hour") or ""
    for each in cases:
        there = counted.get(each.node, {})
        recorded = {key: of for key, of in each.counts.items() if key[0] >= since}
        good = all(
            rows <= recorded.get(key, (0, 0))[0] and tuples <= recorded.get(key, (0, 0))[1]
            for key, (rows, tuples) in there.items()
        )
        if not good or (whole and there != recorded):
            yield each, [there, "not", recorded]


@contextmanager
def _killed(left: int) -> Iterator[None]:
    """End what is done here before the step of that number, or after it."""
    steps = [(ingest, "_write"), (Fleet, "_put"), (Fleet, "remove"), (Fleet, "commit")]
    real = [getattr(where, name) for where, name in steps]

    def step(of: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            if isinstance(of, Fleet):
                of._fs = Dead()
            raise Killed

    def around(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            step(arguments[0])
            result = function(*arguments)
            step(arguments[0])
            return result

        return call

    for (where, name), function in zip(steps, real, strict=True):
        setattr(where, name, around(function))
    try:
        yield
    except Killed:
        pass
    finally:
        for (where, name), function in zip(steps, real, strict=True):
            setattr(where, name, function)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000, help="nodes, in all")
    parser.add_argument("--at-once", type=int, default=2000, help="nodes of one fleet")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="else a new one")
    parser.add_argument("--folder", type=Path, help="for the data, instead of that of the system")
    given = parser.parse_args()
    if min(given.cases, given.at_once) < 1:
        parser.error("--cases and --at-once are 1 or more")
    found = 0
    for first in range(0, given.cases, given.at_once):
        chance = random.Random(f"{given.seed} {first}")
        numbers = range(first, min(given.cases, first + given.at_once))
        cases = [case(f"n{number}", chance) for number in numbers]
        with (
            tempfile.TemporaryDirectory(prefix="sched-ctl-once-", dir=given.folder) as name,
            spark("once", None, {"spark.local.dir": name}) as session,
        ):
            found += wrong(session, Path(name), cases, chance)
        print(f"seed {given.seed}: {numbers.stop} cases, {found} wrong", flush=True)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
