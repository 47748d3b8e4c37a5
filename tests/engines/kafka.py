"""A real Kafka from Maven Central's jars.

A broker (KRaft, of one node) that feeds itself, a worker of Connect, applications of Kafka Streams.

They have a network namespace of their own. All processes die with the one that started them, and
none may use more than `CPU_LIMIT_S` of CPU time.
"""

import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from engines.cluster import CACHE, CPU_LIMIT_S, patiently
from engines.maven import jars_of
from sched_ctl.kernel import procfs

__all__ = ["VERSION", "Connector", "Kafka", "running"]

VERSION = "4.4.0"
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
}
WORKER = {
    "bootstrap.servers": "127.0.0.1:9092",
    "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
    "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
    "listeners": "http://127.0.0.1:8083",
    "plugin.discovery": "service_load",
    "consumer.auto.offset.reset": "earliest",
}


@dataclass(frozen=True)
class Connector:
    """cost_us: CPU time that a task takes for a record. Its topic has its name."""

    name: str
    cost_us: int
    tasks: int = 1


@dataclass
class Kafka:
    """rates: a file, see jobs/KafkaFeed.java; nothing comes until somebody writes there."""

    folder: Path
    pid: int  # holds the network namespace
    cpu_limit_s: int
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def rates(self) -> Path:
        return self.folder / "rates"

    def out(self, connector: str) -> Path:
        """The folder in which its tasks write what they are done with, for `storm.finished`."""
        return self.folder / f"out-{connector}"

    def connect(self, *connectors: Connector) -> "subprocess.Popen[bytes]":
        """A standalone worker of Connect with these connectors."""
        offsets = {"offset.storage.file.filename": str(self.folder / "offsets")}
        files = [_properties(self.folder / "worker", {**WORKER, **offsets})]
        for one in connectors:
            self.out(one.name).mkdir()
            given = {"name": one.name, "connector.class": "KafkaWork", "topics": one.name}
            given |= {"tasks.max": str(one.tasks), "cost_us": str(one.cost_us)}
            given |= {"out": str(self.out(one.name))}
            files.append(_properties(self.folder / one.name, given))
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        return self.start("worker", main, *map(str, files))

    def streams(self, **cost_us: int) -> "subprocess.Popen[bytes]":
        """A process with an application of Kafka Streams for each of these topics."""
        return self.start("streams", "KafkaApps", *(f"{t}={us}" for t, us in cost_us.items()))

    def start(self, name: str, *words: str) -> "subprocess.Popen[bytes]":
        path = f"{_job_jar()}:{_download()}/*"
        command = (
            *("setpriv", "--pdeathsig", "KILL", "--"),
            *("nsenter", f"--net=/proc/{self.pid}/ns/net", "--"),
            *("prlimit", f"--cpu={self.cpu_limit_s}", "--"),
            *("java", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx256m"),
            *("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", path),
        )
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )
        self.started.append(process)
        return process

    def tail(self) -> str:
        logs = self.folder.glob("*.log")
        return "\n".join(f"--- {log}\n{log.read_text()[-1500:]}" for log in logs)


@contextmanager
def running(folder: Path, *, cpu_limit_s: int = CPU_LIMIT_S) -> Iterator[Kafka]:
    """A broker with the topics `alarms` and `archive`, of one and two partitions."""
    folder.mkdir(parents=True, exist_ok=True)
    _job_jar()
    holder = subprocess.Popen(
        [
            *("setpriv", "--pdeathsig", "KILL", "--", "unshare", "--net"),
            *("sh", "-c", "ip link set lo up && exec sleep 36000"),
        ],
        stdin=subprocess.DEVNULL,
    )
    kafka = Kafka(folder, holder.pid, cpu_limit_s)
    kafka.rates.write_text("0 0")
    try:
        patiently(lambda: procfs.command_line(holder.pid)[:1] == ["sleep"], 10, "a namespace")
        data = {"log.dirs": str(folder / "data")}
        file = _properties(folder / "broker", {**BROKER, **data})
        broker = kafka.start("broker", "KafkaFeed", str(file), str(kafka.rates))

        def ready() -> bool:
            assert broker.poll() is None, kafka.tail()
            return b"ready\n" in (folder / "broker.log").read_bytes()

        patiently(ready, 60, "the broker")
        yield kafka
    finally:
        for process in (*kafka.started, holder):
            process.kill()
            process.wait(60)


def _download() -> Path:
    """Kafka's jars, 56 MB."""
    return jars_of("kafka", VERSION)


def _job_jar() -> Path:
    """The feed, the connector and the applications, compiled against Kafka's jars."""
    sources = [HERE / "jobs" / f"{name}.java" for name in ("KafkaFeed", "KafkaWork", "KafkaApps")]
    jar = CACHE / f"kafka-jobs-{VERSION}.jar"
    if not jar.exists() or jar.stat().st_mtime < max(s.stat().st_mtime for s in sources):
        classes = CACHE / "kafka-jobs"
        shutil.rmtree(classes, ignore_errors=True)
        services = classes / "META-INF" / "services"
        services.mkdir(parents=True)
        (services / "org.apache.kafka.connect.sink.SinkConnector").write_text("KafkaWork\n")
        jars = _download() / "*"
        subprocess.run(
            ["javac", "-nowarn", "-d", classes, "-cp", jars, *sources], check=True, timeout=300
        )
        with zipfile.ZipFile(jar, "w") as packed:
            for path in classes.rglob("*"):
                packed.write(path, path.relative_to(classes))
    return jar


def _properties(path: Path, given: Mapping[str, str]) -> Path:
    path = path.with_suffix(".properties")
    path.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    return path
