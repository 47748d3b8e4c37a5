"""Tests on other kernels.

A file `guest_*.py` here runs inside a guest: each of its functions `check_*` becomes one test a
kernel. Files with the same settings share a guest for each kernel, which runs all their (selected)
checks. A file may set, as plain literals:

    KERNELS = ("6.18", "7.3")   default: all kernels of the matrix on which sched_ext works
    CPUS = 2
    SOCKETS = 2                 of these CPUs; each has a last-level cache
    MEMORY = "1G"
    ICOUNT = True               exact time; two CPUs take turns then
    ICOUNT_SHIFT = 0            2**ICOUNT_SHIFT ns an instruction
    TIMEOUT_S = 60              for each check

A check marked `@only_on("7.3")` (`vm.inside`) runs on these kernels of its file alone: where the
others can add nothing. With `@enough_on("7.3")` it does so unless `SCHED_CTL_EACH_KERNEL` is set.

For anything else there is the fixture `vm`, which runs one command in one guest. A file of such
tests may have a function `early`: the arguments of `vm`, or None as long as the guest cannot begin,
and its `KERNEL`. With exact time it then runs beside tests without guests, like the checks. `CPU_S`
is what it takes of a CPU, s: the longest is begun first.

A check passes at the first look, or is flaky: a bad look was let pass (`vm.inside.look_until`), or
an attempt failed (`vm.boots`). More flaky checks than `FLAKY` make the whole run fail.
"""

import ast
import compileall
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import guest
import kept
import kernels
import lane
import pytest
import qemu
import roots
import still
from vm.boots import GIVES_WAY, Boot, Command, Line, settings_of

ROOT = Path(__file__).parents[2]
FOLDERS = ("bench", "ctl", "drivers", "policies", "sim", "tests")
LINE = pytest.StashKey[Line]()
FETCH: list["Fetch"] = []  # of this run, if something is fetched beside tests
FETCH_S = 900.0  # for all of it: whoever needs something then asks for it itself
END_S = 10.0
FLAKY_CHECK = "flaky"  # name of a user property: what was seen
FLAKY = 0.03  # of all checks may be flaky, but two always
SHOWN = 12  # lines in the summary, of what was printed and of a traceback


@dataclass(frozen=True)
class Completed:
    """A command that ran in a guest; `output` is its stdout and stderr together."""

    returncode: int
    output: str
    console: str


@pytest.fixture(scope="session")
def vm(request: pytest.FixtureRequest) -> Callable[..., Completed]:
    """`vm("6.18", "uname", "-r", cpus=1)` runs a command in a guest; options as `guest.Options`."""

    def run(kernel: str, *words: str, **options: Any) -> Completed:
        image_of(kernel)
        line = line_of(request.session)
        job = line.begun(command(kernel, *words, **options))
        line.wait(job, lambda: job.done)
        code = guest.NO_GUEST if job.returncode is None else job.returncode
        return Completed(code, job.output.decode(errors="replace"), job.log)

    return run


def command(kernel: str, *words: str, **options: Any) -> Command:
    options.setdefault("append", kernels.append(kernel))
    return Command(kernel, guest.Options(**options), words)


@pytest.fixture(scope="session")
def kernel_image() -> Callable[[str], Path]:
    """`kernel_image("6.18")` is its image; skips the test where there is none."""
    return image_of


def image_of(kernel: str) -> Path:
    if FETCH and guest.at_hand(kernel) is None:
        FETCH[0].wait()
    lacking = guest.missing(kernels.matrix(kernel).architecture)
    if lacking is not None:
        pytest.skip(f"needs {lacking}")
    image, problem = _find(kernel)
    if image is None:
        pytest.skip(f"needs guest kernel {kernel}: {problem}")
    return image


@functools.cache
def _find(kernel: str) -> tuple[Path | None, str]:
    """Image, or why there is none: asked once a session, for it may ask Debian's archive.

    The root of another kind of machine comes from there, too.
    """
    try:
        image = kernels.find(kernel)
        if (architecture := kernels.matrix(kernel).architecture) != qemu.OWN:
            roots.root(architecture)
        return image, ""
    except (kernels.KernelNotFound, roots.RootError) as error:
        return None, str(error)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.name.startswith("guest_") and file_path.suffix == ".py":
        return GuestFile.from_parent(parent, path=file_path)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One guest after the other; in real time first: those with exact time can run beside them.

    Of these first the ones that take longest, so that none is left alone at the end: a check on two
    CPUs takes about four times as long as one on one. So do those of one command (`CPU_S`).
    """
    guests: dict[object, int] = {}
    checks: Counter[object] = Counter()
    boots: dict[pytest.Item, Boot] = {}
    for item in items:
        if isinstance(item, Check):
            boots[item] = Boot.of(item.kernel, item.settings)
            guests.setdefault(boots[item].key, len(guests))
            checks[boots[item].key] += 1

    def place(item: pytest.Item) -> tuple[int, bool, int, int]:
        if item.get_closest_marker("vm") is None:
            return 0, False, 0, 0
        if item not in boots:
            return 1, False, -getattr(getattr(item, "module", None), "CPU_S", 0), 0
        options, key = boots[item].options, boots[item].key
        return 2, options.icount, -checks[key] * options.cpus**2, guests[key]

    items.sort(key=place)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let guests run beside the tests that need none, where there are such tests."""
    checks = [isinstance(item, Check) for item in session.items]
    if any(checks) and not all(checks) and not session.config.option.collectonly:
        session.config.pluginmanager.register(Beside(session))


