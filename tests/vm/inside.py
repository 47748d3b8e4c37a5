"""Runs the checks of one file inside a guest, and what such files share.

A file `guest_*.py` holds functions `check_*`. `conftest.py` boots one guest for each kernel of
the file and this module runs the checks there, each in a forked child of its own (imports are
paid once, a crash or a scheduler left behind does not reach the next check) and bounded in time.
"""

import contextlib
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

__all__ = ["MARK", "Skip", "look_until", "main", "skip", "text_of"]

MARK = "@@"  # starts a line that is for conftest.py
STATE = Path("/sys/kernel/sched_ext/state")


T = TypeVar("T")


class Skip(Exception):
    """The check does not apply here; says which capability is missing."""


def skip(missing: str) -> NoReturn:
    raise Skip(f"needs {missing}")


def text_of(path: str | Path) -> str:
    """The stripped text of a small file."""
    return Path(path).read_text().strip()


def look_until(look: Callable[[], T], good: Callable[[T], bool], times: int = 6) -> T:
    """What `look` measures, when it is good for once; it may take a few looks.

    For whatever is measured over time: the host may hold a virtual CPU back, at any moment and for
    long, and what is measured then says nothing. What is wrong is wrong in every look.
    """
    seen: list[T] = []
    for _ in range(times):
        seen.append(look())
        if good(seen[-1]):
            print("seen", seen)
            return seen[-1]
    raise AssertionError(f"good in none of {times} looks: {seen}")


def main() -> int:
    path, timeout_s, *names = sys.argv[1:]
    module = _load(Path(path))
    failed = 0
    for name in names:
        _say({"start": name})
        began = time.monotonic()
        outcome, text = _in_child(getattr(module, name), float(timeout_s))
        if outcome == "passed" and STATE.exists() and not _detached():
            outcome, text = "failed", "it left a scheduler attached"
        failed += outcome == "failed"
        seconds = time.monotonic() - began
        _say({"end": name, "outcome": outcome, "text": text, "seconds": seconds})
    return int(failed > 0)


def _say(record: object) -> None:
    sys.stdout.write(f"\n{MARK}{json.dumps(record)}\n")
    sys.stdout.flush()


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
