"""Runs in a guest: a camera's pipeline beside a heavy one, in phases under the OS and sched-ctl.

    cameras_inside.py gstreamer|ffmpeg [PATTERN]    PATTERN: of names of ways

Both are real processes. Of GStreamer they are made of elements that its core has: a queue is a
thread, and a dump of a frame's bytes is the work of a stage. Of FFmpeg (bench/guest/ffmpeg.py) one
looks at a camera's frames, the other encodes a recording. The camera has a frame each 33 ms, which
must be through by the time that the next one comes; the other takes all the CPU it gets. What is
measured begins when the camera has no lag; how late its frames were while the order was loaded is
told beside it. Prints each phase as JSON, in lines that begin "@@ ".
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.guest import ffmpeg
from bench.guest.inside import Load, Neighbour, Pulse, go_first, measure, say, show, threads
from engines.cluster import patiently

FOLDER = Path("/run/cameras")
SECONDS = 5.0
SETTLE_S = 2.0
FPS = 30
DEADLINE_S = 1 / FPS
LEAVE_S = 1.0  # a frame is known once it has left; those that are late, too
FRAME, LARGE = 1_000, 10_000  # bytes; a stage takes some 3 us of each in a guest
PROGRAMS = """
[[program]]
name = "camera"
find = { comm = "gst-launch-1.0", args = "*name=camera*" }
[program.threads]
'gst-launch-1\\.0|gmain|pool-.*' = { role = "housekeeping" }
'(?P<operator>[^:]+):.*' = "operator"
[[program]]
name = "archive"
find = { comm = "gst-launch-1.0", args = "*name=archive*" }
[program.threads]
'gst-launch-1\\.0|gmain|pool-.*' = { role = "housekeeping" }
'(?P<operator>[^:]+):.*' = "operator"
"""
STAGES = {"camera": ("decode", "detect", "tell"), "archive": ("read", "scale", "encode", "write")}
SOURCES = {
    "camera": ("sync=true", f"sizemax={FRAME}", f"datarate={FRAME * FPS}"),
    "archive": (f"sizemax={LARGE}",),
}
LATENCY = re.compile(rb"latency,.*time=\(guint64\)(\d+), ts=\(guint64\)(\d+)")
HOW = ("--program", str(FOLDER / "programs.toml"), "--poll-timeout", "30", "--stale-after", "60")
ENGINES = ("--engine", "program:camera", "--engine", "program:archive")
LEAST_SLACK = ("--policy", "deadline", "--policy-option", "others=min-cost")
CLASSES = 'classes={"camera*": "constant", "*": "constant"}'


@dataclass(frozen=True)
class Way:
    """name: "os" = nothing is loaded. races: it is measured when a race has ended."""

    name: str
    arguments: tuple[str, ...] = ()
    races: bool = False


def _ways() -> Iterator[Way]:
    target = ("--target", f"camera*={DEADLINE_S * 1e3:.0f}ms")
    for backend in ("nice", "scx"):
        yield Way(f"auto, {backend}", ("--race", "2", "--backend", backend), races=True)
        by = ("--race", "0", "--backend", backend)
        yield Way(f"a target, {backend}", (*target, *LEAST_SLACK, *by))
        yield Way(
            f"multi-class, {backend}",
            ("--policy", "multi-class", "--policy-option", CLASSES, *by),
        )


WAYS = tuple(_ways())


class Pipeline:
    """One process, and what its tracer tells of frames that left."""

    def __init__(self, name: str) -> None:
        self.log = FOLDER / f"{name}.log"
        words = [*("gst-launch-1.0", "-q", "fakesrc", f"name={name}", "sizetype=fixed")]
        words += [*SOURCES[name], "filltype=zero"]
        for stage in STAGES[name]:
            words += ["!", "queue", f"name={stage}", "max-size-buffers=8", "!"]
            words += ["identity", "dump=true"]
        self.began_s = time.monotonic()
        self.process = subprocess.Popen(
            [*words, "!", "fakesink", "sync=false"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={
                **os.environ,
                "GST_TRACERS": "latency(flags=pipeline)",
                "GST_DEBUG": "GST_TRACER:7",
                "GST_DEBUG_NO_COLOR": "1",
                "GST_DEBUG_FILE": str(self.log),
                "GST_REGISTRY": str(FOLDER / "registry"),
            },
        )
        patiently(self.frames, 60, f"frames of {name}")
        # The tracer's clock begins somewhen while the process starts.
        self.began_s += time.monotonic() - self.frames()[-1][0]

    def frames(self) -> list[tuple[float, float]]:
        """Of each frame: when it left, monotonic, and how long it was inside, s."""
        found = LATENCY.findall(self.log.read_bytes()) if self.log.exists() else []
        return [(self.began_s + int(ts) / 1e9, int(inside) / 1e9) for inside, ts in found]

    def waits_s(self, begin_s: float, end_s: float) -> Any:
        """Of frames that were due in this time: from then until they left, s."""
        left, inside = np.array(self.frames()).T
        entered = left - inside
        late = entered - np.arange(len(entered)) * DEADLINE_S  # behind its own clock
        due = entered - (late - late[FPS:].min())  # the first frame comes before the clock runs
        if not len(due) or due[-1] < end_s - 1.0:
            say(f"{len(due)} frames, {late[-1] - late.min():.3f} s late, {end_s - left[-1]:.3f} s")
        return (left - due)[(due >= begin_s) & (due < end_s)]

    def done(self) -> int:
        """Frames that left so far."""
        return len(self.frames())

    def end(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@dataclass(frozen=True)
class Program:
    """scenario: what the heavy process does. expected: threads that are operators."""

    scenario: str
    declared: str
    expected: int
    camera: Pipeline | ffmpeg.Camera
    archive: Pipeline | ffmpeg.Recording


def gstreamer() -> Program:
    expected = sum(len(stages) + 1 for stages in STAGES.values())
    return Program("archive", PROGRAMS, expected, Pipeline("camera"), Pipeline("archive"))


def of_ffmpeg() -> Program:
    ffmpeg.prepare(FOLDER)
    camera = ffmpeg.Camera(FOLDER, FPS)
    archive = ffmpeg.Recording(FOLDER)
    return Program("recording", ffmpeg.programs(), 2 * ffmpeg.THREADS, camera, archive)


def role_of(label: str, comm: str) -> str:
    return f"operators of {label}" if ":" in comm else "helpers"


def while_loading(
    camera: Pipeline | ffmpeg.Camera, pulse: Pulse, begin_s: float, *, caught_up: bool
) -> dict[str, float]:
    """What was lost since then, ms. caught_up: return only when the camera has no lag any more;
    where the system's own order may be in force, it may have one for ever.
    """
    end_s = time.monotonic()

    def no_lag() -> bool:
        now_s = time.monotonic()
        waits = camera.waits_s(now_s - 1.0, now_s - 0.2)
        return len(waits) > FPS / 2 and bool(waits.max() < DEADLINE_S)

    if caught_up:
        patiently(no_lag, 1, "a camera without a lag")
    else:
        time.sleep(LEAVE_S)
    gone = f", lag gone {time.monotonic() - end_s:.1f} s on" if caught_up else ""
    waits = camera.waits_s(begin_s, end_s)
    found = {
        "a frame at most": float(waits.max(initial=0.0)) * 1e3,
        "nothing ran at most": pulse.longest_s(begin_s, end_s) * 1e3,
    }
    say(f"loaded in {end_s - begin_s:.1f} s: {found}{gone}")
    return found


def phase(way: Way, program: Program, neighbour: Neighbour) -> dict[str, Any]:
    camera, archive = program.camera, program.archive
    pids = {"camera": camera.process.pid, "archive": archive.process.pid}
    time.sleep(SETTLE_S)
    before, before_s = archive.done(), time.monotonic()
    found = measure(way.name, SECONDS, pids, role_of, neighbour)
    passed = (archive.done() - before) / (time.monotonic() - before_s)
    time.sleep(2 * DEADLINE_S)
    begin_s, end_s = found["begin"], found["end"]
    waits = camera.waits_s(begin_s, end_s)
    late = float((waits > DEADLINE_S).mean()) if len(waits) else 1.0
    found["queries"] = {"camera": [round(float(wait) * 1e3, 3) for wait in waits]}
    if isinstance(archive, Pipeline):
        large = [inside for left, inside in archive.frames() if begin_s <= left < end_s]
        found["queries"]["archive"] = [round(inside * 1e3, 3) for inside in large]
    else:
        found["passed"] = {"archive": passed}
    found["late"] = {"camera": late}
    found["roles"] = {name: of for name, of in found["roles"].items() if name == "helpers"}
    say(
        f"{way.name}: {len(waits)} frames, median {np.median(waits) * 1e3:.1f} ms, "
        f"{max(waits, default=0.0) * 1e3:.1f} at most, {late:.1%} late; "
        f"{passed:.1f}/s of the other"
    )
    return found


def run(program: Program, ways: Sequence[Way]) -> None:
    camera, archive = program.camera, program.archive
    (FOLDER / "programs.toml").write_text(program.declared)
    say([comm for one in (camera, archive) for _, comm in threads(one.process.pid)])
    nothing = Way("os")
    pulse, neighbour = Pulse(), Neighbour(0.0003)
    try:
        for way in (nothing, *ways, *reversed(ways), nothing):
            load, loading, mode = None, {}, {}
            if way is not nothing:
                begin_s = time.monotonic()
                arguments = (*ENGINES, *way.arguments)
                expected = 0 if way.races else program.expected
                load = Load(arguments, expected, {}, HOW, first=False)
                loading = while_loading(camera, pulse, begin_s, caught_up=not way.races)
                mode = {"mode": load.raced()} if way.races else {}
            found = phase(way, program, neighbour)
            show({"scenario": program.scenario, "loading": loading, **mode, **found})
            if load is not None:
                load.end()
    finally:
        for one in (pulse, neighbour, camera, archive):
            one.end()


def main() -> None:
    go_first()
    FOLDER.mkdir()
    program = {"gstreamer": gstreamer, "ffmpeg": of_ffmpeg}[sys.argv[1]]()
    chosen = re.compile(sys.argv[2] if len(sys.argv) > 2 else ".*")
    run(program, [way for way in WAYS if chosen.fullmatch(way.name)])


if __name__ == "__main__":
    main()
