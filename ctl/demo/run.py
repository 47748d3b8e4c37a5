"""`sched-ctl demo`: the lab engine under the OS's own scheduling and under a policy, side by side.

Phases alternate ABBA (OS, policy, policy, OS, ...), so that a slow drift of the machine hits both
alike. Each phase is a run of its own, from an empty engine; the two runs of a pair have the same
seed, so the same tuples arrive at the same moments. All tuples count that were due after the
warm-up: the engine drains its queues before it reports, so those that a scheduler starved are in.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from sched_ctl.backends import Backend
from sched_ctl.backends.in_use import Backends
from sched_ctl.backends.ladder import choose
from sched_ctl.backends.undo import journal as journals
from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.controller.rule import automatic
from sched_ctl.demo.report import report
from sched_ctl.demo.results import AUTO, DISTURBED, OS, Options, Phase, Results, summary
from sched_ctl.engines import roster
from sched_ctl.errors import UserError
from sched_ctl.kernel import procfs
from sched_ctl.lab import engine as lab
from sched_ctl.plugins import drivers
from sched_ctl.runfolder import RunFolder
from sched_ctl.service.lock import hold

__all__ = ["run", "signals_raise"]

log = logging.getLogger(__name__)

LOOK_S = 0.05
REHEARSAL_S = 10.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Stopped(KeyboardInterrupt):
    """A signal asked us to end. Of this class, so that no `except Exception`, and no event loop,
    takes it for a failure of the step that it happened to interrupt."""


def run(options: Options, *, json: bool = False) -> None:
    """The whole demo. Raises UserError; ends every child and puts everything back on every path."""
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger(roster.__name__).setLevel(logging.ERROR)  # each phase's engine ends
    cpus = sorted(os.sched_getaffinity(0))[-options.cpus :]
    if len(cpus) < options.cpus:
        raise UserError(f"--cpus {options.cpus}: there are only {len(cpus)} CPUs for us")
    # A signal anywhere below becomes an exception, so that every `with` and `finally` has its turn.
    with (
        signals_raise(),
        lab.workload_file(options.workload, options.seed) as path,
        hold(options.run_dir, "a controller is running, and would disturb the comparison"),
    ):
        journal = journals.Journal(RunFolder(options.run_dir).journal)
        for problem in journals.restore(journal):
            log.warning("left by an earlier controller, not put back: %s", problem)
        backend, steps = choose(options.backend, {}, journal)
        if options.policy == AUTO:
            options = replace(options, policy=automatic(backend.name)[0])
        try:
            _tell(options, backend, steps, cpus)
            phases = _phases(options, path, cpus, backend)
        finally:
            left = backend.restore()
        for problem in left:
            log.error("not put back: %s", problem)
    report(summary(options, phases, backend.name), options.out, json=json)


@contextmanager
def signals_raise() -> Iterator[None]:
    """A signal that asks us to end becomes a UserError, once everything is left in order."""

    def stop(number: int, _: object) -> None:
        raise _Stopped(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    except _Stopped as why:
        raise UserError(f"stopped by {why}: everything is as it was before") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """A mask would not do: where a process has several threads, another one takes the signal."""
    came: list[int] = []
    before = {n: signal.signal(n, lambda number, _: came.append(number)) for n in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def _tell(
    options: Options, backend: Backend, steps: list[tuple[str, Any]], cpus: list[int]
) -> None:
    phase_s = options.delay_s + options.warm_up_s + options.phase_s + 0.5
    total_s = 2 * options.phases * phase_s + (phase_s if options.slow else 0.0)
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
    if options.slow:  # what is loaded at the first start is there from then on
        _phase(replace(options, load=0.05, phase_s=REHEARSAL_S), path, cpus, backend, 0)
    for number in range(2 * options.phases):
        pair = number // 2
        ours = (number % 2 == 1) != (pair % 2 == 1)  # A B B A
        phase = _phase(options, path, cpus, backend if ours else None, pair)
        done.append(phase)
        remark = (
            f", disturbed: others used {phase.disturbed:.0%}" if phase.disturbed > DISTURBED else ""
        )
        print(
            f"  {number + 1:2}/{2 * options.phases} {phase.scheduler:11} "
            f"p50 {phase.results.total.latency_s.p50 * 1e3:8.1f} ms, "
            f"p99 {phase.results.total.latency_s.p99 * 1e3:8.1f} ms{remark}",
            file=sys.stderr,
        )
    return done


def _phase(
    options: Options, path: Path, cpus: list[int], backend: Backend | None, pair: int
) -> Phase:
    arguments = [
        *("--utilisation", f"{options.load:g}", "--cpus", str(len(cpus))),
        *("--duration", f"{options.phase_s + options.warm_up_s:g}"),
        *("--warmup", f"{options.warm_up_s:g}", "--delay", f"{options.delay_s:g}"),
        *("--drain", f"{2 * options.phase_s + 10:g}", "--seed", str(options.seed + pair)),
    ]
    with lab.running(path, arguments, cpus) as engine:
        busy = _busy_s(cpus)
        since_s, since_cpu_s = time.monotonic(), time.process_time()
        with asyncio.Runner() as runner:
            with _signals_wait():  # a loop that was interrupted while it was made cannot be closed
                runner.get_loop()
            if backend is None:
                runner.run(_ended(engine))
            else:
                runner.run(_schedule(engine, options, backend))
        elapsed_s = time.monotonic() - since_s
        busy = _busy_s(cpus) - busy
        results = msgspec.json.decode(engine.results(), type=Results)
    own_s = results.cpu * (elapsed_s - options.delay_s)
    if len(cpus) == len(os.sched_getaffinity(0)):  # else the scheduler most likely worked elsewhere
        own_s += time.process_time() - since_cpu_s
    others = max(0.0, (busy - own_s) / (elapsed_s * len(cpus)))
    return Phase(
        OS if backend is None else options.policy,
        pair,
        results,
        others,
    )


async def _schedule(engine: lab.Engine, options: Options, backend: Backend) -> None:
    """Run a controller over this engine until it ends."""
    settings = Settings(
        policy=(Section(policy=options.policy),),
        engine=(engine.name,),
        period=options.period_s,
        discover=3600.0,
        race=0.0,
    )

    def keep(name: str, options: object, failed: object = ()) -> tuple[Backend, list[Any]]:
        return backend, []

    controller = Controller(settings, drivers.drivers(), Backends(keep, {}))

    async def schedule() -> None:
        await controller.start()
        await controller.run()

    try:
        loop = asyncio.create_task(schedule())
        try:
            await _ended(engine)
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


async def _ended(engine: lab.Engine) -> None:
    while engine.process.poll() is None:
        await asyncio.sleep(LOOK_S)


def _busy_s(cpus: list[int]) -> float:
    """CPU seconds that these CPUs were not idle since boot, /proc/stat in proc(5)."""
    ticks = 0
    for line in procfs.lines("/proc/stat"):
        name, *values = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            user, nice, system, _, _, irq, softirq, steal = map(int, values[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")
