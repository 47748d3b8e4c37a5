"""What `./dev release` makes, and fresh Debian roots to try it on.

The roots come from Debian's archive and are kept for later runs.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import debian
import pytest

__all__ = ["PYTHON", "SUITES", "kept_root", "make", "run"]

ROOT = Path(__file__).parents[2]
PYTHON = {"bookworm": ("12", "3.11"), "trixie": ("13", "3.13")}
OWN = debian.release()
SUITES = list(PYTHON)[list(PYTHON).index(OWN) if OWN in PYTHON else 0 :]


def make(out: Path) -> Path:
    (out / "note.txt").write_text("of somebody else")
    run([ROOT / "packaging" / "release", out])
    return out


def kept_root(suite: str) -> Path:
    """An archive of the smallest system that has a Python with venv, made once."""
    kept = debian.cache() / f"root-{suite}.tar"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_suffix(f".{os.getpid()}.tar")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3-venv"]
        done = subprocess.run(
            [*command, suite, new, f"{debian.MIRROR}/debian"],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        if done.returncode != 0:
            new.unlink(missing_ok=True)
            pytest.skip("needs Debian's archive")
        new.rename(kept)
    return kept


def run(command: Sequence[str | Path]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
