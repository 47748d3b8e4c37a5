"""A real Kafka: a broker (KRaft, of one node) that feeds itself, and a Connect worker.

From Maven Central's jars. All processes die with the one that started them.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engines.cluster import CACHE, JAVA, SLOWER, patiently

__all__ = ["VERSION", "Kafka", "classes", "download", "running"]

VERSION = "4.0.0"
HERE = Path(__file__).parent
BROKER = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.enable": "false",
    # An emulated machine is slow: nobody is to be taken for dead.
    "group.max.session.timeout.ms": "1800000",
    "broker.session.timeout.ms": str(9_000 * SLOWER),
    "controller.quorum.request.timeout.ms": str(2_000 * SLOWER),
    "controller.quorum.fetch.timeout.ms": str(2_000 * SLOWER),
}
WORKER = {
    "bootstrap.servers": "127.0.0.1:9092",
    "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
    "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
    "listeners": "http://127.0.0.1:8083",
    "plugin.discovery": "service_load",
    "consumer.session.timeout.ms": "600000",
    "consumer.heartbeat.interval.ms": "20000",
    "consumer.auto.offset.reset": "earliest",
}


@dataclass
class Kafka:
    """rates: a file, see jobs/KafkaFeed.java. worker: the process of Connect."""

    folder: Path
    rates: Path
    broker: "subprocess.Popen[bytes]"
    worker: "subprocess.Popen[bytes]"

    def out(self, connector: str) -> Path:
        """Folder of the file in which its task writes what it is done with."""
        return self.folder / f"out-{connector}"


def download() -> Path:
    """Kafka's jars, fetched once (50 MB) into the ignored build folder."""
    home = CACHE / f"kafka-{VERSION}"
    if not home.exists():
        part = CACHE / f"kafka-{VERSION}.{os.getpid()}"
        shutil.rmtree(part, ignore_errors=True)
        subprocess.run(
            [
                *("mvn", "-q", "-B", "-f", HERE / "kafka.pom.xml"),
                f"-Dmaven.repo.local={CACHE / 'maven'}",
                f"-Dkafka.version={VERSION}",
                *("dependency:copy-dependencies", f"-DoutputDirectory={part}"),
            ],
            check=True,
            timeout=600,
        )
        part.rename(home)
        shutil.rmtree(CACHE / "maven")
    return home


def classes(jars: Path) -> Path:
    """The feed and the connector, compiled against Kafka's jars."""
    folder = CACHE / "kafka-work"
    sources = [HERE / "jobs" / f"{name}.java" for name in ("KafkaFeed", "KafkaWork")]
    subprocess.run(
        ["javac", "-nowarn", "-d", folder, "-cp", jars / "*", *sources], check=True, timeout=300
    )
    services = folder / "META-INF" / "services"
    services.mkdir(parents=True, exist_ok=True)
    (services / "org.apache.kafka.connect.sink.SinkConnector").write_text("KafkaWork\n")
    return folder


@contextmanager
def running(folder: Path, connectors: Mapping[str, int]) -> Iterator[Kafka]:
    """connectors: name, also of its topic -> CPU time that its task takes for a record, us."""
    jars = CACHE / f"kafka-{VERSION}"
    path = f"{CACHE / 'kafka-work'}:{jars}/*"
    rates = folder / "rates"
    rates.write_text("0 0")
    data = folder / "data"
    broker = _properties(folder / "broker", {**BROKER, "log.dirs": str(data)})
    offsets = {"offset.storage.file.filename": str(folder / "offsets")}
    worker = _properties(folder / "worker", {**WORKER, **offsets})
    each = []
    for name, cost_us in connectors.items():
        out = folder / f"out-{name}"
        out.mkdir()
        given = {"name": name, "connector.class": "KafkaWork", "topics": name, "tasks.max": "1"}
        given |= {"cost_us": str(cost_us), "out": str(out / "0")}
        each.append(_properties(folder / name, given))
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(_java(folder, "broker", path, ("KafkaFeed", str(broker), str(rates))))
        log = folder / "broker.log"
        patiently(lambda: b"ready\n" in log.read_bytes(), 60, f"the broker: {log.read_bytes()!r}")
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        started.append(_java(folder, "worker", path, (main, str(worker), *map(str, each))))
        yield Kafka(folder, rates, *started)
    finally:
        for process in started:
            process.kill()
            process.wait(60)


def _properties(path: Path, given: Mapping[str, str]) -> Path:
    path = path.with_suffix(".properties")
    path.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    return path


def _java(folder: Path, name: str, path: str, words: Sequence[str]) -> "subprocess.Popen[bytes]":
    level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    command = ["setpriv", "--pdeathsig", "KILL", "--", *JAVA, "-Xmx384m", level, "-cp", path]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
