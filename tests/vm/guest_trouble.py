"""What happens to a machine while a controller runs: no memory is left, the clock is set."""

import asyncio
import os
import signal
import tempfile
import time
from pathlib import Path

from fakes import FakeBackend, FakeEngine, backends, drive
from victims import Victim, plan

from sched_ctl.backends.threads.nice import Nice
from sched_ctl.backends.undo import journal as journals
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.kernel import cgroup, sched
from sched_ctl.model.options import NiceOptions

KERNELS = ("6.16",)
CPUS = 1
ICOUNT = True
ICOUNT_SHIFT = 2
TIMEOUT_S = 180

MOUNT = Path("/sys/fs/cgroup")
GROUP = MOUNT / "hungry.service"
DAY_S = 86_400


def check_all_is_put_back_after_the_kernel_took_the_memory() -> None:
    """The controller is killed in the middle of what it does, by memory.max of its cgroup."""
    cgroup.write(MOUNT / "cgroup.subtree_control", "+memory")
    GROUP.mkdir(exist_ok=True)
    cgroup.write(GROUP / "memory.max", str(32 << 20))
    victim = Victim()
    try:
        threads = victim.threads(6)
        path = Path(tempfile.mkdtemp(dir="/run")) / "journal"
        if (controller := os.fork()) == 0:
            cgroup.write(GROUP / "cgroup.procs", str(os.getpid()))
            backend = Nice(Journal(path), NiceOptions(best=0))
            eaten: list[bytes] = []
            while True:
                backend.apply(plan(threads, [(place + len(eaten)) % 6 for place in range(6)]))
                eaten.append(os.urandom(1 << 18))
        _, status = os.waitpid(controller, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        assert "oom_kill 1" in (GROUP / "memory.events").read_text()
        changed = {sched.get_nice(thread.tid) for thread in threads}
        assert len(changed) > 1, changed
        assert journals.restore(Journal(path)) == []
        assert {sched.get_nice(thread.tid) for thread in threads} == {0}
    finally:
        victim.close()
        GROUP.rmdir()
        cgroup.write(MOUNT / "cgroup.subtree_control", "-memory")


def check_passes_go_on_when_the_clock_is_set() -> None:
    """A day ahead, two back, and to where it was: no engine is silent, no pass waits for it."""
    engine, backend = FakeEngine(), FakeBackend()
    settings = Settings(
        policy=(Section(policy="hr"),), period=0.05, calm_period=0, discover=0.2, cpu_limit=0
    )
    controller = Controller(settings, FakeEngine.kind(engine), backends(backend))

    async def script() -> None:
        [rule] = controller.rules
        for step_s in (DAY_S, -2 * DAY_S, DAY_S):
            before, polls, began_s = rule.passes, engine.polls, time.monotonic()
            now_s = time.clock_gettime(time.CLOCK_REALTIME)
            time.clock_settime(time.CLOCK_REALTIME, now_s + step_s)
            while rule.passes < before + 5 or engine.polls < polls + 5:
                await asyncio.sleep(0.01)
            print(f"{rule.passes - before} passes in {time.monotonic() - began_s:.2f} s")
            assert [one.state for one in controller.engines.values()] == ["ok"]

    drive(controller, script)
