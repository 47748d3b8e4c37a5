"""The journal survives what happens to files: cut lines, garbage, other boots, growth."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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
)


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
    Journal(path).write([adopted(3)])
    journal = Journal(path)
    assert journal.state.adopted.keys() == {(2, 7), (3, 7)}
    assert len(journal.problems) == 1 and ":3: skipped" in journal.problems[0]


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
        for first in range(0, 100_000, 100):
            journal.write([adopted(first + i, nice=3) for i in range(100)])
    held = set(journal.state.adopted)
    again = Journal(small)
    assert set(again.state.adopted) == held and not again.problems  # no half lines
    assert journals.restore(again) == []  # threads that are not there are done with
    assert not again.state and small.stat().st_size == 0
    again.write([adopted(1)])
    assert not Journal(small).problems


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
