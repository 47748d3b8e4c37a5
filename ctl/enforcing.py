"""The backends in use: one instance a name, and the way down the ladder when one fails."""

import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from sched_ctl.backends import Backend, Probe

__all__ = ["Backends", "Chooser"]

log = logging.getLogger(__name__)


class Chooser(Protocol):
    """`backends.ladder.choose` with its journal bound."""

    def __call__(
        self, name: str, options: Mapping[str, object], failed: Collection[str] = ()
    ) -> tuple[Backend, list[tuple[str, Probe]]]: ...


class Backends:
    """Makes backends when a policy first asks for one, and puts all of them back at the end."""

    def __init__(self, choose: Chooser, options: Mapping[str, Mapping[str, object]]) -> None:
        self._choose = choose
        self._options = options
        self._asked: dict[str, str] = {}  # what was asked for -> the name it stands for
        self._made: dict[str, Backend] = {}
        self.failed: dict[str, str] = {}  # name -> why it was given up at run time
        self.steps: list[tuple[str, str]] = []  # better ones not taken, and why

    def __getitem__(self, name: str) -> Backend:
        return self._made[name]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._made)

    def get(self, asked: str) -> Backend:
        """The backend for a name from the configuration, or for "auto". Raises UserError."""
        if asked not in self._asked:
            backend, steps = self._pick(asked)
            for name, probe in steps:
                self.steps.append((name, probe.because))
                log.info("backend %s: not taken: %s", name, probe.because)
            self._made.setdefault(backend.name, backend)
            self._asked[asked] = backend.name
        return self._made[self._asked[asked]]

    def _pick(self, asked: str) -> tuple[Backend, list[tuple[str, Probe]]]:
        if asked != "auto":
            return self._choose(asked, self._options.get(asked, {}))
        return self._choose("auto", self._options, tuple(self.failed))

    def give_up(self, name: str, why: str) -> tuple[str, ...]:
        """A backend failed at run time: put back what it did; `get("auto")` picks a lower one."""
        self.failed[name] = why
        self.steps.append((name, why))
        self._asked = {asked: used for asked, used in self._asked.items() if used != name}
        return self._made.pop(name).restore()

    def restore(self) -> tuple[str, ...]:
        """Put everything back. Returns what could not be, in words."""
        problems: list[str] = []
        for name in list(self._made):
            try:
                problems += self._made.pop(name).restore()
            except Exception as error:  # the other backends must still get their turn
                log.debug("restore", exc_info=error)
                problems.append(f"{name}: {error}")
        return tuple(problems)
