"""Jars of Maven Central, fetched once into the ignored build folder."""

import os
import shutil
import subprocess
from pathlib import Path

from engines.cluster import CACHE

__all__ = ["jars_of"]

HERE = Path(__file__).parent


def jars_of(name: str, version: str) -> Path:
    """The folder with all that NAME.pom.xml asks for, in this version of it."""
    home = CACHE / f"{name}-{version}"
    if not home.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        part = CACHE / f"{name}-{version}.{os.getpid()}"
        shutil.rmtree(part, ignore_errors=True)
        subprocess.run(
            [
                *("mvn", "-q", "-B", "-f", HERE / f"{name}.pom.xml"),
                f"-Dmaven.repo.local={CACHE / 'maven'}",
                f"-D{name}.version={version}",
                *("dependency:copy-dependencies", f"-DoutputDirectory={part}"),
            ],
            check=True,
            timeout=600,
        )
        part.rename(home)
        shutil.rmtree(CACHE / "maven")
    return home
