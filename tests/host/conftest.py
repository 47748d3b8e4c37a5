"""Fixtures that fail the test if it leaves anything changed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from victims import Victim, state

from sched_ctl.backends.undo.journal import Journal
from sched_ctl.kernel import cgroup


@pytest.fixture
def victim() -> Iterator[Victim]:
    """Its threads are what they were when the test is over, or the test fails."""
    process = Victim()
    try:
        before = state(process.pid, process.pid)
        yield process
        left = {tid: now for tid, now in process.everything().items() if now != before}
        assert not left, "threads that were not put back"
    finally:
        process.close()
        assert not left_groups(), "cgroups that were not removed"


def left_groups() -> list[Path]:
    return [
        folder
        for hierarchy in cgroup.hierarchies()
        for folder in hierarchy.mount.rglob(cgroup.ROOT_NAME)
    ]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """Empty when the test is over, or the test fails."""
    journal = Journal(tmp_path / "run" / "journal")
    yield journal
    assert not journal.state.records()
    journal.close()
