"""Ctrl-C in a terminal: no traceback, 130, and the terminal as it was."""

import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from labs import CONTROLLED, SOON_S, WORKLOADS, command

pytestmark = pytest.mark.host

SHOWN, HIDDEN = b"\x1b[?25h", b"\x1b[?25l"  # the cursor; xterm's control sequences
MAIN, OTHER = b"\x1b[?1049l", b"\x1b[?1049h"  # screen


def interrupted(arguments: list[str], ready: Callable[[bytes], bool]) -> bytes:
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
        assert process.returncode == 130, said[-500:]
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
