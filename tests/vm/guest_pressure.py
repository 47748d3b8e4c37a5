"""PSI triggers, and the pressure of one cgroup: what nobody should try on a machine in use."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from burning import spin

from sched_ctl.controller.pace import Pace
from sched_ctl.kernel import cgroup, psi
from sched_ctl.probes.pressure import Gauge

KERNELS = ("6.16",)
CPUS = 1
ICOUNT = True
ICOUNT_SHIFT = 2
TIMEOUT_S = 180

MOUNT = Path("/sys/fs/cgroup")
GROUP = MOUNT / "pressed.service"


@contextmanager
def hogs(count: int, group: Path | None = None) -> Iterator[float]:
    """So many processes that want the only CPU. Gives the time at which they were let go."""
    reader, writer = os.pipe()
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)
            spin()
        if group is not None:
            cgroup.write(group / "cgroup.procs", str(pid))
        pids.append(pid)
    os.close(reader)
    os.close(writer)
    try:
        yield time.monotonic()
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


async def woken(path: Path, group: Path | None, window_s: float) -> tuple[float, int, float]:
    """Seconds from the pressure's begin to the first call, calls before, and the window."""
    calls: list[float] = []
    trigger = psi.Trigger(
        path, lambda there: calls.append(time.monotonic()), share=0.1, window_s=window_s
    )
    try:
        await asyncio.sleep(2 * trigger.window_s)
        quiet = len(calls)
        with hogs(3, group) as began_s:
            end_s = began_s + 20
            while len(calls) == quiet and time.monotonic() < end_s:
                await asyncio.sleep(0.01)
        assert len(calls) > quiet, "no event"
        return calls[quiet] - began_s, quiet, trigger.window_s
    finally:
        trigger.close()


def check_a_trigger_wakes_the_loop_when_pressure_begins() -> None:
    after_s, quiet, window_s = asyncio.run(woken(psi.path_of("cpu"), None, 1.0))
    print(f"woken {after_s * 1e3:.0f} ms after the hogs began; {quiet} calls before")
    assert window_s == 1.0  # root has CAP_SYS_RESOURCE
    assert after_s < 1.5  # 0.1 s of stalls first; then the kernel looks ten times a window


def check_a_cgroup_tells_its_own_pressure() -> None:
    cgroup.write(MOUNT / "cgroup.subtree_control", "+cpu")
    GROUP.mkdir(exist_ok=True)
    quiet = MOUNT / "quiet.service"
    quiet.mkdir(exist_ok=True)
    try:
        mine, other = Gauge("cpu", GROUP), Gauge("cpu", quiet)
        assert mine.read() is not None and other.read() is not None
        with hogs(3, GROUP):
            time.sleep(2)
            pressed, calm = mine.read(), other.read()
        assert pressed is not None and pressed.some_share > 0.8
        assert calm is not None and calm.some_share == 0.0
        after_s, _, _ = asyncio.run(woken(psi.path_of("cpu", GROUP), GROUP, 1.0))
        assert after_s < 1.5
    finally:
        GROUP.rmdir()
        quiet.rmdir()
        cgroup.write(MOUNT / "cgroup.subtree_control", "-cpu")


def check_without_the_capability_the_window_is_a_multiple_of_two_seconds() -> None:
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setuid(65534)
        code = 1
        try:
            after_s, _, window_s = asyncio.run(woken(psi.path_of("cpu"), None, 1.0))
            code = 0 if window_s == 2.0 and after_s < 3.0 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def check_a_trigger_ends_calm_at_once() -> None:
    async def watch() -> None:
        pace = Pace(60.0, 0.0)
        calls: list[float] = []
        pace.watch(lambda: calls.append(time.monotonic()))
        pace.some_share = 0.0  # the last look found nothing
        with hogs(3):
            end_s = time.monotonic() + 20
            while not calls and time.monotonic() < end_s:
                await asyncio.sleep(0.01)
            await asyncio.sleep(3)
        assert len(calls) == 1 and pace.woken == 1  # once, though the pressure lasted
        pace.close()

    asyncio.run(watch())
