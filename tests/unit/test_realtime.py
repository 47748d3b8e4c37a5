"""Who may not have a real-time priority."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeBackend

from sched_ctl.backends import Applied, Backend, Probe
from sched_ctl.backends.in_use import Backends
from sched_ctl.backends.threads import realtime
from sched_ctl.backends.threads.parameters import Target
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.kernel import cgroup, procfs
from sched_ctl.model.policy import Spacing, form
from sched_ctl.model.schedule import Schedule, without
from sched_ctl.model.topology import Thread

THREADS = (Thread(1, 11, 7), Thread(1, 12, 7), Thread(2, 21, 7))


def schedule() -> Schedule:
    return Schedule(
        "s",
        "p",
        Spacing.LINEAR,
        THREADS,
        ("q/a", "storm:x: acker", "r/b"),
        form(3, static=np.arange(3.0)),
        np.zeros(3),
        np.zeros(3),
        queries=(("storm:x", "q"), None, ("lab:1", "r")),
    )


class Lifting(FakeBackend):
    name = "scx"
    lifts = True


def test_a_users_engines_get_none_nor_another_backend_that_lifts_them(tmp_path: Path) -> None:
    fair = FakeBackend()

    def choose(
        name: str, options: Mapping[str, object], failed: Collection[str] = ()
    ) -> tuple[Backend, list[tuple[str, Probe]]]:
        if name == "realtime":
            return realtime.RealTime(journal), []
        return (fair if "scx" in failed else Lifting()), []

    journal = Journal(tmp_path / "journal")
    backends = Backends(choose, {})
    assert backends.get("realtime").name == "realtime"
    assert backends.fair("realtime") is fair
    assert backends.names == ("realtime", fair.name)
    journal.close()


def test_engines_whose_idle_threads_spin_are_refused_with_the_reason() -> None:
    left, problems = realtime._permitted(replace(schedule(), spinning=frozenset({"storm:x"})))
    assert left.threads == THREADS[2:]
    assert len(problems) == 1 and problems[0].startswith("storm:x: no real-time priorities")
    left, problems = realtime._permitted(schedule())
    assert left.threads == THREADS and not problems


def test_threads_that_are_there_no_more_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal")
    backend = realtime.RealTime(journal)
    calls = iter(range(1000))
    monkeypatch.setattr(backend._parameters, "apply", lambda target: Applied(writes=0))
    monkeypatch.setattr(procfs, "times", lambda pid, tid: (9.0 * next(calls), 0.0))
    monkeypatch.setattr(
        "sched_ctl.backends.threads.realtime.time.monotonic", lambda: float(next(calls))
    )
    other = replace(schedule(), scope="other", threads=(Thread(3, 31, 7),) * 3)
    for one in (schedule(), other, schedule()):
        backend.apply(one)
    assert backend._greedy == set(THREADS)
    backend.apply(without(schedule(), set(THREADS[1:])))
    assert backend._used.keys() == {THREADS[0], other.threads[0]}
    assert backend._greedy == {THREADS[0]}
    backend.apply(without(schedule(), set(THREADS)))
    assert backend._used.keys() == {other.threads[0]} and not backend._greedy
    journal.close()


def test_a_thread_of_two_sections_is_bounded_in_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second asks as good as at the moment of the first: no use can be told from that."""
    journal = Journal(tmp_path / "journal")
    backend = realtime.RealTime(journal)
    now_s, written = [0.0], []

    def apply(target: Target) -> Applied:
        written.append((target.scope, bool(target.values[0] > 0)))
        now_s[0] += 1e-4
        return Applied(writes=0)

    monkeypatch.setattr(backend._parameters, "apply", apply)
    monkeypatch.setattr("sched_ctl.backends.threads.realtime.time.monotonic", lambda: now_s[0])
    monkeypatch.setattr(procfs, "times", lambda pid, tid: (float(int(now_s[0])), 0.0))
    for _ in range(3):
        for scope in "st":
            backend.apply(replace(schedule(), scope=scope))
        now_s[0] += 1
    both = [[("s", urgent), ("t", urgent)] for urgent in (True, False, False)]
    assert written == [*both[0], *both[1], *both[2]]
    journal.close()


@pytest.mark.parametrize("counted", [None, (0.0, 0.0)])  # no schedstat, or one of zeros
def test_it_is_refused_where_nobody_counts_what_a_thread_uses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, counted: tuple[float, float] | None
) -> None:
    (throttle := tmp_path / "sched_rt_runtime_us").write_text("950000\n")
    monkeypatch.setattr(realtime, "THROTTLE", throttle)
    monkeypatch.setattr(realtime, "may_lower", lambda: True)
    monkeypatch.setattr(realtime, "_without_runtime", lambda pid: None)
    assert realtime.probe().can
    monkeypatch.setattr(procfs, "times", lambda pid, tid: counted)
    found = realtime.probe()
    assert not found.can and "schedstat" in found.because


def test_a_cgroup_without_real_time_runtime_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tree:
        version = 1

        def folder_of(self, pid: int, tid: int) -> Path:
            return tmp_path / ("none" if pid == 2 else "some")

    for name, runtime_us in (("none", 0), ("some", 950_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpu.rt_runtime_us").write_text(f"{runtime_us}\n")
    monkeypatch.setattr(cgroup, "hierarchies", lambda: [Tree()])
    monkeypatch.setattr(cgroup, "has_cpu", lambda tree: True)
    left, problems = realtime._permitted(schedule())
    assert left.threads == THREADS[:2]
    assert len(problems) == 1 and str(tmp_path / "none") in problems[0]
    monkeypatch.setattr(Tree, "folder_of", lambda self, pid, tid: tmp_path / "none")
    monkeypatch.setattr(realtime, "may_lower", lambda: True)
    monkeypatch.setattr(realtime, "THROTTLE", tmp_path / "some" / "cpu.rt_runtime_us")
    found = realtime.probe()
    assert not found.can and "real-time runtime" in found.because
