"""What a user with a local account forges moves nobody else's threads, and blinds nobody."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from labs import SOON_S, loaded, nices, scheduled, spe

from sched_ctl.kernel import procfs
from sched_ctl.lab import engine as lab
from sched_ctl.lab.file import LabFile, path_of
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root", "cc")]

OTHER = 20001  # a uid that nobody here has
# Writes what it is handed to /dev/shm under its own number, and stays.
FORGER = """
import os, struct, sys
data = bytearray(sys.stdin.buffer.read(int(sys.argv[1])))
path = f"/dev/shm/labspe.{os.getpid()}"
if sys.argv[2] != "as it is":
    stat = open("/proc/self/stat").read().rpartition(")")[2].split()
    struct.pack_into("=Q", data, int(sys.argv[2]), os.getpid())
    struct.pack_into("=Q", data, int(sys.argv[3]), int(stat[19]))
with open(path, "wb") as file:
    file.write(data)
print("written", flush=True)
sys.stdin.buffer.read()
"""


@contextmanager
def forged(engine: lab.Engine, *, own_process: bool) -> Iterator[str]:
    """Another user's copy of the engine's file, under the number of a process of his.

    own_process: and it names that process, but the threads of the engine.
    """
    data = engine.shared_memory.read_bytes()
    file = LabFile(engine.shared_memory)
    places = [str(file.offset("pid")), str(file.offset("start_time"))]
    file.close()
    process = subprocess.Popen(
        [sys.executable, "-c", FORGER, str(len(data)), *(places if own_process else ["as it is"])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=OTHER,
        group=OTHER,
        extra_groups=(),
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(data)
        process.stdin.flush()
        assert process.stdout.readline() == b"written\n"
        assert procfs.owner(process.pid) == OTHER
        yield f"lab:{process.pid}"
    finally:
        process.kill()
        process.communicate()
        path_of(str(process.pid)).unlink(missing_ok=True)


@pytest.mark.parametrize("own_process", [False, True], ids=["copied", "renamed"])
def test_a_forged_file_moves_no_thread_of_root(own_process: bool, tmp_path: Path) -> None:
    """The forger's word is read before and beside that of root's engine, which is ordered last."""
    run_dir = tmp_path / "run"
    options = ("--policy", "random", "--backend", "nice", "--backend-option", "nice.best=5")
    with spe() as victim, spe() as engine, forged(victim, own_process=own_process) as name:
        before = nices(victim)
        with loaded(run_dir, *options, "--engine", name, engine=engine):
            scheduled(run_dir, engine)
            wait_until(lambda: max(n for n, _ in nices(engine).values()) >= 5, SOON_S, "root's")
            assert nices(victim) == before


def test_an_engine_in_a_cgroup_with_a_strange_name_is_ordered(tmp_path: Path) -> None:
    """Bytes that are no text, a space, and what the kernel says of cgroups that are gone."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    mounted = [Path(words[1]) for words in mounts if words[2] == "cgroup2"]
    if not mounted:
        pytest.skip("needs cgroup2")
    group = Path(os.fsdecode(os.fsencode(mounted[0]) + b"/sched \xff:0:: (deleted)"))
    run_dir = tmp_path / "run"
    group.mkdir()
    try:
        with spe() as engine:
            (group / "cgroup.procs").write_text(str(engine.pid))
            before = nices(engine)
            with loaded(run_dir, "--policy", "hr", "--backend", "nice", engine=engine):
                scheduled(run_dir, engine)
                wait_until(lambda: nices(engine) != before, SOON_S, "it is ordered")
            assert nices(engine) == before
    finally:
        with suppress(OSError):
            group.rmdir()
        assert not group.exists()
