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
import contextlib
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
        note(f"start {image.name}")
    def stop_after(self, timeout_s):
        note(f"at most {timeout_s:.0f} s")
    def output(self):
        yield from self.process.stdout
        self.returncode = self.process.wait()
    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        note("end")

def note(text):
    with open("notes", "a") as file:
        print(text, file=file)

boots.guest.Guest = Guest
boots.guest.boot = lambda *arguments: contextlib.closing(Guest(*arguments))
boots.kernels.at_hand = runner.image_of = Path
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
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    if os.environ["KERNEL"] == "6.16":
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGINT)
    time.sleep(60)
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
    # A fresh guest for each second attempt, and for what followed the last.
    assert (tmp_path / "notes").read_text().split("\n").count("start 6.18") == 4


def test_no_second_attempts_without_end(tmp_path: Path) -> None:
    broken = "\n".join(f"def check_{i}(): assert False" for i in range(6))
    done = run(tmp_path, guest_some='KERNELS = ("6.18",)\n' + broken)
    assert set(outcomes(done.stdout).values()) == {"FAILED"}
    assert "3 checks needed a second attempt" in done.stdout


def test_no_second_attempt_where_all_is_well(tmp_path: Path) -> None:
    done = run(tmp_path, "-k", "well", guest_some=FLAKY)
    assert done.returncode == 0
    assert re.search(r"second attempts in guests =+\nnone\n", done.stdout)


def test_guests_with_one_cpu_run_two_at_a_time(tmp_path: Path) -> None:
    kernels = 'KERNELS = ("6.16", "6.18", "7.3")\n'
    small = kernels + "CPUS = 1\ndef check_a(): pass\ndef check_b(): pass\n"
    done = run(tmp_path, guest_any=kernels + "def check_c(): pass", guest_small=small)
    assert done.returncode == 0, done.stdout
    assert "9 passed" in done.stdout
    notes = (tmp_path / "notes").read_text().split("\n")
    assert [note for note in notes if note.startswith(("start", "end"))] == [
        *("start 6.16", "start 6.18", "end", "start 7.3", "end", "end"),
        *("start 6.16", "end", "start 6.18", "end", "start 7.3", "end"),
    ]


def test_an_interrupted_run_leaves_no_guest(tmp_path: Path) -> None:
    done = run(tmp_path, guest_some=INTERRUPT)
    assert "KeyboardInterrupt" in done.stdout
    notes = (tmp_path / "notes").read_text().split()
    assert notes.count("end") == notes.count("start") == 2
