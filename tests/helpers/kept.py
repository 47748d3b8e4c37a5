"""What a run of all tests took, kept as a file: each test, and each guest and check in it."""

import json
import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["GUESTS", "WHOLE", "keep"]

# Of each boot its name, seconds, and those on a CPU
GUESTS = pytest.StashKey[Sequence[dict[str, Any]]]()
WHOLE = 2000  # tests, from which on a run is one of all


def keep(folder: Path, reports: Iterable[object], guests: Sequence[dict[str, Any]]) -> Path | None:
    """The file that was written, None if it was no run of all tests. Raises OSError."""
    seconds: dict[str, float] = defaultdict(float)
    # Of a check: how long its test took tells only how long others ran before it.
    cpu_s: dict[str, float] = {}
    for report in reports:
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid] += report.duration
            said: dict[str, Any] = dict(report.user_properties)
            if "cpu_s" in said:
                cpu_s[report.nodeid] = said["cpu_s"]
    if len(seconds) < WHOLE:
        return None
    found = {
        "kernel": platform.release(),
        "seconds": round(sum(seconds.values()), 1),
        "guests": sorted(guests, key=lambda guest: -guest["seconds"]),
        "check_cpu_seconds": _longest_first(cpu_s),
        "tests": _longest_first(seconds),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y-%m-%dT%H%M%S')}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path


def _longest_first(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(s, 2) for name, s in sorted(seconds.items(), key=lambda item: -item[1])}
