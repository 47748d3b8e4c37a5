"""Who is always at work on a CPU whose clock is held down is told so; others are told nothing."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeEngine

from plans import array, plan
from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.kernel import procfs
from sched_ctl.metrics.verdicts import assess
from sched_ctl.metrics.window import Window
from sched_ctl.model.topology import Snapshot, Thread
from sched_ctl.probes.clocks import LEAST, MOST, Clock, Clocks
from sched_ctl.probes.limits import Limits
from sched_ctl.probes.waits import WaitTimes
from sched_ctl.service import bottlenecks
from sched_ctl.service.bottlenecks import Found

MINE = Thread(os.getpid(), os.getpid(), 1, "mine")


def files(folder: Path, **values: object) -> Path:
    """Of the CPUs that this process may run on."""
    for cpu in os.sched_getaffinity(0):
        for name, value in values.items():
            path = folder / f"cpu{cpu}" / ("acpi_cppc" if name == "nominal_freq" else "cpufreq")
            path.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(f"{value}\n")
    return folder


def told(folder: Path, looks: int = 3) -> Clock | None:
    clocks = Clocks(folder)
    for second in range(looks):
        clocks.look([MINE], 2.0 * second)
    return clocks.of([MINE])


PLAIN: dict[str, object] = {
    "cpuinfo_max_freq": 3_400_000,
    "scaling_max_freq": 3_400_000,
    "scaling_governor": "powersave",
}


@pytest.mark.parametrize(
    ("values", "by"),
    [
        ({"scaling_cur_freq": 1_200_000}, "governor powersave, power or heat"),
        ({"scaling_cur_freq": 1_200_000, "scaling_max_freq": 1_200_000}, "scaling_max_freq"),
        # Below what it does without a turbo, as two kinds of machines tell that
        ({"scaling_cur_freq": 1_600_000, "base_frequency": 2_200_000}, "governor powersave"),
        ({"scaling_cur_freq": 1_600_000, "nominal_freq": 2200}, "governor powersave"),
        ({"scaling_cur_freq": 2_200_000}, None),  # as fast as all cores together may be
        ({"scaling_cur_freq": 1_800_000, "base_frequency": 2_200_000}, None),
        # A limit that leaves it what it does without a turbo
        (
            {
                "scaling_cur_freq": 1_700_000,
                "scaling_max_freq": 1_700_000,
                "base_frequency": 1_700_000,
            },
            None,
        ),
        # What the kernel tells where it has no sample
        (
            {
                "scaling_cur_freq": 800_000,
                "scaling_min_freq": 800_000,
                "scaling_governor": "performance",
            },
            None,
        ),
        ({"scaling_cur_freq": 3_300_000}, None),
        ({"scaling_cur_freq": "<unknown>"}, None),
        ({}, None),
    ],
)
def test_a_clock_that_is_held_down(
    tmp_path: Path, values: dict[str, object], by: str | None
) -> None:
    found = told(files(tmp_path, **PLAIN | values))
    if by is None:
        assert found is None
    else:
        assert found is not None and found.by.startswith(by)
        assert (found.ghz, found.of_ghz) == (values["scaling_cur_freq"] / 1e6, 3.4)  # type: ignore[operator]


@pytest.mark.parametrize(("which", "is_told"), [("all", False), ("(null)", True), ("", True)])
def test_cpus_without_ticks_are_not_asked(tmp_path: Path, which: str, is_told: bool) -> None:
    files(tmp_path, **PLAIN, scaling_cur_freq=1_200_000)
    cpus = ",".join(f"{cpu}-{cpu}" for cpu in sorted(os.sched_getaffinity(0)))
    (tmp_path / "nohz_full").write_text(f"{cpus if which == 'all' else which}\n")
    assert (told(tmp_path) is not None) == is_told


def test_every_thread_gets_its_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = min(os.sched_getaffinity(0))
    monkeypatch.setattr(procfs, "last_cpu", lambda pid, tid: cpu)
    clocks = Clocks(files(tmp_path, **PLAIN, scaling_cur_freq=1_200_000))
    threads = [Thread(1, tid, 1, "t") for tid in range(5 * MOST)]
    for look in range(10):
        clocks.look(threads, 5.0 * look)
    assert all(clocks.of([thread]) for thread in threads)


def test_nothing_is_told_where_the_kernel_does_not_tell(tmp_path: Path) -> None:
    assert told(tmp_path) is None
    gone = Thread(1 << 22, 1 << 22, 1, "gone")
    clocks = Clocks(files(tmp_path, **PLAIN, scaling_cur_freq=1_200_000))
    for second in range(3):
        clocks.look([gone], float(second))
    assert clocks.of([gone]) is None


def test_one_look_says_nothing_and_all_have_to_agree(tmp_path: Path) -> None:
    slow = {**PLAIN, "scaling_cur_freq": 1_200_000}
    assert told(files(tmp_path, **slow), looks=1) is None
    clocks = Clocks(tmp_path)
    clocks.look([MINE], 0.0)
    clocks.look([MINE], 0.1)  # that was just now
    assert clocks.of([MINE]) is None
    clocks.look([MINE], 1.0)
    assert clocks.of([MINE]) is not None
    files(tmp_path, scaling_cur_freq=3_400_000)
    clocks.look([MINE], 2.0)
    assert clocks.of([MINE]) is None
    files(tmp_path, **slow)
    clocks.look([MINE], 20.0)
    clocks.look([MINE], 21.0)  # what was seen before is forgotten
    assert clocks.of([MINE]) is not None


def test_the_kernel_tells_where_a_thread_ran() -> None:
    assert procfs.last_cpu(MINE.pid, MINE.tid) in os.sched_getaffinity(0)
    assert procfs.last_cpu(1 << 22, 1 << 22) is None


class Engine:
    name, said = "e", dict[str, Any]()
    limits = Limits()

    def __init__(self, folder: Path) -> None:
        self.clocks, self.said = Clocks(folder), {}


def windowed() -> Window:
    """Of one operator that runs all the time, in this process's thread."""
    made = plan({"q": ["a"]})
    topology = replace(made, operators=(replace(made.operators[0], threads=(MINE,)),))

    def at(time_s: float) -> Snapshot:
        columns = {
            "thread_cpu_time": array(0.97 * time_s),
            "run_delay": array(0.0),
            "idle_time": array(0.0),
            "tuples_in": array(100 * time_s),
        }
        return Snapshot(topology, time_s, columns)

    return Window(at(14.0), at(10.0))


