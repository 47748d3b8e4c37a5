"""Run a node under a policy.

The policy objects are those of `sched_ctl.policies`; they see an operator frame with the true costs
and selectivities, and what they return is enforced at each scheduling point. Under the OS's fair
scheduler their nice values are made by `sched_ctl.model.normalise`, once a period, as the nice
backend does with its default options, of queues as means over several periods.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sched_ctl.decide.held import steadily
from sched_ctl.errors import UserError
from sched_ctl.metrics import feasibility
from sched_ctl.metrics.window import REPORTS
from sched_ctl.model.graph import Array
from sched_ctl.model.normalise import NICE_STEP, nice_levels, nice_values, with_weight_kept
from sched_ctl.model.options import SPAN
from sched_ctl.model.policy import Policy, UrgencyForm
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread
from sched_ctl.plugins import registry
from sched_ctl.sim import forms
from sched_ctl.sim.arrivals import arrival_times
from sched_ctl.sim.library import AGES, BUCKETS, CANDIDATES, MODES, RESULTS, TOTALS, Machine
from sched_ctl.sim.node import Node
from sched_ctl.sim.result import Result
from sched_ctl.sim.setting import Setting

__all__ = ["expected_arrivals", "simulate", "simulate_by_name"]

MAX_ARRIVALS = 100_000_000
BASE_SLICE_S = 0.7e-3  # base_slice_ns of kernel/sched/fair.c on one CPU
HZ = 250
# As the scx backend has them: `slice`, what is left of it for threads that the rest of their query
# goes before, `starvation`, `gap`, and rescue_ms of bpf/sched_ctl.h
SCX_SLICE_S = 3e-3
SCX_BEHIND = 0.6
SCX_STARVATION_S = 0.5
SCX_RESCUE_S = 0.05
SCX_GAP_S = 1.0
SCX_LEAST_S = 0.5e-3  # `interrupt`
UNIT = 1024.0  # weight of nice 0

Progress = Callable[[float], None]
Queues = tuple[Array, Array]  # (n,) sizes and (n,) head ages


def simulate(
    node: Node,
    policy: Policy | None,
    setting: Setting,
    *,
    weights: Array | None = None,
    progress: Progress | None = None,
    window_s: float | None = None,
) -> Result:
    """Run the node until all tuples that came within `duration_s` have left.

    policy: None is the OS's fair scheduler with equal weights. weights: (n,) instead of a policy's
    nice values, 1024 = nice 0. progress: called with the share of the time that has passed.
    window_s: also measure the utilisation of the operators in windows of this length.
    """
    if policy is None and setting.scheduler != "os":
        raise UserError(
            f"scheduler {setting.scheduler} needs a policy",
            "only the OS's fair scheduler (os) works without",
        )
    streams = _arrivals(node, setting)
    count = sum(map(len, streams))
    if count > MAX_ARRIVALS:
        raise _too_many(node, f"{count:,}")
    groups = _groups(node, policy)
    rotate = setting.scheduler == "user" and groups is not None
    watch = _Watch(node, setting)
    form = None if policy is None else watch.form(policy)
    machine = Machine(_values(node, form, setting, streams, rotate))
    try:
        queues = watch.look(machine)
        _enforce(machine, watch, policy, form, setting, queues, groups if rotate else None)
        if weights is not None:
            machine.set_weights(weights)
        repeat = policy is not None and _repeats(node, policy, form, setting)
        windows = _go(machine, watch, policy if repeat else None, setting, progress, window_s)
        result = Result.of(node, policy, setting, machine.arrays, count, windows)
    finally:
        machine.close()
    if wrong := result.unaccounted(streams):
        raise UserError(
            f"the simulation of {node.name} lost count of its tuples: {wrong}",
            "this is a fault of the simulator: please report it with the command and the workload",
        )
    return result


def simulate_by_name(
    node: Node,
    policy: str | None,
    options: Mapping[str, object],
    setting: Setting,
    progress: Progress | None = None,
) -> Result:
    """`simulate` with a policy that is made for this run, from its name and options.

    Depends on nothing but its arguments, which can be pickled: the same run in any process, and
    whatever ran before (a policy that draws, as `random`, keeps where it is).
    """
    made = None if policy is None else registry.policy(policy, options)
    return simulate(node, made, setting, progress=progress)


class _Watch:
    """Looks at the queues and asks a policy for its form. Remembers how the queries stood with
    their targets, and whether queues stood."""

    def __init__(self, node: Node, setting: Setting) -> None:
        self.node = node
        self._seen: deque[Queues] = deque(maxlen=REPORTS if _holds(setting) else 1)
        self._cpus = float(setting.cpus)
        self._stood: Mapping[feasibility.Query, feasibility.Judgement] = {}
        self._standing = False

    def look(self, machine: Machine) -> Queues:
        """What the controller takes the queues to be; as means for who holds a decision."""
        self._seen.append(machine.observe())
        sizes, ages = zip(*self._seen, strict=True)
        return np.mean(sizes, axis=0), np.mean(ages, axis=0)

    def steadily(self, form: UrgencyForm, queues: Queues) -> tuple[bool, float | None]:
        """`standing` and `grain` of a schedule."""
        size, age = queues
        found = steadily(form, age, size, self.node.cost_s, self._standing)
        self._standing = found[0]
        return found

    def form(
        self, policy: Policy, time_s: float = 0.0, queues: Queues | None = None
    ) -> UrgencyForm:
        frame = self.node.frame(policy, time_s, queues)
        targets: Any = policy.options.get("targets", ())
        if targets:
            engines = (self.node.topology.engine,)
            self._stood = feasibility.judge(frame, engines, targets, self._cpus, self._stood)
            told = feasibility.tell(frame, engines, self._stood)
            frame = replace(frame, columns={**frame.columns, **told})
        return policy.urgency(frame)


def _go(
    machine: Machine,
    watch: _Watch,
    policy: Policy | None,
    setting: Setting,
    progress: Progress | None,
    window_s: float | None,
) -> list[Array]:
    """To the end. policy: that is asked again each period; None: it is not."""
    step = setting.period_s if policy else setting.duration_s / 50 if progress else np.inf
    occupied = machine.arrays["results"][:, RESULTS.index("occupied")]
    windows: list[Array] = []
    last = occupied.copy()
    next_step, next_window = step, setting.warm_s if window_s else np.inf
    while True:
        until = min(next_step, next_window)
        more = machine.run(until)
        if progress:
            progress(min(1.0, float(machine.arrays["totals"][0]) / setting.duration_s))
        if not more:
            return windows
        if until == next_window and window_s:
            if until > setting.warm_s and until <= setting.duration_s:
                windows.append((occupied - last) / window_s)
            last = occupied.copy()
            next_window += window_s
        if until == next_step:
            next_step += step
            if policy is not None:
                if watch.node.told is not None and setting.threads.arrivals:
                    machine.arrays["came_s"][:] = watch.node.told(until).get("arrival_age", 0.0)
                queues = watch.look(machine)
                form = watch.form(policy, until, queues)
                _enforce(machine, watch, policy, form, setting, queues, None)
                machine.arrays["slice_s"][:] = _slices_s(watch.node, form, setting)


def _repeats(node: Node, policy: Policy, form: UrgencyForm | None, setting: Setting) -> bool:
    """Whether what is in force is made anew each period."""
    waits = form is not None and bool(form.per_second.any() or form.per_tuple.any())
    return (
        setting.scheduler == "os"
        or (setting.scheduler == "fifo" and waits)
        or node.told is not None
        or policy.name == "random"
        or bool(policy.options.get("targets"))
        or ("queue_size" in policy.needs and _reads_once(setting))
    )


def _enforce(
    machine: Machine,
    watch: _Watch,
    policy: Policy | None,
    form: UrgencyForm | None,
    setting: Setting,
    queues: Queues,
    turns: tuple[forms.Whole, Array] | None,
) -> None:
    if policy is None or form is None:
        return
    if setting.scheduler == "os":
        machine.set_weights(_nice_weights(watch, policy, form, setting, queues))
        return
    if setting.scheduler == "user" and setting.user.level == "query":
        form = _of_starts(watch.node, form)
    if setting.scheduler == "fifo":
        form = _at_present(form, *queues)
    elif _reads_once(setting) and form.per_tuple.any():
        size, _ = queues
        static = form.static + form.per_tuple * size
        form = replace(form, static=static, per_tuple=np.zeros(len(form)))
    if setting.clusters:
        form = forms.clustered(form, setting.clusters, setting.uniform)
    if setting.scheduler == "scx" and not turns:
        form = forms.aging(form, SCX_GAP_S)
    groups = forms.by_turns(form, *turns) if turns else forms.grouped(form)
    machine.set_order(
        groups.fixed,
        groups.per_tuple,
        groups.group_of,
        groups.per_second,
        groups.rank,
        groups.turns,
    )


def _at_present(form: UrgencyForm, size: Array, age: Array) -> UrgencyForm:
    """Priorities of the moment, which a real-time thread keeps however long it waits."""
    zeros = np.zeros(len(form))
    return UrgencyForm(form.rank, form.at(age, size), zeros, zeros)


def _reads_once(setting: Setting) -> bool:
    """Whether queue lengths are read once a period, rather than at each decision."""
    return setting.threaded and not (setting.scheduler == "scx" and setting.threads.live)


def _holds(setting: Setting) -> bool:
    """Whether a decision is for a whole period, so that queues are averaged (`Window.lately`)."""
    return setting.scheduler in ("os", "fifo") and setting.threads.nice_best is None


def _of_starts(node: Node, form: UrgencyForm) -> UrgencyForm:
    """The form where tuples can wait at query level; elsewhere of one kind, for fewer groups."""
    graph = node.topology.graph
    starts = graph.ingress.copy()
    starts[[row for stream in node.streams for row in stream.rows]] = True
    starts[graph.target[~_inline(node, form)]] = True
    some = int(np.flatnonzero(starts)[0])
    return UrgencyForm(
        *(
            np.where(starts, part, part[some])
            for part in (form.rank, form.static, form.per_second, form.per_tuple)
        )
    )


def _nice_weights(
    watch: _Watch, policy: Policy, form: UrgencyForm, setting: Setting, queues: Queues
) -> Array:
    node, best, worst = watch.node, setting.threads.nice_best, setting.threads.nice_worst
    size, age = queues
    schedule = Schedule(
        scope="simulation",
        policy=policy.name,
        spacing=policy.spacing,
        threads=tuple(Thread(1, i + 2, 0) for i in range(node.n)),
        operators=tuple(operator.label for operator in node.topology.operators),
        form=form,
        head_age_s=age,
        queue_size=size,
    )
    if best is not None and worst is not None:
        nice = nice_values(schedule, best, worst).astype(np.float64)
    else:
        standing, grain = watch.steadily(form, queues)
        depth = node.topology.graph.reversed.height + 1
        held = replace(schedule, depth=depth, standing=standing, grain=grain)
        below = nice_levels(held, 0, SPAN, math.nan)
        demand = np.minimum(1.0, node.input_rate * node.cost_s)
        nice = np.rint(with_weight_kept(below, np.zeros(node.n), demand, -SPAN, SPAN))
    return np.asarray(UNIT * NICE_STEP**-nice)


def _groups(node: Node, policy: Policy | None) -> tuple[forms.Whole, Array] | None:
    """The policy's groups of queries: (n,) group of each operator, and the groups' shares."""
    if policy is None or policy.groups is None:
        return None
    engine = node.topology.engine
    by_query = [policy.groups(engine, query) for query in node.topology.queries]
    names = {name: i for i, name in enumerate(dict.fromkeys(name for name, _ in by_query))}
    shares = np.zeros(len(names))
    for name, share in by_query:
        shares[names[name]] = share
    member = np.array([names[name] for name, _ in by_query], dtype=np.int64)
    return member[node.query_of], shares


def expected_arrivals(node: Node, setting: Setting) -> float:
    return sum(stream.rate for stream in node.streams) * setting.duration_s


def _too_many(node: Node, count: str) -> UserError:
    costs = "" if node.measured else ", or raise the costs of the operators (--base-cost-us)"
    return UserError(
        f"{count} arrivals are more than a simulation holds", f"shorten the duration{costs}"
    )


def _arrivals(node: Node, setting: Setting) -> list[Array]:
    seeds = np.random.SeedSequence(setting.seed).spawn(len(node.streams))
    expected = expected_arrivals(node, setting)
    if expected > 1.5 * MAX_ARRIVALS:
        raise _too_many(node, f"{expected:.3g}")
    return [
        stream.times[stream.times < setting.duration_s]
        if stream.times is not None
        else arrival_times(
            stream.arrivals,
            stream.rate,
            setting.duration_s,
            np.random.default_rng(seed),
            node.folder,
        )
        for stream, seed in zip(node.streams, seeds, strict=True)
    ]


def _values(
    node: Node,
    form: UrgencyForm | None,
    setting: Setting,
    streams: Sequence[Array],
    rotate: bool,
) -> dict[str, Any]:
    user, threads, costs = setting.user, setting.threads, setting.costs
    if not setting.threaded:
        mode = user.level
        tick_s, wake_preempt = 0.0, False
    elif setting.scheduler == "os":
        mode = "fair"
        tick_s, wake_preempt = 1 / HZ, True
    else:
        mode = "urgency"
        fifo = setting.scheduler == "fifo"
        tick_s, wake_preempt = 1 / HZ, fifo
    arrival_s = np.concatenate([*streams, np.empty(0)])
    owner = np.repeat(np.arange(len(streams), dtype=np.int32), [len(times) for times in streams])
    by_time = np.argsort(arrival_s, kind="stable")
    values: dict[str, Any] = {
        "operators": node.n,
        "streams": len(streams),
        "arrivals": len(arrival_s),
        "cpus": setting.cpus,
        "mode": MODES[mode],
        "batch": user.batch,
        "candidates": CANDIDATES[user.candidates],
        "train": user.train,
        "rotate": rotate,
        "capacity": setting.capacity,
        "exponential": setting.exponential,
        "wake_preempt": wake_preempt if threads.wake_preempt is None else threads.wake_preempt,
        "age": AGES[threads.age],
        "rivals": form is not None
        and bool(form.per_second.any())
        and len(node.topology.queries) > 1,
        "record_max": setting.record,
        "seed": setting.seed,
        "warm_s": setting.warm_s,
        "end_s": setting.duration_s,
        "decision_s": costs.decision_s,
        "candidate_s": costs.candidate_s,
        "queue_s": costs.queue_s,
        "hop_s": costs.hop_s,
        "wake_s": costs.wake_s,
        "switch_s": costs.switch_s,
        "source_s": costs.source_s,
        "slice_s": _slices_s(node, form, setting),
        "tick_s": tick_s if threads.tick_s is None else threads.tick_s,
        "starvation_s": SCX_STARVATION_S if setting.scheduler == "scx" else 0.0,
        "rescue_s": SCX_RESCUE_S,
        "least_s": SCX_LEAST_S if setting.scheduler == "scx" else 0.0,
        "query": node.query_of,
        **_targets(node),
        "cost_s": node.cost_s,
        "selectivity": node.selectivity,
        "block_probability": node.block_probability,
        "block_max_s": node.block_max_s,
        "window_s": node.window_s,
        "came_s": np.zeros(node.n),
        "feed_start": _starts(len(stream.rows) for stream in node.streams),
        "feed": np.array([row for stream in node.streams for row in stream.rows], dtype=np.int64),
        "stream_start": _starts(map(len, streams)),
        "arrival_s": arrival_s,
        "order": owner[by_time],
        "due_s": arrival_s[by_time],
        "results": _lines(node.n),
        "totals": np.zeros(len(TOTALS)),
        "response_histogram": np.zeros((1 + len(node.targets), BUCKETS), dtype=np.int64),
        "slowdown_histogram": np.zeros(BUCKETS, dtype=np.int64),
        "record": np.zeros((setting.record, 3)),
    }
    values |= _edges(node, form)
    if node.forced:
        values["forced_start"] = _starts(len(node.forced.get(i, ())) for i in range(node.n))
        values["forced"] = [out for i in range(node.n) for out in node.forced.get(i, ())]
    return values


def _targets(node: Node) -> dict[str, Array | forms.Whole]:
    """What each operator's tuples are to keep, and where they are counted: 0 = without a target."""
    mine = [node.targeted.get(query) for query in node.topology.queries]
    latency = np.array([np.inf if target is None else target.latency_s for target in mine])
    kind = np.array([0 if target is None else 1 + node.targets.index(target) for target in mine])
    return {"target_s": latency[node.query_of], "kind": kind[node.query_of]}


