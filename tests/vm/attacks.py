"""An engine that wants all CPUs, a neighbour that does as well, and what a machine may do to them.

For checks in guests of several sizes, in the mode that the kernel has: full on 6.18, shared fairly;
partial on 7.3, where operators go first and their neighbours have what the deadline server leaves.
"""

import contextlib
import ctypes
import functools
import mmap
import os
import random
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from vm.inside import EXACT, look_until
from vm.machine import (
    above_all,
    cpu_s,
    everybody_runs,
    journal,
    schedule,
    spinning,
    standing_still,
    thread_of,
    wait_for,
)

from sched_ctl.backends.scx.backend import Scx
from sched_ctl.backends.scx.monitor import Ejected
from sched_ctl.backends.scx.probe import probe
from sched_ctl.kernel import procfs, sched, schedext
from sched_ctl.kernel.scheduler import OBJECT, LoadError, Scheduler
from sched_ctl.model.options import ScxOptions
from sched_ctl.model.topology import Thread
from support import wait_until

__all__ = [
    "another_scheduler",
    "changing_affinity",
    "changing_cpus",
    "fork_bomb",
    "little_memory",
    "storm",
    "threads_born",
    "threads_without_end",
    "tiny_limit",
]

MOUNT = Path("/sys/fs/cgroup")
CPUS = Path("/sys/devices/system/cpu")
LOOK_S = 1.5  # more than operators are to wait
SAMPLE_S = 0.05
LATE_S = 0.25  # samples are apart, and a turn has to end before another one begins
OTHERS_WAIT_S = 5.0  # at most, who is no operator: docs/backends.md
COMPLAINTS = re.compile(r"BUG|WARNING|Oops|lockup|stall|hung")


