"""A real Flink cluster from PyPI's jars, in a network namespace of its own.

Flink's metric reporters listen on all interfaces, hence the namespace. All processes die with
the one that started them, and none may use more than `CPU_LIMIT_S` of CPU time, so that nothing
outlives a killed test run.

To read thousands of classes takes most of the time of a start. So the first cluster leaves them as
the Java machine wants them (`archive`), which saves all later ones two fifths of it; also those in
guests, where nothing can be written.
"""

import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from sched_ctl.kernel.crowd import slowness
from sched_ctl.kernel.netns import entered
from support import wait_until

__all__ = [
    "ADAPTIVE",
    "SETTINGS",
    "SLOWER",
    "VERSION",
    "Cluster",
    "download",
    "has_run",
    "job_jar",
    "launch",
    "patiently",
    "prepare",
    "running",
]

VERSION = "2.3.0"
ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("SCHED_CTL_ENGINES", ROOT / "build" / "engines"))
CPU_LIMIT_S = 1200
# An emulated guest, on a busy machine, may be that much slower, by its clock, which leaps.
SLOWER = 60 if "SCHED_CTL_GUEST" in os.environ else 1
REST_PORT = 8081
ZOOKEEPER_PORT = 2181
LEAVE = "-XX:ArchiveClassesAtExit="

# What Flink's start scripts, which the PyPI package leaves out, give to Java 17 and newer.
OPENED = (
    *("java.lang", "java.lang.reflect", "java.net", "java.io", "java.nio", "sun.nio.ch"),
    *("java.text", "java.time", "java.util", "java.util.concurrent"),
    *("java.util.concurrent.atomic", "java.util.concurrent.locks"),
)
JAVA = (
    "java",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # a short run never repays the second compiler
    "-XX:-UsePerfData",
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED),
)
if SLOWER > 1:
    JAVA = (
        *JAVA,
        # Flink sets what older versions called it, and starting takes longer than the default.
        f"-Dpekko.remote.classic.startup-timeout={10 * SLOWER}s",
        *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote", "-XX:UseAVX=0"),
    )
SETTINGS = {
    "jobmanager.rpc.address": "127.0.0.1",
    "jobmanager.bind-host": "127.0.0.1",
    "taskmanager.host": "127.0.0.1",
    "taskmanager.bind-host": "127.0.0.1",
    "taskmanager.numberOfTaskSlots": "8",
    "rest.address": "127.0.0.1",
    "rest.bind-address": "127.0.0.1",
    "rest.port": str(REST_PORT),
    "metrics.fetcher.update-interval": "100",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "100",
    "restart-strategy.fixed-delay.delay": "100 ms",
    "heartbeat.timeout": str(8000 * SLOWER),
    "pekko.ask.timeout": f"{10 * SLOWER} s",
    "heartbeat.interval": "2000",
    # What the scripts would work out from the process size; a TaskManager insists on all.
    "taskmanager.cpu.cores": "2",
    "taskmanager.memory.framework.heap.size": "64m",
    "taskmanager.memory.framework.off-heap.size": "64m",
    "taskmanager.memory.task.heap.size": "256m",
    "taskmanager.memory.task.off-heap.size": "0m",
    "taskmanager.memory.managed.size": "16m",
    "taskmanager.memory.network.min": "64m",
    "taskmanager.memory.network.max": "64m",
    "taskmanager.memory.jvm-metaspace.size": "128m",
    "taskmanager.memory.jvm-overhead.min": "64m",
    "taskmanager.memory.jvm-overhead.max": "64m",
    # The default segments of 32 KiB hold seconds of these tests' small records.
    "taskmanager.memory.segment-size": "4kb",
}
PROMETHEUS = {
    "metrics.reporter.prom.factory.class": (
        "org.apache.flink.metrics.prometheus.PrometheusReporterFactory"
    ),
    "metrics.reporter.prom.port": "9250-9260",
}
# With which `rescale` works, and at once.
ADAPTIVE = {
    "jobmanager.scheduler": "adaptive",
    "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "0 ms",
    "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout": "0 ms",
    "jobmanager.adaptive-scheduler.rescale-trigger.max-delay": "0 ms",
}
# With `running(..., zookeeper=True)`: a new JobManager goes on with the jobs of a dead one.
HIGH_AVAILABILITY = {
    "high-availability.type": "zookeeper",
    "high-availability.zookeeper.quorum": f"127.0.0.1:{ZOOKEEPER_PORT}",
    "high-availability.zookeeper.client.session-timeout": "4000",
}
LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
appender.out.name = out
appender.out.type = CONSOLE
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss,SSS} %-5p %-40c{1} %m%n
"""


def patiently(condition: Callable[[], object], deadline_s: float, what: str) -> None:
    """Wait; on a slow or crowded machine longer. Looks less often where that costs most."""

    def look() -> object:
        if SLOWER > 1:
            time.sleep(0.5)
        return condition()

    wait_until(look, deadline_s * max(SLOWER, min(5.0, slowness())), what)


def download() -> Path:
    """Flink's jars, fetched once (331 MB) into the ignored build folder."""
    home = CACHE / f"flink-{VERSION}"
    if not home.exists():
        part = CACHE / f"flink-{VERSION}.{os.getpid()}"
        shutil.rmtree(part, ignore_errors=True)
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install"),
                *("--no-deps", "--no-compile", "--target", str(part)),
                f"apache-flink-libraries=={VERSION}",
            ],
            check=True,
            timeout=600,
        )
        part.rename(home)
    return home / "pyflink"


