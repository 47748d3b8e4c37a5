"""What a thread had is given back, and what somebody else has set since is not touched."""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import pytest

from sched_ctl.backends.cgroups.v2 import Cgroup2Nice
from sched_ctl.backends.threads.nice import Nice
from sched_ctl.backends.threads.sweep import Sweep
from sched_ctl.backends.undo import journal as journals
from sched_ctl.backends.undo import put_back as undo
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.backends.undo.put_back import put_back
from sched_ctl.backends.undo.records import Adopted, FileChanged, Group, Process, State
from sched_ctl.kernel import cgroup, procfs
from sched_ctl.model.topology import Thread
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


@pytest.mark.parametrize(("set_nice", "left"), [([7], 0), ([5], 7), ([], 7)])
def test_a_thread_that_was_given_none_may_have_inherited_one_of_ours(
    adopted: Adopted, set_nice: list[int], left: int
) -> None:
    os.setpriority(os.PRIO_PROCESS, adopted.pid, 7)
    process = Process(adopted.pid, adopted.start_time, 0, 0, 0, set_nice, [])
    put_back(adopted, State(processes={adopted.pid: process}))
    assert os.getpriority(os.PRIO_PROCESS, adopted.pid) == left


def test_another_thread_of_that_id_is_not_touched(adopted: Adopted) -> None:
    os.setpriority(os.PRIO_PROCESS, adopted.pid, 7)
    other = Adopted(adopted.pid, adopted.tid, adopted.start_time + 1, 0)
    put_back(other, State(given={other.key: (7, 7)}))
    assert os.getpriority(os.PRIO_PROCESS, adopted.pid) == 7


@pytest.fixture
def passing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Journal]]:
    """A cgroup that we made pass on the cpu controller to two services, in plain files."""
    monkeypatch.setattr(undo, "_is_kernels", lambda path: True)
    folder = tmp_path / "above"
    for name in ("engine", "other"):
        (folder / name).mkdir(parents=True)
        (folder / name / "cpu.weight").write_text("100\n")
        (folder / name / "cpu.max").write_text("max 100000\n")
        (folder / name / "cpu.idle").write_text("0\n")
    control = folder / "cgroup.subtree_control"
    control.write_text("+cpu")
    journal = Journal(tmp_path / "journal")
    journal.write([FileChanged(path=str(control), undo="-cpu")])
    yield control, journal
    journal.close()


def test_a_cgroup_passes_on_the_cpu_controller_no_more(passing: tuple[Path, Journal]) -> None:
    control, journal = passing
    (control.parent / "of a kernel without cpu.idle").mkdir()
    assert undo.files(journal, list(journal.state.files)) == []
    assert control.read_text() == "-cpu" and not journal.state


