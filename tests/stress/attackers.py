"""Lets another user's account do its worst beside an engine of root's, and counts root's passes.

    ./dev run python -m stress.attackers [--seconds 10] [--user UID] [ATTACK ...]

A controller orders a lab engine of root's by nice, ten times a second. Beside each attack its
passes are counted, and how long a new engine of root's waits until it is ordered. All run in
namespaces of their own, so that no process and no file of this machine is concerned. Anybody can
take CPU time, so attacks are held against as many processes that only do that: it ends with 1 if
fewer than a fifth of the passes beside those were run, or a thread was left changed.
"""

import argparse
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from stress.soak import OPTIONS, WORKLOADS, end, nices

from sched_ctl.lab import engine as lab
from sched_ctl.lab.file import FOLDER, PREFIX, LabFile
from sched_ctl.service.socket import request

__all__ = ["ATTACKS", "attacked", "controlled"]

ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net", "--ipc")
USER = 65534
PERIOD_S = 0.1
ENOUGH = 0.2  # of the passes beside processes that only take CPU time
HOGS = "hogs"
ORDERED_S = 120.0  # that the controller may take to begin, or a new engine to be ordered

# Each is a program of its own, which says "ready" when it is at it, and goes on until it is killed.
ATTACKS = {
    # What all are held against: as many processes as any of them has at work.
    HOGS: """
for n in range(12):
    if os.fork() == 0:
        while True:
            pass
""",
    # A lock that everybody may take, by a child whose parent is gone, and a mark like ours.
    "lock": """
import fcntl, os
fd = os.open("/proc/self/ns/time", os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
mark = os.memfd_create("sched-ctl controller")
os.write(mark, str(os.getpid()).encode())
""",
    # Names like those of engines' files.
    "files": """
for n in range(200_000):
    with contextlib.suppress(PermissionError):
        os.close(os.open(f"/dev/shm/labspe.{n}", os.O_CREAT | os.O_WRONLY, 0o600))
""",
    # Processes and threads that come and go as fast as they can.
    "births": """
import threading
def churn():
    while True:
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
threading.Thread(target=churn, daemon=True).start()
""",
    # A few thousand that only are there.
    "crowd": """
import signal
for n in range(3000):
    if os.fork() == 0:
        signal.pause()
""",
    # JobManagers by their command line. What they say is right, and each second time as long as is
    # allowed, of nothing but values.
    "answers": """
import http.server, itertools, threading
if len(sys.argv) == 1:
    for n in range(12):
        if os.fork() == 0:
            main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
            os.execv(sys.executable, [sys.executable, "-c", os.environ["SELF"], main])
else:
    long = b"[" + b"{}," * (5 * 1024 * 1024) + b"{}]"
    said = {"/config": b'{"flink-version": "2.0"}', "/jobs/overview": b'{"jobs": []}',
            "/taskmanagers": b'{"taskmanagers": []}', "/jobmanager/config": b"[]"}
    asked = itertools.count()
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        def do_GET(self):
            body = said.get(self.path, b"{}")
            if self.path == "/jobs/overview" and next(asked) % 2:
                body = long
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        def log_message(self, *_):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
""",
    # Command lines of two megabytes.
    "words": """
if len(sys.argv) == 1:
    for n in range(150):
        if os.fork() == 0:
            words = ["org.apache.flink." + "x" * 40] * 28_000
            code = "import time; time.sleep(3600)"
            os.execve(sys.executable, [sys.executable, "-S", "-c", code, *words], {})
""",
    # A lab engine's file with as many operators as may be, which says each moment that all changed.
    "rows": """
data = bytearray(open(os.environ["FORGED"], "rb").read())
pid_at, start_at, generation_at, beat_at, tids, starts = map(
    lambda text: [int(n) for n in text.split(":")], os.environ["PLACES"].split())
start = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
for (at, step, count), value in ((tids, os.getpid()), (starts, start)):
    for n in range(count):
        struct.pack_into("=Q", data, at + n * step, value)
struct.pack_into("=Q", data, pid_at[0], os.getpid())
struct.pack_into("=Q", data, start_at[0], start)
path = f"/dev/shm/labspe.{os.getpid()}"
fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
os.write(fd, data)
import threading
def beat():
    generation = 10
    while True:
        generation += 1
        os.pwrite(fd, struct.pack("=Q", time.monotonic_ns()), beat_at[0])
        os.pwrite(fd, struct.pack("=Q", generation), generation_at[0])
        time.sleep(0.01)
threading.Thread(target=beat, daemon=True).start()
""",
}
FIRST = "import contextlib, os, struct, sys, time\n"
LAST = "\nprint('ready', flush=True)\nwhile True:\n    time.sleep(3600)\n"


