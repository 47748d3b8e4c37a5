"""What a thread had is given back, and what somebody else has set since is not touched."""

import logging
import os
from collections.abc import Iterator

import pytest

from sched_ctl.backends.undo.put_back import put_back
from sched_ctl.backends.undo.records import Adopted, State
from sched_ctl.kernel import procfs
from support import running

pytestmark = pytest.mark.needs("root")


@pytest.fixture
def adopted() -> Iterator[Adopted]:
    """A process of one thread as it was before."""
    with running("sh", "-c", "echo; read line") as child:
        found = procfs.stat(child.pid)
        assert found is not None
        yield Adopted(child.pid, child.pid, found.start_time, 0)


def test_nice_and_policy_are_what_they_were(adopted: Adopted) -> None:
    os.setpriority(os.PRIO_PROCESS, adopted.pid, 7)
    state = State(given={adopted.key: (7, 7)})
    put_back(adopted, state)
    assert os.getpriority(os.PRIO_PROCESS, adopted.pid) == 0


def test_a_policy_that_others_set_stays(adopted: Adopted, caplog: pytest.LogCaptureFixture) -> None:
    """And the nice value is put back all the same."""
    os.sched_setscheduler(adopted.pid, os.SCHED_BATCH, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, adopted.pid, 7)
    with caplog.at_level(logging.WARNING):
        put_back(adopted, State(given={adopted.key: (7, 7)}))
    assert os.sched_getscheduler(adopted.pid) == os.SCHED_BATCH
    assert os.getpriority(os.PRIO_PROCESS, adopted.pid) == 0
    assert f"thread {adopted.pid} stays" in caplog.text


def test_a_nice_value_that_others_set_stays(
    adopted: Adopted, caplog: pytest.LogCaptureFixture
) -> None:
    os.setpriority(os.PRIO_PROCESS, adopted.pid, 3)
    with caplog.at_level(logging.WARNING):
        put_back(adopted, State(given={adopted.key: (7, 8)}))
    assert os.getpriority(os.PRIO_PROCESS, adopted.pid) == 3
    assert f"thread {adopted.pid} keeps nice 3" in caplog.text


def test_another_thread_of_that_id_is_not_touched(adopted: Adopted) -> None:
    os.setpriority(os.PRIO_PROCESS, adopted.pid, 7)
    other = Adopted(adopted.pid, adopted.tid, adopted.start_time + 1, 0)
    put_back(other, State(given={other.key: (7, 7)}))
    assert os.getpriority(os.PRIO_PROCESS, adopted.pid) == 7
