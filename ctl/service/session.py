"""The life of one controller process: lock, what a killed one left, the loop, the way out.

SIGINT, SIGTERM, a terminal that goes away, `sched-ctl unload`, an error and the end of `--duration`
all leave by the same way: every change to the machine is put back, then the lock is released. What
SIGKILL or a power cut leaves behind stands in the journal and is put back at the next start.
SIGHUP in any other case, and `sched-ctl reload`, have the configuration read again.
"""

import asyncio
import functools
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from sched_ctl.backends import Backend, Probe, ladder
from sched_ctl.backends.in_use import Backends
from sched_ctl.backends.undo import journal as journals
from sched_ctl.config.settings import Section, Settings
from sched_ctl.controller.loop import Controller
from sched_ctl.drivers import DriverKind
from sched_ctl.errors import UserError
from sched_ctl.kernel import descriptors, procfs, sched
from sched_ctl.kernel.crowd import lasting
from sched_ctl.kernel.notify import is_managed, notify, reloading, service_of, watchdog_s
from sched_ctl.model.options import Options, by_name
from sched_ctl.runfolder import RunFolder
from sched_ctl.service import bottlenecks, by_query, elastic, endpoint, looking, recording, views
from sched_ctl.service import socket as control
from sched_ctl.service.idle import idle
from sched_ctl.service.lock import (
    Holder,
    Running,
    again,
    hold,
    hold_if_free,
    holder,
    others,
    used_instead,
)
from sched_ctl.service.reload import ReadAgain, reloaded

__all__ = ["MIND_S", "look", "no_engine", "plan", "put_back", "run"]

log = logging.getLogger(__name__)

TOLD = 10  # queries that the log tells of at the start
OWN_NICE = -5  # three times the weight of a plain thread
CROWDED = 4.0  # threads that want each CPU: a plain one more gets a fifth
CROWD_S = 5.0  # how often it is looked whether they do
START_S = 15.0  # that the first order may take at the weight of a plain thread
MIND_S = 1.0  # how often it is looked whether the journal and the socket are in their place: 3 us
PROBED_S = 30.0  # that a plan's two readings may take
FIRST_S = 16.0  # that `look` waits for an engine's first metrics
LOOK_EVERY_S = 0.5
END_S = 10.0  # that a killed process may take to be gone
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(
    settings: Settings,
    kinds: Mapping[str, DriverKind],
    *,
    duration_s: float = float("inf"),
    once: bool = False,
    started: Callable[[Controller], None] | None = None,
    read_again: ReadAgain | None = None,
) -> tuple[str, ...]:
    """Schedule until told to stop. Returns what could not be put back, in words.

    once: one pass, then put back. started: called when the first pass is done. From then on
    SIGINT, SIGTERM and SIGHUP do nothing: a second one must not cut the last words short.
    read_again: what `reload` and SIGHUP take the settings from; None: they are refused.
    """
    run_dir = Path(settings.run_dir)
    if (left := used_instead(run_dir)) is not None and holder(left) is None:
        _put_back_elsewhere(left)
    with hold(run_dir) as killed, ExitStack() as held:
        journal = journals.Journal(RunFolder(run_dir).journal)
        for problem in (*journals.restore(journal), *_lost(journal, killed)):
            log.warning("left by an earlier controller, not put back: %s", problem)
        held.enter_context(sched.brief())
        late = threading.Timer(START_S, _go_first, (sched.get_nice(0),))
        late.daemon = True
        late.start()
        held.callback(late.cancel)
        options = by_name(settings.backends)
        backends = Backends(functools.partial(_choose, journal=journal), options)
        try:
            return asyncio.run(
                _run(
                    settings, kinds, backends, journal, duration_s, once, started, read_again, held
                )
            )
        finally:
            for number in SIGNALS:  # at its own end the interpreter puts other handlers back
                signal.signal(number, signal.SIG_IGN)
            # What found no space in it was put back all the same.
            if not journal.state:
                with suppress(journals.JournalError):
                    journal.clear()


def _put_back_elsewhere(left: Path) -> None:
    """What an earlier controller left in another run folder, as far as that can be used from here:
    a service may not write there, or another version is needed.
    """
    try:
        problems = put_back(left)
    except UserError as error:
        problems = (f"{error.message}; sched-ctl restore --run-dir {left} tries it again",)
    for problem in problems:
        log.error("left in %s by an earlier controller, not put back: %s", left, problem)


