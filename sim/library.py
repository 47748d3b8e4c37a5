"""The compiled kernel of the simulator (`native/`), through ctypes."""

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import sched_ctl
from sched_ctl.errors import UserError

__all__ = ["BUCKETS", "RESULTS", "TOTALS", "Machine", "library"]

# As the enums of native/sim.h
MODES = {"operator": 0, "query": 1, "fair": 2, "urgency": 3}
AGES = {"head": 0, "inherited": 1, "runnable": 2}
CANDIDATES = {"none": 0, "operators": 1, "groups": 2, "fagin": 3}
RESULTS = (
    "tuples_in",
    "done",
    "out",
    "sent",
    "cpu",
    "occupied",
    "queue_area",
    "queue_max",
    "departed",
    "response",
    "response_max",
    "worked",
    "slowdown",
    "slowdown_max",
    "slowdown_squares",
    "throughput",
    "left",
    "met",
)
TOTALS = (
    "now",
    "busy",
    "decisions",
    "switches",
    "memory_area",
    "memory_max",
    "events",
    "recorded",
)
BUCKETS = 64 * 64

_INTEGERS = [
    "operators",
    "streams",
    "arrivals",
    "cpus",
    "mode",
    "batch",
    "candidates",
    "train",
    "rotate",
    "capacity",
    "exponential",
    "wake_preempt",
    "age",
    "rivals",
    "record_max",
]
_NUMBERS = [
    "warm_s",
    "end_s",
    "decision_s",
    "candidate_s",
    "queue_s",
    "hop_s",
    "wake_s",
    "switch_s",
    "source_s",
    "tick_s",
    "starvation_s",
    "rescue_s",
    "least_s",
]
_ARRAYS: Mapping[str, type[np.generic]] = {
    "slice_s": np.float64,
    "cost_s": np.float64,
    "selectivity": np.float64,
    "block_probability": np.float64,
    "block_max_s": np.float64,
    "window_s": np.float64,
    "came_s": np.float64,
    "out_start": np.int64,
    "out_target": np.int64,
    "out_port": np.int64,
    "out_inline": np.int64,
    "out_share": np.float64,
    "out_begin": np.float64,
    "query": np.int64,
    "target_s": np.float64,
    "kind": np.int64,
    "feed_start": np.int64,
    "feed": np.int64,
    "stream_start": np.int64,
    "arrival_s": np.float64,
    "order": np.int32,
    "due_s": np.float64,
    "forced_start": np.int64,
    "forced": np.int8,
    "results": np.float64,
    "totals": np.float64,
    "response_histogram": np.int64,
    "slowdown_histogram": np.int64,
    "record": np.float64,
}


class _Config(ctypes.Structure):
    """struct sim_config"""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _INTEGERS),
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_double) for name in _NUMBERS),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
    ]


@cache
def library() -> ctypes.CDLL:
    path = Path(sched_ctl.__file__).with_name("bin") / "libsched_sim.so"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise UserError(
            f"the simulator's compiled part is missing: {error}",
            "install a C compiler and make, then install sched-ctl again; in a checkout: make -C "
            "sim",
        ) from error
    library.sim_config_size.restype = ctypes.c_uint64
    if library.sim_config_size() != ctypes.sizeof(_Config):
        raise UserError(f"{path} is of another version", "in a checkout: make -C sim")
    pointer = ctypes.c_void_p
    library.sim_new.restype = pointer
    library.sim_new.argtypes = [pointer]
    library.sim_free.argtypes = [pointer]
    library.sim_free.restype = None
    library.sim_run.argtypes = [pointer, ctypes.c_double]
    library.sim_set_order.argtypes = [
        pointer, pointer, pointer, pointer, ctypes.c_int64, pointer, pointer, pointer,
    ]  # fmt: skip
    library.sim_set_order.restype = None
    library.sim_set_weights.argtypes = [pointer, pointer]
    library.sim_set_weights.restype = None
    library.sim_set_costs.argtypes = [pointer, pointer]
    library.sim_set_costs.restype = None
    library.sim_observe.argtypes = [pointer, pointer, pointer]
    library.sim_observe.restype = None
    return library


class Machine:
    """One simulation in progress. Keeps the arrays alive that the compiled part works on.

    values: by the names of `struct sim_config`; what is left out is 0 or absent.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        if strangers := values.keys() - {*_INTEGERS, "seed", *_NUMBERS, *_ARRAYS}:
            raise ValueError(f"no such setting: {', '.join(sorted(strangers))}")
        self._library = library()
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        config = _Config()
        for name, value in values.items():
            if name in _ARRAYS:
                array = np.ascontiguousarray(value, dtype=_ARRAYS[name])
                self.arrays[name] = array
                setattr(config, name, array.ctypes.data)
            else:
                setattr(config, name, value)
        self._operators = int(values["operators"])
        self._machine: int | None = self._library.sim_new(ctypes.byref(config))

    def set_order(
        self,
        fixed: npt.NDArray[np.float64],
        per_tuple: npt.NDArray[np.float64],
        group_of: npt.NDArray[np.int64],
        per_second: npt.NDArray[np.float64],
        rank_of_group: npt.NDArray[np.int64],
        turns: npt.NDArray[np.int64],
    ) -> None:
        """Urgency forms in groups of equal rank and per_second; groups ascend by rank."""
        columns = [
            np.ascontiguousarray(fixed, dtype=np.float64),
            np.ascontiguousarray(per_tuple, dtype=np.float64),
            np.ascontiguousarray(group_of, dtype=np.int64),
        ]
        groups = [
            np.ascontiguousarray(per_second, dtype=np.float64),
            np.ascontiguousarray(rank_of_group, dtype=np.int64),
            np.ascontiguousarray(turns, dtype=np.int64),
        ]
        self._library.sim_set_order(
            self._machine,
            *(column.ctypes.data for column in columns),
            len(groups[0]),
            *(column.ctypes.data for column in groups),
        )

    def set_weights(self, weights: npt.NDArray[np.float64]) -> None:
        column = np.ascontiguousarray(weights, dtype=np.float64)
        self._library.sim_set_weights(self._machine, column.ctypes.data)

    def set_costs(self, cost_s: npt.NDArray[np.float64]) -> None:
        """(n,) CPU time of a tuple from now on, s."""
        column = np.ascontiguousarray(cost_s, dtype=np.float64)
        self._library.sim_set_costs(self._machine, column.ctypes.data)

    def observe(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """(n,) queue sizes and (n,) head ages, as a controller would read them now."""
        size, age = np.zeros(self._operators), np.zeros(self._operators)
        self._library.sim_observe(self._machine, size.ctypes.data, age.ctypes.data)
        return size, age

    def run(self, until_s: float) -> bool:
        """Go on until this time, or until all tuples have left; true while there is more to do."""
        return bool(self._library.sim_run(self._machine, until_s))

    def close(self) -> None:
        if self._machine is not None:
            self._library.sim_free(self._machine)
            self._machine = None