# -- an engine and its neighbour ------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """Parts of the CPU time of both, and the longest time for which one of them had none, s.

    late_s: how much of that may be of who looked: in partial mode operators run as the deadline
    server, which goes before real-time threads.
    """

    operators: float
    neighbours: float
    operators_stood_s: float
    neighbours_stood_s: float
    late_s: float


@dataclass
class Scene:
    """Operators in strict order and their neighbours, each in a cgroup of its own."""

    backend: Scx
    engine: Path
    operators: list[Thread]
    neighbours: list[Thread]
    first: list[Thread] = field(default_factory=list)  # more urgent, but nobody asks how they do
    stopped: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # until `apply`

    def apply(self) -> None:
        members = [*self.first, *self.operators]
        applied = self.backend.apply(schedule(members, [float(-i) for i in range(len(members))]))
        assert not applied.problems, applied.problems
        assert schedext.attached() == "sched_ctl", schedext.attached()
        self.stopped.close()

    def look(self, attack: Callable[[], object]) -> Look:
        everybody = [*self.operators, *self.neighbours]
        began = now = time.monotonic()
        before = [cpu_s(thread) for thread in everybody]
        used, since = list(before), [began] * len(everybody)
        stood = [0.0] * len(everybody)
        late_s = 0.0
        while now - began < LOOK_S:
            attack()
            time.sleep(SAMPLE_S)
            before_s, now = now, time.monotonic()
            late_s = max(late_s, now - before_s - SAMPLE_S)
            for i, thread in enumerate(everybody):
                stood[i] = max(stood[i], now - since[i])
                if (seconds := cpu_s(thread)) > used[i]:
                    used[i], since[i] = seconds, now
        self.apply()
        got = [b - a for a, b in zip(before, used, strict=True)]
        n, total = len(self.operators), max(sum(got), 1e-9)
        parts = round(sum(got[:n]) / total, 3), round(sum(got[n:]) / total, 3)
        return Look(*parts, round(max(stood[:n]), 3), round(max(stood[n:]), 3), round(late_s, 3))

    def holds(self, attack: Callable[[], object] = lambda: None, least: float = 0.2) -> None:
        """Operators get on, neighbours keep their part, and nobody stands still beyond the bound.

        least: the operators' part.
        """
        # Half is the neighbours' by weight; in partial mode the server may leave a tenth, for them,
        # whoever looks, and the kernel's own threads.
        theirs = 0.35 if self.backend.mode == "full" else 0.02
        # As if all of them were on one CPU.
        operators = len(self.operators) + len(self.first)
        bound_s = self.backend.options.starvation / 1e3 + operators * 0.05 + LATE_S

        def good(look: Look) -> bool:
            return (
                look.operators > least
                and look.neighbours > theirs
                and look.operators_stood_s < bound_s + look.late_s
                and look.neighbours_stood_s < OTHERS_WAIT_S
            )

        look_until(lambda: self.look(attack), good)


@contextlib.contextmanager
def scene(**limits: str) -> Iterator[Scene]:
    """Everything but `apply`: forked children keep a scheduler attached, so they come before.

    limits: files of the engine's cgroup without their dot, and what is written to them. At the end
    all has to be as it was, and the kernel not to have complained.
    """
    cpus = os.cpu_count() or 1
    heard, server = len(complaints()), schedext.server_share()
    if schedext.server_files():
        options = ScxOptions(mode="partial", precedence="engine", gap=30.0, ttl=20.0)
    else:
        options = ScxOptions(mode="full", gap=30.0, ttl=20.0)
    with contextlib.ExitStack() as stack:
        engine, neighbour = stack.enter_context(cgroups("engine", "neighbour"))
        operators = stack.enter_context(spinning(cpus + 1))
        neighbours = stack.enter_context(spinning(cpus))
        for folder, threads in ((engine, operators), (neighbour, neighbours)):
            for thread in threads:
                (folder / "cgroup.procs").write_text(str(thread.pid))
        backend = Scx(journal(), options)
        stack.callback(backend.restore)
        for name, value in limits.items():  # until the end: else a fork bomb has none while we go
            (engine / name.replace("_", ".")).write_text(value)
        on = Scene(backend, engine, operators, neighbours)
        on.stopped.enter_context(standing_still(t.pid for t in (*operators, *neighbours)))
        with on.stopped:
            yield on
        print(backend.mode, backend.statistics())
        assert backend.restore() == ()
        wait_for("disabled")
        everybody_runs([*operators, *neighbours], 0.01)
        assert policies(engine) == {sched.OTHER}
        assert not journal().state, journal().state
        assert schedext.server_share() == server
    said = complaints()[heard:]
    assert not said, said


@contextlib.contextmanager
def cgroups(*names: str) -> Iterator[list[Path]]:
    """Whoever is in one of them at the end is killed."""
    control = MOUNT / "cgroup.subtree_control"
    control.write_text("+cpu +memory +pids")
    folders = [MOUNT / name for name in names]
    for folder in folders:
        folder.mkdir()
    try:
        yield folders
    finally:
        for folder in folders:
            (folder / "cgroup.kill").write_text("1")
            wait_until(functools.partial(removed, folder), what=f"{folder} is empty")
        control.write_text("-cpu -memory -pids")


def removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


@contextlib.contextmanager
def limited(folder: Path, limits: dict[str, str]) -> Iterator[None]:
    files = [folder / name.replace("_", ".") for name in limits]
    before = [file.read_text() for file in files]
    try:
        for file, value in zip(files, limits.values(), strict=True):
            file.write_text(value)
        yield
    finally:
        for file, value in zip(files, before, strict=True):
            file.write_text(value)


def policies(folder: Path) -> set[int]:
    """Of all threads in a cgroup."""
    found = set()
    for tid in (folder / "cgroup.threads").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            found.add(os.sched_getscheduler(int(tid)))
    return found


def complaints() -> list[str]:
    """What the kernel wrote since boot that tells of a fault. Documentation/ABI/testing/dev-kmsg"""
    found = []
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while record := os.read(log, 8192).decode(errors="replace"):
            if COMPLAINTS.search(record):
                found.append(record.strip())
    os.close(log)
    return found


@contextlib.contextmanager
def child(body: Callable[[], object], folder: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """A process in this cgroup, and what lets it begin."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)
        body()
        os._exit(1)
    os.close(reader)
    (folder / "cgroup.procs").write_text(str(pid))
    try:
        yield pid, lambda: os.write(writer, b"x")
    finally:
        os.close(writer)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


# -- attacks --------------------------------------------------------------------------------------


