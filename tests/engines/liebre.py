"""A query of a real Liebre: the jar is the user's, as there is none at a registry."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engines.cluster import CACHE

__all__ = ["OPERATORS", "prepare", "running"]

JARS, CLASSES = CACHE / "liebre-jars", CACHE / "liebre-fork"
OPERATORS = frozenset(
    ("source", "parse", "pick", "split", "heavy", "agg", "slow", "light", "enrich", "fast")
)


def prepare(jar: Path) -> None:
    """Copy it and the jars beside it into the build folder, and compile the query against them.

    Raises SystemExit with what javac said if they are not Liebre's.
    """
    for folder in (JARS, CLASSES):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for path in jar.parent.glob("*.jar"):
        shutil.copy(path, JARS)
    source = Path(__file__).parent / "jobs" / "Fork.java"
    command = ["javac", "-nowarn", "-d", str(CLASSES), "-cp", f"{JARS}/*", str(source)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    if done.returncode:
        first = done.stderr.partition("\n")[0]
        raise SystemExit(f"{source.name} cannot be compiled with the jars beside {jar}: {first}")


@contextmanager
def running(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The query. In the folder are `metrics`, `out/light`, `out/heavy` and `rate`."""
    for name in ("metrics", "out/light", "out/heavy"):
        (folder / name).mkdir(parents=True)
    (folder / "rate").write_text("0")
    command = [
        *("setpriv", "--pdeathsig", "KILL", "--", "java", "-Xmx512m", "-XX:+UseSerialGC"),
        *("-XX:-UsePerfData", "-cp", f"{CLASSES}:{JARS}/*", "Fork", "metrics", "out", "rate"),
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=folder) as process:
        try:
            yield process
        finally:
            process.kill()