class Fetch:
    """What guests need and is not at hand, fetched by another process while tests go on."""

    def __init__(self, names: Iterable[str]) -> None:
        self.end_s = time.monotonic() + FETCH_S
        self.process = subprocess.Popen(
            [sys.executable, ROOT / "vagrant" / "vm", "fetch", *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=functools.partial(guest.prepare, GIVES_WAY),
        )

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    @property
    def late(self) -> bool:
        return self.runs and time.monotonic() >= self.end_s

    def wait(self) -> None:
        """Until all is there that can be had: two who fetch one thing are in each other's way."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, self.end_s - time.monotonic()))
        self.close()

    def pause(self, *, paused: bool) -> None:
        self.send(signal.SIGSTOP if paused else signal.SIGCONT)

    def close(self) -> None:
        """End it. It takes away what it has half of, if it is given the time."""
        for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
            self.send(number)
            if number is signal.SIGTERM:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(END_S)
        self.process.wait()

    def send(self, number: int) -> None:
        """To it and all that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)


def qemu_at_hand() -> bool:
    """Whether the emulator for two CPUs is there already."""
    found = qemu.at_hand()
    return found is not None and found.is_good


class Beside:
    """Looks after guests between tests. They pause for those that are marked `quiet` (`still`).

    What they need and is not at hand is fetched first; who does not need it does not wait for it.
    """

    def __init__(self, session: pytest.Session) -> None:
        self.session = session
        modules = dict.fromkeys(
            item.module
            for item in session.items
            if isinstance(item, pytest.Function) and item.get_closest_marker("skip") is None
        )
        self.early = [module.early for module in modules if hasattr(module, "early")]
        wanted = [item.kernel for item in session.items if isinstance(item, Check)]
        wanted += [module.KERNEL for module in modules if hasattr(module, "early")]
        names = [name for name in dict.fromkeys(wanted) if guest.at_hand(name) is None]
        self.emulator = not wanted or qemu_at_hand()
        if not self.emulator:
            names = names or wanted[:1]  # with a kernel comes the emulator
        if guest.missing() is None:
            lane.WAITING[:] = [self.go_on]
            if names:
                FETCH[:] = [Fetch(names)]

    def begin(self, line: Line) -> None:
        """Put what can begin by now first in the line: those of one command take longest."""
        for early in self.early[::-1]:  # of several the longest is the first
            if (asked := early()) is not None:
                words, options = asked
                line.jobs.insert(0, command(*words, **options))
                self.early.remove(early)

    def go_on(self) -> list[Fetch | Line]:
        """Let begin what can; whatever runs now."""
        for fetch in FETCH:
            if fetch.late:
                fetch.close()
        others: list[Fetch | Line] = [*FETCH]
        # Two who fetch an emulator would be in each other's way.
        if self.emulator or not any(fetch.runs for fetch in FETCH):
            line = line_of(self.session)
            self.begin(line)
            line.turn()
            others.append(line)
        return others

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        needs_guests = item.get_closest_marker("vm") is not None
        if needs_guests or guest.missing() is not None:
            return (yield)
        still.BESIDE[:] = self.go_on()
        quiet = item.get_closest_marker("quiet")
        whole = quiet is not None and quiet.kwargs.get("whole", True)
        with still.still() if whole else contextlib.nullcontext():
            return (yield)


class GuestFile(pytest.File):
    """A file of checks. It is only parsed here; the guest imports it."""

    def collect(self) -> Iterable["Check"]:
        tree = ast.parse(self.path.read_text(), str(self.path))
        settings = settings_of(tree)
        checks = [
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
        ]
        usable = [k.name for k in kernels.MATRIX if k.sched_ext is kernels.SchedExt.WORKS]
        for kernel in settings.get("KERNELS", usable):
            guest_of = {**settings, "KERNEL": kernel}
            for node in checks:
                if kernel not in kernels_of(node, kernel):
                    continue
                name = f"{node.name}[{kernel}]"
                yield Check.from_parent(self, name=name, node=node, settings=guest_of)


def kernels_of(check: ast.FunctionDef, otherwise: str) -> list[str]:
    """The kernels that its decorator `only_on` or `enough_on` names."""
    decorators = ["only_on"] if "SCHED_CTL_EACH_KERNEL" in os.environ else ["only_on", "enough_on"]
    for node in check.decorator_list:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in decorators:
            return [str(ast.literal_eval(name)) for name in node.args]
    return [otherwise]


