"""The tracing program on this machine's kernel, which may have fewer symbols than guests'."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labs import sched_ctl
from planted import hogs

from sched_ctl.kernel import procfs, tracing
from sched_ctl.probes import timeline
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root")]
BUSY = [sys.executable, "-S", "-c", "while True: pass"]


def test_waits_and_wake_ups_are_counted() -> None:
    if (why := tracing.obstacle()) is not None:
        pytest.skip(f"tracing: {why}")
    tids, end = list[int](), threading.Event()

    def run() -> None:
        tids.append(threading.get_native_id())
        while not end.is_set():
            time.sleep(0.01)

    thread = threading.Thread(target=run)
    with tracing.Tracer([os.getpid()], wakings=True) as tracer:
        thread.start()
        try:
            wait_until(lambda: bool(tids) and tids[0] in tracer.threads())
            wait_until(lambda: tracer.threads()[tids[0]]["wakeups"] > 20)
            row = tracer.threads()[tids[0]]
            assert row["slots"].sum() > 10
            # Which may be nothing: the kernel does not look at the clock between waking up a thread
            # on an idle CPU and running it.
            waited_ns = int(Path(f"/proc/self/task/{tids[0]}/schedstat").read_text().split()[1])
            assert row["wait_ns"] <= waited_ns
            assert any(of == tids[0] for _, of in tracer.wakings())
        finally:
            end.set()
            thread.join()


def test_a_timer_s_wake_ups_are_nobody_s_whom_it_interrupts() -> None:
    """A busy thread of the same CPU would feed it, of another process or not."""
    if (why := tracing.obstacle()) is not None:
        pytest.skip(f"tracing: {why}")
    cpu = min(os.sched_getaffinity(0))
    naps = [sys.executable, "-S", "-c", "import time\nwhile True: time.sleep(.005)"]
    with (
        pinned(naps, cpu) as sleeper,
        pinned(BUSY, cpu) as busy,
        tracing.Tracer([sleeper, busy], wakings=True) as tracer,
    ):
        wait_until(lambda: tracer.wakings().get((0, sleeper), 0) > 100)
        assert tracer.wakings().get((busy, sleeper), 0) <= 2


@contextlib.contextmanager
def pinned(command: list[str], cpu: int) -> Iterator[int]:
    program = subprocess.Popen(command)
    try:
        os.sched_setaffinity(program.pid, {cpu})
        yield program.pid
    finally:
        program.kill()
        program.wait()


def test_a_thread_that_never_has_a_turn_is_shown() -> None:
    """It comes after all others on its CPU, and has one in seconds at the most."""
    if (why := tracing.obstacle()) is not None:
        pytest.skip(f"tracing: {why}")
    cpu = max(os.sched_getaffinity(0))

    def last() -> None:
        os.sched_setaffinity(0, {cpu})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    with hogs(4, cpu), subprocess.Popen(BUSY, preexec_fn=last) as child:
        try:
            found = list[dict[str, Any]]()

            def waits() -> bool:
                told = sched_ctl("waits", str(child.pid), "--seconds", "2", "--json")
                found[:] = [one for one in json.loads(told) if one["goes_on_s"]]
                return bool(found)

            wait_until(waits, 50)  # as long as there are hogs
            [one] = found
            assert one["tid"] == child.pid
            assert 1.0 < one["goes_on_s"] <= one["wait_s"] and one["waits"] >= 1
        finally:
            child.kill()


def test_a_thread_with_the_id_of_a_dead_one_begins_anew() -> None:
    if (why := tracing.obstacle()) is not None:
        pytest.skip(f"tracing: {why}")
    last = Path("/proc/sys/kernel/ns_last_pid")
    if not last.exists():
        pytest.skip("needs CONFIG_CHECKPOINT_RESTORE")

    def slept(times: int) -> int:
        tids = list[int]()

        def run() -> None:
            tids.append(threading.get_native_id())
            for _ in range(times):
                time.sleep(0.001)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return tids[0]

    with tracing.Tracer([os.getpid()]) as tracer:
        first = slept(100)
        before = tracer.threads()[first]

        def again() -> bool:
            last.write_text(str(first - 1))
            return slept(3) == first

        wait_until(again)
        row = tracer.threads()[first]
        assert 0 < row["slots"].sum() < 20 < before["slots"].sum()
        assert row["slots"][-1] == 0  # a wait is no difference to the dead one's
        assert row["born_ns"] > before["born_ns"] > 0


@contextlib.contextmanager
def beside_hogs(count: int = 1) -> Iterator[int]:
    """A process that never sleeps and shares a CPU with so many others."""
    cpu = max(os.sched_getaffinity(0))

    def here() -> None:
        os.sched_setaffinity(0, {cpu})

    with hogs(count, cpu), subprocess.Popen(BUSY, preexec_fn=here) as child:
        try:
            yield child.pid
        finally:
            child.kill()


def row_of(tracer: tracing.Tracer, tid: int) -> Any:
    """Its `struct waits` in the kernel's memory, to write there what was seen last."""
    waits = tracer._program.waits

    def place() -> list[int]:
        return [at for at, of in enumerate(waits["tid"].tolist()) if of == tid]

    wait_until(lambda: bool(place()))
    return waits[place()[0] :][:1]