def forged(engine: lab.Engine, folder: Path, rows: int = 1 << 15) -> dict[str, str]:
    """What `rows` needs to know: a file of so many operators, and where to put numbers."""
    data = engine.shared_memory.read_bytes()
    file = LabFile(engine.shared_memory)
    head, kinds = bytearray(data[: file._dtypes["header"].itemsize]), file._dtypes
    body = bytearray(data[file["layout_offset"] :][: file["layout_bytes"]])
    at = len(head) + len(body)
    fields = {"layout_offset": len(head)}
    places = {}

    def add(name: str, table: Any) -> None:
        nonlocal at
        pad = -at % 64
        body.extend(bytes(pad) + table.tobytes())
        fields[f"{name}_offset"], at = at + pad, at + pad + table.nbytes

    add("queries", file.queries[:1])
    operators = np.zeros(rows, kinds["operators"])
    operators["name"] = [f"o{number}".encode() for number in range(rows)]
    add("operators", operators)
    edges = np.zeros(rows, kinds["edges"])
    edges["source"], edges["target"], edges["share"] = 2**64 - 1, np.arange(rows), 1.0
    add("edges", edges)
    for name in ("activity", "produced", "consumed"):
        add(name, np.zeros(rows, kinds[name]))
    add("threads", np.zeros(0, kinds["threads"]))
    add("egresses", np.zeros(0, kinds["egresses"]))
    counts = {"queries": 1, "operators": rows, "edges": rows, "threads": 0, "egresses": 0}
    fields |= {f"{name}_count": count for name, count in counts.items()} | {"bytes": at}
    for field, value in fields.items():
        struct.pack_into("=Q", head, file.offset(field), value)
    step = kinds["operators"].itemsize
    offsets: dict[str, Any] = dict(kinds["operators"].fields or {})
    for field in ("tid", "start_time"):
        places[field] = f"{fields['operators_offset'] + offsets[field][1]}:{step}:{rows}"
    header = (str(file.offset(f)) for f in ("pid", "start_time", "generation", "heartbeat_ns"))
    file.close()
    path = folder / "forged"
    path.write_bytes(head + body)
    path.chmod(0o644)
    return {"FORGED": str(path), "PLACES": " ".join((*header, *places.values()))}


@contextmanager
def attacked(name: str, user: int, known: dict[str, str]) -> Iterator[None]:
    """Another user's attack is under way in the body."""
    program = FIRST + ATTACKS[name] + LAST
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        user=user,
        group=user,
        extra_groups=(),
        start_new_session=True,
        env={**os.environ, **known, "SELF": program},
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            sys.exit(f"{name} did not begin")
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        for path in FOLDER.glob(f"{PREFIX}*"):
            if path.lstat().st_uid == user:
                path.unlink()


@contextmanager
def controlled(folder: Path) -> Iterator[tuple[lab.Engine, Callable[[], dict[str, Any]]]]:
    """Root's engine under a controller that looks for all; and what its status is."""
    log = folder / "log"
    with ExitStack() as stack:
        engine = stack.enter_context(lab.running(WORKLOADS / "etl.graph", OPTIONS))
        load = subprocess.Popen(
            [
                *(sys.executable, "-c", "from sched_ctl.cli import main; main()", "load"),
                *("--run-dir", str(folder), "--backend", "nice", "--policy", "random"),
                *("--period", str(PERIOD_S), "--calm-period", "0", "--discover", "1"),
            ],
            stdin=subprocess.DEVNULL,
            stderr=stack.enter_context(log.open("w")),
        )
        stack.callback(end, load)

        def status() -> dict[str, Any]:
            found: dict[str, Any] = request(folder, "status", patience_s=ORDERED_S)
            return found

        until(lambda: engine.name in status()["policies"][0]["engines"], ORDERED_S)
        yield engine, status


def until(condition: Callable[[], object], deadline_s: float) -> float:
    """Seconds until it was so; ends the program if it was not in time."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > deadline_s:
            sys.exit(f"not within {deadline_s:g} s")
        time.sleep(0.05)
    return time.monotonic() - began_s


def passes(status: Callable[[], dict[str, Any]], seconds: float) -> float:
    """Passes a second."""
    began_s, before = time.monotonic(), status()["policies"][0]["passes"]
    time.sleep(seconds)
    now = status()["policies"][0]["passes"]
    return float(now - before) / (time.monotonic() - began_s)


def arrival_s(status: Callable[[], dict[str, Any]]) -> float:
    """How long a new engine of root's waits until it is ordered."""
    with lab.running(WORKLOADS / "etl.graph", OPTIONS) as engine:
        return until(lambda: engine.name in status()["policies"][0]["engines"], ORDERED_S)


def tell(name: str, rate: float, waited_s: float) -> None:
    print(f"{name:10} {rate:5.1f} passes/s, a new engine waits {waited_s:.1f} s", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("attacks", nargs="*", metavar="ATTACK", help=", ".join(ATTACKS))
    arguments.add_argument("--seconds", type=float, default=10.0, help="for each of them")
    arguments.add_argument("--user", type=int, default=USER, help="uid of the attacker")
    given = arguments.parse_args()
    if os.getpid() > 1:
        os.execvp("unshare", [*ALONE, sys.executable, "-m", "stress.attackers", *sys.argv[1:]])
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "none", "/dev/shm"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    os.environ["SCHED_CTL_MACHINE_LOCK"] = "no"  # others' controllers are not ours to stop
    wrong = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)  # the attacker reads what is prepared for it
        run = folder / "run"
        run.mkdir(mode=0o700)
        with controlled(run) as (engine, status):
            known = forged(engine, folder)
            tell("nothing", passes(status, given.seconds), arrival_s(status))
            least = 0.0
            for name in dict.fromkeys((HOGS, *(given.attacks or ATTACKS))):
                with attacked(name, given.user, known):
                    rate, waited = passes(status, given.seconds), arrival_s(status)
                tell(name, rate, waited)
                least = least or ENOUGH * rate
                if rate < least or not rate:
                    wrong.append(name)
        if len({nice for nice, _ in nices(engine.pid).values()}) > 1:
            wrong.append("threads were left changed")
        print((run / "log").read_text() if wrong else "", end="")
    print("wrong: " + ", ".join(wrong) if wrong else "all well")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
