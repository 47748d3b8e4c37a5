"""Who holds the lock that another thread waits for, of real programs: of C, and of a real JVM."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labs import sched_ctl

from sched_ctl.kernel import procfs, tracing
from sched_ctl.kernel.stacks import Stacks
from sched_ctl.probes import functions
from sched_ctl.probes.stacks import holders_of
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root")]

C = """
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void keep(int us) { pthread_mutex_lock(&mutex); usleep(us); pthread_mutex_unlock(&mutex); }
static int nest(int depth) { int inner = depth ? nest(depth - 1) : 0;
    if (depth == 9) usleep(10000); return inner + 1; }
static void *nests(void *name) { pthread_setname_np(pthread_self(), name); for (;;) nest(9); }
static void *holds(void *name) { pthread_setname_np(pthread_self(), name);
    for (;;) { keep(50000); usleep(1000); } }
static void *wants(void *name) { pthread_setname_np(pthread_self(), name);
    for (;;) { keep(0); usleep(1000); } }
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, holds, "holds");
    pthread_create(&thread, 0, wants, "wants");
    pthread_create(&thread, 0, nests, "nests");
    read(0, &thread, 1);
    return 0;
}
"""
STACKS = """
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>
static ucontext_t home, low, high;
static void work(ucontext_t *here) { if (here) swapcontext(here, &home); else usleep(10000); }
static void goes_on(void) { for (;;) work(&low); }
static void hangs(void) { work(&high); }
static void on(ucontext_t *made, char *stack, void (*does)(void)) {
    getcontext(made); made->uc_stack.ss_sp = stack; made->uc_stack.ss_size = 1 << 16;
    makecontext(made, does, 0); }
static char *stacks;
static void below(void) {
    for (;;) {
        on(&high, stacks + (1 << 16), hangs); swapcontext(&home, &high);
        for (int i = 0; i < 30; i++) work(0); } }
int main(int count, char **arguments) {
    stacks = malloc(1 << 17);
    on(&low, stacks, arguments[1][0] == 'h' ? below : goes_on);
    if (arguments[1][0] == 'h') setcontext(&low);
    for (;;) { swapcontext(&home, &low); work(0); }
}
"""
COLLECTS = """
public class Collects {
    public static void main(String[] args) throws Exception {
        Thread.currentThread().setName("collects");
        for (;;) { System.gc(); Thread.sleep(20); }
    }
}
"""
JAVA = """
import java.util.concurrent.locks.*;
public class Locks {
    static final ReentrantLock lock = new ReentrantLock();
    static void nap(int ms) { try { Thread.sleep(ms); } catch (InterruptedException e) { } }
    static synchronized void monitor(int ms) { nap(ms); }
    static void lock(int ms) { lock.lock(); try { nap(ms); } finally { lock.unlock(); } }
    static void start(String name, Runnable body) {
        Thread thread = new Thread(() -> { for (;;) { body.run(); nap(1); } }, name);
        thread.setDaemon(true);
        thread.start();
    }
    public static void main(String[] args) throws Exception {
        start("has the monitor", () -> monitor(50));
        start("wants the monitor", () -> monitor(0));
        start("has the lock", () -> lock(50));
        start("wants the lock", () -> lock(0));
        System.in.read();
    }
}
"""


@pytest.fixture(autouse=True)
def _traced() -> None:
    if (why := tracing.obstacle()) is not None:
        pytest.skip(f"tracing: {why}")


SHORT = """
import sys, threading, time
sys.stdin.readline()
for _ in range(1000):  # some are woken before it is noted that they sleep
    thread = threading.Thread(target=time.sleep, args=(0.0001,))
    thread.start()
    thread.join()
