"""A real Kafka from Maven Central's jars.

A broker (KRaft, of one node) that feeds itself, a worker of Connect, applications of Kafka Streams.

They have a network namespace of their own. All processes die with the one that started them, and
none may use more than `CPU_LIMIT_S` of CPU time.
"""

import math
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from engines.cluster import CACHE, CPU_LIMIT_S, LEAVE, SLOWER, patiently
from engines.maven import jars_of
from engines.storm import finished
from sched_ctl.kernel import procfs

__all__ = ["VERSION", "Connector", "Kafka", "prepare", "running"]

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
JAVA: tuple[str, ...] = ("java", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx256m")
if SLOWER > 1:
    JAVA += ("-XX:TieredStopAtLevel=1", "-XX:+UnlockDiagnosticVMOptions")
    JAVA += ("-XX:-BytecodeVerificationRemote", "-XX:UseAVX=0")
    BROKER |= {
        "broker.session.timeout.ms": "600000",
        "initial.broker.registration.timeout.ms": "600000",
        "controller.quorum.request.timeout.ms": "60000",
        "controller.quorum.election.timeout.ms": "10000",
        "controller.quorum.fetch.timeout.ms": "60000",
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
    leave: bool = False  # its processes write their classes down when they are told to end
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def rates(self) -> Path:
        return self.folder / "rates"

    def out(self, query: str) -> Path:
        """The folder in which the threads of a connector or an application write what they are done
        with, for `storm.finished`."""
        return self.folder / f"out-{query}"

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
        """A process with an application of Kafka Streams for each of these topics: TOPIC-app."""
        for topic in cost_us:
            self.out(f"{topic}-app").mkdir(exist_ok=True)
        given = (f"{topic}={us}" for topic, us in cost_us.items())
        return self.start("streams", "KafkaApps", str(self.folder), *given)

    def start(self, name: str, *words: str) -> "subprocess.Popen[bytes]":
        # Class data sharing, java(1), takes the same jars in the same order.
        path = ":".join(map(str, [_job_jar(), *sorted(_download().glob("*.jar"))]))
        classes = _classes(name)
        sharing = (f"-XX:SharedArchiveFile={classes}",) if classes.exists() else ()
        if self.leave:
            sharing = (f"{LEAVE}{classes}",)
        command = (
            *("setpriv", "--pdeathsig", "KILL", "--"),
            *("nsenter", f"--net=/proc/{self.pid}/ns/net", "--"),
            *("prlimit", f"--cpu={self.cpu_limit_s}", "--"),
            *(*JAVA, *sharing),
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


def prepare(folder: Path) -> None:
    """All that a guest needs: it has no network, and may write nothing beside its own."""
    made_s = _job_jar().stat().st_mtime
    classes = [_classes(name) for name in ("broker", "worker", "streams")]
    if all(file.exists() and file.stat().st_mtime > made_s for file in classes):
        return
    with running(folder, leave=True) as kafka:
        kafka.connect(Connector("alarms", 100), Connector("archive", 100, tasks=2))
        kafka.streams(alarms=100, archive=100)
        kafka.rates.write_text("25 10")
        outs = [kafka.out("archive"), kafka.out("archive-app")]
        patiently(lambda: all(len(finished(out, 0, math.inf)) > 50 for out in outs), 60, "records")
        for process in reversed(kafka.started):  # the broker last
            process.terminate()
            process.wait(120)


def _classes(name: str) -> Path:
    """What a process of this name has loaded, ready for use."""
    return CACHE / f"kafka-{VERSION}-{name}.jsa"


@contextmanager
def running(
    folder: Path, *, cpu_limit_s: int = CPU_LIMIT_S, leave: bool = False
) -> Iterator[Kafka]:
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
    kafka = Kafka(folder, holder.pid, cpu_limit_s, leave)
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
    names = ("KafkaFeed", "KafkaDone", "KafkaWork", "KafkaApps")
    sources = [HERE / "jobs" / f"{name}.java" for name in names]
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
