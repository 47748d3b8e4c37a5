"""The table of thread-name grammars, against names seen in thread dumps and sources."""

import pytest

from sched_ctl.drivers.threadnames import GRAMMARS, certainly_helper, read

NAMES = [
    ("flink", "q1-parse (1/1)#0", "operator", {"task": "q1-parse", "attempt": "0"}),
    ("flink", "Source: q1-src (2/4)#3", "operator", {"task": "Source: q1-src", "index": "2"}),
    ("flink", "q1-sink: Writer (1/1)#0", "operator", {"task": "q1-sink: Writer"}),
    ("flink", "a -> (b (x), c) (1/12)#10", "operator", {"task": "a -> (b (x), c)"}),
    ("flink", "two\nlines (1/1)#0", "operator", {"task": "two\nlines"}),
    ("flink", "Map (3/4)", "operator", {"task": "Map", "index": "3", "parallelism": "4"}),
    ("flink", "Legacy Source Thread - Source: s (1/1)#0", "operator", {"task": "Source: s"}),
    ("flink", "OutputFlusher for q1-work (2/2)#0", "flusher", {"task": "q1-work", "index": "2"}),
    ("flink", "System Time Trigger for q (1/1)#0", "timer", {"task": "q"}),
    ("flink", "Time Trigger for Source: q (1/1)#0", "timer", {"task": "Source: q"}),
    ("flink", "Source Data Fetcher for Source: k (1/1)#0", "fetcher", {"task": "Source: k"}),
    ("flink", "Flink Netty Server (0) Thread 0", "network", {}),
    ("flink", "flink-pekko.actor.default-dispatcher-14", "rpc", {}),
    ("flink", "flink-metrics-pekko.actor.internal-dispatcher-2", "metrics", {}),
    ("flink", "taskmanager_0-main-scheduler-thread-1", "rpc", {}),
    ("flink", "IOManager reader thread #1", "io", {}),
    ("flink", "C2 CompilerThread0", "jit", {}),
    ("flink", "GC Thread#1", "gc", {}),
    ("flink", "G1 Main Marker", "gc", {}),
    ("flink", "VM Thread", "jvm", {}),
    ("storm", "Thread-26-spout-executor[25 25]", "operator", {"task": "spout", "first": "25"}),
    ("storm", "Thread-7-my-bolt-executor[3, 5]", "operator", {"task": "my-bolt", "last": "5"}),
    ("storm", "count-executor[3, 3]", "operator", {"task": "count"}),
    (
        "spark",
        "Executor task launch worker for task 1.0 in stage 193.0 (TID 382)",
        "operator",
        {"partition": "1", "stage": "193", "task": "382", "attempt": "0"},
    ),
    ("spark", "Executor task launch worker for task 17", "operator", {"task": "17"}),
    ("spark", "Executor task launch worker-0", "idle", {}),
    ("spark", "stream execution thread for q1 [id = 1-a, runId = 2-b]", "driver", {"query": "q1"}),
    ("liebre", "filter", "operator", {"task": "filter"}),
    ("liebre", "Finalizer", "jvm", {}),
]


@pytest.mark.parametrize(("engine", "name", "role", "parts"), NAMES)
def test_reads(engine: str, name: str, role: str, parts: dict[str, str]) -> None:
    said = read(engine, name)
    assert said is not None
    assert said.role == role
    assert parts.items() <= said.parts.items()


@pytest.mark.parametrize(
    "name", ["open-loop-timer", "pool-5-thread-1", "", "(1/1)#0", "x (1/1)#0 tail", "x (a/b)#0"]
)
def test_unknown_names_are_nobodys(name: str) -> None:
    assert read("flink", name) is None


def test_every_row_is_exercised() -> None:
    """A grammar that no example reaches is dead, or hidden behind an earlier one."""
    used = set()
    for engine, name, _, _ in NAMES:
        for grammar in GRAMMARS:
            if grammar.engine in (engine, "jvm") and grammar.pattern.fullmatch(name):
                used.add(id(grammar))
                break
    unreached = [g for g in GRAMMARS if id(g) not in used and g.role == "operator"]
    assert not unreached


def test_a_task_is_never_certainly_a_helper() -> None:
    for engine, name, role, _ in NAMES:
        if role == "operator":
            assert not certainly_helper(engine, name[:15])
    assert certainly_helper("flink", "C2 CompilerThread0"[:15])
    assert not certainly_helper("flink", "java")  # just born: not named yet
