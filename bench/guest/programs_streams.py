"""Runs in a guest: streams of real programs, and when their frames were due and left."""

import contextlib
import fcntl
import functools
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.guest.inside import FIRST, say
from engines.cluster import patiently

__all__ = [
    "FOLDER",
    "Detection",
    "Ffmpeg",
    "GStreamer",
    "Stream",
    "Suricata",
    "prepared",
    "rsyslog",
]

FOLDER = Path("/run/programs")
LATENCY = re.compile(rb"latency,.*time=\(guint64\)(\d+), ts=\(guint64\)(\d+)")
LIBRARIES = [f"/usr/lib/x86_64-linux-gnu/{name}" for name in ("blas", "lapack", "pulseaudio")]
PIPE = 16 << 20  # bytes that wait for a program
FIRST_FRAMES = 50  # before anything else begins


def prepared(root: Path) -> Path:
    """The programs' root, with what they need at work, and a clip that can be transcoded."""
    for name in ("proc", "dev", "sys"):
        subprocess.run(["mount", "--bind", f"/{name}", root / name], check=True)
    for name in ("tmp", "run", "var/log"):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", root / name], check=True)
    return root


def chrooted(root: Path, words: Sequence[str], **how: Any) -> "subprocess.Popen[bytes]":
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join(LIBRARIES)}
    return subprocess.Popen(
        ["chroot", str(root), *words],
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "env": env, **how},
    )


def first(work: Callable[[], None]) -> None:
    """A thread of ours, which goes before all that is measured."""

    def run() -> None:
        os.sched_setscheduler(0, *FIRST)
        with contextlib.suppress(OSError, ValueError):  # the program has ended
            work()

    threading.Thread(target=run, daemon=True).start()


