"""Limits of several scopes, and of groups that vanish (backends/cgroups/quota.py)."""

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from sched_ctl.backends import Applied, BackendFailed, Probe
from sched_ctl.backends.cgroups import quota
from sched_ctl.backends.cgroups.quota import Quota
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.kernel import cgroup
from sched_ctl.model.options import QuotaOptions
from sched_ctl.model.policy import Spacing, form
from sched_ctl.model.schedule import Group, Schedule
from sched_ctl.model.topology import Thread


class Folders:
    """In the place of the cgroups: a folder for each thread."""

    root: Path
    gone: ClassVar[set[str]] = set()  # which are made anew

    def __init__(self, *_: object) -> None: ...

    def apply(self, _: Schedule) -> Applied:
        made = len(self.gone)
        while self.gone:
            make(self.root / self.gone.pop())
        return Applied(writes=made)

    def applied(self, thread: Thread) -> Mapping[str, str | float]:
        return {"cgroup": str(self.root / str(thread.tid))}


def make(folder: Path) -> None:
    folder.mkdir()
    (folder / "cpu.max").write_text("max 100000")


def remove(folder: Path) -> None:
    (folder / "cpu.max").unlink()
    folder.rmdir()


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Quota:
    monkeypatch.setattr(quota, "probe_mount", lambda _: Probe(True, "of a test"))
    monkeypatch.setattr(quota, "Cgroup2", Folders)
    Folders.root = tmp_path
    for tid in range(1, 5):
        make(tmp_path / str(tid))
    return Quota(Journal(tmp_path / "run" / "journal"), QuotaOptions(cpus=1.0, period=100))


def of(scope: str, *shares: float, first: int) -> Schedule:
    n = len(shares)
    return Schedule(
        scope,
        "p",
        Spacing.LINEAR,
        tuple(Thread(1, first + row, 0) for row in range(n)),
        tuple(f"q/{row}" for row in range(n)),
        form(n),
        np.zeros(n),
        np.zeros(n),
        {f"e/{row}": Group(share, (row,)) for row, share in enumerate(shares)},
    )


def test_each_scope_keeps_its_limits_while_others_get_theirs(backend: Quota) -> None:
    one, two = of("one", 1, 3, first=1), of("two", 1, 1, first=3)
    assert (backend.apply(one).writes, backend.apply(two).writes) == (2, 2)
    assert (backend.apply(one).writes, backend.apply(two).writes) == (0, 0)
    limits = [backend.applied(thread)["limit"] for thread in (*one.threads, *two.threads)]
    assert limits == [0.25, 0.75, 0.5, 0.5]
    backend.apply(of("one", first=1))
    assert "limit" not in backend.applied(one.threads[0])
    assert backend.applied(two.threads[0])["limit"] == 0.5


def test_a_group_that_vanished_takes_nobody_along(backend: Quota) -> None:
    both = of("one", 1, 3, first=1)
    gone = Folders.root / "1"
    (gone / "cpu.max").unlink()
    with pytest.raises(BackendFailed, match=r"cpu\.max"):
        backend.apply(both)
    gone.rmdir()
    assert backend.apply(both).writes == 1
    assert (Folders.root / "2" / "cpu.max").read_text().startswith("75000 100000")
    assert "limit" not in backend.applied(both.threads[0])


def test_a_group_that_is_made_anew_gets_its_limit_again(backend: Quota) -> None:
    one, other = of("one", 1, 3, first=1), of("two", 1, first=3)
    backend.apply(one)
    backend.apply(other)
    first = Folders.root / "1"
    remove(first)
    backend.apply(of("one", 1, 1, first=1))  # while it is gone
    assert "limit" not in backend.applied(one.threads[0])
    make(first)
    backend.apply(one)
    assert (first / "cpu.max").read_text().startswith("25000 100000")
    remove(first)
    Folders.gone.add("1")  # and is back before a limit is written
    backend.apply(one)
    assert (first / "cpu.max").read_text().startswith("25000 100000")
    assert (backend.apply(one).writes, backend.apply(other).writes) == (0, 0)


def test_a_cgroup_with_a_lower_limit_above_takes_nobodys_quota(
    backend: Quota, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1 refuses a larger one: tg_cfs_schedulable_down, kernel/sched/core.c."""
    write = cgroup.write

    def kernel(path: Path, text: str) -> None:
        if path.parent.name == "1":
            raise OSError(errno.EINVAL, "Invalid argument", str(path))
        write(path, text)

    monkeypatch.setattr(cgroup, "write", kernel)
    both = of("one", 1, 3, first=1)
    for _ in range(2):
        (problem,) = backend.apply(both).problems
        assert "lower limit" in problem
        assert backend.applied(both.threads[1])["limit"] == 0.75
        assert "limit" not in backend.applied(both.threads[0])
