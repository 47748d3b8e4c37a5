"""How long operators stood still for their JVM's garbage collector."""

import numpy as np

from sched_ctl.kernel.hsperf import Pauses
from sched_ctl.model.graph import Array
from sched_ctl.model.topology import Topology

__all__ = ["CollectorPauses"]

AT_ONCE = 8  # processes whose mappings are searched in one look: a few ms each


class CollectorPauses:
    """Reads for one engine: 2 us a process and collector."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], Pauses | None] = {}  # by process and its oldest thread
        self._topology: Topology | None = None
        self._rows: list[tuple[int, ...] | None] = []

    def read(self, topology: Topology) -> dict[str, Array]:
        """`gc_time`, (n,) s over the operators; NaN where nobody tells."""
        if topology is not self._topology:
            self._follow(topology)
        fresh = [key for key in dict.fromkeys(self._rows) if key and key not in self._known]
        for key in fresh[:AT_ONCE]:
            self._known[key] = Pauses.of(key[0])
        told = {key: one.read_s() for key, one in self._known.items() if one is not None}
        unknown = float("nan")
        return {"gc_time": np.array([told.get(key or (), unknown) for key in self._rows])}

    def close(self) -> None:
        for one in self._known.values():
            if one is not None:
                one.close()
        self._known.clear()

    def _follow(self, topology: Topology) -> None:
        born: dict[int, int] = {}
        for operator in topology.operators:
            for thread in operator.threads:
                born[thread.pid] = min(thread.start_time, born.get(thread.pid, thread.start_time))
        self._topology = topology
        self._rows = [
            (o.threads[0].pid, born[o.threads[0].pid]) if o.threads else None
            for o in topology.operators
        ]
        for key in self._known.keys() - set(self._rows):
            one = self._known.pop(key)
            if one is not None:
                one.close()
