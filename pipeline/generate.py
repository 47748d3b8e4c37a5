"""Telemetry of a fleet that does not exist, whose truth is known: for tests, and to try the
commands.

Every node runs the same queries, chains of operators. Costs and selectivities are the truth times
a little noise; nodes of the slow kind cost more; one operator's cost drifts; policies take turns
by the hour, and each has its factor on latency at equal load; a fault makes one operator the
bottleneck of its query on some nodes for some time. Everything follows from the seed.
"""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec import structs

from sched_ctl.errors import UserError
from sched_ctl.metrics.verdicts import Verdict
from sched_ctl.model.graph import Array
from sched_ctl.telemetry import records

__all__ = ["Plan", "Truth", "generate", "truth_of"]

STEP_S = 5
MACHINES = ("x86_64 fast", "aarch64 slow")


@dataclass(frozen=True)
class Plan:
    """What to make. Spans are in seconds; slow: share of the nodes of the slow kind."""

    nodes: int = 4
    seconds: int = 3600
    queries: int = 4
    chain: int = 5
    seed: int = 1
    start_s: int = 1_795_305_600
    file_s: int = 3600
    load: float = 0.5  # CPU demand over CPUs, on average
    cpus: int = 2
    slow: float = 0.5
    slow_factor: float = 2.0
    drift_a_day: float = 0.0  # growth of the cost of operator 1 of query 0, as a share
    policies: tuple[tuple[str, float], ...] = (("os", 1.0), ("hr", 0.6))  # factor on latency
    policy_s: int = 600  # a policy's turn
    fault: tuple[int, int] = (0, 0)  # begin and end of it, from the start
    fault_nodes: int = 0  # the first of them
    step: tuple[int, float] = (0, 1.0)  # from then on operator 3 costs so many times as much
    step_nodes: int = 0  # the first of them
    skew: int = 1  # the first node has so many times the queries
    bad_lines: int = 0  # in each file
    torn: int = 0  # files whose end is missing
    repeated: int = 0  # files that are there once more under another name
    level: int = 6  # of gzip


@dataclass(frozen=True)
class Truth:
    """What the figures must come out as, by operator "qN/oK"."""

    cost_us: dict[str, float]  # on a fast node
    selectivity: dict[str, float]
    lines: int = 0  # good ones, each once
    operator_rows: int = 0
    bad: int = 0
    files: list[Path] = field(default_factory=list)


def truth_of(plan: Plan) -> Truth:
    cost, selectivity, _ = _world(plan)
    labels = [f"q{q}/o{k}" for q in range(plan.queries) for k in range(plan.chain)]
    return Truth(
        dict(zip(labels, (cost * 1e6).tolist(), strict=True)),
        dict(zip(labels, selectivity.tolist(), strict=True)),
    )


