"""How checks in guests become tests: second attempts, their summary, and guests side by side.

Tried with processes of this machine in place of guests.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

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
        env = os.environ | {"KERNEL": image.name}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
        self.returncode = None
        self.said = f"{image.name} {options.cpus} {'exact' if options.icount else 'real'}"
        note(f"start {self.said}")
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
boots.CHECK_S = 4.0
boots.guest.kvm_works = lambda image: False
runner.qemu.find = runner.qemu.installed = lambda: None
boots.kernels.at_hand = boots.kernels.find = runner.image_of = Path
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
    if first_time("dies"):
        os.kill(os.getppid(), signal.SIGKILL)
def check_flaky():
    print("something")
    assert not first_time("flaky"), "a hiccup"
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
        env=os.environ | {"PYTHONPATH": f"{TESTS}:{TESTS.parent / 'vagrant'}"},
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
    summary = done.stdout.split("second attempts in guests")[1]
    assert "3 checks needed a second attempt" in summary
    for name, outcome, said in (
        ("guest_dies", "passed", "what the console said"),
        ("flaky", "passed", "AssertionError: a hiccup"),
        ("broken", "failed", "assert 1 + 1 == 3"),
    ):
        named, _, rest = summary.partition(f"check_{name}[6.18] {outcome} at the second attempt")
        assert rest, named
        assert said in rest.split("at the second attempt")[0]
    assert "first attempt, guest 6.18" in done.stdout  # with the failure
    # A fresh guest for each second attempt, which goes on with what follows.
    assert len(started(tmp_path)) == 4


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
    assert "3 checks needed a second attempt" in done.stdout


def test_no_second_attempt_where_all_is_well(tmp_path: Path) -> None:
    done = run(tmp_path, "-k", "well", guest_some=FLAKY)
    assert done.returncode == 0
    assert re.search(r"second attempts in guests =+\nnone\n", done.stdout)


BIG = """
import time
from pathlib import Path

KERNELS = ("6.16", "6.18")

def check_that_exact_ones_run_beside_it():
    end = time.monotonic() + 3
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
