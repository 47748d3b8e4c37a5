"""The controller as its user meets it: the commands, beside a running lab engine.

`sched-ctl load` is a process of its own, as in real life. The commands that look are run in forked
children of the check, to which the modules are known: starting Python takes an emulated guest five
seconds.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vm.inside import only_on, text_of
from vm.machine import wait_for

from sched_ctl import cli, show
from sched_ctl.cli import check as machine
from sched_ctl.config.files import load as load_settings
from sched_ctl.kernel import cgroup, procfs, sched, schedext
from sched_ctl.lab import engine as lab
from sched_ctl.plugins import drivers, registry
from sched_ctl.runfolder import RunFolder
from sched_ctl.service import session as loading
from sched_ctl.service import views
from support import wait_until

KERNELS = ("6.18", "7.3")
CPUS = 2
ICOUNT = True
ICOUNT_SHIFT = 2
TIMEOUT_S = 300

SOON_S = 120.0  # to start Python alone takes a busy emulated machine half a minute
RUN_DIR = Path("/run/sched-ctl")
UNIT = Path(__file__).parents[2] / "packaging" / "sched-ctl.service"
SERVICE = Path("/sys/fs/cgroup/engine.service")
# Two queries, so that "auto" has a choice; cheap, since an emulated CPU is slow.
WORKLOAD = """\
workload two base_cost_us=100
query one
op one0 cost=1 selectivity=1
op one1 cost=2 selectivity=0.5
op one2 cost=1 selectivity=1
edge one0 one1
edge one1 one2
source one0 rate=1 arrivals=poisson
query two
op two0 cost=1 selectivity=1
op two1 cost=4 selectivity=0.25
edge two0 two1
source two0 rate=1 arrivals=poisson
"""
OPERATORS = {"one0", "one1", "one2", "two0", "two1"}

# What the commands import when they need it: once, before the checks are forked.
IMPORTED = (loading, machine, registry.policies(), drivers.drivers(), views, show)
schedext.kernel_types()
show.table((), ())
load_settings()


BPF, SYS_NICE, SYS_ADMIN, NET_ADMIN = 39, 23, 21, 12  # linux/capability.h
State = dict[str, tuple[int, int, str]]


def state(engine: lab.Engine) -> State:
    """Thread name -> (scheduling policy, nice, cgroup)."""
    found = {}
    for tid in procfs.tids(engine.pid):
        stat = procfs.stat(engine.pid, tid)
        with suppress(OSError):
            group = text_of(f"/proc/{engine.pid}/task/{tid}/cgroup")
            if stat is not None:
                found[stat.name] = (stat.policy, stat.nice, group)
    return found


@contextmanager
def labspe() -> Iterator[lab.Engine]:
    """An engine that runs until the body ends, in a cgroup of its own, as a service would be."""
    cgroup.write(SERVICE.parent / "cgroup.subtree_control", "+cpu")
    SERVICE.mkdir(exist_ok=True)
    file = Path(tempfile.mkdtemp()) / "two.graph"
    file.write_text(WORKLOAD)
    # The time of a step of work is given: to measure it takes a quiet machine.
    load = ("--utilisation", "0.05", "--cpus", "1", "--step-ns", "20", "--forever")
    with lab.running(file, load) as engine:
        cgroup.write(SERVICE / "cgroup.procs", str(engine.pid))
        wait_until(lambda: OPERATORS | {"sources"} <= state(engine).keys(), SOON_S)
        try:
            yield engine
        finally:
            with suppress(OSError):  # of a check that failed
                cgroup.write(SERVICE.parent / "cgroup.procs", str(engine.pid))
                SERVICE.rmdir()
            cgroup.write(SERVICE.parent / "cgroup.subtree_control", "-cpu")


def confined() -> list[str]:
    """Gives a command no more rights than the unit does, and /proc/sys and /sys read-only.

    Process 1 of a guest is no systemd: tests/host/test_confined.py has the unit run by one.
    """
    found = re.findall(r"^CapabilityBoundingSet=(.+)$", UNIT.read_text(), re.MULTILINE)
    names = [name.removeprefix("CAP_").lower() for line in found for name in line.split()]
    kept = ",".join(["-all", *(f"+{name}" for name in names)])
    script = f"""\
