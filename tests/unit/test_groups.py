"""What the cgroup backends keep of bases and processes (backends/cgroups/groups.py)."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sched_ctl.backends.cgroups import groups as module
from sched_ctl.backends.cgroups.groups import Groups, _Scope
from sched_ctl.backends.cgroups.v2 import Cgroup2
from sched_ctl.backends.cgroups.wanted import Wanted
from sched_ctl.backends.threads import neighbours
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.backends.undo.records import Adopted
from sched_ctl.kernel import cgroup, procfs
from sched_ctl.kernel.cgroup import ROOT_NAME
from sched_ctl.model.normalise import NICE_STEP
from sched_ctl.model.policy import Spacing, form
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread
from support import wait_until


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Groups]:
    """In a tree of plain folders."""
    monkeypatch.setattr(cgroup, "hierarchies", lambda: (cgroup.Hierarchy(2, tmp_path),))
    journal = Journal(tmp_path / "run" / "journal")
    yield Cgroup2(journal)
    journal.close()


class Walked(dict[Any, Any]):
    """Counts how often it is gone through."""

    walks = 0

    def items(self) -> Any:
        self.walks += 1
        return super().items()

    def values(self) -> Any:
        self.walks += 1
        return super().values()


def test_many_bases_cost_one_walk(
    backend: Groups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine in a hundred pods has a hundred bases, at each pass."""
    written: dict[Path, str] = {}
    monkeypatch.setattr(cgroup, "write", lambda path, text: written.update({path.parent: text}))
    monkeypatch.setattr(neighbours.Demand, "look", lambda _, pids, given: float(len(pids)))
    bases = [tmp_path / str(number) for number in range(20)]
    threads = [Thread(100 + number, 100 + number, 1) for number in range(20)]
    place = Walked({t: base / ROOT_NAME / "g" for t, base in zip(threads, bases, strict=True)})
    whole = Walked({t.pid: base for t, base in zip(threads, bases, strict=True)})
    whole[99] = bases[3]  # another process of that one
    backend._scopes["s"] = _Scope(place=place, whole=whole)
    backend._weights = {folder: 50 + number for number, folder in enumerate(place.values())}
    place.walks = 0
    backend._balance()
    assert written[backend._rest(bases[0])] == "50" and written[bases[0] / ROOT_NAME] == "100"
    assert written[backend._rest(bases[3])] == "106" and written[bases[3] / ROOT_NAME] == "200"
    assert place.walks <= 2 and whole.walks <= 2


def test_groups_of_many_bases_are_made_in_one_walk(
    backend: Groups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(backend, "_prepare", lambda _: None)
    monkeypatch.setattr(backend, "_make", made.append)
    asked = 0
    base_of = module._base_of

    def counted(folder: Path) -> Path:
        nonlocal asked
        asked += 1
        return base_of(folder)

    monkeypatch.setattr(module, "_base_of", counted)
    bases = [tmp_path / str(number) for number in range(20)]
    where = [(Thread(n, n, 1), base, "q") for n, base in enumerate(bases)]
    target, whole, unfit = backend._made([*where, (Thread(0, 50, 1), bases[0], "r")], "s")
    assert (len(target), len(whole), unfit) == (21, 20, [])
    assert {*made} == {*target.values(), *map(backend._rest, bases)}
    assert len(made) == 41
    assert asked <= 3 * len(target)


def test_a_process_with_the_id_of_one_that_was_put_back_is_taken_along(
    backend: Groups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = os.getpid()
    me = procfs.stat(pid)
    assert me is not None
    thread, base = Thread(pid, pid, me.start_time), tmp_path / "engine"
    zero = np.zeros(1)
    schedule = Schedule("s", "p", Spacing.LINEAR, (thread,), ("q/a",), form(1), zero, zero)
    moved: list[int] = []

    def move(one: Thread, *_: object) -> bool:
        moved.append(one.tid)
        return True

    monkeypatch.setattr(backend, "_base", lambda _: base)
    monkeypatch.setattr(backend, "_made", lambda *_: ({}, {pid: base}, []))
    monkeypatch.setattr(backend, "_move", move)
    monkeypatch.setattr(backend, "_tidy", list)
    monkeypatch.setattr(cgroup.Hierarchy, "members", lambda *_: [] if moved else [pid])
    backend._born = {pid: me.start_time - 1}
    wanted = Wanted((None,), {})
    scope = backend._scopes["s"] = _Scope()
    backend._place(scope, schedule, wanted, [])
    assert moved == [pid]
    moved.clear()
    backend._born = {pid: me.start_time - 1}  # it ended while we had it, and is no engine now
    backend._place(scope, schedule, wanted, [])
    assert not moved


def test_engines_weigh_what_their_nice_values_say() -> None:
    """A batch engine at nice 19 takes no more from its neighbours in a group than without one."""
    with subprocess.Popen(["nice", "-n", "19", "sh", "-c", "while :; do :; done"]) as batch:
        try:
            wait_until(lambda: os.getpriority(os.PRIO_PROCESS, batch.pid) == 19)
            wait_until(lambda: (stat := procfs.stat(batch.pid)) and stat.state == "R")
            stat = procfs.stat(batch.pid)
            assert stat is not None
            assert neighbours.Demand().look({batch.pid}) == pytest.approx(NICE_STEP**-19)
            key = batch.pid, stat.start_time
            given = {key: Adopted(batch.pid, batch.pid, stat.start_time, 0)}
            assert neighbours.Demand().look({batch.pid}, given) == 1.0
        finally:
            batch.kill()


def test_many_idle_threads_weigh_as_one_of_them() -> None:
    assert neighbours._weight({1: 0.0, 2: 0.0}, {1: 5, 2: 5}) == pytest.approx(NICE_STEP**-5)
    assert neighbours._weight({1: 0.2, 2: 0.2}, {1: 5, 2: 5}) == pytest.approx(NICE_STEP**-5)
    assert neighbours._weight({1: 1.0, 2: 0.5}, {1: 0, 2: 19}) == pytest.approx(1, abs=0.01)
    assert neighbours._weight({}, {}) == 1.0
