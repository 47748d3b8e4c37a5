"""`load` on real applications: which threads get which nice value, and what that does.

What Spark itself says of its jobs, by another interface than the driver's, is the witness.
"""

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from engines.compete import following, states
from sched_ctl.kernel import hotspot, procfs
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.spark, pytest.mark.needs("root", "pyspark", "java")]

START_S = 240  # a Java start on a machine where others compute
TASK = re.compile(r"Executor task launch worker for task \d+\.\d+ in stage (\d+)\.")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Application:
    """out: what it said, see application.py."""

    process: subprocess.Popen[str]
    out: Path

    def said(self) -> list[dict[str, object]]:
        assert self.process.poll() is None, self.out.with_suffix(".err").read_text()[-3000:]
        lines = self.out.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def facts(self, which: int = 0) -> dict[str, object]:
        """What it says of itself at the start, or after the command of this number."""

        def told() -> dict[str, object] | None:
            found = [line for line in self.said() if "pid" in line]
            return found[which] if len(found) > which else None

        return wait_until(told, START_S, "the application") or pytest.fail()

    @property
    def pid(self) -> int:
        return int(str(self.facts()["pid"]))

    @property
    def engine(self) -> str:
        return f"spark:127.0.0.1:{str(self.facts()['ui']).rpartition(':')[2]}"

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def threads(self, stages: object) -> dict[str, list[int]]:
        """Query -> the threads that run its tasks now."""
        assert isinstance(stages, dict)
        names = {thread.tid: thread.name for thread in hotspot.threads(self.pid, 30)}
        return {
            query: [t for t, n in names.items() if (m := TASK.match(n)) and int(m[1]) in numbers]
            for query, numbers in stages.items()
        }

    def followed(self, stages: object, wanted: dict[str, set[int]]) -> bool:
        """Whether their threads have these nice values before those of a later stage run."""
        assert isinstance(stages, dict)
        last = max(number for numbers in stages.values() for number in numbers)

        def done() -> str:
            threads = self.threads(stages)
            if {query: nices(self.pid, tids) for query, tids in threads.items()} == wanted:
                return "followed"
            names = [thread.name for thread in hotspot.threads(self.pid, 30)]
            return "over" if any((m := TASK.match(n)) and int(m[1]) > last for n in names) else ""

        return wait_until(done, START_S, f"the threads of {stages}") == "followed"

    def readers(self) -> list[int]:
        """Threads that feed a task in continuous mode."""
        every = hotspot.threads(self.pid, 30)
        return [thread.tid for thread in every if thread.name.startswith("continuous-reader--")]

    def batch_times(self, begin: float) -> list[float]:
        """ms of the batches that ended since then (time.monotonic())."""
        said = [line for line in self.said() if "at" in line]
        return [float(str(x["batch_ms"])) for x in said if float(str(x["at"])) > begin]

    def has_batches(self, count: int, begin: float = 0.0) -> bool:
        return len(self.batch_times(begin)) > count


@contextmanager
def application(folder: Path, cpu: int, *arguments: str) -> Iterator[Application]:
    """On one CPU: with as many as busy threads nobody would compete."""
    folder.mkdir()
    command = [
        *("setpriv", "--pdeathsig", "KILL", "--", "taskset", "-c", str(cpu)),
        *(sys.executable, str(Path(__file__).with_name("application.py")), *arguments),
    ]
    out = folder / "said"
    with out.open("w") as said, out.with_suffix(".err").open("w") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=errors,
            text=True,
            process_group=0,  # of our session: autogroup makes nice values of several useless
            env={**os.environ, "CHECKPOINTS": str(folder)},
        )
    try:
        yield Application(process, out)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cpu() -> int:
    return max(os.sched_getaffinity(0))