def generate(folder: Path, plan: Plan) -> Truth:
    """Write the files. Returns the truth, with what was written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {folder}: {error.strerror}", "name another folder") from error
    base = truth_of(plan)
    lines = rows = bad = 0
    files: list[Path] = []
    noise = np.random.default_rng([plan.seed, 99])
    for node in range(plan.nodes):
        for name, made, n in _files(plan, node):
            data = [records.encode(line) for line in made]
            for _ in range(plan.bad_lines):
                data.insert(int(noise.integers(2, len(data))), b'{"k":"record","t":"no"}\n')
            path = folder / str(name)
            packed = gzip.compress(b"".join(data), plan.level)
            good = made
            if len(files) < plan.torn:
                # The last line loses its end.
                packed = gzip.compress(b"".join(data)[:-9], plan.level)
                good = made[:-1]
                bad += 1
            path.write_bytes(packed)
            if len(files) < plan.repeated:
                other = records.FileName(name.node, name.start, name.seq + 10**12)
                (folder / str(other)).write_bytes(packed)
            files.append(path)
            bad += plan.bad_lines
            lines += len(good)
            rows += n * sum(isinstance(line, records.Record) for line in good)
    return Truth(base.cost_us, base.selectivity, lines, rows, bad, files)


def _world(plan: Plan) -> tuple[Array, Array, Array]:
    """Costs (s), selectivities (n,), and rates of the queries (tuples/s) on a fast node."""
    source = np.random.default_rng([plan.seed, 7])
    n = plan.queries * plan.chain
    cost = source.lognormal(np.log(1e-4), 1.0, n)
    selectivity = np.clip(source.lognormal(-0.2, 0.4, n), 0.2, 1.0)
    rate = source.lognormal(np.log(300), 0.7, plan.queries)
    passed = np.cumprod(selectivity.reshape(plan.queries, -1), axis=1) / selectivity.reshape(
        plan.queries, -1
    )
    demand = (rate[:, None] * passed * cost.reshape(plan.queries, -1)).sum()
    return cost, selectivity, rate * plan.load * plan.cpus / demand


def _files(plan: Plan, node: int) -> Iterator[tuple[records.FileName, list[records.Line], int]]:
    source = np.random.default_rng([plan.seed, 1000 + node])
    cost, selectivity, rate = _world(plan)
    copies = plan.skew if node == 0 else 1
    queries, chain = plan.queries * copies, plan.chain
    slow = node >= round(plan.nodes * (1 - plan.slow))
    name = f"gw-{node:04}"
    n = queries * chain
    topology = records.Topology(
        node=name,
        t=plan.start_s * 1000,
        engine="lab:1",
        epoch=1,
        queries=[f"q{q}" for q in range(queries)],
        ops=[f"o{k}" for _ in range(queries) for k in range(chain)],
        query_of=[q for q in range(queries) for _ in range(chain)],
        edges=[
            (q * chain + k, q * chain + k + 1, 1.0)
            for q in range(queries)
            for k in range(chain - 1)
        ],
    )
    start = records.Start(
        node=name,
        t=plan.start_s * 1000,
        program="0",
        cpus=plan.cpus,
        machine=MACHINES[slow],
    )
    seq = plan.start_s * 1000
    per_file = max(1, plan.file_s // STEP_S)
    steps = plan.seconds // STEP_S
    factor = (plan.slow_factor if slow else 1.0) * np.tile(cost, copies)
    # On a slow node as much is asked of the CPUs: it takes in less.
    scale = np.tile(rate, copies) / (plan.slow_factor if slow else 1.0) / copies
    for first in range(0, steps, per_file):
        count = min(per_file, steps - first)
        at = np.arange(first, first + count, dtype=np.float64) * STEP_S
        columns = _columns(plan, source, at, factor, np.tile(selectivity, copies), scale, node)
        begin_ms = (plan.start_s + int(at[0])) * 1000
        made: list[records.Line] = [
            structs.replace(start, t=begin_ms),
            structs.replace(topology, t=begin_ms),
        ]
        turns = [
            plan.policies[(s // plan.policy_s) % len(plan.policies)][0]
            for s in at.astype(int).tolist()
        ]
        lists = {key: values.tolist() for key, values in columns.items()}
        for row in range(count):
            held = {key: values[row] for key, values in lists.items()}
            psi = held.pop("psi")
            made.append(
                records.Record(
                    node=name,
                    t=(plan.start_s + int(at[row])) * 1000,
                    d=STEP_S * 1000,
                    engine="lab:1",
                    epoch=1,
                    passes=STEP_S,
                    policy=[turns[row]] * queries,
                    backend=["" if turns[row] == "os" else "nice"] * queries,
                    psi=[psi, 0, 0],
                    **held,
                )
            )
        for line in made:
            line.seq = seq
            seq += 1
        yield records.FileName.of(name, begin_ms, made[0].seq), made, n


def _columns(
    plan: Plan,
    source: np.random.Generator,
    at: Array,
    cost: Array,
    selectivity: Array,
    rate: Array,
    node: int,
) -> dict[str, Array]:
    """(steps, n) integer columns of records, by field."""
    n, chain = len(cost), plan.chain
    days = at / 86400
    wave = 1 + 0.5 * np.sin(2 * np.pi * (at[:, None] / 7200 + np.arange(len(rate)) / len(rate)))
    arrived = source.poisson(rate * wave * STEP_S)
    tuples_in = np.zeros((len(at), n), dtype=np.int64)
    tuples_out = np.zeros_like(tuples_in)
    flow = arrived
    for k in range(chain):
        rows = slice(k, n, chain)
        tuples_in[:, rows] = flow
        flow = source.binomial(flow, selectivity[rows])
        tuples_out[:, rows] = flow
    each = np.broadcast_to(cost, tuples_in.shape).copy()
    each[:, 1] *= 1 + plan.drift_a_day * days
    if node < plan.step_nodes:
        each[at >= plan.step[0], 3] *= plan.step[1]
    cpu = tuples_in * each * source.lognormal(0, 0.05, tuples_in.shape)
    load = cpu.sum(axis=1) / (STEP_S * plan.cpus)
    stretch = 1 / np.maximum(1.05 - np.minimum(load, 1.0), 0.05)
    by_turn = np.array([factor for _, factor in plan.policies])
    turn = by_turn[(at // plan.policy_s).astype(int) % len(by_turn)]
    latency = 0.01 * (stretch * turn)[:, None] * source.lognormal(0, 0.3, (len(at), n))
    wait = np.minimum(cpu * (stretch - 0.9)[:, None] * 0.2, STEP_S)
    verdict = np.full((len(at), n), int(Verdict.INPUT_BOUND))
    by = np.full((len(at), n), -1)
    full = np.zeros((len(at), n), dtype=np.int64)
    queue = source.poisson(np.minimum(tuples_in * latency / STEP_S, 1e6))
    fault = (at >= plan.fault[0]) & (at < plan.fault[1]) & (node < plan.fault_nodes)
    if fault.any() and chain > 2:
        held, bound = 1, 2  # in query 0
        verdict[fault, bound] = int(Verdict.SINGLE_THREAD_BOUND)
        verdict[fault, held] = int(Verdict.BACKPRESSURED)
        by[fault, held] = bound
        cpu[fault, bound] = 0.95 * STEP_S
        full[fault, 0] = full[fault, held] = round(0.95e3 * STEP_S)
        queue[fault, bound] += 1000
    egress = np.zeros(n, dtype=bool)
    egress[chain - 1 :: chain] = True
    whole = np.rint
    return {
        "tuples_in": tuples_in,
        "tuples_out": tuples_out,
        "cpu": whole(cpu * 1e6).astype(np.int64),
        "wait": whole(wait * 1e6).astype(np.int64),
        "full": full,
        "q": queue,
        "qmax": queue + source.poisson(1.0, queue.shape),
        "age": whole(latency * 1e3).astype(np.int64),
        "lat": whole(latency * 1e6).astype(np.int64),
        "verdict": verdict,
        "by": by,
        "psi": whole(np.clip(load - 0.5, 0, 1) * 1e4).astype(np.int64),
    }
