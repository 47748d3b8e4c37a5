"""The journal survives what happens to files: cut lines, garbage, other boots, growth."""

import errno
import importlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sched_ctl.backends.undo import journal as journals
from sched_ctl.backends.undo.journal import Journal, JournalError
from sched_ctl.backends.undo.records import (
    Adopted,
    FileChanged,
    Group,
    Moved,
    Process,
    Record,
    Released,
    Set,
)
from sched_ctl.kernel import procfs, sched


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "journal"


def adopted(tid: int, nice: int = 0) -> Adopted:
    return Adopted(pid=1, tid=tid, start_time=7, nice=nice)


def test_what_is_written_is_read_again(path: Path) -> None:
    journal = Journal(path)
    records: list[Record] = [
        adopted(2, -3),
        Moved(pid=1, tid=2, start_time=7, cgroup="/sys/fs/cgroup/cpu/a b"),
        Process(1, 5, 6, 0, 0, [1, 2], [3]),
        Group(path="/sys/fs/cgroup/cpu/sched-ctl"),
        FileChanged(path="/proc/sys/x", undo="1"),
    ]
    journal.write(records)
    journal.close()
    again = Journal(path)
    assert again.state.adopted == {(2, 7): records[0]}
    assert sorted(map(repr, again.state.records())) == sorted(map(repr, records))
    assert again.problems == ()


def test_only_root_can_read_it(path: Path) -> None:
    Journal(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_the_oldest_original_counts(path: Path) -> None:
    journal = Journal(path)
    journal.write([adopted(2, 0), adopted(2, 9)])
    assert journal.state.adopted[2, 7].nice == 0


@pytest.mark.parametrize("cut", range(1, 50, 7))
def test_a_line_cut_off_is_skipped_and_what_follows_is_read(path: Path, cut: int) -> None:
    journal = Journal(path)
    journal.write([adopted(2)])
    journal.write([adopted(3)])
    journal.close()
    os.truncate(path, path.stat().st_size - cut)
    again = Journal(path)
    assert (2, 7) in again.state.adopted
    assert len(again.problems) == (cut > 1)
    again.write([adopted(4)])
    again.close()
    assert {(2, 7), (4, 7)} <= Journal(path).state.adopted.keys()


@pytest.mark.parametrize(
    "garbage",
    [b"\0" * 100, b"{}", b'{"is":"adopted"}', b"\xff\xfe", b'{"is":"nothing"}', b"[" * 10000],
)
def test_garbage_is_skipped_and_reported(path: Path, garbage: bytes) -> None:
    path.parent.mkdir(mode=0o700)
    Journal(path).write([adopted(2)])
    with path.open("ab") as file:
        file.write(garbage + b"\n")
    journal = Journal(path)
    assert len(journal.problems) == 1 and ":4: skipped" in journal.problems[0]
    journal.write([adopted(3)])
    journal = Journal(path)
    assert journal.state.adopted.keys() == {(2, 7), (3, 7)}
    assert not journal.problems  # it was written anew


def test_the_journal_of_another_boot_is_void(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sched_ctl.kernel.procfs.boot_id", lambda: "an earlier one")
        Journal(path).write([adopted(2)])
    journal = Journal(path)
    assert not journal.state and journals.restore(journal) == []


def test_it_does_not_grow_without_bound(path: Path) -> None:
    journal = Journal(path)
    journal.write([adopted(1)])
    for _ in range(60):
        journal.write([adopted(tid) for tid in range(2, 1000)])
        journal.write([Released(threads=[(tid, 7) for tid in range(2, 1000)])])
    assert path.stat().st_size < 2 * (1 << 20)
    assert Journal(path).state.adopted.keys() == {(1, 7)}


def test_a_journal_that_cannot_be_written_is_an_error_before_any_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot open"):
        Journal(tmp_path / "file" / "journal")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(JournalError):
        Journal(tmp_path / "link")
    journal = Journal(tmp_path / "journal")
    journal.close()
    journal._fd = os.open("/dev/full", os.O_RDWR)
    with pytest.raises(JournalError, match="No space left"):
        journal.write([adopted(1)])
    assert not journal.state


def test_a_byte_that_is_no_text_in_the_first_line_spoils_nothing(path: Path) -> None:
    journal = Journal(path)
    journal.write([adopted(2)])
    journal.close()
    content = path.read_bytes()
    path.write_bytes(b"\xff" + content[1:])
    again = Journal(path)
    assert (2, 7) in again.state.adopted and len(again.problems) == 1


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A journal on a file system of 64 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], check=True)
    try:
        yield folder / "journal"
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.needs("root")
def test_undoing_needs_no_space(small: Path) -> None:
    journal = Journal(small)
    with pytest.raises(JournalError, match="No space left"):
        for first in range(1, 100_000, 100):
            journal.write([adopted(first + i, nice=3) for i in range(100)])
    held = set(journal.state.adopted)
    again = Journal(small)
    assert set(again.state.adopted) == held and not again.problems  # no half lines
    assert journals.restore(again) == []  # threads that are not there are done with
    assert not again.state and small.stat().st_size < 256  # two lines that say so
    again.write([adopted(1)])
    assert not Journal(small).problems


