"""What another user's JobManager says of a real cluster's TaskManagers moves none of their threads.

The forger repeats the cluster's own answers, word by word, from a process of his that looks like a
JobManager; and names a process of his as the TaskManager, whose answers to questions for its
threads are those of the real one.
"""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from labs import sched_ctl

from engines.cluster import Cluster
from engines.compete import states
from sched_ctl.kernel import hotspot, procfs
from sched_ctl.kernel.netns import entered
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.needs("root", "java")]

OTHER = 20001  # a uid that nobody here has
PORT, DATA_PORT = 8099, 8098
MAINS = (
    "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
    "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
)
OPTIONS = (
    *("--policy", "random", "--backend", "nice", "--period", "0.5"),
    *("--backend-option", "nice.best=5", "--backend-option", "nice.worst=10"),
)
# Repeats what 8081 answers; with a port at the end it says that the TaskManager's is that one.
JOB_MANAGER = """
import http.server, json, sys, urllib.request
class Forged(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        try:
            said = urllib.request.urlopen("http://127.0.0.1:8081" + self.path, timeout=10).read()
        except OSError:
            said = b"{}"
        if self.path == "/taskmanagers" and int(sys.argv[3]):
            told = json.loads(said)
            for one in told["taskmanagers"]:
                one["dataPort"] = int(sys.argv[3])
            said = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Forged)
print("ready", flush=True)
server.serve_forever()
"""
# Listens where the forged JobManager says, looks like a Java machine by what it has mapped, and
# answers to jstack with what it is handed.
TASK_MANAGER = """
import mmap, os, socket, sys, tempfile
dump = sys.stdin.buffer.read()
with tempfile.TemporaryDirectory() as folder, open(folder + "/libjvm.so", "wb+") as library:
    library.truncate(4096)
    mapped = mmap.mmap(library.fileno(), 4096)
data = socket.create_server(("127.0.0.1", int(sys.argv[2])))
path = f"/tmp/.java_pid{os.getpid()}"
attach = socket.socket(socket.AF_UNIX)
attach.bind(path)
attach.listen()
print("ready", flush=True)
while True:
    asked, _ = attach.accept()
    with asked:
        asked.recv(4096)
        os.write(1, b"asked\\n")
        asked.sendall(b"0\\n" + dump)
"""


@contextmanager
def forger(
    program: str, *arguments: str, uid: int, said: bytes = b""
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of this user, in the network namespace that the calling thread is in."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=uid,
        group=uid,
        extra_groups=(),
    )
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(said)
        process.stdin.close()
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        Path(f"/tmp/.java_pid{process.pid}").unlink(missing_ok=True)


@pytest.fixture
def working(cluster: Cluster) -> Cluster:
    cluster.submit(name="f", prefix="f-", rate=50)
    return cluster


def test_the_same_words_of_the_clusters_own_user_count(working: Cluster, tmp_path: Path) -> None:
    """That the forgery is a good one: told by root's process it orders root's threads."""
    [real] = [process.pid for process in working.task_managers]
    before = states(real)
    with entered(working.pid), forger(JOB_MANAGER, MAINS[0], str(PORT), "0", uid=0) as told:
        engine = f"flink:127.0.0.1:{PORT}@{told.pid}"
        with controlled(tmp_path / "run", tmp_path / "load.log", engine):
            wait_until(lambda: states(real) != before and lowered(real) >= 5, 60, "it is ordered")


def is_readable(process: "subprocess.Popen[bytes]") -> bool:
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0)[0])


def lowered(pid: int) -> int:
    return sum(nice >= 5 for nice, *_ in states(pid).values())


@pytest.mark.parametrize("invented", [False, True], ids=["his word", "his TaskManager"])
def test_a_forged_job_manager_moves_nobody(
    working: Cluster, tmp_path: Path, invented: bool
) -> None:
    [real] = [process.pid for process in working.task_managers]
    dump = "".join(
        f'"{thread.name}" #1 prio=5 os_prio=0 tid=0x1 nid={thread.tid:#x} runnable\n\n'
        for thread in hotspot.threads(real)
    ).encode()
    assert [tid for _, tid in hotspot.parse_dump(dump.decode())]
    before = states(real)
    with (
        entered(working.pid),
        forger(TASK_MANAGER, MAINS[1], str(DATA_PORT), uid=OTHER, said=dump) as answering,
        forger(
            JOB_MANAGER, MAINS[0], str(PORT), str(DATA_PORT if invented else 0), uid=OTHER
        ) as telling,
    ):
        assert procfs.owner(telling.pid) == procfs.owner(answering.pid) == OTHER
        run_dir = tmp_path / "run"
        engine = f"flink:127.0.0.1:{PORT}@{telling.pid}"
        with controlled(run_dir, tmp_path / "load.log", engine):

            def told() -> dict[str, Any]:
                status = msgspec.json.decode(
                    sched_ctl("status", "--json", "--run-dir", str(run_dir))
                )
                [engine], [rule] = status["engines"], status["policies"]
                known: dict[str, Any] = engine if rule["passes"] > 5 and engine["operators"] else {}
                return known

            said = wait_until(told, 60, "what the forger says is read")
            if invented:  # the question for its threads was put, and the answer was a lie
                wait_until(lambda: is_readable(answering), 30, "asked")
            time.sleep(2)  # four more passes
            said = told()
            assert said["user"] == str(OTHER), said
            assert said["threads"] == 0, said
            now = states(real)
            assert {key: now[key] for key in before.keys() & now.keys()} == {
                key: before[key] for key in before.keys() & now.keys()
            }


@contextmanager
def controlled(run_dir: Path, log: Path, engine: str) -> Iterator[None]:
    with log.open("w") as stream:
        load = subprocess.Popen(
            [
                *(str(Path(sys.executable).with_name("sched-ctl")), "load", "--engine", engine),
                *("--run-dir", str(run_dir), "--config", os.devnull, *OPTIONS),
            ],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until((run_dir / "control.sock").exists, 60, "the controller is up")
        yield
    finally:
        load.terminate()
        load.wait(60)
        print(log.read_text())
