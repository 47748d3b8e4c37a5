"""Which QEMU the guests run on.

Two things keep QEMU before 8.1 from emulating two CPUs well. It translates code that another CPU
is just writing: the kernel patches itself, an int3 that was there for a moment stays for good, and
the guest dies of it. And with exact time the first virtual CPU runs until it idles, however long
the second one waits. Debian 12 has 7.2; the one of its backports runs there as it is, so that is
fetched, and kept beside the guest kernels, not installed. It takes a quarter more CPU time, so
guests with one CPU stay with the one installed. What emulates another kind of machine is fetched
there, too, where it is not installed.
"""

import functools
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import debian

__all__ = ["PROGRAM", "PROGRAMS", "Qemu", "at_hand", "find", "installed"]

OWN = "amd64"
PROGRAM = "qemu-system-x86_64"
PROGRAMS = {OWN: PROGRAM, "arm64": "qemu-system-aarch64"}
GOOD = (8, 1)
BACKPORTED = {"bookworm": "bookworm-backports"}
COMMON = ("qemu-system-common", "qemu-system-data")
PACKAGES = {OWN: ("qemu-system-x86", "seabios"), "arm64": ("qemu-system-arm",)}


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
def installed(architecture: str = OWN) -> Qemu | None:
    """The machine's own."""
    path = shutil.which(PROGRAMS[architecture])
    return _look(path) if path is not None else None


def at_hand(architecture: str = OWN) -> Qemu | None:
    """For two CPUs: the one installed if it is good, else one fetched earlier, else the former."""
    found = installed(architecture)
    if found is not None and found.is_good:
        return found
    return _unpacked(_folder(architecture), architecture) or found


@functools.cache
def find(architecture: str = OWN) -> Qemu | None:
    """For two CPUs: the one at hand; a better one is fetched where there is one."""
    found = at_hand(architecture)
    if found is not None and found.is_good:
        return found
    try:
        return _fetch(_folder(architecture), architecture)
    except debian.ArchiveError as error:
        return None if found is None else Qemu(found.command, found.version, str(error))


def _folder(architecture: str) -> Path:
    return debian.cache() / ("qemu" if architecture == OWN else f"qemu-{architecture}")


def _fetch(folder: Path, architecture: str) -> Qemu:
    suite = BACKPORTED.get(release := debian.release())
    if suite is None:
        raise debian.ArchiveError(f"no later QEMU is known for {release or 'this system'}")
    with debian.archive(suite, beside=folder) as archive:
        archive.unpack(*PACKAGES[architecture], *COMMON)
        if _unpacked(archive.tree, architecture) is None:
            raise debian.ArchiveError(f"the QEMU of {suite} does not run on this machine")
        shutil.rmtree(folder, ignore_errors=True)
        archive.tree.rename(folder)
    found = _unpacked(folder, architecture)
    assert found is not None
    return found


def _unpacked(tree: Path, architecture: str) -> Qemu | None:
    share = tree / "usr/share"
    firmware = ("-L", str(share / "qemu"), "-L", str(share / "seabios"))
    return _look(str(tree / "usr/bin" / PROGRAMS[architecture]), *firmware)


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
