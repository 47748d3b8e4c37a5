"""Ctrl-C in a terminal: no traceback, the right exit code, and the terminal as it was."""

import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from labs import CONTROLLED, SOON_S, WORKLOADS, command, loaded, nices, scheduled, spe

pytestmark = pytest.mark.host

SHOWN, HIDDEN = b"\x1b[?25h", b"\x1b[?25l"  # the cursor; xterm's control sequences
MAIN, OTHER = b"\x1b[?1049l", b"\x1b[?1049h"  # screen


def interrupted(arguments: list[str], ready: Callable[[bytes], bool], code: int = 130) -> bytes:
    """Run the command line in a terminal and press Ctrl-C when it is ready; what it wrote."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (40, 120))
    before = termios.tcgetattr(its)
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [*CONTROLLED, *command(*arguments)], stdin=its, stdout=its, stderr=its, env=environment
    )
    said = b""
    pressed = False
    try:
        end_s = time.monotonic() + 2 * SOON_S
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            assert time.monotonic() < end_s, said[-500:]
            if select.select([ours], [], [], 0.05)[0]:
                said += os.read(ours, 1 << 16)
            if not pressed and ready(said):
                os.write(ours, b"\x03")
                pressed = True
        assert pressed, said[-500:]
        assert process.returncode == code, said[-500:]
        assert b"Traceback" not in said
        assert termios.tcgetattr(its) == before
        for on, off in ((HIDDEN, SHOWN), (OTHER, MAIN)):
            assert said.rfind(off) >= said.rfind(on)
        return said
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(its)


def test_a_simulation_that_takes_long() -> None:
    long = ["--duration", "1e5", "--seeds", "50"]
    interrupted(["simulate", str(WORKLOADS / "etl.graph"), *long], lambda said: HIDDEN in said)


def test_files_for_a_fleet(tmp_path: Path) -> None:
    def ready(_: bytes) -> bool:
        return any(tmp_path.rglob("gw-*"))

    interrupted(["fleet", "generate", str(tmp_path), "--nodes", "500", "--hours", "100"], ready)


@pytest.mark.needs("root", "cc")
def test_the_controller_and_a_look_at_it(tmp_path: Path) -> None:
    """What draws on the other screen gives the terminal back; what orders threads, the threads."""
    run_dir = tmp_path / "run"
    options = ("--backend", "nice", "--policy", "constant", "--policy-option", "default=1")
    with spe() as engine:
        before = nices(engine)
        with loaded(run_dir, *options, engine=engine):
            scheduled(run_dir, engine)
            said = interrupted(["top", "--run-dir", str(run_dir)], lambda said: b"etl" in said)
            assert OTHER in said and SHOWN in said

        def ordered(_: bytes) -> bool:
            return nices(engine) != before

        load = ["load", "--run-dir", str(run_dir), "--engine", engine.name, "--backend", "nice"]
        said = interrupted([*load, "--policy", "random", "--period", "0.1"], ordered, code=0)
        assert b"everything is as it was before" in said
        assert nices(engine) == before
