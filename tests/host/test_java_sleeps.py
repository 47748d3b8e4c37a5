"""Where threads of a real JVM sleep, as the kernel tells it."""

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from sched_ctl.kernel import procfs
from sched_ctl.model.topology import Thread
from sched_ctl.probes.sleeps import ENOUGH, Place, SleepPlaces
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("java")]

JAVA = """
import java.net.*;
import java.nio.channels.*;
import java.util.concurrent.*;
import java.util.concurrent.locks.*;
public class Sleepers {
    interface Body { void run() throws Exception; }
    static void start(String name, Body body) {
        Thread thread = new Thread(() -> {
            try { body.run(); } catch (Exception e) { throw new RuntimeException(e); }
        }, name);
        thread.setDaemon(true);
        thread.start();
    }
    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]);
        Object lock = new Object();
        Socket plain = new Socket("127.0.0.1", port), timed = new Socket("127.0.0.1", port);
        timed.setSoTimeout(100_000);
        Selector selector = Selector.open();
        start("sleep", () -> Thread.sleep(100_000));
        start("park", () -> LockSupport.park());
        start("queue", () -> new LinkedBlockingQueue<Integer>().take());
        start("polls", () -> new LinkedBlockingQueue<Integer>().poll(99, TimeUnit.SECONDS));
        start("holds", () -> { synchronized (lock) { Thread.sleep(100_000); } });
        Thread.sleep(200);
        start("enters", () -> { synchronized (lock) { } });
        start("reads", () -> plain.getInputStream().read());
        start("reads-timed", () -> timed.getInputStream().read());
        start("selects", () -> selector.select());
        System.out.println("ready");
        System.in.read();
    }
}
"""


def test_java_threads_tell_locks_from_sockets_but_not_from_sleeps(tmp_path: Path) -> None:
    (tmp_path / "Sleepers.java").write_text(JAVA)
    subprocess.run(["javac", "-d", ".", "Sleepers.java"], cwd=tmp_path, check=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        expected = {
            "sleep": Place("timed lock"),
            "park": Place("lock"),
            "queue": Place("lock"),
            "polls": Place("timed lock"),
            "reads": Place("socket", f"127.0.0.1:{port}"),
            "reads-timed": Place("socket", f"127.0.0.1:{port}"),
            "selects": Place("events"),
        }
        command = [str(shutil.which("java")), "-Xint", "-Xmx32m", "Sleepers", str(port)]
        with subprocess.Popen(
            command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child:
            probe = SleepPlaces(every_s=0.02)
            try:
                assert child.stdout is not None and child.stdout.readline()

                def named() -> dict[str, Thread]:
                    stats = [procfs.stat(child.pid, tid) for tid in procfs.tids(child.pid)]
                    return {s.name: Thread(child.pid, s.tid, 1) for s in stats if s is not None}

                # A new thread of a JVM names itself, some time after its start() has returned.
                names = (*expected, "enters")
                wait_until(lambda: named().keys() >= set(names))
                mine = {name: thread for name, thread in named().items() if name in names}
                probe.follow(tuple(mine.values()), 60.0)

                def told() -> dict[str, Place]:
                    found = {name: probe.lately((thread,)) for name, thread in mine.items()}
                    return {n: one.shares[0][0] for n, one in found.items() if one is not None}

                wait_until(lambda: probe.looks >= 2 * ENOUGH and len(told()) == len(mine))
                found = told()
                # In older Java the first in a monitor's queue looks again now and then.
                assert found.pop("enters").what in ("lock", "timed lock")
                assert found == expected
            finally:
                probe.close()
                child.kill()
