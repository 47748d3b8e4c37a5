"""What `./dev release` makes, and fresh roots to try it on.

They come from the archives of Debian and Ubuntu, and are kept for later runs.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import debian
import pytest

__all__ = ["MADE", "PYTHON", "SUITES", "UBUNTU", "UNPACKED", "kept_root", "make", "run"]

ROOT = Path(__file__).parents[2]
PYTHON = {"bookworm": ("12", "3.11"), "trixie": ("13", "3.13")}
UBUNTU = ("noble", "3.12")
UBUNTU_MIRROR = "http://archive.ubuntu.com/ubuntu"
# pip, of an index that does not answer: the latter is said of what there is not, too
UNREACHED = ("after connection broken by", "No matching distribution found")
# Packing takes 14 s of CPU time, unpacking more where that is emulated, and it holds the same.
UNPACKED = ("env", "DPKG_DEB_COMPRESSOR_TYPE=none")
MADE: list[Path] = []  # folders that hold a release by now, of this run
OWN = debian.release()
SUITES = list(PYTHON)[list(PYTHON).index(OWN) if OWN in PYTHON else 0 :]


def make(out: Path) -> Path:
    (out / "note.txt").write_text("of somebody else")
    run([*UNPACKED, ROOT / "packaging" / "release", out])
    MADE.append(out)
    return out


def kept_root(suite: str, *packages: str) -> Path:
    """An archive of the smallest system that has a Python with venv, and these; made once."""
    kept = debian.cache() / f"{'-'.join(['root', suite, *packages])}.tar"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_suffix(f".{os.getpid()}.tar")
        wanted = ",".join(["python3-venv", *packages])
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={wanted}"]
        source: list[str | Path] = [suite, new, f"{debian.MIRROR}/debian"]
        if suite == UBUNTU[0]:
            command += ["--components=main,universe", f"--keyring={_ubuntu_keys()}"]
            command += ["--include=apt"]  # which every Ubuntu has, and libstdc++ with it
            command += ['--aptopt=APT::Sandbox::User "root"']  # the keys lie in our own folder
            source = [suite, new, UBUNTU_MIRROR]
        try:
            subprocess.run([*command, *source], capture_output=True, check=True, timeout=240)
        except subprocess.SubprocessError:
            new.unlink(missing_ok=True)
            pytest.skip(f"needs the archive of {suite}")
        new.rename(kept)
    return kept


def _ubuntu_keys() -> Path:
    """Ubuntu's keys, as Debian 13 has them."""
    kept = debian.cache() / "ubuntu-archive-keyring.gpg"
    try:
        with debian.archive("trixie", kept) as archive:
            archive.unpack("ubuntu-keyring")
            shutil.copy(archive.tree / "usr/share/keyrings" / kept.name, kept)
    except debian.ArchiveError as error:
        pytest.skip(f"needs Debian's archive: {error}")
    return kept


def run(command: Sequence[str | Path], limit_s: float = 240.0) -> str:
    """What it says. Who cannot be given packages of PyPI is skipped by that name."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
    )
    said = done.stdout + done.stderr
    if done.returncode != 0 and all(words in said for words in UNREACHED):
        pytest.skip("needs PyPI")
    assert done.returncode == 0, said
    return done.stdout
