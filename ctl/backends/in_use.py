"""The backends in use: one instance a name, and the way down the ladder when one fails."""

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from sched_ctl.backends import Applied, Backend, Probe
from sched_ctl.errors import UserError
from sched_ctl.kernel import descriptors
from sched_ctl.model.options import Options
from sched_ctl.model.schedule import Schedule, without
from sched_ctl.model.topology import Thread, UserThread

__all__ = ["Backends", "Chooser"]

log = logging.getLogger(__name__)


class Chooser(Protocol):
    """`backends.ladder.choose` with its journal bound."""

    def __call__(
        self, name: str, options: Mapping[str, Options], failed: Collection[str] = ()
    ) -> tuple[Backend, list[tuple[str, Probe]]]: ...


FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 600.0
BELOW = "below "  # a backend's name: what stands in for it where it must not be


@dataclass
class _Retry:
    """When to try a backend again that failed at run time."""

    at_s: float
    pause_s: float = FIRST_PAUSE_S


class Backends:
    """Makes backends when a policy first asks for one, and puts all of them back at the end.

    on_lost: called with the name of a backend that has noticed by itself (from another thread)
    that it no longer works.
    """

    def __init__(self, choose: Chooser, options: Mapping[str, Options]) -> None:
        self._choose = choose
        self._options = options
        self._asked: dict[str, str] = {}  # what was asked for -> the name it stands for
        self._made: dict[str, Backend] = {}
        self.failed: dict[str, str] = {}  # name -> why it was given up at run time
        self._of_auto: set[str] = set()  # those of them that "auto" had
        self.steps: list[tuple[str, str]] = []  # better ones not taken, and why
        self.on_lost: Callable[[str], None] | None = None
        self._retries: dict[str, _Retry] = {}
        self._kernels: dict[str, tuple[Thread, ...]] = {}  # by scope, known to be the kernel's
        self._changing = threading.RLock()  # held while a backend changes the machine
        self._good_until_s = math.inf
        self._lapsed = False  # what was in force is put back, as nobody decided for long
        descriptors.hold_back()

    def __getitem__(self, name: str) -> Backend:
        return self._made[name]

    def apply(self, name: str, schedule: Schedule) -> Applied:
        """Have a backend enforce the schedule, without threads that it cannot order."""
        with self._changing:
            return self._apply(self._made[name], schedule)

    def _apply(self, backend: Backend, schedule: Schedule) -> Applied:
        if backend.user_level or schedule.threads is self._kernels.get(schedule.scope):
            return backend.apply(schedule)
        if UserThread not in set(map(type, schedule.threads)):
            self._kernels[schedule.scope] = schedule.threads
            return backend.apply(schedule)
        rows = [row for row, t in enumerate(schedule.threads) if isinstance(t, UserThread)]
        applied = backend.apply(without(schedule, {schedule.threads[row] for row in rows}))
        which = schedule.operators[rows[0]] + (f" and {len(rows) - 1} more" if rows[1:] else "")
        problem = (
            f"{which}: run by the engine's own pool of workers, which only --backend pool orders"
        )
        return replace(applied, problems=(*applied.problems, problem))

    def rest(self) -> tuple[str, ...]:
        """Once a pass, see `Backend.rest`."""
        with self._changing:
            return tuple(p for backend in list(self._made.values()) for p in backend.rest())

    def trust(self, until_s: float) -> bool:
        """What is in force is good until then (CLOCK_MONOTONIC): somebody decides anew by then.

        Returns whether it was put back since the last time, see `lapse`.
        """
        with self._changing:
            lapsed, self._lapsed = self._lapsed, False
            self._good_until_s = until_s
            for backend in self._made.values():
                backend.good_until_s = until_s
        return lapsed

    @property
    def late(self) -> bool:
        """Whether nobody has decided in time, and what is in force is still there."""
        return not self._lapsed and time.monotonic() > self._good_until_s

    def lapse(self, patience_s: float) -> tuple[str, ...] | None:
        """Put all back for now, from another thread than the one that decides.

        Its next `apply` brings it into force again. Returns what could not be put back, in words;
        None where it was not to be: it decides again, or is about to change something.
        """
        if not self._changing.acquire(timeout=patience_s):
            return None
        try:
            if not self.late:
                return None
            self._lapsed = True
            problems: list[str] = []
            for name, backend in list(self._made.items()):
                if not backend.expires:
                    problems += _restored(name, backend)
            return tuple(problems)
        finally:
            self._changing.release()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._made)

    def get(self, asked: str) -> Backend:
        """The backend for a name from the configuration, or for "auto". Raises UserError."""
        if asked not in self._asked:
            backend, steps = self._pick(asked)
            for name, probe in steps:
                self._step(name, probe.because)
                log.info("backend %s: not taken: %s", name, probe.because)
            self._keep(backend)
            self._asked[asked] = backend.name
        return self._made[self._asked[asked]]

    def use_options(self, options: Mapping[str, Options]) -> tuple[str, ...]:
        """Other options from now on. Returns what could not be put back, in words.

        A backend in use whose options differ is put back, and made anew when it is asked for.
        """
        before, self._options = self._options, options
        problems: tuple[str, ...] = ()
        for name in self.names:
            if before.get(name) != options.get(name):
                problems += self._drop(name)
        return problems

    def fair(self, name: str) -> Backend:
        """The backend for threads whose owner must not gain by it, where `name` is in force.

        That is `name` itself, unless it puts threads before others of the same weight: then the
        best one that does not. Raises UserError.
        """
        if not self._made[name].lifts:
            return self._made[name]
        asked = f"{BELOW}{name}"
        if asked not in self._asked:
            barred = [name, *self._barred()]
            while (backend := self._choose("auto", self._options, barred)[0]).lifts:
                barred.append(backend.name)
            self._keep(backend)
            self._asked[asked] = backend.name
        return self._made[self._asked[asked]]

    def _step(self, name: str, why: str) -> None:
        """The last reason counts: who fails at each try would be there once for each."""
        self.steps = [step for step in self.steps if step[0] != name]
        self.steps.append((name, why))

    def _keep(self, backend: Backend) -> None:
        self.failed.pop(backend.name, None)
        self._of_auto.discard(backend.name)
        if backend.name in self._made:
            return
        self._made[backend.name] = backend
        backend.on_lost = functools.partial(self._lost, backend.name)
        backend.good_until_s = self._good_until_s

    def _lost(self, name: str, _why: str) -> None:
        if self.on_lost is not None:
            self.on_lost(name)

    def _pick(self, asked: str) -> tuple[Backend, list[tuple[str, Probe]]]:
        if asked in self._made:  # a probe may find what it does itself in its way
            return self._made[asked], []
        if asked != "auto":
            left_s = self._retries[asked].at_s - time.monotonic() if asked in self.failed else 0
            if left_s > 0:
                raise UserError(
                    f"backend {asked} failed: {self.failed[asked]}",
                    f"it is tried again in {left_s:.0f} s",
                )
            return self._choose(asked, self._options)
        return self._choose("auto", self._options, self._barred())

    def _barred(self) -> tuple[str, ...]:
        """Those that failed, and are not to be tried again yet."""
        now_s = time.monotonic()
        return tuple(name for name in self.failed if now_s < self._retries[name].at_s)

    def give_up(self, name: str, why: str) -> tuple[str, ...]:
        """A backend failed at run time: put back what it did; `get("auto")` picks a lower one."""
        self.failed[name] = why
        if self._asked.get("auto") == name:
            self._of_auto.add(name)
        self._step(name, why)
        now_s = time.monotonic()
        retry = self._retries.get(name)
        if retry is None or now_s - retry.at_s > LONGEST_PAUSE_S:  # it ran well for long
            retry = _Retry(now_s)
        else:
            retry.pause_s = min(2 * retry.pause_s, LONGEST_PAUSE_S)
        retry.at_s = now_s + retry.pause_s
        self._retries[name] = retry
        return self._drop(name)

    def _drop(self, name: str) -> tuple[str, ...]:
        """Put back what a backend did, and forget it."""
        self._asked = {asked: used for asked, used in self._asked.items() if used != name}
        with self._changing:
            return _restored(name, self._made.pop(name)) if name in self._made else ()

    def climb(self) -> str | None:
        """Name of a better backend that failed before and works again, if it is time to look.

        One that ranks below the backend that "auto" has is only forgotten to have failed: `fair`
        may choose it again.
        """
        barred = self._barred()
        for name in [name for name in self.failed if name not in barred]:
            held = self._asked.get("auto")
            if held is None:  # whoever asks for "auto" tries it again
                if name not in self._of_auto:
                    self._forgive(name)
                continue
            backend, passed = self._first([other for other in self.failed if other != name])
            if backend is None or name in passed:
                self._put_off(name)
            elif held in (*passed, backend.name):  # what is in use may be in its own way
                self._forgive(name)
            elif backend.name != name:
                self._put_off(name)
            else:
                self._retries[name].at_s = time.monotonic()
                self._keep(backend)
                self._asked["auto"] = name
                return name
        return None

    def _first(self, failed: Collection[str]) -> tuple[Backend | None, list[str]]:
        """What "auto" would take without these, and names of the better ones that do not work."""
        try:
            backend, steps = self._choose("auto", self._options, failed)
        except UserError:
            return None, []
        return backend, [name for name, _ in steps]

    def _forgive(self, name: str) -> None:
        """It may be taken as if it had never failed; who got another in its place chooses anew."""
        del self.failed[name]
        self._of_auto.discard(name)
        self._asked = {a: used for a, used in self._asked.items() if not a.startswith(BELOW)}

    def _put_off(self, name: str) -> None:
        """It does not work yet: look again later than after the last time."""
        retry = self._retries[name]
        retry.pause_s = min(2 * retry.pause_s, LONGEST_PAUSE_S)
        retry.at_s = time.monotonic() + retry.pause_s

    def restore(self) -> tuple[str, ...]:
        """Put everything back. Returns what could not be, in words."""
        descriptors.let_go()
        problems: list[str] = []
        with self._changing:
            for name in list(self._made):
                problems += _restored(name, self._made.pop(name))
        return tuple(problems)


def _restored(name: str, backend: Backend) -> tuple[str, ...]:
    """What could not be put back, in words. One that fails keeps no other from its turn."""
    try:
        return backend.restore()
    except Exception as error:
        log.debug("restore", exc_info=error)
        return (f"{name}: {error}",)
