"""A process with busy threads, to compete for one CPU with others."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sched_ctl.drivers.threads import thread_of
from sched_ctl.kernel import cgroup
from sched_ctl.model.topology import Thread
from support import wait_until

__all__ = ["SHARES", "Use", "engine", "folder", "used"]

# Deriving a key holds no lock of the interpreter, so the threads compete for the CPU alone.
ENGINE = """
import hashlib, os, sys, threading, time
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
def burn(rounds):
    hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)
def operator():
    while True:
        burn(20000)
def collector():
    while True:
        time.sleep(0.02)
        burn(4000)
threads = [threading.Thread(target=operator, daemon=True) for _ in range(int(sys.argv[1]))]
if len(sys.argv) > 2:
    threads.append(threading.Thread(target=collector, daemon=True))
for thread in threads:
    thread.start()
print(*(thread.native_id for thread in threads), flush=True)
threading.Timer(120, os._exit, (9,)).start()
sys.stdin.read()
os._exit(0)
"""


@contextmanager
def engine(operators: int, *more: str) -> Iterator[list[Thread]]:
    """A process in a session of its own; its threads in the order in which they were started."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", ENGINE, str(operators), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout
            tids = [int(word) for word in process.stdout.readline().split()]
            found = [thread_of(process.pid, tid) for tid in tids]
            yield [thread for thread in found if thread]
        finally:
            process.kill()


def folder(thread: Thread) -> Path:
    [tree] = [found for found in cgroup.hierarchies() if found.version == 1]
    found = tree.folder_of(thread.pid, thread.tid)
    assert found is not None
    return found


SHARES = {"a": (1.0, (0, 1)), "b": (4.0, (2, 3))}


@dataclass(frozen=True)
class Use:
    """What threads had of the CPU (ns), and how long the collector waited a turn (ns)."""

    cpu: Mapping[Thread, int]
    wait_ns: float

    def of(self, threads: Sequence[Thread]) -> int:
        return sum(self.cpu[thread] for thread in threads)


def schedstat(thread: Thread) -> tuple[int, int, int]:
    text = Path(f"/proc/{thread.pid}/task/{thread.tid}/schedstat").read_text()
    run, wait, turns = map(int, text.split())
    return run, wait, turns


def used(threads: Sequence[Thread], collector: Thread, ns: float) -> Use:
    """What they use while they use so much together."""
    before = {thread: schedstat(thread) for thread in threads}

    def gained() -> dict[Thread, int]:
        return {thread: schedstat(thread)[0] - before[thread][0] for thread in threads}

    def measured() -> bool:
        turns = schedstat(collector)[2] - before[collector][2]
        return sum(gained().values()) > ns and turns > 0

    wait_until(measured, 60)
    _, waited, turns = (b - a for a, b in zip(before[collector], schedstat(collector), strict=True))
    return Use(gained(), waited / max(turns, 1))
