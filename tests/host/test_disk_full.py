"""A run folder without space: nothing is left changed, and nothing ends unkillable."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from labs import SOON_S, loaded, nices, sched_ctl, scheduled, spe

from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root")]
HR = ("--policy", "hr")  # one that orders a single query, too


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """On a file system of 256 kB."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", str(folder)]
    subprocess.run(command, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> None:
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))


@pytest.mark.parametrize("backend", ["nice", "auto"])
def test_full_from_the_start(run_dir: Path, backend: str) -> None:
    fill(run_dir)
    with spe() as engine:
        before = nices(engine)
        with loaded(run_dir, *HR, "--backend", backend, engine=engine) as process:
            log = run_dir.with_suffix(".log")
            wait_until(lambda: "No space left" in log.read_text() or process.poll(), SOON_S)
            process.send_signal(signal.SIGTERM)
            process.wait(SOON_S)
        assert len(log.read_text().splitlines()) < 50
        assert "KeyError" not in log.read_text()
        assert nices(engine) == before


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_full_while_it_runs(run_dir: Path, how: str) -> None:
    with spe() as engine:
        before = nices(engine)
        with loaded(run_dir, *HR, "--backend", "nice", engine=engine) as process:
            scheduled(run_dir, engine)
            fill(run_dir)
            process.send_signal(getattr(signal, how))
            process.wait(SOON_S)
        if how == "SIGKILL":
            assert nices(engine) != before
            sched_ctl("restore", "--run-dir", str(run_dir))
        assert nices(engine) == before
