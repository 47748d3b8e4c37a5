"""Recorded files that are broken in every way: rows come of what can be true, and nothing fails."""

import gzip
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyarrow")

from sched_ctl.pipeline import generate, parse, plausible, trust
from sched_ctl.pipeline.tables import COLUMNS
from sched_ctl.telemetry import records

NAME = "gw-0000-20261122T000000Z-1.jsonl.gz"
WORDS: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, 2**63 - 1, 2**63, 10**40, 1e-300, "", "x" * 9000, "\0", "\ud800"),
    *([], [None], [[]], {}, [-1] * 5, [2**40] * 5, [2**62] * 5, [1e300] * 5, ["a"] * 5),
    *([True] * 5, [0] * 10**5),
)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    plan = generate.Plan(nodes=1, seconds=100, queries=1)
    folder = tmp_path_factory.mktemp("made")
    [path] = generate.generate(folder, plan).files
    return gzip.decompress(path.read_bytes()).splitlines(keepends=True)


def words(chance: random.Random, lines: list[bytes]) -> bytes:
    """Some fields with values of another kind, or out of all bounds."""
    made = list(lines)
    for _ in range(6):
        at = chance.randrange(len(made))
        try:
            line = msgspec.json.decode(made[at])
        except msgspec.DecodeError:
            continue
        line[chance.choice([*line, "new"])] = chance.choice(WORDS)
        try:
            made[at] = msgspec.json.encode(line) + b"\n"
        except (UnicodeEncodeError, OverflowError):
            made[at] = str(line).encode(errors="replace") + b"\n"
    return b"".join(made)


def order(chance: random.Random, lines: list[bytes]) -> bytes:
    """Lines that are missing, twice there, or elsewhere."""
    made = chance.choices(lines, k=len(lines))
    return b"".join(made)


def noise(chance: random.Random, lines: list[bytes]) -> bytes:
    made = bytearray(b"".join(lines))
    for _ in range(chance.randrange(1, 40)):
        made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made)


def packed(chance: random.Random, lines: list[bytes]) -> bytes:
    """Broken below the lines: the compressed bytes, or their end."""
    made = bytearray(gzip.compress(b"".join(lines)))
    for _ in range(chance.randrange(3)):
        made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
    return bytes(made[: chance.randrange(1, len(made) + 1)]) + chance.randbytes(
        chance.choice([0, 9])
    )


def rows_of(data: bytes) -> Iterator[dict[str, Any]]:
    for batch in parse.of_file(f"/in/{NAME}", data, 7):
        assert batch.schema.equals(parse.SCHEMA)
        yield from batch.to_pylist()


@pytest.mark.parametrize("broken", [words, order, noise, packed])
def test_whatever_is_in_a_file(
    broken: Callable[[random.Random, list[bytes]], bytes], lines: list[bytes]
) -> None:
    told = 0
    for seed in range(150):
        rows = list(rows_of(broken(random.Random(seed), lines)))
        *_, last = [row for row in rows if row["kind"] == "file"]
        bad = [row for row in rows if row["kind"] == "bad"]
        assert len(bad) == last["bad"]
        assert all(row["why"] and len(row["why"]) <= 400 for row in bad)
        told += last["bad"]
        for row in rows:
            assert row["node"] and row["date"] and row.keys() == COLUMNS.keys()
            if row["kind"] == "operator":
                assert plausible.EARLIEST_MS <= row["t"] <= plausible.LATEST_MS
                assert 0 <= row["d"] <= plausible.LONGEST_MS
                most_us = (plausible.SLACK * row["d"] + plausible.SLACK_MS) * 1000
                assert row["cpu_us"] is None or 0 <= row["cpu_us"] <= most_us
    assert told > 100  # it does break files


def test_of_a_whole_file_nothing_is_bad(lines: list[bytes]) -> None:
    rows = list(rows_of(b"".join(lines)))
    assert not [row for row in rows if row["kind"] == "bad"]
    assert len([row for row in rows if row["kind"] == "operator"]) == 20 * 5


def test_reasons_are_put_down_to_what_a_node_is_not_trusted_for(lines: list[bytes]) -> None:
    def whys(**changes: Any) -> set[str]:
        line = {**msgspec.json.decode(lines[-1]), **changes}
        data = b"".join([*lines[:-1], msgspec.json.encode(line), b"\n"])
        return {about(row["why"]) for row in rows_of(data) if row["kind"] == "bad"}

    def about(why: str) -> str:
        return next((name for name, p in trust.ABOUT.items() if re.search(p, why)), trust.OTHER)

    assert records.decode(lines[-1])
    assert whys(t=1000) == {"its clock"}
    assert whys(d=10**9) == {"its clock"}
    assert whys(cpu=[10**15] * 5) == {"its counters"}
    assert whys(verdict=[2**40] * 5) == whys(psi=[2**40] * 3) == {"its counters"}
    assert whys(v=99) == {"its version"}
    assert whys(node="other") == {"its name"}
    assert whys(t="x") == {trust.OTHER}
