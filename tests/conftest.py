"""What all tests share: skips named by the missing capability, and their count at the end.

A test that decided nothing because others used the machine is counted apart: it lacks nothing.

A test that fails is tried once more if it is about what else runs: an engine, this machine, Spark.
A unit test never is, and checks in guests have a rule of their own (`vm.conftest`). The summary
shows what was seen at first, and the run fails if more than `FLAKY` tests needed this.
"""

import importlib.util
import logging
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import kept
import lane
import pytest

from changed import GitError, changed_files, concerned, unit_tests
from sched_ctl.kernel.libbpf import BpfError, library
from support import DISTURBED


def has_libbpf() -> bool:
    """Debian 12's own is too old; the extra `scx` brings one."""
    try:
        library()
    except BpfError:
        return False
    return True


# capability -> whether this machine has it
CAPABILITIES = {
    "root": os.geteuid() == 0,
    "cgroup1_cpu": any(
        " cgroup " in line and "cpu" in line.split()[3].split(",")
        for line in Path("/proc/mounts").read_text().splitlines()
    ),
    "cgroup2_cpu": any(
        line.split()[2] == "cgroup2"
        and "cpu" in Path(line.split()[1], "cgroup.controllers").read_text().split()
        for line in Path("/proc/mounts").read_text().splitlines()
    ),
    "psi": Path("/proc/pressure/cpu").exists(),
    "two_cpus": len(os.sched_getaffinity(0)) >= 2,
    "cc": shutil.which("cc") is not None,
    "clang": shutil.which("clang-19") is not None or shutil.which("clang") is not None,
    "libbpf": has_libbpf(),
    "java": shutil.which("javac") is not None,
    "gstreamer": shutil.which("gst-launch-1.0") is not None,
    "pyspark": importlib.util.find_spec("pyspark") is not None,
    "maven": shutil.which("mvn") is not None,
    "vagrant": shutil.which("vagrant") is not None,
    "qemu": shutil.which("qemu-system-x86_64") is not None,
    "mmdebstrap": shutil.which("mmdebstrap") is not None,
    "podman": shutil.which("podman") is not None,
    "zstd": shutil.which("zstd") is not None,
    "openssl": shutil.which("openssl") is not None,
    "chromium": bool(shutil.which("chromium-headless-shell") or shutil.which("chromium")),
}
ORDER = ("host", "engine", "spark", "vm")  # fast tests first
FLAKY = 3


ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "tests"
CONCERNED = pytest.StashKey[set[Path]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--changed",
        action="store_true",
        help="of the unit tests, only those that concern what differs from main",
    )
    parser.addoption("--lane", type=Path, help="for tests that run beside others: see lane.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.parent != ROOT / "tests" / "unit" or not config.option.changed:
        return None
    if CONCERNED not in config.stash:
        try:
            config.stash[CONCERNED] = concerned(ROOT, changed_files(ROOT))
        except GitError as error:
            config.get_terminal_writer().line(f"all unit tests, as git tells no changes: {error}")
            config.stash[CONCERNED] = unit_tests(ROOT)
    return collection_path not in config.stash[CONCERNED] or None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(capability, ...): skipped where one is missing")
    # Tests run beside each other, and beside a controller of this machine, see service/lock.py.
    os.environ.setdefault("SCHED_CTL_MACHINE_LOCK", "no")
    # A background job of a shell ignores it, and so would all that the tests start and interrupt.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.lane:
        config.pluginmanager.register(lane.Teller(config, config.option.lane))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def cost(item: pytest.Item) -> int:
        return max(
            (ORDER.index(m.name) + 1 for m in item.iter_markers() if m.name in ORDER), default=0
        )

    items.sort(key=cost)
    for item in items:
        if isinstance(item, pytest.Function) and cost(item):
            item.add_marker(pytest.mark.flaky(reruns=1))
        for mark in item.iter_markers("needs"):
            for capability in mark.args:
                if not CAPABILITIES[capability]:
                    item.add_marker(pytest.mark.skip(reason=f"needs {capability}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    beside = lane.begin(session)
    if beside is not None:
        session.config.pluginmanager.register(beside)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if len(flaky(session.config)) > FLAKY and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def flaky(config: pytest.Config) -> list[pytest.TestReport]:
    """What was seen of tests that were tried again."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return [] if reporter is None else reporter.stats.get("rerun", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.config.option.lane:
        return
    again = flaky(terminalreporter.config)
    if again:
        terminalreporter.section("tried again")
        for report in again:
            terminalreporter.line(f"{report.nodeid} failed in {report.when} at first:")
            for line in report.longreprtext.strip().splitlines()[-12:]:
                terminalreporter.line(f"    {line}")
        if len(again) > FLAKY:
            terminalreporter.line(f"{len(again)} of them: more than {FLAKY} make the tests fail")
    skipped = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    undecided = {reason: n for reason, n in skipped.items() if reason.startswith(DISTURBED)}
    if undecided:
        terminalreporter.section("not decided, as others used this machine")
        for reason, count in undecided.items():
            terminalreporter.line(f"{count:4} {reason.removeprefix(DISTURBED)}")
    terminalreporter.section("skipped for a missing capability")
    for reason, count in skipped.most_common():
        if reason not in undecided:
            terminalreporter.line(f"{count:4} {reason}")
    if len(skipped) == len(undecided):
        terminalreporter.line("none")
    reports = [report for some in terminalreporter.stats.values() for report in some]
    try:
        path = kept.keep(KEPT, reports, terminalreporter.config.stash.get(kept.GUESTS, []))
    except OSError as error:
        terminalreporter.line(f"what each took is not kept: {error}")
    else:
        if path is not None:
            terminalreporter.line(f"what each took: {path.relative_to(ROOT)}")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that is run in this process sets up what is logged, and where to."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which `./dev release` left what it made, beside a file of somebody else."""
    import releases  # with tests alone; those of this file go without guests

    return releases.make(tmp_path_factory.mktemp("release"))
