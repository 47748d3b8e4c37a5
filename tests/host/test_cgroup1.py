"""The cgroup v1 backends on real threads."""

import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from contenders import SHARES
from victims import Victim, plan, state

from sched_ctl.backends import Backend, ladder
from sched_ctl.backends.cgroups.quota import Quota
from sched_ctl.backends.cgroups.v1 import Cgroup1, Cgroup1Nice
from sched_ctl.backends.undo.journal import Journal, restore
from sched_ctl.drivers.threads import threads_of
from sched_ctl.kernel import cgroup, procfs, sched
from sched_ctl.model.options import GroupOptions, QuotaOptions
from sched_ctl.model.topology import Thread
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root", "cgroup1_cpu")]

B = TypeVar("B", bound=Backend)
BELOW = GroupOptions(best=0)  # the whole range, whatever the threads weigh
BURNER = """
import os, sys, threading, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
end = time.monotonic() + float(sys.argv[1])
def burn():
    while time.monotonic() < end:
        sum(range(1000))
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        burn()
        os._exit(0)
print("ready", flush=True)
sys.stdin.read()
"""


def place(thread: Thread) -> Path:
    found = [h for h in cgroup.hierarchies() if h.version == 1]
    folder = found[0].folder_of(thread.pid, thread.tid)
    assert folder is not None
    return folder


def inside(base: Path) -> dict[Path, tuple[str, str]]:
    """Our folders in a base: the weight and the threads of each."""
    ours = [path for path in (base / cgroup.ROOT_NAME).rglob("*") if path.is_dir()]
    return {
        folder: ((folder / "cpu.shares").read_text(), (folder / "tasks").read_text())
        for folder in (base / cgroup.ROOT_NAME, *ours)
    }


def cpu_time(thread: Thread) -> int:
    return int(Path(f"/proc/{thread.tid}/schedstat").read_text().split()[0])


