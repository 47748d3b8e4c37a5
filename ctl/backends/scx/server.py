"""The kernel's deadline server for sched_ext threads, where there is one: its share, journalled."""

import logging
from pathlib import Path

from sched_ctl.backends.undo import put_back
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.backends.undo.records import FileChanged
from sched_ctl.kernel import schedext

__all__ = ["lower", "note", "raise_to"]

log = logging.getLogger(__name__)

PERIOD_NS = 100_000_000


def note(journal: Journal) -> None:
    """Journal what the servers are set to, as `raise_to` needs it. Raises JournalError."""
    for folder in schedext.server_files():
        if schedext.is_offline(folder.name):
            continue  # when it comes, we are loaded anew
        try:
            journal.write(
                FileChanged(path=str(file), undo=file.read_text().strip())
                for file in _files(folder)
            )
        except OSError as error:
            log.warning("%s: %s: operators may starve beside a hog", folder, error.strerror)


def raise_to(journal: Journal, percent: int) -> None:
    """Give SCHED_EXT threads this share of each CPU against the fair class; see `note`.

    The kernel refuses it (EBUSY) where deadline threads, and the fair class's own server with 5%,
    leave less of a CPU's 95%: then the server is what it was.
    """
    wanted = percent * PERIOD_NS // 100
    for folder in schedext.server_files():
        runtime, period = _files(folder)
        if not {str(runtime), str(period)} <= journal.state.files.keys():
            continue
        if schedext.is_offline(folder.name):
            continue  # it was online before; what it was set to then stays in the journal
        try:
            # The runtime may at no time exceed the period.
            runtime.write_text("1000000")
            period.write_text(str(PERIOD_NS))
            runtime.write_text(str(wanted))
        except OSError as error:
            for problem in put_back.files(journal, map(str, _files(folder))):
                log.warning("%s", problem)
            log.warning(
                "%s: %s: beside a hog operators have %s of the CPU, not %d%%",
                folder,
                error.strerror,
                _share(folder),
                percent,
            )


def _files(folder: Path) -> tuple[Path, Path]:
    return folder / "runtime", folder / "period"


def _share(folder: Path) -> str:
    try:
        runtime, period = (int(file.read_text()) for file in _files(folder))
        return f"{runtime / period:.0%}"
    except (OSError, ValueError, ZeroDivisionError):
        return "an unknown part"


def lower(journal: Journal) -> list[str]:
    """Put the servers back; returns what could not be, in words."""
    raised = [path for path in journal.state.files if path.startswith(str(schedext.SERVERS))]
    return put_back.files(journal, raised)
