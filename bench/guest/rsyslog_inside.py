"""Runs in a guest: a real rsyslogd in phases under the OS and under sched-ctl.

    rsyslog_inside.py [PATTERN]    PATTERN: of names of ways

Alarms come evenly; the archive gets bursts, and then its four workers want the CPU as much as the
one of the alarms. Both formats have regular expressions, which is what a message costs. Who sends
and who takes goes before all others. Prints each phase as JSON, in lines that begin "@@ ".
"""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.guest.inside import FIRST, Load, Neighbour, Pulse, go_first, measure, say, show, threads
from engines.cluster import CACHE, patiently

__all__ = ["PACKAGES", "TREE"]

TREE = CACHE / "rsyslog"
PACKAGES = ("rsyslog", "libestr0", "libfastjson4")
LIBRARIES = TREE / "usr/lib/x86_64-linux-gnu"
FOLDER = Path("/run/rsyslog")
PORT = 10514
RATES = {"alarms": (100, 1), "archive": (50, 100)}  # messages a second, and how many at once
COST = {"alarms": 2, "archive": 10}  # regular expressions that are looked for in each
WORKERS = {"alarms": 1, "archive": 4}
HOW = ("--engine", "program:rsyslog", "--poll-timeout", "30", "--stale-after", "60")
BURST_S = 2.0  # from one to the next
SECONDS = 8.0  # four bursts
SETTLE_S = 3.0
FILLER = "a user said that the disk is nearly full " * 2
SEARCH = "([a-z]+ )*([a-z]+)$"


@dataclass(frozen=True)
class Way:
    """arguments: of `load`; none: the OS alone."""

    name: str
    arguments: tuple[str, ...] = ()


NOTHING = Way("os")
WAYS = tuple(
    Way(f"min-cost, {backend}", ("--policy", "min-cost", "--backend", backend))
    for backend in ("nice", "scx")
)


def _configuration() -> str:
    actions = ""
    for name, count in COST.items():
        costs = "".join(f"%msg:R,ERE,2,BLANK:{SEARCH}--end%" for _ in range(count))
        actions += f"""
template(name="{name}" type="string" string="%msg:F,59:2%;{costs}\\n")
if $programname == "{name}" then action(name="{name}" type="ompipe" pipe="{FOLDER / name}"
    template="{name}" queue.type="LinkedList" queue.size="100000" queue.dequeueBatchSize="1"
    queue.workerThreads="{WORKERS[name]}" queue.workerThreadMinimumMessages="10"
    queue.timeoutWorkerThreadShutdown="3600000")"""
    return f"""
global(workDirectory="{FOLDER}")
module(load="imptcp" threads="1")
input(type="imptcp" address="127.0.0.1" port="{PORT}"){actions}
"""


class Traffic:
    """Sends messages when they are due, and writes down when they were written: a file a query."""

    def __init__(self) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.sched_setscheduler(0, *FIRST)
                _traffic()
            finally:
                os._exit(1)

    def waits_s(self, query: str, begin_s: float, end_s: float) -> Any:
        """Of messages that were due in this time: from then until they were written, s."""
        due, left = np.fromfile(FOLDER / f"{query}.seen").reshape(-1, 2).T
        return (left - due)[(due >= begin_s) & (due < end_s)]

    def has_no_backlog(self) -> bool:
        """What was loaded before took CPU time from both."""
        now_s = time.monotonic()
        waits = {query: self.waits_s(query, now_s - 2 * BURST_S, now_s) for query in RATES}
        return all(len(of) and float(of[-1]) < BURST_S for of in waits.values())

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _traffic() -> None:
    pipes = {os.open(FOLDER / query, os.O_RDWR | os.O_NONBLOCK): query for query in RATES}
    logs = {query: (FOLDER / f"{query}.seen").open("wb", buffering=0) for query in RATES}
    rest = dict.fromkeys(RATES, b"")
    with socket.create_connection(("127.0.0.1", PORT)) as to:
        begin_s = time.monotonic()
        sent = dict.fromkeys(RATES, 0)
        while True:
            now_s = time.monotonic()
            due = {q: begin_s + sent[q] / rate for q, (rate, _) in RATES.items()}
            for query, (_, at_once) in RATES.items():
                if due[query] <= now_s:
                    line = f"<13>Jan  1 00:00:00 h {query}: ;{due[query]:.6f};{FILLER}\n"
                    to.sendall(line.encode() * at_once)
                    sent[query] += at_once
            wait_s = max(0.0, min(due.values()) - time.monotonic())
            for ready in select.select(list(pipes), [], [], wait_s)[0]:
                query = pipes[ready]
                *lines, rest[query] = (rest[query] + os.read(ready, 1 << 16)).split(b"\n")
                left_s = time.monotonic()
                seen = [(float(line.split(b";")[0]), left_s) for line in lines]
                logs[query].write(np.array(seen).tobytes())


