"""The fleet's commands on telemetry of hundreds of nodes: what they take, and whether they hold.

    ./dev run python -m bench.scale.fleet scale [--nodes 200] [--hours 2] [--operators 100]
    ./dev run python -m bench.scale.fleet growth [--sizes 10x24 100x24 1000x1] [--operators 5]
    ./dev run python -m bench.scale.fleet cluster [--nodes 8]  # two workers on loopback
    ./dev run python -m bench.scale.fleet kills [--kills 20] [--seed N]

CPU time is that of the driver, its JVM and its Python workers together; memory is the largest sum
of their resident sets, looked at four times a second. Wall time is not told, as others may compute
here. `scale` runs everything on two nodes first, so that the JVM is warm, then on half of the
nodes (every second one), then on all. Another process has made the telemetry before.
"""

import argparse
import itertools
import json
import os
import platform
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec

from bench.results import Figure, Result, Row, argument, here, tell
from sched_ctl.kernel import procfs
from sched_ctl.pipeline import bottlenecks, changes, compare, generate, ingest, report
from sched_ctl.pipeline.profile import profile
from sched_ctl.pipeline.spark import spark
from sched_ctl.pipeline.store import Fleet
from sched_ctl.pipeline.tables import KINDS
from sched_ctl.telemetry.records import FileName

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
LOCAL = "local[2]"


@dataclass(frozen=True)
class Took:
    """cpu_s: of all processes; peak: bytes; made: the result."""

    cpu_s: float
    peak: int
    made: Any