class Check(pytest.Item):
    """One check on one kernel."""

    def __init__(self, *, node: ast.FunctionDef, settings: dict[str, Any], **rest: Any) -> None:
        super().__init__(**rest)
        self.check, self.line, self.settings = (self.path, node.name), node.lineno, settings
        self.kernel: str = settings["KERNEL"]
        self.boot: Boot | None = None  # known when the first guest is asked for
        self.add_marker("vm")
        # `vm.boots` bounds them in time; this is for what is forgotten.
        self.add_marker(pytest.mark.timeout(3600))

    def runtest(self) -> None:
        image_of(self.kernel)
        line = line_of(self.session)
        assert self.boot is not None
        results = self.boot.results
        line.wait(self.boot, lambda: self.check in results)
        result = results[self.check]
        if result.output:
            self.add_report_section("call", f"guest {self.kernel}", result.output)
        if result.first:
            title = f"first attempt, guest {self.kernel}"
            self.add_report_section("call", title, "\n".join(result.first).strip())
            said = "\n".join(last(text) for text in result.first if text)
            self.user_properties.append((FLAKY_CHECK, f"the first attempt said:\n{said}"))
        elif result.bad_looks:
            seen = f"{result.bad_looks} looks were bad:\n{last(result.output)}"
            self.user_properties.append((FLAKY_CHECK, seen))
        self.user_properties.append(("guest_s", round(result.seconds, 2)))
        self.user_properties.append(("cpu_s", round(result.cpu_s, 2)))
        if result.outcome == "skipped":
            pytest.skip(result.text)
        if result.outcome != "passed":
            raise CheckFailed(result.text)

    @property
    def is_flaky(self) -> bool:
        return any(name == FLAKY_CHECK for name, _ in self.user_properties)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, CheckFailed):
            return f"on kernel {self.kernel}: {excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.line - 1, self.name


def last(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-SHOWN:])


def line_of(session: pytest.Session) -> Line:
    """The one line of guests of this run, with the checks that are selected."""
    stash = session.config.stash
    if LINE not in stash:
        boots: dict[tuple[str, guest.Options], Boot] = {}
        emulator = qemu.find()
        for item in session.items:
            if isinstance(item, Check):
                new = Boot.of(item.kernel, item.settings)
                if new.options.cpus > 1 and emulator is not None and not emulator.is_good:
                    new.options = replace(new.options, icount=False)
                item.boot = boots.setdefault(new.key, new)
                item.boot.expect(item.check, item.settings.get("TIMEOUT_S", 60))
        stash[LINE] = Line(list(boots.values()))
        # Guests cannot write, and would compile everything at each boot.
        for folder in FOLDERS:
            compileall.compile_dir(ROOT / folder, quiet=2)
    return stash[LINE]


class CheckFailed(Exception):
    """A check failed in the guest; the text is its traceback."""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End guests that an interrupted run left; too many flaky checks are a failure."""
    if FETCH:
        FETCH[0].close()
    if LINE in session.config.stash:
        session.config.stash[LINE].close()
    checks = [item for item in session.items if isinstance(item, Check)]
    if sum(item.is_flaky for item in checks) > most_flaky(len(checks)) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def most_flaky(checks: int) -> int:
    """So many of these may be flaky."""
    return max(2, int(FLAKY * checks))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What guests took, and which checks were flaky, with what was seen."""
    stash = terminalreporter.config.stash
    if LINE not in stash:
        return
    terminalreporter.section("guests: seconds, of those on a CPU of this machine")
    for job in stash[LINE].jobs:
        terminalreporter.line(f"{job.took_s:5.0f} {job.cpu_s:5.0f}  {job.name}")
    terminalreporter.line(f"      {sum(job.cpu_s for job in stash[LINE].jobs):5.0f}  all")
    stash[kept.GUESTS] = [
        {"name": job.name, "seconds": round(job.took_s, 1), "cpu_seconds": round(job.cpu_s, 1)}
        for job in stash[LINE].jobs
    ]
    emulator = qemu.find()
    if emulator is not None:
        terminalreporter.line(f"one CPU on {qemu.installed()}, two on {emulator}")
        if not emulator.is_good:
            terminalreporter.line(f"two CPUs in real time only: {emulator.lacking}")
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
    ]
    checks = sum(any(name == "guest_s" for name, _ in report.user_properties) for report in reports)
    flaky = 0
    terminalreporter.section("flaky checks in guests")
    for report in reports:
        for name, text in report.user_properties:
            if name == FLAKY_CHECK:
                flaky += 1
                terminalreporter.line(f"{report.nodeid} {report.outcome}, but")
                for line in str(text).splitlines():
                    terminalreporter.line(f"    {line}")
    most = most_flaky(checks)
    terminalreporter.line(
        f"{flaky} of {checks} checks were flaky"
        + (f": more than {most} make the tests fail" if flaky > most else "")
    )