def delay_ns(pid: int) -> int:
    times = procfs.times(pid, pid)
    assert times is not None
    return round(times[1] * 1e9)


def stop(pid: int, row: Any) -> None:
    """Until it has left its CPU for that."""
    wait_until(lambda: row["awake_ns"][0] > 0)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: row["awake_ns"][0] == 0)


def has_waited_more(row: Any, times: int) -> bool:
    return bool(row["slots"].sum() > times)


def test_turns_that_were_missed_are_in_no_wait() -> None:
    """It was seen long ago, and has waited many times since then."""
    if (why := tracing.obstacle()) is not None:
        pytest.skip(f"tracing: {why}")
    with beside_hogs() as pid, tracing.Tracer([pid], wakings=True) as tracer:
        row = row_of(tracer, pid)
        wait_until(lambda: delay_ns(pid) > 500_000_000)
        stop(pid, row)  # so that nobody else writes there
        row["turns"], row["delay_ns"] = 1, 1
        kernel, told, times = delay_ns(pid), int(row["wait_ns"][0]), int(row["slots"].sum())
        os.kill(pid, signal.SIGCONT)
        wait_until(partial(has_waited_more, row, times + 5))
        told = int(row["wait_ns"][0]) - told
        assert 0 < told <= delay_ns(pid) - kernel


def test_who_was_not_seen_to_fall_asleep_is_awake_since_it_was_woken() -> None:
    if (why := tracing.obstacle()) is not None:
        pytest.skip(f"tracing: {why}")
    with beside_hogs() as pid, tracing.Tracer([pid], wakings=True) as tracer:
        row = row_of(tracer, pid)
        stop(pid, row)
        asleep_ns, times = time.monotonic_ns(), int(row["slots"].sum())
        row["awake_ns"] = 1
        os.kill(pid, signal.SIGCONT)
        wait_until(partial(has_waited_more, row, times))  # it runs
        assert row["awake_ns"][0] > asleep_ns


def test_who_never_sleeps_is_awake_since_then_whatever_turns_were_missed() -> None:
    if (why := tracing.obstacle()) is not None:
        pytest.skip(f"tracing: {why}")
    with beside_hogs() as pid, tracing.Tracer([pid], wakings=True) as tracer:
        row = row_of(tracer, pid)
        wait_until(lambda: row["awake_ns"][0] > 0)
        row["awake_ns"] = 1
        times = int(row["slots"].sum())

        def misses() -> bool:
            row["turns"] = 1
            return bool(row["slots"].sum() > times + 5)

        wait_until(misses)
        assert row["awake_ns"][0] == 1


def test_who_ran_before_a_switch_that_was_missed_is_blamed_for_nothing() -> None:
    """Runs of nobody that no thread's follows, as if it had got the CPU from somebody unseen."""
    if (why := tracing.obstacle()) is not None:
        pytest.skip(f"tracing: {why}")
    nobody = tracing.MOST_IDS
    with beside_hogs(2) as pid, tracing.Tracer([pid]) as tracer:
        row, object_ = row_of(tracer, pid), tracer._program.object
        runs = np.zeros((), dtype=object_.btf.dtype("runs"))
        runs["of"]["begin_ns"], runs["of"]["tid"], runs["of"]["then"] = 1, nobody, nobody
        possible = Path("/sys/devices/system/cpu/possible").read_text()
        cpus = int(re.findall(r"\d+", possible)[-1]) + 1
        for _ in range(50):  # some while it waits for the second turn of others
            object_.update("recent", bytes(4), runs.tobytes() * cpus)
            times = int(row["slots"].sum())
            wait_until(partial(has_waited_more, row, times))
        behind = {who: ns for (who, of), ns in tracer.occupants().items() if of == pid}
        assert behind and nobody not in behind
        assert sum(behind.values()) <= row["wait_ns"][0]


def test_a_timeline_has_the_cpu_time_that_the_kernel_counts(tmp_path: Path) -> None:
    if (why := tracing.obstacle()) is not None:
        pytest.skip(f"tracing: {why}")
    end, tids = threading.Event(), list[int]()

    def work() -> None:
        tids.append(threading.get_native_id())
        while not end.is_set():
            until = time.thread_time() + 0.005
            while time.thread_time() < until:
                pass
            time.sleep(0.005)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(lambda: bool(tids))
        schedstat = Path(f"/proc/self/task/{tids[0]}/schedstat")
        before = [int(word) for word in schedstat.read_text().split()]
        found = timeline.record([os.getpid()], tids, 2.0)["traceEvents"]
        after = [int(word) for word in schedstat.read_text().split()]
    finally:
        end.set()
        thread.join()
    spent_us, delay_us = (
        (now - then) / 1e3 for now, then in zip(after[:2], before[:2], strict=True)
    )
    runs_us, waits_us = (
        sum(e["dur"] for e in found if e["ph"] == "X" and e["name"] == what)
        for what in ("runs", "waits")
    )
    # The log begins later and ends sooner than what the kernel counts between the two looks.
    assert 0.3 * spent_us < runs_us < 1.2 * spent_us + 20_000
    assert waits_us < 1.2 * delay_us + 20_000
