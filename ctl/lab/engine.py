"""Running the lab engine `labspe` as a child: for the demo, the benchmarks and the tests."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import sched_ctl
from sched_ctl.errors import EngineError, UserError
from sched_ctl.lab.file import LabFile
from sched_ctl.workloads import synthetic, workload
from sched_ctl.workloads.resolved import resolved_file

__all__ = ["PROGRAM", "Engine", "become", "check_name", "handed", "running", "workload_file"]

HERE = Path(sched_ctl.__file__).parent
PROGRAM = HERE / "bin" / "labspe"
# Where workload files lie: in a checkout, or where a package put them
WORKLOADS = (HERE.parent / "bench" / "workloads", HERE / "bin" / "workloads")
START_S = 60.0  # it calibrates its work first, which takes a while on a busy machine


class Engine:
    """A running labspe."""

    def __init__(self, process: "subprocess.Popen[str]", results: Path) -> None:
        self.process = process
        self._results = results

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def name(self) -> str:
        return f"lab:{self.pid}"

    @property
    def shared_memory(self) -> Path:
        return Path(f"/dev/shm/labspe.{self.pid}")

    def results(self) -> bytes:
        """What it measured, as JSON. Waits for its end; raises UserError if it failed."""
        output, _ = self.process.communicate()
        if self.process.returncode != 0:
            raise UserError(f"the lab engine failed: {output.strip()}")
        return self._results.read_bytes()


@contextmanager
def handed(workload: bytes) -> Iterator[tuple[int, str]]:
    """A resolved workload for labspe: a descriptor to be inherited, and its path in the child."""
    fd = os.memfd_create("workload")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(workload)
        yield fd, f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _built() -> None:
    if not PROGRAM.exists():
        raise UserError(
            "the lab engine is not built",
            "make -C engine builds it, with a C compiler; ./dev setup demo does both",
        )


def options() -> list[tuple[str, str]]:
    """The engine's own options and what they mean; none where it is not built."""
    try:
        told = subprocess.run(
            [PROGRAM, "--help"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    except OSError:
        return []
    found = (re.match(r"  (--\S+(?: \S+)?)  +(\S.*)", line) for line in told.splitlines())
    return [(match[1], match[2]) for match in found if match and match[1] != "--help"]


def become(workload: bytes, arguments: Sequence[str]) -> NoReturn:
    """Run labspe in place of this process. workload: resolved."""
    _built()
    with handed(workload) as (fd, path):
        os.set_inheritable(fd, True)
        os.execv(PROGRAM, ["labspe", *arguments, path])


@contextmanager
def running(
    workload_path: Path, arguments: Sequence[str] = (), cpus: Sequence[int] | None = None
) -> Iterator[Engine]:
    """Start labspe and wait until it can be polled; end it, whatever happens, with the body.

    arguments: more of its command line, see `labspe --help`. cpus: those it may run on.
    """
    _built()
    with (
        handed(resolved_file(workload_path)) as (fd, path),
        tempfile.TemporaryDirectory(prefix="sched-ctl-") as folder,
    ):
        results = Path(folder, "results.json")
        command = [str(PROGRAM), "--results", str(results), *arguments, path]
        if cpus is not None:
            taskset = shutil.which("taskset")
            if taskset is None:
                raise UserError("taskset is missing", "apt-get install util-linux")
            command = [taskset, "-c", ",".join(map(str, cpus)), *command]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"},
            # Ctrl-C is for us: we then end it in order.
            process_group=0,
            pass_fds=[fd],
        )
        engine = Engine(process, results)
        try:
            _wait_until_ready(engine)
            yield engine
        finally:
            _end(process)
            engine.shared_memory.unlink(missing_ok=True)


def _wait_until_ready(engine: Engine) -> None:
    end_s = time.monotonic() + START_S
    while not _runs(engine.shared_memory):
        if engine.process.poll() is not None:
            output, _ = engine.process.communicate()
            raise UserError(f"the lab engine did not start: {output.strip()}")
        if time.monotonic() > end_s:
            raise UserError(f"the lab engine did not start within {START_S:g} s")
        time.sleep(0.005)


def _runs(path: Path) -> bool:
    """True once all its threads are there."""
    try:
        file = LabFile(path)
    except EngineError:
        return False
    try:
        return file["state"] > 0
    finally:
        file.close()


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def workload_file(name: str, seed: int = 1) -> Iterator[Path]:
    """The file of a workload that is named, or given as a file. Raises UserError.

    syn is made from the seed: its costs and selectivities are drawn.
    """
    check_name(name)
    if _is_file(name):
        workload.load(name)  # its errors name line and field
        yield Path(name)
        return
    if name == "syn":
        with tempfile.TemporaryDirectory(prefix="sched-ctl-") as folder:
            path = Path(folder, "syn.graph")
            path.write_text(workload.dump(synthetic.syn(seed)))
            yield path
        return
    yield _known()[name]


def check_name(name: str) -> None:
    """Raises UserError for a name that no workload has; a file may have any."""
    known = {"syn", *_known()}
    if not _is_file(name) and name not in known:
        raise UserError(f"there is no workload {name!r}", f"one of: {', '.join(sorted(known))}")


def _is_file(name: str) -> bool:
    return "/" in name or name.endswith(".graph")


def _known() -> dict[str, Path]:
    return {path.stem: path for folder in WORKLOADS for path in sorted(folder.glob("*.graph"))}