JOBS = [Path(__file__).parent / "jobs" / f"{name}.java" for name in ("Query", "Sql", "Counted")]
JOB_JAR = CACHE / f"jobs-{VERSION}.jar"


def are_compiled() -> bool:
    newest = max(source.stat().st_mtime for source in JOBS)
    return JOB_JAR.exists() and JOB_JAR.stat().st_mtime >= newest


def job_jar(flink: Path) -> Path:
    """The test jobs, compiled against Flink's jars."""
    if not are_compiled():
        classes = CACHE / "jobs"
        shutil.rmtree(classes, ignore_errors=True)
        classes.mkdir(parents=True)
        subprocess.run(
            ["javac", "-nowarn", "-d", classes, "-cp", flink / "lib" / "*", *JOBS],
            check=True,
            timeout=120,
        )
        with zipfile.ZipFile(JOB_JAR, "w") as packed:
            for path in classes.iterdir():
                packed.write(path, path.name)
    return JOB_JAR


def has_run() -> bool:
    """Whether a cluster was here, which leaves all that one in a guest needs."""
    return are_compiled() and all(archive(role).exists() for role in ("jm", "tm"))


def archive(role: str) -> Path:
    """The classes that a "jm" or a "tm" loads, ready for use: class data sharing, java(1).

    A Java machine that does not like it, such as a newer one, goes on without.
    """
    return CACHE / f"flink-{VERSION}-{role}.jsa"


