"""Snapshots and schedules as JSON: what `plan --save` writes, and what the simulator starts from.

The way there and back is exact: floats keep every bit, unknown values (NaN) become null, infinite
ones the texts "inf" and "-inf". A file is read with its types checked, for it may come from
anywhere: what does not fit raises UserError and names the place.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from sched_ctl.errors import UserError
from sched_ctl.model.graph import Array
from sched_ctl.model.topology import (
    Edge,
    HelperThread,
    LogicalOperator,
    PhysicalOperator,
    Snapshot,
    Thread,
    Topology,
    UserThread,
)

__all__ = ["snapshot_from_json", "snapshot_to_json"]

VERSION = 1

Number = float | str | None
Column = list[Number]


class _ThreadFile(msgspec.Struct, forbid_unknown_fields=True):
    pid: int
    tid: int
    start_time: int
    name: str = ""
    row: int | None = None  # of a user-level thread, which has no tid


class _LogicalFile(msgspec.Struct, forbid_unknown_fields=True):
    query: str
    name: str


class _PhysicalFile(msgspec.Struct, forbid_unknown_fields=True):
    query: str
    name: str
    logical: list[str]
    replica: int
    replicas: int
    threads: list[_ThreadFile]
    away: bool = False


class _EdgeFile(msgspec.Struct, forbid_unknown_fields=True):
    source: int
    target: int
    share: float = 1.0


class _HelperFile(msgspec.Struct, forbid_unknown_fields=True):
    thread: _ThreadFile
    role: str
    serves: int | None = None


class _SnapshotFile(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="snapshot"):
    version: int
    engine: str
    time_s: float
    operators: list[_PhysicalFile]
    edges: list[_EdgeFile]
    logical: list[_LogicalFile]
    logical_edges: list[_EdgeFile]
    helpers: list[_HelperFile]
    notes: list[str]
    columns: dict[str, Column]
    logical_columns: dict[str, Column]
    idle_spins: bool = False
    guessed: bool = False


def snapshot_to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Plain data for `json.dumps`."""
    topology = snapshot.topology
    data: dict[str, Any] = msgspec.to_builtins(
        _SnapshotFile(
            version=VERSION,
            engine=topology.engine,
            time_s=snapshot.time_s,
            operators=[
                _PhysicalFile(
                    o.query,
                    o.name,
                    list(o.logical),
                    o.replica,
                    o.replicas,
                    [_thread_out(thread) for thread in o.threads],
                    o.away,
                )
                for o in topology.operators
            ],
            edges=[_EdgeFile(e.source, e.target, e.share) for e in topology.edges],
            logical=[_LogicalFile(o.query, o.name) for o in topology.logical],
            logical_edges=[_EdgeFile(e.source, e.target, e.share) for e in topology.logical_edges],
            helpers=[
                _HelperFile(_thread_out(h.thread), h.role, h.serves) for h in topology.helpers
            ],
            notes=list(topology.notes),
            columns={name: _out(column) for name, column in snapshot.columns.items()},
            logical_columns={name: _out(column) for name, column in snapshot.logical.items()},
            idle_spins=topology.idle_spins,
            guessed=topology.guessed,
        )
    )
    return data


def snapshot_from_json(data: object) -> Snapshot:
    """The snapshot that `snapshot_to_json` wrote. Raises UserError for anything else."""
    file = _read(data)
    n, n_logical = len(file.operators), len(file.logical)
    for edges, limit, name in (
        (file.edges, n, "edges"),
        (file.logical_edges, n_logical, "logical_edges"),
    ):
        for i, edge in enumerate(edges):
            if not (0 <= edge.source < limit and 0 <= edge.target < limit):
                raise _bad(f"$.{name}[{i}] names an operator outside 0..{limit - 1}")
            if not (np.isfinite(edge.share) and edge.share >= 0):
                raise _bad(f"$.{name}[{i}].share is {edge.share}")
    for i, helper in enumerate(file.helpers):
        if helper.serves is not None and not 0 <= helper.serves < n:
            raise _bad(f"$.helpers[{i}].serves names an operator outside 0..{n - 1}")
    for i, operator in enumerate(file.operators):
        if not 0 <= operator.replica < operator.replicas:
            raise _bad(f"$.operators[{i}].replica is {operator.replica} of {operator.replicas}")
    topology = Topology(
        engine=file.engine,
        operators=tuple(
            PhysicalOperator(
                o.query,
                o.name,
                tuple(o.logical),
                o.replica,
                o.replicas,
                tuple(_thread_in(thread) for thread in o.threads),
                o.away,
            )
            for o in file.operators
        ),
        edges=tuple(Edge(e.source, e.target, e.share) for e in file.edges),
        logical=tuple(LogicalOperator(o.query, o.name) for o in file.logical),
        logical_edges=tuple(Edge(e.source, e.target, e.share) for e in file.logical_edges),
        helpers=tuple(HelperThread(_thread_in(h.thread), h.role, h.serves) for h in file.helpers),
        notes=tuple(file.notes),
        idle_spins=file.idle_spins,
        guessed=file.guessed,
    )
    return Snapshot(
        topology,
        file.time_s,
        {name: _in(column, n, f"$.columns.{name}") for name, column in file.columns.items()},
        {
            name: _in(column, n_logical, f"$.logical_columns.{name}")
            for name, column in file.logical_columns.items()
        },
    )


def _read(data: object) -> _SnapshotFile:
    try:
        file = msgspec.convert(data, _SnapshotFile)
    except msgspec.ValidationError as error:
        raise _bad(str(error)) from error
    if file.version != VERSION:
        raise _bad(f"$.version is {file.version}; this program reads version {VERSION}")
    return file


def _bad(what: str) -> UserError:
    return UserError(f"this is no recording of ours: {what}", "sched-ctl plan --save writes one")


def _thread_out(thread: Thread) -> _ThreadFile:
    row = thread.row if isinstance(thread, UserThread) else None
    return _ThreadFile(thread.pid, thread.tid, thread.start_time, thread.name, row)


def _thread_in(thread: _ThreadFile) -> Thread:
    if thread.row is not None:
        return UserThread(thread.pid, thread.start_time, thread.name, row=thread.row)
    return Thread(thread.pid, thread.tid, thread.start_time, thread.name)


def _out(column: Array) -> Column:
    return [
        value if np.isfinite(value) else None if np.isnan(value) else str(value)
        for value in column.tolist()
    ]


def _in(column: Column, n: int, place: str) -> Array:
    if len(column) != n:
        raise _bad(f"{place} has {len(column)} entries for {n}")
    special: Mapping[Number, float] = {None: np.nan, "inf": np.inf, "-inf": -np.inf}
    values = np.empty(n)
    for i, value in enumerate(column):
        if isinstance(value, float):
            values[i] = value
        elif value in special:
            values[i] = special[value]
        else:
            raise _bad(f"{place}[{i}] is {value!r}")
    return values
