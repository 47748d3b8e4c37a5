"""A little of `tests/stress/fuzz.py`: garbage ends in errors for users, and in nothing else."""

import pytest
from stress import fuzz

from sched_ctl.drivers.flink import local


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_garbage_ends_in_an_error_for_users(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "task_managers", lambda uid=None: [])
    _, failures = fuzz.fuzz(name, fuzz.TARGETS[name], 1, most=300, seconds=2)
    assert not failures, "\n".join(map(str, failures))


def test_an_error_that_is_none_for_users_is_found() -> None:
    def breaks(data: bytes) -> None:
        if b"9" * 30 in data:
            raise KeyError("x")

    count, failures = fuzz.fuzz("any", fuzz.Input((b"abc",), breaks), 1, most=300)
    assert count == 299 and len(failures) == 1 and "KeyError" in str(failures[0])
