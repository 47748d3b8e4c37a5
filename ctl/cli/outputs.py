"""Files that commands write what they found to."""

from pathlib import Path

from sched_ctl.errors import UserError

__all__ = ["check", "check_in", "write"]


def check(path: Path) -> None:
    """Raises UserError for what cannot be written, before time is spent on what is to be in it."""
    try:
        if path.is_fifo():  # its reader would take the end of a try for that of the text
            return
        is_new = not path.exists()
        with path.open("ab"):
            pass
        if is_new:
            path.resolve().unlink()  # not a link to it
    except OSError as error:
        raise _refused(path, error) from None


def check_in(folder: Path, name: str) -> None:
    """Likewise, for a file in a folder that is made if needed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(folder, error) from None
    check(folder / name)


def write(path: Path, text: str) -> None:
    """Raises UserError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path}: {error.strerror}")