def plan_of(nodes: int, hours: float, operators: int) -> generate.Plan:
    """Chains of five; a bottleneck on a quarter of the nodes; bad lines, and a torn file."""
    seconds = round(hours * 3600)
    return generate.Plan(
        nodes=nodes,
        seconds=seconds,
        queries=max(1, operators // 5),
        fault=(seconds // 4, seconds // 2),
        fault_nodes=max(1, nodes // 4),
        bad_lines=1,
        torn=1,
        level=1,
    )


def measured(work: Callable[[], Any]) -> Took:
    """Run it, here. Its processes may start others, and outlive it or not."""
    over = threading.Event()
    peak, before = 0, _looked()
    seen = dict(before)

    def look() -> None:
        nonlocal peak
        while not over.wait(0.25):
            now = _looked()
            # Who was not there at the last look may not have its own memory yet, only borrow that
            # of the machine that starts it: Hadoop runs `chmod` and the like.
            peak = max(peak, sum(memory for key, (_, memory) in now.items() if key in seen))
            seen.update(now)

    watching = threading.Thread(target=look)
    watching.start()
    try:
        made = work()
    finally:
        over.set()
        watching.join()
    seen.update(_looked())
    ticks = sum(used for used, _ in seen.values()) - sum(used for used, _ in before.values())
    return Took(ticks / TICKS, peak, made)


def _looked() -> dict[tuple[int, int], tuple[int, int]]:
    """(process, start time) -> its CPU time, ticks, and memory, bytes: this one and all below it.

    Its own time, without that of ended children: Spark's Python workers end after a minute without
    work, and not all of them are waited for by who is left.
    """
    found = {}
    for pid in (os.getpid(), *procfs.descendants(os.getpid())):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used = int(fields[11]) + int(fields[12])
            found[pid, int(fields[19])] = used, int(fields[21]) * PAGE
    return found


def commands(
    session: Any, source: Path, out: Path, *, page: bool = True
) -> Iterator[tuple[str, Took]]:
    """What each command does, one after the other. page: `report` as well."""
    yield "ingest", measured(lambda: ingest.ingest(session, str(source), str(out)))
    fleet = Fleet(session, str(out))
    yield "profile", measured(lambda: profile(fleet))
    yield "bottlenecks", measured(lambda: bottlenecks.held(fleet))
    yield "compare", measured(lambda: compare.compare(fleet))
    if page:
        yield "report", measured(lambda: report.report(fleet))


# -- scale ----------------------------------------------------------------------------------------


def scale(
    folder: Path, nodes: int, hours: float, operators: int, page: Path | None, keep: str | None
) -> None:
    """A table: each command on half of the nodes, and on all."""
    with ProcessPoolExecutor(1, get_context("spawn")) as other:  # whose memory goes with it
        made = other.submit(generate.generate, folder / "all", plan_of(nodes, hours, operators))
        truth = made.result()
    print(f"{nodes} nodes made", file=sys.stderr)
    took: list[dict[str, Took]] = []
    rows = 0
    with spark("bench", LOCAL, {"spark.local.dir": str(folder)}) as session:
        for count in (2, nodes // 2, nodes):
            source, out = folder / f"in{count}", folder / f"out{count}"
            _some(folder / "all", source, count)
            took.append({})
            for name, one in commands(session, source, out):
                took[-1][name] = one
                print(
                    f"{count} nodes, {name}: {one.cpu_s:.1f} s of CPU, {one.peak / 1e6:.0f} MB",
                    file=sys.stderr,
                )
            rows = took[-1]["ingest"].made.rows
            stored = sum(path.stat().st_size for path in out.rglob("*.parquet"))
            sent = sum(path.stat().st_size for path in source.iterdir())
            print(f"{count} nodes: {rows:,} rows, {sent / 1e6:.0f} MB, stored {stored / 1e6:.0f}")
            shutil.rmtree(out)
    if rows != truth.operator_rows:
        sys.exit(f"{rows} rows are in, not {truth.operator_rows}")
    if page is not None:
        page.write_text(took[2]["report"].made, encoding="utf-8")
    lines = [
        Row(
            name,
            {
                f"{nodes // 2} nodes": Figure(round(took[1][name].cpu_s, 1), unit="s"),
                f"{nodes} nodes": Figure(round(whole.cpu_s, 1), unit="s"),
                "ratio": Figure(round(whole.cpu_s / took[1][name].cpu_s, 3)),
                "rows per CPU s": Figure(round(rows / whole.cpu_s / 1e3), unit="k"),
                "most memory": Figure(round(whole.peak / 1e6), unit="MB"),
            },
        )
        for name, whole in took[2].items()
    ]
    result = Result(
        title=f"CPU time of the fleet's commands, {hours:g} h of {operators} operators a node",
        columns=list(lines[0].figures),
        n=1,
        spread=None,
        seeds=None,
        kernel=platform.release(),
        rows=lines,
        **here(),
    )
    tell(result, keep)


def _some(of: Path, into: Path, count: int) -> None:
    """Files of so many of the nodes, spread over all of them."""
    by_node: dict[str, list[Path]] = {}
    for path in sorted(of.iterdir()):
        name = FileName.parse(path.name)
        assert name is not None
        by_node.setdefault(name.node, []).append(path)
    into.mkdir()
    for node in sorted(by_node)[:: len(by_node) // count][:count]:
        for path in by_node[node]:
            (into / path.name).hardlink_to(path)


# -- growth ---------------------------------------------------------------------------------------


def growth(folder: Path, sizes: Sequence[str], operators: int, keep: str | None) -> None:
    """What nodes cost: each size (NODESxHOURS) by a Spark of its own, with files of an hour."""
    rows = []
    for size in sizes:
        nodes, _, hours = size.partition("x")
        place = folder / size
        with ProcessPoolExecutor(1, get_context("spawn")) as other:
            made = other.submit(
                generate.generate, place / "in", plan_of(int(nodes), float(hours), operators)
            )
            truth = made.result()
        print(f"{size}: {truth.operator_rows:,} rows made", file=sys.stderr)
        with ProcessPoolExecutor(1, get_context("spawn")) as other:
            figures = other.submit(_grown, place).result()
        if figures["rows"] != Figure(truth.operator_rows / 1e3, unit="k"):
            sys.exit(f"{figures['rows']} are in, not {truth.operator_rows}")
        rows.append(Row(f"{nodes} nodes, {hours} h", figures))
        print(rows[-1], file=sys.stderr)
        shutil.rmtree(place)
    result = Result(
        title=f"CPU time and files of a fleet as it grows, {operators} operators a node",
        columns=list(rows[0].figures),
        n=1,
        spread=None,
        seeds=None,
        kernel=platform.release(),
        rows=rows,
        **here(),
    )
    tell(result, keep)


def _grown(place: Path) -> dict[str, Figure | str]:
    """In a process of its own, whose memory is then that of this size."""
    source, out = place / "in", place / "out"
    took: dict[str, Took] = {}
    with spark("bench", LOCAL, {"spark.local.dir": str(place)}) as session:
        took.update(commands(session, source, out, page=False))
        took["changes"] = measured(lambda: changes.changes(Fleet(session, str(out)))[0])
    rows = took["ingest"].made.rows
    own_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made: dict[str, Figure | str] = {
        "rows": Figure(rows / 1e3, unit="k"),
        "files in": Figure(len(list(source.iterdir()))),
        "files stored": Figure(len(list(out.rglob("*.parquet")))),
        "rows per CPU s": Figure(round(rows / took["ingest"].cpu_s / 1e3), unit="k"),
    }
    made |= {name: Figure(round(one.cpu_s, 1), unit="s") for name, one in took.items()}
    return made | {
        "driver": Figure(round(own_kb / 1e3), unit="MB"),
        "all": Figure(round(max(one.peak for one in took.values()) / 1e6), unit="MB"),
    }


# -- a cluster ------------------------------------------------------------------------------------


def cluster(folder: Path, nodes: int, hours: float, operators: int) -> None:
    """The same commands, inside one process and on two workers: are the results the same?"""
    generate.generate(folder / "in", plan_of(nodes, hours, operators))
    found: list[dict[str, Any]] = []
    with standalone(folder / "spark") as master:
        settings = {"spark.local.dir": str(folder), "spark.driver.host": "127.0.0.1"}
        settings |= {"spark.executor.memory": "1g", "spark.driver.bindAddress": "127.0.0.1"}
        for where in (LOCAL, master):
            out = folder / f"out{len(found)}"
            with spark("bench", where, settings) as session:
                found.append(results(session, folder / "in", out))
                workers = session.sparkContext._jsc.sc().getExecutorMemoryStatus().size()
            print(f"{where}: {workers} places that compute, or hand out work", file=sys.stderr)
    one, other = found
    apart = differ(one, other)
    rows = sum(count for count, _ in one["rows"].values())
    print(f"{rows:,} rows of all tables, {len(one['profile'])} queries in profiles")
    print(f"differ: {', '.join(apart)}" if apart else "all alike, to the row")
    sys.exit(bool(apart))


def results(session: Any, source: Path, out: Path, *, page: bool = True) -> dict[str, Any]:
    """What the commands tell, and the rows that they left, as JSON has it."""
    told = {name: one.made for name, one in commands(session, source, out, page=page)}
    told["profile"] = told["profile"].queries  # without the time when it was made
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(told))
    return {**found, "rows": {kind: [*each] for kind, each in _digest(out).items()}}


def differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """In what two results do."""
    return [name for name in one.keys() | other.keys() if not alike(one.get(name), other.get(name))]


def alike(one: Any, other: Any) -> bool:
    """Equal, but for the last digits of sums, which were added up in another order."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) <= 1e-9 * max(abs(one), abs(other), 1e-6)
    return bool(one == other)


def _digest(out: Path) -> dict[str, tuple[int, int]]:
    """Table -> its rows, and the sum of their hashes, in whatever order and files they are."""
    import pandas as pd
    import pyarrow.dataset as ds

    found = {}
    for kind, columns in KINDS.items():
        wanted = [name for name in columns if name != "date"]
        total = count = 0
        for place in sorted((out / "data").glob(f"batch=*/kind={kind}/*")):
            table = ds.dataset(place, format="parquet").to_table(columns=wanted).to_pandas()
            table["place"] = place.name
            total += int(pd.util.hash_pandas_object(table, index=False).sum())
            count += len(table)
        found[kind] = (count, total % (1 << 64))
    return found


@contextmanager
def standalone(folder: Path, java: str = "") -> Iterator[str]:
    """A master and two workers with one core each, on loopback. java: options of these three."""
    import pyspark

    home = Path(pyspark.__file__).parent
    folder.mkdir()
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_MEMORY": "300m",
        "SPARK_DAEMON_JAVA_OPTS": java,
        "PYSPARK_PYTHON": sys.executable,
    }
    port, page, *pages = _free_ports(4)
    state = f"http://127.0.0.1:{page}/json/"
    host = ("--host", "127.0.0.1")
    classes: list[tuple[object, ...]] = [
        ("master.Master", *host, "--port", port, "--webui-port", page)
    ]
    for n, own in enumerate(pages, 1):
        size = ("-c", 1, "-m", "1200m", "-d", folder / f"work{n}", "--webui-port", own)
        classes.append(("worker.Worker", *host, *size, f"spark://127.0.0.1:{port}"))
    with ExitStack() as stack:
        for number, (main, *options) in enumerate(classes):
            log = stack.enter_context((folder / f"{number}.log").open("wb"))
            words = [home / "bin" / "spark-class", f"org.apache.spark.deploy.{main}", *options]
            started = subprocess.Popen(
                [*map(str, words)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(_kill, started)
        for _ in range(600):
            with suppress(OSError, ValueError), urllib.request.urlopen(state) as answer:
                if json.load(answer)["aliveworkers"] == 2:
                    break
            time.sleep(0.5)
        else:
            sys.exit(f"the cluster does not start: {folder}/*.log")
        yield f"spark://127.0.0.1:{port}"


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in found]


def _kill(started: "subprocess.Popen[bytes]") -> None:
    """It, and all of its session, wherever their parents are: at once."""
    for pid in procfs.pids():
        with suppress(ProcessLookupError):
            if os.getsid(pid) == started.pid:
                os.kill(pid, signal.SIGKILL)
    started.wait(60)


# -- kills ----------------------------------------------------------------------------------------


def kills(folder: Path, count: int, seed: int) -> None:
    """Kill an ingest at some moment, and the next one, till one comes to its end; look what is in.

    Batches are small, so that there are many moments at which something is half done.
    """
    chance = random.Random(seed)
    truth = generate.generate(folder / "in", plan_of(6, 0.5, 20))
    wrong = killed = ended = 0
    longest_s = 0.0
    for number in itertools.count():
        out = folder / f"out{number}"
        while True:
            moment_s = None if not longest_s or killed == count else chance.uniform(0, longest_s)
            took_s = _ingest(folder / "in", out, moment_s)
            if took_s is not None:
                longest_s = max(longest_s, took_s)
                break
            killed += 1
            entries, folders = _entries(out), _folders(out)
            rows, different = _counted(out)
            wrong += rows != different or not set(entries) <= folders
            print(
                f"{killed} killed after {moment_s:.2f} s: {len(entries)} batches in, "
                f"{len(folders - set(entries))} half done",
                flush=True,
            )
        ended += 1
        wrong += _counted(out) != (truth.operator_rows,) * 2 or _folders(out) != set(_entries(out))
        shutil.rmtree(out)
        if killed == count:
            break
    print(
        f"seed {seed}: {killed} killed, {ended} fleets of {truth.operator_rows} rows, {wrong} wrong"
    )
    sys.exit(bool(wrong))


CHILD = """
import sys
from sched_ctl.pipeline.ingest import ingest
from sched_ctl.pipeline.spark import spark
java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
settings = {"spark.local.dir": sys.argv[3], "spark.driver.extraJavaOptions": java}
with spark("kills", "local[1]", settings) as session:
    session.range(1).count()
    print("ready", flush=True)
    ingest(session, sys.argv[1], sys.argv[2], batch_bytes=40_000)
    print("done", flush=True)
"""


def _ingest(source: Path, out: Path, moment_s: float | None) -> float | None:
    """Seconds that it took once Spark ran; None if it was killed so many seconds after that."""
    scratch = out.parent / "scratch"
    with tempfile.TemporaryFile() as errors:
        started = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(source), str(out), str(scratch)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        assert started.stdout is not None
        try:
            told = started.stdout.readline()
            begin_s = time.monotonic()
            if told and moment_s is not None:
                with suppress(subprocess.TimeoutExpired):
                    started.wait(moment_s)
                    moment_s = None  # it was faster
                if moment_s is not None:
                    return None
            told += started.stdout.readline()
            if told != b"ready\ndone\n":
                errors.seek(0)
                sys.exit(errors.read().decode()[-3000:])
            return time.monotonic() - begin_s
        finally:
            _kill(started)
            started.stdout.close()
            shutil.rmtree(scratch, ignore_errors=True)


def _entries(out: Path) -> list[str]:
    entries = sorted((out / "manifest").glob("[0-9]*.json"))
    return [json.loads(entry.read_bytes())["folder"] for entry in entries]


def _folders(out: Path) -> set[str]:
    return {path.name.removeprefix("batch=") for path in (out / "data").glob("batch=*")}


def _counted(out: Path) -> tuple[int, int]:
    """Rows of operators that are committed, and how many of them differ."""
    import pyarrow.dataset as ds

    keys: list[tuple[Any, ...]] = []
    for batch in _entries(out):
        for place in (out / "data" / f"batch={batch}" / "kind=operator").glob("*"):
            table = ds.dataset(place, format="parquet").to_table(
                ["node", "seq", "query", "operator"]
            )
            columns = [column.to_pylist() for column in table.columns]
            keys += zip(*columns, strict=True)
    return len(keys), len(set(keys))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("scale", "growth", "cluster", "kills"))
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--operators", type=int, help="a node; 100, of growth 5")
    parser.add_argument("--sizes", nargs="+", default=["10x24", "100x24", "1000x1"])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--page", type=Path, help="where to keep the report of scale")
    parser.add_argument("--folder", type=Path, help="for the data, instead of that of the system")
    argument(parser)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    operators = given.operators or 100
    with tempfile.TemporaryDirectory(prefix="sched-ctl-fleet-", dir=given.folder) as name:
        work = {
            "scale": partial(
                scale,
                Path(name),
                given.nodes or 200,
                given.hours,
                operators,
                given.page,
                given.keep,
            ),
            "cluster": partial(cluster, Path(name), given.nodes or 8, given.hours, operators),
            "growth": partial(growth, Path(name), given.sizes, given.operators or 5, given.keep),
            "kills": partial(kills, Path(name), given.kills, given.seed),
        }
        work[given.what]()


if __name__ == "__main__":
    main()
