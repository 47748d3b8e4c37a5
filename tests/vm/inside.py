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

__all__ = ["EXACT", "MARK", "Skip", "look_until", "main", "skip", "text_of"]

MARK = "@@"  # starts a line that is for conftest.py
EXACT = "SCHED_CTL_EXACT"  # in the environment where time is exact
STATE = Path("/sys/kernel/sched_ext/state")


T = TypeVar("T")


class Skip(Exception):
    """The check does not apply here; says which capability is missing."""


def skip(missing: str) -> NoReturn:
    raise Skip(f"needs {missing}")


def text_of(path: str | Path) -> str:
    """The stripped text of a small file."""
    return Path(path).read_text().strip()


def look_until(look: Callable[[], T], good: Callable[[T], bool], times: int | None = None) -> T:
    """What `look` measures, when it is good; it may take a few looks, at most so many times.

    For whatever is measured over time. With exact time nothing disturbs: a second look is for what
    takes a while to count. Else the host may hold a virtual CPU back, at any moment and for long,
    and what is measured then says nothing: good looks have to be ahead by two before bad ones are
    ahead by three. So what is wrong most of the time is found.
    """
    exact = EXACT in os.environ
    seen: list[T] = []
    bad = 0
    while len(seen) < (times or (2 if exact else 12)):
        seen.append(look())
        bad += not good(seen[-1])
        ahead = len(seen) - 2 * bad
        if ahead >= 2 or (exact and bad < len(seen)):
            print("seen", seen)
            return seen[-1]
        if ahead <= -3 and not exact:
            break
    raise AssertionError(f"{bad} of {len(seen)} looks were bad: {seen}")


def main() -> int:
    """The arguments are three a check: its file, its name, and how long it may take, in seconds."""
    words = sys.argv[1:]
    failed = 0
    for path, name, timeout_s in zip(words[::3], words[1::3], words[2::3], strict=True):
        module = _load(Path(path))
        _say({"start": name})
        began = time.monotonic()
        outcome, text = _in_child(getattr(module, name), float(timeout_s))
        if outcome == "passed" and STATE.exists() and not _detached():
            outcome, text = "failed", "it left a scheduler attached"
        failed += outcome == "failed"
        seconds = time.monotonic() - began
        _say({"end": [path, name], "outcome": outcome, "text": text, "seconds": seconds})
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


def _in_child(check: Callable[[], None], timeout_s: float) -> tuple[str, str]:
    """Outcome and text. The child leads a process group, which is killed when it ends."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(reader)
        outcome, text = _run(check)
        sys.stdout.flush()
        os.write(writer, json.dumps([outcome, text[-20000:]]).encode())
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
        pieces = [json.dumps(["failed", f"not finished after {timeout_s:g} s"]).encode()]
    os.close(reader)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not pieces:
        return "failed", f"it ended without a result, status {status}"
    outcome, text = json.loads(b"".join(pieces))
    return str(outcome), str(text)


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
