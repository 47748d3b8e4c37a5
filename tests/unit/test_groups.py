"""What the cgroup backends keep of bases and processes (backends/cgroups/groups.py)."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sched_ctl.backends.cgroups.groups import Groups, _Scope
from sched_ctl.backends.cgroups.v2 import Cgroup2
from sched_ctl.backends.cgroups.wanted import Wanted
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.kernel import cgroup, procfs
from sched_ctl.model.policy import Spacing, form
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Groups]:
    """In a tree of plain folders."""
    monkeypatch.setattr(cgroup, "hierarchies", lambda: (cgroup.Hierarchy(2, tmp_path),))
    journal = Journal(tmp_path / "run" / "journal")
    yield Cgroup2(journal)
    journal.close()


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
