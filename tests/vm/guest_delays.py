"""What kernels tell of threads, by several versions of taskstats, and of sockets by tables."""

import functools
import mmap
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from plans import plan
from sched_ctl.drivers.sources.graphite import Inbox
from sched_ctl.drivers.threads import thread_of
from sched_ctl.kernel import cgroup, taskstats
from sched_ctl.metrics.verdicts import Assessment, assess
from sched_ctl.metrics.window import Window
from sched_ctl.model.topology import Snapshot, Topology
from sched_ctl.probes.every import Probes
from support import wait_until

KERNELS = ("6.16", "7.3")
CPUS = 1
ICOUNT = True
ICOUNT_SHIFT = 2
TIMEOUT_S = 180

MOUNT = Path("/sys/fs/cgroup")
GROUP = MOUNT / "small.service"
LIMIT_BYTES = 16 << 20
READ_BYTES = 64 << 20
LIMIT_S = 2000.0  # of the guest's clock, which leaps while files are waited for


def large_file() -> Path:
    """One that lies on the disk and is twice as large as what is read of it fits into memory."""
    folder = Path("/usr/lib/x86_64-linux-gnu")
    return max((p for p in folder.glob("lib*.so*") if p.is_file()), key=lambda p: p.stat().st_size)


@contextmanager
def reader(group: Path) -> Iterator[tuple[int, int]]:
    """Process and thread that read a file round and round, of which the group keeps but a part."""
    pipe, other = os.pipe()
    pid = os.fork()
    if pid == 0:
        cgroup.write(group / "cgroup.procs", str(os.getpid()))

        def read() -> None:
            with open(large_file(), "rb") as file:
                size = min(READ_BYTES, os.fstat(file.fileno()).st_size)
                pages = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
                os.write(other, threading.get_native_id().to_bytes(4, "little"))
                end = time.monotonic() + 2 * LIMIT_S
                while time.monotonic() < end:
                    sum(pages[i] for i in range(0, size, mmap.PAGESIZE))

        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        os._exit(0)
    try:
        yield pid, int.from_bytes(os.read(pipe, 4), "little")
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def topology_of(pid: int, tid: int) -> Topology:
    thread = thread_of(pid, tid)
    assert thread is not None
    made = plan({"q": ["read"]})
    return replace(made, operators=(replace(made.operators[0], threads=(thread,)),))


def check_the_kernel_counts_what_a_thread_lost_to_memory() -> None:
    taskstats.SWITCH.write_text("1")
    cgroup.write(MOUNT / "cgroup.subtree_control", "+memory")
    GROUP.mkdir()
    cgroup.write(GROUP / "memory.max", str(LIMIT_BYTES))
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")  # else others pay for pages that are there
    probes = Probes()
    try:
        with reader(GROUP) as (pid, tid):
            topology = topology_of(pid, tid)
            seen: list[Snapshot] = []

            def lost() -> Assessment | None:
                """Once some time was lost in a window that has delays at both ends."""
                now_s = time.monotonic()
                seen.append(Snapshot(topology, now_s, probes.read(topology, now_s)))
                known = [s for s in seen if not np.isnan(s.columns["io_delay"]).any()]
                found = assess(Window(seen[-1], known[0])) if known else None
                told = found is not None and (found.memory > 0).all() and (found.io > 0).all()
                return found if told else None

            found = wait_until(lost, LIMIT_S)
            with taskstats.TaskStats() as stats:
                delays = stats.of(tid)
            schedstat = Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()
    finally:
        probes.close()
        GROUP.rmdir()
        cgroup.write(MOUNT / "cgroup.subtree_control", "-memory")
    print(found, delays)
    assert found is not None
    assert delays is not None and delays.memory_s > 0 and delays.io_s > 0
    assert delays.pid == pid  # from version 12's part of the structure
    assert delays.version > 15 and delays.irq_s == delays.irq_s  # version 14's part was there
    assert abs(delays.cpu_s - int(schedstat[1]) * 1e-9) < 2.0


def check_before_the_switch_nothing_is_known() -> None:
    taskstats.SWITCH.write_text("0")
    assert taskstats.accounting() is False
    assert taskstats.obstacle() is None
    me = topology_of(os.getpid(), os.getpid())
    probes = Probes()
    try:
        assert "io_delay" not in probes.read(me, time.monotonic())
    finally:
        probes.close()


def check_senders_of_metrics_are_known_without_tcp_diag() -> None:
    """It is a module of Debian's kernels, which a guest has not: the tables tell whose they are."""
    inbox = Inbox(os.geteuid(), port=0)
    try:
        for name, host in (("plain", "127.0.0.1"), ("mapped", "::ffff:127.0.0.1")):
            with socket.create_connection((host, inbox.port), 5) as connection:
                connection.sendall(f"{name} 1 1\n".encode())
                wait_until(functools.partial(lambda sent: sent in inbox.series(), name))
    finally:
        inbox.close()
