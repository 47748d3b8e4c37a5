"""What a simulation found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sched_ctl.model.graph import Array
from sched_ctl.model.policy import Policy
from sched_ctl.sim.library import RESULTS, TOTALS
from sched_ctl.sim.node import Node
from sched_ctl.sim.setting import Setting

__all__ = [
    "Result",
    "Summary",
    "interval",
    "quantile",
    "student",
]


@dataclass(frozen=True)
class Summary:
    """Of some of the tuples that left: those of a query, of a class, or all.

    Response times in s, from the arrival in the system to the egress. Slowdown: response time over
    the CPU time of the way that the tuple took; a tuple that took none has none. l2: root of the
    sum of squared slowdowns (grows with the number of tuples), rms: root of their mean.
    """

    tuples: int
    throughput: float
    response_s: float
    response_max_s: float
    slowdown: float
    slowdown_max: float
    l2: float
    rms: float


@dataclass(frozen=True, eq=False)
class Result:
    """columns: name of `library.RESULTS` -> (n,). Those of the queue are over the whole run.

    offered: CPU demand of what came, over the CPUs. utilisation: (n,) share of the measured time in
    which the operator was busy or had work waiting (EdgeWise, equation 11). windows: the same in
    each window, if windows were asked for.
    """

    node: Node
    policy: str
    setting: Setting
    columns: Mapping[str, Array]
    totals: Mapping[str, float]
    arrivals: int
    responses: npt.NDArray[np.int64]  # histogram, see `quantile`
    by_target: npt.NDArray[np.int64]  # (1 + targets, buckets), the first: of queries without one
    slowdowns: npt.NDArray[np.int64]
    record: Array  # (tuples, 3): egress row, arrival, departure
    windows: Sequence[Array]

    @staticmethod
    def of(
        node: Node,
        policy: Policy | None,
        setting: Setting,
        arrays: Mapping[str, npt.NDArray[Any]],
        arrivals: int,
        windows: Sequence[Array],
    ) -> "Result":
        totals = dict(zip(TOTALS, map(float, arrays["totals"]), strict=True))
        return Result(
            node,
            "-" if policy is None else policy.name,
            setting,
            dict(zip(RESULTS, arrays["results"].T.copy(), strict=True)),
            totals,
            arrivals,
            arrays["response_histogram"].sum(axis=0),
            arrays["response_histogram"],
            arrays["slowdown_histogram"],
            arrays["record"][: int(totals["recorded"])],
            tuple(windows),
        )

    def summary(self, rows: npt.NDArray[np.bool_] | None = None) -> Summary:
        """Over the egress operators among `rows` (a mask; None: all)."""
        mask = np.ones(self.node.n, dtype=np.bool_) if rows is None else rows

        def total(name: str) -> float:
            return float(self.columns[name][mask].sum())

        def largest(name: str) -> float:
            return float(self.columns[name][mask].max(initial=0.0))

        tuples = total("departed")
        count, worked = tuples or float("nan"), total("worked") or float("nan")
        squares = total("slowdown_squares")
        return Summary(
            int(tuples),
            total("throughput") / (self.setting.duration_s - self.setting.warm_s),
            total("response") / count,
            largest("response_max"),
            total("slowdown") / worked,
            largest("slowdown_max"),
            float(np.sqrt(squares)),
            float(np.sqrt(squares / worked)),
        )

    def by_query(self) -> dict[str, Summary]:
        query_of = self.node.query_of
        return {q: self.summary(query_of == i) for i, q in enumerate(self.node.topology.queries)}

    def by_class(self) -> dict[str, Summary]:
        """Of the workload's priority classes; empty if it has none."""
        names = [o.query for o in self.node.topology.operators]
        member = np.array([self.node.classes.get(name, "") for name in names])
        return {klass: self.summary(member == klass) for klass in sorted({*member} - {""})}

    @property
    def seconds(self) -> float:
        """Until the last tuple had left; the duration if none came."""
        return self.totals["now"] or self.setting.duration_s

    @property
    def offered(self) -> float:
        """CPU demand of what really came, over the CPUs, for the duration of arrivals."""
        meant = sum(stream.rate for stream in self.node.streams) * self.setting.duration_s
        return self.node.demand / self.setting.cpus * self.arrivals / meant if meant else 0.0

    @property
    def stable(self) -> bool:
        return not self.overload

    @property
    def overload(self) -> str:
        """Who needs more CPU than it can get, in words; empty if nobody: then no queue grows.

        An operator can use one CPU at most. Where a tuple is taken to its end, a query can use as
        many as it has operators to which tuples come from outside.
        """
        topology, query_of = self.node.topology, self.node.query_of
        need = self.node.input_rate * (self.node.cost_s + self.setting.costs.hop_s)
        if need.sum() >= self.setting.cpus:
            return "more work than CPU"
        if self.setting.threaded or self.setting.user.level == "operator":
            names, room = [operator.label for operator in topology.operators], np.ones(self.node.n)
        else:
            starts = sorted({row for stream in self.node.streams for row in stream.rows})
            names = list(topology.queries)
            need = np.bincount(query_of, weights=need).astype(np.float64)
            room = np.maximum(1.0, np.bincount(query_of[starts], minlength=len(names)))
        if (need < room).all():
            return ""
        most = int(np.argmax(need / room))
        uses = "one" if room[most] == 1 else f"{room[most]:.0f}"
        return f"{names[most]} needs {need[most]:.2f} CPUs and can use {uses}"

    @property
    def memory(self) -> float:
        """Mean number of tuples in all queues while tuples came."""
        return self.totals["memory_area"] / (self.setting.duration_s - self.setting.warm_s)

    @property
    def utilisation(self) -> Array:
        return np.asarray(self.columns["occupied"] / self.seconds)

    @property
    def imbalance(self) -> float:
        """Coefficient of variation of the utilisation over operators (EdgeWise, section 7.3.1)."""
        if self.windows:
            return float(np.mean([_variation(window) for window in self.windows]))
        return _variation(self.utilisation)

    def unaccounted(self, streams: Sequence[Array]) -> str:
        """Where tuples were lost or made, in words; empty if nowhere.

        streams: the arrival times of each of the node's. What came to an operator is what streams
        and edges brought, all of it was processed, and what it emitted went on or left the node.
        """
        graph, columns = self.node.topology.graph, self.columns
        fed = np.zeros(self.node.n)
        for stream, times in zip(self.node.streams, streams, strict=True):
            fed[list(stream.rows)] += len(times)
        came, done = columns["tuples_in"], columns["done"]
        if (stuck := came != done).any():
            row = int(np.argmax(stuck))
            label = self.node.topology.operators[row].label
            return f"{came.sum() - done.sum():.0f} still wait, the first at {label}"
        if (fed[graph.ingress] != came[graph.ingress]).any():
            return f"{fed.sum():.0f} arrived, {came[graph.ingress].sum():.0f} came in"
        if columns["sent"].sum() != came.sum() - fed.sum():
            return f"{columns['sent'].sum():.0f} were sent, {came.sum() - fed.sum():.0f} came in"
        whole = np.ones(self.node.n, dtype=np.bool_)
        whole[graph.source[graph.share < 1]] = False
        copies = columns["out"] * np.bincount(graph.source, minlength=self.node.n)
        if (whole & (copies != columns["sent"])).any():
            return f"{copies[whole].sum():.0f} emitted, {columns['sent'][whole].sum():.0f} sent"
        if (columns["left"] != np.where(graph.egress, columns["out"], 0)).any():
            return f"{columns['out'][graph.egress].sum():.0f} results, of which not all left"
        return ""

    def quantile(self, q: float) -> float:
        """Of the response time, in s, to 1%."""
        return quantile(self.responses, q)


def _variation(values: Array) -> float:
    mean = float(values.mean())
    return float(values.std()) / mean if mean > 0 else 0.0


def quantile(histogram: npt.NDArray[np.int64], q: float) -> float:
    """The q-quantile of a histogram with 64 buckets an octave from 2^-34; NaN if it is empty."""
    if not histogram.sum():
        return float("nan")
    wanted = q * (histogram.sum() - 1)
    return middle_s(int(np.searchsorted(np.cumsum(histogram), wanted, side="right")))


def middle_s(bucket: int) -> float:
    """Of a bucket of these."""
    octave, part = divmod(bucket, 64)
    return float(2.0 ** (octave - 34) * (1 + (part + 0.5) / 64))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its 95% confidence interval (Student's t)."""
    n = len(values)
    mean = float(np.mean(values))
    if n < 2:
        return mean, float("nan")
    return mean, student(n - 1) * float(np.std(values, ddof=1)) / float(np.sqrt(n))


def student(degrees: int) -> float:
    """97.5% quantile of Student's t; Cornish-Fisher expansion, 1% off at 3 degrees."""
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
    if degrees in table:
        return table[degrees]
    z, d = 1.959964, float(degrees)
    return z + (z**3 + z) / (4 * d) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * d**2)
