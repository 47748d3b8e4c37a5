"""Where threads sleep: real ones in places that are known, and what a hostile process may show."""

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sched_ctl.cli import check as machine
from sched_ctl.kernel import procfs, sleeping
from sched_ctl.kernel.sleeping import Sleep, in_words, where
from sched_ctl.model.topology import Thread
from sched_ctl.probes.sleeps import ENOUGH, Place, Places, SleepPlaces, at_work
from support import wait_until

# Each thread tells its name by its comm, and sleeps until the program is killed.
PROGRAM = """
import os, select, socket, subprocess, sys, threading, time
held = threading.Lock()
held.acquire()
pair = socket.socketpair()
pipe = os.pipe()
served = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
timed = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
timed.settimeout(100)
resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
resolver.connect(("127.0.0.1", int(sys.argv[1])))
resolver.settimeout(100)
epoll = select.epoll()
epoll.register(pair[0], select.EPOLLIN)
places = {
    "lock": held.acquire,
    "timed": lambda: held.acquire(timeout=100),
    "unix": lambda: pair[1].recv(1),
    "pipe": lambda: os.read(pipe[0], 1),
    "tcp": lambda: served.recv(1),
    "polled": lambda: timed.recv(1),
    "resolver": lambda: resolver.recv(1),
    "timer": lambda: time.sleep(100),
    "epoll": epoll.poll,
    "select": lambda: select.select([pair[0], pipe[0]], [], []),
    "child": lambda: subprocess.run(["cat"], stdin=pipe[0]),
}
def sleep(name, body):
    with open("/proc/thread-self/comm", "w") as comm:
        comm.write(name)
    body()
for name, body in places.items():
    threading.Thread(target=sleep, args=(name, body), daemon=True).start()
def spin():
    while True:
        pass
threading.Thread(target=sleep, args=("spin", spin), daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
"""
ASLEEP = {
    "lock": "lock",
    "timed": "timed lock",
    "unix": "socket",
    "pipe": "pipe",
    "tcp": "socket",
    "polled": "socket",
    "resolver": "socket",
    "timer": "timer",
    "epoll": "events",
    "select": "events",
    "child": "child",
}

CONNECTED = ("tcp", "polled", "resolver")


