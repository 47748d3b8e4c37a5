"""A real Storm cluster from Maven Central's jars, in a container of its own.

Zookeeper, Nimbus and a supervisor, which starts the workers. They have network, process and mount
namespaces of their own: a worker is nobody's child for long, and so dies with the process that is
the first of its namespace, which dies with the test run.
"""

import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engines.cluster import CACHE, CPU_LIMIT_S, SLOWER
from engines.maven import jars_of
from sched_ctl.drivers.sources.graphite import DEFAULT_PORT
from sched_ctl.kernel import procfs
from support import wait_until

__all__ = ["GRAPHITE_PORT", "VERSION", "Storm", "download", "finished", "left", "running"]

VERSION = "2.8.3"
HERE = Path(__file__).parent
GRAPHITE_PORT = DEFAULT_PORT
# For daemons, and for workers of tests: a short run never repays the second compiler.
BRIEF = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
NIMBUS, ZOOKEEPER, SUPERVISOR = 6627, 2181, 6628
SETTINGS = """\
storm.zookeeper.servers: ["127.0.0.1"]
storm.local.hostname: "127.0.0.1"
nimbus.seeds: ["127.0.0.1"]
storm.local.dir: "{folder}/local"
storm.log.dir: "{folder}/logs"
storm.workers.artifacts.dir: "{folder}/artifacts"
dev.zookeeper.path: "{folder}/zookeeper"
supervisor.slots.ports: [6700, 6701]
supervisor.cpu.capacity: 100000
supervisor.memory.capacity.mb: 100000
nimbus.monitor.freq.secs: 2
supervisor.monitor.frequency.secs: 1
worker.childopts: "-Xmx384m {java}"
"""
# The four lines of docs/engines.md.
REPORTER = """\
topology.metrics.reporters:
  - class: "org.apache.storm.metrics2.reporters.GraphiteStormReporter"
    graphite.host: "127.0.0.1"
    graphite.port: {port}
    report.period: {period_ms}
    report.period.units: "MILLISECONDS"
"""
LOGGING = """\
<Configuration><Appenders><Console name="out" target="SYSTEM_OUT">
<PatternLayout pattern="%d{HH:mm:ss,SSS} %-5p %-30c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="INFO"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


def download() -> Path:
    """Storm's jars, 152 MB."""
    return jars_of("storm", VERSION)


def job_jar(jars: Path) -> Path:
    """The test topology, compiled against Storm's jars."""
    source = HERE / "jobs" / "Topology.java"
    jar = CACHE / f"topology-{VERSION}.jar"
    if not jar.exists() or jar.stat().st_mtime < source.stat().st_mtime:
        classes = CACHE / "topology"
        shutil.rmtree(classes, ignore_errors=True)
        classes.mkdir(parents=True)
        subprocess.run(
            ["javac", "-nowarn", "-d", classes, "-cp", jars / "*", source], check=True, timeout=120
        )
        with zipfile.ZipFile(jar, "w") as packed:
            for path in classes.iterdir():
                packed.write(path, path.name)
    return jar


@dataclass
class Storm:
    """A running cluster. pid: of a process inside, as seen from outside.

    cpu_limit_s: CPU time after which a process ends, so that none that is forgotten stays for long.
    """

    folder: Path
    jars: Path
    pid: int
    cpu_limit_s: int = CPU_LIMIT_S
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)  # workers, by the ids that they have inside

    def submit(self, **arguments: object) -> str:
        """Run the test topology (Topology.java); its id once its workers run."""
        jar = job_jar(self.jars)
        name = str(arguments.get("name", "t"))
        given = [f"{key.replace('__', '.')}={value}" for key, value in arguments.items()]
        done = self._java(
            f"submit-{name}", f"-Dstorm.jar={jar}", f"{self._class_path}:{jar}", "Topology", *given
        )
        assert done.wait(180 * SLOWER) == 0, self.tail()
        workers = wait_until(lambda: self.workers(name), 120, f"a worker of {name}: {self.tail()}")
        return procfs.command_line(workers[0])[-5]

    def kill(self, name: str) -> None:
        done = self._java(
            f"kill-{name}",
            *("", self._class_path, "org.apache.storm.command.KillTopology", name, "-w", "0"),
        )
        assert done.wait(60 * SLOWER) == 0, self.tail()
        wait_until(lambda: not self.workers(name), 60, f"the end of {name}")

    def workers(self, name: str) -> list[int]:
        """Workers of a topology, by their command lines, in this cluster."""
        found = []
        for pid in procfs.pids():
            words = procfs.command_line(pid)
            if (
                words[-6:-5] == ["org.apache.storm.daemon.worker.Worker"]
                and "org.apache.storm.LogWriter" not in words
                and words[-5].rsplit("-", 2)[0] == name
            ):
                with suppress(OSError):
                    if self._inside(pid):
                        found.append(pid)
                        self.seen.add(_inner(pid))
        return found

    def _inside(self, pid: int) -> bool:
        return Path(f"/proc/{pid}/ns/net").stat() == Path(f"/proc/{self.pid}/ns/net").stat()

    def pin(self, cpus: set[int], name: str) -> None:
        """Let the workers of a topology use these CPUs only."""
        for pid in self.workers(name):
            for tid in procfs.tids(pid):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(tid, cpus)

    def start(self, name: str, main: str) -> None:
        self.started.append(self._java(name, "", self._class_path, main))

    def listens(self, port: int) -> bool:
        """Whether somebody inside listens on this TCP port."""
        for process in self.started:
            assert process.poll() is None, self.tail()
        for table in ("tcp", "tcp6"):
            text = Path(f"/proc/{self.pid}/net/{table}").read_text()
            if any(
                words[1].endswith(f":{port:04X}") and words[3] == "0A"
                for words in map(str.split, text.splitlines()[1:])
            ):
                return True
        return False

    def tail(self) -> str:
        logs = [*self.folder.glob("*.log"), *self.folder.glob("artifacts/*/*/worker.log")]
        return "\n".join(f"--- {log}\n{log.read_text()[-1500:]}" for log in logs)

    @property
    def _class_path(self) -> str:
        return f"{self.folder}/conf:{self.jars}/*"

    def _java(
        self, name: str, option: str, path: str, main: str, *rest: str
    ) -> subprocess.Popen[bytes]:
        command = (
            *("nsenter", f"--target={self.pid}", "--net", "--pid", "--mount", "--"),
            *("prlimit", f"--cpu={self.cpu_limit_s}", "--"),
            *("java", *BRIEF.split(), "-Xmx256m", *option.split()),
            f"-Djava.io.tmpdir={self.folder}/tmp",  # Nimbus unpacks RocksDB there, and is killed
            f"-Dstorm.home={self.folder}",
            "-Dstorm.conf.file=storm.yaml",
            f"-Dstorm.log.dir={self.folder}/logs",
            f"-Dlogfile.name={name}.log",
            f"-Dlog4j.configurationFile={self.folder}/log4j2/cluster.xml",
            *("-cp", path, main, *rest),
        )
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )


