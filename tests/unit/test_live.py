"""Which engines count that write what waits for their threads; the engine is played by the test."""

import contextlib
import mmap
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from sched_ctl.backends.scx import live
from sched_ctl.backends.scx.live import LiveRows
from sched_ctl.kernel.libbpf import InnerArray
from sched_ctl.kernel.scheduler import Scheduler
from sched_ctl.model.topology import LiveOffer, Thread

ROW = np.dtype(
    {
        "names": ["head_ns", "queue_tuples"],
        "formats": ["<u8", "<u8"],
        "offsets": [0, 8],
        "itemsize": 64,
    }
)


class Memories:
    """A scheduler's part: memfds in place of maps."""

    limits = {"MAX_ENGINES": 4, "LIVE_ROW_BITS": 16}  # noqa: RUF012
    live_row = ROW

    def __init__(self) -> None:
        self.maps: dict[int, InnerArray] = {}

    def live_index(self, engine: int, row: int) -> int:
        return engine << 16 | row

    def live_rows(self, engine: int, rows: int) -> InnerArray:
        fd = os.memfd_create("live")
        os.ftruncate(fd, rows * ROW.itemsize)
        memory = mmap.mmap(fd, rows * ROW.itemsize)
        self.maps[engine] = InnerArray(fd, np.frombuffer(memory, ROW))
        return self.maps[engine]

    def drop_live_rows(self, engine: int) -> None:
        del self.maps[engine]


class Played:
    """An engine: takes one memory, and writes when it is told to."""

    def __init__(self, rows: int, row: np.dtype[Any] = ROW) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind("")
        self.listener.listen()
        self.listener.setblocking(False)
        name = bytes(self.listener.getsockname())[1:].decode()
        self.offer = LiveOffer(os.getpid(), name, rows, row)
        self.connection: socket.socket | None = None

    def thread(self, row: int) -> Thread:
        return Thread(1, row, 0, "", (self.offer, row))

    def take(self) -> bool:
        """Whether memory was offered since."""
        try:
            self.connection, _ = self.listener.accept()
        except BlockingIOError:
            return False
        message, (fd,), _, _ = socket.recv_fds(self.connection, 100, 4)
        rows, row_bytes = struct.unpack("=2Q", message)
        assert (rows, row_bytes) == (self.offer.rows, ROW.itemsize)
        self.rows = np.frombuffer(mmap.mmap(fd, rows * row_bytes), ROW)
        os.close(fd)
        return True

    def beat(self, ago_s: float = 0.0) -> None:
        self.rows["head_ns"][0] = time.monotonic_ns() - round(ago_s * 1e9)

    def hang_up(self) -> None:
        assert self.connection is not None
        self.connection.close()
        self.connection = None

    def close(self) -> None:
        if self.connection is not None:
            self.hang_up()
        self.listener.close()


@pytest.fixture
def memories() -> Memories:
    return Memories()


@pytest.fixture
def found(memories: Memories) -> Iterator[LiveRows]:
    made = LiveRows(cast(Scheduler, memories))
    yield made
    made.close()
    assert not memories.maps


@pytest.fixture
def engine() -> Iterator[Played]:
    with contextlib.closing(Played(3)) as played:
        yield played


def counts(found: LiveRows, *threads: Thread) -> list[bool]:
    indices = found.indices(threads)
    found.look()
    return [bool(one) for one in found.counting(indices)]


def test_counts_from_its_first_sign_of_life_on(found: LiveRows, engine: Played) -> None:
    threads = (engine.thread(1), Thread(1, 9, 0), engine.thread(2))
    assert found.indices(threads).tolist() == [1 << 16 | 1, 0, 1 << 16 | 2]
    assert counts(found, *threads) == [False] * 3
    assert engine.take()
    assert found.row(threads[0]) is None
    engine.beat()
    assert counts(found, *threads) == [True, False, True]
    engine.rows["queue_tuples"][2] = 7
    assert found.row(threads[2])["queue_tuples"] == 7
    assert found.row(threads[1]) is None


