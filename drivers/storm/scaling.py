"""Other numbers of executors for a running topology: what `storm rebalance` does, asked of Nimbus.

A component has as many tasks as it was submitted with, and at most as many executors as tasks.
Storm holds the spouts for a while, so that tuples in flight leave, and starts the workers again.
What bolts keep in memory alone begins anew then.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from sched_ctl.drivers import EngineError, Target
from sched_ctl.drivers.believed import Believed, nobody
from sched_ctl.drivers.sources import search, thrift
from sched_ctl.drivers.storm.workers import chosen, query_of, workers
from sched_ctl.kernel import hotspot, procfs

__all__ = ["StormScaler", "connect", "hosts", "sizes"]

MAIN = "org.apache.storm.daemon.nimbus.Nimbus"
PORT = 6627  # nimbus.thrift.port
ASK_S = 10.0  # that one answer may take
LOOK_S = 0.2
# Arguments, results and refusals by the numbers of their fields, storm.thrift
NAME = ID = 1
OPTIONS = 2
NO_ERRORS = 1  # NumErrorsChoice
RESULT, STATUS, EXECUTORS = 0, 5, 4
TASKS, COMPONENT, HOST = 1, 2, 3
WAIT_S, NEW_EXECUTORS = 1, 3
DRAIN_S = 5  # that spouts are held, so that what is under way leaves

Sizes = Mapping[tuple[str, ...], tuple[int, int]]


def connect(target: Target, believed: Believed = nobody) -> "StormScaler":
    """Raises EngineError if no Nimbus of this machine knows the topology."""
    mine = (worker for worker in workers() if target.pid in (None, worker.pid))
    worker = chosen(target, mine, believed)
    topology, name = worker.topology, query_of(worker.topology)
    refused = "none runs on this machine"
    for pid in _nimbuses({0, worker.uid}):
        for port in _ports(pid):
            scaler = StormScaler(target, topology, pid, port)
            try:
                scaler.info()
            except EngineError as error:
                refused = error.message
                continue
            return scaler
    raise EngineError(
        f"{name}: Nimbus, which changes its executors, cannot be asked: {refused}",
        f"where Nimbus runs: storm rebalance {name} -e COMPONENT=EXECUTORS",
    )


def _nimbuses(uids: set[int]) -> Iterator[int]:
    """Its processes. A cluster's word counts only if it is root's, or the topology's own user's."""
    for pid in procfs.pids():
        if (
            MAIN in procfs.command_line(pid)
            and procfs.effective_uid(pid) in uids
            and hotspot.is_hotspot(pid)
        ):
            yield pid


def _ports(pid: int) -> list[tuple[str, int]]:
    found = sorted(search.listening(pid), key=lambda one: one.port != PORT)
    return [(one.host, one.port) for one in found[: search.MOST_PORTS]]


class StormScaler:
    """One topology, asked of its Nimbus. loses: what a restart does, in words."""

    loses = "what its bolts keep in memory alone begins anew"

    def __init__(self, target: Target, topology: str, pid: int, at: tuple[str, int]) -> None:
        self.target = target
        self._id, self._name = topology, query_of(topology)
        self._pid, self._at = pid, at

    def info(self) -> thrift.Fields:
        """What Nimbus tells of the topology. Raises EngineError."""
        options = thrift.fields({1: thrift.integer(NO_ERRORS)})
        told = self._call(
            "getTopologyInfoWithOpts", {ID: thrift.text(self._id), OPTIONS: options}
        ).get(RESULT)
        if not isinstance(told, Mapping):
            raise EngineError(f"{self._name}: Nimbus answered oddly")
        return told

    def current(self, query: str) -> Sizes:
        """Executors and tasks of each component."""
        return sizes(self.info().get(EXECUTORS))

    def secure(self, query: str, timeout_s: float) -> None:
        """Wait until nothing else is under way with it. There is no state that Storm could keep."""
        count = len(hosts(self.info().get(EXECUTORS)))
        if count > 1:
            raise EngineError(
                f"{self._name} runs on {count} nodes, of which one is seen from here: whether a "
                "change has come into force could not be told; nothing was changed",
                f"where Nimbus runs: storm rebalance {self._name} -e COMPONENT=EXECUTORS",
            )
        end_s = time.monotonic() + timeout_s
        while (status := str(self.info().get(STATUS))) != "ACTIVE":
            if time.monotonic() >= end_s:
                raise EngineError(
                    f"{self._name} is {status.lower()[:40]}; nothing was changed",
                    f"storm activate {self._name}" if status == "INACTIVE" else None,
                )
            time.sleep(LOOK_S)

    def rescale(self, query: str, replicas: Mapping[tuple[str, ...], int]) -> None:
        wanted = {logical[0]: count for logical, count in replicas.items()}
        options = thrift.fields(
            {WAIT_S: thrift.integer(DRAIN_S), NEW_EXECUTORS: thrift.numbers(wanted)}
        )
        self._call("rebalance", {NAME: thrift.text(self._name), OPTIONS: options})

    def close(self) -> None:
        """Each call has a connection of its own."""

    def _call(self, method: str, arguments: Mapping[int, thrift.Encoded]) -> thrift.Fields:
        answer = thrift.called(*self._at, self._pid, method, arguments, ASK_S)
        for number, refusal in answer.items():
            if number != RESULT:
                said = refusal.get(1, refusal) if isinstance(refusal, Mapping) else refusal
                raise EngineError(f"{self._name}: Nimbus refuses: {str(said)[:200]}")
        return answer


def hosts(executors: Any) -> set[str]:
    """Nodes that executors of the user's components run on."""
    return {
        host
        for one in (executors if isinstance(executors, list) else ())
        if isinstance(one, Mapping)
        and isinstance(host := one.get(HOST), str)
        and not str(one.get(COMPONENT)).startswith("__")
    }


def sizes(executors: Any) -> Sizes:
    """Component -> its executors and tasks, by what Nimbus says of each executor."""
    found: dict[tuple[str, ...], tuple[int, int]] = {}
    for one in executors if isinstance(executors, list) else ():
        if not isinstance(one, Mapping):
            continue
        name, tasks = one.get(COMPONENT), one.get(TASKS)
        if not isinstance(name, str) or name.startswith("__") or not isinstance(tasks, Mapping):
            continue
        first, last = tasks.get(1), tasks.get(2)
        if isinstance(first, int) and isinstance(last, int) and first <= last:
            count, every = found.get((name,), (0, 0))
            found[name,] = (count + 1, every + last - first + 1)
    return found