set -e
mount --bind /proc/sys /proc/sys
for folder in /proc/sys /sys; do mount -o remount,ro,bind $folder; done
exec setpriv --bounding-set {kept} --inh-caps -all --no-new-privs -- "$@"
"""
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


class Load:
    """A running `sched-ctl load`, and what it has said so far."""

    def __init__(self, log: Path, prefix: Sequence[str], *arguments: str) -> None:
        self.log = log
        self.seen: dict[str, Any] = {}  # the last status that was asked for by `is_scheduling`
        command = [sys.executable, "-c", "from sched_ctl.cli import main; main()", "load"]
        with log.open("w") as stream:
            self.process = subprocess.Popen(
                [*prefix, *command, "--period", "0.5", "--race", "0", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(sched_ctl("status", "--json"))
        return answer

    def wait(self, condition: Callable[[], object], what: str) -> None:
        def alive() -> object:
            assert self.process.poll() is None, self.said
            return condition()

        try:
            wait_until(alive, SOON_S, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said}") from None

    def is_scheduling(self, backend: str) -> bool:
        # To ask takes an emulated CPU a second: first look at what costs nothing.
        attached = text_of("/sys/kernel/sched_ext/state") == "enabled"
        if attached != (backend == "scx") or not RunFolder(RUN_DIR).socket.exists():
            return False
        time.sleep(1)
        self.seen = self.status()
        [rule] = self.seen["policies"]
        return bool(
            rule["backend"] == backend and rule["threads"] == len(OPERATORS) and rule["passes"] > 3
        )


@contextmanager
def loaded(engine: lab.Engine, *arguments: str, prefix: Sequence[str] = ()) -> Iterator[Load]:
    load = Load(Path(tempfile.mkdtemp()) / "log", prefix, "--engine", engine.name, *arguments)
    try:
        yield load
    finally:
        if load.process.poll() is None:
            load.process.kill()
        load.process.wait()
        print(load.said)


def forked(arguments: tuple[str, ...], out: Path) -> int:
    """Pid of a child that is `sched-ctl ARGUMENTS` with its output in a file."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(fd, 1)
            os.dup2(fd, 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            sys.argv = ["sched-ctl", *arguments]
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return pid


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def sched_ctl(*arguments: str) -> str:
    """What the command prints; it must go well."""
    out = Path(tempfile.mkdtemp()) / "out"
    code = ended(forked(arguments, out))
    assert code == 0, (arguments, code, out.read_text())
    return out.read_text()


def check_what_the_machine_can_do() -> None:
    findings = sched_ctl("check", "--all")
    assert "will use sched_ext" in findings
    print(findings)
    assert re.search("✓ +sched_ext +full mode, by ", findings)
    assert "deadline server" in findings
    assert "scx_bpf_dsq_peek" in findings and "scx_bpf_now" in findings
    assert "ours is attached" not in findings
    assert re.search("scx.*auto takes", findings), findings


@only_on("7.3")
def check_what_load_shows_and_that_ctrl_c_restores() -> None:
    with labspe() as engine:
        before = state(engine)
        partial = schedext.server_share() is not None
        # By itself it would leave partial mode if Python keeps both CPUs busy.
        mode = ("--backend-option", "scx.mode=partial") if partial else ()
        with loaded(engine, *mode, prefix=confined()) as load:
            load.wait(lambda: load.is_scheduling("scx"), "scheduled by scx")
            assert_confined(load.process.pid)
            expected = sched.EXT if partial else before["one0"][0]
            assert {state(engine)[name][0] for name in OPERATORS} == {expected}

            shown = sched_ctl("status")
            print(shown)
            assert "balanced by scx (2 queries, order at each dispatch)" in shown
            assert engine.name in shown and "one " in shown and "two " in shown
            assert "balanced (2 queries" in load.said  # in the log as well
            assert f"attached in {'partial' if partial else 'full'} mode" in load.said

            def counted() -> bool:
                stats = json.loads(sched_ctl("stats", "--json"))
                return {row["operator"].rpartition("/")[2] for row in stats["threads"]} == (
                    OPERATORS
                ) and all(row["runs"] and row["age_by"] == "engine" for row in stats["threads"])

            load.wait(counted, "every operator was run by us, by the age that the engine tells")
            stats = json.loads(sched_ctl("stats", "--json"))
            for row in stats["threads"]:
                for key in ("queue", "age_ms", "waits_ms", "wait_mean_ms", "starved", "runs"):
                    assert row[key] >= 0, row
            counters = stats["counters"]
            assert stats["mode"] == ("partial" if partial else "full")
            assert counters["operator_runs"] > 0 and counters["inherits"] > 0, counters
            assert set(counters) == set(stats["about"])
            # Ages are of use to a policy only if they differ from one queue to another.
            assert len({row["queue"] for row in stats["threads"]}) > 1, stats["threads"]

            shown = sched_ctl("stats")
            print(shown)
            for word in ("operator_runs", "queue", "age ms", "mean wait ms", "starved", "two1"):
                assert word in shown, word

            watch(load)
            assert_timeline(engine)

            shown = sched_ctl("explain", "two/two1")
            print(shown)
            assert "policy balanced" in shown and "chosen by auto: 2 queries" in shown
            assert re.search(r"in force +mode \w+, queue \d+, .*age_ms .*waits_ms", shown), shown
            assert "starved" in shown and "(scx)" in shown

            load.process.send_signal(signal.SIGINT)
            assert load.process.wait(SOON_S) == 0, load.said
            assert "everything is as it was before" in load.said
            wait_for("disabled")
            assert state(engine) == before


@only_on("6.18")
def check_the_demo_is_by_sched_ext() -> None:
    """As `./dev demo --guest` has it run, and short."""
    said = sched_ctl(
        *("demo", "--backend", "scx", "--json", "--no-picture", "--slow"),
        *("--load", "0.2", "--phases", "2", "--phase", "0.5"),
    )
    found, _ = json.JSONDecoder().raw_decode(said, said.index("{\n"))  # amid its progress
    assert (found["backend"], found["policy"]) == ("scx", "balanced")
    for row in found["queries"]:
        for who in ("os", "policy"):
            assert 0 < row["p50_ms"][who] <= row["p99_ms"][who], row
    wait_for("disabled")


def assert_confined(pid: int) -> None:
    """It has what the unit leaves it, and what it does not need is not there."""
    lines = (line.partition(":") for line in text_of(f"/proc/{pid}/status").splitlines())
    status = {name: value.strip() for name, _, value in lines}
    rights = int(status["CapEff"], 16)
    assert status["CapEff"] == status["CapBnd"] and status["NoNewPrivs"] == "1", status
    for number, there in ((BPF, True), (SYS_NICE, True), (SYS_ADMIN, False), (NET_ADMIN, False)):
        assert bool(rights >> number & 1) == there, (number, status["CapEff"])
    mounts = [line.split() for line in text_of(f"/proc/{pid}/mounts").splitlines()]
    assert any(words[1] == "/sys" and words[3].startswith("ro") for words in mounts), mounts


def assert_timeline(engine: lab.Engine) -> None:
    """Tracks have the operators' names, and decisions are counted while they run."""
    path = Path(tempfile.mkdtemp()) / "runs.json"
    print(sched_ctl("stats", "--perfetto", str(path), "--seconds", "1"))
    found = json.loads(path.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in found if e["ph"] == "M"}
    assert {name.rpartition("/")[2] for name in names.values()} == OPERATORS, names
    assert {e["tid"] for e in found if e["name"] == "runs"} <= names.keys()
    values = {(e["pid"], e["name"]): e["args"]["value"] for e in found if e["ph"] == "C"}
    assert (0, "operator_runs") in values, values.keys()
    assert any(pid == engine.pid and name.startswith("age of ") for pid, name in values), values


def watch(load: Load) -> None:
    """Rates after a tick, until Ctrl-C."""
    out = Path(tempfile.mkdtemp()) / "watch"
    pid = forked(("stats", "--watch", "--interval", "0.5"), out)
    try:
        load.wait(lambda: out.exists() and "longest wait first" in out.read_text(), "rates")
        shown = out.read_text()
        assert "per second" in shown and "operator_runs" in shown, shown
    finally:
        os.kill(pid, signal.SIGINT)
    assert ended(pid) == 130, out.read_text()


@only_on("6.18")  # in partial mode: guest_robust.py, by the backend itself
def check_ejected_and_back_and_restore_after_kill_9() -> None:
    Path("/proc/sys/kernel/sysrq").write_text("1")
    with labspe() as engine:
        before = state(engine)
        with loaded(engine, "--policy", "hr", "--share", "one=4", prefix=confined()) as load:
            load.wait(lambda: load.is_scheduling("scx"), "scheduled by scx")
            assert_confined(load.process.pid)
            Path("/proc/sysrq-trigger").write_text("S")
            began_s = time.monotonic()
            load.wait(lambda: load.is_scheduling("cgroup2+nice"), "the next backend")
            now, status = state(engine), load.seen  # it goes back in five seconds
            [rule] = status["policies"]
            assert rule["policy"] == "hr", rule
            assert len({group for name, (_, _, group) in now.items() if name in OPERATORS}) == 2
            assert len({nice for name, (_, nice, _) in now.items() if name in OPERATORS}) > 1, now
            assert all(now[name][0] == sched.OTHER for name in OPERATORS), now
            assert "the kernel ended the sched_ext scheduler" in load.said
            assert "SysRq-S" in load.said
            because = {step["backend"]: step["because"] for step in status["not_taken"]}
            assert "SysRq-S" in because["scx"]

            load.wait(lambda: load.is_scheduling("scx"), "back to scx")
            took_s = time.monotonic() - began_s
            print(f"back after {took_s:.1f} s")
            assert took_s > 4.5  # not at once: what threw us out may be there still
            assert "back to scx from cgroup2+nice" in load.said
            assert text_of("/sys/kernel/sched_ext/state") == "enabled"
            now = state(engine)
            assert {name: x[1:] for name, x in now.items()} == {
                name: x[1:] for name, x in before.items()
            }
            [rule] = load.status()["policies"]
            assert rule["policy"] == "hr"

            load.process.kill()
            load.process.wait()
            wait_for("disabled")
        assert "as it was" in sched_ctl("restore")
        assert state(engine) == before
        assert schedext.server_share() in (None, 0.05)