@pytest.mark.parametrize(
    ("file", "text"), [("cpu.weight", "200"), ("cpu.max", "50000 100000"), ("cpu.idle", "1")]
)
def test_a_limit_that_others_set_since_is_not_lost(
    passing: tuple[Path, Journal], file: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    control, journal = passing
    (control.parent / "other" / file).write_text(text + "\n")
    assert undo.files(journal, list(journal.state.files)) == []
    assert control.read_text() == "+cpu" and not journal.state
    assert "weights or limits in other\n" in caplog.text


def test_a_weight_of_ours_is_nobodys_loss(passing: tuple[Path, Journal]) -> None:
    """Where groups of ours, or of another controller, need it the kernel refuses by itself."""
    control, journal = passing
    (control.parent / "sched-ctl").mkdir()
    (control.parent / "sched-ctl" / "cpu.weight").write_text("400\n")
    assert undo.files(journal, list(journal.state.files)) == []
    assert control.read_text() == "-cpu"


def too_deep(*_: object) -> NoReturn:
    raise RecursionError("too deep")


def test_a_fault_with_one_process_costs_that_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal")
    journal.write(Process(pid, 1, 0, 0, 0, [], []) for pid in (7, 8, 9))
    monkeypatch.setattr(
        undo, "passed_on", lambda of, held, _: too_deep() if of.pid == 8 else list(held)
    )
    assert undo.processes(journal, [7, 8, 9]) == ["process 8: too deep"]
    assert [*journal.state.processes] == [8]  # it is tried again
    journal.close()


def test_many_processes_take_one_look_at_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal")
    looks, pids = iter(range(100)), procfs.pids
    monkeypatch.setattr(procfs, "pids", lambda: pids() if next(looks) >= 0 else [])
    with ExitStack() as stack:
        began = [stack.enter_context(running("sh", "-c", "echo; read line")) for _ in range(3)]
        for pid in [child.pid for child in began]:
            found = procfs.stat(pid)
            assert found is not None
            journal.write([Process(pid, found.start_time, 0, 0, 0, [7], [])])
            os.setpriority(os.PRIO_PROCESS, pid, 7)
        assert undo.processes(journal, list(journal.state.processes)) == []
        assert [os.getpriority(os.PRIO_PROCESS, child.pid) for child in began] == [0, 0, 0]
    assert next(looks) == 1 and not journal.state.processes
    journal.close()


def test_a_full_disk_is_tried_once_for_all_processes_that_are_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids, tries = [7, 8, 9], []
    journal = Journal(tmp_path / "journal")
    journal.write(Process(pid, 1, 0, 0, 0, [], []) for pid in pids)
    sweep = Sweep(journal, 10.0, set, tuple)

    def full(*_: object) -> NoReturn:
        tries.append(1)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(journals, "_write", full)
    sweep.let_go(Thread(pid, pid, 1) for pid in pids)
    assert sweep.below() == []
    assert len(tries) == 1 and not journal.state.processes
    journal.close()


@pytest.mark.parametrize(("policy", "left"), [(os.SCHED_BATCH, os.SCHED_OTHER), (os.SCHED_RR,) * 2])
def test_who_made_itself_real_time_is_left_so(adopted: Adopted, policy: int, left: int) -> None:
    """Nobody is born with a real-time policy of ours: that is reset on fork."""
    ours = [os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_RR]
    process = Process(adopted.pid, adopted.start_time, 0, 0, os.SCHED_OTHER, [7], ours)
    os.sched_setscheduler(adopted.pid, policy, os.sched_param(int(policy == os.SCHED_RR)))
    for nice in (0, 7):  # the other one is from us
        os.setpriority(os.PRIO_PROCESS, adopted.pid, nice)
        undo.inherited(process, adopted.pid, [adopted.pid])
        assert os.sched_getscheduler(adopted.pid) == left
        assert os.getpriority(os.PRIO_PROCESS, adopted.pid) == 0


class Clock:
    """Of `time` what waits need: it passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def hanging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Journal, set[str], Clock]]:
    """Three groups, and which of them cannot go, as a thread in each hangs while it exits."""
    monkeypatch.setattr(cgroup, "hierarchies", lambda: (cgroup.Hierarchy(2, tmp_path),))
    monkeypatch.setattr(cgroup.Hierarchy, "members", lambda *_: [])
    paths = {str(tmp_path / name / cgroup.ROOT_NAME) for name in ("a", "b", "c")}
    busy = set(paths)

    def rmdir(folder: Path) -> None:
        raise OSError(errno.EBUSY if str(folder) in busy else errno.ENOENT, "of a test")

    monkeypatch.setattr(Path, "rmdir", rmdir)
    clock = Clock()
    for module in (cgroup, undo):
        monkeypatch.setattr(module, "time", clock, raising=False)
    journal = Journal(tmp_path / "run" / "journal")
    journal.write(Group(path) for path in paths)
    yield journal, busy, clock
    journal.close()


def test_groups_that_cannot_go_are_waited_for_together(
    hanging: tuple[Journal, set[str], Clock],
) -> None:
    journal, busy, clock = hanging
    busy.discard(min(busy))
    assert len(undo.groups(journal, list(journal.state.groups))) == 2
    assert journal.state.groups.keys() == busy
    assert clock.now_s < 103.0


def test_a_pass_waits_for_no_group_and_a_later_one_removes_it(
    hanging: tuple[Journal, set[str], Clock],
) -> None:
    journal, busy, clock = hanging
    backend = Cgroup2Nice(journal)
    assert backend._tidy() == [] and backend.rest() == ()
    assert len(journal.state.groups) == 3
    busy.clear()
    backend.rest()
    assert not journal.state.groups
    assert clock.now_s == 100.0


def test_groups_go_also_where_nice_values_cannot_be_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "hierarchies", lambda: (cgroup.Hierarchy(2, tmp_path),))
    monkeypatch.setattr(Nice, "restore", too_deep)
    journal = Journal(tmp_path / "journal")
    journal.write([Group(str(tmp_path / "engine" / cgroup.ROOT_NAME))])
    with pytest.raises(RecursionError):
        Cgroup2Nice(journal).restore()
    assert not journal.state.groups
    journal.close()
