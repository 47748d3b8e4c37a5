"""The simulator against closed forms, and against what a real kernel was measured to do."""

import time
from dataclasses import replace

import numpy as np
import pytest

from sched_ctl.plugins import registry
from sched_ctl.sim import Costs, Node, Result, Setting, Threads, interval, of_workload, simulate
from sched_ctl.workloads import synthetic
from sched_ctl.workloads.workload import OperatorSpec, QuerySpec, SourceSpec, Stream, Workload

pytestmark = pytest.mark.needs("cc")


def chains(*queries: list[tuple[float, float]], base_cost_s: float = 1e-3) -> Workload:
    """Queries as chains of (cost, selectivity), each with its own Poisson source."""
    made = []
    for q, chain in enumerate(queries):
        ops = tuple(OperatorSpec(f"o{i}", c, s) for i, (c, s) in enumerate(chain))
        streams = tuple(Stream(f"o{i}", f"o{i + 1}") for i in range(len(ops) - 1))
        made.append(QuerySpec(f"q{q:03}", ops, streams, (SourceSpec("o0"),)))
    return Workload("chains", tuple(made), base_cost_s)


def run(node: Node, policy: str | None = "fcfs", **setting: object) -> Result:
    made = None if policy is None else registry.policy(policy)
    return simulate(node, made, replace(Setting(), **setting))  # type: ignore[arg-type]


def assert_near(values: list[float], expected: float, slack: float = 0.0) -> None:
    """The 95% interval (twice, for the number of checks) holds the expected value."""
    mean, half = interval(values)
    assert abs(mean - expected) <= 2 * half + slack * expected, (mean, half, expected)
    assert half < 0.1 * expected, "too noisy to tell anything"


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_mm1(load: float) -> None:
    node = of_workload(chains([(1.0, 1.0)]), load)
    found = [
        run(node, duration_s=400.0, warm_s=20.0, seed=s, exponential=True) for s in range(1, 9)
    ]
    assert_near([r.summary().response_s for r in found], 1e-3 / (1 - load))
    # Little's law, with the queue as it was measured on its own
    assert_near([r.memory for r in found], load / (1 - load))


def test_mg1_with_processor_sharing() -> None:
    """T(x) = x / (1 - load), whatever the distribution (Kleinrock 1976)."""
    n, load = 100, 0.7
    exact = Threads(slice_s=5e-5, tick_s=0.0)
    node = of_workload(chains(*[[(1.0 if q % 2 else 4.0, 1.0)] for q in range(n)]), load)
    found = [
        run(node, None, scheduler="os", threads=exact, duration_s=60.0, seed=s) for s in range(1, 7)
    ]
    small = np.arange(n) % 2 == 1
    for rows, cost in ((small, 1e-3), (~small, 4e-3)):
        assert_near([r.summary(rows).response_s for r in found], cost / (1 - load), slack=0.04)


def schrage(sizes: list[float], rate: float) -> float:
    """Mean response time of M/G/1 under SRPT, equal sizes first come first served.

    Schrage and Miller 1966; sizes are equally likely. Waiting: what is found of the jobs not larger
    (larger ones count once they have no more than x left), then what smaller ones add; residence:
    the job's own work, interrupted by smaller ones.
    """
    p = 1 / len(sizes)

    def load(x: float, strict: bool) -> float:
        return rate * p * sum(y for y in sizes if (y < x if strict else y <= x))

    total = 0.0
    for x in sizes:
        second = p * sum(min(y, x) ** 2 for y in sizes)
        wait = rate * second / (2 * (1 - load(x, True)) * (1 - load(x, False)))
        grid = np.linspace(0, x, 20001)[:-1] + x / 40000
        residence = sum(x / 20000 / (1 - load(t, True)) for t in grid)
        total += p * (wait + residence)
    return total


def test_srpt() -> None:
    """Preemption is after each of the 20 operators of a chain, a twentieth of a job."""
    sizes, steps, load = [1.0, 2.0, 8.0], 20, 0.8
    node = of_workload(chains(*[[(x / steps, 1.0)] * steps for x in sizes]), load)
    rate = sum(stream.rate for stream in node.streams)
    expected = schrage([1e-3 * x for x in sizes], rate)
    found = [run(node, "srpt", duration_s=200.0, seed=s) for s in range(1, 9)]
    assert_near([r.summary().response_s for r in found], expected, slack=0.02)
    fcfs = [run(node, "fcfs", duration_s=200.0, seed=s) for s in range(1, 3)]
    assert np.mean([r.summary().response_s for r in fcfs]) > 1.3 * expected


def test_join_meets_its_rate_and_its_window() -> None:
    """A join of window V emits 2 s l r V (Sharaf et al. 2006, section 5.2)."""
    ops = (
        OperatorSpec("l", 1.0),
        OperatorSpec("r", 1.0),
        OperatorSpec("j", 1.0, 0.3, window_s=0.5),
        OperatorSpec("out", 0.1),
    )
    streams = (Stream("l", "j"), Stream("r", "j"), Stream("j", "out"))
    query = QuerySpec("q", ops, streams, (SourceSpec("l", 1.0), SourceSpec("r", 3.0)))
    node = of_workload(Workload("join", (query,), 1e-3), 0.5)
    left, right = (stream.rate for stream in node.streams)
    found = [run(node, duration_s=300.0, warm_s=5.0, seed=s) for s in range(1, 6)]
    assert_near([r.summary().throughput for r in found], 2 * 0.3 * 0.5 * left * right)
    # Waiting for the partner is no slowdown: with few partners and an idle CPU there is none
    rare = replace(query, operators=(*ops[:2], replace(ops[2], selectivity=1e-3), ops[3]))
    idle = of_workload(Workload("join", (rare,), 1e-6), 1e-3)
    assert run(idle, duration_s=60.0).summary().slowdown < 1.05