def always_at_work(engine: Any) -> Found:
    window = windowed()
    found = assess(window)
    for second in range(2):
        rows = Found(engine, window, found, WaitTimes()).rows
        engine.clocks.look(bottlenecks._always_at_work(window, found, rows), float(second))
    return Found(engine, window, found, WaitTimes())


@pytest.mark.parametrize(("now", "helps"), [(1_200_000, True), (3_300_000, False)])
def test_who_is_always_at_work_at_a_low_clock_is_advised_of_it(
    tmp_path: Path, now: int, helps: bool
) -> None:
    one = always_at_work(Engine(files(tmp_path, **PLAIN, scaling_cur_freq=now)))
    [query] = bottlenecks.bottlenecks([one])
    [operator] = query["operators"]
    assert query["verdict"] == operator["verdict"] == "single-thread-bound"
    assert ("faster clock" in query["advice"]) == helps
    said = "on a CPU at 1.2 of 3.4 GHz (governor powersave, power or heat)"
    assert (said in query["advice"]) == (said in bottlenecks.words(operator)) == helps
    assert "more replicas" in query["advice"]
    assert (query["clock"] == operator["clock"] == {"ghz": 1.2, "of_ghz": 3.4} | BY) == helps
    assert (query["clock"] is None) != helps


BY = {"by": "governor powersave, power or heat"}


def test_whoever_asks_for_verdicts_has_the_clocks_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(tmp_path, **PLAIN, scaling_cur_freq=1_200_000)
    window = windowed()
    monkeypatch.setattr(bottlenecks, "_then", lambda engine, now: window.then)
    monkeypatch.setattr("sched_ctl.probes.clocks.EVERY_S", 0.0)

    async def script() -> list[dict[str, Any]]:
        settings = Settings(policy=(Section(policy="hr"),), period=0.05)
        controller = Controller(settings, FakeEngine.kind(FakeEngine()), None)
        try:
            await controller.start()
            await controller.step(controller.rules)
            [engine] = controller.engines.values()
            monkeypatch.setattr(engine, "_latest", window.now)
            engine.clocks = Clocks(tmp_path)
            for _ in range(LEAST):
                found = list(bottlenecks.assessed(controller))
            return bottlenecks.bottlenecks(found)
        finally:
            controller.close()

    [query] = asyncio.run(script())
    assert query["clock"] == {"ghz": 1.2, "of_ghz": 3.4} | BY
