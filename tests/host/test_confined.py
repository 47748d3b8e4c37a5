"""The unit, run by a real systemd: process 1 of namespaces of its own, with cgroups of its own.

Nothing but what the unit allows is left to the controller, so a right that is missing shows.
"""

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from labs import SOON_S, WORKLOADS

from sched_ctl.kernel import procfs
from sched_ctl.lab import engine as lab
from sched_ctl.workloads.resolved import resolved_file
from support import wait_until

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
SYSTEMD = Path("/usr/lib/systemd/systemd")
GROUPS = Path("/sys/fs/cgroup")
OTHER = 20001  # a uid that nobody here has
# linux/capability.h: DAC_OVERRIDE, DAC_READ_SEARCH, KILL, SYS_PTRACE, SYS_NICE
NICE_ONLY = {1, 2, 5, 19, 23}
UNIT = NICE_ONLY | {24, 38, 39}  # SYS_RESOURCE, PERFMON, BPF
CONTAINERS = UNIT | {6, 7, 21}  # SETGID, SETUID, SYS_ADMIN
PROGRAM = Path(sys.prefix) / "bin" / "sched-ctl"
HIDDEN = ("/home", "/root", "/tmp", "/var/tmp")  # by ProtectHome and PrivateTmp

pytestmark = [
    pytest.mark.host,
    pytest.mark.needs("root", "cc"),
    pytest.mark.skipif(not SYSTEMD.exists(), reason="needs systemd"),
    pytest.mark.skipif(
        any(ROOT.is_relative_to(hidden) for hidden in HIDDEN),
        reason=f"the unit does not see {ROOT}: try a checkout outside {', '.join(HIDDEN)}",
    ),
]

# Becomes process 1. Its own cgroups alone are mounted: it makes some in each that it sees. What
# PrivateTmp makes for a service stays when all are killed: not in the machine's own folders.
BOOT = """
set -e
mount -t tmpfs -o mode=755 none /run
mkdir -p /run/systemd/system
umount -l {groups}
mount -t tmpfs -o mode=755 none {groups}
{mounts}
mount -o remount,ro {groups}
mount -t tmpfs -o mode=1777 none /dev/shm
mount -t tmpfs -o mode=755 none /var/log
mkdir /run/kept
mount --bind {folder} /run/kept
mount -t tmpfs -o mode=1777 none /tmp
mount -t tmpfs -o mode=1777 none /var/tmp
mkdir -p {folder}
mount --bind /run/kept {folder}
exec env -i container=test PATH=/usr/bin:/bin SYSTEMD_UNIT_PATH={units} \
    SYSTEMD_LOG_TARGET=console {systemd} --system --unit=test.target
"""
PLAIN = "[Unit]\nDefaultDependencies=no\n"
ENGINE = """
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/usr/bin/setpriv --reuid {uid} --regid {uid} --clear-groups -- \
    {folder}/labspe --utilisation 0.3 --cpus 1 --duration 120 {folder}/stats
"""
TARGET = PLAIN + "Wants=lab.service sched-ctl.service\n"
# What the test asks for: nothing here takes or gives a right.
OURS = """
[Service]
Environment=SCHED_CTL_MACHINE_LOCK=no OPENBLAS_NUM_THREADS=1
ExecStartPre=
ExecStart=
ExecStart={program} load --policy hr --calm-period 0 --period 0.2 --discover 0.5 \\
    --record /var/log/sched-ctl
StandardOutput=append:{log}
StandardError=append:{log}
Restart=no
"""


