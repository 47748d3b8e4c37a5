"""Our program that logs who ran when, loaded: for a look of some seconds (bpf/runs.bpf.c)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sched_ctl.kernel import tracing

__all__ = ["KEPT", "OBJECT", "PREEMPTED", "SWITCH", "WAKING", "RunLog"]

OBJECT = Path(__file__).resolve().parents[1] / "bin" / "runs.bpf.o"
_WAKING = ("runs_waking", "runs_waking_noted")
KEPT = 1 << 18  # RUNS_KEPT in bpf/runs.h
SWITCH, PREEMPTED, WAKING = 1, 2, 3  # enum run_event
Table = NDArray[Any]


class RunLog:
    """Logs from now on, until it is closed or full. Raises `tracing.Unavailable`."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._object = tracing.look_at(pids, OBJECT, _WAKING, "runs_switch")
        self._seen = self._object.array(".bss.followed", "seen")
        self._runs = self._object.array(".bss.runs", "runs")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._object.close()

    @property
    def full(self) -> bool:
        return int(self._seen) >= KEPT

    def read(self) -> Table:
        """Rows of `struct run` in order of time."""
        found = self._runs[: min(int(self._seen), KEPT)].copy()
        found = found[found["what"] != 0]
        ordered: Table = found[np.argsort(found["at_ns"], kind="stable")]
        return ordered