class Stream:
    """One query. deadline_s: from when a frame is due until it has left; 0: it has none.

    label: of its process, where that has another name.
    """

    deadline_s = 0.0
    label = ""
    name: str
    process: "subprocess.Popen[bytes]"

    def waits_s(self, begin_s: float, end_s: float) -> Any:
        """Of what was due in this time: until it left, s."""
        raise NotImplementedError

    def more(self, begin_s: float, end_s: float) -> Mapping[str, Mapping[str, float]]:
        """Further figures of this time, as `phases.figures` takes them."""
        return {}

    def end(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class GStreamer(Stream):
    """A pipeline of the core's elements; its tracer tells of frames that left.

    A queue is a thread, and a dump of a frame's bytes is the work of a stage. fps: 0 = as many as
    there is time for.
    """

    def __init__(self, name: str, stages: Sequence[str], size: int, fps: int = 0) -> None:
        self.name, self.fps = name, fps
        self.deadline_s = 1 / fps if fps else 0.0
        self.log = FOLDER / f"{name}.log"
        words = [*("gst-launch-1.0", "-q", "fakesrc", f"name={name}", "sizetype=fixed")]
        words += [f"sizemax={size}", "filltype=zero"]
        words += ["sync=true", f"datarate={size * fps}"] if fps else []
        for stage in stages:
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
        left, inside = np.array(self.frames()).T
        if not self.fps:
            return inside[(left >= begin_s) & (left < end_s)]
        entered = left - inside
        late = entered - np.arange(len(entered)) * self.deadline_s  # behind its own clock
        due = entered - (late - late[self.fps :].min())  # the first one comes before the clock runs
        if not len(due) or due[-1] < end_s - 1.0:
            say(f"{len(due)} frames, {late[-1] - late.min():.3f} s late, {end_s - left[-1]:.3f} s")
        return (left - due)[(due >= begin_s) & (due < end_s)]


class Ffmpeg(Stream):
    """One that transcodes a clip as fast as it can; how long a frame takes after the one before."""

    IN: tuple[str, ...] = ("-stream_loop", "-1", "-threads", "1", "-i", "/tmp/clip.mkv")
    WORK: tuple[str, ...] = ("-vf", "hqdn3d", "-c:v", "mpeg4", "-threads", "1")

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.left_s: list[float] = []
        out = ("-fps_mode", "passthrough", "-metadata", f"title={name}", "-flush_packets", "1")
        words = ("ffmpeg", "-v", "error", "-nostats", *self.IN, *self.WORK, *out)
        how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        if not (root / "tmp/clip.mkv").exists():
            clip = ("-f", "lavfi", "-i", "testsrc2=s=640x480:r=25", "-t", "2", "-c:v", "mpeg4")
            chrooted(root, ("ffmpeg", "-v", "error", *clip, "/tmp/clip.mkv")).wait()
        self.process = chrooted(root, (*words, "-f", "framecrc", "pipe:1"), **how)
        first(self._read)
        self._feed()
        # Until it has delivered so many it may still be at its start.
        patiently(lambda: len(self.left_s) >= FIRST_FRAMES, 60, f"frames of {name}")

    def _feed(self) -> None:
        """What it reads is a file."""

    def _read(self) -> None:
        assert self.process.stdout is not None
        rest = b""
        while piece := os.read(self.process.stdout.fileno(), 1 << 16):
            *lines, rest = (rest + piece).split(b"\n")
            frames = sum(not line.startswith(b"#") for line in lines)
            self.left_s += [time.monotonic()] * frames

    def waits_s(self, begin_s: float, end_s: float) -> Any:
        left = np.array(self.left_s)
        since = np.diff(left, prepend=left[0])
        return since[(left >= begin_s) & (left < end_s)]


class Detection(Ffmpeg):
    """One that looks for edges in raw frames that come at a rate, as a camera sends them."""

    FPS, WIDTH, HEIGHT = 20, 320, 240
    IN = (
        *("-f", "rawvideo", "-pix_fmt", "gray", "-s", f"{WIDTH}x{HEIGHT}", "-r", str(FPS)),
        *("-probesize", "32", "-threads", "1", "-i", "pipe:0"),
    )
    WORK = ("-vf", "scale=192:144,edgedetect", "-c:v", "rawvideo")
    deadline_s = 1 / FPS

    def _feed(self) -> None:
        self.due_s: list[float] = []
        first(self._write)

    def _write(self) -> None:
        assert self.process.stdin is not None
        pipe = self.process.stdin.fileno()
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE)
        frames = np.random.default_rng(1).integers(0, 256, (8, self.HEIGHT * self.WIDTH), np.uint8)
        due_s = time.monotonic()
        while True:
            due_s += self.deadline_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            self.due_s.append(due_s)
            view = memoryview(frames[len(self.due_s) % 8].tobytes())
            while view:
                view = view[os.write(pipe, view) :]

    def waits_s(self, begin_s: float, end_s: float) -> Any:
        n = len(self.left_s)
        due = np.array(self.due_s)
        wanted = (due >= begin_s) & (due < end_s)
        left = np.full(len(due), time.monotonic())  # that did not leave yet, at least until now
        left[:n] = self.left_s[: len(due)]
        return (left - due)[wanted]


class Suricata(Stream):
    """An intrusion detector of packets on the loopback interface, more than it has time for."""

    PORT, PER_S, RING = 7999, 400, 200
    RULE = 'alert udp any any -> any 7999 (content:"needle"; pcre:"/(x+x+)+y/"; sid:1;)\n'

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.sent: list[float] = []
        self.log = root / "tmp/eve.json"
        (root / "tmp/own.rules").write_text(self.RULE)
        own = ("-S", "/tmp/own.rules", "-l", "/tmp", "-k", "none", "--af-packet=lo")
        words = [*("suricata", "-c", "/etc/suricata/suricata.yaml"), *own]
        # Its counters move on once it has seen all of the ring.
        for setting in ("interface=lo", f"ring-size={self.RING}"):
            words += ["--set", f"af-packet.0.{setting}"]
        words += ["--set", "stats.interval=1"]
        self.process = chrooted(root, words, stderr=subprocess.DEVNULL)
        patiently(self._told, 120, "what Suricata tells")
        first(self._send)
        patiently(lambda: self._told()[-1][1] > 0, 60, "packets in Suricata")

    def _send(self) -> None:
        to = ("127.0.0.1", self.PORT)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as theirs:
            theirs.bind(to)  # else each packet brings another one that says so
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            packet = b"needle" + b"x" * 14 + bytes(400)
            due_s = time.monotonic()
            while True:
                due_s += 10 / self.PER_S
                time.sleep(max(0.0, due_s - time.monotonic()))
                for _ in range(10):
                    theirs.sendto(packet, to)
                    self.sent.append(due_s)

    def _told(self) -> list[tuple[float, float]]:
        """When it told, monotonic, how many packets it had seen so far."""
        if not self.log.exists():
            return []
        found = []
        offset = time.time() - time.monotonic()
        for line in self.log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event["event_type"] == "stats":
                    at = np.datetime64(event["timestamp"].partition("+")[0]).astype("M8[us]")
                    seen = float(event["stats"]["decoder"]["pkts"])
                    found.append((at.astype(float) / 1e6 - offset, seen))
        return found

    def waits_s(self, begin_s: float, end_s: float) -> Any:
        return np.array([])

    def more(self, begin_s: float, end_s: float) -> Mapping[str, Mapping[str, float]]:
        at, seen = np.array(self._told()).T
        within = np.flatnonzero((at >= begin_s) & (at <= end_s))
        if len(within) < 2:
            return {}
        one, other = within[0], within[-1]
        sent = np.array(self.sent)
        offered = np.count_nonzero((sent >= at[one]) & (sent < at[other]))
        span_s, done = at[other] - at[one], seen[other] - seen[one]
        return {
            "rates": {f"{self.name} seen": float(done / span_s)},
            "lost": {self.name: float(max(0.0, 1 - done / offered))},
        }


