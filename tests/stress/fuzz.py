"""Feeds garbage to everything that takes what others wrote, and shows what breaks.

    ./dev run python -m stress.fuzz [--seed N] [--seconds S] [TARGET ...]

Each input is a valid one with a few wrong places; input i of seed N is always the same. Only the
errors that are made for users may come out. Anything else is printed with its input, and so is an
input that takes long.
"""

import argparse
import asyncio
import atexit
import functools
import gzip
import importlib.util
import json
import logging
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sched_ctl.backends.undo import journal as journals
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.backends.undo.records import Adopted
from sched_ctl.config import files
from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.drivers import Target, threadnames
from sched_ctl.drivers.flink import driver as flink
from sched_ctl.drivers.flink import local
from sched_ctl.drivers.lab import driver as lab
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.drivers.sources.prometheus import Page
from sched_ctl.errors import UserError
from sched_ctl.kernel import hotspot
from sched_ctl.kernel.procfs import boot_id
from sched_ctl.lab.file import FOLDER, PREFIX
from sched_ctl.service import session, socket
from sched_ctl.service.sections import check_sections
from sched_ctl.workloads import workload

__all__ = ["TARGETS", "Failure", "fuzz", "lab_target"]

LONG_S = 2.0  # of CPU time, for one input
STRANGE = (
    b"0", b"-1", b"08", b"1e309", b"NaN", b"null", b"true", b'""', b"[]", b"{}", b"9" * 30,
    str(2**63).encode(), str(2**64).encode(), b"\x00", b"\xff\xfe", b"\x1b[31m", b"\n", b'"', b"\\",
    b"(((", b"{{{{", b"[[", b"->", b"*?[!", b"\xe2\x80\xae", b" ", b"=", b"#", b"../..",
)  # fmt: skip


@dataclass
class Failure:
    """What came out that should not. number: of the input, with its seed."""

    target: str
    seed: int
    number: int
    data: bytes
    what: str

    def __str__(self) -> str:
        return (
            f"{self.target} seed {self.seed} input {self.number}: {self.data[:400]!r}\n{self.what}"
        )


@dataclass
class Input:
    """seeds: valid inputs. feed: takes one, and raises UserError at most."""

    seeds: tuple[bytes, ...]
    feed: Callable[[bytes], object]