def test_what_was_put_back_without_space_is_not_put_back_to_that_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path)
    journal.write([adopted(1, nice=3)])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(journals, "_write", full)
        journal.done([Released(threads=[(1, 7)])])
    journal.write([adopted(1, nice=5)])  # its owner has changed it meanwhile
    assert Journal(path).state == journal.state
    assert journal.state.adopted[1, 7].nice == 5


@pytest.mark.needs("root")
def test_a_cut_line_and_a_full_disk_together(small: Path) -> None:
    journal = Journal(small)
    journal.write([adopted(2), adopted(3)])
    os.truncate(small, small.stat().st_size - 5)
    filler = small.with_name("filler")
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))
    again = Journal(small)
    assert (2, 7) in again.state.adopted and len(again.problems) == 1
    filler.unlink()
    again.write([adopted(4)])
    assert {(2, 7), (4, 7)} <= set(Journal(small).state.adopted)


def test_a_journal_may_not_make_us_write_other_files(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "sched-ctl").mkdir()
    journal = Journal(path)
    journal.write(
        [
            FileChanged(path=str(victim), undo="gone"),
            FileChanged(path=f"/proc/..{victim}", undo="gone"),
            Group(path=str(tmp_path / "sched-ctl")),
        ]
    )
    assert len(journals.restore(journal)) == 2
    assert victim.read_text() == "precious" and (tmp_path / "sched-ctl").is_dir()


RECORDS: list[Record] = [
    FileChanged(path="/proc/sys/x", undo="1"),
    Group(path="/sys/fs/cgroup/sched-ctl"),
    Process(4, 5, 6, 0, 0, [1, 2], [0]),
    adopted(2, -3),
    adopted(3, 4),
    Moved(pid=1, tid=2, start_time=7, cgroup="/sys/fs/cgroup/a b"),
    Set(nice=[(2, 7, 5)]),
    Released(threads=[(3, 7)]),
]


def whole(path: Path) -> tuple[bytes, set[str]]:
    """The content of a journal of all kinds of lines, and what it tells of."""
    journal = Journal(path)
    journal.write(RECORDS[:4])
    journal.write(RECORDS[4:])
    journal.close()
    return path.read_bytes(), {*map(repr, Journal(path).state.records()), repr(RECORDS[4])}


def told(path: Path) -> tuple[set[str], tuple[str, ...]]:
    journal = Journal(path)
    journal.close()
    return {repr(r) for r in journal.state.records() if not isinstance(r, Set)}, journal.problems


def test_a_flip_of_any_bit_sets_nothing_wrong_and_is_said(path: Path) -> None:
    content, right = whole(path)
    complete, none = told(path)
    assert not none
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        found, problems = told(path)
        assert found <= right, bit
        last = bit // 8 == len(content) - 1  # the last line end: nothing that it tells is lost
        assert problems or (last and found == complete), bit


def test_a_cut_at_any_byte_loses_nothing_in_silence(path: Path) -> None:
    content, right = whole(path)
    complete, _ = told(path)
    for length in range(1, len(content)):
        path.write_bytes(content[:length])
        found, problems = told(path)
        assert found <= right, length
        assert problems or (length == len(content) - 1 and found == complete), length
    path.write_bytes(b"")
    assert Journal(path).blank  # which the lock of a controller that was killed makes remarkable


