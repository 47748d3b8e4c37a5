"""How checks in guests become tests: further attempts, what is flaky, and guests side by side.

Tried with processes of this machine in place of guests.
"""

import functools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import guest
import kernels
import pytest
import roots
from vm import conftest

from support import wait_until

TESTS = Path(__file__).parents[1]

CONFTEST = """
import os
import subprocess
from pathlib import Path
from vm import boots, conftest as runner
from vm.conftest import *

class Guest:
    log = "what the console said"
    def __init__(self, image, command, options, env):
        env = os.environ | env | {"KERNEL": image.name}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
        self.returncode = None
        self.said = f"{image.name} {options.cpus} {'exact' if options.icount else 'real'}"
        note(f"start {self.said}")
        self.give_way(options.nice)
    def give_way(self, nice):
        with open("nice", "a") as file:
            print(self.said, nice, file=file)
    def pause(self, *, paused):
        note(f"{'stop' if paused else 'go on'} {self.said}")
    def fileno(self):
        return self.process.stdout.fileno()
    def piece(self):
        piece = os.read(self.fileno(), 65536)
        if not piece:
            self.returncode = self.process.wait()
        return piece
    def cpu_s(self):
        return 0.0
    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        note(f"end {self.said}")

def note(text):
    with open("notes", "a") as file:
        print(text, file=file)

boots.guest.Guest = Guest
boots.CHECK_S, boots.STARVED = 4.0, 1
boots.guest.kvm_works = lambda image: False
runner.qemu_at_hand = lambda: True
runner.qemu.find = runner.qemu.installed = boots.guest.missing = lambda: None
boots.guest.at_hand = boots.kernels.find = runner.image_of = Path
boots.os.sched_getaffinity = lambda pid: {0, 1}
"""

FLAKY = """
import os, signal
from pathlib import Path

KERNELS = ("6.18",)

def first_time(what):
    try:
        Path(what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def check_well(): pass
def check_guest_dies():
    with open("dies", "a") as file:
        file.write("x")
    if Path("dies").read_text() == "x":
        os.kill(os.getppid(), signal.SIGKILL)
def check_flaky():
    print("something")
    assert not first_time("flaky"), 20 * "at length\\n" + "a hiccup"
def check_broken():
    assert 1 + 1 == 3
def check_after(): pass
"""

INTERRUPT = """
import os, signal, time
from pathlib import Path

KERNELS = ("6.16", "6.18")
CPUS = 1

def check_a():
    guest = os.getppid()
    stat = Path(f"/proc/{guest}/stat").read_text()
    if os.environ["KERNEL"] == "6.16":
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGINT)
    while os.getppid() == guest:
        time.sleep(0.05)
"""


def run(folder: Path, *arguments: str, **files: str) -> "subprocess.CompletedProcess[str]":
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "conftest.py").write_text(CONFTEST)
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder)),
            *("-p", "no:cacheprovider", "-v", *arguments),
        ],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{TESTS}:{TESTS / 'helpers'}:{TESTS.parent / 'vagrant'}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def outcomes(text: str) -> dict[str, str]:
    return dict(re.findall(r"::check_(\w+)\[.*\] (PASSED|FAILED|SKIPPED)", text))


def notes(folder: Path) -> list[str]:
    return (folder / "notes").read_text().splitlines()


def started(folder: Path) -> list[str]:
    return [note.removeprefix("start ") for note in notes(folder) if note.startswith("start")]


