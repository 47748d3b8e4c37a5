"""A controller that only looks: no lock, no journal, no backend, so that nothing can be changed.

It may run beside one that schedules, and answers in a folder of its own. What it tells is the same:
`top`, `bottlenecks`, `explain` and `status`, the page for Prometheus, and what is recorded.
"""

import asyncio
import functools
import logging
import os
import platform
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
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
from sched_ctl.service.lock import run_folder
from sched_ctl.service.session import MIND_S, no_engine
from sched_ctl.telemetry.records import node_name
from sched_ctl.telemetry.store import is_recorded

__all__ = ["run"]

log = logging.getLogger(__name__)


def run(
    settings: Settings,
    kinds: Mapping[str, DriverKind],
    *,
    duration_s: float = float("inf"),
    started: Callable[[Controller], None] | None = None,
    named: Collection[str] = (),
) -> None:
    """Look until told to stop. started: called when the engines have been asked once.

    named: settings that are meant for this one, and not for the controller as well: where it has a
    page or records already, an error is raised for these, and others are left out.
    Raises UserError if somebody looks in this run folder already, or the folder cannot be made.
    """
    settings = _not_recorded_twice(_only_looking(settings), named)
    run_dir = Path(settings.run_dir)
    folder = RunFolder(run_dir).watched
    ours = (folder,) if os.access(run_dir, os.F_OK) else (folder, run_dir)
    run_folder(run_dir)
    run_folder(folder)
    if control.answers(folder):
        raise UserError(
            f"somebody looks already, and answers in {folder}",
            "ask: sched-ctl top; or give another --run-dir",
        )
    try:
        asyncio.run(_run(settings, kinds, folder, duration_s, started, named))
    finally:
        for path in ours:
            with suppress(OSError):  # somebody else uses it, or has removed it
                path.rmdir()


def _only_looking(settings: Settings) -> Settings:
    """Without what tries orders. Unless a policy is named, none decides anything."""
    policy = settings.policy
    if policy == Settings().policy:
        policy = (Section(policy="constant"),)
    return msgspec.structs.replace(settings, policy=policy, race=0, guard=0)


def _not_recorded_twice(settings: Settings, named: Collection[str]) -> Settings:
    """Without a folder into which somebody records this node already."""
    if not settings.record:
        return settings
    node = node_name(settings.node or platform.node() or "node")
    if not is_recorded(Path(settings.record), node):
        return settings
    problem = f"somebody records {node} into {settings.record} already"
    if "record" in named:
        raise UserError(problem, "give another folder: --record; or another name: --node")
    log.warning("%s: this one does not", problem)
    return msgspec.structs.replace(settings, record="")


@asynccontextmanager
async def _page(controller: Controller, named: Collection[str]) -> AsyncIterator[None]:
    """The page for Prometheus, unless the controller that runs has it."""
    page = functools.partial(bottlenecks.exposed, controller)
    async with AsyncExitStack() as held:
        try:
            await held.enter_async_context(endpoint.serve(controller.settings.metrics, page))
        except endpoint.Taken as error:
            if "metrics" in named:
                raise
            log.warning("%s: this one has no page", error.message)
        yield


@asynccontextmanager
async def _minded(folder: Path, listening: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Meanwhile notice that somebody has removed the folder or the socket, and make it anew."""

    async def mind() -> None:
        said = None
        while True:
            await asyncio.sleep(MIND_S)
            words = None
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                await listening()
            except (OSError, UserError) as error:
                words = str(error)
            if words not in (None, said):
                log.warning("nobody can ask this one: %s", words)
            said = words

    minding = asyncio.create_task(mind())
    try:
        yield
    finally:
        minding.cancel()


async def _run(
    settings: Settings,
    kinds: Mapping[str, DriverKind],
    folder: Path,
    duration_s: float,
    started: Callable[[Controller], None] | None,
    named: Collection[str],
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
            control.serve(folder, looking.handlers(controller)) as listening,
            _page(controller, named),
            _minded(folder, listening),
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
