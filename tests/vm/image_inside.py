"""Run in a guest: two containers of the image, an engine in one and its controller in the other.

image_inside.py ROOT FLAGS    ROOT: of a container; the guest may write to it. FLAGS: what podman is
to give the controller in place of the DaemonSet, as JSON

The engine is a pod of Kubernetes as far as its cgroup and the kubelet's folder of its log go.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sched_ctl.kernel import containers

OWN = Path("/tmp/own")  # the guest's; nothing of the host can be written to
STORAGE = Path("/var/lib/containers")
PODMAN = (
    *("podman", "--root", STORAGE / "storage" if STORAGE.is_dir() else OWN / "root"),
    *("--runroot", OWN / "run", "--storage-driver", "vfs"),
    *("--cgroup-manager", "cgroupfs", "--log-level", "error"),
)
POD = "0f7c6f1e-9d0a-4c57-8d3e-5a1b2c3d4e5f"
PARENT = f"/kubepods/burstable/pod{POD}"
POD_LOGS, CONTAINER_LOGS = Path("/var/log/pods"), Path("/var/log/containers")
OF_SCHED_EXT = {"--cap-add=BPF", "--cap-add=PERFMON", "--cap-add=SYS_RESOURCE"}
RUN = Path("/run/sched-ctl")
STATE = Path("/sys/kernel/sched_ext/state")
DEADLINE_S = 300.0


def podman(*words: str | Path) -> str:
    done = subprocess.run(
        [*PODMAN, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"podman {shlex.join(map(str, words))}: {done.stdout}{done.stderr}")
    return done.stdout


def wait_until(what: str, found: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not found():
        if time.monotonic() > end:
            print(podman("logs", "controller"))
            sys.exit(f"not within {DEADLINE_S:.0f} s: {what}")
        time.sleep(0.5)
    print("ok:", what, flush=True)


def nice_values(pid: int) -> set[int]:
    return {
        os.getpriority(os.PRIO_PROCESS, int(task.name))
        for task in Path(f"/proc/{pid}/task").iterdir()
    }


def engine() -> int:
    """Its process, as the guest sees it."""
    found: list[int] = []

    def look() -> bool:
        for comm in Path("/proc").glob("[0-9]*/comm"):
            if comm.read_text().strip() == "labspe" and len(list(comm.parent.glob("task/*"))) > 10:
                found.append(int(comm.parent.name))
        return bool(found)

    wait_until("the engine runs in a container of its own", look)
    return found[0]


def load(root: str, pid: int, rights: Sequence[str], *words: str) -> None:
    podman(
        *("run", "-d", "--replace", "--name=controller", "--network=none", *rights),
        *("--rootfs", root),
        *("load", "--engine", f"kernel:{pid}", "--policy", "pod:ingest/*=random", *words),
    )


def stop() -> None:
    podman("stop", "-t", "60", "controller")


def group_of(pid: int) -> Path:
    line = Path(f"/proc/{pid}/cgroup").read_text().strip()
    return Path("/sys/fs/cgroup", line.removeprefix("0::/"))


def of_podman(root: str) -> None:
    """The name that podman gave a container."""
    podman("run", "-d", "--name=cameras", "--network=none", "--rootfs", root, "sleep", "infinity")
    pid = int(podman("inspect", "--format", "{{.State.Pid}}", "cameras"))
    found = containers.of(pid)
    assert found is not None and len(found.id) == 64, (found, group_of(pid))
    assert found.names == ("container:cameras",) or not STORAGE.is_dir(), found
    print("ok: podman's name of a container is known", flush=True)
    podman("rm", "-f", "-t", "0", "cameras")


def by_nice(root: str, pid: int, least: Sequence[str]) -> None:
    load(root, pid, least, "--backend", "nice")
    wait_until(
        "without rights for sched_ext nice values are set", lambda: len(nice_values(pid)) > 1
    )
    said = podman("exec", "controller", "sched-ctl", "status")
    assert f"kernel:{pid}" in said and "in pod:ingest/etl-0/lab" in said, said
    podman("kill", "-s", "KILL", "controller")
    podman("wait", "controller")
    assert len(nice_values(pid)) > 1
    restore = ("--network=none", *least, "--entrypoint=sched-ctl", "--rootfs", root, "restore")
    podman("run", "--rm", *restore)
    wait_until("what a killed one left is put back", lambda: nice_values(pid) == {0})


def by_sched_ext(root: str, pid: int, rights: Sequence[str]) -> None:
    load(root, pid, rights, "--backend", "scx", "--users", "pod:ingest/*")
    wait_until(
        "with its rights sched_ext is attached", lambda: STATE.read_text().strip() == "enabled"
    )
    stop()
    wait_until("and detached", lambda: STATE.read_text().strip() == "disabled")


def main(root: str, flags: Sequence[str]) -> None:
    for folder in (Path("/etc/containers/networks"), STORAGE, Path("/var/log")):
        if folder.is_dir():
            subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
    for folder in (RUN, CONTAINER_LOGS, POD_LOGS / f"ingest_etl-0_{POD}" / "lab"):
        folder.mkdir(parents=True)
    of_podman(root)
    # In real time what it computes costs this machine as much, and its pass does not go by it.
    lab = ("sched-ctl", "lab", "mixed", "--utilisation", "0.1", "--cpus", "1", "--forever")
    inside = ("--network=none", "--read-only", f"--cgroup-parent={PARENT}")
    podman("run", "-d", "--name=engine", *inside, "--rootfs", root, *lab)
    pid = engine()
    assert nice_values(pid) == {0}
    least = [flag for flag in flags if flag not in OF_SCHED_EXT]
    by_nice(root, pid, least)
    by_sched_ext(root, pid, flags)
    podman("rm", "-f", "-t", "0", "engine")
    print("all is put back")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
