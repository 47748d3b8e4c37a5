"""`sched-ctl demo`: the lab engine under the OS's own scheduling and under a policy, side by side.

Phases alternate ABBA (OS, policy, policy, OS, ...), so that a slow drift of the machine hits both
alike. Each phase is a run of its own, from an empty engine; the two runs of a pair have the same
seed, so the same tuples arrive at the same moments. All tuples count that were due after the
warm-up: the engine drains its queues before it reports, so those that a scheduler starved are in.
"""

import asyncio
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sched_ctl import lab, registry
from sched_ctl.backends import Backend
from sched_ctl.backends import journal as journals
from sched_ctl.backends.ladder import choose
from sched_ctl.cli import show
from sched_ctl.config import Binding, Settings
from sched_ctl.controller import Controller
from sched_ctl.drivers import EngineError, Target
from sched_ctl.drivers import lab as lab_driver
from sched_ctl.enforcing import Backends
from sched_ctl.errors import UserError
from sched_ctl.lock import hold

__all__ = ["MEASURES", "Options", "Phase", "run"]

log = logging.getLogger(__name__)

OS = "OS"
WARM_UP_S = 1.0
SAMPLE_S = 0.05
# A phase is called disturbed if others used more than this part of the engine's CPUs.
DISTURBED = 0.1


class _Distribution(msgspec.Struct):
    """As labspe reports it. histogram: (lower end of a bucket, count)."""

    mean: float
    p99: float
    max: float = 0.0
    histogram: list[tuple[float, int]] = []


class _Total(msgspec.Struct):
    departures: float
    latency_s: _Distribution
    slowdown: _Distribution


class _Results(msgspec.Struct):
    throughput: float
    context_switches_per_s: float
    queue_mean: float
    queue_variance: float
    cpu: float
    total: _Total


@dataclass(frozen=True, kw_only=True)
class Options:
    workload: str = "syn"
    load: float = 0.9
    policy: str = "hr"
    backend: str = "auto"
    period_s: float = 0.5
    cpus: int = 1
    phases: int = 4
    phase_s: float = 6.0
    seed: int = 1
    out: Path | None = Path("sched-ctl-demo")
    run_dir: Path = Path(Settings().run_dir)


@dataclass
class Phase:
    """What one run gave. times_s, queued: (k,) samples of the tuples in all queues."""

    scheduler: str
    pair: int
    results: _Results
    disturbed: float
    times_s: list[float] = field(default_factory=list)
    queued: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Measure:
    """A line of the table. better: +1 if more is better, -1 if less is."""

    name: str
    unit: str
    better: int
    of: Any  # function from _Results to a float
    scale: float = 1.0


MEASURES = (
    Measure("throughput", "tuples/s", +1, lambda r: r.throughput),
    Measure("mean latency", "ms", -1, lambda r: r.total.latency_s.mean, 1e3),
    Measure("p99 latency", "ms", -1, lambda r: r.total.latency_s.p99, 1e3),
    Measure("maximum latency", "ms", -1, lambda r: r.total.latency_s.max, 1e3),
    Measure("mean slowdown", "", -1, lambda r: r.total.slowdown.mean),
    Measure("maximum slowdown", "", -1, lambda r: r.total.slowdown.max),
    Measure("tuples waiting", "tuples", -1, lambda r: r.queue_mean),
    Measure("variance of queue sizes", "tuples²", -1, lambda r: r.queue_variance),
    Measure("context switches", "1/s", -1, lambda r: r.context_switches_per_s),
)


class _Stopped(KeyboardInterrupt):
    """A signal asked us to end. Of this class, so that no `except Exception`, and no event loop,
    takes it for a failure of the step that it happened to interrupt."""


def run(options: Options, *, json: bool = False) -> None:
    """The whole demo. Raises UserError; ends every child and puts everything back on every path."""
    logging.getLogger().setLevel(logging.WARNING)
    registry.policy(options.policy)  # an unknown one is an error now, not after the first phase
    cpus = sorted(os.sched_getaffinity(0))[-options.cpus :]
    if len(cpus) < options.cpus:
        raise UserError(f"--cpus {options.cpus}: there are only {len(cpus)} CPUs for us")
    # A signal anywhere below becomes an exception, so that every `with` and `finally` has its turn.
    with (
        _signals_raise(),
        lab.workload_file(options.workload, options.seed) as path,
        hold(options.run_dir, "a controller is running, and would disturb the comparison"),
    ):
        journal = journals.Journal(options.run_dir / "journal")
        for problem in journals.restore(journal):
            log.warning("left by an earlier controller, not put back: %s", problem)
        backend, steps = choose(options.backend, {}, journal)
        try:
            _tell(options, backend, steps, cpus)
            phases = _phases(options, path, cpus, backend)
        finally:
            left = backend.restore()
        for problem in left:
            log.error("not put back: %s", problem)
    _report(options, phases, backend.name, json)


