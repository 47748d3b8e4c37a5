"""Storm's workers on this machine, by their command lines."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sched_ctl.drivers.jvm import JavaProcess
from sched_ctl.kernel import hotspot, procfs

__all__ = ["Worker", "query_of", "workers"]

MAIN = "org.apache.storm.daemon.worker.Worker"
# Starts the worker and copies its output: its command line holds the worker's as a whole.
LOG_WRITER = "org.apache.storm.LogWriter"
# NAME-COUNT-EPOCH, made by Nimbus; a name holds none of . / : \
TOPOLOGY_ID = re.compile(r"(?P<name>[^./:\\\s]{1,200})-\d{1,10}-\d{1,12}")


@dataclass(eq=False)
class Worker(JavaProcess):
    """A worker of this machine. topology: its id. uid: the user it runs as."""

    topology: str = ""
    uid: int = -1


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
            yield Worker(pid, born.start_time, "storm", topology=rest[0], uid=uid)


def query_of(topology: str) -> str:
    """The name that the user gave to a topology."""
    match = TOPOLOGY_ID.fullmatch(topology)
    return match["name"] if match else topology
