"""The lab engine writes what waits for its operators into memory that it is handed."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import labengine
import numpy as np
import pytest
from labengine import WORKLOADS
from numpy.typing import NDArray

from sched_ctl.backends.scx.live import hand_over
from sched_ctl.drivers import Target
from sched_ctl.drivers.lab import driver as lab
from sched_ctl.kernel import netns, procfs
from sched_ctl.model.topology import LiveOffer
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("cc")]

# Several inputs of an operator, and queues that are never empty for long
STATS = (WORKLOADS / "stats.graph", "--cpus", 1, "--utilisation", 2)
NOBODY = 65534
CLONE_NEWNET = 0x40000000  # linux/sched.h


@dataclass
class Memory:
    """A memfd in place of a BPF map: only something to map."""

    fd: int
    rows: NDArray[Any]

    @property
    def beat_ns(self) -> int:
        return int(self.rows["head_ns"][0])


@contextlib.contextmanager
def memory(offer: LiveOffer, seals: int = fcntl.F_SEAL_SHRINK, short: int = 0) -> Iterator[Memory]:
    size = offer.rows * offer.row.itemsize - short
    fd = os.memfd_create("live", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        rows = np.frombuffer(mmap.mmap(fd, size), offer.row, size // offer.row.itemsize)
        yield Memory(fd, rows)
    finally:
        os.close(fd)


@contextlib.contextmanager
def offered(*options: object) -> Iterator[tuple[Target, lab.LabDriver, LiveOffer]]:
    """An engine, and what it offers."""
    path, *more = options or STATS
    with labengine.started(Path(str(path)), *more) as target:
        driver = lab.connect(target)
        try:
            operators = driver.poll(1).topology.operators
            live = [operator.threads[0].live for operator in operators]
            offer = driver.file.live_offer()
            assert offer is not None
            assert live == [(offer, row + 1) for row in range(len(operators))]
            yield target, driver, offer
        finally:
            driver.close()


def writes(memory: Memory) -> bool:
    before = memory.beat_ns
    return bool(wait_until(lambda: memory.beat_ns > before))


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def stopped(target: Target) -> bool:
    pid = target.pid or 0
    return all((stat := procfs.stat(pid, tid)) and stat.state == "T" for tid in procfs.tids(pid))


def test_rows_say_what_the_engine_counts() -> None:
    """Stopped anywhere, each row is right; where a thread was about to write, at another look."""
    with offered() as (target, driver, offer), memory(offer) as shared:
        wait_until(lambda: driver.poll(1).columns["queue_size"].max() > 100)
        assert not shared.rows["queue_tuples"].any()
        with hand_over(offer, shared.fd):
            assert writes(shared)

            def equal() -> bool:
                os.kill(target.pid or 0, signal.SIGSTOP)
                try:
                    wait_until(lambda: stopped(target))
                    snapshot = driver.poll(1)
                    sizes, ages = (snapshot.columns[n] for n in ("queue_size", "head_age"))
                    rows = shared.rows[1:].copy()
                finally:
                    os.kill(target.pid or 0, signal.SIGCONT)
                heads_s = np.where(sizes > 0, snapshot.time_s - ages, 0)
                return bool(
                    (sizes > 0).sum() > 3
                    and sizes.max() > 100
                    and (rows["queue_tuples"] == sizes).all()
                    and np.allclose(rows["head_ns"] * 1e-9, heads_s, rtol=0, atol=1e-6)
                )

            for _ in range(5):
                wait_until(equal)


def test_nothing_is_written_once_the_connection_is_closed() -> None:
    with offered() as (_, driver, offer), memory(offer) as shared:
        connection = hand_over(offer, shared.fd)
        assert writes(shared)
        connection.close()

        def quiet() -> bool:
            before = shared.rows.copy()
            then = driver.poll(1).columns["tuples_in"]
            wait_until(lambda: (driver.poll(1).columns["tuples_in"] > then).any())
            return bool((shared.rows == before).all())

        wait_until(quiet)
        with hand_over(offer, shared.fd):
            assert writes(shared)


def test_a_newer_offer_takes_the_place_of_an_older_one() -> None:
    with offered() as (_, _, offer), memory(offer) as old, memory(offer) as new:
        first = hand_over(offer, old.fd)
        assert writes(old)
        with first, hand_over(offer, new.fd):
            assert writes(new)
            assert closed(first)
            before = old.rows.copy()
            assert writes(new)
            assert (old.rows == before).all()


def test_garbage_does_no_harm() -> None:
    with offered() as (target, _, offer), contextlib.ExitStack() as stack:
        good = stack.enter_context(memory(offer))
        short = stack.enter_context(memory(offer, short=offer.row.itemsize))
        loose = stack.enter_context(memory(offer, seals=0))
        zeros = stack.enter_context(open("/dev/zero", "r+b", buffering=0)).fileno()
        pipe = os.pipe()
        files = Path(f"/proc/{target.pid}/fd")
        before = len(list(files.iterdir()))
        right = offer.rows.to_bytes(8, "little") + offer.row.itemsize.to_bytes(8, "little")
        with hand_over(offer, good.fd):
            assert writes(good)
            for message, fds in (
                (b"", []),
                (right, []),
                (b"x", [good.fd]),
                (bytes(16), [good.fd]),
                (b"\xff" * 16, [good.fd]),
                (right + b"x", [good.fd]),
                (right, [good.fd] * 2),
                (right, [good.fd] * 50),
                (right, [short.fd]),
                (right, [loose.fd]),
                (right, [zeros]),
                (right, [pipe[1]]),
            ):
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                    connection.connect(f"\0{offer.socket}")
                    if message or fds:
                        socket.send_fds(connection, [message], fds)
                    connection.setblocking(False)
                    wait_until(lambda c=connection: closed(c))  # type: ignore[misc]
            assert writes(good)
        os.close(pipe[0])
        os.close(pipe[1])
        wait_until(lambda: len(list(files.iterdir())) == before)


@pytest.mark.needs("root")
def test_another_user_is_not_listened_to() -> None:
    script = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.connect('\\0' + sys.argv[1])\n"
        "socket.send_fds(s, [bytes.fromhex(sys.argv[2])], [int(sys.argv[3])])\n"
        "s.settimeout(20)\n"
        "try:\n"
        "    print(s.recv(1))\n"
        "except ConnectionError:\n"
        "    print(b'')\n"
    )
    with offered() as (_, _, offer), memory(offer) as shared:
        message = offer.rows.to_bytes(8, "little") + offer.row.itemsize.to_bytes(8, "little")
        done = subprocess.run(
            [sys.executable, "-c", script, offer.socket, message.hex(), str(shared.fd)],
            user=NOBODY,
            group=NOBODY,
            extra_groups=(),
            pass_fds=[shared.fd],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stdout.strip() == "b''"
        assert shared.beat_ns == 0
        with hand_over(offer, shared.fd):
            assert writes(shared)


def test_memory_is_handed_to_the_engine_alone() -> None:
    """A socket that another process listens on gets nothing."""
    with offered() as (_, _, offer), memory(offer) as shared:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mine:
            mine.bind("")  # the kernel chooses an abstract name
            mine.listen()
            name = bytes(mine.getsockname())[1:].decode()
            with pytest.raises(PermissionError):
                hand_over(LiveOffer(offer.pid, name, offer.rows, offer.row), shared.fd)
        with pytest.raises(ConnectionRefusedError):
            hand_over(LiveOffer(offer.pid, name, offer.rows, offer.row), shared.fd)


@pytest.mark.needs("root")
def test_an_engine_in_another_network_namespace_is_reached() -> None:
    def leave() -> None:
        if ctypes.CDLL(None).unshare(CLONE_NEWNET):
            os._exit(1)

    path, *more = STATS
    with labengine.started(path, *more, preexec_fn=leave) as target:
        assert not netns.same_network(target.pid or 0)
        with contextlib.closing(lab.connect(target)) as driver:
            offer = driver.file.live_offer()
            assert offer is not None
            with memory(offer) as shared, hand_over(offer, shared.fd):
                assert writes(shared)


def test_a_pool_offers_nothing() -> None:
    path, *more = STATS
    with labengine.started(path, *more, "--threads", "pool:2") as target:
        driver = lab.connect(target)
        assert driver.file.live_offer() is None
        driver.close()