@contextmanager
def _signals_raise() -> Iterator[None]:
    def stop(number: int, _: object) -> None:
        raise _Stopped(signal.Signals(number).name)

    before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except _Stopped as why:
        raise UserError(f"stopped by {why}: everything is as it was before") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(
    options: Options, backend: Backend, steps: list[tuple[str, Any]], cpus: list[int]
) -> None:
    total_s = 2 * options.phases * (options.phase_s + WARM_UP_S + 0.5)
    print(
        f"{options.workload} at {options.load:.0%} of CPU {', '.join(map(str, cpus))}: the OS's "
        f"own scheduling against {options.policy} by {backend.name}, {2 * options.phases} phases, "
        f"about {total_s:.0f} s",
        file=sys.stderr,
    )
    for name, probe in steps:
        print(f"backend {name}: not taken: {probe.because}", file=sys.stderr)


def _phases(options: Options, path: Path, cpus: list[int], backend: Backend) -> list[Phase]:
    done: list[Phase] = []
    for number in range(2 * options.phases):
        pair = number // 2
        ours = (number % 2 == 1) != (pair % 2 == 1)  # A B B A
        phase = _phase(options, path, cpus, backend if ours else None, pair)
        done.append(phase)
        remark = (
            f", disturbed: others used {phase.disturbed:.0%}" if phase.disturbed > DISTURBED else ""
        )
        print(
            f"  {number + 1:2}/{2 * options.phases} {phase.scheduler:8} "
            f"mean {phase.results.total.latency_s.mean * 1e3:8.1f} ms, "
            f"p99 {phase.results.total.latency_s.p99 * 1e3:8.1f} ms{remark}",
            file=sys.stderr,
        )
    return done


def _phase(
    options: Options, path: Path, cpus: list[int], backend: Backend | None, pair: int
) -> Phase:
    arguments = [
        *("--utilisation", f"{options.load:g}", "--cpus", str(len(cpus))),
        *("--duration", f"{options.phase_s + WARM_UP_S:g}", "--warmup", f"{WARM_UP_S:g}"),
        *("--drain", f"{2 * options.phase_s + 10:g}", "--seed", str(options.seed + pair)),
    ]
    with lab.running(path, arguments, cpus) as engine:
        busy = _busy_s(cpus)
        since_s = time.monotonic()
        samples: list[tuple[float, float]] = []
        if backend is None:
            asyncio.run(_watch(engine, samples))
        else:
            asyncio.run(_schedule(engine, options, backend, samples))
        elapsed_s = time.monotonic() - since_s
        busy = _busy_s(cpus) - busy
        results = msgspec.json.decode(engine.results(), type=_Results)
    own_s = results.cpu * options.phase_s * (elapsed_s / options.phase_s)
    others = max(0.0, (busy - own_s) / (elapsed_s * len(cpus)))
    return Phase(
        OS if backend is None else options.policy,
        pair,
        results,
        others,
        [at for at, _ in samples],
        [queued for _, queued in samples],
    )


async def _schedule(
    engine: lab.Engine, options: Options, backend: Backend, samples: list[tuple[float, float]]
) -> None:
    """Run a controller over this engine until it ends."""
    settings = Settings(
        policy=(Binding(policy=options.policy),),
        engine=(engine.name,),
        period=options.period_s,
        discover=3600.0,
    )

    def keep(name: str, options: object, failed: object = ()) -> tuple[Backend, list[Any]]:
        return backend, []

    controller = Controller(settings, registry.drivers(), Backends(keep, {}))

    async def schedule() -> None:
        await controller.start()
        await controller.run()

    try:
        loop = asyncio.create_task(schedule())
        try:
            await _watch(engine, samples)
        finally:
            controller.stop("the phase ended")
            await loop
    finally:
        controller.close()
    if not controller.rules[0].passes:
        raise UserError(
            "the controller did not get to schedule anything while the engine ran",
            "is the machine this busy? longer phases may do: --phase 20",
        )


async def _watch(engine: lab.Engine, samples: list[tuple[float, float]]) -> None:
    """Sample the queues until the engine ends."""
    start_s = time.monotonic()
    driver = None
    try:
        while engine.process.poll() is None:
            with suppress(EngineError):  # it is about to end
                driver = driver or lab_driver.connect(Target("lab", str(engine.pid), engine.pid))
                snapshot = driver.poll(1.0)
                queued = float(np.nansum(snapshot.columns["queue_size"]))
                samples.append((snapshot.time_s - start_s, queued))
            await asyncio.sleep(SAMPLE_S)
    finally:
        if driver is not None:
            driver.close()