@pytest.fixture(scope="module")
def sleepers() -> Iterator[tuple[int, dict[str, int], int]]:
    """The process, the thread of each name, and the port that three of them read from."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with subprocess.Popen(
            [sys.executable, "-S", "-c", PROGRAM, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as running:
            try:
                assert running.stdout is not None
                running.stdout.readline()

                def named() -> dict[str, int]:
                    found = {t: procfs.stat(running.pid, t) for t in procfs.tids(running.pid)}
                    return {stat.name: tid for tid, stat in found.items() if stat is not None}

                wait_until(lambda: {*ASLEEP, "spin"} <= named().keys())
                yield running.pid, named(), port
            finally:
                running.kill()


@pytest.mark.parametrize("name", ASLEEP)
def test_real_threads_are_found_where_they_sleep(
    sleepers: tuple[int, dict[str, int], int], name: str
) -> None:
    pid, threads, _ = sleepers
    found: list[Sleep | None] = []

    def told() -> bool:  # they come there one after the other, and take the interpreter meanwhile
        found.append(where(pid, threads[name]))
        return found[-1] is not None and found[-1].what == ASLEEP[name]

    with contextlib.suppress(TimeoutError, AssertionError):
        wait_until(told)
    last = found[-1]
    assert last is not None
    assert last.what == ASLEEP[name]
    assert (last.inode is not None) == (last.what == "socket")


@pytest.mark.parametrize("name", [n for n in ASLEEP if n not in ("timed", "polled", "resolver")])
def test_the_wait_channel_alone_tells_most(
    sleepers: tuple[int, dict[str, int], int], name: str
) -> None:
    pid, threads, _ = sleepers
    found = where(pid, threads[name], calls=False)
    if found is not None and found.what == "unknown":
        pytest.skip("this kernel tells no wait channels")
    wait_until(lambda: where(pid, threads[name], calls=False) == Sleep(ASLEEP[name]))


def test_a_thread_that_runs_and_one_that_is_gone_do_not_sleep(
    sleepers: tuple[int, dict[str, int], int],
) -> None:
    pid, threads, _ = sleepers
    # It waits for the interpreter's lock, too, now and then.
    assert [where(pid, threads["spin"]) for _ in range(50)].count(None) >= 25
    assert where(pid, 1) is None
    assert where(2**22 + 1, 2**22 + 1) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_another_user_polls_is_not_read_from_its_memory() -> None:
    """Its pages may be in a file system of that user's, who never answers."""
    code = "import select, sys; p = select.poll(); p.register(0, 1); print(1); p.poll()"
    with subprocess.Popen(
        ["/usr/bin/python3", "-u", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=65534,
        extra_groups=(),
        cwd="/",
    ) as running:
        try:
            assert running.stdout is not None and running.stdout.readline() == b"1\n"
            wait_until(lambda: where(running.pid, running.pid) == Sleep("events"))
        finally:
            running.kill()


def test_looks_tell_shares_and_peers(sleepers: tuple[int, dict[str, int], int]) -> None:
    pid, threads, port = sleepers
    probe = SleepPlaces(every_s=0.01)
    mine = {name: Thread(pid, threads[name], 1) for name in (*CONNECTED, "unix", "lock")}
    try:
        assert probe.looks == 0 and probe.lately(mine.values()) is None
        probe.follow(tuple(mine.values()), 30.0)

        def told() -> bool:
            found = probe.lately((mine["tcp"],))
            return found is not None and found.shares[0][0].peer is not None

        wait_until(told)
        wait_until(lambda: probe.looks >= 50)
        peer = Place("socket", f"127.0.0.1:{port}")
        for name in CONNECTED:
            found = probe.lately((mine[name],))
            assert found is not None and found.shares[0][0] == peer
        of_unix = probe.lately((mine["unix"],))
        assert of_unix is not None and of_unix.shares == ((Place("socket"), 1.0),)
        both = probe.lately((mine["unix"], mine["lock"]))
        assert both is not None and both.looks >= 2 * of_unix.looks
        assert [round(share, 1) for _, share in both.shares] == [0.5, 0.5]
    finally:
        probe.close()
    worker = probe._worker
    assert worker is not None
    worker.join(5)
    assert not worker.is_alive()


def test_looks_end_when_nobody_asks_and_begin_again() -> None:
    asked: list[int] = []

    def at(pid: int, tid: int, **_: bool) -> Sleep:
        asked.append(tid)
        return Sleep("lock")

    probe = SleepPlaces(at, every_s=0.001)
    threads = [Thread(1, tid, 1) for tid in range(2, 202)]
    for _ in range(2):
        probe.follow(threads, 0.05)
        worker = probe._worker
        assert worker is not None
        worker.join(5)
        assert not worker.is_alive()
    assert all(len(seen) <= 50 for _, seen in probe._seen)
    assert len(set(asked)) > 50  # drawn anew each time
    probe.close()


def test_a_process_that_may_not_be_traced_is_asked_once_for_its_calls() -> None:
    asked: list[bool] = []

    def at(pid: int, tid: int, *, calls: bool = True) -> Sleep | None:
        asked.append(calls)
        if calls:
            raise PermissionError(1, "no")
        return Sleep("pipe")

    probe = SleepPlaces(at, every_s=0.001)
    thread = Thread(1, 2, 1)
    probe.follow((thread,), 30.0)
    wait_until(lambda: probe.looks >= ENOUGH)
    probe.close()
    assert asked.count(True) == 1 and asked[0]
    found = probe.lately((thread,))
    assert found is not None and found.shares == ((Place("pipe"), 1.0),)


@pytest.mark.parametrize(
    ("call", "channel", "what"),
    [
        (b"", b"0", "unknown"),  # the kernel hides it: of this very thread, which stat shows
        (b"-1 0x7ffd 0x7f00\n", b"folio_wait_bit_common", "memory"),
        (b"-1 0x7ffd 0x7f00\n", b"do_signal_stop", "kernel do_signal_stop"),
        (b"-1 0x7ffd 0x7f00\n", b"0", "unknown"),
        (b"0 0xffffffff 0x1 0x1\n", b"wait_woken", "socket"),  # no such descriptor
        (b"0 0xffffffffffffffffffff 0x1\n", b"0", "unknown"),
        (b"99999999999 0x1\n", b"some_new_function.isra.0", "kernel some_new_function"),
        (b"\x00\xff garbage\n", b"\x1b[2J", "unknown"),
        (b"0\n", b"\xf0\x9f\n", "unknown"),
        (b"1 " * 100, b"x" * 4000, "kernel " + "x" * 64),
    ],
)
def test_anything_may_be_in_these_files(
    monkeypatch: pytest.MonkeyPatch, call: bytes, channel: bytes, what: str
) -> None:
    files = {"syscall": call or None, "wchan": channel}
    monkeypatch.setattr(sleeping, "_read", lambda path: files[path.rpartition("/")[2]])
    monkeypatch.setattr(procfs, "stat", lambda pid, tid: procfs.Stat(tid, "x", "S", 0, 0, 0, 0))
    nobody = 1 << 30  # has no descriptors
    found = where(nobody, nobody)
    assert found is not None and found.what == what


def test_numbers_of_system_calls_are_those_of_the_headers() -> None:
    include = Path("/usr/include")
    headers = {
        "x86_64": sorted(include.glob("x86_64-linux-gnu/asm/unistd_64.h")),
        "aarch64": sorted(include.glob("asm-generic/unistd.h")),
    }
    if not any(headers.values()):
        pytest.skip("there are no kernel headers")
    for architecture, paths in headers.items():
        ours = sleeping.NUMBERS[architecture]
        for path in paths:
            pairs = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text())
            known = {name: int(number) for name, number in pairs}
            known["newfstatat"] = known.get("newfstatat", known.get("fstatat", 0))
            for name, number in ours.items():
                assert known.get(name, number) == number, (architecture, name)
            assert known["futex"] == ours["futex"]


