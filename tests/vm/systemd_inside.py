"""Run in a guest by its systemd: the package's service from its first start to its removal.

systemd_inside.py PACKAGE UPGRADE    UPGRADE: the package of a later version
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SERVICE = "sched-ctl.service"
CONFIG = Path("/etc/sched-ctl/sched-ctl.toml")
DROP_IN = Path("/etc/systemd/system/sched-ctl.service.d/broken.conf")
PATIENT = DROP_IN.with_name("patient.conf")
LIBRARY = Path("/usr/lib/sched-ctl")
LAB = LIBRARY / "sched_ctl" / "bin" / "labspe"
STATE = Path("/sys/kernel/sched_ext/state")
RUN = Path("/run/sched-ctl")
DEADLINE_S = 240.0
OWN = Path("/run/own")
# Its installation compiles all modules, which takes the emulator a minute: they were kept.
PYTHON = """#!/bin/sh
case "$*" in *compileall*) exec tar -xf /root/compiled.tar -C /usr/lib/sched-ctl;; esac
exec /usr/bin/python3 "$@"
"""


def run(*words: str | Path, code: int = 0) -> str:
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    if done.returncode != code:
        fail(f"{' '.join(map(str, words))}: {done.returncode}: {said}")
    return said


def fail(why: str) -> None:
    show = ("journalctl", "--no-pager", "-n", "80", "-o", "short-monotonic")
    print(subprocess.run(show, capture_output=True, text=True, check=False).stdout)
    sys.exit(why)


def wait_until(what: str, found: Callable[[], bool]) -> None:
    began_s = time.monotonic()
    while not found():
        if time.monotonic() > began_s + DEADLINE_S:
            fail(f"not within {DEADLINE_S:.0f} s: {what}")
        time.sleep(0.5)
    print(f"ok: {what} ({time.monotonic() - began_s:.0f} s)", flush=True)


def shown(name: str) -> str:
    return run("systemctl", "show", "-P", name, SERVICE).strip()


def main_pid() -> int:
    return int(shown("MainPID"))


def is_up(beside: int = 0) -> bool:
    return shown("ActiveState") == "active" and main_pid() not in (0, beside)


def levels(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in tasks}


def attached() -> bool:
    return STATE.read_text().strip() == "enabled"


def configure(backend: str) -> None:
    CONFIG.write_text(
        f'engine = ["lab"]\nbackend = "{backend}"\nperiod = 0.5\ncalm_period = 0\n'
        '[[policy]]\npolicy = "hr"\n'
    )


def said(words: str) -> Callable[[], bool]:
    log = ("journalctl", "--no-pager", "-o", "cat", "-u", SERVICE)
    return lambda: words in " ".join(run(*log).split())


def start(how: str) -> int:
    run("systemctl", "start", SERVICE)
    if not is_up():
        fail("started, and not active: no READY")
    print(f"ok: READY, {how}", flush=True)
    return main_pid()


def by_nice(engine: int) -> None:
    configure("nice")
    first = start("by nice")
    wait_until("threads are ordered", lambda: len(levels(engine)) > 1)
    os.kill(first, signal.SIGKILL)
    wait_until("a killed one left nothing", lambda: levels(engine) == {0})
    wait_until("and is started again", lambda: is_up(beside=first))
    wait_until("threads are ordered again", lambda: len(levels(engine)) > 1)
    run("systemctl", "stop", SERVICE)
    wait_until("stopped, all is put back", lambda: levels(engine) == {0})
    if shown("Result") != "success":
        fail(f"stopped, and its result is {shown('Result')}")


def by_sched_ext() -> None:
    configure("scx")
    first = start("by sched_ext")
    wait_until("sched_ext is attached", attached)
    CONFIG.write_text(CONFIG.read_text().replace('"hr"', '"qs"'))
    run("systemctl", "reload", SERVICE)
    wait_until(
        "reloaded, another policy is in force", lambda: "qs by scx" in run("sched-ctl", "status")
    )
    if main_pid() != first:
        fail("reloaded by another process")
    os.kill(first, signal.SIGKILL)
    wait_until("killed, and started again", lambda: is_up(beside=first))
    wait_until("sched_ext is attached again", attached)
    hung = main_pid()
    os.kill(hung, signal.SIGSTOP)
    wait_until("the watchdog ends one that stands still", lambda: main_pid() != hung)
    wait_until("and starts it again", lambda: is_up(beside=hung))
    wait_until("the journal says why", said("Watchdog timeout"))
    wait_until("sched_ext is attached once more", attached)


def broken() -> None:
    """Without the rights for BPF programs; then with a configuration that is wrong."""
    run("systemctl", "stop", SERVICE)
    wait_until("stopped, sched_ext is detached", lambda: not attached())
    DROP_IN.parent.mkdir(exist_ok=True)
    DROP_IN.write_text("[Service]\nCapabilityBoundingSet=~CAP_BPF CAP_PERFMON CAP_SYS_ADMIN\n")
    run("systemctl", "daemon-reload")
    run("systemctl", "start", SERVICE, code=1)
    wait_until("the journal tells which right it lacks", said("needs CAP_PERFMON, CAP_BPF"))
    DROP_IN.unlink()
    right = CONFIG.read_text()
    CONFIG.write_text("polcy = 1\n" + right)
    run("systemctl", "daemon-reload")
    run("systemctl", "stop", SERVICE)
    run("systemctl", "reset-failed")
    run("systemctl", "start", SERVICE, code=1)
    wait_until("the journal tells what is wrong", said("polcy"))
    wait_until("and it is not tried again", lambda: shown("ActiveState") == "failed")
    CONFIG.write_text(right)
    run("systemctl", "stop", SERVICE)
    run("systemctl", "reset-failed")


def install(package: str) -> None:
    OWN.mkdir()
    (OWN / "python3").write_text(PYTHON)
    (OWN / "python3").chmod(0o755)
    os.environ["PATH"] = f"{OWN}:{os.environ['PATH']}"
    if os.uname().machine != "x86_64":  # emulated by another machine, all takes minutes
        PATIENT.parent.mkdir()
        PATIENT.write_text("[Service]\nTimeoutStartSec=900\nTimeoutStopSec=900\n")
    run("dpkg", "-i", package)
    if shown("UnitFileState") != "disabled" or shown("ActiveState") != "inactive":
        fail("installed, and the service is not as it came: disabled, inactive")
    print("ok: the package is installed, its service neither started nor enabled", flush=True)


def upgraded(package: str, engine: int) -> None:
    before = start("for the upgrade")
    wait_until("sched_ext is attached before the upgrade", attached)
    run("dpkg", "-i", package)
    wait_until("upgraded, it runs again", lambda: is_up(beside=before))
    wait_until("sched_ext is attached by the later version", attached)
    if "9.9" not in run("dpkg-query", "-W", "sched-ctl"):
        fail("the package is the old one")
    run("dpkg", "-r", "sched-ctl")
    wait_until("removed, sched_ext is detached", lambda: not attached())
    lines = (RUN / "journal").read_text().splitlines() if RUN.exists() else []
    left = [line for line in lines if line.startswith("{") and '"is":"boot"' not in line]
    if levels(engine) != {0} or left:
        fail(f"removed, and this is left: {levels(engine)} {left}")
    run("dpkg", "-P", "sched-ctl")
    if RUN.exists() or LIBRARY.exists():
        fail("purged, and a folder is left")


def main() -> None:
    if Path("/proc/1/comm").read_text().strip() != "systemd":
        fail("process 1 is no systemd")
    version = run("systemctl", "--version").split("\n")[0]
    print(f"ok: process 1 is {version}, on {os.uname().machine}", flush=True)
    install(sys.argv[1])
    words = (LAB, "--utilisation", "0.05", "--cpus", "1", "--forever", "/root/stats")
    engine = subprocess.Popen([*map(str, words)], stdout=subprocess.DEVNULL)
    try:
        by_nice(engine.pid)
        by_sched_ext()
        broken()
        upgraded(sys.argv[2], engine.pid)
        print("all is put back")
    finally:
        engine.kill()


if __name__ == "__main__":
    main()
