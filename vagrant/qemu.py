"""Which QEMU the guests run on.

Two things keep QEMU before 8.1 from emulating two CPUs well. It translates code that another CPU
is just writing: the kernel patches itself, an int3 that was there for a moment stays for good, and
the guest dies of it. And with exact time the first virtual CPU runs until it idles, however long
the second one waits. Debian 12 has 7.2; the one of its backports runs there as it is, so that is
fetched, and kept beside the guest kernels, not installed. It takes a quarter more CPU time, so
guests with one CPU stay with the one installed.
"""

import functools
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import debian

__all__ = ["PROGRAM", "Qemu", "at_hand", "find", "installed"]

PROGRAM = "qemu-system-x86_64"
GOOD = (8, 1)
BACKPORTED = {"bookworm": "bookworm-backports"}
PACKAGES = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios")


@dataclass(frozen=True)
class Qemu:
    """command: the program, and where its firmware is. lacking: why there is no better one."""

    command: tuple[str, ...]
    version: tuple[int, ...]
    lacking: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it emulates two CPUs as they should be."""
        return self.version >= GOOD

    def __str__(self) -> str:
        return f"QEMU {'.'.join(map(str, self.version))} ({self.command[0]})"


@functools.cache
def installed() -> Qemu | None:
    """The machine's own."""
    path = shutil.which(PROGRAM)
    return _look(path) if path is not None else None


def at_hand() -> Qemu | None:
    """For two CPUs: the one installed if it is good, else one fetched earlier, else the former."""
    found = installed()
    if found is None or found.is_good:
        return found
    return _unpacked(_folder()) or found


@functools.cache
def find() -> Qemu | None:
    """For two CPUs: the one at hand; a better one is fetched where there is one."""
    found = at_hand()
    if found is None or found.is_good:
        return found
    try:
        return _fetch(_folder())
    except debian.ArchiveError as error:
        return Qemu(found.command, found.version, str(error))


def _folder() -> Path:
    return debian.cache() / "qemu"


def _fetch(folder: Path) -> Qemu:
    suite = BACKPORTED.get(release := debian.release())
    if suite is None:
        raise debian.ArchiveError(f"no later QEMU is known for {release or 'this system'}")
    with debian.archive(suite, beside=folder) as archive:
        archive.unpack(*PACKAGES)
        if _unpacked(archive.tree) is None:
            raise debian.ArchiveError(f"the QEMU of {suite} does not run on this machine")
        shutil.rmtree(folder, ignore_errors=True)
        archive.tree.rename(folder)
    found = _unpacked(folder)
    assert found is not None
    return found


def _unpacked(tree: Path) -> Qemu | None:
    share = tree / "usr/share"
    firmware = ("-L", str(share / "qemu"), "-L", str(share / "seabios"))
    return _look(str(tree / "usr/bin" / PROGRAM), *firmware)


def _look(program: str, *more: str) -> Qemu | None:
    """None if it does not run."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    number = re.search(r"version (\d+(?:\.\d+)+)", done.stdout)
    if number is None:
        return None
    return Qemu((program, *more), tuple(map(int, number[1].split("."))))