def bomb() -> None:
    """Each process starts others for as long as it lives, which are 20 ms of CPU time."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody has to wait for them
    first = os.getpid()
    while os.getpid() == first or time.process_time() < 0.02:
        with contextlib.suppress(OSError):
            os.fork()
    os._exit(0)


def fork_bomb() -> None:
    """By an operator: what it starts is nobody's operator, but of its policy, and given back."""
    with scene(pids_max="60") as on, child(bomb, on.engine) as (pid, begin):
        on.first = [thread_of(pid)]
        on.apply()
        born = threads_born()
        begin()
        wait_until(lambda: threads_born() > born + 20, what="it goes off")
        # In full mode three or five operators share their half with all these.
        on.holds(least=0.02)
        print(threads_born() - born, "born")


def tiny_limit() -> None:
    """A hundredth of a CPU for the engine: its operators go on, its other threads do as well."""
    with scene() as on, spinning(4) as helpers:
        for helper in helpers:
            (on.engine / "cgroup.procs").write_text(str(helper.pid))
        with limited(on.engine, {"cpu_max": "1000 100000"}):
            with standing_still(helper.pid for helper in helpers):
                on.apply()
            on.holds()
            everybody_runs(helpers, 0.001)
        everybody_runs(helpers, 0.01)


def little_memory() -> None:
    """The operator that goes first reads a file of which its cgroup can keep but a part."""
    size = 24 << 20
    path = max(Path("/usr/lib/x86_64-linux-gnu").glob("lib*.so*"), key=lambda p: p.stat().st_size)
    assert path.stat().st_size > 2 * size, path

    def read() -> None:
        piece = mmap.mmap(-1, 1 << 16)
        file = os.open(path, os.O_RDONLY)
        while True:
            if os.readv(file, [piece]) == 0:
                os.lseek(file, 0, os.SEEK_SET)

    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")  # else others pay for pages that are there
    with scene(memory_max=str(size)) as on, child(read, on.engine) as (pid, begin):
        on.first = [thread_of(pid)]
        on.apply()
        begin()
        wait_until(lambda: reclaims(on.engine)["max"] > 10, what="memory is wanted")
        before = cpu_s(on.first[0])
        on.holds(least=0.1)
        assert cpu_s(on.first[0]) > before
        events = reclaims(on.engine)
        print(events)
        assert not events["oom"], events


def reclaims(folder: Path) -> dict[str, int]:
    """How often memory was short, and for what. cgroup v2, memory.events"""
    lines = (folder / "memory.events").read_text().splitlines()
    return {name: int(count) for name, count in (line.split() for line in lines)}