def mutated(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """A few places of the data replaced, removed, repeated, or taken from other data."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randrange(len(made) + 1)
        end = min(len(made), at + chance.choice((0, 1, 1, 4, 8, 32)))
        match chance.randrange(6):
            case 0:
                made[at:end] = chance.choice(STRANGE)
            case 1:
                del made[at:end]
            case 2:
                made[at:at] = made[at:end] * chance.choice((1, 2, 50))
            case 3:
                start = chance.randrange(len(other) + 1)
                made[at:end] = other[start : start + 40]
            case 4 if at < len(made):
                made[at] ^= 1 << chance.randrange(8)
            case _:
                made[at:end] = bytes(chance.randrange(256) for _ in range(end - at))
    return bytes(made)


def restructured(data: bytes, chance: random.Random) -> bytes:
    """JSON with some values replaced, so that it is still JSON."""
    values: tuple[Any, ...] = (
        None,
        -1,
        0,
        2**63,
        2**64,
        1e308,
        "",
        "x" * 5000,
        [],
        {},
        True,
        "\x1b",
    )

    def change(value: Any) -> Any:
        if chance.random() < 0.06:
            return chance.choice(values)
        if isinstance(value, dict):
            return {k: change(v) for k, v in value.items() if chance.random() > 0.01}
        if isinstance(value, list):
            return [change(v) for v in value for _ in range(chance.choice((1,) * 20 + (0, 2, 9)))]
        return value

    lines = data.split(b"\n", 1)
    return b"\n".join((json.dumps(change(json.loads(lines[0]))).encode(), *lines[1:]))


def fuzz(
    name: str, target: Input, seed: int, *, most: int = sys.maxsize, seconds: float = 1e9
) -> tuple[int, list[Failure]]:
    """Feed inputs until there were so many, or the time is over. How many there were, and what
    failed, each place in the program once."""
    failures: dict[object, Failure] = {}
    end_s = time.monotonic() + seconds
    number = 0
    for number in range(most):
        if time.monotonic() > end_s or len(failures) >= 20:
            break
        chance = random.Random(f"{name} {seed} {number}")
        data = chance.choice(target.seeds)
        if data[:1] in (b"{", b"[") and chance.random() < 0.7:
            data = restructured(data, chance)
        else:
            data = mutated(data, chance.choice(target.seeds), chance)
        began_s = time.process_time()
        try:
            target.feed(data)
        except UserError:
            pass
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = (type(error), frame.filename, frame.lineno)
            words = traceback.format_exc(limit=-6)
            failures.setdefault(where, Failure(name, seed, number, data, words))
        took_s = time.process_time() - began_s
        if took_s > LONG_S:
            failures.setdefault("long", Failure(name, seed, number, data, f"took {took_s:.1f} s"))
    return number, list(failures.values())


# --- what is fed ------------------------------------------------------------------------------


@functools.cache
def scratch() -> Path:
    """A folder of this process, until its end."""
    memory = Path("/dev/shm")  # where making a file costs a twentieth
    folder = tempfile.TemporaryDirectory(
        prefix="sched-ctl-fuzz-", dir=memory if memory.is_dir() else None
    )
    atexit.register(folder.cleanup)
    return Path(folder.name)


def in_file(name: str, data: bytes) -> Path:
    path = scratch() / name
    path.write_bytes(data)
    return path


CONFIG = b"""period = 0.5
exclude = ["billing*", "!etl"]
users = ["root"]
[backends.nice]
worst = 15
[[policy]]
name = "pipelines"
policy = "qs"
queries = ["etl*", "flink:*:stats"]
period = 0.1
[[policy.switch]]
policy = "hr"
metric = "queue_size"
above = 10
[[policy]]
policy = "multi-class"
options = {classes = {"high*" = "fcfs", "*" = "hr"}}
[policy.shares]
"gold*" = 4
[[program]]
name = "pipes"
find = {comm = "pipes"}
[program.threads]
'rs:(?P<operator>[^:]+)(?::\\w*)?' = "operator"
'pipes|pool-.*' = {role = "housekeeping"}
"""


def config(data: bytes) -> None:
    check_sections(files.load(in_file("sched-ctl.toml", data)))


WORKLOAD = b"""workload w base_cost_us=100
query q class=high
op a cost=1 selectivity=0.5
op b cost=2
edge a b
source a
"""

PAGE = b"""# HELP m something
# TYPE m gauge
m{a="1",b="x y",} 3.0
m{a="2", b="} \\"quoted\\" \\\\ \\n {"} 4 1700000000
m{a="nan"} NaN
plain 7
other{a="1"} 5
"""


def metrics_page(data: bytes) -> None:
    page = Page(cast(Endpoint, None), ("m", "plain"))
    for _ in range(2):
        list(page.samples(data.decode(errors="replace")))


DUMP = b"""Full thread dump OpenJDK 64-Bit Server VM (17.0.1+1 mixed mode):

"Source: in -> Map (1/4)#0" #83 prio=5 cpu=12.03ms elapsed=9.4s tid=0x00007f nid=0x1a2b waiting
"flink-akka.actor.default-dispatcher-5" #30 [418] prio=5 tid=0x0 nid=419 runnable
"""


def dump(data: bytes) -> None:
    for name, _ in hotspot.parse_dump(data.decode(errors="replace")):
        for engine in ("flink", "storm", "liebre"):
            threadnames.read(engine, name)


FLINK = json.dumps(
    {
        "/config": {"flink-version": "2.0", "refresh-interval": 3000},
        "/jobmanager/config": [{"key": "metrics.fetcher.update-interval", "value": "10 s"}],
        "/jobs/overview": {
            "jobs": [{"jid": "j", "name": "etl", "state": "RUNNING", "tasks": {"total": 2}}]
        },
        "/taskmanagers": {
            "taskmanagers": [
                {"id": "t", "path": "pekko.tcp://flink@127.0.0.1:4/user/rpc", "dataPort": 5}
            ]
        },
        "/jobs/j": {
            "jid": "j",
            "name": "etl",
            "vertices": [
                {"id": "v1", "name": "Source: in -> (Map, Filter -> Sink: x)", "parallelism": 2},
                {"id": "v2", "name": "Window -> Sink: out", "parallelism": 1},
            ],
            "plan": {
                "nodes": [
                    {"id": "v1"},
                    {"id": "v2", "inputs": [{"id": "v1", "ship_strategy": "HASH"}]},
                ]
            },
        },
        "/jobs/j/vertices/v1": {
            "subtasks": [
                {"subtask": i, "attempt": 0, "status": "RUNNING", "taskmanager-id": "t"}
                for i in range(2)
            ]
        },
        "/jobs/j/vertices/v2": {
            "subtasks": [{"subtask": 0, "attempt": 0, "status": "RUNNING", "taskmanager-id": "t"}]
        },
        "metrics": [
            {"id": "0.numRecordsIn", "value": "17"},
            {"id": "0.busyTimeMsPerSecond", "value": "NaN"},
        ],
    }
).encode()  # fmt: skip


class Canned(Endpoint):
    """Answers from memory."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        super().__init__("127.0.0.1", 1)
        self.answers = answers

    def get(self, path: str, timeout_s: float, limit: int = 0) -> bytes:
        if "/metrics" in path:
            path = "metrics"
        return json.dumps(self.answers.get(path)).encode()


def flink_answers(data: bytes) -> None:
    """A JobManager's answers; the bytes are JSON of all, by their paths."""
    try:
        answers = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(answers, dict):
        return
    driver = flink.FlinkDriver(Target("flink", "127.0.0.1:1", uid=0), Canned(answers))
    driver.poll(1.0)
    driver.close()


REQUESTS = (
    b'{"verb": "status"}\n',
    b'{"verb": "explain", "arguments": {"what": "etl/Join"}}\n',
    b'{"verb": "policy-set", "arguments": {"policy": "hr", "options": {"a": 1}, "rule": "hr"}}\n',
    b'{"verb": "top", "arguments": {}}\n',
    b'{"verb": "dispatch"}\n',
)


class _Requests:
    """A controller without engines, and one event loop for all requests to it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.handlers: Mapping[str, socket.Handler] | None = None

    def feed(self, data: bytes) -> None:
        self.loop.run_until_complete(self._answer(data))

    async def _answer(self, data: bytes) -> None:
        if self.handlers is None:
            settings = Settings(policy=(Section(policy="hr"),))
            controller = Controller(settings, {}, None)
            handlers = session._handlers(controller, self.loop.create_future(), list)
            self.handlers = {k: v for k, v in handlers.items() if k != "unload"}
        reader = asyncio.StreamReader(socket.REQUEST_BYTES)
        reader.feed_data(data)
        reader.feed_eof()
        told: list[str] = []
        watch = logging.Handler(logging.ERROR)
        watch.emit = lambda record: told.append(logging.Formatter().format(record))  # type: ignore[method-assign]
        socket.log.addHandler(watch)
        try:
            answer = json.loads(await socket._answer(reader, self.handlers))
        except asyncio.IncompleteReadError:
            return
        finally:
            socket.log.removeHandler(watch)
        assert isinstance(answer["ok"], bool)
        if told:
            raise AssertionError(told[0])


JOURNAL = (
    b'{"is":"boot","boot":"%s","pid":5,"version":1}\n'
    b'{"is":"adopted","pid":1,"tid":10,"start":7,"nice":0,"slice_ns":3000000}\n'
    b'{"is":"set","nice":[[10,7,5]]}\n{"is":"released","threads":[[11,8]]}\n'
    b'{"is":"moved","pid":1,"tid":10,"start":7,"cgroup":"/sys/fs/cgroup/a b"}\n'
    b'{"is":"process","pid":1,"start":7,"since":9,"nice":0,"policy":0,"set_nice":[5],'
    b'"set_policies":[0]}\n{"is":"group","path":"/sys/fs/cgroup/x"}\n'
    b'{"is":"file","path":"/proc/sys/kernel/x","undo":"1"}\n'
) % boot_id().encode()


def journal(data: bytes) -> None:
    """As version 1 has it, and with right seals. Read only: nothing is put back."""
    lines = [line for line in data.split(b"\n") if line]
    texts = [line.replace(b'"version":1', b'"version":2') for line in lines]
    sealed = [journals._sealed(text, number) for number, text in enumerate(texts)]
    for content in (data, b"".join([*sealed[:1], journals._count_line(len(texts)), *sealed[1:]])):
        read = Journal(in_file("journal", content))
        for record in read.state.records():
            if isinstance(record, Adopted):
                assert -20 <= record.nice <= 19 and record.tid > 0
        read.close()


def recorded_target() -> Input:
    """Files of gateways at the fleet's door: one line of a file is garbled, or the whole of it.

    What is good beside it is taken, and nothing that is taken can be absurd.
    """
    from sched_ctl.pipeline import parse, plausible
    from sched_ctl.pipeline.tables import KINDS
    from sched_ctl.telemetry import records

    t = 1_800_000_000_000
    common: dict[str, Any] = {"node": "gw-1", "t": t}

    def of(engine: str, seq: int) -> tuple[bytes, bytes]:
        names: dict[str, Any] = {"queries": ["q", "r"], "ops": ["a", "b", "c"]}
        topology = records.Topology(
            **common, **names, seq=seq, engine=engine, epoch=1, query_of=[0, 0, 1],
            edges=[(0, 1, 1.0)], threads=[1, 2, 1],
        )  # fmt: skip
        counts: dict[str, Any] = {
            name: [5, None, 7] for name in ("tuples_in", "tuples_out", "cpu", "wait", "q", "age")
        }
        record = records.Record(
            **common, **counts, seq=seq + 1, d=5000, engine=engine, epoch=1, policy=["hr", "os"],
            backend=["nice", ""], psi=[1, 2, 3], verdict=[1, 2, 4], by=[-1, 2, -1], time=[9, 9],
            source=["little", "engine"],
        )  # fmt: skip
        return records.encode(topology), records.encode(record)

    start = records.encode(records.Start(**common, seq=1, boot="b", run=1, machine="m", cpus=2))
    event = records.encode(records.Event(**common, seq=2, what="policy", about="q", value="hr"))
    garbled, good = of("lab:1", 10), of("lab:2", 10**6)
    whole = gzip.compress(b"".join((start, *garbled, event, *good)), 1)
    seeds = (start, event, *garbled, whole)
    shown = ["kind", "why", "file", "bad", "t", "node", "d", "seq", "operator", "cpu_us"]
    shown += ["tuples_in", "tuples_out", "size"]

    def feed(data: bytes) -> None:
        single = data[:2] != b"\x1f\x8b"
        if single:
            data = b"".join((start, garbled[0], data, b"\n", *good))
        rows = [
            row
            for batch in parse.of_file("in/gw-1-20270115T080000Z-1.jsonl.gz", data, t)
            for row in batch.select(shown).to_pylist()
        ]
        # One for each run, of which one has what is known of the file.
        [count] = [row for row in rows if row["kind"] == "file" and row["size"] is not None]
        bad = [row for row in rows if row["kind"] == "bad"]
        assert all(row["why"] and row["file"] for row in bad) and len(bad) <= count["bad"]
        taken = [row for row in rows if row["kind"] == "operator"]
        assert {row["kind"] for row in rows} <= KINDS.keys()
        for row in rows:
            if row["t"] is not None:
                assert plausible.EARLIEST_MS <= row["t"] <= plausible.LATEST_MS
                assert 0 < len(row["node"].encode()) <= plausible.LONGEST_NAME
        for row in taken:
            most = plausible.SLACK * plausible.MOST_PER_MS * (row["d"] + 1000)
            assert 0 <= row["d"] <= plausible.LONGEST_MS
            assert all((row[name] or 0) <= most for name in ("tuples_in", "tuples_out"))
        if single:
            mine = [row for row in taken if row["seq"] == 10**6 + 1]
            assert [row["operator"] for row in mine] == ["a", "b", "c"]
            assert [row["cpu_us"] for row in mine] == [5, None, 7]

    return Input(seeds, feed)


TARGETS: dict[str, Input] = {
    "config": Input((CONFIG,), config),
    "workload": Input(
        (WORKLOAD,), lambda data: workload.parse(data.decode(errors="replace"), "w.graph")
    ),
    "page": Input((PAGE,), metrics_page),
    "dump": Input((DUMP,), dump),
    "flink": Input((FLINK,), flink_answers),
    "socket": Input(REQUESTS, _Requests().feed),
    "journal": Input((JOURNAL,), journal),
}
if importlib.util.find_spec("pyarrow") is not None:  # of the extra [fleet]
    TARGETS["recorded"] = recorded_target()


def lab_target(pid: int) -> Input:
    """Copies of the file of a lab engine that runs."""
    seed = (FOLDER / f"{PREFIX}{pid}").read_bytes()

    def feed(data: bytes) -> None:
        driver = lab.connect(Target("lab", str(in_file("labspe", data))))
        try:
            for _ in range(2):
                snapshot = driver.poll(1.0)
                _ = snapshot.topology.graph, snapshot.topology.logical_graph
        finally:
            driver.close()

    return Input((seed,), feed)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument(
        "targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS) + ", lab"
    )
    arguments.add_argument("--seed", type=int, default=random.randrange(10**6))
    arguments.add_argument("--seconds", type=float, default=60.0, help="for all together")
    given = arguments.parse_args()
    targets = dict(TARGETS)
    local.task_managers = lambda uid=None: []  # a look at all processes takes longer than the rest
    failed = 0
    with lab_engine() as pid:
        targets["lab"] = lab_target(pid)
        names = given.targets or list(targets)
        for name in names:
            count, failures = fuzz(
                name, targets[name], given.seed, seconds=given.seconds / len(names)
            )
            print(
                f"{name:10} seed {given.seed}: {count:9,} inputs, {len(failures)} failures",
                flush=True,
            )
            for failure in failures:
                print(failure)
            failed += len(failures)
    sys.exit(bool(failed))


def lab_engine() -> Any:
    from contextlib import contextmanager

    from sched_ctl.lab import engine

    @contextmanager
    def running() -> Any:
        file = Path(__file__).parents[2] / "bench" / "workloads" / "etl.graph"
        with engine.running(file, ("--utilisation", "0.01", "--duration", "86400")) as one:
            yield one.pid

    return running()


if __name__ == "__main__":
    main()