def test_waits_for_input_are_taken_off_where_threads_wait_for_each_other() -> None:
    places = Places(100, ((Place("lock"), 0.6), (Place("socket", "10.0.0.7:5432"), 0.4)))
    shares = at_work(places, waiting=0.5)
    assert [place.what for place, _ in shares] == ["socket", "lock"]
    assert [round(share, 3) for _, share in shares] == [0.8, 0.2]
    assert dict(at_work(places, 0.0)) == dict(places.shares)
    many = Places(1000, places.shares)
    assert at_work(many, 0.9) == ((Place("socket", "10.0.0.7:5432"), 1.0),)
    assert at_work(Places(100, ((Place("lock"), 1.0),)), 1.0) == ()
    # Of so few looks, how many saw it asleep with work in hand?
    assert at_work(Places(30, places.shares), 0.5) and not at_work(Places(30, places.shares), 0.7)


def test_places_are_told_in_words() -> None:
    def told(*places: tuple[str, str | None, float]) -> str:
        keys = ("where", "peer", "share")
        return in_words({"places": [dict(zip(keys, place, strict=True)) for place in places]})

    assert told(("lock", None, 0.7), ("socket", "10.0.0.7:5432", 0.25)) == (
        "at a lock or condition 70%, for 10.0.0.7:5432 25%"
    )
    assert told(("kernel do_new", None, 1.0), ("pipe", None, 0.001)) == "in kernel do_new 100%"
    assert told(("unknown", None, 1.0)) == in_words(None) == ""


@pytest.mark.parametrize(
    ("told", "right", "good", "words"),
    [
        (True, True, True, "by system call and wait channel"),
        (True, False, None, "of other users sleep by wait channel alone"),
        (False, True, None, "the kernel tells where threads sleep by wait channel alone"),
    ],
)
def test_check_says_what_tells_of_sleeps(
    monkeypatch: pytest.MonkeyPatch, told: bool, right: bool, good: bool | None, words: str
) -> None:
    monkeypatch.setattr(sleeping, "told", lambda: told)
    monkeypatch.setattr(machine, "_capable", lambda name: right or name != "SYS_PTRACE")
    [finding] = [finding for finding in machine.check() if finding.topic == "sleeps"]
    assert finding.good is good and words in finding.what
    assert (finding.do is None) == (good is True or not told)


def test_this_kernel_tells_of_a_call_as_proc_does() -> None:
    try:
        line = Path("/proc/self/syscall").read_text()
    except OSError:
        line = ""
    assert sleeping.told() == bool(line)


def test_who_looks_for_a_moment_does_not_end_what_others_look_at() -> None:
    thread = Thread(1, 2, 3)
    places = SleepPlaces(lambda *_: Sleep("lock"), every_s=0.0)
    try:
        places.follow([thread], 60.0)
        places.follow([thread], 0.0)
        before = places.looks
        wait_until(lambda: places.looks > before + 3)
    finally:
        places.close()
