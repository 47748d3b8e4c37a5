"""What the log is told, each thing once until it is another one."""

import logging
import re
from collections.abc import Mapping, Sequence

from sched_ctl.metrics.window import Window

__all__ = ["Remarks"]

log = logging.getLogger(__name__)

TIME = re.compile(r"\d+(?:\.\d+)?(?= s\b)")


class Remarks:
    """Remembers what was said about what."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._told: dict[str, tuple[object, ...]] = {}  # of rules

    def say(self, about: str, message: str, level: int = logging.WARNING) -> None:
        """Log a message once, until it is another one; "" means that all is well again."""
        if self._said.get(about) != message:
            self._said[about] = message
            if message:
                log.log(level, "%s", message)

    def forget(self, engine: str) -> None:
        """It is gone, and will not come back under this name."""
        self._said.pop(f"notes {engine}", None)
        for about in [about for about in self._said if about.startswith(f"spared {engine} ")]:
            del self._said[about]

    def tell(
        self,
        rule: str,
        threads: int,
        windows: Mapping[str, Window],
        problems: Sequence[str],
        *,
        repaired: bool,
        own: str = "",
    ) -> None:
        """What a pass of the rule gave. own: why the OS's own order is in force, if it is."""
        notes_of = [window.now.topology.notes for window in windows.values()]
        told = (threads, [*windows], problems, repaired, notes_of, own)
        if self._told.get(rule) == told:
            return
        self._told[rule] = told
        message = f"policy {rule}: {threads} threads of {', '.join(windows)}"
        if not windows:  # nothing at first, and then that there was something
            known = self._said.get(f"threads {rule}")
            message = f"policy {rule}: no engine any more" if known else ""
        elif not threads:
            message = f"policy {rule}: no thread of an operator of {', '.join(windows)} is ordered"
            message += f": the OS's own order, {own}" if own else ""
        self.say(f"threads {rule}", message, logging.INFO)
        self.say(
            f"problems {rule}",
            f"policy {rule}: " + "; ".join(problems[:5]) if problems else "",
        )
        for engine, window in windows.items():
            notes = "; ".join(window.now.topology.notes[:5])
            self._note(f"notes {engine}", f"{engine}: {notes}" if notes else "")
        # Once, not each pass: what fights us may do so for days. `status` has the count.
        self.say(
            f"repaired {rule}",
            f"policy {rule}: somebody else changes its threads; they are set again"
            if repaired
            else "",
        )

    def _note(self, about: str, message: str) -> None:
        """As `say`, but a time that moves is nothing new: `status` has it as it is now."""
        told = TIME.sub("0", self._said.get(about, ""))
        if TIME.sub("0", message) != told:
            self.say(about, message)
