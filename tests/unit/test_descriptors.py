"""More threads than descriptors: times are read by turns, and putting back finds some left."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from fakes import chains

from sched_ctl.drivers.threads import thread_of
from sched_ctl.kernel import descriptors
from sched_ctl.model.topology import Thread
from sched_ctl.probes import threads as probes
from sched_ctl.probes.threads import ThreadTimes


@contextmanager
def sleeping(count: int) -> Iterator[list[Thread]]:
    done = threading.Event()
    started = [threading.Thread(target=done.wait) for _ in range(count)]
    try:
        for thread in started:
            thread.start()
        ids = [thread.native_id or 0 for thread in started]
        found = [thread_of(os.getpid(), tid) for tid in ids]
        yield [thread for thread in found if thread is not None]
    finally:
        done.set()
        for thread in started:
            thread.join()


def test_threads_without_a_descriptor_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """And all have true times once each has had one."""
    monkeypatch.setattr(descriptors, "_putting_back", False)  # as tests before may have left it
    monkeypatch.setattr(probes, "SHARE", 0.0)
    monkeypatch.setattr(probes, "TURNS", 4)
    with sleeping(10) as threads:
        topology = chains("e", {"q": 10}, lambda row: (threads[row],))
        times = ThreadTimes()
        known = []
        for _ in range(4):
            read = times.read(topology)["thread_cpu_time"]
            known.append(int(np.isfinite(read).sum()))
        assert known == [4, 8, 10, 10]
        assert (read > 0).all()
        monkeypatch.setattr(probes, "SHARE", 1.0)
        kept, last = ThreadTimes(), ThreadTimes()
        now, after = (each.read(topology)["thread_cpu_time"] for each in (kept, last))
        assert (read <= now).all() and (now <= after).all()  # one may not sleep yet
        kept.close()
        last.close()
        times.close()


def test_a_thread_that_runs_several_operators_has_one_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And they are closed, however often the topology changed."""
    monkeypatch.setattr(descriptors, "_putting_back", False)  # as tests before may have left it
    with sleeping(2) as threads:
        paths = [f"/{thread.tid}/schedstat" for thread in threads]

        def open_here() -> int:
            return sum(link_of(fd).endswith(tuple(paths)) for fd in os.scandir("/proc/self/fd"))

        times = ThreadTimes()
        for _ in range(3):
            read = times.read(chains("e", {"q": 4}, lambda row: (threads[row % 2],)))
            assert np.isfinite(read["thread_cpu_time"]).all()
            assert open_here() == 2
        times.close()
        assert open_here() == 0


def link_of(fd: "os.DirEntry[str]") -> str:
    try:
        return str(Path(fd.path).readlink())
    except OSError:  # that of the look itself
        return ""


def test_an_end_counts_as_something_to_read() -> None:
    ours, theirs = os.pipe()
    assert not descriptors.readable(ours)
    os.write(theirs, b"x")
    assert descriptors.readable(ours)
    os.read(ours, 1)
    assert not descriptors.readable(ours)
    os.close(theirs)
    assert descriptors.readable(ours, 10.0)
    os.close(ours)


MANY = """
import os, resource, sys, threading
from sched_ctl.backends.undo.records import Adopted, Process, State
from sched_ctl.backends.undo import put_back
from sched_ctl.drivers.threads import thread_of
from sched_ctl.kernel import descriptors, identity, procfs, sched
from sched_ctl.probes.threads import ThreadTimes
from fakes import chains

resource.setrlimit(resource.RLIMIT_NOFILE, (128, 200))
descriptors.raise_limit()
descriptors.hold_back()
done = threading.Event()
started = [threading.Thread(target=done.wait, daemon=True) for _ in range(300)]
for thread in started:
    thread.start()
threads = [thread_of(os.getpid(), t.native_id) for t in started]

times = ThreadTimes()
topology = chains("e", {"q": 300}, lambda row: (threads[row],))
times.read(topology)
pins = [identity.pin(thread) for thread in threads]
assert all(pins) and any(fd == identity.UNPINNED for fd, _ in pins)
assert (times.read(topology)["thread_cpu_time"] >= 0).all()
assert len(procfs.pids()) > 1  # what was EMFILE

class Log:
    state = State()
    def done(self, records):
        for record in records:
            self.state.add(record)

log = Log()
own = procfs.stat(os.getpid())
for thread in threads:
    log.state.add(Adopted(thread.pid, thread.tid, thread.start_time, own.nice))
log.state.add(Process(own.tid, own.start_time, 0, own.nice, 0, [own.nice + 5], []))
for thread in threads:
    sched.set_nice(thread.tid, own.nice + 5)

taken = []
try:
    while True:  # by whatever else: sockets of engines, say
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
descriptors.let_go()
assert put_back.everything(log) == []
assert not log.state
left = [thread for thread in threads if procfs.stat(thread.pid, thread.tid).nice != own.nice]
assert not left, left
print("all back")
"""


@pytest.mark.needs("root")
def test_with_none_left_all_is_put_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "all back\n", done.stderr
