"""The table of thread-name grammars, against names seen in thread dumps and sources."""

import pytest

from sched_ctl.drivers.threadnames import GRAMMARS, certainly_helper, read
from support import growth

ID = "c57bf616-c785-4a77-894a-56167195eca7"
RUN = "3c97e23f-bf3f-4d6e-b530-5a2e15cd6edb"
NAMES = [
    ("flink", "q1-parse (1/1)#0", "operator", {"task": "q1-parse", "attempt": "0"}),
    ("flink", "Source: q1-src (2/4)#3", "operator", {"task": "Source: q1-src", "index": "2"}),
    ("flink", "q1-sink: Writer (1/1)#0", "operator", {"task": "q1-sink: Writer"}),
    ("flink", "a -> (b (x), c) (1/12)#10", "operator", {"task": "a -> (b (x), c)"}),
    # A stage of Beam's on Flink, as in the log of apache/beam#21463.
    (
        "flink",
        "Assert$106/All/GroupByKey -> [6]Assert$106/{GatherAll, Rewind, Never} (1/2)#0",
        "operator",
        {"task": "Assert$106/All/GroupByKey -> [6]Assert$106/{GatherAll, Rewind, Never}"},
    ),
    ("flink", "two\nlines (1/1)#0", "operator", {"task": "two\nlines"}),
    ("flink", "Map (3/4)", "operator", {"task": "Map", "index": "3", "parallelism": "4"}),
    ("flink", "Legacy Source Thread - Source: s (1/1)#0", "operator", {"task": "Source: s"}),
    ("flink", "OutputFlusher for q1-work (2/2)#0", "flusher", {"task": "q1-work", "index": "2"}),
    ("flink", "System Time Trigger for q (1/1)#0", "timer", {"task": "q"}),
    ("flink", "Time Trigger for Source: q (1/1)#0", "timer", {"task": "Source: q"}),
    ("flink", "Source Data Fetcher for Source: k (1/1)#0", "fetcher", {"task": "Source: k"}),
    ("flink", "Source Data Fetcher for Source: k (1/2)#0-3", "fetcher", {"task": "Source: k"}),
    ("flink", "Source Data Fetcher for k (1/1)#0 [a [b] c]", "fetcher", {"task": "k"}),
    ("flink", "jobmanager Checkpoint Timer-thread-1", "checkpoint", {}),
    ("flink", "Flink Netty Server (0) Thread 0", "network", {}),
    ("flink", "flink-pekko.actor.default-dispatcher-14", "rpc", {}),
    ("flink", "flink-metrics-pekko.actor.internal-dispatcher-2", "metrics", {}),
    ("flink", "taskmanager_0-main-scheduler-thread-1", "rpc", {}),
    ("flink", "IOManager reader thread #1", "io", {}),
    ("flink", "C2 CompilerThread0", "jit", {}),
    ("flink", "C1 CompilerThre", "jit", {}),  # one that the machine has started since
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
    ("spark", "Executor task idle worker#128", "idle", {}),
    (
        "spark",
        f"stream execution thread for q [1] [id = {ID}, runId = {RUN}]",
        "stream",
        {"query": "q [1]", "id": ID, "run": RUN},
    ),
    ("spark", f"stream execution thread for [id = {ID}, runId = {RUN}]", "stream", {"run": RUN}),
    ("spark", f"epoch update thread for q [id = {ID}, runId = {RUN}]", "checkpoint", {"run": RUN}),
    ("spark", f"continuous-reader--3--{RUN}--{ID}", "fetcher", {"partition": "3", "run": RUN}),
    ("spark", f"epoch-poll--{RUN}--{ID}--0", "checkpoint", {"run": RUN}),
    ("spark", "streaming-shuffle-writer-6-0-server-33-1", "network", {}),
    ("storm", "Thread-15-toll_las-executor[10, 11]", "operator", {"first": "10", "last": "11"}),
    ("storm", "Thread-14-__system-executor[-1, -1]", "system", {"first": "-1"}),
    ("storm", "Thread-19-__acker-executor[1, 1]", "acker", {"task": "__acker"}),
    ("storm", "Thread-3-__eventlogger-executor[2, 2]", "system", {"task": "__eventlogger"}),
    ("storm", "Netty-server-localhost-6700-worker-1", "network", {}),
    ("storm", "Netty-ChannelAlive-Timer", "network", {}),
    ("storm", "refresh-connections-timer", "network", {}),
    ("storm", "flush-tuple-timer", "flusher", {}),
    ("storm", "heartbeat-timer", "heartbeat", {}),
    ("storm", "executor-heartbeat-timer", "heartbeat", {}),
    ("storm", "metrics-graphite-reporter-1-thread-1", "metrics", {}),
    ("storm", "metric/stat timer", "metrics", {}),
    ("storm", "main-SendThread(127.0.0.1:2181)", "rpc", {}),
    ("storm", "refresh-load-timer", "timer", {}),
    ("storm", "backpressure-check-timer", "timer", {}),
    ("storm", "Log4j2-TF-1-AsyncLogger", "io", {}),
    ("storm", "process reaper", "jvm", {}),
    ("flink", "process reaper (pid 4711)", "jvm", {}),
    ("liebre", "metrics-graphite-reporter-1-thread-1", "metrics", {}),
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


@pytest.mark.parametrize("first", ["", "Source Data Fetcher for ", "stream execution thread for "])
@pytest.mark.parametrize(
    "seed", ["x (1/1) [", "x (1/1)", "checkpoint", "-thread-1", " [id = a, runId = ", "(1", "] ["]
)
def test_reading_takes_linear_time(first: str, seed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job names its threads as it likes, and matching a pattern holds the interpreter's lock."""
    monkeypatch.setattr("sched_ctl.drivers.threadnames.LONGEST", 1 << 30)

    def work(text: str) -> None:
        for engine in ("flink", "storm", "spark"):
            read(engine, first + text)

    assert growth(work, seed, 10_000) < 9


def test_long_names_say_nothing() -> None:
    assert read("flink", "x" * 4000 + " (1/1)#0") is not None
    assert read("flink", "x" * 5000 + " (1/1)#0") is None


@pytest.mark.parametrize(
    "name",
    [
        "Executor task launch worker for task {}",
        "Executor task launch worker for task {}.0 in stage 2.0 (TID 5)",
        "Executor task launch worker for task 1.0 in stage {}.0 (TID 5)",
        f"continuous-reader--{{}}--{RUN}--{ID}",
    ],
)
def test_numbers_of_any_length_say_nothing(name: str) -> None:
    """What is written out of so many tasks has each of the digits in each task's name."""
    assert read("spark", name.format("9" * 10)) is not None
    assert read("spark", name.format("9" * 3000)) is None


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
