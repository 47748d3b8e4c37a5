"""Tests on other kernels.

A file `guest_*.py` here runs inside a guest: each of its functions `check_*` becomes one test a
kernel. One guest is booted for each file and kernel and runs all its (selected) checks. The file
may set, as plain literals:

    KERNELS = ("6.18", "7.3")   default: all kernels of the matrix on which sched_ext works
    CPUS = 2
    MEMORY = "1G"
    ICOUNT = True               exact time, with CPUS = 1
    ICOUNT_SHIFT = 0            2**ICOUNT_SHIFT ns an instruction
    TIMEOUT_S = 60              for each check

For anything else there is the fixture `vm`, which runs one command in one guest.
"""

import ast
import functools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import guest
import kernels
import pytest

ROOT = Path(__file__).parents[2]
MARK = "@@"  # as in inside.py
SETTINGS = ("KERNELS", "CPUS", "MEMORY", "ICOUNT", "ICOUNT_SHIFT", "TIMEOUT_S")
BOOT_S = 60.0
LIMIT_S = 480.0  # for one file and kernel, whatever happens, on a machine that is busy otherwise


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


@dataclass
class Result:
    outcome: str
    text: str
    seconds: float
    output: str


@dataclass
class Boot:
    """One guest for one file and kernel. Results come in the order of the checks."""

    path: Path
    kernel: str
    settings: dict[str, Any]
    checks: list[str] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)
    stream: Iterator[str] | None = None
    died: str = ""
    deadline: float | None = None

    def result(self, check: str) -> Result:
        if self.deadline is None:
            self.deadline = time.monotonic() + LIMIT_S
        for attempt in (1, 2):
            if check in self.results:
                break
            if time.monotonic() >= self.deadline:
                text = f"not run: the checks of this file did not end within {LIMIT_S:g} s"
                return Result("failed", f"{text}\n{self.died}", 0, "")
            if self.stream is None:
                left = self.checks[self.checks.index(check) :]
                self.stream = self.lines(left, single_thread=attempt > 1)
            self.read_until(check)
            if check not in self.results:
                # Once more, with what is left: an emulated guest dies now and then by itself.
                self.close()
        return self.results.get(check) or Result("failed", f"the guest died\n{self.died}", 0, "")

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

    def lines(self, checks: list[str], *, single_thread: bool) -> Iterator[str]:
        image = image_of(self.kernel)
        assert self.deadline is not None
        left_s = max(1.0, self.deadline - time.monotonic())
        timeout_s = self.settings.get("TIMEOUT_S", 60)
        if self.settings.get("ICOUNT"):
            # While such a guest waits for its files its clock leaps ahead, from timer to timer.
            timeout_s *= 100
        command = [sys.executable, str(Path(__file__).with_name("inside.py")), str(self.path)]
        options = guest.Options(
            cpus=self.settings.get("CPUS", 2),
            memory=self.settings.get("MEMORY", "1G"),
            icount=self.settings.get("ICOUNT", False),
            icount_shift=self.settings.get("ICOUNT_SHIFT", 1),
            timeout_s=left_s,
            single_thread=single_thread,
            append=kernels.append(self.kernel),
        )
        env = {"PYTHONPATH": str(ROOT / "tests")}
        with guest.boot(image, [*command, str(timeout_s), *checks], options, env) as machine:
            rest = b""
            for piece in machine.output():
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line.decode(errors="replace").rstrip("\r") + "\n"
            yield rest.decode(errors="replace")
        self.died = f"exit code {machine.returncode}\n{machine.log}"

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()  # type: ignore[attr-defined]
            self.stream = None


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
            boot = Boot(self.path, kernel, settings)
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
            self.boot.checks = [
                item.check
                for item in self.session.items
                if isinstance(item, Check) and item.boot is self.boot
            ]
        began = time.monotonic()
        result = self.boot.result(self.check)
        if result.output:
            self.add_report_section("call", f"guest {self.boot.kernel}", result.output)
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


class CheckFailed(Exception):
    """A check failed in the guest; the text is its traceback."""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End guests that an interrupted run left."""
    for item in getattr(session, "items", []):
        if isinstance(item, Check):
            item.boot.close()
