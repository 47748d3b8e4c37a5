"""Births and deaths of threads and processes, of real ones."""

import os
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from random import Random

import pytest

from sched_ctl.kernel import births, procfs
from sched_ctl.kernel.births import Births, Young, thread_count
from support import running, wait_until


def process(threads: int) -> AbstractContextManager["subprocess.Popen[str]"]:
    """A child with so many threads besides its first; one more for each line it is sent."""
    code = (
        "import sys, threading, time\n"
        "def one(): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        f"for _ in range({threads}): one()\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin: one(); print('ready', flush=True)\n"
    )
    return running(sys.executable, "-c", code)


def test_threads_that_come_and_go_are_noticed() -> None:
    look = Births(every_s=0)
    with process(2) as one, process(2) as other:
        assert one.stdin and one.stdout
        pids = {one.pid, other.pid}
        assert thread_count(one.pid) == 3
        assert look.changed(lambda: pids) == pids
        assert look.changed(lambda: pids) == set()
        one.stdin.write("\n")
        one.stdin.flush()
        one.stdout.readline()
        assert look.changed(lambda: pids) == {one.pid}
        other.kill()
        other.wait()
        assert look.changed(lambda: pids) == {other.pid}
        assert look.changed(lambda: pids) == set()


def test_a_death_and_a_birth_between_two_looks_are_noticed() -> None:
    """As many threads as before, but others."""
    look, own = Births(every_s=0), os.getpid()

    def waiting() -> tuple[threading.Thread, threading.Event]:
        end = threading.Event()
        thread = threading.Thread(target=end.wait, daemon=True)
        thread.start()
        return thread, end

    old, end = waiting()
    look.changed(lambda: {own})
    count = thread_count(own)
    end.set()
    old.join()
    wait_until(lambda: thread_count(own) == count - 1)
    new, end = waiting()
    assert thread_count(own) == count
    assert look.changed(lambda: {own}) == {own}
    end.set()
    new.join()


def test_a_large_process_is_not_listed_for_what_is_born_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look = Births(every_s=0)
    with process(60) as large:
        assert large.stdin and large.stdout
        assert look.changed(lambda: {large.pid})
        before = procfs.tids(large.pid)
        listed: list[int] = []

        def listing(pid: int) -> list[int]:
            listed.append(pid)
            return before

        monkeypatch.setattr(procfs, "tids", listing)
        subprocess.run(["true"], check=True)  # ids are given
        assert not look.changed(lambda: {large.pid})
        large.stdin.write("\n")
        large.stdin.flush()
        large.stdout.readline()
        assert look.changed(lambda: {large.pid}) == {large.pid}
        assert not look.changed(lambda: {large.pid})
        assert not listed or births.last_id() == b""


def test_whoever_comes_and_goes_is_seen_in_a_large_process() -> None:
    """Against lists, where births and deaths make up for each other as often as not."""
    look, own, random = Births(every_s=0), os.getpid(), Random(3)
    threads: list[tuple[threading.Thread, threading.Event]] = []

    def more() -> None:
        end = threading.Event()
        threads.append((threading.Thread(target=end.wait, daemon=True), end))
        threads[-1][0].start()

    def fewer() -> None:
        thread, end = threads.pop(random.randrange(len(threads)))
        tid = thread.native_id
        end.set()
        thread.join()
        wait_until(lambda: tid not in procfs.tids(own))

    for _ in range(40):
        more()
    look.changed(lambda: {own})
    before, seen = set(procfs.tids(own)), []
    for _ in range(80):
        for change in random.choices([more, fewer], k=random.choice([0, 1, 2])):
            change()
        now = set(procfs.tids(own))
        seen.append((bool(look.changed(lambda: {own})), now != before))
        before = now
    for _, end in threads:
        end.set()
    assert all(told == true for told, true in seen), seen
    assert {true for _, true in seen} == {True, False}


def test_another_number_of_threads_is_noticed_at_once() -> None:
    look = Births(every_s=3600)
    with process(2) as one:
        assert one.stdin and one.stdout
        assert look.changed(lambda: {one.pid}) == {one.pid}
        assert not look.changed(lambda: {one.pid})
        one.stdin.write("\n")
        one.stdin.flush()
        one.stdout.readline()
        assert wait_until(lambda: look.changed(lambda: {one.pid})) == {one.pid}
        one.kill()
        one.wait()
        assert wait_until(lambda: look.changed(lambda: {one.pid})) == {one.pid}
        assert not look.changed(lambda: {one.pid})


def test_looks_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    look = Births(every_s=1)
    assert look.changed(lambda: {os.getpid()})

    def never() -> set[int]:
        raise AssertionError("asked too early")

    now[0] += 0.9
    assert not look.changed(never)
    now[0] += 0.2
    with pytest.raises(AssertionError, match="too early"):
        look.changed(never)


def test_a_new_process_with_several_threads_is_told_of_while_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    here: list[int] = [os.getpid()]
    monkeypatch.setattr(procfs, "pids", lambda: list(here))  # whatever else starts here
    young = Young(every_s=0.5)
    assert not young.due()
    with process(0) as few, process(5) as many:
        here.append(few.pid)
        now[0] += 1
        assert not young.due()  # one thread: no engine
        here.append(many.pid)
        told = []
        for _ in range(120):
            with process(0):  # the last id moves on
                now[0] += 0.5
                told.append(young.due())
        assert [i * 0.5 for i, due in enumerate(told) if due] == list(births.AGES_S)


@pytest.mark.parametrize("threads", [1, 20])
def test_many_new_processes_hide_none(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """A user's that only sleep, or that have many threads: those are told of and go."""
    now, ids = [100.0], iter(range(10**6))
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(births, "last_id", lambda: str(next(ids)).encode())
    crowd = range(10**6, 10**6 + births.MOST_YOUNG)
    counts = dict.fromkeys(crowd, threads)
    monkeypatch.setattr(births, "thread_count", lambda pid: counts.get(pid, 0))
    monkeypatch.setattr(procfs, "pids", lambda: list(counts))
    young = Young(every_s=0.5)
    counts.clear()
    young.due()
    counts[6] = 1  # and will have more
    now[0] += 1
    young.due()
    counts |= dict.fromkeys(crowd, threads)
    now[0] += 1
    young.due()
    counts[6] = counts[7] = 60
    looks = 0
    while not {6, 7} <= young._young.keys():
        now[0] += 0.5
        young.due()
        looks += 1
        assert looks < 2 * births.AGES_S[-1] + 3
    assert looks <= (1 if threads == 1 else 2 * births.AGES_S[-1] + 2)


def test_an_older_process_that_gets_more_threads_than_ever_is_told_of_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A query that begins late in a process that was there before us: first its threads, then the
    files by which it is known."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    young = Young(every_s=0.5)
    with process(5) as old:
        monkeypatch.setattr(procfs, "pids", lambda: [os.getpid(), old.pid])
        assert old.stdin and old.stdout
        assert not young.due()

        def told(looks: int) -> list[float]:
            began, found = now[0], []
            for _ in range(looks):
                if young.due():
                    found.append(now[0] - began)
                now[0] += 0.5
            return found

        now[0] += 300
        with process(0):
            assert not told(1)  # others are born, it is as it was
        for _ in range(2):
            old.stdin.write("\n")
            old.stdin.flush()
            old.stdout.readline()
            assert told(120) == list(births.AGES_S)
            now[0] += 300
            assert not told(10)
