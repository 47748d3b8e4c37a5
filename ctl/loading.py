"""The life of one controller process: lock, what a killed one left, the loop, the way out.

SIGINT, SIGTERM and SIGHUP, `sched-ctl unload`, an error and the end of `--duration` all leave by
the same way: every change to the machine is put back, then the lock is released. What SIGKILL or a
power cut leaves behind stands in the journal and is put back at the next start.
"""

import asyncio
import functools
import logging
import signal
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from sched_ctl import control, views
from sched_ctl.backends import Backend, Probe, ladder
from sched_ctl.backends import journal as journals
from sched_ctl.config import Binding, Settings
from sched_ctl.controller import Controller
from sched_ctl.dispatch import dispatch
from sched_ctl.drivers import DriverKind
from sched_ctl.enforcing import Backends
from sched_ctl.errors import UserError
from sched_ctl.lock import hold

__all__ = ["journal_path", "look", "plan", "put_back", "run"]

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def journal_path(run_dir: Path) -> Path:
    return run_dir / "journal"


def run(
    settings: Settings,
    kinds: Mapping[str, DriverKind],
    *,
    duration_s: float = float("inf"),
    once: bool = False,
    started: Callable[[Controller], None] | None = None,
) -> tuple[str, ...]:
    """Schedule until told to stop. Returns what could not be put back, in words.

    once: one pass, then put back. started: called when the first pass is done.
    """
    run_dir = Path(settings.run_dir)
    with hold(run_dir):
        journal = journals.Journal(journal_path(run_dir))
        for problem in journals.restore(journal):
            log.warning("left by an earlier controller, not put back: %s", problem)
        backends = Backends(functools.partial(_choose, journal=journal), settings.backends)
        return asyncio.run(_run(settings, kinds, backends, duration_s, once, started))


def put_back(run_dir: Path) -> tuple[str, ...]:
    """Undo what a killed controller left. Returns what could not be undone, in words."""
    with hold(run_dir, "nothing to restore by hand: a controller is running"):
        return tuple(journals.restore(journals.Journal(journal_path(run_dir))))


def plan(settings: Settings, kinds: Mapping[str, DriverKind], observe_s: float = 1.0) -> Controller:
    """One pass that applies nothing; its result lies in the rules of the controller returned.

    observe_s: between two readings of the engines, so that rates and costs are current.
    """

    async def observe() -> Controller:
        controller = Controller(settings, kinds, None, ladder.expected)
        try:
            await controller.start()
            if not controller.engines:
                raise _no_engine(settings, kinds)
            await asyncio.sleep(observe_s)
            await controller.step(controller.rules)
            return controller
        finally:
            controller.close()

    return asyncio.run(observe())


def _choose(
    name: str,
    options: Mapping[str, object],
    failed: Collection[str] = (),
    *,
    journal: journals.Journal,
) -> tuple[Backend, list[tuple[str, Probe]]]:
    return ladder.choose(name, options, journal, failed)


async def look(settings: Settings, kinds: Mapping[str, DriverKind]) -> list[dict[str, Any]]:
    """The engines on this machine, as `status` shows them. Applies nothing."""
    nothing = (Binding(policy="constant"),)
    controller = Controller(msgspec.structs.replace(settings, policy=nothing), kinds, None)
    try:
        await controller.start()
        return views.engines(controller)
    finally:
        controller.close()


async def _run(
    settings: Settings,
    kinds: Mapping[str, DriverKind],
    backends: Backends,
    duration_s: float,
    once: bool,
    started: Callable[[Controller], None] | None,
) -> tuple[str, ...]:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[tuple[str, ...]] = loop.create_future()
    try:
        controller = Controller(settings, kinds, backends)
        for number in SIGNALS:
            loop.add_signal_handler(number, controller.stop, signal.Signals(number).name)
        async with control.serve(Path(settings.run_dir), _handlers(controller, stopped)):
            try:
                await controller.start()
                if not controller.engines:
                    missing = _no_engine(settings, kinds)
                    if once:
                        raise missing
                    log.warning("%s; looking again every %g s", missing, settings.discover)
                if controller.stopping is None:
                    await controller.step(controller.rules)
                    if started is not None:
                        started(controller)
                if not once:
                    await controller.run(duration_s)
            finally:
                log.info("stopping: %s", controller.stopping or "done")
                problems = controller.close()
                stopped.set_result(problems)
    finally:
        problems = backends.restore()  # nothing is left to do unless the way here was cut short
    for problem in await stopped:
        log.error("not put back: %s", problem)
    return (*stopped.result(), *problems)


def _handlers(
    controller: Controller, stopped: "asyncio.Future[tuple[str, ...]]"
) -> dict[str, control.Handler]:
    async def status(_: Mapping[str, Any]) -> object:
        return views.status(controller)

    async def dispatched(_: Mapping[str, Any]) -> object:
        return dispatch(controller)

    async def explain(arguments: Mapping[str, Any]) -> object:
        return views.explain(controller, _text(arguments, "what"))

    async def policy_set(arguments: Mapping[str, Any]) -> object:
        options = arguments.get("options", {})
        if not isinstance(options, dict):
            raise UserError("policy-set: options must be an object")
        rule = _rule(controller, arguments.get("binding"))
        before = rule.policy.name
        controller.set_policy(rule, _text(arguments, "policy"), options)
        log.info("policy %s: %s instead of %s", rule.name, rule.policy.name, before)
        return {"binding": rule.name, "policy": rule.policy.name, "before": before}

    async def unload(_: Mapping[str, Any]) -> object:
        controller.stop("unload")
        return {"not_put_back": list(await asyncio.shield(stopped))}

    return {
        "status": status,
        "dispatch": dispatched,
        "explain": explain,
        "policy-set": policy_set,
        "unload": unload,
    }


def _rule(controller: Controller, name: object) -> Any:
    names = [rule.name for rule in controller.rules]
    if name is None and len(names) == 1:
        return controller.rules[0]
    for rule in controller.rules:
        if rule.name == name:
            return rule
    if name is None:
        raise UserError("there are several policies: say which", f"one of: {', '.join(names)}")
    raise UserError(f"there is no policy binding {name!r}", f"bindings: {', '.join(names)}")


def _text(arguments: Mapping[str, Any], key: str) -> str:
    value = arguments.get(key)
    if not isinstance(value, str) or not value:
        raise UserError(f"the argument {key!r} is missing")
    return value


def _no_engine(settings: Settings, kinds: Mapping[str, DriverKind]) -> UserError:
    looked_for = ", ".join(settings.engine) or "kinds " + ", ".join(sorted(kinds))
    return UserError(
        f"no engine found ({looked_for})",
        "start one, or name it: --engine KIND:ADDRESS; sched-ctl engines shows what is found",
    )
