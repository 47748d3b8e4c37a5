"""A workload as the lab engine reads it: nothing is left to be looked up, checked or worked out.

What a workload file means is said in one place, `workloads.workload`; `engine/workload.c` takes
from here words and numbers in a fixed order. Operators have numbers instead of names, edges and
sources are in the order of their targets, and a last row has the operators upstream first.
"""

from pathlib import Path

from sched_ctl.workloads.demand import upstream_first
from sched_ctl.workloads.workload import SourceSpec, Workload, load, trace_phases

__all__ = ["resolved", "resolved_file"]

MAGIC = "labspe-workload-1"
KINDS = ("poisson", "constant", "onoff", "trace")  # as enum arrivals has them
MAX_CLASS = 62  # bytes that the engine keeps
WORLD = -1  # in place of the number of a source operator


def resolved_file(path: Path) -> bytes:
    """A workload file, resolved. Raises UserError with the line of what is wrong in it."""
    return resolved(load(path), path.parent)


def resolved(workload: Workload, folder: Path) -> bytes:
    """folder: where traces are looked for."""
    queries: list[str] = []
    operators: list[str] = []
    order: list[int] = []
    edges: list[tuple[int, str]] = []
    for number, query in enumerate(workload.queries):
        klass = query.klass.encode()[:MAX_CLASS].decode(errors="ignore")
        queries.append(f"{query.name} ={klass}")
        at = {op.name: len(operators) + i for i, op in enumerate(query.operators)}
        operators += [
            f"{op.name} {number} {op.cost!r} {op.selectivity!r} {op.block_probability!r} "
            f"{op.block_max_s * 1e3!r} {op.window_s * 1e3!r}"
            for op in query.operators
        ]
        edges += [
            (at[stream.target], f"{at[stream.source]} {at[stream.target]} {stream.share!r}")
            for stream in query.streams
        ]
        edges += [(at[s.operator], _source(s, at[s.operator], folder)) for s in query.sources]
        pairs = ((stream.source, stream.target) for stream in query.streams)
        order += [at[name] for name in upstream_first(at, pairs)]
    edges.sort(key=lambda edge: edge[0])  # stable: otherwise as the file has them
    counts = f"{len(queries)} {len(operators)} {len(edges)}"
    lines = [
        f"{MAGIC} {workload.name} {workload.base_cost_s * 1e6!r} {counts}",
        *queries,
        *operators,
        *(text for _, text in edges),
        " ".join(map(str, order)),
    ]
    return ("\n".join(lines) + "\n").encode()


def _source(source: SourceSpec, target: int, folder: Path) -> str:
    arrivals = source.arrivals
    phases = trace_phases(folder / arrivals.trace) if arrivals.kind == "trace" else ()
    return (
        f"{WORLD} {target} 1.0 {source.rate!r} {KINDS.index(arrivals.kind)} "
        f"{arrivals.on_s * 1e3!r} {arrivals.off_s * 1e3!r} {arrivals.shape!r} "
        + " ".join([str(len(phases)), *map(repr, phases)])
    )
