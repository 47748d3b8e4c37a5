"""The libbpf of guests that show this machine's files.

On Debian 12, whose own is too old, sched-ctl takes the one that pylibbpf bundles. That is compiled
without optimisation: the scheduler takes half as long again to load. The one of Debian's backports
runs there as it is, so that is fetched, and kept beside the guest kernels, not installed.
"""

import shutil
from pathlib import Path

import debian

__all__ = ["at_hand", "environment", "fetch", "is_lacking"]

SUITES = {"bookworm": "bookworm-backports"}
NAME = "libbpf.so.1"


def at_hand() -> Path | None:
    """The folder that has it, if it was fetched."""
    return next(
        (file.parent for file in _folder().glob(f"usr/lib/*/{NAME}") if file.exists()), None
    )


def is_lacking() -> bool:
    """Whether one would be of use and is not at hand."""
    return debian.release() in SUITES and at_hand() is None


def fetch() -> None:
    """Raises ArchiveError."""
    with debian.archive(SUITES[debian.release()], beside=_folder()) as archive:
        archive.unpack("libbpf1")
        shutil.rmtree(_folder(), ignore_errors=True)
        archive.tree.rename(_folder())


def environment() -> dict[str, str]:
    """What lets a program in a guest find it: ld.so(8). Empty where there is none."""
    found = at_hand() if debian.release() in SUITES else None
    return {} if found is None else {"LD_LIBRARY_PATH": str(found)}


def _folder() -> Path:
    return debian.cache() / "libbpf"
