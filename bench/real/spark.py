"""A light query beside one that would take a whole CPU, both of one Spark application on one CPU.

Both run in continuous mode. Latency is that of the light query's rows: from when its source should
have made one to when the query has computed with it, by the clock of the machine.
"""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.real.abba import Figures, Phase, Way, take_turns
from engines.compete import following

__all__ = ["CASES", "Case", "run"]

RATE = 50  # rows a second of the light query
KEPT = 101  # of so many rows of the hog one
LATE_S = 2.0  # until rows can be read: epochs are of a second
WARM_S = 40.0
WORK = "aggregate(sequence(1, {n}), 0L, (a, x) -> (a * 31 + x + value) % 1000003) AS h"
NOW = "CAST(reflect('java.lang.System', 'currentTimeMillis') AS BIGINT) AS done"
INSIDE = "import sys; from bench.real.spark import application; application(sys.argv[1])"
NICE = ("--backend", "nice", "--period", "0.5")
WAYS = (
    Way(
        "shares of 8 to 1, nice",
        (*NICE, "--policy", "constant", "--share", "light=8", "--share", "hog=1"),
    ),
    Way("no option but nice (`auto`, no race)", (*NICE, "--race", "0")),
)


@dataclass(frozen=True)
class Case:
    title: str
    ways: tuple[Way, ...] = WAYS


CASES = {
    "spark-continuous": Case(
        f"a light query, {RATE}/s, beside a hog, both in continuous mode of one Spark, one CPU"
    )
}


def run(case: Case, folder: Path, cycles: int, seconds: float, end_s: float) -> Iterator[Phase]:
    """The phases of a case, on an application of its own on one CPU."""
    with _application(folder) as (process, facts):
        assert process.stdin is not None and process.stdout is not None
        to, out = process.stdin, process.stdout
        time.sleep(WARM_S)

        def measure() -> Figures:
            end_ms = (time.time() - LATE_S) * 1e3
            begin_ms = end_ms - (seconds - LATE_S) * 1e3
            to.write(f"{begin_ms:.0f} {end_ms:.0f}\n")
            to.flush()
            line = out.readline()
            if not line:
                raise OSError((folder / "spark.err").read_text()[-3000:])
            found = json.loads(line)
            late = np.array(found["late"], float)
            return {
                "mean (ms)": float(late.mean()) if len(late) else math.nan,
                "p50 (ms)": float(np.median(late)) if len(late) else math.nan,
                "p99 (ms)": float(np.quantile(late, 0.99)) if len(late) else math.nan,
                "rows": len(late) / (seconds - LATE_S) / RATE,
                "hog's rows/s": found["hog"],
            }

        def load(way: Way) -> AbstractContextManager[object]:
            return following([facts["pid"]], facts["engine"], folder, way.arguments or (), 2)

        yield from take_turns(
            case.ways,
            cycles,
            load,  # type: ignore[arg-type]
            measure,
            [facts["pid"]],
            settle_s=5.0,
            seconds=seconds,
            end_s=end_s,
        )


@contextmanager
def _application(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", dict[str, Any]]]:
    command = [
        *("setpriv", "--pdeathsig", "KILL", "--"),
        *("taskset", "-c", str(max(os.sched_getaffinity(0)))),
        *(sys.executable, "-c", INSIDE, str(folder / "spark")),
    ]
    with (folder / "spark.err").open("w") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise OSError((folder / "spark.err").read_text()[-2000:])
            yield process, json.loads(line)
        finally:
            process.kill()
            process.wait()


def application(folder: str) -> None:
    """Inside: says its process and engine, and at "BEGIN END" (Unix ms) the latencies from then."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark: Any = (
        SparkSession.builder.master("local[8]")
        .appName("light-and-hog")
        .config("spark.ui.port", "0")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.driver.memory", "800m")
        .config("spark.driver.extraJavaOptions", f"-XX:+UseSerialGC -Djava.io.tmpdir={folder}")
        .config("spark.local.dir", folder)
        .config("spark.sql.streaming.metricsEnabled", "true")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")

    def start(name: str, rate: int, work: int, kept: str = "true") -> Any:
        frame = spark.readStream.format("rate").options(numPartitions=1, rowsPerSecond=rate).load()
        frame = frame.selectExpr(
            "unix_millis(timestamp) AS born", WORK.format(n=work), NOW, "value"
        ).where(kept)
        writer = frame.writeStream.queryName(name).outputMode("append").format("memory")
        writer = writer.option("checkpointLocation", f"{folder}/{name}")
        return writer.trigger(continuous="1 second").start()

    # Of the hog's rows few are kept, by what it has computed: else memory is full in minutes.
    queries = start("light", RATE, 200), start("hog", 20_000, 5_000, f"h % {KEPT} = 7")
    pid = spark.sparkContext._gateway.jvm.java.lang.ProcessHandle.current().pid()
    port = spark.sparkContext.uiWebUrl.rpartition(":")[2]
    print(json.dumps({"pid": pid, "engine": f"spark:127.0.0.1:{port}"}), flush=True)
    for line in sys.stdin:
        begin, end = map(int, line.split())
        for query in queries:
            assert query.isActive, query.exception()
        within = f"done BETWEEN {begin} AND {end}"
        rows = spark.sql(f"SELECT done - born AS late FROM light WHERE {within}").collect()
        [hog] = spark.sql(f"SELECT count(*) AS n FROM hog WHERE {within}").collect()
        told = {"late": [row["late"] for row in rows], "hog": hog["n"] * KEPT / (end - begin) * 1e3}
        print(json.dumps(told), flush=True)
