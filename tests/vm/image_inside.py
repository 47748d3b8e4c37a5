"""Run in a guest: two containers of the image, an engine in one and its controller in the other.

image_inside.py ROOT    of a container; the guest may write to it
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

OWN = Path("/tmp/own")  # the guest's; nothing of the host can be written to
PODMAN = (
    *("podman", "--root", OWN / "root", "--runroot", OWN / "run", "--storage-driver", "vfs"),
    *("--cgroup-manager", "cgroupfs", "--log-level", "error"),
)
RUN = OWN / "sched-ctl"
LEAST = ("SYS_NICE", "SYS_PTRACE", "DAC_READ_SEARCH", "DAC_OVERRIDE", "KILL")
SEEN = ("--pid=host", "--network=host", "--cgroupns=host", "-v", "/sys/fs/cgroup:/sys/fs/cgroup")
STATE = Path("/sys/kernel/sched_ext/state")
DEADLINE_S = 120.0


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


def load(root: str, pid: int, rights: tuple[str, ...], backend: str) -> None:
    words = ("load", "--engine", f"kernel:{pid}", "--policy", "random", "--backend", backend)
    mounts = ("-v", f"{RUN}:/run/sched-ctl", "--read-only", "--rootfs", root)
    podman(
        "run", "-d", "--replace", "--name=controller", *rights, *SEEN, *mounts, "sched-ctl", *words
    )


def stop() -> None:
    podman("stop", "-t", "60", "controller")


def main(root: str) -> None:
    for folder in ("/etc/containers/networks", "/var/lib/containers"):
        if Path(folder).is_dir():
            subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
    RUN.mkdir(parents=True)
    lab = ("sched-ctl", "lab", "mixed", "--utilisation", "0.9", "--cpus", "1", "--forever")
    podman("run", "-d", "--name=engine", "--network=none", "--read-only", "--rootfs", root, *lab)
    pid = engine()
    assert nice_values(pid) == {0}

    least = ("--cap-drop=all", *(f"--cap-add={right}" for right in LEAST))
    load(root, pid, least, "nice")
    wait_until("with the least rights nice values are set", lambda: len(nice_values(pid)) > 1)
    said = podman("exec", "controller", "sched-ctl", "status")
    assert f"kernel:{pid}" in said, said
    podman("kill", "-s", "KILL", "controller")
    podman("wait", "controller")
    assert len(nice_values(pid)) > 1
    mounts = ("-v", f"{RUN}:/run/sched-ctl", "--read-only", "--rootfs", root)
    podman("run", "--rm", *least, *SEEN, *mounts, "sched-ctl", "restore")
    wait_until("what a killed one left is put back", lambda: nice_values(pid) == {0})

    load(root, pid, ("--privileged",), "scx")
    wait_until("privileged, sched_ext is attached", lambda: STATE.read_text().strip() == "enabled")
    stop()
    wait_until("and detached", lambda: STATE.read_text().strip() == "disabled")
    print("all is put back")


if __name__ == "__main__":
    main(sys.argv[1])