@pytest.mark.parametrize("ago_s", [2 * live.STALE_S, -2 * live.STALE_S])
def test_an_engine_that_hangs_does_not_count(found: LiveRows, engine: Played, ago_s: float) -> None:
    thread = engine.thread(1)
    counts(found, thread)
    engine.take()
    engine.beat()
    assert counts(found, thread) == [True]
    engine.beat(ago_s)
    assert counts(found, thread) == [False]
    assert not engine.take()
    engine.beat()
    assert counts(found, thread) == [True]


def test_an_engine_that_hangs_up_is_asked_again(
    found: LiveRows, engine: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = engine.thread(1)
    counts(found, thread)
    engine.take()
    engine.beat()
    engine.hang_up()
    assert counts(found, thread) == [False]
    assert not engine.take()  # not at once
    monkeypatch.setattr(live, "RETRY_S", 0.0)
    assert counts(found, thread) == [False]  # its sign of life was for the connection before
    assert engine.take()
    engine.beat()
    assert counts(found, thread) == [True]


def test_nobody_there_is_no_error(found: LiveRows, engine: Played) -> None:
    engine.close()
    assert counts(found, engine.thread(1)) == [False]


def test_another_layout_is_not_used(found: LiveRows) -> None:
    other = np.dtype([("head_ns", "<u8"), ("queue_tuples", "<u4")])
    with contextlib.closing(Played(3, other)) as engine:
        assert counts(found, engine.thread(1)) == [False]
        assert not engine.take()
        [told] = found.strangers([engine.thread(1), engine.thread(2)])
        assert f"process {os.getpid()} " in told
        assert "queue_tuples <u4 at 8 in 12 bytes" in told
        assert "queue_tuples <u8 at 8 in 64 bytes" in told


def test_the_layout_of_the_scheduler_is_no_problem(found: LiveRows, engine: Played) -> None:
    assert found.strangers([engine.thread(1), Thread(1, 9, 0)]) == ()


def test_memory_of_engines_without_threads_is_taken_back(
    found: LiveRows, memories: Memories, engine: Played
) -> None:
    with contextlib.ExitStack() as stack:
        more = [stack.enter_context(contextlib.closing(Played(2))) for _ in range(3)]
        threads = [one.thread(1) for one in (engine, *more)]
        kept = found.indices(threads)
        assert [int(index) >> 16 for index in kept] == [1, 2, 3, 0]  # no more than there can be
        found.look()
        assert all(one.take() for one in more[:2])
        found.keep([kept[:2], kept[2:2]])
        assert sorted(memories.maps) == [1, 2]
        assert more[1].connection is not None
        assert more[1].connection.recv(1) == b""
        assert int(found.indices(threads[3:])[0]) >> 16 == 3


def test_one_user_has_not_all_the_memory_for_rows() -> None:
    """Of 8 engines one user's may be 2, all users' together 6."""
    offers = [LiveOffer(1000 + nth, "none", 2, ROW) for nth in range(12)]
    threads = [Thread(1, nth, 0, "", (offer, 1)) for nth, offer in enumerate(offers)]
    memories: Any = Memories()
    memories.limits = {**Memories.limits, "MAX_ENGINES": 9}
    found = LiveRows(memories)
    assert np.count_nonzero(found.indices(threads[:4], "1000")) == 2
    [told] = found.refused(threads[:4], "1000")
    assert told == "no room for live rows of 2 engines, from process 1002 on"
    assert found.refused(threads[:2], "1000") == ()
    others = [bool(found.indices(threads[n : n + 1], f"100{n}")[0]) for n in range(5, 10)]
    assert others == [True, True, True, True, False]
    assert np.count_nonzero(found.indices(threads[10:])) == 2
    found.keep([])
    assert found.has_room("1009") and found.refused(threads[:4], "1000") == ()


def test_descriptors_are_not_leaked(found: LiveRows) -> None:
    counted = []
    for _ in range(3):
        with contextlib.closing(Played(2)) as engine:
            found.indices([engine.thread(1)])
            found.look()
            assert engine.take()
            found.keep([])
        counted.append(len(list(Path("/proc/self/fd").iterdir())))
    assert counted[0] == counted[2]
