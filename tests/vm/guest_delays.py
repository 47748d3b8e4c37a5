"""Delay accounting, on kernels with several versions of taskstats: memory-bound by the thread."""

import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plans import plan
from sched_ctl.drivers.threads import thread_of
from sched_ctl.kernel import cgroup, taskstats
from sched_ctl.metrics.verdicts import Verdict, assess
from sched_ctl.metrics.window import Window
from sched_ctl.model.topology import PhysicalOperator, Snapshot, Topology
from sched_ctl.probes.every import Probes

KERNELS = ("6.16", "7.3")
CPUS = 1
TIMEOUT_S = 180

MOUNT = Path("/sys/fs/cgroup")
GROUP = MOUNT / "small.service"
LIMIT_BYTES = 16 << 20
READ_BYTES = 64 << 20


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
                end = time.monotonic() + 120
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
    return Topology(
        "e", (PhysicalOperator("q", "read", ("read",), threads=(thread,)),), *parts(made)
    )


def parts(made: Topology) -> tuple[object, ...]:
    return made.edges, made.logical, made.logical_edges


def check_who_reads_pages_back_is_memory_bound() -> None:
    taskstats.SWITCH.write_text("1")
    cgroup.write(MOUNT / "cgroup.subtree_control", "+memory")
    GROUP.mkdir()
    cgroup.write(GROUP / "memory.max", str(LIMIT_BYTES))
    probes = Probes()
    try:
        with reader(GROUP) as (pid, tid):
            topology = topology_of(pid, tid)
            seen = []
            end_s = time.monotonic() + 60
            while time.monotonic() < end_s:
                now_s = time.monotonic()
                seen.append(Snapshot(topology, now_s, probes.read(topology, now_s)))
                far = [
                    s
                    for s in seen
                    if now_s - s.time_s >= 2 and s.columns.get("io_delay", [0])[0] > 0
                ]
                found = assess(Window(seen[-1], far[-1])) if far else None
                if found is not None and found.verdict[0] == Verdict.MEMORY_BOUND:
                    break
                time.sleep(0.2)
            with taskstats.TaskStats() as stats:
                delays = stats.of(tid)
            schedstat = Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()
    finally:
        probes.close()
        GROUP.rmdir()
    print(found, delays)
    assert found is not None and Verdict(found.verdict[0]) is Verdict.MEMORY_BOUND
    assert delays is not None and delays.pid == pid  # from version 12's part of the structure
    assert delays.version > 15 and delays.irq_s == delays.irq_s  # version 14's part was there
    assert abs(delays.cpu_s - int(schedstat[1]) * 1e-9) < 0.5


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