def _busy_s(cpus: list[int]) -> float:
    """CPU seconds that these CPUs were not idle since boot, /proc/stat in proc(5)."""
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *values = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            user, nice, system, _, _, irq, softirq, steal = map(int, values[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


# --- what came out ------------------------------------------------------------------------------


def _ratios(phases: list[Phase], measure: Measure) -> list[float]:
    """Policy over OS, for each pair."""
    found = []
    for pair in sorted({phase.pair for phase in phases}):
        of = {p.scheduler == OS: measure.of(p.results) for p in phases if p.pair == pair}
        if of[True] > 0 and of[False] > 0:
            found.append(of[False] / of[True])
    return found


def _summary(options: Options, phases: list[Phase], backend: str) -> dict[str, Any]:
    rows = []
    for measure in MEASURES:
        ours = [measure.of(p.results) for p in phases if p.scheduler != OS]
        theirs = [measure.of(p.results) for p in phases if p.scheduler == OS]
        ratios = _ratios(phases, measure)
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
        rows.append(
            {
                "measure": measure.name,
                "unit": measure.unit,
                "os": sum(theirs) / len(theirs) * measure.scale,
                "policy": sum(ours) / len(ours) * measure.scale,
                "ratio": mean,
                "ratio_min": min(ratios, default=None),
                "ratio_max": max(ratios, default=None),
                "verdict": _verdict(ratios, mean, measure.better),
            }
        )
    return {
        "workload": options.workload,
        "load": options.load,
        "policy": options.policy,
        "backend": backend,
        "cpus": options.cpus,
        "period_s": options.period_s,
        "phase_s": options.phase_s,
        "phases": options.phases,
        "seed": options.seed,
        "disturbed_phases": sum(phase.disturbed > DISTURBED for phase in phases),
        "measures": rows,
    }


def _verdict(ratios: list[float], mean: float | None, better: int) -> str:
    """Better or worse only if all pairs agree, and by more than 2%."""
    if mean is None:
        return "unknown"
    if abs(math.log(mean)) < 0.02:
        return "same"
    signs = {(ratio > 1) == (better > 0) for ratio in ratios}
    if len(signs) > 1:
        return "unclear"
    return "better" if signs == {True} else "worse"


def _report(options: Options, phases: list[Phase], backend: str, json: bool) -> None:
    summary = _summary(options, phases, backend)
    plots = [] if options.out is None else _plots(options.out, options, phases)
    summary["plots"] = [str(path) for path in plots]
    if json:
        show.emit_json(summary)
        return
    show.table(
        ("", "unit", ">OS", f">{options.policy}", ">ratio", ">of the pairs", "verdict"),
        (
            (
                row["measure"],
                row["unit"],
                show.number(row["os"]),
                show.number(row["policy"]),
                show.number(row["ratio"]),
                f"{show.number(row['ratio_min'])} .. {show.number(row['ratio_max'])}",
                row["verdict"],
            )
            for row in summary["measures"]
        ),
        title=f"{options.workload} at {options.load:.0%}: {options.policy} ({backend}) against "
        "the OS's own scheduling",
    )
    _words(summary, options)
    for path in plots:
        show.text(f"plot: {path}")


def _words(summary: Mapping[str, Any], options: Options) -> None:
    by = {
        verdict: [row["measure"] for row in summary["measures"] if row["verdict"] == verdict]
        for verdict in ("better", "worse", "unclear")
    }
    if by["better"]:
        show.text(f"{options.policy} is better in: {', '.join(by['better'])}")
    if by["worse"]:
        show.text(f"{options.policy} loses in: {', '.join(by['worse'])}")
    if by["unclear"]:
        show.text(f"the pairs do not agree on: {', '.join(by['unclear'])} (more --phases may tell)")
    if summary["disturbed_phases"]:
        show.text(
            f"{summary['disturbed_phases']} of {2 * options.phases} phases were disturbed by other "
            "programs: repeat on a quiet machine"
        )


def _plots(out: Path, options: Options, phases: list[Phase]) -> list[Path]:
    try:
        from sched_ctl import plots
    except ImportError as error:
        print(f"no plots: {error}; pip install 'sched-ctl[plots]' adds them", file=sys.stderr)
        return []
    title = f"{options.workload} at {options.load:.0%} of {options.cpus} CPU"
    try:
        out.mkdir(parents=True, exist_ok=True)
        return [
            plots.latencies(out / "latency.png", phases, title),
            plots.queues(out / "queues.png", phases, title),
        ]
    except OSError as error:
        print(f"no plots: {error}", file=sys.stderr)
        return []
