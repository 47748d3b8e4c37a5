"""Records judged by the gateways' own rules, many of a topology at once: verdicts, and replicas."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from sched_ctl.adapt import parallelism
from sched_ctl.metrics import verdicts
from sched_ctl.metrics.verdicts import Verdict
from sched_ctl.model.topology import Topology
from sched_ctl.telemetry import records, replay

__all__ = ["FISSION", "fill_in", "needed", "topology_of"]

AT_ONCE = 50_000  # operators and edges
FISSION = (Verdict.SINGLE_THREAD_BOUND, Verdict.IO_BOUND)  # whom more replicas would help

Found = Sequence[tuple[records.Record, Topology | None]]


def topology_of(line: records.Topology) -> Topology | None:
    """None if it contradicts itself: then nothing is judged by it."""
    try:
        return replay.topology_of(line)
    except ValueError:
        return None


def fill_in(found: Found) -> None:
    """Give each record its verdicts, if it has none and tells enough for any.

    Each is judged as if it stood alone. Its arrays have the length of its topology.
    """
    for topology, places in _together(found, _tells):
        _judge(topology, [found[place][0] for place in places])


def needed(found: Found) -> list[list[int | None] | None]:
    """Of each record, thousandths of replicas that its held operators need (`adapt.parallelism`).

    None for operators that no replica would help, or of which too little is known.
    """
    answer: list[list[int | None] | None] = [None] * len(found)
    for topology, places in _together(found, _held):
        n, mine = len(topology.operators), [found[place][0] for place in places]
        window = replay.beside(topology, mine)
        stages = parallelism.times(parallelism.stages(topology), len(mine))
        wanted = parallelism.wanted(window, verdicts.assess(window), stages)
        replicas = np.nan_to_num(wanted.first, nan=-1.0)[stages.of]
        for place, record, row in zip(places, mine, replicas.reshape(-1, n).tolist(), strict=True):
            answer[place] = [
                round(each * 1e3) if each >= 0 and verdict in FISSION else None
                for each, verdict in zip(row, record.verdict or (), strict=True)
            ]
    return answer


def _together(
    found: Found, tells: Callable[[records.Record], bool]
) -> Iterator[tuple[Topology, list[int]]]:
    """Places of the records that tell, by their topology, so many at once."""
    together: dict[int, tuple[Topology, list[int]]] = {}
    for place, (record, topology) in enumerate(found):
        if topology is not None and topology.operators and tells(record):
            together.setdefault(id(topology), (topology, []))[1].append(place)
    for topology, mine in together.values():
        size = max(1, AT_ONCE // (len(topology.operators) + len(topology.edges)))
        for first in range(0, len(mine), size):
            yield topology, mine[first : first + size]


def _held(record: records.Record) -> bool:
    """Whether it says that more replicas would help, and what its operators did."""
    judged = record.verdict is not None and not set(FISSION).isdisjoint(record.verdict)
    return judged and record.d > 0 and record.cpu is not None and record.tuples_in is not None


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
