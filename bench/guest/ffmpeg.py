"""FFmpeg's two processes of bench.guest.cameras: what looks at a camera's frames, and a recording.

The FFmpeg is Debian 13's, whose threads have names; Debian 12 has one without. It is unpacked into
the ignored build folder, and run with that as its root.
"""

import contextlib
import os
import select
import signal
import struct
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.guest.inside import FIRST
from engines.cluster import CACHE, patiently

__all__ = ["THREADS", "Camera", "Recording", "fetch", "prepare", "programs"]

TREE = CACHE / "ffmpeg-trixie"
HERE = Path("/mnt")  # in that root: the folder for what is read and written
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
ALTERNATIVES = ("blas", "lapack")  # which a script of the package would have linked
THREADS = 5  # operators of a process: demuxer, decoder, filter graph, encoder, muxer
DECLARED = Path(__file__).resolve().parents[2] / "drivers" / "programs" / "ffmpeg.toml"
BOUNDARY = b"--ffmpeg\r\n"
EACH = 2  # of so many frames one is looked at
WIDTH, HEIGHT = 160, 90  # of what is looked at, grey
CAMERA, LARGE = "320x240", "640x480"


def fetch() -> None:
    """FFmpeg and all that it needs, once."""
    if TREE.exists():
        return
    import debian

    with debian.archive("trixie", TREE) as archive:
        archive.unpack_all("base-files", "ffmpeg")
        (archive.tree / HERE.relative_to("/")).mkdir(exist_ok=True)
        archive.tree.rename(TREE)


def programs() -> str:
    """What is shipped for FFmpeg, once for each process."""
    shipped = DECLARED.read_text()
    return "".join(
        shipped.replace('name = "ffmpeg"', f'name = "{name}"').replace(
            'find = { comm = "ffmpeg" }', f'find = {{ comm = "ffmpeg", args = "*title={name}*" }}'
        )
        for name in ("camera", "archive")
    )


def prepare(folder: Path) -> None:
    """What the camera shows, and what was recorded. folder: the root shows it, too."""
    subprocess.run(["mount", "--bind", folder, TREE / HERE.relative_to("/")], check=True)
    for source, codec, seconds, kind, file in (
        (CAMERA, "mjpeg", 1, "mpjpeg", "camera.mpjpeg"),
        (LARGE, "mpeg2video", 2, "matroska", "recording.mkv"),
    ):
        words = ["-f", "lavfi", "-i", f"testsrc2=size={source}:rate=25", "-t", str(seconds)]
        words += ["-c:v", codec, "-q:v", "5", "-f", kind, str(HERE / file)]
        subprocess.run(_command(*words), env=_environment(), check=True)


def _command(*words: str) -> list[str]:
    return ["chroot", str(TREE), "ffmpeg", "-nostdin", "-loglevel", "error", *words]


def _environment() -> dict[str, str]:
    private = ":".join(str(LIBRARIES / name) for name in ALTERNATIVES)
    return {"PATH": "/usr/sbin:/usr/bin", "LD_LIBRARY_PATH": private}


def _process(words: Sequence[str], stdin: int, stdout: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(_command(*words), env=_environment(), stdin=stdin, stdout=stdout)


class Camera:
    """FFmpeg decodes motion JPEG from a pipe, as network cameras send it, and scales each second
    frame. fps: of what leaves. Who sends and who takes goes before all others.
    """

    def __init__(self, folder: Path, fps: int) -> None:
        self._fps = fps
        self._log = folder / "camera.log"
        shown = (folder / "camera.mpjpeg").read_bytes()
        sends, into = os.pipe()
        out, takes = os.pipe()
        words = ["-threads", "1", "-r", str(EACH * fps), "-f", "mpjpeg", "-i", "pipe:0"]
        words += ["-vf", f"framestep={EACH},scale={WIDTH}:{HEIGHT}", "-pix_fmt", "gray"]
        words += ["-fps_mode", "passthrough", "-metadata", "title=camera"]
        words += ["-threads", "1", "-flush_packets", "1"]  # no frame is kept back
        self.process = _process([*words, "-f", "rawvideo", "pipe:1"], sends, takes)
        os.close(sends)
        os.close(takes)
        frames = [BOUNDARY + frame for frame in shown.split(BOUNDARY) if frame]
        self._other = os.fork()
        if self._other == 0:
            try:
                _camera(frames, EACH * fps, into, out, self._log)
            finally:
                os._exit(1)
        os.sched_setscheduler(self._other, *FIRST)
        patiently(self._flows, 60, "frames of the camera, without a lag")

    def _flows(self) -> bool:
        now_s = time.monotonic()
        waits = self.waits_s(now_s - 1.0, now_s - 0.2)
        return len(waits) > self._fps / 2 and bool(waits.max() < 0.1)

    def waits_s(self, begin_s: float, end_s: float) -> Any:
        """Of frames that were due in this time: from then until they left, or until now, s."""
        told = np.fromfile(self._log) if self._log.exists() else np.zeros(0)
        if not len(told):
            return np.zeros(0)
        now_s = time.monotonic()
        count = max(len(told) - 1, int((min(end_s, now_s) - told[0]) * self._fps) + 1)
        due = told[0] + np.arange(count) / self._fps
        left = np.full(count, now_s)
        left[: len(told) - 1] = told[1:]
        return (left - due)[(due >= begin_s) & (due < end_s)]

    def end(self) -> None:
        for pid in (self.process.pid, self._other):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        os.waitpid(self._other, 0)


def _camera(frames: Sequence[bytes], rate: int, into: int, out: int, log: Path) -> None:
    """Sends a frame each time that one is due, and writes down when those looked at came back."""
    os.set_blocking(into, False)
    waiting: deque[memoryview] = deque()
    begin_s, sent, taken = time.monotonic(), 0, 0
    size = WIDTH * HEIGHT
    with log.open("wb", buffering=0) as told:
        told.write(struct.pack("d", begin_s))
        while True:
            while begin_s + sent / rate <= time.monotonic():
                waiting.append(memoryview(frames[sent % len(frames)]))
                sent += 1
            with contextlib.suppress(BlockingIOError):
                while waiting:
                    written = os.write(into, waiting[0])
                    rest = waiting.popleft()[written:]
                    if rest:
                        waiting.appendleft(rest)
            due_s = begin_s + sent / rate - time.monotonic()
            ready, _, _ = select.select([out], [into] if waiting else [], [], max(0.0, due_s))
            if ready:
                piece = len(os.read(out, 1 << 16))
                now_s = time.monotonic()
                told.write(struct.pack("d", now_s) * ((taken + piece) // size - taken // size))
                taken += piece
                if not piece:
                    return


class Recording:
    """FFmpeg encodes a recording anew, without end, and as fast as it can."""

    def __init__(self, folder: Path) -> None:
        self._stats = folder / "archive.stats"
        words = ["-stream_loop", "-1", "-threads", "1", "-i", str(HERE / "recording.mkv")]
        words += ["-vf", "scale=480:360", "-c:v", "mpeg4", "-q:v", "5", "-threads", "1"]
        words += ["-stats_mux_pre", str(HERE / self._stats.name), "-metadata", "title=archive"]
        with open(os.devnull, "r+b") as nothing:
            self.process = _process(
                [*words, "-f", "matroska", "pipe:1"], nothing.fileno(), nothing.fileno()
            )
        patiently(self.done, 60, "frames of the recording")

    def done(self) -> int:
        """Frames that were written so far."""
        return self._stats.read_bytes().count(b"\n") if self._stats.exists() else 0

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