def test_rates_of_joins_are_the_same_in_any_order_of_operators() -> None:
    ops = (
        OperatorSpec("last", 1.0, 0.4, window_s=0.25),
        OperatorSpec("first", 1.0, 0.3, window_s=0.5),
        *(OperatorSpec(name, 1.0) for name in ("l", "r", "more")),
    )
    pairs = (("l", "first"), ("r", "first"), ("first", "last"), ("more", "last"))
    sources = tuple(
        SourceSpec(name, rate) for name, rate in (("l", 1.0), ("r", 3.0), ("more", 2.0))
    )
    for lines in (ops, ops[::-1]):
        query = QuerySpec("q", lines, tuple(Stream(*pair) for pair in pairs), sources)
        node = of_workload(Workload("joins", (query,), 1e-3), 0.5)
        left, right, more = (stream.rate for stream in node.streams)
        joined = 2 * 0.3 * 0.5 * left * right
        expected = {"first": joined, "last": 2 * 0.4 * 0.25 * joined * more}
        for op, rate in zip(node.topology.operators, node.output_rate, strict=True):
            assert rate == pytest.approx(expected.get(op.name, rate))


@pytest.mark.parametrize("workers", [1, 4, 64])
@pytest.mark.parametrize("cost_s", [2e-6, 2e-5, 1e-4])
def test_a_shared_queue_bounds_the_decisions(workers: int, cost_s: float) -> None:
    """Saturated: min(K / (c + q), 1 / q) decisions/s, one tuple each; all workers are busy."""
    queue_s, tuples = 1e-6, 100
    node = of_workload(chains(*[[(1.0, 1.0)]] * 256, base_cost_s=cost_s), 0.5)
    at_once = tuple(replace(stream, times=np.zeros(tuples)) for stream in node.streams)
    costs = Costs(queue_s=queue_s)
    result = run(replace(node, streams=at_once), cpus=workers, warm_s=0.0, costs=costs)
    totals = result.totals
    assert totals["decisions"] == 256 * tuples
    expected = min(workers / (cost_s + queue_s), 1 / queue_s)
    assert totals["decisions"] / totals["now"] == pytest.approx(expected, rel=0.02)
    assert totals["busy"] / totals["now"] == pytest.approx(workers, rel=0.02)  # who waits spins


# --- what theory and measurement say of schedulers ------------------------------------------------

SYN_LOADS = {
    # mean response and mean slowdown over those of EEVDF; SYN, three to six seeds, kernel 6.18
    (0.9, "os", "hr"): (0.51, 0.24),
    (0.9, "fifo", "hr"): (0.31, 0.15),
    (0.9, "scx", "hr"): (0.35, 0.18),
    (0.9, "scx", "bsd"): (0.49, 0.27),
    (0.9, "user", "hr"): (0.27, 0.16),
    (0.9, "user", "bsd"): (0.38, 0.19),
}


def test_predicts_what_a_kernel_was_measured_to_do() -> None:
    """Within a quarter: seeds, arrivals and generator differ from those of the measurement."""
    costs = Costs(hop_s=0.5e-6, wake_s=2.7e-6, switch_s=4.7e-6, source_s=8.2e-6)
    seeds = range(1, 7)
    nodes = {s: of_workload(synthetic.syn(s), 0.9) for s in seeds}

    def measure(scheduler: str, policy: str | None) -> tuple[list[float], list[float]]:
        more = costs if scheduler != "user" else replace(costs, switch_s=0.0)
        plain = Threads(nice_best=0, nice_worst=19)  # as in the measurement
        runs = [
            run(nodes[s], policy, scheduler=scheduler, seed=s,
                clusters=12 if policy == "bsd" and scheduler == "scx" else 0, costs=more,
                threads=plain)
            for s in seeds
        ]  # fmt: skip
        return [r.summary().response_s for r in runs], [r.summary().slowdown for r in runs]

    base = measure("os", None)
    for (_, scheduler, policy), wanted in SYN_LOADS.items():
        found = measure(scheduler, policy)
        for of, eevdf, ratio in zip(found, base, wanted, strict=True):
            predicted = float(np.exp(np.mean(np.log(np.array(of) / np.array(eevdf)))))
            assert 0.75 * ratio < predicted < 1.33 * ratio, (scheduler, policy, predicted, ratio)


def test_speed_grows_no_worse_than_n_log_n() -> None:
    def per_event(queries: int) -> float:
        """CPU seconds, without what a run takes whatever its length."""
        node = of_workload(synthetic.syn(1, queries=queries), 0.9)
        hr = registry.policy("hr")
        node.frame(hr)

        def run(duration_s: float) -> tuple[float, float]:
            start = time.process_time()
            result = simulate(node, hr, Setting(duration_s=duration_s))
            return time.process_time() - start, result.totals["events"]

        best = np.inf
        for _ in range(3):
            (short_s, few), (long_s, many) = run(10.0), run(130.0)
            best = min(best, (long_s - short_s) / (many - few))
        return best

    small, large = per_event(20), per_event(5000)
    assert large < 4.5 * small, (small, large)  # log 25000 / log 100 = 2.2, and caches