def _go_first(own: int) -> None:
    """Ahead of others, with all of our threads. own: our nice value without this.

    Who may not has to wait like all others.
    """
    _set_nice(own, min(OWN_NICE, own))


def _set_nice(had: int, wanted: int) -> None:
    """Of our threads that have this nice value."""
    with suppress(OSError):  # no descriptor is left: at the next look
        for tid in procfs.tids(os.getpid()):
            with suppress(OSError):
                if sched.get_nice(tid) == had:
                    sched.set_nice(tid, wanted)


async def _mind_crowds(own: int) -> None:
    """Go first while the CPUs are crowded, which is where we are needed, and only then.

    A pass takes a small CPU tens of milliseconds, in which a neighbour would wait half as long
    again as without us (p99). Nor before an order is in force, unless that takes long: until then
    we take seconds, which engines would have to go without. `cpu_limit` bounds what we take later.
    """
    went = sched.get_nice(0) != own  # the start was late
    while True:
        if lasting() >= CROWDED:
            _go_first(own)  # threads that were born since, too
            went = True
        elif went:
            _set_nice(min(OWN_NICE, own), own)
            went = False
        await asyncio.sleep(CROWD_S)


def put_back(run_dir: Path) -> tuple[str, ...]:
    """Undo what a killed controller left. Returns what could not be undone, in words.

    No lock is in its way, only a controller that runs, which puts back by itself when it ends.
    """
    if not os.path.lexists(run_dir):
        _tell_others()
        log.warning("there is no folder %s: no controller has left anything there", run_dir)
        return ()
    try:
        with hold_if_free(run_dir) as killed:
            _tell_others()
            journal = journals.Journal(RunFolder(run_dir).journal)
            return (*journals.restore(journal), *_lost(journal, killed))
    except Running as error:
        if control.answers(run_dir):
            raise UserError(
                f"nothing to restore by hand: {error.message}",
                "it puts back what it has changed when it ends: sched-ctl unload",
            ) from None
        if error.holder is not None and error.holder.hidden:
            raise
        found = holder(run_dir)
        stopped = found is not None and control.is_stopped(found)
        raise UserError(
            f"{error.message}, and {'is stopped' if stopped else 'does not answer'}",
            "end it, and put back what it has changed: sched-ctl unload --force",
        ) from None


def _tell_others() -> None:
    for pid in others():
        log.warning(
            "a controller with another run folder is running (pid %d): what it has changed "
            "stays until it ends",
            pid,
        )


def end(run_dir: Path) -> tuple[str, ...]:
    """End a controller that does not answer, and put back. Returns what could not be, in words."""
    found = holder(run_dir)
    if found is not None:
        with suppress(ProcessLookupError):
            process = os.pidfd_open(found.pid)
            try:
                if found.runs:  # asked after the descriptor was opened: it stands for this process
                    service = service_of(found.pid)
                    log.warning("ending the controller: %s", found)
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    if not descriptors.readable(process, END_S):
                        raise UserError(
                            f"the controller does not end, though killed: {found}",
                            "it waits in the kernel; when it is gone: sched-ctl restore",
                        )
                    if service is not None:
                        log.warning("its service starts it again: systemctl stop %s", service)
            finally:
                os.close(process)
    return put_back(run_dir)


def _lost(journal: journals.Journal, killed: Holder | None) -> list[str]:
    """That a controller was killed, and what it wrote down is gone."""
    if killed is None or not journal.blank:
        return []
    return [
        f"a controller was killed ({killed}), and its journal is empty or gone: what it changed is "
        "not known; threads of the engines may keep nice values and cgroups until they end"
    ]


def plan(settings: Settings, kinds: Mapping[str, DriverKind], observe_s: float = 1.0) -> Controller:
    """One pass that applies nothing; its result lies in the rules of the controller returned.

    observe_s: between two readings of the engines, so that rates and costs are current.
    """

    async def observe() -> Controller:
        controller = Controller(settings, kinds, None, ladder.expected)
        controller.probe(observe_s + PROBED_S)  # what threads took says how many replicas it needs
        try:
            await controller.start()
            if not controller.engines:
                raise no_engine(settings, kinds)
            await asyncio.sleep(observe_s)
            await controller.step(controller.rules)
            return controller
        finally:
            controller.close()

    return asyncio.run(observe())


