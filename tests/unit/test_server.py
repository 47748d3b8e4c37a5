"""The deadline server's share, and the scheduler that is attached with it. In plain files."""

import errno
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from sched_ctl.backends.scx import server as deadline_server
from sched_ctl.backends.scx.backend import Loaded, Scx
from sched_ctl.backends.undo import put_back
from sched_ctl.backends.undo.journal import Journal, JournalError
from sched_ctl.backends.undo.records import Record
from sched_ctl.kernel import schedext
from sched_ctl.model.options import ScxOptions

BEFORE = {"runtime": "50000000", "period": "1000000000"}


class Fake:
    """A scheduler that only counts."""

    libbpf = "none"

    def __init__(self) -> None:
        self.attached = 0
        self.beats = 0

    def attach(self) -> None:
        self.attached += 1

    def beat(self) -> None:
        self.beats += 1

    def exit(self) -> None:
        return None


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the only CPU."""
    monkeypatch.setattr(schedext, "SERVERS", tmp_path / "ext_server")
    monkeypatch.setattr(put_back, "_is_kernels", lambda path: True)
    folder = tmp_path / "ext_server" / "cpu0"
    folder.mkdir(parents=True)
    for name, text in BEFORE.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal")
    yield journal
    journal.close()


def found(server: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in server.iterdir()}


def loaded() -> tuple[Loaded, Fake]:
    """What `Scx` needs to attach."""
    one, scheduler = Loaded.__new__(Loaded), Fake()
    one.scheduler, one.attached, one._monitor = scheduler, False, None  # type: ignore[assignment]
    return one, scheduler


def test_a_full_journal_keeps_no_scheduler_from_its_monitor(
    server: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Scx(journal, ScxOptions(mode="partial"))
    one, scheduler = loaded()

    def full(records: Iterable[Record]) -> None:
        raise JournalError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(journal, "write", full)
        with pytest.raises(JournalError):
            backend._attach(one)
    assert not scheduler.attached and not one.attached and found(server) == BEFORE
    backend._attach(one)
    assert scheduler.attached > 0 and one.attached
    assert one._monitor is not None and one._monitor.is_alive()
    assert found(server) == {"runtime": "50000000", "period": "100000000"}
    one._monitor.stop()
    assert backend.restore() == ()
    assert found(server) == BEFORE and not journal.state


def test_what_a_cpu_that_is_offline_was_set_to_is_not_lost(
    server: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline_server.note(journal)
    deadline_server.raise_to(journal, 50)
    raised = found(server)
    with monkeypatch.context() as patched:
        patched.setattr(schedext, "is_offline", lambda cpu: True)
        patched.setattr(Path, "write_text", refused)
        deadline_server.raise_to(journal, 90)  # writes nothing
        patched.setattr(put_back, "_write", lambda record: refused(Path(record.path), ""))
        assert len(deadline_server.lower(journal)) == 2
    assert found(server) == raised != BEFORE
    assert deadline_server.lower(journal) == []
    assert found(server) == BEFORE and not journal.state


def refused(file: Path, text: str) -> int:
    raise OSError(errno.EBUSY, "Device or resource busy", str(file))


def test_a_share_that_the_kernel_refuses_leaves_what_was(
    server: Path,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is written last: what came before would leave operators less than they had."""
    write, written = Path.write_text, []

    def refused(file: Path, text: str) -> int:
        if text == "90000000":
            raise OSError(errno.EBUSY, "Device or resource busy", str(file))
        written.append(text)
        return write(file, text)

    deadline_server.note(journal)
    monkeypatch.setattr(Path, "write_text", refused)
    deadline_server.raise_to(journal, 90)
    assert written == ["1000000", "100000000"]
    assert found(server) == BEFORE and not journal.state
    assert "busy: beside a hog operators have 5% of the CPU, not 90%" in caplog.text