def test_any_line_that_is_gone_or_twice_is_said_or_the_same(path: Path) -> None:
    content, right = whole(path)
    complete, _ = told(path)
    lines = content.splitlines(keepends=True)
    for number in range(len(lines)):
        path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
        found, problems = told(path)
        assert found <= right and problems, number
        path.write_bytes(b"".join([*lines[: number + 1], *lines[number:]]))
        found, problems = told(path)
        assert problems or found == complete, number


def test_a_line_that_was_being_written_at_the_end_is_no_alarm(path: Path) -> None:
    """Its change was not begun: SIGKILL comes between two writes, or in the middle of one."""
    content, _ = whole(path)
    complete, _ = told(path)
    more = Journal(path)
    more.write([adopted(9)])
    more.close()
    longer = path.read_bytes()
    for length in range(len(content), len(longer)):
        path.write_bytes(content + longer[len(content) : length])
        found, problems = told(path)
        assert not problems and complete <= found, length
        again = Journal(path)
        again.write([adopted(10)])
        again.close()
        found, problems = told(path)
        assert not problems and found >= {*complete, repr(adopted(10))}, length


@pytest.mark.parametrize("call", ["open", "pwrite", "ftruncate", "rename", "unlink", "mkdir"])
def test_an_error_of_any_call_loses_nothing_that_was_promised(
    path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call fails in its turn, in loading, writing, compacting and clearing."""
    real = getattr(os, call)
    for turn in range(60):
        shutil.rmtree(path.parent, ignore_errors=True)
        calls, promised = 0, {}

        def failing(*args: object, _turn: int = turn, **named: object) -> object:
            nonlocal calls
            calls += 1
            if calls == _turn + 1:
                raise OSError(28, "No space left on device")
            return real(*args, **named)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            with suppress(JournalError):
                journal = Journal(path)
                journal._compact_above = 600
                for tid in range(1, 16):
                    with suppress(JournalError):
                        journal.write([adopted(tid)])
                        promised[tid, 7] = adopted(tid)
                    if tid == 8:
                        with suppress(OSError):
                            path.unlink()
                journal.done([Released(threads=[(1, 7)])])
                promised.pop((1, 7), None)
                journal.close()
        if promised:
            again = Journal(path)
            assert promised.items() <= again.state.adopted.items(), turn
            assert not again.problems, turn
            again.close()
        if calls <= turn:
            return
    raise AssertionError("it makes more calls than were tried")


def test_who_holds_it_writes_it_anew_when_it_is_gone_or_changed(path: Path) -> None:
    journal = Journal(path)
    journal.write([adopted(2)])
    assert journal.check() is None
    for damage in (
        path.unlink,
        lambda: shutil.rmtree(path.parent),
        lambda: os.truncate(path, 0),
        lambda: path.write_bytes(b"another"),
        lambda: path.rename(path.with_name("elsewhere")),
    ):
        damage()
        assert "written anew" in (journal.check() or "")
        assert journal.check() is None
        assert told(path) == ({repr(adopted(2))}, ())
    path.unlink()
    journal.write([adopted(3)])  # whichever comes first
    assert told(path) == ({repr(adopted(2)), repr(adopted(3))}, ())


def test_who_checks_waits_for_who_writes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what another thread wrote was taken for somebody else's doing."""
    journal, at_the_door, found = Journal(path), threading.Event(), list[str | None]()

    class Lock:
        def __init__(self) -> None:
            self._lock = threading.RLock()

        def __enter__(self) -> None:
            if threading.current_thread() is checking:
                at_the_door.set()
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    def check() -> None:
        found.append(journal.check())
        at_the_door.set()

    def write(*arguments: Any) -> None:
        real(*arguments)
        monkeypatch.setattr(journals, "_write", real)
        checking.start()
        assert at_the_door.wait(30)

    checking, real = threading.Thread(target=check), journals._write
    journal._writing = Lock()  # type: ignore[assignment]
    monkeypatch.setattr(journals, "_write", write)
    journal.write([adopted(2)])
    checking.join()
    assert found == [None]


def test_a_journal_of_version_1_is_read_and_written_anew(path: Path) -> None:
    """What a controller before an upgrade has left, with a last line that was cut off."""
    path.parent.mkdir(mode=0o700)
    boot = procfs.boot_id()
    lines = [
        f'{{"is":"boot","boot":"{boot}","pid":5,"version":1}}',
        '{"is":"adopted","pid":1,"tid":2,"start":7,"nice":-3}',
        '{"is":"set","nice":[[2,7,5]]}',
        '{"is":"adopted","pid":1,"tid":3,"sta',
    ]
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    journal = Journal(path)
    assert not journal.problems and not journal.blank
    assert journal.state.adopted == {(2, 7): adopted(2, -3)}
    assert journal.state.given == {(2, 7): (5, -3)}
    journal.write([adopted(4)])
    assert told(path) == ({repr(adopted(2, -3)), repr(adopted(4))}, ())
    assert b'"version":2' in path.read_bytes()


def test_a_newer_version_is_refused(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    boot = procfs.boot_id()
    text = f'{{"is":"boot","boot":"{boot}","pid":5,"version":3}}'.encode()
    path.write_bytes(journals._sealed(text, 0))
    path.chmod(0o600)
    with pytest.raises(JournalError, match="newer version"):
        Journal(path)
    assert path.read_bytes() == journals._sealed(text, 0)


@pytest.mark.parametrize(
    "line",
    [
        b'{"is":"boot","x":' + b'{"x":' * 5000,
        b'{"is":"group","path":"/a\\u0000b"}',
        b'{"is":"group","path":"relative"}',
        b'{"is":"adopted","pid":1,"tid":2,"start":7,"nice":99}',
        b'{"is":"adopted","pid":0,"tid":2,"start":7,"nice":0}',
        b'{"is":"adopted","pid":1,"tid":99999999999999999999,"start":7,"nice":0}',
        b'{"is":"set","nice":[[2,7,-21]]}',
    ],
)
@pytest.mark.parametrize("sealed", [True, False])
def test_absurd_lines_end_in_words(path: Path, line: bytes, sealed: bool) -> None:
    Journal(path).write([adopted(3)])
    end = journals._sealed(line, 2) if sealed else line + b"\n"
    path.write_bytes(path.read_bytes() + end)
    journal = Journal(path)
    assert journal.state.records() == [adopted(3)]
    assert len(journal.problems) == 1 and "skipped" in journal.problems[0]
    assert len(journals.restore(journal)) == 1


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    "call",
    [
        *("os.open", "os.pread", "os.pwrite", "os.ftruncate", "os.rename", "os.unlink"),
        *("sched_ctl.kernel.sched.set_nice", "sched_ctl.kernel.sched.get_policy"),
        "sched_ctl.kernel.procfs.pids",
    ],
)
def test_an_error_of_any_call_of_restore_is_said_or_harmless(
    path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call fails in its turn; the next restore puts back what is left, and nothing else."""
    module, _, name = call.rpartition(".")
    real = getattr(importlib.import_module(module), name)
    done = threading.Event()
    started = [threading.Thread(target=done.wait) for _ in range(3)]
    for thread in started:
        thread.start()
    found = [procfs.stat(os.getpid(), thread.native_id) for thread in started]
    threads = [stat for stat in found if stat is not None]
    own = threads[0].nice
    try:
        for turn in range(60):
            calls = 0

            def failing(*args: object, _turn: int = turn, **named: object) -> object:
                nonlocal calls
                calls += 1
                if calls == _turn + 1:
                    raise OSError(5, "Input/output error")
                return real(*args, **named)

            journal = Journal(path)
            for stat in threads:
                born = stat.tid, stat.start_time
                journal.write([Adopted(os.getpid(), *born, own), Set([(*born, own + 5)])])
                sched.set_nice(stat.tid, own + 5)
            journal.write([Process(os.getpid(), threads[0].start_time, 1 << 40, own, 0, [], [])])
            journal.close()
            with monkeypatch.context() as patch:
                patch.setattr(call, failing)
                try:
                    again = Journal(path)
                    problems = journals.restore(again)
                    again.close()
                except JournalError as error:
                    problems = [error.message]
            left = [stat.tid for stat in threads if sched.get_nice(stat.tid) != own]
            assert problems or not left, turn
            again = Journal(path)
            assert journals.restore(again) == [] and not again.state, turn
            again.close()
            assert {sched.get_nice(stat.tid) for stat in threads} == {own}, turn
            if calls <= turn:
                return
        raise AssertionError("it makes more calls than were tried")
    finally:
        done.set()
        for thread in started:
            thread.join()
