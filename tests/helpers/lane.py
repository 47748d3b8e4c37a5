"""Runs some of the tests in a process of their own, beside the others.

Those that touch nothing but what is theirs, unit tests and fleets, need no machine that is quiet:
while they run, so do those of engines, and what either waits for costs nobody. The process gives
way (`PATIENCE`), and writes each report down as it comes; here they count as if the tests had run
here, in whichever order they end. A test that compares what it measures (`quiet`), or is in a
guest, comes when that process has ended.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest

__all__ = ["WAITING", "Lane", "Teller", "apart", "begin"]

PATIENCE = 10  # nice value beyond ours
LOOK_S = 0.2
END_S = 30.0  # for its tests to end what they have started
LEAVE_S = 60.0  # for what ends with the process, as Spark's JVM
OWN = ("host", "engine", "vm", "quiet")  # markers of tests that stay here
WAITING: list[Callable[[], object]] = []  # called now and then while a test there is waited for


def apart(item: pytest.Item) -> bool:
    """Whether it may run beside any other."""
    return not any(item.get_closest_marker(name) for name in OWN)


def begin(session: pytest.Session) -> "Lane | None":
    """Let those tests begin, where there are others for as long; they come before `quiet` ones."""
    config = session.config
    there = [item for item in session.items if apart(item)]
    here = [item for item in session.items if not apart(item)]
    long = [item for item in here if not any(map(item.get_closest_marker, ("skip", "vm")))]
    alone = config.option.collectonly or config.option.usepdb or config.option.lane
    if alone or not there or not long:
        return None
    session.items[:] = sorted(here + there, key=_place)
    for item in there:  # its limit counts there
        item.add_marker(pytest.mark.timeout(0), append=False)
    return Lane(session, there)


def _place(item: pytest.Item) -> int:
    if apart(item):
        return 1
    marked = [item.get_closest_marker(name) is not None for name in ("vm", "quiet")]
    return 3 if marked[0] else 2 if marked[1] else 0


class Lane:
    """Those tests here: their process, and what it has told."""

    def __init__(self, session: pytest.Session, items: Collection[pytest.Item]) -> None:
        self.config = session.config
        self.items = {item.nodeid: item for item in items}
        self.reports: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.told: set[str] = set()
        self.folder = tempfile.TemporaryDirectory(prefix="sched-ctl-lane-")
        folder = Path(self.folder.name)
        (folder / "tests").write_text(json.dumps(list(self.items)))
        (folder / "reports").touch()
        self.lines = (folder / "reports").open()
        self.rest = ""
        self.code: int | None = None  # with which the process ended
        files = dict.fromkeys(str(item.path) for item in items)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--lane={folder}"]
        command += _options(self.config)
        with (folder / "output").open("w") as output:
            self.process = subprocess.Popen(
                [*command, *files],
                cwd=self.config.invocation_params.dir,
                env=dict(os.environ),  # readline has put the terminal's width into the other one
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(_give_way, _patience()),
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Tell what has ended; of one of those tests, wait until it has."""
        self.look()
        if item.nodeid not in self.items:
            if _place(item) > 1 and not self.has_ended():  # all its tests have been told
                self.wait(lambda: False, LEAVE_S)
                self.end()
            return None
        self.wait(lambda: item.nodeid in self.told)
        if item.nodeid not in self.told:
            self.lost(item)
        return True

    def wait(self, enough: Callable[[], bool], most_s: float = float("inf")) -> None:
        """Until that, or the process has ended."""
        end_s = time.monotonic() + most_s
        while not enough() and time.monotonic() < end_s:
            ended = self.has_ended()  # asked first: it tells, and then it ends
            self.look()
            if ended:
                break
            for call in WAITING:
                call()
            time.sleep(LOOK_S)

    def has_ended(self) -> bool:
        """Whatever its tests have left is ended, too, as long as its number is nobody else's."""
        pid = self.process.pid
        if self.code is None and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            self.code = self.process.wait()
        return self.code is not None

    def look(self) -> None:
        """Take what has been told since."""
        *whole, self.rest = (self.rest + self.lines.read()).split("\n")
        for line in whole:
            told = json.loads(line)
            if "warning" in told:
                self.warn(**told)
            elif (name := told.get("ended")) is None:
                self.reports[told["nodeid"]].append(told)
            else:
                self.tell(name, [self._report(data) for data in self.reports.pop(name, [])])

    def tell(self, name: str, reports: list[pytest.TestReport]) -> None:
        location = self.items[name].location
        self.config.hook.pytest_runtest_logstart(nodeid=name, location=location)
        for report in reports:
            self.config.hook.pytest_runtest_logreport(report=report)
        self.config.hook.pytest_runtest_logfinish(nodeid=name, location=location)
        self.told.add(name)

    def warn(self, warning: str, filename: str, lineno: int, **rest: Any) -> None:
        message = warnings.WarningMessage(UserWarning(warning), UserWarning, filename, lineno)
        self.config.hook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": message, **rest}
        )

    def lost(self, item: pytest.Item) -> None:
        """The process ended without a word of this test."""
        said = Path(self.folder.name, "output").read_text(errors="replace")
        text = f"{said[-3000:]}\nits process ended with exit code {self.code}"
        report = pytest.TestReport(
            item.nodeid, item.location, {}, "failed", text, "call", duration=0.0
        )
        self.tell(item.nodeid, [report])

    def _report(self, data: dict[str, Any]) -> pytest.TestReport:
        report = self.config.hook.pytest_report_from_serializable(config=self.config, data=data)
        if isinstance(report.longrepr, list):  # where and why it was skipped: a tuple
            report.longrepr = tuple(report.longrepr)
        assert isinstance(report, pytest.TestReport)
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self.end()
        self.lines.close()
        self.folder.cleanup()

    def end(self) -> None:
        """End it, if it still runs: its tests are given the time to end what they have started."""
        for number in (signal.SIGINT, signal.SIGKILL):
            if not self.has_ended():
                os.killpg(self.process.pid, number)
                end_s = time.monotonic() + END_S
                while not self.has_ended() and time.monotonic() < end_s:
                    time.sleep(LOOK_S)


