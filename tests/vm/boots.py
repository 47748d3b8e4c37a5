"""Boots guests for files of checks, one for a file and kernel, and reads what the checks say.

Two things make a check fail that is right: an emulated guest dies now and then by itself, and a
machine that is busy holds a virtual CPU back for as long as it likes. So a check that failed is
tried once more, in a fresh guest, and what the first attempt said is kept (`Result.first`): the
summary of the tests names it. What is really wrong fails twice.

Where there are two CPUs, guests with one run two at a time: the next is started while the results
of one are read.
"""

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import guest
import kernels
from vm.inside import MARK

__all__ = ["LIMIT_S", "Boot", "Result", "chain"]

ROOT = Path(__file__).parents[2]
LIMIT_S = 600.0  # for one file and kernel, whatever happens, on a machine that is busy otherwise
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "tests")}
SECOND_ATTEMPTS = 3  # of a file and kernel; what fails more often is no accident


@dataclass(frozen=True)
class Result:
    """What became of a check. first: what an earlier attempt said that failed."""

    outcome: str
    text: str
    seconds: float = 0.0
    output: str = ""
    first: str = ""


@dataclass(eq=False)
class Boot:
    """One guest for one file and kernel. Results come in the order of the checks.

    image: the path of the kernel, asked for when the guest is started. following: a guest to start
    as soon as this one runs.
    """

    path: Path
    kernel: str
    settings: dict[str, Any]
    image: Callable[[str], Path]
    checks: list[str] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)
    following: "Boot | None" = None
    ahead: guest.Guest | None = None  # started, not looked at yet
    stream: Iterator[str] | None = None
    died: str = ""
    second_attempts: int = 0
    deadline: float | None = None

    @property
    def small(self) -> bool:
        """Whether it takes one CPU, so that two fit on a small machine."""
        return bool(self.settings.get("CPUS", 2) == 1)

    @property
    def exact(self) -> bool:
        """Whether the guest's clock counts instructions."""
        return bool(self.settings.get("ICOUNT"))

    def result(self, check: str) -> Result:
        found = self.attempt(check)
        if found.outcome == "failed" and self.second_attempts < SECOND_ATTEMPTS:
            self.second_attempts += 1
            died = check not in self.results
            self.results.pop(check, None)
            self.close()
            found = replace(self.attempt(check, single_thread=died), first=found.text)
        return found

    def attempt(self, check: str, *, single_thread: bool = False) -> Result:
        """The result from the guest that is running, or from one that begins with this check."""
        if self.deadline is None:
            self.deadline = time.monotonic() + LIMIT_S
        if check not in self.results and time.monotonic() < self.deadline:
            if self.stream is None:
                self.stream = self.run(check, single_thread=single_thread)
            self.read_until(check)
        if check in self.results:
            return self.results[check]
        self.close()
        if time.monotonic() >= self.deadline:
            text = f"not run: the checks of this file did not end within {LIMIT_S:g} s"
            return Result("failed", f"{text}\n{self.died}")
        return Result("failed", f"the guest died\n{self.died}")

    def read_until(self, check: str) -> None:
        assert self.stream is not None
        output: list[str] = []
        for line in self.stream:
            if not line.startswith(MARK):
                output.append(line)
                continue
            record = json.loads(line.removeprefix(MARK))
            if "start" in record:
                output = []
            if name := record.pop("end", None):
                self.results[name] = Result(output="".join(output).strip(), **record)
                if name == check:
                    return
        self.died += "".join(output)

    def run(self, check: str, *, single_thread: bool) -> Iterator[str]:
        """What a guest prints that runs this check and those after it, line by line."""
        assert self.deadline is not None
        image = self.image(self.kernel)
        checks = self.checks[self.checks.index(check) :]
        options = replace(
            self.options(), timeout_s=self.deadline - time.monotonic(), single_thread=single_thread
        )
        ahead, self.ahead = self.ahead, None
        if ahead is None:
            return self.lines(guest.boot(image, self.command(checks), options, ENVIRONMENT))
        ahead.stop_after(options.timeout_s)
        return self.lines(contextlib.closing(ahead))

    def lines(self, started: contextlib.AbstractContextManager[guest.Guest]) -> Iterator[str]:
        with started as machine:
            if self.following is not None:
                self.following.run_ahead()
            rest = b""
            for piece in machine.output():
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line.decode(errors="replace").rstrip("\r") + "\n"
            yield rest.decode(errors="replace")
        self.died = f"exit code {machine.returncode}\n{machine.log}"

    def run_ahead(self) -> None:
        """Start the guest; its results are asked for later."""
        image = kernels.at_hand(self.kernel)
        if image is not None and self.ahead is None and self.deadline is None:
            with contextlib.suppress(guest.GuestError):  # for who asks for a result
                command = self.command(self.checks)
                self.ahead = guest.Guest(image, command, self.options(), ENVIRONMENT)

    def command(self, checks: Sequence[str]) -> list[str]:
        timeout_s = self.settings.get("TIMEOUT_S", 60)
        if self.exact:
            # While such a guest waits for its files its clock leaps ahead, from timer to timer.
            timeout_s *= 100
        inside = str(Path(__file__).with_name("inside.py"))
        return [sys.executable, inside, str(self.path), str(timeout_s), *checks]

    def options(self) -> guest.Options:
        return guest.Options(
            cpus=self.settings.get("CPUS", 2),
            sockets=self.settings.get("SOCKETS", 1),
            memory=self.settings.get("MEMORY", "1G"),
            icount=self.exact,
            icount_shift=self.settings.get("ICOUNT_SHIFT", 1),
            timeout_s=2 * LIMIT_S,
            append=kernels.append(self.kernel),
        )

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()  # type: ignore[attr-defined]
            self.stream = None
        if self.ahead is not None:
            self.ahead.close()
            self.ahead = None


def chain(boots: Sequence[Boot]) -> None:
    """Let guests with one CPU run two at a time, where this machine has two."""
    if len(os.sched_getaffinity(0)) < 2:
        return
    for boot, following in itertools.pairwise(boots):
        if boot.small and following.small:
            boot.following = following
