"""A Spark application of the tests: two streaming queries that compute more than a CPU can.

    application.py continuous|micro NAME...

Says what it is in lines of JSON: first its process, web interface, and the stages of each query;
in micro-batches, each batch's time. A line "real-time SECONDS" on its input makes it start
real-time ones with batches of that length, and any line makes it say the stages of the next ones.
"""

import json
import os
import sys
import tempfile
import time
import urllib.request
from typing import Any

os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession

WORK = "aggregate(sequence(1, {n}), 0L, (a, x) -> (a * 31 + x + value) % 1000003) AS h"


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(mode: str, *names: str) -> None:
    tmp = f"-Djava.io.tmpdir={os.environ['CHECKPOINTS']}"  # it is killed, and tidies up nothing
    spark: Any = (
        SparkSession.builder.master("local[8]" if mode == "continuous" else "local[1]")
        .appName(f"app-{names[0]}")
        .config("spark.ui.port", "0")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.driver.memory", "600m")
        .config("spark.driver.extraJavaOptions", f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {tmp}")
        .config("spark.local.dir", os.environ["CHECKPOINTS"])
        .config("spark.sql.streaming.metricsEnabled", "true")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    jvm = spark.sparkContext._gateway.jvm
    # Its first answer takes seconds of CPU time, which it has only now.
    with urllib.request.urlopen(f"{spark.sparkContext.uiWebUrl}/api/v1/applications") as answer:
        answer.read()
    pid = jvm.java.lang.ProcessHandle.current().pid()
    folder = tempfile.mkdtemp(dir=os.environ["CHECKPOINTS"])

    def rows(source: str, **options: object) -> DataFrame:
        made: DataFrame = spark.readStream.format(source).options(numPartitions=1, **options).load()
        return made

    def start(name: str, frame: DataFrame, sink: str, mode: str, **trigger: Any) -> Any:
        writer = frame.writeStream.queryName(name).outputMode(mode).format(sink)
        return writer.option("checkpointLocation", f"{folder}/{name}").trigger(**trigger).start()

    def stages(queries: dict[str, Any], count: int) -> dict[str, list[int]]:
        """Which stages run for each query, by Spark's own account."""
        tracker = spark.sparkContext.statusTracker()
        while True:
            found = {}
            for name, query in queries.items():
                jobs = [tracker.getJobInfo(j) for j in tracker.getJobIdsForGroup(str(query.runId))]
                found[name] = sorted(
                    stage
                    for job in jobs
                    if job and job.status == "RUNNING"
                    for stage in job.stageIds
                )
            if all(len(one) == count for one in found.values()):
                return found
            time.sleep(0.05)

    def about(
        queries: dict[str, Any], count: int, before: dict[str, list[int]]
    ) -> dict[str, list[int]]:
        """Says it when all stages are others."""
        while True:
            found = stages(queries, count)
            if all(found[name] != before.get(name) for name in found):
                say(pid=pid, ui=spark.sparkContext.uiWebUrl, stages=found)
                return found
            time.sleep(0.05)

    if mode == "micro":
        frame = rows("rate-micro-batch", rowsPerBatch=50).selectExpr(WORK.format(n=10_000))
        query = start(names[0], frame, "noop", "append", processingTime="0 seconds")
        say(pid=pid, ui=spark.sparkContext.uiWebUrl)
        last = -1
        while True:
            for progress in query.recentProgress:
                if progress["batchId"] > last:
                    last = progress["batchId"]
                    say(at=time.monotonic(), batch_ms=progress["durationMs"]["triggerExecution"])
            time.sleep(0.1)

    queries = {}
    for name in names:
        frame = rows("rate", rowsPerSecond=20_000).selectExpr(WORK.format(n=5_000))
        queries[name] = start(name, frame, "noop", "append", continuous="1 second")
    found = about(queries, 1, {})
    for line in sys.stdin:
        if line.startswith("real-time"):
            length = f"{line.split()[1]} seconds"
            for query in queries.values():
                query.stop()
            queries = {}
            for name in names:
                streams = jvm.org.apache.spark.sql.execution.streaming.sources
                source = streams.LowLatencyMemoryStream.apply(
                    spark._jsparkSession, 1, jvm.org.apache.spark.sql.Encoders.LONG()
                )
                boxed = jvm.java.util.stream.LongStream.range(0, 100_000).boxed().toList()
                converters = jvm.scala.jdk.javaapi.CollectionConverters
                source.addData(converters.asScala(boxed).toSeq())
                frame = DataFrame(source.toDF(), spark).selectExpr(WORK.format(n=20_000), "value")
                counted = frame.selectExpr("value % 4 AS k", "h").groupBy("k").count()
                query = start(f"{name}-rt", counted, "console", "update", realTime=length)
                queries[name] = query
        found = about(queries, 2, found)


main(*sys.argv[1:])
