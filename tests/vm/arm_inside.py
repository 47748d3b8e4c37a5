"""Run in a guest for arm64: install the package there, and use it.

arm_inside.py PACKAGE
"""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = "/usr/lib/sched-ctl"
TESTS = (HERE.parent, HERE.parent / "helpers")
OWN = Path("/run/own")
# Its installation compiles all modules, which takes the emulator a minute.
PYTHON = """#!/bin/sh
case "$*" in *compileall*) exit 0;; esac
exec /usr/bin/python3 "$@"
"""
CHECKS = {
    "guest_backend.py": ("check_probe", "check_order_and_restore"),
    "guest_trace.py": (
        "check_waits_agree_with_schedstat",
        "check_a_timer_s_wake_ups_are_from_outside",
    ),
    "arm_inside.py": ("check_numbers_of_system_calls", "check_taskstats"),
}
TIMEOUT_S = 9000  # of the guest's clock, which leaps while files are waited for


def output(words: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(package: str) -> None:
    OWN.mkdir()
    (OWN / "python3").write_text(PYTHON)
    (OWN / "python3").chmod(0o755)
    # In memory of the guest's own: two thousand files through virtiofs take a minute.
    Path(LIBRARY).mkdir(exist_ok=True)
    output(["mount", "-t", "tmpfs", "tmpfs", LIBRARY])
    # dpkg has no lists of the files of what was only unpacked, and says so of each package.
    path = f"{OWN}:{os.environ['PATH']}"
    output(["dpkg", "--force-unsafe-io", "-i", package], os.environ | {"PATH": path})
    assert output(["sched-ctl", "--version"]).startswith("sched-ctl ")
    lab = f"{LIBRARY}/sched_ctl/bin/labspe"
    assert "usage: labspe" in output([lab, "--help"])
    print("ok: the package is installed, and its commands run", flush=True)


def check_numbers_of_system_calls() -> None:
    """What threads sleep in, and that their attributes are read and set."""
    from sched_ctl.kernel import sched, sleeping
    from support import wait_until

    assert os.uname().machine == "aarch64"
    reader, _writer = os.pipe()
    ways: list[tuple[Callable[[], object], str]] = [
        (lambda: time.sleep(1e6), sleeping.TIMER),
        (lambda: os.read(reader, 1), sleeping.PIPE),
        (lambda: subprocess.run(["sleep", "1000"], check=False), sleeping.CHILD),
    ]
    for sleeps, what in ways:
        pid = os.fork()
        if pid == 0:
            sleeps()
            os._exit(0)
        try:
            wait_until(functools.partial(sleeps_for, pid, what), 60)
            sched.set_nice(pid, 7)
            assert os.getpriority(os.PRIO_PROCESS, pid) == 7
            assert sched.get_attributes(pid).nice == 7
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def sleeps_for(pid: int, what: str) -> bool:
    from sched_ctl.kernel import sleeping

    sleep = sleeping.where(pid, pid)
    return sleep is not None and sleep.what == what


def check_taskstats() -> None:
    from sched_ctl.kernel import taskstats

    taskstats.SWITCH.write_text("1")
    with taskstats.TaskStats() as stats:
        mine = stats.of(os.getpid())
    print(mine)
    assert mine is not None and mine.pid == os.getpid() and mine.version > 15


def main() -> None:
    install(sys.argv[1])
    words = [
        word
        for name, checks in CHECKS.items()
        for check in checks
        for word in (str(HERE / name), check, str(TIMEOUT_S))
    ]
    sys.path[:0] = [LIBRARY, *map(str, TESTS)]
    sys.argv[1:] = words
    from vm import inside

    os.environ[inside.EXACT] = "1"
    sys.exit(inside.main())


if __name__ == "__main__":
    main()
