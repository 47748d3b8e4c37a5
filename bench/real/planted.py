"""Causes in engines that are not ours: what is planted in whom, and what is right to say of it.

All of it runs on the CPUs that this process may use, before everybody else on this machine. One of
them is for whom a cause is planted in alone.
"""

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from planted import CAUSES, hogs, limited

from sched_ctl.drivers import DriverKind, Target, program
from sched_ctl.kernel import procfs
from support import wait_until

__all__ = ["KEEPS_UP", "LIMITED", "Case", "Planted", "in_gstreamer", "in_storm"]

KEEPS_UP = ("input-bound", "keeps-up")
LIMITED = ("cpu-starved by a limit",)
Planted = Mapping[str, tuple[str, ...]]  # by operator or query: what is said if it is right
Case = tuple[str, Target, DriverKind, Planted]
FIRST = -20  # what is looked at
MINE = -10  # who looks, and hogs
SCALE = (0.75, 1.3)  # of rates
QUOTA = 0.3  # CPUs, of who gets a limit
BESIDE_HOGS: Planted = {"heavy/crunch": ("cpu-starved",), "heavy": ("cpu-starved",)}
WITH_LIMIT: Planted = {"heavy/crunch": LIMITED, "heavy": LIMITED}
ROOM = 64  # tuples in a queue
SETTLE_S = 4.0


@dataclass(frozen=True)
class Topology:
    """A query of tests/host/causes.graph. rate: tuples/s. cost_us: CPU time of a cost of 1. more:
    arguments of Topology.java.
    """

    query: str
    rate: float
    cost_us: float
    planted: Planted
    more: Mapping[str, object] = field(default_factory=dict)


# What a tuple and a look for input cost besides is Storm's own: costs of `heavy` are such that it
# takes little of the CPU that `crunch` wants.
STORM: Mapping[str, Topology] = {
    "heavy": Topology(
        "heavy",
        100.0,  # one can do 25
        10_000.0,
        {
            "heavy/crunch": ("single-thread-bound",),
            "heavy/in": ("backpressured",),
            "heavy/parse": ("backpressured",),
            "heavy": ("single-thread-bound",),
        },
    ),
    "waits": Topology(
        "waits",
        500.0,  # one can do 240
        1000.0,
        {
            "waits/lookup": ("io-bound",),
            "waits/ask": ("backpressured",),
            "waits/answer": KEEPS_UP,
            "waits": ("io-bound",),
        },
    ),
    "guarded": Topology(
        "waits",
        500.0,  # all three can do 100
        1000.0,
        {"guarded/ask": ("backpressured",), "guarded": ("lock-bound",)},
        {"executors.lookup": 3, "lock.lookup": 10},
    ),
    "light": Topology(
        "light",
        100.0,
        1000.0,
        dict.fromkeys(("light/read", "light/work", "light/write", "light"), KEEPS_UP),
    ),
    "quiet": Topology("quiet", 0.0, 1000.0, {"quiet/act": ("idle",), "quiet": ("idle",)}),
}

# One process each: elements, with figures that are drawn, and what is planted
FEW = "max-size-buffers=16 max-size-bytes=0 max-size-time=0"
GSTREAMER: Sequence[tuple[str, Planted]] = (
    (
        "fakesrc name=src sizetype=fixed sizemax={bytes} filltype=zero"
        f" ! queue name=parse {FEW} ! identity ! queue name=crunch {FEW} ! identity dump=true"
        f" ! queue name=out {FEW} ! fakesink",
        {
            "gstreamer/crunch": ("single-thread-bound",),
            "gstreamer/parse": ("backpressured",),
            "gstreamer": ("single-thread-bound",),
        },
    ),
    (
        "fakesrc name=src sizetype=fixed sizemax=100"
        f" ! queue name=ask {FEW} ! identity ! queue name=lookup {FEW}"
        f" ! identity sleep-time={{sleep_us}} ! queue name=answer {FEW} ! fakesink",
        {
            "gstreamer/lookup": ("io-bound",),
            "gstreamer/ask": ("backpressured",),
            "gstreamer": ("io-bound",),
        },
    ),
    (
        "fakesrc name=src sizetype=fixed sizemax=2000 ! identity sleep-time={sleep_us}"
        f" ! queue name=read {FEW} ! identity ! queue name=work {FEW} ! identity dump=true"
        f" ! queue name=write {FEW} ! fakesink",
        dict.fromkeys(
            ("gstreamer/read", "gstreamer/work", "gstreamer/write", "gstreamer"), KEEPS_UP
        ),
    ),
    (
        f"fdsrc fd=0 ! queue name=listen {FEW} ! identity ! queue name=act {FEW} ! fakesink",
        dict.fromkeys(("gstreamer/listen", "gstreamer/act", "gstreamer"), ("idle",)),
    ),
)
HEAVY_ONE = "gstreamer/crunch"


