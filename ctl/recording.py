"""What an engine runs, with what was measured of it, as a file for the simulator."""

from dataclasses import replace
from pathlib import Path

import msgspec

from sched_ctl import probes, record
from sched_ctl.controller import Controller
from sched_ctl.engines import Engine
from sched_ctl.errors import UserError
from sched_ctl.metrics import MissingMetric, evaluate, resolve
from sched_ctl.model import Snapshot
from sched_ctl.window import Window

__all__ = ["measured", "save"]

MEASURED = ("cost", "selectivity", "input_rate", "output_rate", "queue_size", "head_age")


def save(path: Path, controller: Controller) -> None:
    """Write the snapshot of the one engine there is. Raises UserError if there is not one."""
    engines = [engine for engine in controller.engines.values() if engine.snapshot is not None]
    if len(engines) != 1:
        found = ", ".join(engine.name for engine in engines) or "no engine"
        raise UserError(
            f"--save writes what one engine runs, and found {found}", "choose one with --engine"
        )
    encoded = msgspec.json.encode(record.snapshot_to_json(measured(engines[0])))
    try:
        path.write_bytes(encoded + b"\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def measured(engine: Engine) -> Snapshot:
    """The engine's last snapshot, with rates and costs over the window among its columns.

    A lone snapshot has only totals since the engine started.
    """
    now = engine.snapshot
    assert now is not None
    window = Window(now, engine.then())
    provides = frozenset(now.columns) | (engine.provides or frozenset())
    columns = dict(now.columns)
    for metric in MEASURED:
        try:
            resolution = resolve(
                [metric], provides | probes.PROVIDES, policy="--save", engine=engine.name
            )
        except MissingMetric:
            continue  # the simulator says what it lacks
        columns[metric] = evaluate(resolution, window)[metric]
    return replace(now, columns=columns)