print("done", flush=True)
sys.stdin.readline()
"""


@contextmanager
def running(command: list[str], folder: Path, threads: set[str]) -> Iterator[int]:
    """Until the end of the block; first, until it has threads of these names."""
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE) as child:
        try:
            wait_until(lambda: threads <= {procfs.name_of(tid) for tid in procfs.tids(child.pid)})
            yield child.pid
        finally:
            child.kill()


def looked(pid: int, *more: str) -> dict[str, Any]:
    """Of each thread, where it slept longest."""
    told = sched_ctl("waits", str(pid), "--stacks", "--seconds", "2", "--json", *more)
    found: dict[str, Any] = {}
    for place in json.loads(told):
        found.setdefault(place["name"], place)
    return found


def test_a_mutex_of_c_has_its_owner(tmp_path: Path) -> None:
    (tmp_path / "locks.c").write_text(C)
    flags = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-inline", "-pthread"]
    subprocess.run(["gcc", *flags, "locks.c", "-o", "locks"], cwd=tmp_path, check=True)
    with running(["./locks"], tmp_path, {"holds", "wants"}) as pid:
        flame, folded = tmp_path / "flame.svg", tmp_path / "folded"
        found = looked(pid, "--flame", str(flame), "--folded", str(folded))
        wants, holds = found["wants"], found["holds"]
        assert wants["held"]["holder"] == holds["tid"] and wants["share"] > 0.5
        assert holds["held"] is None
        assert any("futex" in frame for frame in wants["kernel"])
        assert any("nanosleep" in frame for frame in holds["kernel"])
        # What the kernel says it slept: no more than passed, and most of what was looked at.
        assert 0.5 < wants["seconds"] < 60
        wakers = {waker["name"] for waker in wants["wakers"]}
        assert "holds" in wakers
        assert "nanosleep" in folded.read_text() and flame.read_text().startswith("<svg")
        seen = holders_of(pid, [wants["tid"], holds["tid"]])
        assert seen.keys() == {wants["tid"]} and seen[wants["tid"]].holder == holds["tid"]


@pytest.mark.needs("java")
def test_monitors_and_locks_of_java_have_theirs(tmp_path: Path) -> None:
    (tmp_path / "Locks.java").write_text(JAVA)
    subprocess.run(["javac", "-d", ".", "Locks.java"], cwd=tmp_path, check=True)
    java = [str(shutil.which("java")), "-Xint", "-Xmx32m", "-XX:+UseSerialGC", "Locks"]
    with running(java, tmp_path, {"wants the monit", "wants the lock"}) as pid:
        found = looked(pid)
        for what, method in (("monitor", "Locks.monitor"), ("lock", "Locks.lock")):
            wants, has = found[f"wants the {what}"], found[f"has the {what}"]
            assert wants["held"]["holder"] == has["tid"]
            assert any(frame.startswith(method) for frame in wants["held"]["at"])
            assert any(frame.startswith("Locks.") for frame in wants["java"])
    assert not list(Path("/tmp").glob(f"perf-{pid}.map"))


def test_calls_of_any_function_are_counted_by_thread(tmp_path: Path) -> None:
    if (why := functions.obstacle()) is not None:
        pytest.skip(f"bcc: {why}")
    (tmp_path / "locks.c").write_text(C)
    flags = ["-O1", "-g", "-fno-inline", "-pthread"]
    subprocess.run(["gcc", *flags, "locks.c", "-o", "locks"], cwd=tmp_path, check=True)
    with running(["./locks"], tmp_path, {"holds", "wants"}) as pid:
        keep = ("waits", str(pid), "--probe", "keep", "--seconds", "2", "--json")
        assert all(one["seconds"] is None and one["times"] for one in json.loads(sched_ctl(*keep)))
        told = sched_ctl(*keep, "--timed")
        found = {one["name"]: one for one in json.loads(told)}
        assert found.keys() == {"holds", "wants"}
        holds = found["holds"]
        assert holds["seconds"] / holds["times"] > 0.05  # what it sleeps there
        assert found["wants"]["seconds"] > 0.5  # what it waits there
        told = sched_ctl(
            "waits", str(pid), "--probe", "nest", "--timed", "--seconds", "1", "--json"
        )
        [nests] = json.loads(told)  # the tenth of them sleeps, after it has called the other nine
        assert nests["name"] == "nests" and nests["seconds"] / nests["times"] > 0.0005
        missing = sched_ctl("waits", str(pid), "--probe", "nosuch", "--seconds", "1", code=1)
        assert "has no function 'nosuch'" in missing and "kernel:NAME" in missing


@pytest.mark.parametrize("timed", [True, False])
def test_calls_on_another_stack_hide_no_others_and_are_safe_to_count(
    tmp_path: Path, timed: bool
) -> None:
    """Those that never end lie above all others. One that goes on after others on a stack above it
    is what the kernel ends a program for, where it looks for ends.
    """
    if (why := functions.obstacle()) is not None:
        pytest.skip(f"bcc: {why}")
    (tmp_path / "stacks.c").write_text(STACKS)
    flags = ["-O1", "-g", "-fno-inline"]
    subprocess.run(["gcc", *flags, "stacks.c", "-o", "stacks"], cwd=tmp_path, check=True)
    kind = "hangs" if timed else "goes on"
    more = ("--timed",) if timed else ()
    with running(["./stacks", kind], tmp_path, {"stacks"}) as pid:
        told = sched_ctl("waits", str(pid), "--probe", "work", *more, "--seconds", "3", "--json")
        [found] = json.loads(told)
        assert found["times"] > 5 and procfs.stat(pid) is not None
        if timed:  # the rest are those that hang
            assert found["seconds"] / found["times"] > 0.009


@pytest.mark.needs("java")
def test_a_static_probe_of_the_jvm_is_counted(tmp_path: Path) -> None:
    if (why := functions.obstacle()) is not None:
        pytest.skip(f"bcc: {why}")
    (tmp_path / "Collects.java").write_text(COLLECTS)
    subprocess.run(["javac", "-d", ".", "Collects.java"], cwd=tmp_path, check=True)
    java = [str(shutil.which("java")), "-Xint", "-Xmx32m", "-XX:+UseSerialGC", "Collects"]
    with running(java, tmp_path, {"VM Thread", "collects"}) as pid:
        library = next(line for line in procfs.lines(f"/proc/{pid}/maps") if "libjvm" in line)
        if b"hotspot\0gc__begin\0" not in Path(library.split(maxsplit=5)[5]).read_bytes():
            pytest.skip("needs a JDK with static probes (--enable-dtrace)")
        probe = ("--probe", "usdt:hotspot:gc__begin", "--seconds", "2", "--json")
        [found] = json.loads(sched_ctl("waits", str(pid), *probe))
        assert found["name"] == "VM Thread"
        assert found["times"] >= 5 and found["seconds"] is None


def test_threads_that_have_ended_do_not_sleep() -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", SHORT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdin is not None and child.stdout is not None
            with Stacks([child.pid]) as followed:
                child.stdin.write("begin\n")
                child.stdin.flush()
                assert child.stdout.readline() == "done\n"
                wait_until(lambda: procfs.tids(child.pid) == [child.pid])
                seen = followed.read()
            assert len({one.tid for one in seen if one.waker >= 0}) > 5  # when they slept
            assert {one.tid for one in seen if one.waker < 0} <= {child.pid}
        finally:
            child.kill()


def is_pinned(pid: int, cpu: int) -> bool:
    return os.sched_getaffinity(pid) == {cpu}


def test_a_sleep_whose_end_was_missed_is_not_told_for_ever() -> None:
    """Of a thread that has ended, at once. Of one that runs, once it is switched in: it shares a
    CPU, and never sleeps again.
    """
    cpu = min(os.sched_getaffinity(0))
    spin = [sys.executable, "-S", "-c", f"import os; os.sched_setaffinity(0, [{cpu}])\nwhile 1: 0"]
    with subprocess.Popen(spin) as runs, subprocess.Popen(spin) as other:
        try:
            for pid in (runs.pid, other.pid):
                wait_until(partial(is_pinned, pid, cpu))
            with subprocess.Popen(["true"]) as ended:
                ended.wait()
            with Stacks([runs.pid]) as followed:
                asleep = np.zeros((), dtype=followed.program.btf.dtype("asleep")).tobytes()
                for pid in (runs.pid, ended.pid):
                    followed.program.update("sleepers", pid.to_bytes(4, "little"), asleep)
                assert ended.pid not in {one.tid for one in followed.read()}
                wait_until(lambda: not [one for one in followed.read() if one.waker < 0])
        finally:
            runs.kill()
            other.kill()


def test_a_process_that_is_not_there_is_told(tmp_path: Path) -> None:
    told = sched_ctl("waits", str(1 << 22), "--stacks", code=1)
    assert "there is no process" in told
    told = sched_ctl(
        "waits", str(os.getpid()), "--flame", str(tmp_path), "--seconds", "0.1", code=1
    )
    assert "cannot write" in told
