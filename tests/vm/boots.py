"""Runs guests side by side, as many as this machine has CPUs for, and reads what they say.

Checks that want the same guest share one (`Boot`). Two things make a check fail that is right: an
emulated guest may die by itself, and in real time a machine that is busy holds a virtual CPU back
for as long as it likes. So a check that failed, or whose guest died, is flaky, and tried again in a
fresh guest, where it has to pass three times in a row. What the first attempt said is kept
(`Result.first`).

Guests stand in one line, in the order in which their results are asked for, and start as soon as
they fit (`Line.fits`): who asks may find that all has been done. Those with exact time do not mind
what runs beside them, so they begin while tests without guests run (`Line.turn`); those of one
command do if their file says early what it will ask for (`vm.conftest`). Until a result is asked
for they give way to everybody (`GIVES_WAY`) and take what CPU time those tests leave.
"""

import ast
import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import guest
import kernels
from vm.inside import EXACT, MARK

__all__ = ["Boot", "Command", "Job", "Line", "Result", "settings_of"]

ROOT = Path(__file__).parents[2]
BOOT_S = 180.0  # a guest that has begun no check by then never will
CHECK_S = 420.0  # for a check; each has a shorter limit in the guest, by its clock
STARVED = 4  # times as long for a guest that gets less than a third of a CPU
ENVIRONMENT = {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'tests' / 'helpers'}:{ROOT}"}
SECOND_ATTEMPTS = 3  # of a file on one kernel; what fails more often is no accident
GIVES_WAY = 19  # nice value of guests beside other tests
SETTINGS = ("KERNELS", "CPUS", "SOCKETS", "MEMORY", "ICOUNT", "ICOUNT_SHIFT", "TIMEOUT_S")
AGAIN = 3  # passes in a row that a check needs that has failed
Check = tuple[Path, str]  # file and function


