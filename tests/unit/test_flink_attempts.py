"""After a restart the JobManager tells of the attempt before, and threads tell of the next one."""

from collections.abc import Sequence

import pytest

from sched_ctl.drivers import threadnames
from sched_ctl.drivers.flink.driver import _key_of, _later
from sched_ctl.drivers.flink.plan import Row


def row(task: str, attempt: int, *, job: str = "j", at: tuple[int, int] = (1, 1)) -> Row:
    index, parallelism = at
    return Row(
        query=job,
        job=job,
        vertex=task,
        task=task,
        label=task,
        index=index - 1,
        parallelism=parallelism,
        attempt=attempt,
        task_manager="tm",
        running=True,
        logical=(task,),
    )


def taken(rows: Sequence[Row], *names: str) -> dict[str, int]:
    """Of the threads with these names, the attempts of their subtasks, where those are older."""
    said = {name: threadnames.read("flink", name) for name in names}
    known = [one for one in said.values() if one is not None]
    assert len(known) == len(names), said
    found = _later({one.thread_key for one in rows}, known, rows)
    keys = {name: _key_of(one) for name, one in said.items() if one is not None}
    return {name: found[key][3] for name, key in keys.items() if key in found}


def test_a_later_attempt_takes_the_place_of_the_one_that_ended() -> None:
    rows = [row("parse", 0), row("work", 0), row("work", 0, job="k", at=(1, 2))]
    assert taken(rows, "parse (1/1)#0", "work (1/1)#1") == {"work (1/1)#1": 0}
    assert taken(rows, "work (1/1)#2", "work (1/1)#1") == {"work (1/1)#2": 0}
    assert taken(rows, "work (1/2)#3") == {"work (1/2)#3": 0}


@pytest.mark.parametrize(
    "names",
    [
        ["work (1/1)#0", "work (1/1)#1"],  # it has not ended yet
        ["work (2/2)#1"],  # of another parallelism
        ["other (1/1)#1"],
        [],
    ],
)
def test_nothing_else_does(names: list[str]) -> None:
    assert taken([row("work", 0)], *names) == {}


def test_an_earlier_attempt_never_does() -> None:
    assert taken([row("work", 2)], "work (1/1)#1") == {}


def test_two_that_are_called_alike_are_not_guessed() -> None:
    rows = [row("work", 0), row("work", 3, job="k")]
    assert taken(rows, "work (1/1)#4") == {}
