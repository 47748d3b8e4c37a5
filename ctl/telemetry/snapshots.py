"""What an engine runs, with what was measured of it, as a file for the simulator."""

from dataclasses import replace
from pathlib import Path

import msgspec

from sched_ctl.errors import UserError
from sched_ctl.metrics.catalogue import MissingMetric, evaluate, resolve
from sched_ctl.metrics.window import Window
from sched_ctl.model import files as record
from sched_ctl.model.topology import Snapshot
from sched_ctl.probes import threads as probes

__all__ = ["measured", "save"]

MEASURED = ("cost", "selectivity", "input_rate", "output_rate", "queue_size", "head_age")


def save(path: Path, snapshot: Snapshot) -> None:
    """Write a snapshot as JSON. Raises UserError."""
    encoded = msgspec.json.encode(record.snapshot_to_json(snapshot))
    try:
        path.write_bytes(encoded + b"\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def measured(now: Snapshot, then: Snapshot | None, provides: frozenset[str]) -> Snapshot:
    """A snapshot with rates and costs since an older one among its columns.

    A lone snapshot has only totals since the engine started. provides: what the engine can give.
    """
    window = Window(now, then)
    columns = dict(now.columns)
    for metric in MEASURED:
        try:
            resolution = resolve(
                [metric],
                provides | now.columns.keys() | probes.PROVIDES,
                policy="--save",
                engine=now.topology.engine,
            )
        except MissingMetric:
            continue  # the simulator says what it lacks
        columns[metric] = evaluate(resolution, window)[metric]
    return replace(now, columns=columns)