def test_what_fails_is_tried_once_more_and_named(tmp_path: Path) -> None:
    done = run(tmp_path, guest_some=FLAKY)
    assert outcomes(done.stdout) == {
        "well": "PASSED",
        "guest_dies": "PASSED",
        "flaky": "PASSED",
        "broken": "FAILED",
        "after": "PASSED",
    }
    assert started(tmp_path) == ["6.18 2 real"] * 4  # one for each that failed at first
    assert (tmp_path / "dies").read_text() == 4 * "x"  # it had to pass three times
    summary = done.stdout.split("flaky checks in guests")[1]
    assert "3 of 5 checks were flaky: more than 2 make the tests fail" in summary
    for name, outcome, said in (
        ("guest_dies", "passed", ["what the console said"]),
        ("flaky", "passed", ["something", "a hiccup"]),
        ("broken", "failed", ["assert 1 + 1 == 3"]),
    ):
        named, _, rest = summary.partition(f"check_{name}[6.18] {outcome}, but")
        assert rest, named
        shown = rest.split(", but")[0]
        assert [text for text in said if text not in shown] == []
    assert "first attempt, guest 6.18" in done.stdout  # with the failure


def test_a_guest_that_hangs_is_stopped(tmp_path: Path) -> None:
    hangs = "import os, signal\ndef check_a(): os.kill(os.getppid(), signal.SIGSTOP)\n"
    done = run(tmp_path, guest_some='KERNELS = ("6.18",)\n' + hangs + "def check_b(): pass")
    assert outcomes(done.stdout) == {"a": "FAILED", "b": "PASSED"}
    assert "the guest died, or was stopped" in done.stdout
    assert len(started(tmp_path)) == 3


def test_no_second_attempts_without_end(tmp_path: Path) -> None:
    broken = "\n".join(f"def check_{i}(): assert False" for i in range(6))
    done = run(tmp_path, guest_some='KERNELS = ("6.18",)\n' + broken)
    assert set(outcomes(done.stdout).values()) == {"FAILED"}
    assert "3 of 6 checks were flaky" in done.stdout


def test_one_attempt_where_all_is_well(tmp_path: Path) -> None:
    done = run(tmp_path, "-k", "well", guest_some=FLAKY)
    assert done.returncode == 0
    assert len(started(tmp_path)) == 1
    assert "0 of 1 checks were flaky\n" in done.stdout


OFTEN = """
from pathlib import Path
KERNELS = ("6.18",)

def check_wrong_half_of_the_time():
    with open("tries", "a") as file:
        file.write("x")
    assert len(Path("tries").read_text()) % 2 == 0, "an odd one"
"""


def test_what_is_wrong_half_of_the_time_fails(tmp_path: Path) -> None:
    done = run(tmp_path, guest_some=OFTEN)
    assert outcomes(done.stdout) == {"wrong_half_of_the_time": "FAILED"}
    assert len((tmp_path / "tries").read_text()) <= 4


LOOKS = """
from vm.inside import look_until
KERNELS = ("6.18",)
CPUS = 1
ICOUNT = True

def late():
    look_until(iter([False, True, True, True]).__next__, bool)

def check_at_once(): look_until(lambda: True, bool)
def check_late_a(): late()
def check_late_b(): late()
def check_late_c(): late()
"""


@pytest.mark.parametrize(
    ("selected", "code", "flaky"),
    [
        ("at_once", 0, "0 of 1 checks were flaky\n"),
        ("not late_c", 0, "2 of 3 checks were flaky\n"),
        ("late or once", 1, "3 of 4 checks were flaky: more than 2 make the tests fail\n"),
    ],
)
def test_too_many_flaky_checks_are_a_failure(
    tmp_path: Path, selected: str, code: int, flaky: str
) -> None:
    done = run(tmp_path, "-k", selected, guest_some=LOOKS)
    assert done.returncode == code, done.stdout
    assert set(outcomes(done.stdout).values()) == {"PASSED"}
    assert flaky in done.stdout


ONLY = """
from vm.inside import enough_on, only_on
KERNELS = ("6.16", "6.18", "7.3")

def check_everywhere(): pass
@only_on("6.16", "7.3")
def check_some(): pass
@enough_on("6.18")
def check_one(): pass
"""