@dataclass
class Cluster:
    """A JobManager and its TaskManagers. `call` talks to its REST interface from outside."""

    folder: Path
    flink: Path
    job_manager: subprocess.Popen[bytes]
    task_managers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    jar: str = ""
    secured: ssl.SSLContext | None = None  # REST speaks TLS
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)
    uid: int = 0

    @property
    def pid(self) -> int:
        return self.job_manager.pid

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        with entered(self.pid), self._client() as client:
            return client.request(method, path, **arguments).raise_for_status().json()

    def _client(self) -> httpx.Client:
        scheme = "http" if self.secured is None else "https"
        return httpx.Client(
            base_url=f"{scheme}://127.0.0.1:{REST_PORT}",
            timeout=120 * SLOWER,
            verify=self.secured or False,  # to read all authorities takes longer than to ask
        )

    def add_task_manager(self, settings: Mapping[str, str] = PROMETHEUS) -> int:
        """Start one more TaskManager; returns its pid. Does not wait for it."""
        name = f"tm{len(self.task_managers) + 1}"
        extra = {"taskmanager.resource-id": name, **settings}
        started = launch(
            self.folder,
            self.flink,
            name,
            ("nsenter", f"--net=/proc/{self.pid}/ns/net", "--"),
            ("-Xmx384m",),
            "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
            (
                *("--configDir", f"{self.folder}/conf"),
                *(part for key, value in extra.items() for part in ("-D", f"{key}={value}")),
            ),
            self.uid,
        )
        self.task_managers.append(started)
        return started.pid

    def start_zookeeper(self) -> None:
        """One of Flink's own, inside."""
        data = self.folder / "zookeeper"
        data.mkdir()
        settings = {"dataDir": data, "clientPort": ZOOKEEPER_PORT, "clientPortAddress": "127.0.0.1"}
        settings |= {"admin.enableServer": "false", "tickTime": 500}
        config = self.folder / "conf" / "zoo.cfg"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self.others.append(
            launch(
                self.folder,
                self.flink,
                "zookeeper",
                ("nsenter", f"--net=/proc/{self.pid}/ns/net", "--"),
                ("-Xmx64m",),
                "org.apache.flink.runtime.zookeeper.FlinkZooKeeperQuorumPeer",
                ("--zkConfigFile", str(config), "--peerId", "1"),
            )
        )

    def kill_job_manager(self) -> None:
        self.job_manager.kill()
        self.job_manager.wait(10)

    def restart_job_manager(self) -> None:
        """Another one where the last was, in the TaskManagers' network namespace."""
        home = f"--net=/proc/{self.task_managers[0].pid}/ns/net"
        self.job_manager = _job_manager(self.folder, self.flink, ("nsenter", home, "--"), self.uid)

    def wait_for_slots(self, slots: int) -> None:
        def ready() -> bool:
            for process in (self.job_manager, *self.task_managers):
                assert process.poll() is None, _tail(self.folder)
            try:
                return bool(self.call("GET", "/overview")["slots-total"] >= slots)
            except (httpx.HTTPError, OSError):
                return False

        patiently(ready, 60, f"{slots} slots in {self.folder}")

    def submit(self, main: str = "Query", /, **arguments: object) -> str:
        """Run a test job with these arguments (jobs/MAIN.java); its id once all tasks run."""
        if not self.jar:
            with job_jar(self.flink).open("rb") as packed:
                answer = self.call("POST", "/jars/upload", files={"jarfile": ("jobs.jar", packed)})
            self.jar = answer["filename"].rpartition("/")[2]
        given = [f"{key}={value}" for key, value in arguments.items()]
        job: str = self.call(
            "POST", f"/jars/{self.jar}/run", json={"programArgsList": given, "entryClass": main}
        )["jobid"]
        patiently(lambda: self.is_running(job), 30, f"job {job} running")
        return job

    def is_running(self, job: str) -> bool:
        answer = self.call("GET", f"/jobs/{job}")
        assert answer["state"] not in ("FAILED", "CANCELED"), answer
        return bool(answer["vertices"]) and all(
            vertex["status"] == "RUNNING" for vertex in answer["vertices"]
        )

    def rescale(self, job: str, part: str, parallelism: int) -> None:
        """Give the tasks whose names have this part so many subtasks, which restarts the job.

        Needs `ADAPTIVE`. Returns once REST shows that many.
        """
        path = f"/jobs/{job}"
        wanted = self.call("GET", f"{path}/resource-requirements")
        named = {v["id"] for v in self.call("GET", path)["vertices"] if part in v["name"]}
        for vertex in named:
            wanted[vertex]["parallelism"] = {"lowerBound": 1, "upperBound": parallelism}
        self.call_without_answer("PUT", f"{path}/resource-requirements", json=wanted)

        def rescaled() -> bool:
            vertices = self.call("GET", path)["vertices"]
            return all(v["parallelism"] == parallelism for v in vertices if v["id"] in named)

        patiently(rescaled, 30, f"{part} of job {job} with {parallelism} subtasks")

    def cancel(self, job: str) -> None:
        self.call_without_answer("PATCH", f"/jobs/{job}?mode=cancel")
        patiently(
            lambda: self.call("GET", f"/jobs/{job}")["state"] in ("CANCELED", "FINISHED"), 30, job
        )

    def call_without_answer(self, method: str, path: str, **arguments: Any) -> None:
        with entered(self.pid), self._client() as client:
            client.request(method, path, **arguments).raise_for_status()

    def cancel_all(self) -> None:
        for job in self.call("GET", "/jobs")["jobs"]:
            if job["status"] not in ("CANCELED", "FINISHED", "FAILED"):
                self.cancel(job["id"])

    def pin(self, cpus: set[int]) -> None:
        """Let the TaskManagers use these CPUs only."""
        for process in self.task_managers:
            for tid in os.listdir(f"/proc/{process.pid}/task"):  # noqa: PTH208  names only
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(tid), cpus)

    def stop(self) -> None:
        processes = [*self.task_managers, self.job_manager, *self.others]
        for process in processes:
            _leave(process)
            process.kill()  # nothing to save, and an orderly stop takes seconds
        for process in processes:
            process.wait(10)
            # The socket by which it was asked for its threads: in /tmp, whatever the setting says.
            Path(f"/tmp/.java_pid{process.pid}").unlink(missing_ok=True)