def test_who_ends_is_forgotten_though_its_process_goes_on(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(3)
    with put_back(Cgroup1(journal)) as backend:
        backend.apply(plan(threads, [1, 2, 3], {"q": (1.0, (0, 1, 2))}))
        assert {thread.key for thread in threads} <= journal.state.moved.keys()
        victim.ask("end 1")
        wait_until(lambda: procfs.stat(victim.pid, threads[1].tid) is None)
        left = (threads[0], threads[2])
        backend.apply(plan(left, [1, 3], {"q": (1.0, (0, 1))}))
        assert threads[1].key not in journal.state.moved
        assert {thread.key for thread in left} <= journal.state.moved.keys()


def test_a_base_that_has_no_groups_any_more_is_forgotten(victim: Victim, journal: Journal) -> None:
    home = place(victim.thread(victim.pid))
    for name in ("one", "two"):
        base = home / f"sched-ctl-test-{name}"
        with other_cgroup(base, victim), put_back(Cgroup1(journal)) as backend:
            backend.apply(plan(victim.threads(1), [1], {"q": (1.0, (0,))}))
            assert [*backend._demand] == [base]
            backend.apply(plan((), []))
            assert not backend._demand


def test_a_query_in_two_cgroups_has_its_limit_once(victim: Victim, journal: Journal) -> None:
    def limits() -> list[str]:
        return [(place(thread) / "cpu.cfs_quota_us").read_text().strip() for thread in threads]

    base = place(victim.thread(victim.pid)) / "sched-ctl-test"
    quota = Quota(journal, QuotaOptions(cpus=0.5, period=20))
    with closing(Victim()) as second, other_cgroup(base, second), put_back(quota) as backend:
        threads = (*victim.threads(3), *second.threads(1))
        backend.apply(plan(threads, [1] * 4, {"a": (3.0, (0, 1, 3)), "b": (1.0, (2,))}))
        assert limits() == ["5000", "5000", "2500", "2500"]
        threads += second.threads(1)
        backend.apply(plan(threads, [1] * 5, {"a": (3.0, (0, 1, 3, 4)), "b": (1.0, (2,))}))
        assert limits() == ["3750", "3750", "2500", "3750", "3750"]


@contextmanager
def other_cgroup(folder: Path, victim: Victim) -> Iterator[None]:
    """The process is there meanwhile."""
    home = place(victim.thread(victim.pid))
    folder.mkdir()
    try:
        cgroup.write(folder / "cgroup.procs", str(victim.pid))
        yield
    finally:
        cgroup.write(home / "cgroup.procs", str(victim.pid))
        folder.rmdir()


@contextmanager
def put_back(backend: B) -> Iterator[B]:
    """However the test ends: a group that is left would fail all others."""
    try:
        yield backend
    finally:
        assert backend.restore() == ()


def test_groups_become_cgroups_and_go_again(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(5)
    base = place(threads[0])
    backend = Cgroup1Nice(journal, BELOW)
    groups = {"q/../1": (1.0, (0, 1)), "q 2": (4.0, (2, 3))}
    schedule = plan(threads, [1, 2, 3, 4, 5], groups)
    done = backend.apply(schedule)
    assert not done.problems
    one, two = place(threads[0]), place(threads[2])
    assert place(threads[1]) == one != two == place(threads[3])
    assert one.parent == two.parent == base / "sched-ctl"
    shares = [int((folder / "cpu.shares").read_text()) for folder in (one, two)]
    assert shares[1] / shares[0] == pytest.approx(4, rel=0.01)
    assert [sched.get_nice(thread.tid) for thread in threads[:4]] == [10, 0, 10, 0]
    assert backend.applied(threads[0])["cgroup"] == str(one)
    # The process goes as a whole; who is in no group weighs as much as the heaviest one
    rest = place(threads[4])
    assert rest.parent == one.parent and rest not in (one, two)
    assert place(victim.thread(victim.pid)) == rest
    assert (rest / "cpu.shares").read_text() == (two / "cpu.shares").read_text()
    again = backend.apply(schedule)
    assert (again.writes, again.problems) == (0, ())
    # Another grouping
    backend.apply(plan(threads, [1, 2, 3, 4, 5], {"q 2": (4.0, (0, 2, 3))}))
    assert place(threads[0]) == two and not one.exists()
    assert place(threads[1]) == rest
    assert backend.restore() == ()
    assert not (base / "sched-ctl").exists()


def test_a_priority_alone_is_a_weight(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(3)
    backend = Cgroup1(journal)
    backend.apply(plan(threads, [1, 2, 3]))
    shares = [int((place(thread) / "cpu.shares").read_text()) for thread in threads]
    assert shares == [128, 1024, 8192]
    assert [sched.get_nice(thread.tid) for thread in threads] == [0, 0, 0]
    backend.restore()


def test_many_threads_share_levels(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(12)
    backend = Cgroup1(journal, GroupOptions(max_groups=4))
    backend.apply(plan(threads, np.arange(12.0).tolist()))
    assert 2 <= len({place(thread) for thread in threads}) <= 4
    backend.restore()


def test_what_others_change_is_repaired(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(4)
    base = place(threads[0])
    backend = Cgroup1Nice(journal, GroupOptions(best=0, recheck=0.1))
    schedule = plan(threads, [1, 2, 3, 4], {"a": (1.0, (0, 1)), "b": (4.0, (2, 3))})
    backend.apply(schedule)
    one, two = place(threads[0]), place(threads[2])
    cgroup.write(base / "tasks", str(threads[0].tid))
    (two / "cpu.shares").write_text("77")
    born = int(victim.ask("from 1"))
    assert place(victim.thread(born)) == one

    def right() -> bool:
        backend.apply(schedule)
        return (
            place(threads[0]) == one
            and (two / "cpu.shares").read_text().strip() != "77"
            and state(victim.pid, born) == state(victim.pid, victim.pid)
        )

    wait_until(right)
    assert backend.restore() == ()


def test_a_thread_that_cannot_be_moved_is_told_of_until_it_can(
    victim: Victim, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in a pass; and nobody else is said to have changed it."""
    threads = victim.threads(4)
    base, move = place(threads[0]), cgroup.Hierarchy.move
    held = {threads[0].tid, threads[3].tid}  # the last one is of no group

    def refused(tree: cgroup.Hierarchy, tid: int, folder: Path) -> None:
        if tid in held:
            raise OSError(errno.EINVAL, "no", f"{folder} <- {tid}")
        move(tree, tid, folder)

    monkeypatch.setattr(cgroup.Hierarchy, "move", refused)
    backend = Cgroup1Nice(journal, GroupOptions(best=0, recheck=0.1))
    schedule = plan(threads[:3], [1, 2, 3], {"a": (1.0, (0,)), "b": (4.0, (1, 2))})
    noted = set()
    for _ in range(50):
        done = backend.apply(schedule)
        told = {tid: sum(f"<- {tid}:" in line for line in done.problems) for tid in held}
        assert all(told.values()) and done.repaired == 0
        noted.add(journal.path.stat().st_size)
        monkeypatch.setattr(backend, "_looked_at", 0.0)
    assert told[threads[3].tid] == 1 and len(noted) == 1
    held.clear()
    monkeypatch.setattr(backend, "_looked_at", 0.0)
    backend.apply(schedule)
    assert base not in (place(threads[0]), place(threads[3]))
    assert backend.apply(schedule).problems == ()
    assert backend.restore() == ()


def test_real_time_threads_stay_where_they_are(victim: Victim, journal: Journal) -> None:
    one, two, other = victim.threads(3)
    base = place(one)
    sched.set_policy(other.tid, sched.RR, reset_on_fork=True, priority=1)
    backend = Cgroup1Nice(journal, BELOW)
    schedule = plan([one, two], [1, 2], {"a": (1.0, (0,)), "b": (4.0, (1,))})
    assert backend.apply(schedule).problems == ()
    assert place(other) == base != place(one)
    sched.set_policy(other.tid, sched.OTHER, reset_on_fork=False)
    assert backend.restore() == ()


def test_the_groups_of_another_controller_stay(
    victim: Victim, journal: Journal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two controllers with a run directory each, on threads of one cgroup, same scope and names."""
    caplog.set_level(logging.DEBUG, "sched_ctl.backends.undo.put_back")
    threads = victim.threads(4)
    base = place(threads[0])
    other = Journal(tmp_path / "other" / "journal")
    ours, theirs = Cgroup1Nice(journal, BELOW), Cgroup1Nice(other)
    ours.apply(plan(threads[:2], [1, 2], {"q": (1.0, (0, 1))}))
    theirs.apply(plan(threads[2:], [1, 2], {"q": (1.0, (0, 1))}))
    assert place(threads[0]) != place(threads[2])
    held = place(threads[2])
    assert ours.restore() == ()
    assert "did not make" in caplog.text
    assert place(threads[0]).parent != held and place(threads[2]) == held
    assert not journal.state.records()
    # The other one is killed: what its journal has is enough to remove all of it
    other.close()
    left = Journal(other.path)
    assert restore(left) == []
    assert place(threads[2]) == base and not (base / cgroup.ROOT_NAME).exists()
    left.close()


def test_a_killed_controller_does_not_keep_another_from_leaving(
    victim: Victim, journal: Journal, tmp_path: Path
) -> None:
    threads = victim.threads(2)
    base = place(threads[0])
    killed = Journal(tmp_path / "killed" / "journal")
    Cgroup1Nice(killed).apply(plan(threads[:1], [1], {"q": (1.0, (0,))}))
    killed.close()
    backend = Cgroup1Nice(journal, BELOW)
    backend.apply(plan(threads[1:], [1], {"q": (1.0, (0,))}))
    left = Journal(killed.path)
    assert restore(left) == []  # while the other one still runs
    left.close()
    assert place(threads[0]) == base != place(threads[1])
    assert backend.restore() == ()
    assert not (base / cgroup.ROOT_NAME).exists()


@pytest.mark.parametrize("name", ["cgroup1+nice", "quota"])
def test_two_backends_leave_each_others_groups_alone(
    victim: Victim, journal: Journal, name: str
) -> None:
    """On two engines of one cgroup, with the same names in the same scope."""
    with closing(Victim()) as second:
        threads, others = victim.threads(4), second.threads(4)
        base = place(threads[0])
        one, other = Cgroup1(journal), (Quota if name == "quota" else Cgroup1Nice)(journal)
        schedule, beside = plan(threads, [1] * 4, SHARES), plan(others, [1] * 4, SHARES)
        one.apply(schedule)
        before = inside(base)
        other.apply(beside)
        both = inside(base)
        assert {folder: both[folder] for folder in before} == before
        assert len(both) == 2 * len(before) - 1, "our folder is for both of them"
        assert one.apply(schedule).writes == other.apply(beside).writes == 0
        other.apply(plan((), []))
        assert inside(base) == before
        other.apply(beside)
        assert one.restore() == ()
        assert {place(thread) for thread in threads} == {base}
        assert inside(base).items() <= both.items() and place(others[0]) != base
        assert other.restore() == ()
        assert not (base / cgroup.ROOT_NAME).exists()


def test_a_process_is_in_the_groups_of_one_backend(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(4)
    one, other = Cgroup1(journal), Cgroup1Nice(journal, GroupOptions(best=0, recheck=0.1))
    one.apply(plan(threads[:2], [1, 2]))
    before = inside(place(threads[0]).parents[1])
    schedule = plan(threads[2:], [1, 2], {"a": (1.0, (0,)), "b": (4.0, (1,))})
    (problem,) = other.apply(schedule).problems
    assert "in groups of the backend cgroup1," in problem and str(victim.pid) in problem
    assert inside(place(threads[0]).parents[1]) == before
    assert sched.get_nice(threads[2].tid) > sched.get_nice(threads[3].tid)
    # It gets them once the first one has let go
    one.apply(plan((), []))
    wait_until(lambda: not other.apply(schedule).problems)
    assert place(threads[2]) != place(threads[3])
    assert other.restore() == () and one.restore() == ()


def test_a_dead_or_reused_thread_is_no_error(victim: Victim, journal: Journal) -> None:
    threads = victim.threads(3)
    backend = Cgroup1Nice(journal, BELOW)
    victim.end(threads[0].tid, 0)
    older = Thread(threads[1].pid, threads[1].tid, threads[1].start_time - 1)
    done = backend.apply(plan((threads[0], older, threads[2]), [1, 2, 3], {"a": (1, (0, 1, 2))}))
    assert done.gone == 2 and not done.problems
    assert place(threads[1]) == place(victim.thread(victim.pid)) != place(threads[2])
    backend.restore()


def test_the_ladder_names_what_is_better_and_why_not(journal: Journal) -> None:
    backend, steps = ladder.choose("auto", {"cgroup1+nice": GroupOptions(best=1)}, journal)
    names = [name for name, _ in ladder.probe_all()]
    assert names.index(backend.name) >= len(steps)
    assert all(not probe.can and probe.because for _, probe in steps)


def test_shares_of_one_to_four(journal: Journal) -> None:
    """Two threads in each group on one CPU: the CPU times in one run are 1:4 within 5%."""
    command = [sys.executable, "-S", "-c", BURNER, "25", "4"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        backend = Cgroup1(journal)
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            pids = procfs.descendants(process.pid)
            threads = [thread for pid in pids for thread in threads_of(pid)]
            assert len(threads) == 4
            backend.apply(plan(threads, [1, 1, 1, 1], {"a": (1, (0, 1)), "b": (4, (2, 3))}))
            before = [cpu_time(thread) for thread in threads]

            def used() -> list[int]:
                return [cpu_time(t) - was for t, was in zip(threads, before, strict=True)]

            wait_until(lambda: sum(used()) > 3e9, 20)
            now = used()
            assert sum(now[2:]) / sum(now[:2]) == pytest.approx(4, rel=0.05)
        finally:
            backend.restore()
            for pid in procfs.descendants(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.kill()


def test_a_cgroup_whose_name_is_no_text_makes_its_engine_step_down(
    victim: Victim, journal: Journal
) -> None:
    """Whoever has a cgroup of his own may call those in it anything."""
    threads = victim.threads(2)
    base = place(threads[0])
    strange = base / os.fsdecode(b"x\xff%d" % os.getpid())
    strange.mkdir()
    try:
        for tid in procfs.tids(victim.pid):
            (strange / "tasks").write_text(str(tid))
        backend = Cgroup1Nice(journal, BELOW)
        done = backend.apply(plan(threads, [1, 2], {"q": (1.0, (0,)), "p": (4.0, (1,))}))
        assert any("no text" in problem for problem in done.problems)  # and no error of the backend
        assert sched.get_nice(threads[0].tid) > sched.get_nice(threads[1].tid)
        assert backend.restore() == ()
        assert [sched.get_nice(thread.tid) for thread in threads] == [0, 0]
        assert not [path for path in strange.iterdir() if path.is_dir()]
    finally:
        for tid in procfs.tids(victim.pid):
            (base / "tasks").write_text(str(tid))
        strange.rmdir()


@pytest.mark.parametrize("inner", ["", "container"], ids=["in it", "below it"])
@pytest.mark.parametrize("name", ["libpod-" + "0a" * 32, "of-somebody"])
def test_the_cgroup_of_a_container_that_ended_goes_with_ours(
    victim: Victim, journal: Journal, name: str, inner: str
) -> None:
    """Its runtime could not remove it while ours was in there, and does not try again."""
    outer = place(victim.threads(1)[0]) / name
    folder = outer / inner
    folder.mkdir(parents=True)
    try:
        other = Victim()
        for tid in procfs.tids(other.pid):
            (folder / "tasks").write_text(str(tid))
        threads = other.threads(2)
        backend = Cgroup1Nice(journal, BELOW)
        backend.apply(plan(threads, [1, 2], {"a": (1, (0,)), "b": (4, (1,))}))
        assert place(threads[0]).parent == folder / "sched-ctl"
        assert backend.restore() == ()
        assert place(threads[0]) == folder  # it lives, and stays
        backend.apply(plan(threads, [1, 2], {"a": (1, (0,)), "b": (4, (1,))}))
        other.process.kill()
        other.process.wait()
        assert backend.restore() == ()
        assert outer.exists() == (name == "of-somebody")
    finally:
        for path in (folder, outer):
            if path.exists():
                path.rmdir()


@pytest.mark.parametrize("ours", [True, False], ids=["our folder", "its own"])
def test_a_cgroup_that_its_owner_renames_is_that_engines_trouble(
    victim: Victim, journal: Journal, ours: bool
) -> None:
    top = place(victim.threads(1)[0])
    names = [top / f"test-{os.getpid()}-{name}" for name in ("honest", "renamed")]
    other = Victim()
    moved = names[1].with_name(names[1].name + "-away")
    try:
        for engine, folder in zip((victim, other), names, strict=True):
            folder.mkdir()
            for tid in procfs.tids(engine.pid):
                (folder / "tasks").write_text(str(tid))
        threads = (*victim.threads(2), *other.threads(2))
        backend = Cgroup1Nice(journal, GroupOptions(best=0, recheck=0.3))
        schedule = plan(threads, [1, 2, 1, 2], {"a": (1, (0, 1)), "b": (4, (2, 3))})
        assert backend.apply(schedule).problems == ()
        assert place(threads[2]).parent == names[1] / "sched-ctl"
        if ours:
            (names[1] / "sched-ctl").rename(names[1] / "mine")
        else:
            names[1].rename(moved)

        def told() -> bool:
            problems = backend.apply(schedule).problems
            return any(str(names[1]) in problem for problem in problems)

        wait_until(told)
        for _ in range(3):  # the other engine has what it had, with each pass
            backend.apply(schedule)
            assert {place(thread).parent for thread in threads[:2]} == {names[0] / "sched-ctl"}
            assert [sched.get_nice(thread.tid) for thread in threads[:2]] == [10, 0]
        assert sched.get_nice(threads[2].tid) > sched.get_nice(threads[3].tid)
        assert backend.restore() == ()
        assert {sched.get_nice(thread.tid) for thread in threads} == {0}
        assert {place(thread) for thread in threads[:2]} == {names[0]}
        assert not (names[0] / "sched-ctl").exists()
    finally:
        for engine in (victim, other):
            for tid in procfs.tids(engine.pid):
                (top / "tasks").write_text(str(tid))
        other.close()
        for folder in (*names, moved):
            for inner in sorted(folder.rglob("*"), key=lambda path: -len(path.parts)):
                if inner.is_dir():
                    inner.rmdir()
            if folder.exists():
                folder.rmdir()