def _choose(
    name: str,
    options: Mapping[str, Options],
    failed: Collection[str] = (),
    *,
    journal: journals.Journal,
) -> tuple[Backend, list[tuple[str, Probe]]]:
    return ladder.choose(name, options, journal, failed)


async def look(settings: Settings, kinds: Mapping[str, DriverKind]) -> list[dict[str, Any]]:
    """The engines on this machine, as `status` shows them. Applies nothing."""
    nothing = (Section(policy="constant"),)
    controller = Controller(msgspec.structs.replace(settings, policy=nothing), kinds, None)
    try:
        await controller.start()
        deadline_s = time.monotonic() + FIRST_S
        while any(e.waiting for e in controller.engines.values()) and time.monotonic() < deadline_s:
            await asyncio.sleep(LOOK_EVERY_S)
            await controller.step(controller.rules)
        return views.engines(controller)
    finally:
        controller.close()


async def _run(
    settings: Settings,
    kinds: Mapping[str, DriverKind],
    backends: Backends,
    journal: journals.Journal,
    duration_s: float,
    once: bool,
    started: Callable[[Controller], None] | None,
    read_again: ReadAgain | None,
    held: ExitStack,
) -> tuple[str, ...]:
    loop = asyncio.get_running_loop()
    run_dir, own_nice = Path(settings.run_dir), sched.get_nice(0)
    stopped: asyncio.Future[tuple[str, ...]] = loop.create_future()
    try:
        controller = Controller(settings, kinds, backends)
        recorded = recording.start(controller)
        if recorded is not None:
            controller.noted = recorded.note
        reload = functools.partial(reloaded, controller, read_again)
        _obey_signals(controller, loop, reload)
        async with (
            control.serve(run_dir, _handlers(controller, stopped, reload)) as listening,
            endpoint.serve(settings.metrics, functools.partial(bottlenecks.exposed, controller)),
        ):
            tasks = [
                asyncio.create_task(_sign_of_life()),
                asyncio.create_task(_mind(journal, run_dir, listening, held)),
                asyncio.create_task(elastic.mind(controller, kinds)),
            ]
            try:
                # A service that ended for one engine would leave all others without order.
                await controller.start(strict=not is_managed())
                if not controller.engines:
                    missing = no_engine(settings, kinds)
                    if once:
                        raise missing
                    log.warning("%s; looking again every %g s", missing, settings.discover)
                if controller.stopping is None:
                    await controller.step(controller.rules)
                    tasks.append(asyncio.create_task(_mind_crowds(own_nice)))
                    await asyncio.sleep(0)  # for its first look
                    notify("READY=1")
                    _tell(controller)
                    if started is not None:
                        started(controller)
                if not once:
                    await controller.run(duration_s)
            finally:
                log.info("stopping: %s", controller.stopping or "done")
                notify("STOPPING=1")
                for task in tasks:
                    task.cancel()
                problems = controller.close()
                stopped.set_result(problems)
                if recorded is not None:
                    recorded.close()
    finally:
        problems = backends.restore()  # nothing is left to do unless the way here was cut short
    for problem in await stopped:
        log.error("not put back: %s", problem)
    return (*stopped.result(), *problems)


def _tell(controller: Controller) -> None:
    """What the first pass did, a line a query, and what to type next."""
    told = [line for rule in controller.rules for line in by_query.told(controller, rule, TOLD)]
    for line in told:
        log.info("%s", line)
    why = idle(views.status(controller)) if controller.engines else None  # else it is said already
    if why is not None:
        log.info("%s", why)
    if told:
        log.info("next, in another terminal: sched-ctl top, sched-ctl status; Ctrl-C ends it")