def used(pid: int, tids: Sequence[int]) -> float:
    """CPU time of these threads, s."""
    total = 0
    for tid in tids:
        fields = Path(f"/proc/{pid}/task/{tid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def nices(pid: int, tids: Sequence[int]) -> set[int]:
    return {found.nice for tid in tids if (found := procfs.stat(pid, tid)) is not None}


def changed(before: object, now: object) -> list[object]:
    assert isinstance(before, dict) and isinstance(now, dict)
    return [key for key in before.keys() & now.keys() if before[key][:2] != now[key][:2]]


LOAD = ("--backend", "nice", "--policy", "constant", "--period", "0.5")


def test_continuous_and_real_time(tmp_path: Path, cpu: int) -> None:
    with application(tmp_path / "app", cpu, "continuous", "A", "B") as app:
        stages = app.facts()["stages"]
        # A stage runs a while before its task has a thread, and that a reader.
        wait_until(lambda: len(app.readers()) == 2, START_S, "a reader for each query")
        before = states(app.pid)
        # Two tasks, each with a reader.
        shares = (*LOAD, "--share", "A*=4", "--share", "B*=1")
        with following([app.pid], app.engine, tmp_path / "load", shares, 2):
            threads = app.threads(stages)
            assert all(len(tids) == 1 for tids in threads.values())
            got = {query: nices(app.pid, tids) for query, tids in threads.items()}
            (a,), (b,) = got["A"], got["B"]
            assert b - a == 6  # a weight of 1024 to 272
            assert sorted(nices(app.pid, app.readers())) == [a, b]

            def ratio() -> float:
                spent = [used(app.pid, threads[query]) for query in "AB"]
                begin = time.monotonic()
                wait_until(lambda: time.monotonic() > begin + 8, 60)
                more = [used(app.pid, threads[query]) for query in "AB"]
                return (more[0] - spent[0]) / (more[1] - spent[1])

            # What else this CPU does within a window, A may lose more of than B.
            ratios: list[float] = []
            for _ in range(4):
                ratios.append(ratio())
                if 3.4 < ratios[-1] < 4.6:
                    break
            print(f"CPU of A by B: {ratios} for shares 4:1")
            assert 3.4 < ratios[-1] < 4.6

            # Each batch is a job of its own, on whatever threads of the pool. Where others compute,
            # a short one may be over before it is known.
            seen: list[object] = []
            followed = 0
            for seconds in (6, 12, 24):
                tell, tried = f"real-time {seconds}", 0
                while followed < 3 and tried < 5:
                    app.tell(tell)
                    seen.append(app.facts(len(seen) + 1)["stages"])
                    followed += app.followed(seen[-1], {"A": {a}, "B": {b}})
                    tell, tried = "next batch", tried + 1
            assert followed == 3, f"{followed} of {seen} were followed"
            assert all(one != other for one, other in pairwise(seen))
        assert not changed(before, states(app.pid))


def test_two_applications_of_micro_batches(tmp_path: Path, cpu: int) -> None:
    with (
        application(tmp_path / "a", cpu, "micro", "A") as a,
        application(tmp_path / "b", cpu, "micro", "B") as b,
    ):
        for app in (a, b):
            wait_until(partial(app.has_batches, 5), START_S, "batches")
        before = [states(app.pid) for app in (a, b)]

        def median(begin: float) -> list[float]:
            wait_until(lambda: all(len(app.batch_times(begin)) > 6 for app in (a, b)), 120)
            return [statistics.median(app.batch_times(begin)[1:]) for app in (a, b)]

        without = median(time.monotonic())
        shares = (*LOAD, "--engine", b.engine, "--share", "A=4", "--share", "B=1")
        with following([a.pid, b.pid], a.engine, tmp_path / "load", shares, 2):
            with_shares = median(time.monotonic())
        after = [states(app.pid) for app in (a, b)]
    print(f"ms a batch, A and B: {without} without, {with_shares} with shares 4:1")
    # Others may compute on this CPU, too: what A gains is at most what B loses.
    assert 0.7 < without[0] / without[1] < 1.4
    assert with_shares[0] < without[0]
    assert with_shares[0] < 0.6 * with_shares[1]
    for old, new in zip(before, after, strict=True):
        assert not changed(old, new)