@contextmanager
def service(*settings: str, drop_in: str | None = None) -> Iterator[Path]:
    """A systemd that runs the unit, with a drop-in of ours, and an engine of a user."""
    folder = Path(tempfile.mkdtemp(prefix="sched-ctl-test-"))
    folder.chmod(0o755)
    own = f"sched-ctl-test-{os.getpid()}"
    mine = [GROUPS / name / own for name in ("systemd", "unified") if (GROUPS / name).is_dir()]
    mine = mine or [GROUPS / own]
    try:
        shutil.copy(lab.PROGRAM, folder / "labspe")
        (folder / "stats").write_bytes(resolved_file(WORKLOADS / "stats.graph"))
        units = folder / "units"
        drop_ins = units / "sched-ctl.service.d"
        drop_ins.mkdir(parents=True)
        for name in ("sysinit", "basic", "network", "shutdown", "umount"):
            (units / f"{name}.target").write_text(PLAIN)
        (units / "test.target").write_text(TARGET)
        (units / "lab.service").write_text(ENGINE.format(uid=OTHER, folder=folder))
        unit = (PACKAGING / "sched-ctl.service").read_text()
        (units / "sched-ctl.service").write_text(
            unit.replace("/usr/local/bin/sched-ctl", str(PROGRAM))
        )
        if drop_in is not None:
            shutil.copy(PACKAGING / drop_in, drop_ins)
        more = OURS.format(program=PROGRAM, log=folder / "log")
        (drop_ins / "test.conf").write_text("\n".join([more, *settings, ""]))
        for group in mine:
            group.mkdir()
        script = BOOT.format(
            groups=GROUPS,
            units=units,
            systemd=SYSTEMD,
            folder=folder,
            mounts="\n".join(map(mounted, mine)),
        )
        namespaces = ("--cgroup", "--pid", "--fork", "--mount", "--uts", "--ipc", "--mount-proc")
        process = subprocess.Popen(
            ["unshare", *namespaces, "--kill-child", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: join(mine),
        )
        try:
            yield folder
        finally:
            process.kill()
            process.wait()
            for group in mine:
                wait_until(functools.partial(removed, group), SOON_S, str(group))
            if (folder / "log").exists():
                print((folder / "log").read_text())
    finally:
        shutil.rmtree(folder)


def mounted(group: Path) -> str:
    """The command that mounts the hierarchy of a cgroup; seen from there, it is the root."""
    place = group.parent
    if place == GROUPS:
        return f"umount {GROUPS}; mount -t cgroup2 cgroup2 {GROUPS}"
    kind = "cgroup2" if place.name == "unified" else "cgroup -o none,name=systemd"
    return f"mkdir {place} && mount -t {kind} cgroup {place}"


def join(groups: Sequence[Path]) -> None:
    for group in groups:
        (group / "cgroup.procs").write_text("0")


def removed(group: Path) -> bool:
    for folder in sorted(group.rglob("*"), reverse=True):
        if folder.is_dir():
            with suppress(OSError):
                folder.rmdir()
    with suppress(FileNotFoundError, OSError):
        group.rmdir()
    return not group.exists()


def process_of(*words: str) -> int:
    """The first process whose command line has all of these words; 0: there is none."""
    for pid in procfs.pids():
        with suppress(OSError):
            found = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if set(words) <= set(found):
                return pid
    return 0


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines)


def levels(pid: int) -> set[int]:
    found = [procfs.stat(pid, tid) for tid in procfs.tids(pid)]
    return {stat.nice for stat in found if stat is not None}


@pytest.mark.parametrize(
    ("drop_in", "rights"),
    [(None, UNIT), ("nice-only.conf", NICE_ONLY), ("containers.conf", CONTAINERS)],
)
def test_the_service_works_with_just_its_rights(drop_in: str | None, rights: set[int]) -> None:
    with service(drop_in=drop_in) as folder:
        engine = wait_until(lambda: process_of(f"{folder}/labspe"), SOON_S, "the engine")
        controller = wait_until(lambda: process_of(str(PROGRAM), "load"), SOON_S, "the controller")
        wait_until(lambda: len(levels(engine)) > 2, SOON_S, "the user's threads are ordered")
        status = status_of(controller)
        possible = int(status_of(os.getpid())["CapBnd"], 16)  # this may be a container
        assert status["CapEff"] == status["CapBnd"]
        assert int(status["CapEff"], 16) == sum(1 << number for number in rights) & possible
        assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
        records = Path(f"/proc/{controller}/root/var/log/sched-ctl")
        wait_until(lambda: any(records.iterdir()), SOON_S, "what it sees is recorded")
        os.kill(controller, signal.SIGTERM)
        wait_until(lambda: levels(engine) == {0}, SOON_S, "put back")


def test_without_a_right_the_service_says_so() -> None:
    with service("CapabilityBoundingSet=~CAP_SYS_NICE", drop_in="nice-only.conf") as folder:
        engine = wait_until(lambda: process_of(f"{folder}/labspe"), SOON_S, "the engine")

        def said(words: str) -> Callable[[], bool]:
            log = folder / "log"
            return lambda: log.exists() and words in " ".join(log.read_text().split())

        wait_until(said("not permitted to lower a nice value"), SOON_S, "what is missing")
        assert levels(engine) == {0}
