"""All that the kernel tells of an engine's threads, as columns: one interface over its sources.

`threads` are read at each look (1.4 us each). What no policy goes by is read only while somebody
looks: `collector` each time (2 us a JVM), `stolen` twice a second; `delays` and `backlog` cost more
and run beside, now and then.
"""

from sched_ctl.model.graph import Array
from sched_ctl.model.topology import Topology
from sched_ctl.probes.backlog import Backlogs
from sched_ctl.probes.collector import CollectorPauses
from sched_ctl.probes.delays import ThreadDelays
from sched_ctl.probes.stolen import StolenTime
from sched_ctl.probes.threads import ThreadTimes
from sched_ctl.probes.workers import WorkerTimes

__all__ = ["OF_ALL", "Probes"]

OF_ALL = "gc_time"  # a column that is there where all was read


class Probes:
    """Those of one engine. For one thread at a time."""

    def __init__(self) -> None:
        self._times = ThreadTimes()
        self._workers = WorkerTimes()
        self._others: _Others | None = None

    def read(
        self, topology: Topology, time_s: float, *, afresh: bool = False, everything: bool = True
    ) -> dict[str, Array]:
        """Name of the primitive metric -> (n,) over the operators; NaN = unknown.

        time_s: CLOCK_MONOTONIC of the snapshot that they are to join. afresh: see
        `Driver.counts_afresh`. everything: also what no policy goes by.
        """
        found = self._workers.added(topology, self._times.read(topology, afresh=afresh))
        if not everything:
            self._leave_others()
            return found
        if self._others is None:
            self._others = _Others()
        return {**found, **self._others.read(topology, time_s)}

    def close(self) -> None:
        self._times.close()
        self._leave_others()

    def _leave_others(self) -> None:
        if self._others is not None:
            self._others.close()
            self._others = None


class _Others:
    """What verdicts are made of beside the threads' times."""

    def __init__(self) -> None:
        self._stolen = StolenTime()
        self._pauses = CollectorPauses()
        self._delays = ThreadDelays()
        self._backlogs = Backlogs()

    def read(self, topology: Topology, time_s: float) -> dict[str, Array]:
        return {
            **self._stolen.read(topology, time_s),
            **self._pauses.read(topology),
            **self._delays.read(topology, time_s),
            **self._backlogs.read(topology, time_s),
        }

    def close(self) -> None:
        self._pauses.close()
        self._delays.close()
        self._backlogs.close()
