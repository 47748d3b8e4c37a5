"""When a virtual machine is asked for its threads: each time it is, all of them stand still."""

import pytest

from sched_ctl.drivers import jvm
from sched_ctl.kernel import hotspot, procfs
from sched_ctl.model.topology import Thread

OPERATOR = "work (1/1)#{}"


class Machine:
    """Its threads by id; how often it was asked for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads = {1: "main", 2: OPERATOR.format(0)}
        self.asked = 0
        self.now_s = 100.0
        monkeypatch.setattr(procfs, "tids", lambda pid: list(self.threads))
        monkeypatch.setattr(jvm, "thread_of", self._thread)
        monkeypatch.setattr(hotspot, "threads", self._threads)
        monkeypatch.setattr("sched_ctl.drivers.jvm.time.monotonic", lambda: self.now_s)
        self.process = jvm.JavaProcess(7, 1, "flink")

    def _thread(self, pid: int, tid: int) -> Thread | None:
        name = self.threads.get(tid)
        return None if name is None else Thread(pid, tid, tid, name[:15])

    def _threads(self, pid: int, timeout_s: float) -> list[hotspot.JavaThread]:
        self.asked += 1
        return [hotspot.JavaThread(name, tid) for tid, name in self.threads.items()]

    def look(self, *, wanted: bool = False) -> tuple[bool, list[str], int]:
        """A second later: whether anything changed, operators' threads, and how often asked."""
        self.now_s += 1.1
        changed = self.process.changed(wanted=wanted)
        if changed:
            self.process.look(1.0)
        known = [thread.name for thread in self.process.names if thread.name != "main"]
        return changed, known, self.asked


def test_who_has_ended_is_known_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert machine.look() == (True, [OPERATOR.format(0)], 1)
    assert machine.look() == (False, [OPERATOR.format(0)], 1)
    del machine.threads[2]
    assert machine.look() == (True, [], 1)
    assert machine.look() == (False, [], 1)
    machine.threads[3] = OPERATOR.format(1)
    assert machine.look() == (True, [OPERATOR.format(1)], 2)


def test_one_that_ends_as_another_comes_costs_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.look()
    del machine.threads[2]
    machine.threads[3] = OPERATOR.format(1)
    assert machine.look() == (True, [OPERATOR.format(1)], 2)
    assert machine.look() == (False, [OPERATOR.format(1)], 2)


def test_who_is_looked_for_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.look()
    assert machine.look(wanted=True)[2] == 2


@pytest.mark.parametrize(("engine", "noticed"), [("liebre", True), ("flink", False)])
def test_where_no_name_tells_an_operator_any_that_ends_is_noticed(
    engine: str, noticed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    machine.process.engine = engine
    machine.threads[3] = "my map"
    machine.look()
    del machine.threads[3]
    assert machine.look()[0] == noticed
    assert "my map" not in {thread.name for thread in machine.process.others} or not noticed
    assert (machine.look()[0], machine.asked) == (False, 1)