@contextmanager
def running(
    folder: Path,
    *,
    java: str = BRIEF,
    period_ms: int = 250,
    reporter: bool = True,
    settings: Mapping[str, str] | None = None,
    cpu_limit_s: int = CPU_LIMIT_S,
) -> Iterator[Storm]:
    """A cluster with two slots. java: options of the workers."""
    jars = download()
    job_jar(jars)
    for name in ("conf", "log4j2", "logs", "local", "tmp"):
        (folder / name).mkdir(parents=True)
    text = SETTINGS.format(folder=folder, java=java)
    if reporter:
        text += REPORTER.format(port=GRAPHITE_PORT, period_ms=period_ms)
    text += "".join(f"{key}: {value}\n" for key, value in (settings or {}).items())
    (folder / "conf" / "storm.yaml").write_text(text)
    for name in ("cluster", "worker"):
        (folder / "log4j2" / f"{name}.xml").write_text(LOGGING)
    for name in ("lib", "lib-worker"):
        (folder / name).symlink_to(jars)
    # The shell is the first process of the namespace, and buries what others leave behind.
    init = subprocess.Popen(
        [
            *("setpriv", "--pdeathsig", "KILL", "--"),
            *("unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child"),
            *("sh", "-c", "ip link set lo up && while :; do sleep 1; done"),
        ],
        stdin=subprocess.DEVNULL,
    )
    cluster = None
    try:
        (pid,) = wait_until(lambda: _children(init.pid), 10, "the cluster's namespaces")
        cluster = Storm(folder, jars, pid, cpu_limit_s)
        wait_until(lambda: _is_up(pid), 10, "the loopback interface")
        cluster.start("zookeeper", "org.apache.storm.command.DevZookeeper")
        wait_until(lambda: cluster.listens(ZOOKEEPER), 120, "Zookeeper")
        cluster.start("nimbus", "org.apache.storm.daemon.nimbus.Nimbus")
        cluster.start("supervisor", "org.apache.storm.daemon.supervisor.Supervisor")
        wait_until(lambda: cluster.listens(NIMBUS), 120, "Nimbus")
        wait_until(lambda: cluster.listens(SUPERVISOR), 120, "the supervisor")
        yield cluster
    finally:
        init.kill()
        init.wait(10)
        for worker in cluster.seen if cluster is not None else ():
            # The socket by which it was asked for its threads: it leaves it there when killed.
            Path(f"/tmp/.java_pid{worker}").unlink(missing_ok=True)


def _inner(pid: int) -> int:
    """A process's id in its own namespace of processes, proc(5)."""
    (line,) = [
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("NSpid:")
    ]
    return int(line.split()[-1])


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_up(pid: int) -> bool:
    """True once the shell has set up the loopback interface."""
    return any("127.0.0.1" in line for line in Path(f"/proc/{pid}/net/fib_trie").open())


def finished(folder: Path, begin: float, end: float) -> npt.NDArray[np.float64]:
    """End-to-end latencies (s) of tuples that left the topology between two moments (monotonic)."""
    chosen = left(folder, begin, end)
    latencies: npt.NDArray[np.float64] = chosen[:, 0] - chosen[:, 1]
    return latencies


def left(folder: Path, begin: float, end: float) -> npt.NDArray[np.float64]:
    """(n, 2) when tuples left the topology between two moments, and when they were due to come."""
    tables = [np.zeros((0, 2))]
    for file in folder.iterdir():
        whole = file.stat().st_size // 16 * 2
        tables.append(np.fromfile(file, dtype=">i8", count=whole).reshape(-1, 2) / 1e9)
    table = np.concatenate(tables)
    return table[(table[:, 0] >= begin) & (table[:, 0] < end)]
