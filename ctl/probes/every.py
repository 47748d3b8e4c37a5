"""All that the kernel tells of an engine's threads, as columns: one interface over its sources.

`threads` and `collector` are read at each look (1.4 us a thread, 2 us a JVM), `stolen` twice a
second; `delays` and `backlog` cost more and run beside, now and then.
"""

from sched_ctl.model.graph import Array
from sched_ctl.model.topology import Topology
from sched_ctl.probes.backlog import Backlogs
from sched_ctl.probes.collector import CollectorPauses
from sched_ctl.probes.delays import ThreadDelays
from sched_ctl.probes.stolen import StolenTime
from sched_ctl.probes.threads import ThreadTimes
from sched_ctl.probes.workers import WorkerTimes

__all__ = ["Probes"]


class Probes:
    """Those of one engine. For one thread at a time."""

    def __init__(self) -> None:
        self._times = ThreadTimes()
        self._workers = WorkerTimes()
        self._stolen = StolenTime()
        self._pauses = CollectorPauses()
        self._delays = ThreadDelays()
        self._backlogs = Backlogs()

    def read(self, topology: Topology, time_s: float, *, afresh: bool = False) -> dict[str, Array]:
        """Name of the primitive metric -> (n,) over the operators; NaN = unknown.

        time_s: CLOCK_MONOTONIC of the snapshot that they are to join. afresh: see
        `Driver.counts_afresh`.
        """
        return {
            **self._workers.added(topology, self._times.read(topology, afresh=afresh)),
            **self._stolen.read(topology, time_s),
            **self._pauses.read(topology),
            **self._delays.read(topology, time_s),
            **self._backlogs.read(topology, time_s),
        }

    def close(self) -> None:
        self._times.close()
        self._pauses.close()
        self._delays.close()
        self._backlogs.close()
