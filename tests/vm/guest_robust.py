"""Whatever happens to the controller, the kernel or the threads: everybody makes progress, and
everything is put back.

With exact time, in which a thousand threads a second are born. `guest_robust_smp.py` and
`guest_controller.py` have two CPUs.
"""

import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from burning import spin
from operators import start
from vm.attacks import storm, threads_born
from vm.inside import look_until, only_on, skip, text_of
from vm.machine import (
    above_all,
    everybody_runs,
    journal,
    progress,
    schedule,
    spinning,
    steady,
    thread_of,
    wait_for,
)

from sched_ctl.backends.scx.backend import Scx
from sched_ctl.backends.scx.monitor import Ejected
from sched_ctl.backends.undo.journal import Journal, restore
from sched_ctl.kernel import procfs, sched, schedext
from sched_ctl.kernel.scheduler import LoadError, Scheduler, thread_pidfd
from sched_ctl.model.options import ScxOptions
from sched_ctl.model.topology import Thread
from support import wait_until

KERNELS = ("6.18", "7.3")
CPUS = 1
ICOUNT = True
ICOUNT_SHIFT = 2
TIMEOUT_S = 180

# Order decides, and hints count, however long a slow guest takes between two steps.
PATIENT = steady(gap=30.0, ttl=20.0)
LOOK_S = 1.0

schedext.kernel_types()  # read once, before the checks are forked


def controller(threads: list[Thread], static: list[float], options: ScxOptions = PATIENT) -> int:
    """Pid of another process that schedules these threads until it is killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            above_all()
            backend = Scx(journal(), options)
            backend.apply(schedule(threads, static))
            os.write(writer, b"x")
            while True:
                time.sleep(0.2)
                backend.apply(schedule(threads, static))
        finally:  # nothing of the check's own
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    assert os.read(reader, 1) == b"x", "the controller did not start"
    os.close(reader)
    return pid


def ejected(backend: Scx, threads: list[Thread], trigger: Callable[[], object]) -> Ejected:
    """Do something that makes the kernel end the scheduler; what `apply` says then."""
    lost: list[str] = []
    backend.on_lost = lost.append
    backend.apply(schedule(threads, 0.0))
    trigger()
    took = wait_for("disabled")
    began = time.monotonic()
    while not lost and time.monotonic() - began < 60:
        time.sleep(0.05)
    print(f"disabled after {took:.2f} s: {lost}")
    assert lost, "on_lost was not called"
    try:
        backend.apply(schedule(threads, 0.0))
    except Ejected as error:
        assert backend.restore() == ()
        everybody_runs(threads)
        assert all(os.sched_getscheduler(t.tid) == sched.OTHER for t in threads)
        return error
    raise AssertionError("apply went well after the kernel had ended the scheduler")


def check_controller_killed() -> None:
    with spinning(3) as threads:
        pid = controller(threads, [3.0, 2.0, 1.0])
        wait_for("enabled")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        print(f"disabled after {wait_for('disabled'):.2f} s")
        everybody_runs(threads)
        log = journal()
        assert restore(log) == []
        assert not log.state
        assert all(os.sched_getscheduler(t.tid) == sched.OTHER for t in threads)
        assert schedext.server_share() in (None, 0.05)


@only_on("7.3")
def check_controller_stopped() -> None:
    """SIGSTOP: the hints expire, then all are equal; SIGCONT: they count again."""

    def look() -> list[float]:
        return progress(threads, LOOK_S)

    def in_order(got: list[float]) -> bool:
        return got[0] > 0.7

    with spinning(4) as threads:
        pid = controller(threads, [4.0, 3.0, 2.0, 1.0], steady(gap=30.0, ttl=5.0))
        look_until(look, in_order)
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: min(look()) > 0.2, what="all are equal")
        os.kill(pid, signal.SIGCONT)
        look_until(look, in_order)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        wait_for("disabled")
        assert restore(journal()) == []


def check_error() -> None:
    with spinning(3) as threads:
        backend = Scx(journal(), steady())

        def fault() -> None:
            assert backend.scheduler is not None
            backend.scheduler.control["fault"] = 1

        error = ejected(backend, threads, fault)
        assert error.kind == "ERROR_BPF", error.kind
        assert "a fault was asked for" in error.message, error.message
        dump = journal().path.with_name("sched_ext.dump")
        assert error.hint is not None and str(dump) in error.hint, error.hint
        saved = dump.read_text()
        print(saved[:400])
        assert "a fault was asked for" in saved
        assert "sched_ctl: hints valid" in saved  # what the scheduler adds
        assert dump.stat().st_mode & 0o077 == 0


def check_stall() -> None:
    """A scheduler that loses threads is thrown out by the kernel's watchdog."""
    with spinning(3) as threads:
        for thread in threads:
            os.sched_setscheduler(thread.tid, sched.EXT, os.sched_param(0))
        with Scheduler(full=False, timeout_ms=2000) as scheduler:
            scheduler.attach()
            scheduler.control["fault"] = 2
            took = wait_for("disabled")
            end = scheduler.exit()
            print(f"{took:.1f} s: {end}")
            assert end is not None
            assert end.kind == "ERROR_STALL", end
            assert "not given a CPU for too long" in str(end)
            dump = scheduler.dump()
            print(len(dump), dump[:400])
            assert "CPU states" in dump, dump
        everybody_runs(threads)


