"""Runs checks inside a guest, and what files of checks share.

A file `guest_*.py` holds functions `check_*`. `boots.py` boots a guest and this module runs the
checks there, each in a forked child of its own (imports are paid once, a crash or a scheduler left
behind does not reach the next check) and bounded in time.
"""

import contextlib
import functools
import importlib.util
import json
import os
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NoReturn, TypeVar

__all__ = [
    "EXACT",
    "MARK",
    "Skip",
    "enough_on",
    "look_until",
    "main",
    "only_on",
    "skip",
    "text_of",
]

MARK = "@@"  # starts a line that is for conftest.py
EXACT = "SCHED_CTL_EXACT"  # in the environment where time is exact
STATE = Path("/sys/kernel/sched_ext/state")
bad_looks = 0  # of this check so far

T = TypeVar("T")


class Skip(Exception):
    """The check does not apply here; says which capability is missing."""


def skip(missing: str) -> NoReturn:
    raise Skip(f"needs {missing}")


def text_of(path: str | Path) -> str:
    """The stripped text of a small file."""
    return Path(path).read_text().strip()


def only_on(*_kernels: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """For a check to which other kernels of its file can add nothing. `conftest.py` reads it."""
    return lambda check: check


def enough_on(*_kernels: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """For a check that holds on each kernel of its file, by arithmetic or bookkeeping of ours.

    It runs on these, or on all with `SCHED_CTL_EACH_KERNEL=1`. `conftest.py` reads it.
    """
    return lambda check: check


def look_until(look: Callable[[], T], good: Callable[[T], bool], times: int = 4) -> T:
    """What `look` measures, when it is good.

    With exact time nothing disturbs: a good first look is enough, and a bad one makes the check
    flaky and has to stay the only one of so many. Else the host may hold a virtual CPU back, at any
    moment and for long, and what is measured then says nothing: good looks have to be ahead by two
    before bad ones are ahead by three.
    """
    global bad_looks
    exact = EXACT in os.environ
    enough = _one_bad_of if exact else _ahead_by_two
    seen: list[T] = []
    bad = 0
    verdict = None
    while verdict is None:
        seen.append(look())
        if not good(seen[-1]):
            bad += 1
            bad_looks += exact
        verdict = enough(len(seen), bad, times)
    if not verdict:
        raise AssertionError(f"{bad} of {len(seen)} looks were bad: {seen}")
    print("seen", seen)
    return seen[-1]


def _one_bad_of(looks: int, bad: int, times: int) -> bool | None:
    """Whether these looks are good enough; None: look again."""
    if bad > 1:
        return False
    return True if not bad or looks == times else None


def _ahead_by_two(looks: int, bad: int, _times: int) -> bool | None:
    ahead = looks - 2 * bad
    if ahead >= 2:
        return True
    return False if ahead <= -3 or looks == 12 else None


def main() -> int:
    """The arguments are three a check: its file, its name, and how long it may take, in seconds."""
    words = sys.argv[1:]
    failed = 0
    for path, name, timeout_s in zip(words[::3], words[1::3], words[2::3], strict=True):
        module = _load(Path(path))
        _say({"start": name})
        began = time.monotonic()
        outcome, text, bad = _in_child(getattr(module, name), float(timeout_s))
        if outcome == "passed" and STATE.exists() and not _detached():
            outcome, text = "failed", "it left a scheduler attached"
        failed += outcome == "failed"
        seconds = time.monotonic() - began
        said = {"outcome": outcome, "text": text, "seconds": seconds, "bad_looks": bad}
        _say({"end": [path, name], **said})
    return int(failed > 0)


def _say(record: object) -> None:
    sys.stdout.write(f"\n{MARK}{json.dumps(record)}\n")
    sys.stdout.flush()


@functools.cache
def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _in_child(check: Callable[[], None], timeout_s: float) -> tuple[str, str, int]:
    """Outcome, text, bad looks. The child leads a process group, which is killed when it ends."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(reader)
        outcome, text = _run(check)
        sys.stdout.flush()
        os.write(writer, json.dumps([outcome, text[-20000:], bad_looks]).encode())
        os._exit(0)
    os.close(writer)
    pieces = []
    end = time.monotonic() + timeout_s
    while (left := end - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            piece = os.read(reader, 65536)
            if not piece:
                break
            pieces.append(piece)
            if piece.endswith(b"]"):
                break  # grandchildren may hold the pipe open
    else:
        pieces = [json.dumps(["failed", f"not finished after {timeout_s:g} s", 0]).encode()]
    os.close(reader)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not pieces:
        return "failed", f"it ended without a result, status {status}", 0
    outcome, text, bad = json.loads(b"".join(pieces))
    return str(outcome), str(text), int(bad)


def _run(check: Callable[[], None]) -> tuple[str, str]:
    try:
        check()
    except Skip as reason:
        return "skipped", str(reason)
    except BaseException:
        return "failed", re.sub(r'  File ".*/inside.py".*\n.*\n', "", traceback.format_exc())
    return "passed", ""


def _detached() -> bool:
    end = time.monotonic() + 60
    while text_of(STATE) != "disabled":
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


if __name__ == "__main__":
    # Under its real name, so that the Skip which checks import is the one caught here.
    from vm import inside

    sys.exit(inside.main())