class SigEvent(ctypes.Structure):
    """struct sigevent with SIGEV_THREAD, sigevent(3type)."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("rest", ctypes.c_long * 4),
    )


def storm(timers: int, every_ns: int) -> None:
    """Let the C library make a thread at each expiry of a timer: no Python takes part."""
    libc = ctypes.CDLL(None, use_errno=True)
    timer = ctypes.c_void_p()
    event = SigEvent(notify=2, function=ctypes.cast(libc.getpid, ctypes.c_void_p))
    for i in range(1, timers + 1):
        if libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
            os._exit(1)
        times = (ctypes.c_long * 4)(0, every_ns, 0, every_ns * i // timers)
        if libc.timer_settime(timer, 0, times, None):
            os._exit(1)
    while True:
        signal.pause()


def threads_born() -> int:
    """Since boot, processes among them. proc(5), /proc/stat"""
    return int(re.findall(r"^processes (\d+)$", Path("/proc/stat").read_text(), re.MULTILINE)[0])


def threads_without_end() -> None:
    """Hundreds a second, born of the operator that goes first."""
    with scene(pids_max="200") as on, child(lambda: storm(4, 8_000_000), on.engine) as (pid, begin):
        begin()
        wait_until(lambda: len(procfs.tids(pid)) > 1)
        # The second thread is the C library's, which makes the others.
        on.first = [thread_of(pid, tid) for tid in sorted(procfs.tids(pid))[:2]]
        on.apply()
        began, born = time.monotonic(), threads_born()
        on.holds(least=0.1)
        each_s = (threads_born() - born) / (time.monotonic() - began)
        print(f"{each_s:.0f} born a second")
        assert each_s > (100 if EXACT in os.environ else 10)


def changing_affinity() -> None:
    """All threads may use now these CPUs, now those; one that waits is asked again and again."""
    cpus = os.cpu_count() or 1
    rng = random.Random(1)
    with scene() as on:
        everybody = [*on.operators, *on.neighbours]
        on.apply()
        above_all()  # who looks must not wait, nor who changes

        def change() -> None:
            # Half of the changes are of the least urgent one, which waits for the bound.
            for thread in [*rng.choices(everybody, k=10), *[on.operators[-1]] * 10]:
                os.sched_setaffinity(thread.tid, rng.sample(range(cpus), rng.randint(1, cpus)))
                time.sleep(0.004)

        on.holds(change, least=0.1)
        for thread in everybody:
            os.sched_setaffinity(thread.tid, range(cpus))
        on.holds()


def changing_cpus() -> None:
    """One goes and comes: the kernel ends the scheduler, and it is loaded again at once."""
    online = sorted(CPUS.glob("cpu[1-9]*/online"))[-1]
    with scene() as on:
        on.apply()
        try:
            for value in ("0", "1"):
                online.write_text(value)
                wait_for("disabled")
                on.apply()
                on.holds()
        finally:
            online.write_text("1")


# -- another scheduler ----------------------------------------------------------------------------


@contextlib.contextmanager
def stranger() -> Iterator[Callable[[bool], str]]:
    """Attaches (True) and detaches (False) a full scheduler of another name; says what came of it.

    It is a copy of ours under another name, in a process of its own, and loaded before anything is
    attached: an emulated CPU verifies it for seconds, and a real-time thread lets nobody else run.
    """
    name = b"sched_ctl".ljust(128, b"\0")  # `name` of struct sched_ext_ops
    program = OBJECT.read_bytes()
    assert program.count(name) == 1
    path = Path("/tmp/stranger.bpf.o")
    path.write_bytes(program.replace(name, b"stranger".ljust(128, b"\0")))
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        try:
            above_all()
            with Scheduler(full=True, path=path) as scheduler:
                its.send(b"loaded")
                while command := its.recv(1):
                    try:
                        (scheduler.attach if command == b"+" else scheduler.detach)()
                    except LoadError as error:
                        its.send(str(error).encode())
                    else:
                        its.send(b"done")
        finally:
            os._exit(1)
    its.close()

    def do(attach: bool) -> str:
        ours.send(b"+" if attach else b"-")
        return ours.recv(4096).decode()

    try:
        assert ours.recv(16) == b"loaded"
        yield do
    finally:
        ours.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def refused(on: Scene) -> None:
    """Ours says whose the machine is and how to go on, changes nothing, and disturbs nobody."""
    try:
        on.apply()
    except LoadError as error:
        assert error.message == "another scheduler is attached: stranger", error.message
        assert error.hint is not None and error.hint.startswith("stop it first"), error.hint
        assert error.transient  # so the controller takes another backend, and looks again
    else:
        raise AssertionError("two schedulers were attached")
    assert probe().because == "another scheduler is attached: stranger"
    assert schedext.attached() == "stranger"
    assert policies(on.engine) == {sched.OTHER}
    assert not journal().state, journal().state
    everybody_runs([*on.operators, *on.neighbours], 0.01)


def another_scheduler() -> None:
    """It is refused while ours is there, and so is ours while it is."""
    with scene() as on, stranger() as other:
        on.apply()
        assert "ours is attached (sched_ctl)" in other(True)
        on.holds()
        lost: list[str] = []
        on.backend.on_lost = lost.append
        Path("/proc/sys/kernel/sysrq").write_text("1")
        Path("/proc/sysrq-trigger").write_text("S")
        wait_for("disabled")
        wait_until(lambda: lost, what="it is noticed")
        assert other(True) == "done"
        try:
            on.apply()
        except Ejected as error:
            assert error.kind == "SYSRQ", error.kind
        else:
            raise AssertionError("apply went well without a scheduler")
        assert on.backend.restore() == ()
        refused(on)
        assert other(False) == "done"
        on.apply()
        on.holds()