@only_on("7.3")
def check_sysrq() -> None:
    with spinning(3) as threads:
        Path("/proc/sys/kernel/sysrq").write_text("1")
        trigger = Path("/proc/sysrq-trigger")
        error = ejected(Scx(journal(), steady()), threads, lambda: trigger.write_text("S"))
        assert error.kind == "SYSRQ"
        assert "SysRq-S" in error.message


def work_and_nap() -> None:
    for _ in range(5_000):
        pass
    time.sleep(0.002)


def check_threads_born_and_dying() -> None:
    """A thousand a second, children of adopted ones, beside adopted threads."""
    pids = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            storm(4, 8_000_000)
        pids.append(pid)
    try:
        with start(1, work_and_nap) as others:
            above_all()
            threads = [thread_of(pid) for pid in others]
            wait_until(lambda: all(len(procfs.tids(pid)) > 1 for pid in pids))
            # The second thread of each is the C library's, which makes the others.
            churn = [thread_of(pid, tid) for pid in pids for tid in sorted(procfs.tids(pid))[:2]]
            backend = Scx(journal(), steady())
            members = [*churn, *threads]
            backend.apply(schedule(members, 2.0))
            began, before = time.monotonic(), threads_born()
            for _ in range(6):
                applied = backend.apply(schedule(members, 2.0))
                assert not applied.problems, applied.problems
                time.sleep(0.5)
            took, born = time.monotonic() - began, threads_born() - before
            print(f"{born / took:.0f} threads a second", backend.statistics())
            assert born > 950 * took
            assert schedext.attached() == "sched_ctl"
            assert backend.restore() == ()
            # Threads that were born of adopted ones are given back too.
            policies = [os.sched_getscheduler(tid) for pid in pids for tid in procfs.tids(pid)]
            assert set(policies) == {sched.OTHER}, policies
            everybody_runs(threads)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@only_on("7.3")
def check_reused_tid() -> None:
    """A thread that gets the id of an adopted one that died is not taken for it."""
    last_pid = Path("/proc/sys/kernel/ns_last_pid")
    if not last_pid.exists():
        skip("CONFIG_CHECKPOINT_RESTORE")
    backend = Scx(journal(), steady())
    with spinning(1) as threads:
        backend.apply(schedule(threads))
        victim = threads[0].tid
    for _ in range(50):
        last_pid.write_text(str(victim - 1))  # the next is this one, unless somebody else is born
        pid = os.fork()
        if pid == 0:
            if os.getpid() == victim:
                time.sleep(1000)
            os._exit(0)
        if pid == victim:
            break
        os.waitpid(pid, 0)
    else:
        skip("a reused tid")
    try:
        applied = backend.apply(schedule(threads))
        assert backend.scheduler is not None
        fd = thread_pidfd(victim)
        assert backend.scheduler.adopted_slot(fd) is None
        os.close(fd)
        fresh = thread_of(victim)
        assert fresh != threads[0]
        applied = backend.apply(schedule([fresh]))
        assert not applied.problems, applied
        assert backend.restore() == ()
        assert os.sched_getscheduler(victim) == sched.OTHER
    finally:
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)


def check_fork_and_exec() -> None:
    """Children of an adopted process run, are nobody's operators, and are released with it."""
    reader, writer = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # or it kills instead of waking
    pid = os.fork()
    if pid == 0:
        signal.sigwait({signal.SIGUSR1})
        child = os.fork()
        if child == 0:
            os.execv("/bin/sh", ["sh", "-c", "while :; do :; done"])
        os.write(writer, child.to_bytes(4, "little"))
        spin()
    os.close(writer)
    above_all()
    backend = Scx(journal(), PATIENT)
    parent = thread_of(pid)
    child = 0
    try:
        backend.apply(schedule([parent], 1.0))
        os.kill(pid, signal.SIGUSR1)
        child = int.from_bytes(os.read(reader, 4), "little")
        assert child, "the operator ended instead of forking"
        both = [parent, thread_of(child)]
        # What it ran on before the operator was there is taken off its part of the CPU first, which
        # takes longer where its file was read slowly; who starves never gets so much.
        got: list[float] = []

        def has_its_part() -> bool:
            got[:] = progress(both, LOOK_S)
            print(got)
            return got[0] > 0.3 and got[1] > 0.03

        wait_until(has_its_part, what="the child has its part of the CPU")
        assert backend.restore() == ()
        assert os.sched_getscheduler(child) == sched.OTHER
        assert os.sched_getscheduler(pid) == sched.OTHER
    finally:
        for victim in filter(None, (pid, child)):
            os.kill(victim, signal.SIGKILL)
        os.waitpid(pid, 0)


@only_on("7.3")
def check_two_controllers() -> None:
    with spinning(3) as threads:
        pid = controller(threads, [3.0, 2.0, 1.0])
        # As another user would start it: it must not undo what is in the first one's journal.
        second = Scx(Journal(Path("/run/second/journal")), steady())
        try:
            second.apply(schedule(threads, [1.0, 2.0, 3.0]))
            raise AssertionError("the second controller took over")
        except LoadError as error:
            print(error)
            assert "ours is attached (sched_ctl)" in error.message
            assert error.transient
        assert text_of("/sys/kernel/sched_ext/state") == "enabled"
        look_until(lambda: progress(threads, LOOK_S), lambda got: got[0] > 0.7)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        wait_for("disabled")
        assert restore(journal()) == []
        everybody_runs(threads)
