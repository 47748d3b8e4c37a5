"""Our program that logs who ran when, loaded: for a look of some seconds (bpf/runs.bpf.c)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sched_ctl.kernel import tracing

__all__ = ["KEPT", "OBJECT", "PREEMPTED", "SWITCH", "WAKING", "RunLog"]

OBJECT = Path(__file__).resolve().parents[1] / "bin" / "runs.bpf.o"
_WAKING = ("runs_waking", "runs_waking_blind")
KEPT = 1 << 18  # RUNS_KEPT in bpf/runs.h
SWITCH, PREEMPTED, WAKING = 1, 2, 3  # enum run_event
Table = NDArray[Any]


class RunLog:
    """Logs from now on, until it is closed or full. Raises `tracing.Unavailable`."""

    def __init__(self, pids: Iterable[int]) -> None:
        if (why := tracing.obstacle()) is not None:
            raise tracing.Unavailable(why)
        if not OBJECT.exists():
            raise tracing.Unavailable("the program that logs runs was not built (no clang)")
        self._object, waking = tracing.load(OBJECT, _WAKING)
        self.blind = waking == _WAKING[1]  # interrupts are taken for whom they interrupt
        try:
            followed = self._object.array(".bss.followed", "followed")
            for pid in pids:
                followed[pid // 64] |= np.uint64(1 << pid % 64)
            self._seen = self._object.array(".bss.followed", "seen")
            self._runs = self._object.array(".bss.runs", "runs")
            self._object.attach(waking)
            self._object.attach("runs_switch")
        except OSError as error:
            self._object.close()
            raise tracing.refused(error) from None

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
