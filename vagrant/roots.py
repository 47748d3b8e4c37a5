"""Roots of guests of another kind of machine: Debian's packages for it, unpacked and kept.

No image, and nothing of that machine is run here: maintainers' scripts are left out, and what the
guest needs of them is done below.
"""

import shutil
from pathlib import Path

import debian

__all__ = ["PACKAGES", "RootError", "at_hand", "root"]

SUITE = "trixie"
PACKAGES = (
    *("base-files", "base-passwd", "dash", "bash", "coreutils", "dpkg", "tar", "util-linux"),
    *("mount", "grep", "sed", "findutils", "procps", "libc-bin", "python3", "libbpf1", "kmod"),
    *("iproute2", "gzip", "xz-utils", "perl-base", "diffutils", "libstdc++6", "libgcc-s1", "mawk"),
)


class RootError(Exception):
    """There is no root; the text says why."""


def at_hand(architecture: str, *more: str) -> bool:
    """Whether there is a root without making it."""
    return _folder(architecture, *more).is_dir()


def root(architecture: str, *more: str) -> Path:
    """Made once, and kept. more: packages that it has besides."""
    folder = _folder(architecture, *more)
    if at_hand(architecture, *more):
        return folder
    try:
        with debian.archive(SUITE, folder, architecture) as archive:
            archive.unpack_all(*PACKAGES, *more)
            for name in ("passwd", "group"):
                master = archive.tree / f"usr/share/base-passwd/{name}.master"
                shutil.copy(master, archive.tree / "etc" / name)
            for name in ("mnt", "root", "tmp", "var/tmp"):
                (archive.tree / name).mkdir(parents=True, exist_ok=True)
            archive.tree.rename(folder)
    except debian.ArchiveError as error:
        raise RootError(f"there is no root for {architecture}: {error}") from error
    return folder


def _folder(architecture: str, *more: str) -> Path:
    return debian.cache() / "-".join(["root", architecture, *more])
