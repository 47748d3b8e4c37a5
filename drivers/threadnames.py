"""What the names of engines' threads say: one table for all engines and versions.

A name tells which operator a thread runs, or what it does for the engine. The table is data: a
grammar per row, tried in order, the first that matches decides. `seen` says where the form comes
from, so that a row can be dropped or bounded when an engine changes.

Roles: "operator" for the threads that process tuples; for helpers one of "network", "flusher"
(hands half-full buffers on), "timer", "fetcher" (reads for a source), "state", "checkpoint",
"rpc", "metrics", "io", "gc", "jit", "jvm", "cancel", "acker" (is told of each tuple's end),
"heartbeat" (who misses it restarts the process), "system" (the engine's own operators), "stream"
(plans and commits a query's batches), "idle" (waits for a task), "scheduler", "cleaner".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

__all__ = [
    "GRAMMARS",
    "OPERATOR",
    "Grammar",
    "ThreadName",
    "certainly_helper",
    "read",
    "tells_operators",
]

OPERATOR = "operator"
LONGEST = 4096  # characters of a name that are looked at


@dataclass(frozen=True, slots=True)
class Grammar:
    """engine: driver name, or "jvm" for threads that every Java process has.

    text: of a pattern that matches a full thread name; its named groups are among `task`, `index`
    (from 1), `parallelism`, `attempt`, `first`, `last`, `stage`, `partition`, `query`, `id`, `run`.
    """

    engine: str
    role: str
    text: str
    seen: str

    @property
    def pattern(self) -> re.Pattern[str]:
        return _compiled(self.text)


@dataclass(frozen=True, slots=True)
class ThreadName:
    """What a name says. parts: the named groups that matched, as text."""

    role: str
    parts: Mapping[str, str]

    def number(self, part: str) -> int:
        return int(self.parts[part])


def _rows(engine: str, seen: str, *rows: tuple[str, str]) -> tuple[Grammar, ...]:
    return tuple(Grammar(engine, role, text, seen) for role, text in rows)


@cache
def _compiled(text: str) -> re.Pattern[str]:
    """When a name is read: those of engines that are not here cost a start five milliseconds."""
    return re.compile(text, re.DOTALL)


# NAME (index/parallelism)#attempt, TaskInfoImpl. Versions before 1.13 leave out the attempt.
FLINK_TASK = (
    r"(?P<task>.+) \((?P<index>\d{1,9})/(?P<parallelism>\d{1,9})\)(?:#(?P<attempt>\d{1,9}))?"
)

# First and last task of an executor.
STORM_TASKS = r"\[(?P<first>-?\d+), (?P<last>-?\d+)\]"

# A streaming query of Spark's (StreamExecution.prettyIdString); it need not have a name.
UUID = r"[0-9a-f]{8}-[0-9a-f-]{27}"
SPARK_QUERY = rf"(?:(?P<query>.*) )?\[id = (?P<id>{UUID}), runId = (?P<run>{UUID})\]"

GRAMMARS: tuple[Grammar, ...] = (
    *_rows(
        "flink",
        "2.3.0, thread dumps and class files",
        ("flusher", rf"OutputFlusher for {FLINK_TASK}"),
        ("timer", rf"(?:System )?Time Trigger for {FLINK_TASK}"),
        # Calls the user's source function: as much the operator as the thread of its task.
        (OPERATOR, rf"Legacy Source Thread - {FLINK_TASK}"),
        ("fetcher", rf"Source Data Fetcher for {FLINK_TASK}(?:-\d+)?"),
        ("fetcher", rf"(?=.*\]\Z)Source Data Fetcher for {FLINK_TASK}(?:-\d+)? \[.*"),
        ("checkpoint", rf"Channel state writer {FLINK_TASK}"),
        ("cancel", rf"(?:Canceler/Interrupts|Cancellation Watchdog) for {FLINK_TASK} \(\w+\)\."),
        ("network", r"Flink Netty (?:Server|Client) \(.*\) Thread \d+"),
        ("checkpoint", r"AsyncOperations-thread-\d+|(?=.*[Cc]heckpoint).*-thread-\d+"),
        ("metrics", r"flink-metrics-.*|Flink-Metric-View-Updater.*|prometheus-http-.*"),
        ("metrics", r"HTTP-Dispatcher|idle-timeout-task"),  # the reporter's own server
        ("rpc", r"flink-(?:pekko|akka)\..*|flink-scheduler-\d+|flink-\d+"),
        ("rpc", r"(?:taskmanager|jobmanager|resourcemanager|dispatcher)_\d+-.*"),
        ("io", r"IOManager (?:reader|writer) thread #\d+|flink-taskexecutor-io-thread-\d+"),
        ("io", r"CloseableReaperThread"),
        (OPERATOR, FLINK_TASK),
    ),
    *_rows(
        "storm",
        "1.2, thread dump in the Lachesis paper's scripts",
        (OPERATOR, r"Thread-\d+-(?P<task>.+)-executor\[(?P<first>\d+) (?P<last>\d+)\]"),
    ),
    *_rows(
        "storm",
        "2.8.3, thread dumps of workers",
        # Components that begin with two underscores are Storm's own. Its task has the number -1.
        ("acker", rf"(?:Thread-\d+-)?(?P<task>__acker)-executor{STORM_TASKS}"),
        ("system", rf"(?:Thread-\d+-)?(?P<task>__.+)-executor{STORM_TASKS}"),
        (OPERATOR, rf"(?:Thread-\d+-)?(?P<task>.+)-executor{STORM_TASKS}"),
        ("network", r"Netty-(?:server|client)-.*|Worker-Transfer|client-worker-\d+"),
        ("network", r"refresh-connections.*|Netty-ChannelAlive-Timer|client-schedule-service-\d+"),
        ("flusher", r"flush-tuple.*|(?:.*-)?buffer-flush.*"),
        ("heartbeat", r"(?:executor-)?heartbeat-timer"),
        ("metrics", r"metrics-.*-reporter-.*|metric/stat timer|MetricRegistryTimer"),
        # Zookeeper's client.
        ("rpc", r"Curator-.*|main-EventThread|main-SendThread\(.*\)"),
        ("timer", r"(?:refresh-(?:load|credentials|active)|check-for-updated-blobs)-timer"),
        ("timer", r"(?:reset-log-levels|backpressure-check|user)-timer"),
        ("io", r"Log4j2-.*"),
    ),
    *_rows(
        "spark",
        "4.3.0, thread dumps",
        # The pool's threads are renamed for every task.
        (
            OPERATOR,
            r"Executor task launch worker for task (?P<partition>\d{1,10})\.(?P<attempt>\d{1,10}) "
            r"in stage (?P<stage>\d{1,10})\.\d{1,10} \(TID (?P<task>\d{1,19})\)",
        ),
        ("idle", r"Executor task (?:idle worker#|launch worker-)\d+"),
        ("stream", rf"stream execution thread for {SPARK_QUERY}"),
        ("checkpoint", rf"epoch update thread for {SPARK_QUERY}"),
        # Continuous mode: reads for a task, and hands what it read over in a queue.
        ("fetcher", rf"continuous-reader--(?P<partition>\d{{1,10}})--(?P<run>{UUID})--.*"),
        ("checkpoint", rf"epoch-poll--(?P<run>{UUID})--.*"),
        ("network", r"(?:shuffle|rpc|files)-(?:server|client|exchange|boss)-\d+-\d+"),
        ("network", r"streaming-shuffle-.*"),
        ("rpc", r"dispatcher-(?:event-loop|Executor|BlockManager.*|Coarse.*|Heart.*)(?:-\d+)?"),
        ("rpc", r"map-output-dispatcher-\d+|netty-rpc-.*|task-result-getter-\d+"),
        ("scheduler", r"dag-scheduler-event-loop|spark-listener-group-.*"),
        ("heartbeat", r"(?:executor|driver)-heartbeater|heartbeat-receiver-.*"),
        ("metrics", r"SparkUI-\d+.*|SparkUI-JettyScheduler.*|element-tracking-store-worker"),
        ("io", r"block-manager-.*|RemoteBlock-temp-file-clean-thread|broadcast-exchange-\d+"),
        ("cleaner", r"Spark Context Cleaner|context-cleaner-periodic-gc|Cleaner-\d+"),
    ),
    *_rows(
        "spark",
        "2.2 to 3.0, source of Executor",
        (OPERATOR, r"Executor task launch worker for task (?P<task>\d{1,19})"),
    ),
    *_rows(
        "jvm",
        "OpenJDK 8 to 21",
        ("gc", r"(?:GC|ParGC) Thread#\d+|GC task thread#\d+.*|Gang worker#\d+ .*"),
        ("gc", r"G1 .*|Z[A-Z]\w+(?:#\d+)?|Shenandoah .*|Concurrent Mark-Sweep GC Thread"),
        ("jit", r"C[12] CompilerThre(?:ad\d*)?|Sweeper thread|JVMCI.*|Common-Compiler.*"),
        ("jvm", r"VM (?:Periodic Task )?Thread|Monitor Deflation Thread|Notification Thread"),
        ("jvm", r"Reference Handler|Finalizer|Signal Dispatcher|Service Thread|Attach Listener"),
        ("jvm", r"Common-Cleaner|DestroyJavaVM|main|java|Timer-\d+"),
        ("jvm", r"process reaper(?: \(pid \d+\))?"),
    ),
    # Liebre names a thread after its operator, and nothing else, so no name says that its thread is
    # an operator's: its driver knows the operators from their metrics.
    *_rows("liebre", "0.1.1, thread dump", ("metrics", r"metrics-.*-reporter-.*")),
)


def read(engine: str, name: str) -> ThreadName | None:
    """What a thread's full name says, or None if no grammar of the engine knows it.

    Any job may name its threads, so no pattern takes more than linear time, and a name that is
    too long says nothing.
    """
    if len(name) > LONGEST:
        return None
    for grammar in GRAMMARS:
        if grammar.engine in (engine, "jvm") and (match := grammar.pattern.fullmatch(name)):
            return ThreadName(
                grammar.role,
                {part: text for part, text in match.groupdict().items() if text is not None},
            )
    return None


def tells_operators(engine: str) -> bool:
    """Whether names tell which threads run operators."""
    return any(grammar.engine == engine and grammar.role == OPERATOR for grammar in GRAMMARS)


# First characters of threads that a virtual machine and an engine start and end all the time.
_PASSING = {
    # The listener is born of our own first request, and has the dispatcher's name at first.
    "jvm": (
        *("C1 CompilerThre", "C2 CompilerThre", "GC Thread#", "G1 Conc#", "G1 Refine#"),
        *("Attach Listener", "Signal Dispatch"),
    ),
    "flink": ("flink-pekko.act", "flink-pekko.rem", "flink-metrics-p", "prometheus-http"),
    "storm": ("process reaper", "Log4j2-TF-"),
    # Not the dispatchers, nor "Thread-": tasks and queries are born of these.
    "spark": ("process reaper", "SparkUI-", "task-result-get", "spark-listener-"),
}


def certainly_helper(engine: str, comm: str) -> bool:
    """True if a thread with this name in the kernel (cut at 15 characters) runs no operator.

    An operator would have to imitate the engine's own names to be taken for a helper here.
    """
    return comm.startswith(_PASSING["jvm"] + _PASSING.get(engine, ()))
