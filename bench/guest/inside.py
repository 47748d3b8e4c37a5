"""What runs in a guest with a real engine needs, whichever it is: samples, neighbours, `load`.

Light queries must not wait for what is measured with: it runs first, and sleeps while a phase is
measured.
"""

import contextlib
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from engines.cluster import patiently
from sched_ctl.kernel import schedext
from sched_ctl.service.socket import request

__all__ = [
    "FIRST",
    "NORMAL",
    "Hog",
    "Load",
    "Neighbour",
    "Pulse",
    "Rival",
    "be_ordinary",
    "go_first",
    "measure",
    "put",
    "sample",
    "say",
    "show",
    "system",
    "threads",
    "unobtrusive",
]

RUN_DIR = Path("/run/sched-ctl")
PROGRAM = [sys.executable, "-c", "from sched_ctl.start import main; main()"]
# It decides once, and then sleeps.
SLEEPING = (
    *("--engine", "flink", "--backend", "scx", "--period", "30", "--discover", "600"),
    *("--poll-timeout", "30", "--stale-after", "300"),
)
FIRST = (os.SCHED_FIFO, os.sched_param(1))
NORMAL = (os.SCHED_OTHER, os.sched_param(0))
LAST_WORD = (os.SCHED_FIFO, os.sched_param(99))
HEARTBEAT = "scx heartbeat"
ASKED = ("prometheus-http", "HTTP-Dispatcher")  # threads that answer the controller
PAUSE_S = 0.3
RACE_S, LOOK_S = 300.0, 5.0  # for a race to end; with two arms it takes 288 s at most, or twice
RECORDS = 1 << 16
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LONGEST_LINE = 16000
began_s = time.monotonic()


def say(what: object) -> None:
    print(f"{time.monotonic() - began_s:7.1f} s  {what}", flush=True)


class Sampled(NamedTuple):
    """A thread at one moment. so_far: its CPU time and its delay, ns, and how often it ran."""

    comm: str
    so_far: list[int]
    at_s: float


def threads(pid: int) -> Iterator[tuple[int, str]]:
    for path in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            yield int(path.name), (path / "comm").read_text().rstrip("\n")


def go_first() -> None:
    """What is started is normal again; but samples are taken when they are due."""
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def sample(pids: Mapping[str, int]) -> dict[tuple[str, int], Sampled]:
    """Each thread, by the label of its process and its id."""
    found = {}
    for label, pid in pids.items():
        for tid, comm in threads(pid):
            with contextlib.suppress(OSError, ValueError):
                text = Path(f"/proc/{pid}/task/{tid}/schedstat").read_text()
                so_far = [int(word) for word in text.split()]
                found[label, tid] = Sampled(comm, so_far, time.monotonic())
    return found


def spent(before: Sampled | None, after: Sampled, span_s: float) -> list[int]:
    """What a thread spent of each in `span_s`, by what it did between its own two samples.

    On a full CPU the last threads are looked at seconds after the first ones. One that was not
    there before is younger than the phase.
    """
    if before is None:
        return after.so_far
    part = span_s / (after.at_s - before.at_s)
    return [round((b - a) * part) for a, b in zip(before.so_far, after.so_far, strict=True)]


