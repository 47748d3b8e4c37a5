"""What is recorded: its schema, the folder that it lies in, and what comes of accidents."""

import errno
import functools
import gzip
import itertools
import os
import platform
import random
import signal
import subprocess
import sys
import threading
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plans import array, plan
from sched_ctl.errors import UserError
from sched_ctl.metrics.verdicts import Verdict
from sched_ctl.model.topology import Snapshot
from sched_ctl.plugins import registry
from sched_ctl.telemetry import reading, records, replay, schema, span
from sched_ctl.telemetry.recorder import Recorder, machine
from sched_ctl.telemetry.store import Store, is_recorded
from support import wait_until

ROOT = Path(__file__).parents[2]
SOON_S = 60.0


def test_the_page_is_what_the_types_say() -> None:
    page = (ROOT / "docs" / "telemetry.md").read_text()
    assert page == schema.document(), "python -m sched_ctl.telemetry.schema > docs/telemetry.md"
    for kind in records.KINDS:
        for field in kind.__struct_encode_fields__:
            assert f"| `{field}` |" in page


def event(value: str = "x", seq: int = 0) -> records.Event:
    return records.Event(node="n", seq=seq, t=1, what="error", value=value)


# --- lines ---


def test_a_line_comes_back() -> None:
    record = records.Record(
        node="n", seq=3, t=5, d=7, engine="lab:1", epoch=1, tuples_in=[1, None], by=[-1, 0]
    )
    assert b'"v":1' in records.encode(record)
    assert b'"in":[1,null]' in records.encode(record)
    assert records.decode(records.encode(record)) == record


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "truncated"),
        (b"[1]", "array"),
        (b'{"k":"tea"}', "tea"),
        (b'{"k":"event","v":1,"node":"n","t":1,"what":"tea"}', "tea"),
        (b'{"k":"event","v":1,"node":"n","t":-1,"what":"error"}', ">= 0"),
        (b'{"k":"event","v":1,"node":"n","t":1e400,"what":"error"}', "t"),
        (b'{"k":"event","v":1,"node":"n","t":99999999999999999999,"what":"error"}', "t"),
        (b'{"k":"event","v":9,"node":"n","t":1,"what":"error"}', "newer"),
        (b'{"k":"event","v":0,"node":"n","t":1,"what":"error"}', "version 0"),
        (b"\xff\xfe", "malformed"),
        (b"[" * 100_000, "array"),
        (b'{"k":"event","x":' + b"[" * 100_000, "recursion"),
    ],
)
def test_what_is_no_line(line: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        records.decode(line)


def test_an_older_version_is_upgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    old = b'{"k":"event","v":0,"node":"n","time":4,"what":"error"}'
    upgrade = {0: lambda data: {k: v for k, v in data.items() if k != "time"} | {"t": data["time"]}}
    monkeypatch.setattr(records, "UPGRADES", upgrade)
    assert records.decode(old).t == 4
    with pytest.raises(ValueError, match="cannot be upgraded"):
        records.decode(old.replace(b"time", b"tide"))


@pytest.mark.parametrize(
    "name", ["gw-1-20261122T061500Z-0000000000012.jsonl.gz", "a.b_c-20261122T061500Z-7.jsonl.gz"]
)
def test_names_of_files(name: str) -> None:
    found = records.FileName.parse(name)
    assert found is not None
    assert records.FileName.parse(str(found)) == found


def test_a_name_that_is_none_of_ours() -> None:
    assert records.FileName.parse("gw-1.jsonl.gz") is None
    assert records.node_name("a/../b c") == "a_.._b_c"
    with pytest.raises(UserError, match="no name"):
        records.node_name("..")


# --- reading what is torn ---


def written(folder: Path, values: list[str]) -> Path:
    store = Store(folder, "n", 1 << 20)
    store.open(0, 0)
    for seq, value in enumerate(values):
        store.append([records.encode(event(value, seq))])
    store.close()
    [path] = folder.glob("*.gz")
    return path


def test_a_file_that_grows_is_left_to_its_recorder(tmp_path: Path) -> None:
    ours = Store(tmp_path, "n", 1 << 20)
    ours.open(0, 0)
    [part] = tmp_path.iterdir()
    for value in ("a", "b"):  # before and after something is in it
        assert is_recorded(tmp_path, "n") and not is_recorded(tmp_path, "m")
        Store(tmp_path, "n", 1 << 20).recover()
        assert [*tmp_path.iterdir()] == [part]
        ours.append([records.encode(event(value, 0))])
    ours.close()
    assert not is_recorded(tmp_path, "n")
    [path] = tmp_path.iterdir()
    assert values_of(path.read_bytes())[0] == ["a", "b"]
    path.rename(part)  # as of one that was killed
    Store(tmp_path, "n", 1 << 20).recover()
    assert [*tmp_path.iterdir()] == [path]


def values_of(data: bytes) -> tuple[list[str], list[reading.Bad]]:
    found = list(reading.lines_of(data))
    good = [line[1].value for line in found if not isinstance(line, reading.Bad)]  # type: ignore[union-attr]
    return good, [line for line in found if isinstance(line, reading.Bad)]


def test_wherever_a_file_is_torn_what_is_whole_is_read(tmp_path: Path) -> None:
    values = [f"{number:x}" * 20 for number in range(40)]
    data = written(tmp_path, values).read_bytes()
    assert gzip.decompress(data).count(b"\n") == 40
    assert values_of(data) == (values, [])
    last = 0
    for end in range(len(data)):
        good, bad = values_of(data[:end])
        assert good == values[: len(good)]
        assert len(good) >= last  # never less of a longer piece
        assert bad or not end
        last = len(good)
    assert last == 40
    # Two pieces on end, the first of them whole.
    good, bad = values_of(data + data[: len(data) // 2])
    assert good[:40] == values
    assert len(bad) == 1


def test_noise_never_makes_the_reader_fail() -> None:
    source = random.Random(5)
    whole = gzip.compress(b"".join(records.encode(event(str(n), n)) for n in range(50)))
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(source.randrange(1, 6)):
            data[source.randrange(len(data))] = source.randrange(256)
        values_of(bytes(data))
    for other in (b"", b"\0" * 100, b"\x1f\x8b", os.urandom(5000), b"PK\3\4"):
        good, _ = values_of(other)
        assert good == []


def test_a_line_that_is_too_long_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_LINE_BYTES", 1000)
    monkeypatch.setattr(reading, "CHUNK", 700)
    monkeypatch.setattr(reading, "PIECE", 50, raising=False)
    first, last = (records.encode(event(value)) for value in ("first", "last"))
    good, bad = values_of(gzip.compress(first + b"x" * 30_000 + b"\n" + last))
    assert good == ["first", "last"]
    assert [(one.line, one.why) for one in bad] == [(2, "a line longer than 1000 bytes")]


def test_tiny_members_are_read_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a file is not copied for each of them."""
    given: list[int] = []
    made = zlib.decompressobj

    class Counting:
        def __init__(self, bits: int) -> None:
            self._member = made(bits)

        def decompress(self, data: bytes, most: int) -> bytes:
            given.append(len(data))
            return self._member.decompress(data, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._member, name)

    monkeypatch.setattr(reading, "PIECE", 100, raising=False)
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    line = gzip.compress(records.encode(event("x")))
    good, bad = values_of(line * 50)
    assert good == ["x"] * 50 and not bad
    assert sum(given) <= 50 * (len(line) + 200)
    good, bad = values_of(gzip.compress(b"") * 5000 + line)
    assert not good and [one.why for one in bad] == ["more than 1000 gzip members"]


def test_a_line_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_LINE_BYTES", 1000)
    monkeypatch.setattr(reading, "MOST_BYTES", 1 << 16)
    good, bad = values_of(gzip.compress(b"x" * 30_000))
    assert good == []
    assert "longer" in bad[0].why
    good, bad = values_of(gzip.compress(b"\n" * (1 << 18)))
    assert "decompressed" in bad[-1].why


# --- the folder ---


def recorder(folder: Path, **options: float) -> Recorder:
    return Recorder(folder, "n", **({"limit_bytes": 1 << 20, "rotate_s": 3600.0} | options))  # type: ignore[arg-type]


def put_all(writer: Recorder, values: list[str]) -> None:
    """One after the other, each written before the next is put."""
    for value in values:
        before = writer.written
        writer.put(event(value))
        wait_until(functools.partial(_more_than, writer, before), SOON_S)


def _more_than(writer: Recorder, lines: int) -> bool:
    return writer.written > lines


def read_all(folder: Path) -> list[records.Line]:
    paths = sorted(folder.glob("*.jsonl.gz"))
    found = [line for path in paths for line in reading.read(path)]
    assert not [line for line in found if isinstance(line, reading.Bad)]
    return [line[1] for line in found if not isinstance(line, reading.Bad)]


def test_numbers_go_on_over_files_and_starts(tmp_path: Path) -> None:
    for start in range(3):
        writer = recorder(tmp_path, limit_bytes=32 << 10)
        put_all(writer, [f"{start}/{number} {os.urandom(60).hex()}" for number in range(60)])
        writer.close()
    assert not list(tmp_path.glob("*.part"))
    lines = read_all(tmp_path)
    assert len(list(tmp_path.glob("*.gz"))) > 4
    events = [line.value for line in lines if isinstance(line, records.Event)]
    assert [value.split()[0] for value in events] == [
        f"{s}/{n}" for s in range(3) for n in range(60)
    ]
    seqs = [line.seq for line in lines]
    assert seqs == sorted(set(seqs))
    runs = sorted({line.run for line in lines if isinstance(line, records.Start)})
    assert len(runs) == 3
    for begin, end in zip(runs, [*runs[1:], float("inf")], strict=True):
        of_run = [seq for seq in seqs if begin <= seq < end]
        assert of_run == list(range(of_run[0], of_run[0] + len(of_run)))


def test_the_oldest_files_go(tmp_path: Path) -> None:
    limit = 64 << 10
    (tmp_path / "other-20200101T000000Z-1.jsonl.gz").write_bytes(b"x" * limit)  # not ours
    writer = recorder(tmp_path, limit_bytes=limit)
    put_all(writer, [os.urandom(200).hex() for _ in range(400)])
    writer.close()
    mine = sorted(tmp_path.glob("n-*.gz"))
    size = sum(path.stat().st_size for path in mine)
    assert limit / 2 < size <= limit * 1.05
    seqs = [line.seq for path in mine for _, line in list(reading.read(path))]  # type: ignore[misc]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    assert (tmp_path / "other-20200101T000000Z-1.jsonl.gz").exists()


def test_a_topology_is_repeated_in_each_file(tmp_path: Path) -> None:
    now = [1000.0]
    writer = Recorder(tmp_path, "n", limit_bytes=1 << 20, rotate_s=10.0, clock=lambda: now[0])
    writer.put(span.described(plan({"q": ["a", "b"]}), "n", 0, 1))
    wait_until(lambda: writer.written == 2, SOON_S)
    for number in range(3):
        put_all(writer, [str(number)])
        now[0] += 11
    writer.close()
    found = []
    for path in sorted(tmp_path.glob("*.gz")):
        start, topology, line = (line[1] for line in reading.read(path))  # type: ignore[index]
        assert isinstance(topology, records.Topology) and isinstance(line, records.Event)
        found.append((start.t, topology.t))
    assert found[0] == (1_000_000, 0)
    assert found[1:] == [(1_011_000, 1_011_000), (1_022_000, 1_022_000)]  # it holds as of there


def test_a_user_pushes_nobody_out_of_the_history(tmp_path: Path) -> None:
    now = [1000.0]
    writer = Recorder(tmp_path, "n", limit_bytes=64 << 10, rotate_s=1e9, clock=lambda: now[0])

    def told(epoch: int) -> records.Topology:
        line = span.described(plan({"q": [os.urandom(200).hex() for _ in range(2)]}), "n", 0, epoch)
        line.engine = "flink:theirs"
        return line

    def said(value: str) -> records.Event:
        return records.Event(node="n", t=1, what="error", engine="flink:theirs", value=value)

    writer.put(event("root's"))
    for epoch in range(1, 601):
        writer.put(told(epoch), "1000")
        wait_until(lambda: writer._queue.qsize() < 100, SOON_S)
    writer.put(said("beyond the share"), "1000")
    writer.put(event("root's, too"))
    wait_until(lambda: writer._queue.empty(), SOON_S)
    lost = writer.lost
    now[0] += 3600
    writer.put(said("an hour later"), "1000")
    writer.close()
    lines = read_all(tmp_path)
    values = [line.value for line in lines if isinstance(line, records.Event) and line.value]
    assert values == ["root's", "root's, too", "an hour later"]
    counted = [line.count for line in lines if isinstance(line, records.Event) and line.count]
    assert sum(counted) == lost > 500
    # What it ran by then, although that came at a bad time
    [*_, topology, last] = lines
    assert isinstance(topology, records.Topology) and isinstance(last, records.Event)
    assert topology.epoch == 600


def test_who_is_beyond_his_share_is_heard_again_after_a_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What he says costs more than he gets meanwhile, and his topology nearly all of a share."""
    now = [1000.0]
    limit = 96 << 10  # 4 KiB an hour
    writer = Recorder(tmp_path, "n", limit_bytes=limit, rotate_s=1e9, clock=lambda: now[0])

    def put(line: records.Line) -> None:
        before = writer.written + writer.lost
        line.engine = "flink:theirs"  # type: ignore[union-attr]
        writer.put(line, "1000")
        wait_until(lambda: writer.written + writer.lost > before, SOON_S)

    def told(epoch: int) -> records.Topology:
        names = [os.urandom(150).hex() for _ in range(20)]
        return span.described(plan({"q": names}), "n", 0, epoch)

    for epoch in (1, 2):
        put(told(epoch))
    assert writer.lost == 1
    for _ in range(50):
        now[0] += 300.0
        put(event(os.urandom(400).hex()))
    writer.close()
    lines = read_all(tmp_path)
    assert {line.epoch for line in lines if isinstance(line, records.Topology)} == {1, 2}
    heard = [line for line in lines if isinstance(line, records.Event) and line.value]
    assert len(heard) > 20
    hours = 50 * 300 / 3600  # the log tells it once in each
    assert 2 <= len(caplog.messages) <= 1 + hours


THEIRS = "flink:theirs"


def of_theirs(epoch: int) -> records.Topology:
    """Some 3 kB, which no compression makes smaller."""
    names = [os.urandom(150).hex() for _ in range(20)]
    return span.described(plan({"q": names}, engine=THEIRS), "n", 0, epoch)


def said_of_theirs(value: str) -> records.Event:
    return records.Event(node="n", t=1, what="error", engine=THEIRS, value=value)


def test_what_runs_now_is_not_forgotten_where_anothers_line_begins_a_file(tmp_path: Path) -> None:
    """The share suffices neither for the new topology nor, in the next file, for the old one."""
    now = [1000.0]
    limit = 96 << 10  # 4 KiB an hour
    writer = Recorder(tmp_path, "n", limit_bytes=limit, rotate_s=600.0, clock=lambda: now[0])
    for epoch in (1, 2):
        writer.put(of_theirs(epoch), "1000")
    wait_until(lambda: writer.lost == 1, SOON_S)
    now[0] += 601.0
    writer.put(event("root's"))
    wait_until(lambda: writer.written > 2, SOON_S)
    now[0] += 7200.0
    writer.put(said_of_theirs("hours later"), "1000")
    writer.close()
    [*_, topology, last] = read_all(tmp_path)
    assert isinstance(last, records.Event) and last.value == "hours later"
    assert isinstance(topology, records.Topology) and topology.epoch == 2


def test_a_file_explains_all_that_waited_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind another engine's line, though its owner's share has been used up meanwhile."""
    full = threading.Event()
    write = os.write

    def limited(fd: int, data: bytes) -> int:
        if threading.current_thread().name == "recorder" and full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", limited)
    now = [1000.0]
    limit = 384 << 10  # 16 KiB an hour
    writer = Recorder(tmp_path, "n", limit_bytes=limit, rotate_s=600.0, clock=lambda: now[0])
    writer.put(of_theirs(1), "1000")
    wait_until(lambda: writer.written == 2, SOON_S)
    full.set()
    now[0] += 601.0
    writer.put(event("root's"))
    writer.put(said_of_theirs("paid"), "1000")
    for _ in range(20):  # a file is begun for each
        writer.put(event("root's"))
    wait_until(writer._queue.empty, SOON_S)
    full.clear()
    writer.put(event("after"))
    writer.close()
    last = sorted(tmp_path.glob("*.gz"))[-1]
    lines = [line[1] for line in reading.read(last) if not isinstance(line, reading.Bad)]
    topology, said = (line for line in lines if getattr(line, "engine", "") == THEIRS)
    assert isinstance(topology, records.Topology)
    assert isinstance(said, records.Event) and said.value == "paid"


def test_a_disk_that_is_full_uses_up_nobodys_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is begun for each line, with what all engines run."""
    full = threading.Event()
    write = os.write

    def limited(fd: int, data: bytes) -> int:
        if threading.current_thread().name == "recorder" and full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", limited)
    limit = 384 << 10  # 16 KiB an hour
    now = [1000.0]
    writer = Recorder(tmp_path, "n", limit_bytes=limit, rotate_s=600.0, clock=lambda: now[0])
    writer.put(of_theirs(1), "1000")
    wait_until(lambda: writer.written == 2, SOON_S)
    full.set()
    now[0] += 601.0
    for _ in range(20):
        writer.put(event("root's"))
    wait_until(writer._queue.empty, SOON_S)
    full.clear()
    writer.put(event("after"))
    wait_until(lambda: writer.problem is None, SOON_S)
    writer.put(said_of_theirs(os.urandom(3000).hex()), "1000")
    writer.close()
    assert writer.lost == 0
    [*_, last] = (line for path in sorted(tmp_path.glob("*.gz")) for line in reading.read(path))
    assert not isinstance(last, reading.Bad) and isinstance(last[1], records.Event)
    assert last[1].engine == THEIRS


def test_what_takes_more_than_a_line_costs_no_others_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    most = len(records.encode(of_theirs(1))) + 100
    monkeypatch.setattr("sched_ctl.telemetry.recorder.LONGEST", most, raising=False)
    writer = recorder(tmp_path)

    def of_engine(epoch: int) -> records.Record:
        return records.Record(node="n", t=1, d=1, engine=THEIRS, epoch=epoch, q=[epoch])

    longer = of_theirs(2)
    longer.ops = longer.ops * 2
    for line in (of_theirs(1), of_engine(1), longer, of_engine(2), of_theirs(3), of_engine(3)):
        writer.put(line, "1000")
        writer.put(event("root's"))
    writer.close()
    of_epochs = (records.Topology, records.Record)
    kept = [line.epoch for line in read_all(tmp_path) if isinstance(line, of_epochs)]
    assert kept == [1, 1, 3, 3]
    assert writer.lost == 2
    [said] = caplog.messages
    assert THEIRS in said


def test_a_file_is_not_younger_than_nothing(tmp_path: Path) -> None:
    """Opened at .6 ms, it is not closed at the next line as one whose clock was set back."""
    writer = Recorder(tmp_path, "n", limit_bytes=1 << 20, rotate_s=10.0, clock=lambda: 1000.0006)
    put_all(writer, ["a", "b"])
    writer.close()
    [path] = tmp_path.glob("*.gz")
    assert len(list(reading.read(path))) == 3


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a line is written and then no more: nothing of it is left, and it comes later."""
    full = threading.Event()
    write = os.write

    def limited(fd: int, data: bytes) -> int:
        if threading.current_thread().name != "recorder" or not full.is_set():
            return write(fd, data)
        if len(data) > 8:
            return write(fd, bytes(data[:8]))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", limited)
    writer = recorder(tmp_path)
    writer.put(event("before"))
    wait_until(lambda: writer.written == 2, SOON_S)
    full.set()
    for number in range(300):  # more than are kept
        writer.put(event(str(number)))
        wait_until(lambda: writer._queue.qsize() < 100, SOON_S)
    wait_until(lambda: writer.problem, SOON_S)
    assert "No space left" in str(writer.problem)
    wait_until(lambda: writer.lost == 300 - 256, SOON_S)
    full.clear()
    writer.put(event("after"))
    wait_until(lambda: writer.problem is None, SOON_S)
    writer.close()
    good: list[records.Line] = []
    for path in sorted(tmp_path.glob("*.gz")):
        for line in reading.read(path):
            if isinstance(line, reading.Bad):
                assert line.why == "torn: the compressed data end early"
            else:
                good.append(line[1])
    values = [line.value for line in good if isinstance(line, records.Event) and line.value]
    assert values == ["before", *map(str, range(44, 300)), "after"]
    [lost] = [line for line in good if isinstance(line, records.Event) and line.what == "lost"]
    assert lost.count == 44
    seqs = [line.seq for line in good]
    assert sum(b - a - 1 for a, b in itertools.pairwise(seqs)) == 44  # the gap shows


KILLED = """
import sys, time
from pathlib import Path
from sched_ctl.telemetry import records
from sched_ctl.telemetry.recorder import Recorder
writer = Recorder(Path(sys.argv[1]), "n", limit_bytes=1 << 20, rotate_s=3600)
number = 0
while True:
    writer.put(records.Event(node="n", t=1, what="error", value=str(number)))
    while writer.written < number + 2: time.sleep(0.0002)
    print(number, flush=True)
    number += 1
"""


def test_a_crash_costs_the_last_record_at_most(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = -1
    for line in process.stdout:
        said = int(line)
        if said == 100:
            process.send_signal(signal.SIGKILL)
    process.wait()
    recorder(tmp_path).close()  # the next start
    assert not list(tmp_path.glob("*.part"))
    found = [line for path in sorted(tmp_path.glob("*.gz")) for line in reading.read(path)]
    values = [
        line[1].value
        for line in found
        if not isinstance(line, reading.Bad) and isinstance(line[1], records.Event)
    ]
    assert values[: said + 1] == [str(n) for n in range(said + 1)]
    assert len(values) <= said + 2


def test_kinds_of_machines_have_names(tmp_path: Path) -> None:
    """Of x86, of a board whose device tree names it, and of a server that has none."""
    numbers = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: {}\n"
    told: list[str] = []
    for text, board in (
        ("processor\t: 0\nmodel name\t: Xeon  E5\nmodel name\t: Other\n", ""),
        (numbers.format("0xd0b"), "Board 5 Rev 1.1\0"),
        (numbers.format("0xd0c"), ""),
        ("", ""),
    ):
        proc = tmp_path / str(len(told))
        (proc / "device-tree").mkdir(parents=True)
        (proc / "cpuinfo").write_text(text)
        if board:
            (proc / "device-tree" / "model").write_text(board)
        told.append(machine(proc))
    here = platform.machine()
    assert told == [f"{here} Xeon E5", f"{here} Board 5 Rev 1.1", f"{here} 0x41 0xd0c", here]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot record into"):
        recorder(tmp_path / "file" / "below")


# --- from snapshots to records, and back ---

TOPOLOGY = plan({"q": ["a", "b"], "r": ["c"]})


def snapshots(seconds: int) -> list[Snapshot]:
    """b costs ten times as much as a and lets half through; c is dear and has a queue."""
    return [
        Snapshot(
            TOPOLOGY,
            100.0 + t,
            {
                "tuples_in": array(100 * t, 100 * t, 10 * t),
                "tuples_out": array(100 * t, 50 * t, 10 * t),
                "cpu_time": array(0.001 * t, 0.01 * t, 0.2 * t),
                "run_delay": array(0.0, 0.002 * t, 0.7 * t),
                "queue_size": array(0, t % 5, 10 * t),
                "head_age": array(0, np.nan, t),
            },
        )
        for t in range(seconds)
    ]


def recorded(seconds: int = 21, period_s: float = 5.0) -> list[records.Record]:
    taken = snapshots(seconds)
    made = span.Span(taken[0], 1e9, (("hr", "hr"), ("nice", "nice")))
    found = []
    for snapshot in taken[1:]:
        made.add(snapshot)
        if made.seconds(snapshot) >= period_s:
            found.append(made.close("n", 1, (("qs", "hr"), ("nice", "nice")), 0.0)[0])
    made.end()
    return found


def test_sums_means_and_maxima() -> None:
    first, *others = recorded()
    assert (first.t, first.d, first.passes) == (10**12, 5000, 5)
    assert first.policy == ["hr", "hr"]
    assert [record.t for record in others] == [10**12 + 5000 * n for n in (1, 2, 3)]
    assert others[0].policy == ["qs", "hr"]
    for record in (first, *others):
        assert record.tuples_in == [500, 500, 50]
        assert record.tuples_out == [500, 250, 50]
        assert record.cpu == [5000, 50_000, 1_000_000]
        assert record.wait == [0, 10_000, 3_500_000]
        assert record.busy is None
        assert record.verdict is not None
    assert first.q == [0, 2, 30]
    assert first.qmax == [0, 4, 50]
    assert first.age == [0, None, 5000]
    total = np.sum([np.array(record.tuples_in) for record in (first, *others)], axis=0)
    assert total.tolist() == snapshots(21)[-1].columns["tuples_in"].tolist()
    assert Verdict(others[0].verdict[2] or 0) is Verdict.CPU_STARVED  # type: ignore[index]


def test_what_can_be_worked_out_is_left_out_and_noise_is() -> None:
    def at(t: float) -> Snapshot:
        columns = {
            "busy_time": array(0.2 * t, 0, 0.5 * t),
            "backpressured_time": array(0, 0.25 * t, 0),
            "idle_time": array(0.8 * t, 0.75 * t, 0.5 * t),
            "cpu_time": array(0.0123456 * t, 0.000999 * t, 1.2345 * t),
        }
        return Snapshot(TOPOLOGY, 100.0 + t, columns)

    made = span.Span(at(0), 1e9, (("hr", "hr"), ("", "")))
    made.add(at(4.0))
    record, _ = made.close("n", 1, (("hr", "hr"), ("", "")), 0.0)
    made.end()
    assert record.idle is None
    assert record.cpu == [49_400, 4000, 4_940_000]
    lines: list[records.Line] = [span.described(TOPOLOGY, "n", 1, 1), record]
    [(_, window)] = replay.windows(lines, 5.0)
    assert window.value("idle_time").tolist() == pytest.approx([3.2, 3.0, 2.0])


def test_a_topology_comes_back() -> None:
    line = span.described(TOPOLOGY, "n", 1, 1)
    back = replay.topology_of(records.decode(records.encode(line)))  # type: ignore[arg-type]
    assert [(o.query, o.name, o.logical) for o in back.operators] == [
        (o.query, o.name, o.logical) for o in TOPOLOGY.operators
    ]
    assert back.edges == TOPOLOGY.edges
    assert back.logical == TOPOLOGY.logical
    assert span.same(line, span.described(TOPOLOGY, "n", 5, 9))
    assert not span.same(line, span.described(plan({"q": ["a", "b"]}), "n", 1, 1))
    far = replace(TOPOLOGY.operators[1], threads=(), away=True)
    part = replace(TOPOLOGY, operators=(TOPOLOGY.operators[0], far, *TOPOLOGY.operators[2:]))
    told = span.described(part, "n", 1, 1)
    assert replay.topology_of(told).away.tolist() == [False, True, False]
    assert not span.same(line, told)


def test_replay_orders_as_the_policy_does() -> None:
    lines: list[records.Line] = [span.described(TOPOLOGY, "n", 1, 1), *recorded()]
    steps = list(replay.replay(lines, [registry.policy("hr"), registry.policy("qs")]))
    assert len(steps) == 4
    for step in steps:
        place = {
            name: dict(zip(step.labels, step.place[name].tolist(), strict=True))
            for name in ("hr", "qs")
        }
        # Output rate by cost: 0.5 of a, over 0.011 s; of b 0.5 / 0.01; of c 1 / 0.2
        assert place["hr"]["q/b"] > place["hr"]["q/a"] > place["hr"]["r/c"]
        assert place["qs"]["r/c"] == 1.0
    assert steps[-1].ruled == ("qs", "hr")
    assert replay.agreement(np.array([1.0, 2, 3]), np.array([1.0, 3, 2])) == pytest.approx(2 / 3)
    assert replay.agreement(np.array([1.0, 2]), np.array([2.0, 1])) == 0


def test_a_record_of_another_length_is_left_out() -> None:
    wrong = recorded()[0]
    wrong.q = [1]
    lines: list[records.Line] = [span.described(TOPOLOGY, "n", 1, 1), wrong, *recorded()]
    assert len(list(replay.windows(lines, 5.0))) == 4
    assert not list(replay.windows([*recorded()], 5.0))  # no topology


def test_no_window_is_over_a_pause_of_the_recorder() -> None:
    """What flowed meanwhile is in no record."""
    first, second, *_ = recorded()
    second.t += 3_600_000
    lines: list[records.Line] = [span.described(TOPOLOGY, "n", 1, 1), first, second]
    before, after = (window for _, window in replay.windows(lines, 5.0))
    assert after.rate("tuples_in").tolist() == pytest.approx(before.rate("tuples_in").tolist())


def test_a_topology_that_contradicts_itself() -> None:
    line = span.described(TOPOLOGY, "n", 1, 1)
    line.query_of = [0, 0, 7]
    with pytest.raises(ValueError, match="nowhere"):
        replay.topology_of(line)
    line.query_of, line.away = [0, 0, 1], [1]
    with pytest.raises(ValueError, match="length"):
        replay.topology_of(line)
    line.query_of = [0]
    with pytest.raises(ValueError, match="length"):
        replay.topology_of(line)
