"""A controller that only looks: no lock, no journal, no backend, so that nothing can be changed.

It may run beside one that schedules, and answers in a folder of its own. What it tells is the same:
`top`, `bottlenecks`, `explain` and `status`, the page for Prometheus, and what is recorded.
"""

import asyncio
import functools
import logging
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.drivers import DriverKind
from sched_ctl.errors import UserError
from sched_ctl.kernel.notify import notify
from sched_ctl.runfolder import RunFolder
from sched_ctl.service import bottlenecks, endpoint, looking, recording
from sched_ctl.service import socket as control
from sched_ctl.service.session import no_engine

__all__ = ["run"]

log = logging.getLogger(__name__)


def run(
    settings: Settings,
    kinds: Mapping[str, DriverKind],
    *,
    duration_s: float = float("inf"),
    started: Callable[[Controller], None] | None = None,
) -> None:
    """Look until told to stop. started: called when the engines have been asked once.

    Raises UserError if somebody looks in this run folder already, or the folder cannot be made.
    """
    folder = RunFolder(Path(settings.run_dir)).watched
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make {folder}: {error.strerror}", "give another --run-dir, or run as root"
        ) from None
    if control.answers(folder):
        raise UserError(
            f"somebody looks already, and answers in {folder}",
            "ask: sched-ctl top; or give another --run-dir",
        )
    try:
        asyncio.run(_run(_only_looking(settings), kinds, folder, duration_s, started))
    finally:
        # Of a folder that somebody else has taken meanwhile nothing is removed.
        if not RunFolder(folder).socket.exists() and not any(folder.iterdir()):
            folder.rmdir()


def _only_looking(settings: Settings) -> Settings:
    """Without what tries orders. Unless a policy is named, none decides anything."""
    policy = settings.policy
    if policy == Settings().policy:
        policy = (Section(policy="constant"),)
    return msgspec.structs.replace(settings, policy=policy, race=0, guard=0)


async def _run(
    settings: Settings,
    kinds: Mapping[str, DriverKind],
    folder: Path,
    duration_s: float,
    started: Callable[[Controller], None] | None,
) -> None:
    controller = Controller(settings, kinds, None)
    controller.observes = True
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, controller.stop, number.name)
    recorded = None
    try:
        recorded = recording.start(controller)
        if recorded is not None:
            controller.noted = recorded.note
        async with (
            control.serve(folder, looking.handlers(controller)),
            endpoint.serve(settings.metrics, functools.partial(bottlenecks.exposed, controller)),
        ):
            await controller.start()
            if not controller.engines:
                missing = no_engine(settings, kinds)
                log.warning("%s; looking again every %g s", missing, settings.discover)
            controller.probe(float("inf"))
            if controller.stopping is None:
                await controller.step(controller.rules)
                notify("READY=1")
                if started is not None:
                    started(controller)
            await controller.run(duration_s)
    finally:
        notify("STOPPING=1")
        controller.close()
        if recorded is not None:
            recorded.close()
