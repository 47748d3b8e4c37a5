"""What makes a query of a real Flink fall behind, and how soon it has caught up."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from engines.cluster import SLOWER, patiently
from sched_ctl.model.graph import Array

__all__ = ["BULK", "SIDE", "behind_for_s", "collect", "freeze", "keeps_up", "restart"]

# A query of a fifth of the CPU beside one that takes all it gets.
CHAINED = {"chain": "true", "shuffle": "true", "buffer_timeout": "10 ms"}
SIDE = {"rate": 30, "parse_us": 100, "work_us": 7000, "checkpoint_ms": 3000, **CHAINED}
BULK = {"rate": 1_000_000, "parse_us": 100, "work_us": 1000, **CHAINED}

LATE_S = 0.1
BEHIND_S = 0.2  # who stood for less was not stopped
RECENT = 10  # results that were not late
COLLECT_S = 3.0
FREEZE_S = 5.0
STARVED_S = 120.0  # who has not caught up by then never will


def restart(fails: Path) -> None:
    """Have the job fail whose argument `fail` this is: it goes on from its last checkpoint."""
    fails.touch()
    patiently(lambda: not fails.exists(), 30, "the job's failure")


def collect(pid: int, seconds: float = COLLECT_S) -> None:
    """Have a Java process collect garbage ever again, as one does whose heap is nearly full."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _command(pid, b"jcmd", b"GC.run")


def freeze(pid: int, seconds: float = FREEZE_S) -> None:
    """Have none of its threads run for so long."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def _command(pid: int, *words: bytes) -> bytes:
    """Its answer, as jcmd(1) has it: three arguments at most, by the socket that it opens."""
    path, trigger = Path(f"/tmp/.java_pid{pid}"), Path(f"/tmp/.attach_pid{pid}")
    if not path.exists():
        trigger.touch()
        os.kill(pid, signal.SIGQUIT)
        patiently(path.exists, 10, "the socket of a Java process")
        trigger.unlink()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.connect(str(path))
        connection.sendall(b"1\0" + b"\0".join(words) + b"\0" * (5 - len(words)))
        parts = []
        while part := connection.recv(4096):
            parts.append(part)
    answer = b"".join(parts)
    assert answer.startswith(b"0\n"), answer
    return answer


def keeps_up(out: Path) -> bool:
    """Whether the newest results, which a job (jobs/Query.java) wrote down there, were not late."""
    late = _results(out)[1][-RECENT:]
    return len(late) == RECENT and bool(late.max() < LATE_S)


def behind_for_s(out: Path, stop: Callable[[], None]) -> tuple[float, float]:
    """How late the latest result was after a stop, and for how long from then on any was, s."""
    begin_s = time.monotonic()
    stop()

    def caught_up() -> bool:
        late = _results(out, begin_s)[1]
        return bool(late.max(initial=0.0) > BEHIND_S and late[-RECENT:].max() < LATE_S)

    patiently(caught_up, STARVED_S / SLOWER, f"{out} no longer late")
    left, late = _results(out, begin_s)
    latest = int(late.argmax())
    last = int(np.flatnonzero(late > LATE_S)[-1])
    return float(late[latest]), float(left[last] - left[latest])


def _results(out: Path, since_s: float = 0.0) -> tuple[Array, Array]:
    """Of what left since then: when, and how late, s. A job that restarts begins its file anew."""
    text = out.read_bytes() if out.exists() else b""
    whole = text[: text.rfind(b"\n") + 1].split()
    left, due = np.array(whole, dtype=np.int64).reshape(-1, 2).T / 1e9
    now = left >= since_s
    return left[now], (left - due)[now]