@pytest.mark.parametrize("each", [False, True])
def test_a_check_for_some_kernels(
    each: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCHED_CTL_EACH_KERNEL", raising=False)
    if each:
        monkeypatch.setenv("SCHED_CTL_EACH_KERNEL", "1")
    done = run(tmp_path, guest_some=ONLY)
    assert done.returncode == 0, done.stdout
    assert "check_some[6.18]" not in done.stdout
    assert ("check_one[7.3]" in done.stdout) is each
    assert f"{8 if each else 6} passed" in done.stdout


PLAIN = """
import time
from pathlib import Path

def test_until_a_guest_begins():
    end = time.monotonic() + 20
    while not Path("exact").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
"""


LIFTED = """
import os, time
from pathlib import Path

KERNELS = ("6.16", "6.18", "7.3")
CPUS = 1
ICOUNT = True

def check_that_it_gives_way_until_it_is_asked_for():
    Path("exact").touch()
    end, mine = time.monotonic() + 20, os.environ["KERNEL"] + " 1 exact "
    while not any(
        line.startswith(mine) and not line.endswith(" 19")
        for line in Path("nice").read_text().splitlines()
    ):
        assert time.monotonic() < end
        time.sleep(0.01)
"""


def test_guests_begin_beside_other_tests(tmp_path: Path) -> None:
    done = run(tmp_path, guest_big=BIG, guest_exact=LIFTED, test_plain=PLAIN)
    assert done.returncode == 0, done.stdout
    assert notes(tmp_path)[0] == "start 6.16 1 exact"  # in real time not before all else is done
    # They give way to those in real time as well.
    nice = (tmp_path / "nice").read_text().splitlines()
    assert nice[:3] == ["6.16 1 exact 19", "6.18 1 exact 19", "6.16 2 real 0"]
    assert "6 passed" in done.stdout


STOPS = """
import pytest
from pathlib import Path
from still import still

def stopped():
    said = Path("notes").read_text()
    return said.count("stop ") - said.count("go on ")

def test_beside():
    assert stopped() == 0

@pytest.mark.quiet
def test_all_of_it():
    assert stopped() == 2
    with still():
        assert stopped() == 2
    assert stopped() == 2

@pytest.mark.quiet(whole=False)
def test_what_it_measures():
    assert stopped() == 0
    with pytest.raises(ZeroDivisionError), still():
        with still():
            assert stopped() == 2
        assert stopped() == 2
        1 / 0
    assert stopped() == 0

def test_after():
    assert stopped() == 0
"""


def test_guests_stand_still_while_a_test_compares(tmp_path: Path) -> None:
    done = run(tmp_path, guest_exact=LIFTED, test_plain=PLAIN, test_stops=STOPS)
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout


KNOWN = """
import pytest

KERNEL = "6.1"

@pytest.mark.vm
def test_a_command(vm):
    words, options = early()
    done = vm(*words, **options)
    assert (done.returncode, done.output) == (0, "it ran\\n")
    assert vm(*words, **options).returncode == 0

def early():
    begins = ("sh", "-c", "touch known; echo it ran")
    return ("6.1", *begins), {"cpus": 1, "icount": True}
"""


def test_a_command_that_is_known_early_begins_beside_other_tests(tmp_path: Path) -> None:
    plain = PLAIN.replace("exact", "known")
    done = run(tmp_path, guest_exact=EXACT, test_known=KNOWN, test_a_plain=plain)
    assert done.returncode == 0, done.stdout
    assert notes(tmp_path)[0] == "start 6.1 1 exact"  # the first in the line
    assert started(tmp_path).count("6.1 1 exact") == 2  # asked for again it runs again


TURNS = """
import time
from pathlib import Path
import pytest

@pytest.mark.parametrize("turn", range(600))
def test_short(turn):
    if not Path("known").exists():
        time.sleep(0.05)

def test_it_has_begun():
    assert Path("known").exists()
"""


def test_a_command_that_is_known_late_waits_for_no_guest_beside_tests(tmp_path: Path) -> None:
    begin = "    if not all(Path(kernel).exists() for kernel in ('6.16', '6.18')): return None\n"
    known = "from pathlib import Path\n" + KNOWN.replace("    begins", begin + "    begins")
    known = known.replace("    assert vm(*words, **options).returncode == 0\n", "")
    checks = LIFTED.replace('"exact"', 'os.environ["KERNEL"]').replace("+ 20", "+ 100")
    done = run(tmp_path, guest_exact=checks, test_known=known, test_a_plain=TURNS)
    assert done.returncode == 0, done.stdout
    assert started(tmp_path)[2] == "6.1 1 exact"


def test_of_several_commands_the_longest_is_first(tmp_path: Path) -> None:
    plain = PLAIN.replace("exact", "known")
    longer = "CPU_S = 9\n" + KNOWN.replace("6.1", "6.12")
    done = run(
        tmp_path, guest_exact=EXACT, test_known=KNOWN, test_longer=longer, test_a_plain=plain
    )
    assert done.returncode == 0, done.stdout
    assert started(tmp_path)[:2] == ["6.12 1 exact", "6.1 1 exact"]
    order = re.findall(r"^(test_\w+).py::", done.stdout, re.MULTILINE)
    assert order == ["test_a_plain", "test_longer", "test_known"]


BIG = """
import time
from pathlib import Path

KERNELS = ("6.16", "6.18")

def check_that_exact_ones_run_beside_it():
    end = time.monotonic() + 20
    while not Path("exact").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
"""

EXACT = """
import time
from pathlib import Path

KERNELS = ("6.16", "6.18", "7.3")
CPUS = 1
ICOUNT = True

def check_a():
    Path("exact").touch()
    time.sleep(0.3)
def check_b(): pass
"""


def test_a_guest_for_each_cpu(tmp_path: Path) -> None:
    done = run(tmp_path, guest_big=BIG, guest_exact=EXACT, guest_other=BIG)
    assert done.returncode == 0, done.stdout
    assert "10 passed" in done.stdout
    # Files with the same settings share a guest.
    assert sorted(started(tmp_path)) == [
        *("6.16 1 exact", "6.16 2 real", "6.18 1 exact", "6.18 2 real", "7.3 1 exact")
    ]
    running: list[str] = []
    most = 0
    for note in notes(tmp_path):
        what, _, name = note.partition(" ")
        (running.append if what == "start" else running.remove)(name)
        most = max(most, len(running))
        assert sum(name.endswith("2 real") for name in running) <= 1, running
    assert not running
    assert most == 2


def test_an_interrupted_run_leaves_no_guest(tmp_path: Path) -> None:
    done = run(tmp_path, guest_some=INTERRUPT)
    assert "KeyboardInterrupt" in done.stdout
    assert [note.partition(" ")[0] for note in notes(tmp_path)] == ["start", "start", "end", "end"]


def test_a_guest_gives_way_as_a_process_and_as_an_autogroup() -> None:
    with subprocess.Popen(
        ["cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=functools.partial(guest.prepare, 7),
    ) as child:
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 7
        group = Path(f"/proc/{child.pid}/autogroup")
        if os.geteuid() == 0 and group.exists():
            own = os.getpriority(os.PRIO_PROCESS, child.pid)
            assert group.read_text().split()[-1] == str(own)
        if os.geteuid() == 0:
            machine = guest.Guest.__new__(guest.Guest)
            machine._children = [child]
            machine.give_way(3)
            assert os.getpriority(os.PRIO_PROCESS, child.pid) == 3
            assert not group.exists() or group.read_text().split()[-1] == "3"
        assert child.stdin is not None
        child.stdin.close()


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/proc/self/autogroup").exists(),
    reason="needs root, whose writes are not limited in rate, and a kernel with autogroup",
)
def test_the_session_of_a_guest_is_as_nice_as_who_starts_it() -> None:
    def prepare() -> None:
        os.nice(3)
        guest.prepare(0)

    with subprocess.Popen(
        ["cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=prepare,
    ) as child:
        own = os.getpriority(os.PRIO_PROCESS, child.pid)
        group = Path(f"/proc/{child.pid}/autogroup").read_text()
        assert child.stdin is not None
        child.stdin.close()
    assert own == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 3)
    assert group.split()[-1] == str(own)


@pytest.mark.skipif(not guest._has_huge_files(), reason="needs mounts with huge pages")
def test_a_guest_s_memory_is_in_huge_pages_of_its_own(tmp_path: Path) -> None:
    wrapper, backend = guest._memory(tmp_path, guest.Options(memory="512M"))
    place = tmp_path / "memory"
    assert {"size=512M", f"mem-path={place}"} < set(backend.split(","))
    done = subprocess.run(
        [*wrapper, "cat", "/proc/self/mounts"], capture_output=True, text=True, check=True
    )
    [mount] = [line.split() for line in done.stdout.splitlines() if line.split()[1] == str(place)]
    assert mount[2] == "tmpfs" and "huge=always" in mount[3].split(",")
    assert str(place) not in Path("/proc/self/mounts").read_text()


@pytest.mark.parametrize("private", [("false",), ("no-such-program",)])
def test_without_such_pages_a_guest_s_memory_is_as_the_machine_has_it(
    private: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest, "PRIVATE", private)
    monkeypatch.setattr(guest, "_has_huge_files", guest._has_huge_files.__wrapped__)
    assert guest._memory(tmp_path, guest.Options()) == ([], "memory-backend-memfd,size=1G")


def test_a_guest_of_another_machine_without_a_root_is_skipped_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guest, "missing", lambda _: None)
    monkeypatch.setattr(conftest, "FETCH", [])
    monkeypatch.setattr(kernels, "find", Path)
    monkeypatch.setattr(roots, "root", Mock(side_effect=roots.RootError("there is no root")))
    with pytest.raises(pytest.skip.Exception, match=r"kernel 7\.3-arm64: there is no root"):
        conftest.image_of("7.3-arm64")


