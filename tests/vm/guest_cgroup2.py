"""The cgroup v2 backends, and the fall to them where the cpu controller is in version 2."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from operators import busy, shares
from victims import Victim, plan
from vm.inside import enough_on, look_until

from sched_ctl.backends import BackendFailed
from sched_ctl.backends.cgroups import v2
from sched_ctl.backends.cgroups.v2 import Cgroup2, Cgroup2Nice
from sched_ctl.backends.undo import journal as journals
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.drivers.threads import threads_of
from sched_ctl.kernel import cgroup, sched
from sched_ctl.model.options import Cgroup2Options
from sched_ctl.model.topology import Thread
from support import wait_until

KERNELS = ("6.1", "6.16")
CPUS = 1
ICOUNT = True
ICOUNT_SHIFT = 2
TIMEOUT_S = 180

MOUNT = Path("/sys/fs/cgroup")
ENGINE = MOUNT / "engine.service"


@contextmanager
def engine(folder: Path | None = ENGINE, *, cpu: bool = True) -> Iterator[Victim]:
    """A process in a cgroup of its own, all of which is what it was afterwards."""
    given = (MOUNT / "cgroup.subtree_control").read_text().split()
    cgroup.write(MOUNT / "cgroup.subtree_control", "+cpu +memory" if cpu else "-cpu")
    if folder:
        folder.mkdir(exist_ok=True)
    victim = Victim()
    try:
        if folder:
            cgroup.write(folder / "cgroup.procs", str(victim.pid))
        control = (MOUNT / "cgroup.subtree_control").read_text()
        before = victim.everything()[victim.pid]
        yield victim
        left = {tid: now for tid, now in victim.everything().items() if now != before}
        assert not left, left
        assert not list(MOUNT.rglob("sched-ctl"))
        assert (MOUNT / "cgroup.subtree_control").read_text() == control
        if folder:
            assert (folder / "cgroup.type").read_text() == "domain\n"
            assert (folder / "cgroup.subtree_control").read_text().strip() == ""
    finally:
        victim.close()
        if folder:
            wait_until(lambda: gone(folder))
        back = " ".join(f"-{name}" for name in ("cpu", "memory") if name not in given)
        cgroup.write(MOUNT / "cgroup.subtree_control", back)


def gone(folder: Path) -> bool:
    with suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def new_journal() -> Journal:
    return Journal(Path(tempfile.mkdtemp(dir="/run")) / "run" / "journal")


def place(thread: Thread) -> Path:
    found = next(h for h in cgroup.hierarchies() if h.version == 2)
    folder = found.folder_of(thread.pid, thread.tid)
    assert folder is not None
    return folder


def check_groups_are_threaded_children_and_go_again() -> None:
    with engine() as victim:
        threads, journal = victim.threads(4), new_journal()
        backend = Cgroup2Nice(journal, Cgroup2Options(best=0))
        schedule = plan(threads, [1, 2, 3, 4], {"a": (1, (0, 1)), "b": (4, (2, 3))})
        assert backend.apply(schedule).problems == ()
        one, two = place(threads[0]), place(threads[2])
        assert one.parent == two.parent == ENGINE / "sched-ctl" and one != two
        assert (ENGINE / "cgroup.type").read_text() == "domain threaded\n"
        weights = [int((folder / "cpu.weight").read_text()) for folder in (one, two)]
        assert weights == [50, 200], weights
        assert [sched.get_nice(thread.tid) for thread in threads] == [10, 0, 10, 0]
        assert backend.apply(schedule).writes == 0
        born = victim.thread(int(victim.ask("from 0")))
        assert place(born) == one
        assert backend.restore() == ()
        assert not journal.state


def check_an_engine_in_the_root_cgroup() -> None:
    with engine(None) as victim:
        threads, journal = victim.threads(2), new_journal()
        backend = Cgroup2(journal)
        assert backend.apply(plan(threads, [1, 2])).problems == ()
        assert place(threads[0]).parent == MOUNT / "sched-ctl"
        assert backend.restore() == ()


def check_everything_is_put_back_after_kill_9() -> None:
    with engine() as victim:
        threads = victim.threads(6)
        path = Path(tempfile.mkdtemp(dir="/run")) / "journal"
        for pause_s in (0.0, 0.02, 0.3):
            if (controller := os.fork()) == 0:
                backend = Cgroup2Nice(Journal(path), Cgroup2Options(best=0))
                for turn in range(10**6):
                    half = tuple(range(turn % 5 + 1))
                    rest = tuple(range(turn % 5 + 1, 6))
                    groups = {"a": (1.0, half), "b": (4.0, rest)}
                    backend.apply(plan(threads, list(range(6)), groups))
            wait_until(lambda: path.exists() and path.stat().st_size > 0)
            time.sleep(pause_s)  # the moment is what varies
            os.kill(controller, signal.SIGKILL)
            os.waitpid(controller, 0)
            assert journals.restore(Journal(path)) == []
            assert {place(thread) for thread in threads} == {ENGINE}
            assert {sched.get_nice(thread.tid) for thread in threads} == {0}


@enough_on("6.1")  # our words, of rules that no kernel has changed
def check_a_cgroup_without_the_controller_is_refused_in_words() -> None:
    with engine(cpu=False) as victim:
        threads, journal = victim.threads(2), new_journal()
        schedule = plan(threads, [1, 2], {"a": (1, (0, 1))})
        backend = Cgroup2Nice(journal, Cgroup2Options(best=0))
        try:
            backend.apply(schedule)
        except BackendFailed as error:
            assert "does not have the cpu controller" in error.message and error.hint
        else:
            raise AssertionError("the cgroup has no cpu controller")
        assert not journal.state
        # With leave to let the cgroups above pass it on
        backend = Cgroup2Nice(journal, Cgroup2Options(ancestors=True))
        assert backend.apply(schedule).problems == ()
        assert place(threads[0]).is_relative_to(ENGINE / "sched-ctl")
        assert backend.restore() == ()


def check_a_limit_that_others_set_since_is_not_lost() -> None:
    """The controller stays where it is needed, as without it the limit would be gone."""
    above = MOUNT / "all.slice"
    inner, beside = above / "engine.service", above / "other.service"
    victim = Victim()
    try:
        cgroup.write(MOUNT / "cgroup.subtree_control", "-cpu")
        for folder in (above, inner, beside):
            folder.mkdir()
        cgroup.write(inner / "cgroup.procs", str(victim.pid))
        threads, journal = victim.threads(2), new_journal()
        backend = Cgroup2Nice(journal, Cgroup2Options(ancestors=True))
        assert backend.apply(plan(threads, [1, 2], {"a": (1, (0, 1))})).problems == ()
        cgroup.write(beside / "cpu.max", "20000 100000")
        assert backend.restore() == ()
        assert not journal.state
        assert (beside / "cpu.max").read_text() == "20000 100000\n"
        assert place(threads[0]) == inner
        assert (inner / "cgroup.subtree_control").read_text().strip() == ""
    finally:
        victim.close()
        wait_until(lambda: all(gone(folder) for folder in (inner, beside, above)))
        cgroup.write(MOUNT / "cgroup.subtree_control", "-cpu")


@enough_on("6.1")  # our words, of rules that no kernel has changed
def check_a_cgroup_with_children_is_refused_in_words() -> None:
    with engine() as victim:
        inner = ENGINE / "inner"
        inner.mkdir()
        child = int(victim.ask("threads 1")) and int(victim.ask("child 0"))
        cgroup.write(inner / "cgroup.procs", str(child))
        problem = v2.why_not(ENGINE, MOUNT)
        assert problem is not None and "inner" in problem[0], problem
        cgroup.write(ENGINE / "cgroup.procs", str(child))
        inner.rmdir()
        assert v2.why_not(ENGINE, MOUNT) is None


@enough_on("6.1")  # our words, of rules that no kernel has changed
def check_one_unfit_cgroup_spoils_no_other() -> None:
    """The engine in it has nice values alone, and a problem says so; others have their groups."""
    unfit = MOUNT / "unfit.service"
    with engine() as victim, engine(unfit) as other:
        inner = unfit / "inner"
        inner.mkdir()
        threads = (*victim.threads(2), *other.threads(2))
        child = int(other.ask("child 0"))
        cgroup.write(inner / "cgroup.procs", str(child))
        backend = Cgroup2Nice(new_journal(), Cgroup2Options(best=0, recheck=0.1))
        schedule = plan(threads, [1, 2, 1, 2], {"a": (1, (0, 2)), "b": (4, (1, 3))})
        for _ in range(2):  # it is said again with each pass
            (problem,) = backend.apply(schedule).problems
            assert "inner" in problem and "nice values alone" in problem, problem
        folders = [place(thread) for thread in threads]
        assert folders[0].parent == folders[1].parent == ENGINE / "sched-ctl"
        assert folders[2:] == [unfit, unfit]
        levels = [sched.get_nice(thread.tid) for thread in threads]
        assert levels[2] > levels[3] + 3, levels  # a share of 1 to 4
        # Mended, it gets its groups by itself.
        cgroup.write(unfit / "cgroup.procs", str(child))
        inner.rmdir()
        wait_until(lambda: not backend.apply(schedule).problems, 20)
        assert place(threads[2]).parent == unfit / "sched-ctl"
        assert backend.restore() == ()


def check_shares_of_one_to_four() -> None:
    with engine() as victim, busy(4) as pids:
        backend = Cgroup2(new_journal())
        try:
            for pid in pids:
                cgroup.write(ENGINE / "cgroup.procs", str(pid))
            threads = [thread for pid in pids for thread in threads_of(pid)]
            backend.apply(plan(threads, [1] * 4, {"a": (1, (0, 1)), "b": (4, (2, 3))}))

            def ratio() -> float:
                found = shares(pids, 3)
                return sum(found[2:]) / sum(found[:2])

            look_until(ratio, lambda found: 3.8 < found < 4.2)
        finally:
            backend.restore()
            for pid in pids:
                cgroup.write(MOUNT / "cgroup.procs", str(pid))
        assert victim.pid