def settings_of(checks: ast.Module) -> dict[str, Any]:
    """The plain literals at the top of a file of checks: what it asks of its guest."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in checks.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in SETTINGS
    }


@dataclass(frozen=True)
class Result:
    """What became of a check, and what it took by the guest's clock and of the host's CPUs.

    first: what an attempt that failed printed, and its traceback. bad_looks: those that were let
    pass by `look_until`.
    """

    outcome: str
    text: str
    seconds: float = 0.0
    cpu_s: float = 0.0
    output: str = ""
    first: tuple[str, ...] = ()
    bad_looks: int = 0


@dataclass(eq=False)
class Job:
    """A command in a guest. Its time is limited once its result is asked for."""

    kernel: str
    options: guest.Options
    machine: guest.Guest | None = field(default=None, init=False)
    asked: float | None = field(default=None, init=False)
    started: float = field(default=0.0, init=False)
    heard: float = field(default=0.0, init=False)  # when it last began something
    heard_cpu_s: float = field(default=0.0, init=False)  # what it had used by then
    took_s: float = field(default=0.0, init=False)  # while its guests ran
    cpu_s: float = field(default=0.0, init=False)  # of its guests

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def wanted(self) -> bool:
        """Whether a guest is to be run (still, or again)."""
        raise NotImplementedError

    @property
    def patience_s(self) -> float:
        """How long the guest may take for what it does now."""
        raise NotImplementedError

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        """What the guest runs, and its environment."""
        raise NotImplementedError

    def take(self, piece: bytes) -> None:
        """The guest said this."""
        raise NotImplementedError

    def ended(self, returncode: int | None, log: str) -> None:
        """The guest ended, or was stopped because its time was over."""
        raise NotImplementedError

    def start(self, image: Path, nice: int = 0) -> None:
        kvm = not self.options.icount and guest.kvm_works(image)
        options = replace(self.options, kvm=kvm, nice=nice)
        command, environment = self.command()
        self.started, self.heard_cpu_s = time.monotonic(), 0.0
        self.heard = self.started
        try:
            self.machine = guest.Guest(image, command, options, environment)
        except guest.GuestError as error:
            self.ended(None, str(error))

    def read(self) -> None:
        assert self.machine is not None
        piece = self.machine.piece()
        if piece:
            self.take(piece)
        else:
            self.end()

    def late(self, now: float) -> bool:
        """Whether its time is over. A machine that is too busy to run it gives it more."""
        if self.asked is None or self.machine is None:
            return False
        waited_s = now - max(self.asked, self.heard)
        used_s = self.machine.cpu_s() - self.heard_cpu_s
        starved = used_s < self.patience_s / 3
        return waited_s > self.patience_s * (STARVED if starved else 1)

    def end(self) -> None:
        machine = self.machine
        self.close()
        if machine is not None:
            self.ended(machine.returncode, machine.log)

    def close(self) -> None:
        """End the guest, without asking what it said last."""
        if self.machine is not None:
            self.took_s += time.monotonic() - self.started
            self.cpu_s += self.machine.cpu_s()
            self.machine.close()
            self.machine = None


@dataclass(eq=False)
class Command(Job):
    """One command and all its output."""

    words: Sequence[str]
    output: bytes = b""
    returncode: int | None = None
    log: str = ""
    done: bool = False

    @property
    def name(self) -> str:
        return f"{self.kernel} {' '.join(self.words)}"[:60]

    @property
    def key(self) -> tuple[str, guest.Options, tuple[str, ...]]:
        """Who asks for the same wants this guest."""
        return self.kernel, self.options, tuple(self.words)

    @property
    def wanted(self) -> bool:
        return not self.done

    @property
    def patience_s(self) -> float:
        return self.options.timeout_s

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        return self.words, {}

    def take(self, piece: bytes) -> None:
        self.output += piece

    def ended(self, returncode: int | None, log: str) -> None:
        self.returncode, self.log, self.done = returncode, log, True


@dataclass(eq=False)
class Boot(Job):
    """Checks in one guest, and what became of them."""

    checks: dict[Check, float] = field(default_factory=dict)  # seconds that each may take
    results: dict[Check, Result] = field(default_factory=dict)
    first: dict[Check, tuple[str, str]] = field(default_factory=dict)  # as `Result.first`
    passes: dict[Check, int] = field(default_factory=dict)  # that these have yet to show
    rest: bytes = b""
    said: list[str] = field(default_factory=list)
    boot_cpu_s: float = 0.0  # of all boots, up to the first check

    @classmethod
    def of(cls, kernel: str, settings: Mapping[str, Any]) -> "Boot":
        """For files with these settings."""
        options = guest.Options(
            cpus=settings.get("CPUS", 2),
            sockets=settings.get("SOCKETS", 1),
            memory=settings.get("MEMORY", "1G"),
            icount=bool(settings.get("ICOUNT")),
            icount_shift=settings.get("ICOUNT_SHIFT", 1),
            append=kernels.append(kernel),
        )
        return cls(kernel, options)

    @property
    def key(self) -> tuple[str, guest.Options]:
        """Checks with the same one share a guest."""
        return self.kernel, self.options

    def expect(self, check: Check, timeout_s: float) -> None:
        """This check is one of those to run."""
        # While an exact guest waits for its files its clock leaps ahead, from timer to timer.
        self.checks[check] = timeout_s * (100 if self.options.icount else 1)

    @property
    def name(self) -> str:
        files = dict.fromkeys(path.stem for path, _ in self.checks)
        what = f"{len(self.checks)} checks, {self.boot_cpu_s:.0f} s to boot"
        return f"{self.kernel} {', '.join(files)}: {what}"

    @property
    def left(self) -> list[Check]:
        return [check for check in self.checks if check not in self.results]

    @property
    def wanted(self) -> bool:
        return bool(self.left)

    @property
    def patience_s(self) -> float:
        return CHECK_S if self.heard > self.started else BOOT_S

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        self.rest, self.said = b"", []
        words = [sys.executable, str(Path(__file__).with_name("inside.py"))]
        for check in self.left:
            path, name = check
            words += [str(path), name, str(self.checks[check])] * self.passes.get(check, 1)
        return words, ENVIRONMENT | ({EXACT: "1"} if self.options.icount else {})

    def take(self, piece: bytes) -> None:
        *whole, self.rest = (self.rest + piece).split(b"\n")
        for line in whole:
            if self.machine is not None:
                self.take_line(line.decode(errors="replace").rstrip("\r") + "\n")

    def take_line(self, line: str) -> None:
        assert self.machine is not None
        if not line.startswith(MARK):
            self.said.append(line)
            return
        record = json.loads(line.removeprefix(MARK))
        self.heard = time.monotonic()
        since, self.heard_cpu_s = self.heard_cpu_s, self.machine.cpu_s()
        if not since:
            self.boot_cpu_s += self.heard_cpu_s
        if end := record.pop("end", None):
            record |= {"output": "".join(self.said).strip(), "cpu_s": self.heard_cpu_s - since}
            self.add((Path(end[0]), end[1]), Result(**record))
        self.said = []

    def add(self, check: Check, result: Result) -> None:
        """Take a result. A first failure is followed by attempts in a fresh guest."""
        if check in self.results:
            return  # it has failed at one of several attempts
        new = result.outcome == "failed" and check not in self.first
        if new and sum(path == check[0] for path, _ in self.first) < SECOND_ATTEMPTS:
            self.first[check] = (result.output, result.text)
            self.passes[check] = AGAIN
            self.close()
            return
        if result.outcome == "passed" and self.passes.get(check, 1) > 1:
            self.passes[check] -= 1
            return
        self.results[check] = replace(result, first=self.first.get(check, ()))
        if not self.left:
            self.close()

    def ended(self, returncode: int | None, log: str) -> None:
        said = "".join(self.said) + self.rest.decode(errors="replace")
        text = f"{said}\nexit code {returncode}\n{log}"
        if self.left:
            self.add(self.left[0], Result("failed", f"the guest died, or was stopped\n{text}"))


class Line:
    """Jobs in the order in which their results will be asked for."""

    def __init__(self, jobs: Sequence[Job] = ()) -> None:
        self.jobs = list(jobs)
        self.gives_way = False  # that guests which run do so

    def wait(self, job: Job, enough: Callable[[], bool]) -> None:
        """Let guests run until there is enough of this one."""
        if job not in self.jobs:
            self.jobs.append(job)
        job.asked = job.asked or time.monotonic()
        # Those with exact time have all that is left, but for who is in real time.
        gives_way = not job.options.icount
        for other in self.running() if gives_way is not self.gives_way else ():
            assert other.machine is not None
            if other.options.icount:
                nice = GIVES_WAY if gives_way else os.getpriority(os.PRIO_PROCESS, 0)
                other.machine.give_way(nice)
        self.gives_way = gives_way
        while not enough():
            self.turn(job)

    def begun(self, command: Command) -> Command:
        """The same one if it stands in line and nobody has asked for it yet."""
        for job in self.jobs:
            if isinstance(job, Command) and job.asked is None and job.key == command.key:
                return job
        return command

    def turn(self, asked: Job | None = None) -> None:
        """Start what fits, and read what guests say; wait for that if a result was asked for."""
        self.gives_way = asked is None or not asked.options.icount
        for job in self.jobs if asked is None else (asked, *self.jobs):
            if job.wanted and job.machine is None:
                if job is asked:
                    job.start(kernels.find(job.kernel))
                elif self.fits(job, asked is None) and (image := guest.at_hand(job.kernel)):
                    exact = job.options.icount
                    job.start(image, GIVES_WAY if self.gives_way and exact else 0)
        machines = [job.machine for job in self.running() if job.machine is not None]
        ready = select.select(machines, [], [], 0.0 if asked is None else 1.0)[0]
        for job in self.running():
            if job.machine in ready:
                job.read()
            elif job.late(time.monotonic()):
                job.end()

    def running(self) -> list[Job]:
        return [job for job in self.jobs if job.machine is not None]

    def fits(self, job: Job, beside_tests: bool = False) -> bool:
        """A guest for each CPU; those in real time have all of their virtual CPUs to themselves.

        Beside tests there is a place more for one of one command: it takes long, may have had to
        wait until it could begin, and would be the last of all, alone.
        """
        cpus = len(os.sched_getaffinity(0))
        running = self.running()
        if beside_tests:
            return job.options.icount and len(running) < cpus + isinstance(job, Command)
        real = sum(other.options.cpus for other in running if not other.options.icount)
        return len(running) < cpus and (job.options.icount or real + job.options.cpus <= cpus)

    def pause(self, *, paused: bool) -> None:
        """Stop all guests or let them go on. Only between results, for nobody hears them."""
        for job in self.running():
            assert job.machine is not None
            job.machine.pause(paused=paused)

    def close(self) -> None:
        for job in self.jobs:
            job.close()