FETCHING = """
import time
from pathlib import Path

class Popen(subprocess.Popen):
    def __init__(self, words, **rest):
        assert words[2:] == ["fetch", "6.16", "6.18", "7.3", "6.1"], words
        super().__init__(["sh", "-c", "sleep 0.5; exec touch fetched"], **rest)

runner.subprocess = Namespace(**{**vars(subprocess), "Popen": Popen})
boots.guest.at_hand = lambda kernel: Path(kernel) if Path("fetched").exists() else None
"""

MANY = """
import time
from pathlib import Path
import pytest

def wait(name):
    end = time.monotonic() + 100
    while not Path(name).exists():
        assert time.monotonic() < end
        time.sleep(0.01)

def test_fetched():
    wait("fetched")

@pytest.mark.parametrize("turn", range(600))
def test_short(turn):
    if Path("notes").exists():  # a guest has begun
        wait("exact")
    else:
        time.sleep(0.05)

def test_it_was_fetched_first():
    assert Path("fetched").exists() and Path("exact").exists()
"""


def test_what_guests_need_is_fetched_beside_other_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetching = "from types import SimpleNamespace as Namespace\n" + FETCHING
    monkeypatch.setitem(globals(), "CONFTEST", CONFTEST + fetching)
    done = run(tmp_path, guest_exact=EXACT, test_a_plain=MANY, test_known=KNOWN)
    assert done.returncode == 0, done.stdout


def test_a_fetch_ends_with_the_run_and_stands_still_when_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda words, **rest: real(["sleep", "60"], **rest))
    fetch = conftest.Fetch(["6.18"])
    try:
        assert fetch.runs
        for paused, state in ((True, "T"), (False, "S")):
            fetch.pause(paused=paused)
            wait_until(lambda state=state: state_of(fetch.process.pid) == state)  # type: ignore[misc]
        monkeypatch.setattr(fetch, "end_s", 0.0)
        assert fetch.late  # whoever needs something asks for it itself
    finally:
        fetch.wait()
    # It takes away what it has half of.
    assert fetch.process.returncode == -signal.SIGTERM


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