class Queue(Stream):
    """An action queue of rsyslog, by what it writes to a pipe: the time when a message was due."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", pipe: int) -> None:
        self.name, self.process, self._pipe = name, process, pipe
        self.label = "rsyslog"
        self.times: list[tuple[float, float]] = []  # due, left
        first(self._read)

    def _read(self) -> None:
        rest = b""
        while piece := os.read(self._pipe, 1 << 16):
            *lines, rest = (rest + piece).split(b"\n")
            now_s = time.monotonic()
            self.times += [(float(line.split()[0]), now_s) for line in lines if line.strip()]

    def waits_s(self, begin_s: float, end_s: float) -> Any:
        due, left = np.array(self.times).reshape(-1, 2).T
        return (left - due)[(left >= begin_s) & (left < end_s)]


CONF = """
global(workDirectory="/tmp")
module(load="imudp")
input(type="imudp" address="127.0.0.1" port="5514")
template(name="plain" type="string" string="%msg:R,ERE,1,DFLT:([0-9]+[.][0-9]+)--end%\\n")
template(name="costly" type="string" string="COSTLY\\n")
if $msg contains "light" then action(type="ompipe" pipe="/tmp/light" name="light"
    template="plain" queue.type="LinkedList" queue.dequeueBatchSize="8")
else action(type="ompipe" pipe="/tmp/slow" name="slow" template="costly"
    queue.type="LinkedList" queue.size="200" queue.timeoutEnqueue="0"
    queue.dequeueBatchSize="8")
"""
COSTLY = "%msg:R,ERE,1,DFLT:([0-9]+[.][0-9]+)--end%" + 20 * "%msg:R,ERE,0,BLANK:([a-w]+ )+x--end%"
RATES = {"light": 50, "slow": 400}  # messages a second


def rsyslog(root: Path) -> Sequence[Stream]:
    """Two action queues of one process: one has little to do, the other more than there is CPU."""
    (root / "tmp/rsyslog.conf").write_text(CONF.replace("COSTLY", COSTLY))
    pipes = {}
    for name in RATES:
        os.mkfifo(root / "tmp" / name)
        pipes[name] = os.open(root / "tmp" / name, os.O_RDWR)
        fcntl.fcntl(pipes[name], fcntl.F_SETPIPE_SZ, 1 << 20)
    words = ("rsyslogd", "-n", "-f", "/tmp/rsyslog.conf", "-i", "/tmp/rsyslog.pid")
    process = chrooted(root, words)
    found = [Queue(name, process, pipe) for name, pipe in pipes.items()]
    found[0].deadline_s = 1 / RATES["light"]
    for name, per_s in RATES.items():
        first(functools.partial(_log, name, per_s))
    patiently(lambda: all(queue.times for queue in found), 60, "messages through rsyslog")
    return found


def _log(name: str, per_s: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        due_s = time.monotonic()
        while True:
            due_s += 1 / per_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            text = (
                f"<13>Nov 25 10:00:00 here {name}: {name} {due_s:.6f} " + "some words of a log " * 8
            )
            out.sendto(text.encode(), ("127.0.0.1", 5514))
