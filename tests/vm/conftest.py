"""Tests on other kernels.

A file `guest_*.py` here runs inside a guest: each of its functions `check_*` becomes one test a
kernel. One guest is booted for each file and kernel and runs all its (selected) checks. The file
may set, as plain literals:

    KERNELS = ("6.18", "7.3")   default: all kernels of the matrix on which sched_ext works
    CPUS = 2
    SOCKETS = 2                 of these CPUs; each has a last-level cache
    MEMORY = "1G"
    ICOUNT = True               exact time, with CPUS = 1
    ICOUNT_SHIFT = 0            2**ICOUNT_SHIFT ns an instruction
    TIMEOUT_S = 60              for each check

For anything else there is the fixture `vm`, which runs one command in one guest.
"""

import ast
import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import guest
import kernels
import pytest
from vm.boots import LIMIT_S, Boot, chain

SETTINGS = ("KERNELS", "CPUS", "SOCKETS", "MEMORY", "ICOUNT", "ICOUNT_SHIFT", "TIMEOUT_S")
BOOT_S = 60.0
SECOND = "second attempt"  # name of a user property: what the first one said
SHOWN = 12  # lines of it in the summary


@dataclass(frozen=True)
class Completed:
    """A command that ran in a guest; `output` is its stdout and stderr together."""

    returncode: int
    output: str
    console: str


@pytest.fixture(scope="session")
def vm() -> Callable[..., Completed]:
    """`vm("6.18", "uname", "-r", cpus=1)` runs a command in a guest; options as `guest.Options`."""

    def run(kernel: str, *command: str, **options: Any) -> Completed:
        options.setdefault("append", kernels.append(kernel))
        with guest.boot(image_of(kernel), command, guest.Options(**options)) as machine:
            output = b"".join(machine.output()).decode(errors="replace")
        code = guest.NO_GUEST if machine.returncode is None else machine.returncode
        return Completed(code, output, machine.log)

    return run


@pytest.fixture(scope="session")
def kernel_image() -> Callable[[str], Path]:
    """`kernel_image("6.18")` is its image; skips the test where there is none."""
    return image_of


def image_of(kernel: str) -> Path:
    lacking = guest.missing()
    if lacking is not None:
        pytest.skip(f"needs {lacking}")
    image, problem = _find(kernel)
    if image is None:
        pytest.skip(f"needs guest kernel {kernel}: {problem}")
    return image


@functools.cache
def _find(kernel: str) -> tuple[Path | None, str]:
    """Image, or why there is none: asked once a session, for it may ask Debian's archive."""
    try:
        return kernels.find(kernel), ""
    except kernels.KernelNotFound as error:
        return None, str(error)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.name.startswith("guest_") and file_path.suffix == ".py":
        return GuestFile.from_parent(parent, path=file_path)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Guests with one CPU first: they can run two at a time."""
    items.sort(key=lambda item: isinstance(item, Check) and not item.boot.small)


class GuestFile(pytest.File):
    """A file of checks. It is only parsed here; the guest imports it."""

    def collect(self) -> Iterable["Check"]:
        tree = ast.parse(self.path.read_text(), str(self.path))
        settings = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id in SETTINGS
        }
        checks = [
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
        ]
        usable = [k.name for k in kernels.MATRIX if k.sched_ext is kernels.SchedExt.WORKS]
        for kernel in settings.get("KERNELS", usable):
            boot = Boot(self.path, kernel, settings, image_of)
            for node in checks:
                name = f"{node.name}[{kernel}]"
                yield Check.from_parent(self, name=name, node=node, boot=boot)


class Check(pytest.Item):
    """One check on one kernel."""

    def __init__(self, *, node: ast.FunctionDef, boot: Boot, **rest: Any) -> None:
        super().__init__(**rest)
        self.check, self.line, self.boot = node.name, node.lineno, boot
        self.add_marker("vm")
        # Each check is bounded in the guest, in its time, and all of them together here.
        self.add_marker(pytest.mark.timeout(LIMIT_S + BOOT_S))

    def runtest(self) -> None:
        if not self.boot.checks:
            prepare(self.session)
        began = time.monotonic()
        result = self.boot.result(self.check)
        if result.output:
            self.add_report_section("call", f"guest {self.boot.kernel}", result.output)
        if result.first:
            title = f"first attempt, guest {self.boot.kernel}"
            self.add_report_section("call", title, result.first)
            self.user_properties.append((SECOND, result.first))
        self.user_properties.append(("guest_s", round(result.seconds, 2)))
        self.user_properties.append(("wall_s", round(time.monotonic() - began, 2)))
        if result.outcome == "skipped":
            pytest.skip(result.text)
        if result.outcome != "passed":
            raise CheckFailed(result.text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, CheckFailed):
            return f"on kernel {self.boot.kernel}: {excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.line - 1, self.name

    def teardown(self) -> None:
        items = self.session.items
        position = items.index(self)
        following = items[position + 1] if position + 1 < len(items) else None
        if not (isinstance(following, Check) and following.boot is self.boot):
            self.boot.close()


def prepare(session: pytest.Session) -> None:
    """Tell each boot which of its checks are selected, and which boot follows it."""
    boots: list[Boot] = []
    for item in session.items:
        if isinstance(item, Check):
            item.boot.checks.append(item.check)
            if item.boot not in boots[-1:]:
                boots.append(item.boot)
    chain(boots)


class CheckFailed(Exception):
    """A check failed in the guest; the text is its traceback."""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End guests that an interrupted run left."""
    for item in getattr(session, "items", []):
        if isinstance(item, Check):
            item.boot.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what needed a second attempt, with what the first one said."""
    texts = {
        report.nodeid: (report.outcome, text)
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, text in report.user_properties
        if name == SECOND
    }
    terminalreporter.section("second attempts in guests")
    for name, (outcome, text) in texts.items():
        terminalreporter.line(f"{name} {outcome} at the second attempt; the first said:")
        for line in str(text).strip().splitlines()[-SHOWN:]:
            terminalreporter.line(f"    {line}")
    terminalreporter.line(f"{len(texts)} checks needed a second attempt" if texts else "none")