@contextlib.contextmanager
def _before_others() -> Iterator[None]:
    """This process, what it starts from then on, and its session."""
    group = Path("/proc/self/autogroup")
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(OSError):
        group.write_text(str(FIRST))
    os.setpriority(os.PRIO_PROCESS, 0, MINE)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        with contextlib.suppress(OSError):
            group.write_text("0")


def _give(pid: int, nice: int) -> None:
    """All threads of a process this nice value."""
    for tid in procfs.tids(pid):
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, tid, nice)


def _pin(pid: int, cpus: Collection[int], name: str = "") -> int:
    """To these CPUs threads of a process with this in their names; how many."""
    pinned = 0
    for tid in procfs.tids(pid):
        with contextlib.suppress(ProcessLookupError):
            if name in procfs.name_of(tid):
                os.sched_setaffinity(tid, cpus)
                pinned += 1
    return pinned


def in_storm(seeds: Sequence[int]) -> Iterator[Case]:
    """Topologies of one Storm, one after the other, and one of them beside hogs."""
    from engines import storm as engine
    from sched_ctl.drivers.storm import driver as storm

    mine = os.sched_getaffinity(0)
    cpu = max(mine)
    room = {"conf.topology.executor.receive.buffer.size": ROOM}
    with (
        TemporaryDirectory() as name,
        engine.running(Path(name) / "cluster", period_ms=500) as cluster,
    ):
        for query, one in STORM.items():
            file = Path(name) / f"{query}.rate"
            file.write_text("0")
            of = {"graph": CAUSES, "query": one.query, "base_cost_us": one.cost_us, **one.more}
            cluster.submit(name=query, rate_file=file, **of, **room)
            (pid,) = cluster.workers(query)
            target = next(target for target in storm.find() if target.pid == pid)
            for seed in seeds:
                file.write_text(f"{one.rate * random.Random(seed).uniform(*SCALE):.1f}")
                with _before_others():
                    _give(pid, FIRST)
                    if query == "heavy":  # what others take to look for room, it would wait for
                        _pin(pid, mine - {cpu} or mine)
                        wait_until(partial(_pin, pid, {cpu}, "-crunc"), 60, "its thread")
                    time.sleep(SETTLE_S)
                    yield "Storm", target, storm.kind, one.planted
                    if query == "heavy":
                        with limited(pid, QUOTA):
                            yield "Storm with a limit", target, storm.kind, WITH_LIMIT
                        _give(pid, MINE)
                        with hogs(4, cpu):
                            yield "Storm beside hogs", target, storm.kind, BESIDE_HOGS
                    _give(pid, 0)
            cluster.kill(query)  # else its threads would look for input all the time


@contextlib.contextmanager
def _pipeline(elements: str) -> Iterator[int]:
    child = subprocess.Popen(
        ["gst-launch-1.0", "-q", *elements.split()],
        stdin=subprocess.PIPE,  # in which nothing ever comes
        stdout=subprocess.DEVNULL,
    )
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


def in_gstreamer(seeds: Sequence[int]) -> Iterator[Case]:
    """Pipelines, one after the other, and one of them beside hogs."""
    cpu = max(os.sched_getaffinity(0))
    target = Target("program", "gstreamer")
    for seed in seeds:
        drawn = random.Random(seed)
        for elements, planted in GSTREAMER:
            scale = drawn.uniform(*SCALE)
            figures = {"bytes": round(20_000 * scale), "sleep_us": round(15_000 * scale)}
            with _before_others(), _pipeline(elements.format(**figures)) as pid:
                time.sleep(SETTLE_S)
                _give(pid, FIRST)
                _pin(pid, {cpu})  # where the hogs are
                yield "GStreamer", target, program.kind, planted
                if HEAVY_ONE in planted:
                    with limited(pid, QUOTA):
                        slowed = dict.fromkeys((HEAVY_ONE, "gstreamer"), LIMITED)
                        yield "GStreamer with a limit", target, program.kind, slowed
                    _give(pid, MINE)
                    with hogs(4, cpu):
                        starved = dict.fromkeys((HEAVY_ONE, "gstreamer"), ("cpu-starved",))
                        yield "GStreamer beside hogs", target, program.kind, starved
