"""Storm's workers on this machine, by their command lines."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sched_ctl.drivers import EngineError, Target
from sched_ctl.drivers.believed import Believed, rank
from sched_ctl.drivers.jvm import JavaProcess
from sched_ctl.kernel import containers, hotspot, procfs

__all__ = ["Worker", "addresses", "chosen", "query_of", "workers"]

MAIN = "org.apache.storm.daemon.worker.Worker"
# Starts the worker and copies its output: its command line holds the worker's as a whole.
LOG_WRITER = "org.apache.storm.LogWriter"
# NAME-COUNT-EPOCH, made by Nimbus; a name holds none of . / : \
TOPOLOGY_ID = re.compile(r"(?P<name>[^./:\\\s]{1,200})-\d{1,10}-\d{1,12}")


@dataclass(eq=False)
class Worker(JavaProcess):
    """A worker of this machine. topology: its id. uid: the user it runs as. pod: "" for none."""

    topology: str = ""
    uid: int = -1
    pod: str = ""


def workers() -> Iterator[Worker]:
    """All workers, whoever runs them, in whatever namespace."""
    for pid in procfs.pids():
        words = procfs.command_line(pid)
        if MAIN not in words or LOG_WRITER in words:
            continue
        rest = words[words.index(MAIN) + 1 :]  # topology, supervisor, its port, port, worker
        if not rest or not TOPOLOGY_ID.fullmatch(rest[0]) or not hotspot.is_hotspot(pid):
            continue
        born, uid = procfs.stat(pid), procfs.effective_uid(pid)
        if born is not None and uid is not None:
            pod = containers.namespace_of(pid)
            yield Worker(pid, born.start_time, "storm", topology=rest[0], uid=uid, pod=pod)


def addresses(found: Iterable[Worker], believed: Believed) -> dict[str, Worker]:
    """Address -> the oldest worker of that topology and user.

    The address is the topology's id. Nimbus makes these, and anybody may start a process that
    looks like a worker: where several users run one id, who goes first, or did first, has the
    address, and the others' is `ID@UID`.
    """
    known: dict[str, Worker] = {}
    for worker in sorted(found, key=lambda one: (rank(one.uid, believed, one.pod), one.start_time)):
        first = known.setdefault(worker.topology, worker)
        if first.uid != worker.uid:
            known.setdefault(f"{worker.topology}@{worker.uid}", worker)
    return known


def chosen(target: Target, found: Iterable[Worker], believed: Believed) -> Worker:
    """The oldest worker of the topology with this id or, if there is none, with this name.

    Where several users' are called so, it is the one's who goes first, or `ID@UID` or `NAME@UID`
    says whose. Raises EngineError if that leaves none or several.
    """
    oldest: dict[tuple[str, int, str], Worker] = {}
    for worker in sorted(found, key=lambda one: one.start_time):
        if target.uid in (None, worker.uid):
            oldest.setdefault((worker.topology, worker.uid, worker.pod), worker)
    # No user can have the forms with another's number.
    forms: tuple[Callable[[Worker], str], ...] = (
        lambda one: f"{one.topology}@{one.uid}",
        lambda one: one.topology,
        lambda one: f"{query_of(one.topology)}@{one.uid}",
        lambda one: query_of(one.topology),
    )
    called = ([one for one in oldest.values() if form(one) == target.address] for form in forms)
    meant = next(filter(None, called), [])
    ranks = [rank(worker.uid, believed, worker.pod) for worker in meant]
    mine = [one for one, its in zip(meant, ranks, strict=True) if its == min(ranks)]
    if len(mine) != 1:
        raise EngineError(
            f"{target.engine}: {len(meant) or 'no'} topologies of this name have workers here",
            "give its id: sched-ctl engines lists them" if meant else "is it running?",
        )
    return mine[0]


def query_of(topology: str) -> str:
    """The name that the user gave to a topology."""
    match = TOPOLOGY_ID.fullmatch(topology)
    return match["name"] if match else topology
