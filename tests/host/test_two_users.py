"""What a user's engine says, tried with a real one under another uid: it moves nobody else."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from labs import SOON_S, WORKLOADS, loaded, nices, scheduled, spe

from sched_ctl.drivers import Target
from sched_ctl.drivers.lab import driver as lab_driver
from sched_ctl.kernel import procfs
from sched_ctl.lab import engine as lab
from sched_ctl.lab import file as lab_file
from sched_ctl.workloads.resolved import resolved_file
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root", "cc")]

OTHER = 20001  # a uid that nobody here has


@contextmanager
def engine_of(uid: int, workload: str, *arguments: str) -> Iterator[Target]:
    """A lab engine that another user runs."""
    folder = Path("/dev/shm") / f"sched-ctl-test-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        shutil.copy(lab.PROGRAM, folder / "labspe")
        (folder / workload).write_bytes(resolved_file(WORKLOADS / f"{workload}.graph"))
        process = subprocess.Popen(
            # On one CPU: what it overloads is not to be the controller's, too.
            [
                "taskset",
                "-c",
                str(max(os.sched_getaffinity(0))),
                folder / "labspe",
                *arguments,
                "--duration",
                "120",
                folder / workload,
            ],
            user=uid,
            group=uid,
            extra_groups=(),
            stderr=subprocess.DEVNULL,
        )
        target = Target("lab", str(process.pid), process.pid)
        try:
            wait_until(lambda: target in lab_driver.find(), SOON_S)
            yield target
        finally:
            process.kill()
            process.wait()
            lab_file.path_of(target.address).unlink(missing_ok=True)
    finally:
        shutil.rmtree(folder)


def levels(pid: int) -> list[int]:
    found = [procfs.stat(pid, tid) for tid in procfs.tids(pid)]
    return sorted(stat.nice for stat in found if stat is not None)


def test_a_flood_in_one_users_queues_moves_no_thread_of_root(tmp_path: Path) -> None:
    """Under `qs` the longest queue is first. The other user's are longer than any of root's.

    Ordered together, all of root's operators would have the worst value of the range.
    """
    flood = ("--utilisation", "2", "--cpus", "1")
    run_dir = tmp_path / "run"
    with spe() as engine, engine_of(OTHER, "stats", *flood) as other:
        assert other.pid is not None
        pid = other.pid
        flags = (
            *("--policy", "qs", "--backend", "nice", "--engine", other.engine),
            *("--backend-option", "nice.best=0"),  # the best value is 0, whatever they weigh
        )
        with loaded(run_dir, *flags, engine=engine):
            scheduled(run_dir, engine)
            wait_until(lambda: max(levels(pid)) > 0, SOON_S, "the other's are ordered")
            assert min(levels(pid)) >= 0  # and not above their own nice

            def spread() -> bool:
                values = [nice for nice, _ in root(engine)]
                return min(values) == 0 and max(values) > 0

            wait_until(spread, SOON_S, "root's own order")
            for _ in range(20):  # the most urgent of root's has the best value, with each pass
                wait_until(lambda: min(nice for nice, _ in root(engine)) == 0, 2.0)
        assert set(levels(pid)) == {0}
        assert {nice for nice, _ in nices(engine).values()} == {0}


def root(engine: lab.Engine) -> list[tuple[int, int]]:
    """Nice and policy of the threads that run operators: the others keep what they have."""
    return [now for name, now in nices(engine).items() if name not in ("labspe", "sources")]