def processes() -> dict[int, tuple[str, float, float]]:
    """Of each process: its name, its CPU time with that of threads that ended, and that of its
    children that did, s."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            before, _, after = path.read_text(errors="replace").rpartition(") ")
            own, of_user, children, of_children = map(int, after.split()[11:15])
            times = (own + of_user) / TICKS_PER_S, (children + of_children) / TICKS_PER_S
            found[int(path.parent.name)] = (before.partition("(")[2], *times)
    return found


def unseen(
    before: Mapping[int, tuple[str, float, float]],
    after: Mapping[int, tuple[str, float, float]],
    seen_s: Mapping[int, float],
) -> dict[str, float]:
    """CPU time (s) of what has ended, and of processes that were not looked at; above 20 ms.

    seen_s: of each process that was, the CPU time of its threads that were there at the end.
    """
    found: dict[str, float] = {}
    for pid, (comm, own_s, children_s) in after.items():
        _, own_before_s, children_before_s = before.get(pid, (comm, 0.0, 0.0))
        what = f"ended threads of {comm}" if pid in seen_s else comm
        for name, s in (
            (what, own_s - own_before_s - seen_s.get(pid, 0.0)),
            (f"ended children of {comm}", children_s - children_before_s),
        ):
            if s > 0.02:
                found[name] = round(found.get(name, 0.0) + s, 3)
    return found


@contextlib.contextmanager
def unobtrusive() -> Iterator[None]:
    """To look at all threads takes 50 ms, for which the rest would wait if we went first."""
    os.sched_setscheduler(0, *NORMAL)
    try:
        yield
    finally:
        go_first()


def system() -> tuple[int, list[int]]:
    text = Path("/proc/stat").read_text()
    switches = int(text.partition("ctxt ")[2].split()[0])
    return switches, [int(word) for word in text.split("\n", 1)[0].split()[1:9]]


class Neighbour:
    """A process that has nothing to do with the engine: it works a little, ever again."""

    def __init__(self, work_s: float = 0.0, period_s: float = 0.01) -> None:
        self._period_s = period_s
        self._memory = mmap.mmap(-1, 16 * RECORDS)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._live(work_s)
            finally:
                os._exit(1)

    def _live(self, work_s: float) -> None:
        due, at = time.monotonic(), 1
        while True:
            due = max(due + self._period_s, time.monotonic()) if work_s < self._period_s else due
            time.sleep(max(0.0, due - time.monotonic()))
            woken = time.monotonic()
            until = time.thread_time() + work_s
            while time.thread_time() < until:
                pass
            self._memory[16 * at : 16 * at + 16] = struct.pack("dd", due, woken)
            at = at % (RECORDS - 1) + 1

    def woken(self, begin_s: float, end_s: float) -> Any:
        """(n, 2) when it was due and when it woke up, each time that was due in this period."""
        seen = np.frombuffer(self._memory, dtype=np.float64).reshape(-1, 2).copy()
        return seen[(seen[:, 0] >= begin_s) & (seen[:, 0] < end_s)]

    def late_s(self, begin_s: float, end_s: float) -> Any:
        """How late it woke up, each time within this period."""
        due, woken = self.woken(begin_s, end_s).T
        return woken - due

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class Pulse(Neighbour):
    """One that goes before everything else: when it is late, nothing at all could run.

    Also before what measures, and before what is made to go first (`FIRST`): the machine does not
    stand still while these work.

    A guest's clock leaps when its host reads a file for it, by seconds on a busy machine; what then
    arrives all at once is no scheduler's doing.
    """

    def __init__(self, period_s: float = 0.05) -> None:
        super().__init__(period_s=period_s)
        os.sched_setscheduler(self.pid, *LAST_WORD)

    def longest_s(self, begin_s: float, end_s: float) -> float:
        """The longest time in this period for which nothing ran."""
        return float(self.late_s(begin_s, end_s).max(initial=0.0))


class Hog:
    """A process that uses all the CPU it gets."""

    def __init__(self) -> None:
        self.pid = os.fork()
        while self.pid == 0:
            pass

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def put(pids: Mapping[str, int], how: tuple[int, os.sched_param]) -> None:
    """What the controller asks, first: else loading takes minutes of a saturated guest."""
    for label, pid in pids.items():
        for tid, comm in threads(pid):
            if label == "jm" or comm.startswith(ASKED):
                with contextlib.suppress(OSError):
                    os.sched_setscheduler(tid, *how)


def be_ordinary(controller: int) -> None:
    """It goes on as without us; its sign of life has a priority of its own."""
    for tid, comm in threads(controller):
        if comm != HEARTBEAT:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(tid, *NORMAL)


class Load:
    """`sched-ctl load`, in force. how: arguments that all phases have in common.

    first: it goes before all others from its start, as what it loads is not what is measured.
    """

    def __init__(
        self,
        arguments: tuple[str, ...],
        expected: int,
        pids: Mapping[str, int],
        how: tuple[str, ...] = SLEEPING,
        *,
        first: bool = True,
    ) -> None:
        self.arguments = arguments
        self.asked = {label: pids[label] for label in ("tm", "jm") if label in pids}
        put(self.asked, FIRST)
        self.log = Path(f"/tmp/load-{time.monotonic_ns()}.log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*PROGRAM, "load", "--race", "0", *how, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: os.sched_setscheduler(0, *(FIRST if first else NORMAL)),
            )

        def ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            if not (RUN_DIR / "control.sock").exists():
                return False
            if "nice" in arguments:
                # A race may leave all as it is until somebody waits.
                races = (rule["race"] for rule in self.ask("status")["policies"])
                return "threads of" in self.log.read_text() or any(races)
            rows = self.ask("dispatch").get("threads", [])
            return len(rows) >= expected and sum(r["runs"] > 0 for r in rows) >= 0.7 * expected

        patiently(ready, 60, "the operators' threads run by the scheduler")
        time.sleep(2.0)
        say(f"loaded: {' '.join(arguments)}")

    def ask(self, verb: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = request(RUN_DIR, verb, dict(arguments or {}), timeout_s=600)
        return found

    def set(self, policy: str, options: Mapping[str, Any] | None = None) -> None:
        """Have this policy in force, by what was seen of the engine in the last seconds.

        Each change makes the controller ask the engine, which its period would make it do only in
        30 s, and rates need two answers.
        """
        self.mine(FIRST)
        for _ in range(2):
            self.ask("policy-set", {"policy": policy, "options": dict(options or {})})
            time.sleep(1.5)

    def in_force(self) -> dict[str, dict[str, float | None]]:
        """Of each operator: its urgency, and what the policy knows of it."""
        found: dict[str, dict[str, float | None]] = {}
        rows: Any = self.ask("explain", {"what": "*"})
        for row in rows:
            known = {entry["metric"]: entry["value"] for entry in row["metrics"]}
            found[row["operator"]] = {**row["urgency"], **known}
        return found

    def raced(self) -> list[str]:
        """Wait until each race has a winner, but not for ever; what each is at by then."""
        begin_s = time.monotonic()
        while True:
            told = (rule["race"] for rule in self.ask("status")["policies"])
            modes = [race["mode"] for race in told if race is not None]
            waited_s = time.monotonic() - begin_s
            if set(modes) == {"kept"} or waited_s >= RACE_S:
                say(f"races after {waited_s:.0f} s: {', '.join(modes) or 'none'}")
                return modes
            time.sleep(LOOK_S)

    def mine(self, how: tuple[int, os.sched_param]) -> None:
        put(self.asked, how)

    def end(self) -> None:
        self.mine(FIRST)
        for tid, _ in threads(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(tid, *FIRST)
        self.process.send_signal(signal.SIGINT)
        self.process.wait(600)
        print(self.log.read_text()[-1500:], flush=True)
        put(self.asked, NORMAL)
        patiently(lambda: schedext.state() in (None, "disabled"), 10, "detached")


class Rival:
    """A published rule (bench.lachesis) at work.

    pid: of the process that it needs to know. worker: of that which has the operators.
    """

    def __init__(
        self,
        arguments: tuple[str, ...],
        pid: int,
        worker: int,
        asked: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.arguments = arguments
        self._asked = asked
        self.mine(FIRST)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.lachesis", *arguments, str(pid)],
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setscheduler(0, *FIRST),
        )

        def ready() -> bool:
            assert self.process.poll() is None
            return any(
                os.getpriority(os.PRIO_PROCESS, tid) or os.sched_getscheduler(tid)
                for tid, comm in threads(worker)
                if not comm.startswith(ASKED)
            )

        patiently(ready, 60, "an order")
        say(f"at work: {' '.join(arguments)}")

    def mine(self, how: tuple[int, os.sched_param]) -> None:
        put(self._asked, how)

    def end(self) -> None:
        for tid, _ in threads(self.process.pid):  # it may be that its own order starves it
            os.sched_setscheduler(tid, *LAST_WORD)
        self.process.terminate()
        self.process.wait(600)
        self.mine(NORMAL)


def measure(
    name: str,
    seconds: float,
    pids: Mapping[str, int],
    role_of: Callable[[str, str], str],
    neighbour: Neighbour | None = None,
) -> dict[str, Any]:
    """A phase. role_of: what a thread is for, by the label of its process and its own name.

    Operators' roles begin with "operators".
    """
    with unobtrusive():
        before, sampled_s = sample(pids), time.monotonic()
        (switches, cpu), all_before = system(), processes()
    time.sleep(PAUSE_S)
    begin_s = time.monotonic()
    time.sleep(seconds)
    end_s = time.monotonic()
    with unobtrusive():
        after, span_s = sample(pids), time.monotonic() - sampled_s
        (switches_now, cpu_now), all_after = system(), processes()
    seen_s = dict.fromkeys(pids.values(), 0.0)
    roles: dict[str, list[int]] = {}
    operators: dict[str, list[int]] = {}
    for key, now in after.items():
        label, tid = key
        was, mine = before.get(key), spent(before.get(key), now, span_s)
        seen_s[pids[label]] += (now.so_far[0] - (was.so_far[0] if was else 0)) / 1e9
        role = role_of(label, now.comm)
        total = roles.setdefault(role, [0, 0, 0])
        for i in range(3):
            total[i] += mine[i]
        if role.startswith("operators") and was:
            operators[f"{now.comm} {tid}"] = mine
    ticks = [b - a for a, b in zip(cpu, cpu_now, strict=True)]
    found = {
        "phase": name,
        "begin": begin_s,
        "end": end_s,
        "span": span_s,
        "switches": (switches_now - switches) / span_s,
        "idle": (ticks[3] + ticks[4]) / max(1, sum(ticks)),
        "roles": {name: total for name, total in roles.items() if total[2]},
        "operators": operators,
        "unseen": unseen(all_before, all_after, seen_s),
    }
    if neighbour is not None:
        late_ms = neighbour.late_s(begin_s, end_s) * 1e3
        found["neighbour"] = [
            len(late_ms),
            float(late_ms.mean()),
            float(np.quantile(late_ms, 0.99)),
        ]
    return found


def show(phase: Mapping[str, Any]) -> None:
    """Print it for the host."""
    shown = json.dumps(phase)
    for at in range(0, len(shown), LONGEST_LINE):  # a console cuts lines of more than 32 KiB
        print("@@ " + shown[at : at + LONGEST_LINE], flush=True)