def _slices_s(node: Node, form: UrgencyForm | None, setting: Setting) -> Array:
    """(n,) how long each operator's thread runs before others are compared."""
    usual_s = {
        "os": BASE_SLICE_S * (1 + np.log2(min(setting.cpus, 8))),
        "fifo": np.inf,
        "scx": SCX_SLICE_S,
    }
    if setting.threads.slice_s is not None:
        return np.full(node.n, setting.threads.slice_s)
    slices_s = np.full(node.n, usual_s.get(setting.scheduler, 0.0))
    if form is not None and setting.scheduler == "scx":
        highest = np.full(int(node.query_of.max()) + 1, -np.inf)
        np.fmax.at(highest, node.query_of, form.rank)
        slices_s[form.rank < highest[node.query_of]] *= SCX_BEHIND
    return slices_s


def _lines(n: int) -> Array:
    """(n, RESULTS) zeros, each row at the start of a cache line."""
    width = len(RESULTS)
    space = np.zeros(n * width + 8)
    first = -space.ctypes.data % 64 // 8
    return space[first : first + n * width].reshape(n, width)


def _edges(node: Node, form: UrgencyForm | None) -> dict[str, Any]:
    """Edges by producer. At query level a tuple takes the more urgent branches first.

    A branch less urgent than the operator it leaves was left out of its priority-defining tree
    (`sched_ctl.metrics.sharing`): it waits for its own turn. Where a split's shares lie is as the
    graph has them: which branch a tuple takes is no matter of urgency.
    """
    graph = node.topology.graph
    begin, laid = np.zeros(len(graph.source)), np.zeros(node.n)
    for edge in np.flatnonzero(graph.share < 1):
        begin[edge] = laid[graph.source[edge]]
        laid[graph.source[edge]] += graph.share[edge]
    port = np.zeros(len(graph.source), dtype=np.int64)
    for row in np.flatnonzero(node.window_s > 0):
        edges = np.flatnonzero(graph.target == row)
        port[edges] = np.arange(len(edges)) % 2
    order = np.lexsort((-_urgency(node, form)[graph.target], graph.source))
    fan_out = np.bincount(graph.source, minlength=node.n)
    inline = _inline(node, form)
    return {
        "out_start": _starts(fan_out),
        "out_target": graph.target[order],
        "out_port": port[order],
        "out_inline": inline[order],
        "out_share": graph.share[order],
        "out_begin": begin[order],
    }


def _urgency(node: Node, form: UrgencyForm | None) -> Array:
    """(n,) with tuples of one age everywhere."""
    if form is None:
        return np.zeros(node.n)
    return np.nan_to_num(form.at(np.ones(node.n), np.zeros(node.n)))


def _inline(node: Node, form: UrgencyForm | None) -> npt.NDArray[np.bool_]:
    graph = node.topology.graph
    urgency = _urgency(node, form)
    splits = (np.bincount(graph.source, minlength=node.n)[graph.source] > 1) & (graph.share == 1)
    return np.asarray(~(splits & (urgency[graph.target] < urgency[graph.source])))


def _starts(lengths: Any) -> forms.Whole:
    return np.concatenate([[0], np.cumsum(np.fromiter(lengths, dtype=np.int64))])