@contextmanager
def running(
    folder: Path,
    task_managers: Sequence[Mapping[str, str]] = (PROMETHEUS,),
    slots: int = 8,
    *,
    settings: Mapping[str, str] | None = None,
    secured: ssl.SSLContext | None = None,
    zookeeper: bool = False,
    uid: int = 0,
) -> Iterator[Cluster]:
    """A cluster with one TaskManager for each of the given extra settings, and `slots` in all.

    settings: more of them, for all processes. secured: how to reach REST if it speaks TLS.
    zookeeper: with one, and high availability. uid: whose processes they are; whose the folder is
    then, too.
    """
    own = dict(settings or {})
    if zookeeper:
        own |= {**HIGH_AVAILABILITY, "high-availability.storageDir": f"file://{folder}/ha"}
    flink = download()
    prepare(folder, {**SETTINGS, **own}, uid)
    job_manager = _job_manager(
        folder,
        flink,
        ("unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"),
        uid,
    )
    cluster = Cluster(folder, flink, job_manager, secured=secured, uid=uid)
    try:
        patiently(lambda: _is_java(cluster.pid), 10, "the JobManager's namespace")
        if zookeeper:
            cluster.start_zookeeper()
        for extra in task_managers:
            cluster.add_task_manager(extra)
        cluster.wait_for_slots(slots)
        yield cluster
    finally:
        cluster.stop()


def prepare(folder: Path, settings: Mapping[str, str], uid: int) -> None:
    """What processes of a cluster read and where they write, as this user's."""
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "config.yaml").write_text(
        "".join(f"{key}: {value}\n" for key, value in settings.items())
    )
    (folder / "conf" / "log4j.properties").write_text(LOGGING)
    (folder / "plugins").mkdir()
    plugin = download() / "plugins" / "metrics-prometheus"
    (folder / "plugins" / "prometheus").symlink_to(plugin)
    (folder / "tmp").mkdir()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)


def _job_manager(
    folder: Path, flink: Path, wrapper: tuple[str, ...], uid: int
) -> subprocess.Popen[bytes]:
    return launch(
        folder,
        flink,
        "jm",
        wrapper,
        ("-Xmx256m",),
        "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
        (
            *("--configDir", f"{folder}/conf", "-D", f"web.tmpdir={folder}"),
            *("-D", "jobmanager.memory.off-heap.size=64m"),
        ),
        uid,
    )


def launch(
    folder: Path,
    flink: Path,
    name: str,
    wrapper: tuple[str, ...],
    options: tuple[str, ...],
    main: str,
    arguments: tuple[str, ...],
    uid: int = 0,
    jars: Sequence[Path] = (),
) -> subprocess.Popen[bytes]:
    """A Java machine. If every wrapper replaces itself, the pid returned is its own.

    jars: on its class path, besides Flink's.
    uid: its user, who may read all files all the same: the jars may lie where only root goes.
    """
    ready = archive(name[:2])
    sharing: tuple[str, ...] = ()
    if ready.exists():
        sharing = (f"-XX:SharedArchiveFile={ready}",)
    elif name in ("jm", "tm1") and SLOWER == 1:
        sharing = (f"{LEAVE}{ready}.{os.getpid()}",)
    class_path = ":".join(map(str, [*sorted((flink / "lib").glob("*.jar")), *jars]))  # as archived
    other = (
        *("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"),
        *("--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--pdeathsig=KILL", "--"),
    )
    command = (
        *("setpriv", "--pdeathsig", "KILL", "--"),
        *("prlimit", f"--cpu={CPU_LIMIT_S}", "--"),
        *wrapper,
        *(other if uid else ()),
        *JAVA,
        *sharing,
        *options,
        f"-Djava.io.tmpdir={folder}/tmp",  # what is killed leaves its folders there
        f"-Dlog4j.configurationFile={folder}/conf/log4j.properties",
        *("-cp", class_path, main, *arguments),
    )
    environment = {
        "PATH": os.environ["PATH"],
        "FLINK_CONF_DIR": f"{folder}/conf",
        "FLINK_PLUGINS_DIR": f"{folder}/plugins",
        "FLINK_LIB_DIR": f"{flink}/lib",
    }
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
        )


def _leave(process: subprocess.Popen[bytes]) -> None:
    """Let it write its classes, if it was started to do so."""
    words = process.args if isinstance(process.args, tuple) else ()
    for word in map(str, words):
        if word.startswith(LEAVE):
            part = Path(word.removeprefix(LEAVE))
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            if process.returncode == 128 + signal.SIGTERM and part.exists():
                part.replace(part.with_suffix(""))
            part.unlink(missing_ok=True)


def _is_java(pid: int) -> bool:
    """True once all wrappers have replaced themselves."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"java\0")


def _tail(folder: Path) -> str:
    return "\n".join(log.read_text()[-2000:] for log in folder.glob("*.log"))