def _options(config: pytest.Config) -> list[str]:
    """Of how things are shown and what counts; which tests run is known."""
    given = config.option
    found = [f"--verbosity={given.verbose}", f"--tb={given.tbstyle}"]
    found += ["--showlocals"] if given.showlocals else []
    found += [f"-W{one}" for one in given.pythonwarnings or ()]
    found += [f"-o{one}" for one in given.override_ini or ()]
    found += [] if given.timeout is None else [f"--timeout={given.timeout}"]
    return found


def _give_way(patience: int) -> None:
    with contextlib.suppress(OSError):  # then it has its share, as each process
        Path("/proc/self/autogroup").write_text(str(patience))


def _patience() -> int:
    """Nice value for the group of a process that is to give way to ours, up to 19.

    Autogroups share the CPU first, and then their processes; a new one begins at 0: sched(7).
    """
    try:
        ours = int(Path("/proc/self/autogroup").read_text().split()[-1])  # "/autogroup-7 nice 0"
    except (OSError, ValueError, IndexError):
        ours = 0
    return min(PATIENCE + max(0, ours), 19)


class Teller:
    """Those tests in their process: only they run, and what they report is written down."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self.config = config
        self.parent = os.getppid()
        self.names = set(json.loads((folder / "tests").read_text()))
        self.reports = (folder / "reports").open("a")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self.names]

    def pytest_runtest_setup(self) -> None:
        if os.getppid() != self.parent:
            pytest.exit("nobody listens any more")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.write(data)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.write({"ended": nodeid})

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        told = f"{warning_message.category.__name__}: {warning_message.message}"
        place = {"filename": warning_message.filename, "lineno": warning_message.lineno}
        self.write({"warning": told, "when": when, "nodeid": nodeid, "location": location} | place)

    def write(self, data: dict[str, Any]) -> None:
        self.reports.write(json.dumps(data) + "\n")
        self.reports.flush()
