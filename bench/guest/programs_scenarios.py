"""Scenarios of `bench.guest.programs`: which programs run, declared how, and to keep what."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.guest.programs_streams import (
    Detection,
    Ffmpeg,
    GStreamer,
    Stream,
    Suricata,
    rsyslog,
)

__all__ = ["SCENARIOS", "Scenario"]

FRAME, LARGE, FPS = 1_000, 10_000, 30  # bytes; a stage takes some 3 us of each in a guest

GSTREAMER = """
[[program]]
name = "NAME"
find = { comm = "gst-launch-1.0", args = "*name=NAME*" }
[program.threads]
'gst-launch-1\\.0|gmain|pool-.*' = { role = "housekeeping" }
'(?P<operator>[^:]+):.*' = "operator"
"""
FFMPEG = """
[[program]]
name = "NAME"
find = { comm = "ffmpeg", args = "*title=NAME*" }
[program.threads]
'ffmpeg' = { role = "housekeeping" }
'(?P<operator>(?:dmx|mux)\\d+):.*' = "operator"
'(?P<operator>(?:dec|enc)\\d+:\\d+):.*' = "operator"
'(?P<operator>vf#\\d+:\\d+)' = "operator"
"""
SURICATA = """
[[program]]
name = "packets"
find = { comm = "Suricata-Main" }
[program.threads]
'(?P<operator>W)#\\d+(?:-.*)?' = "operator"
'Suricata-Main|C[WS]|US|F[MR]#.*' = { role = "housekeeping" }
"""
RSYSLOG = """
[[program]]
name = "rsyslog"
find = { comm = "rsyslogd" }
[program.threads]
'rs:(?P<query>light|slow) (?P<operator>queue).*' = "operator"
'rsyslogd|rs:main.*|imudp.*' = { role = "io" }
"""
QUEUE, CODEC, WORKER, ACTION = r".*:.*", r"(dmx|dec|enc|mux|vf#)\d.*", r"W#.*", r"rs:(light|slow).*"


@dataclass(frozen=True)
class Scenario:
    """title: what is told. streams: starts them, those with deadlines first. programs: their
    declarations. operators: by process, a regular expression of its operators' threads. targets:
    by query, s.
    """

    title: str
    streams: Callable[[Path], Sequence[Stream]]
    programs: str
    operators: Mapping[str, str]
    targets: Mapping[str, float] = field(default_factory=dict)

    @property
    def engines(self) -> Sequence[str]:
        return [word for name in self.operators for word in ("--engine", f"program:{name}")]


def camera() -> Stream:
    return GStreamer("camera", ("decode", "detect", "tell"), FRAME, FPS)


def archive() -> Stream:
    return GStreamer("archive", ("read", "scale", "encode", "write"), LARGE)


def _gstreamer(*names: str) -> str:
    return "".join(GSTREAMER.replace("NAME", name) for name in names)


def _ffmpeg(*names: str) -> str:
    return "".join(FFMPEG.replace("NAME", name) for name in names)


SCENARIOS = {
    "cameras": Scenario(
        "A camera's GStreamer pipeline beside a heavy one",
        lambda root: (camera(), archive()),
        _gstreamer("camera", "archive"),
        {"camera": QUEUE, "archive": QUEUE},
        {"camera": 1 / FPS},
    ),
    "detection": Scenario(
        "A detection stream of FFmpeg 7.1 beside one that transcodes",
        lambda root: (Detection(root, "detection"), Ffmpeg(root, "recording")),
        _ffmpeg("detection", "recording"),
        {"detection": CODEC, "recording": CODEC},
        {"detection": Detection.deadline_s},
    ),
    "packets": Scenario(
        "A camera's GStreamer pipeline beside Suricata, which has more packets than time",
        lambda root: (camera(), Suricata(root, "packets")),
        _gstreamer("camera") + SURICATA,
        {"camera": QUEUE, "packets": WORKER},
        {"camera": 1 / FPS},
    ),
    "logs": Scenario(
        "Two action queues of rsyslog, one of them slow",
        rsyslog,
        RSYSLOG,
        {"rsyslog": ACTION},
        {"light": 0.02},
    ),
    "together": Scenario(
        "A camera (GStreamer), a detection stream (FFmpeg) and an archive on one CPU",
        lambda root: (camera(), Detection(root, "detection"), archive()),
        _gstreamer("camera", "archive") + _ffmpeg("detection"),
        {"camera": QUEUE, "detection": CODEC, "archive": QUEUE},
        {"camera": 1 / FPS, "detection": Detection.deadline_s},
    ),
}
