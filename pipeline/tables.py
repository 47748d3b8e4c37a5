"""The tables of the fleet: explicit schemas, one Parquet folder, told apart by the column `kind`.

All rows of a commit are written in one pass over the files. So they share one wide schema, whose
unused columns are null and cost next to nothing in Parquet; each table is read with its own part.
"""

from types import MappingProxyType

__all__ = ["COLUMNS", "KINDS", "ROLLED", "ROLLUPS", "WIDE", "ddl"]

# column -> type; the first three are the partitions
COLUMNS = MappingProxyType(
    {
        "kind": "STRING",
        "date": "STRING",  # of the row's time, UTC
        "node": "STRING",
        "seq": "BIGINT",
        "t": "BIGINT",  # Unix time, ms; of a record its begin
        "d": "BIGINT",  # ms
        "machine": "STRING",  # kind of machine, with its CPUs: the node type
        "engine": "STRING",
        "epoch": "BIGINT",
        "query": "STRING",
        "operator": "STRING",
        "replica": "INT",
        "replicas": "INT",  # of how many; each may have a name of its own
        "policy": "STRING",
        "backend": "STRING",
        "tuples_in": "BIGINT",
        "tuples_out": "BIGINT",
        "cpu_us": "BIGINT",
        "wait_us": "BIGINT",
        "busy_ms": "BIGINT",
        "idle_ms": "BIGINT",
        "full_ms": "BIGINT",
        "queue": "BIGINT",
        "queue_max": "BIGINT",
        "age_ms": "BIGINT",
        "latency_us": "BIGINT",
        "time_us": "BIGINT",  # mean in the system, of the whole query
        "time_source": "STRING",
        "verdict": "INT",
        "held_by": "STRING",
        "needed": "INT",  # thousandths of replicas, of whom more of them would help
        "psi_cpu": "INT",  # 0.01%
        "psi_io": "INT",
        "psi_memory": "INT",
        "what": "STRING",
        "about": "STRING",
        "value": "STRING",
        "count": "BIGINT",
        "boot": "STRING",  # of the node's kernel; "" = not told
        "run": "BIGINT",  # of the controller, by the number of its first line
        "file": "STRING",
        "source": "STRING",  # path of the file as it was read
        "line": "INT",
        "why": "STRING",
        "text": "STRING",
        "size": "BIGINT",
        "modified": "BIGINT",  # Unix time, ms
        "last_seq": "BIGINT",
        "good": "BIGINT",
        "bad": "BIGINT",
        "repeated": "BIGINT",
    }
)

_ROW = ("date", "node", "boot", "run", "seq", "t", "file", "source")
# table -> its columns
KINDS = MappingProxyType(
    {
        "operator": (
            *_ROW,
            *("d", "machine", "engine", "epoch", "query", "operator", "replica", "replicas"),
            *("policy", "backend", "tuples_in", "tuples_out", "cpu_us", "wait_us"),
            *("busy_ms", "idle_ms", "full_ms", "queue", "queue_max", "age_ms", "latency_us"),
            *("time_us", "time_source"),
            *("verdict", "held_by", "needed", "psi_cpu", "psi_io", "psi_memory"),
        ),
        "event": (*_ROW, "engine", "what", "about", "value", "count"),
        "topology": (*_ROW, "machine", "engine", "epoch", "text"),  # text: the line itself
        "bad": ("date", "node", "file", "source", "line", "why", "text"),
        "file": (
            *("date", "node", "boot", "run", "file", "size", "modified", "seq", "last_seq"),
            # seq, last_seq: of lines without a hole. A file has a row for each such piece of a run,
            # one of which has its size. why: it was not read.
            *("good", "bad", "repeated", "why"),
        ),
    }
)


def ddl(columns: "tuple[str, ...] | list[str]") -> str:
    """A schema as Spark reads it."""
    return ", ".join(f"`{name}` {COLUMNS[name]}" for name in columns)


WIDE = ddl([*COLUMNS])

_COUNTS = ("n", "queues_n", "psi_n", "lat_n")
_FIGURES = ("time", "latency", "age", "queue", "throughput", "fairness")
# column of a roll-up -> type, where it is not DOUBLE
_TYPES = {
    **dict.fromkeys(("date", "node", "machine", "engine", "query", "operator"), "STRING"),
    **dict.fromkeys(("policy", "held_by", "time_source"), "STRING"),
    **dict.fromkeys(("hour", "begin", "end", "last_d", *_COUNTS), "BIGINT"),
    **{f"{name}_n": "BIGINT" for name in _FIGURES},
    **dict.fromkeys(("verdict", "step", "bin"), "INT"),
}
# roll-up -> its columns (`rollups`)
ROLLUPS = MappingProxyType(
    {
        "hour": (
            *("date", "hour", "node", "machine", "engine", "query", "operator", "begin", "end"),
            *("n", "d", "ms", "tuples_in", "tuples_out", "cpu_us", "counted_in", "wait_us"),
            *("waited_ms", "held_ms", "judged_ms", "queues", "queues_n", "psi", "psi_n"),
            *("lat_log", "lat_n"),
            *("cost_us", "selectivity", "rate", "needed", "replicas"),
        ),
        "span": (
            *("date", "node", "engine", "query", "operator", "verdict", "held_by"),
            *("begin", "end", "held", "last_d"),
        ),
        "turn": (
            *("date", "hour", "node", "query", "policy", "step", "bin", "time_source", "n"),
            *_FIGURES,
            *(f"{name}_n" for name in _FIGURES),
        ),
    }
)
ROLLED = MappingProxyType(
    {
        kind: ", ".join(f"`{name}` {_TYPES.get(name, 'DOUBLE')}" for name in columns)
        for kind, columns in ROLLUPS.items()
    }
)