def role_of(_label: str, comm: str) -> str:
    query = next((query for query in RATES if comm.startswith(f"rs:{query} ")), None)
    return f"operators of {query}" if query else "helpers"


@contextmanager
def running() -> Iterator["subprocess.Popen[bytes]"]:
    """rsyslogd, until the block is left."""
    FOLDER.mkdir()
    for query in RATES:
        os.mkfifo(FOLDER / query)
    (FOLDER / "conf").write_text(_configuration())
    program, modules = TREE / "usr/sbin/rsyslogd", LIBRARIES / "rsyslog"
    words = ["-n", "-f", FOLDER / "conf", "-i", FOLDER / "pid", "-M", modules]
    process = subprocess.Popen(
        [program, *map(str, words)],
        env={"LD_LIBRARY_PATH": str(LIBRARIES)},
        stdin=subprocess.DEVNULL,
    )
    try:
        patiently(_listens, 60, "rsyslogd")
        yield process
    finally:
        process.kill()
        process.wait()


def _listens() -> bool:
    try:
        socket.create_connection(("127.0.0.1", PORT)).close()
    except OSError:
        return False
    return True


def phase(way: Way, pid: int, traffic: Traffic, neighbour: Neighbour, pulse: Pulse) -> Any:
    patiently(traffic.has_no_backlog, 2, "no backlog")
    time.sleep(SETTLE_S)
    found = measure(way.name, SECONDS, {"rsyslogd": pid}, role_of, neighbour)
    begin_s, end_s = found["begin"], found["end"]
    time.sleep(SETTLE_S)
    found["queries"] = {}
    for query in RATES:
        ms = traffic.waits_s(query, begin_s, end_s) * 1e3
        found["queries"][query] = [round(float(one), 3) for one in ms]
        say(f"{way.name}: {len(ms)} of {query}, mean {ms.mean():.1f} ms, at most {ms.max():.1f}")
    found["stopped_s"] = pulse.longest_s(begin_s, end_s)
    say(f"nothing ran for {found['stopped_s'] * 1e3:.0f} ms at most, idle {found['idle']:.0%}")
    return found


def run(pid: int, ways: Sequence[Way]) -> None:
    traffic, pulse, neighbour = Traffic(), Pulse(), Neighbour(0.0003)
    try:
        time.sleep(2 * SETTLE_S)
        say(sorted(comm for _, comm in threads(pid)))
        for way in (NOTHING, *ways, *reversed(ways), NOTHING):
            load = None
            if way is not NOTHING:
                load = Load((*HOW, *way.arguments), sum(WORKERS.values()), {}, (), first=False)
            found = phase(way, pid, traffic, neighbour, pulse)
            show({"scenario": "rsyslog", **found})
            if load is not None:
                load.end()
    finally:
        for one in (traffic, pulse, neighbour):
            one.end()


def main() -> None:
    go_first()
    chosen = re.compile(sys.argv[1] if len(sys.argv) > 1 else ".*")
    with running() as process:
        run(process.pid, [way for way in WAYS if chosen.fullmatch(way.name)])


if __name__ == "__main__":
    main()