async def _mind(
    journal: journals.Journal,
    run_dir: Path,
    listening: Callable[[], Awaitable[None]],
    held: ExitStack,
) -> None:
    """Notice that somebody has removed the run folder or what is in it, and make it anew."""
    said = None
    while True:
        await asyncio.sleep(MIND_S)
        try:
            words = journal.check()
            if not RunFolder(run_dir).lock.exists():
                held.enter_context(again(run_dir))
            await listening()
        except UserError as error:
            words = error.message
        except Exception as error:  # the next look may find it as it should be
            log.debug("journal and socket", exc_info=error)
            words = f"cannot look after journal and socket: {type(error).__name__}: {error}"
        if words is not None and words != said:
            log.warning("%s", words)
        said = words


async def _sign_of_life() -> None:
    """Feed the service manager's watchdog from the loop: one that stands still is ended."""
    every_s = watchdog_s()
    while every_s is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(every_s / 3)


def _obey_signals(
    controller: Controller, loop: asyncio.AbstractEventLoop, reload: Callable[[], Sequence[str]]
) -> None:
    # Under nohup(1) it does not mind that the terminal goes.
    terminal = _has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN

    # Not loop.add_signal_handler: a closed loop puts the default back, by which one that comes
    # late kills the process on its way out.
    def stop(number: int, _: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(controller.stop, signal.Signals(number).name)

    def hang_up(number: int, frame: object) -> None:
        if terminal and not _has_terminal():
            stop(number, frame)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(reload_and_tell)

    def reload_and_tell() -> None:
        reloading()
        with suppress(UserError):  # it is in the log, and in the status
            reload()
        notify("READY=1")

    for number in SIGNALS:
        signal.signal(number, hang_up if number == signal.SIGHUP else stop)


def _has_terminal() -> bool:
    """Whether there is a controlling terminal. The kernel takes it away before it sends SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _handlers(
    controller: Controller,
    stopped: "asyncio.Future[tuple[str, ...]]",
    reload: Callable[[], Sequence[str]],
) -> dict[str, control.Handler]:
    async def policy_set(arguments: Mapping[str, Any]) -> object:
        options = arguments.get("options", {})
        if not isinstance(options, dict):
            raise UserError("policy-set: options must be an object")
        rule = _rule(controller, arguments.get("rule"))
        raced = rule.instead.trial is not None and rule.instead.switched is None
        before, called = "a race" if raced else rule.policy.name, rule.called
        controller.set_policy(rule, looking.text(arguments, "policy"), options)
        log.info("policy %s: %s instead of %s", called, rule.policy.name, before)
        return {"rule": rule.called, "policy": rule.policy.name, "before": before}

    async def read(_: Mapping[str, Any]) -> object:
        return {"changed": list(reload())}

    async def unload(_: Mapping[str, Any]) -> object:
        controller.stop("unload")
        return {"not_put_back": list(await asyncio.shield(stopped))}

    return looking.handlers(controller) | {
        "policy-set": policy_set,
        "reload": read,
        "unload": unload,
    }


def _rule(controller: Controller, name: object) -> Any:
    names = [rule.name for rule in controller.rules]
    if name is None and len(names) == 1:
        return controller.rules[0]
    if name is None:
        raise UserError("there are several policies: say which", f"one of: {', '.join(names)}")
    if name in names:  # also where another one is called so by now
        return controller.rules[names.index(name)]
    found = [rule for rule in controller.rules if rule.called == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(
            f"{len(found)} rules are called {name!r} by now",
            f"say which by its first name: {', '.join(rule.name for rule in found)}",
        )
    raise UserError(f"there is no rule {name!r}", f"rules: {', '.join(names)}")


def no_engine(settings: Settings, kinds: Mapping[str, DriverKind]) -> UserError:
    """That none of the engines that the settings ask for is here, and what to do."""
    looked_for = ", ".join(settings.engine) or "kinds " + ", ".join(sorted(kinds))
    silent = views.suspected(kinds)
    hint = "start one, or name it: --engine KIND:ADDRESS; sched-ctl engines shows what is found"
    if os.geteuid() != 0:
        hint = "run this command as root: engines of other users may be hidden from you"
    elif silent:
        hint = (
            "it may be starting, or have no CPU to answer with: try again in a minute, or name it: "
            "--engine KIND:ADDRESS"
        )
    if silent:
        return UserError(f"no engine answers: {', '.join(silent)}", hint)
    return UserError(f"no engine found ({looked_for})", hint)
