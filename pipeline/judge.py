"""Records without verdicts, judged by the gateways' own rules: many of a topology at once."""

from collections.abc import Iterable, Sequence

import numpy as np

from sched_ctl.metrics import verdicts
from sched_ctl.model.topology import Topology
from sched_ctl.telemetry import records, replay

__all__ = ["fill_in", "topology_of"]

AT_ONCE = 50_000  # operators and edges


def topology_of(line: records.Topology) -> Topology | None:
    """None if it contradicts itself: then nothing is judged by it."""
    try:
        return replay.topology_of(line)
    except ValueError:
        return None


def fill_in(found: Iterable[tuple[records.Record, Topology | None]]) -> None:
    """Give each record its verdicts, if it has none and tells enough for any.

    Each is judged as if it stood alone. Its arrays have the length of its topology.
    """
    together: dict[int, tuple[Topology, list[records.Record]]] = {}
    for record, topology in found:
        if topology is not None and topology.operators and _tells(record):
            together.setdefault(id(topology), (topology, []))[1].append(record)
    for topology, mine in together.values():
        size = max(1, AT_ONCE // (len(topology.operators) + len(topology.edges)))
        for first in range(0, len(mine), size):
            _judge(topology, mine[first : first + size])


def _tells(record: records.Record) -> bool:
    """Whether it lasted, nobody has judged it, and it says what its operators did."""
    silent = record.cpu is None and record.busy is None and record.idle is None
    return record.verdict is None and record.d > 0 and not silent


def _judge(topology: Topology, found: Sequence[records.Record]) -> None:
    n = len(topology.operators)
    pressure = [
        record.psi[2] * 1e-4 if len(record.psi) > 2 and record.psi[2] is not None else np.nan
        for record in found
    ]
    judged = verdicts.assess(replay.beside(topology, found), None, np.repeat(pressure, n))
    rows = judged.verdict.reshape(len(found), n)
    limits = judged.limit.reshape(len(found), n)
    first = np.arange(0, len(found) * n, n)[:, None]
    limits = np.where(limits >= 0, limits - first, -1)
    for record, row, limit in zip(found, rows, limits, strict=True):
        if row.any():
            record.verdict, record.by = row.tolist(), limit.tolist()
