"""Errors that a user can do something about."""

import difflib
import sys
from collections.abc import Iterable

__all__ = ["EngineError", "UserError", "adding", "near_miss", "printable"]


class UserError(Exception):
    """Something the user can mend: what happened, and what to do next.

    `sched_ctl.cli.main` is the one place that turns it into text and an exit code; code below it
    raises it, or lets it pass. code: the program's exit code, 2 for what was asked in a wrong
    way, 3 where not all could be put back.
    """

    code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class EngineError(UserError):
    """An engine did not answer, or not in a form that we understand."""


def adding(extra: str) -> str:
    """The command that installs an extra of this program from a checkout.

    Into the virtual environment that it runs in, if it is in one: Debian's own pip refuses.
    """
    pip = f"{sys.prefix}/bin/pip" if sys.prefix != sys.base_prefix else "pip"
    return f"{pip} install '.[{extra}]'"


def printable(text: str) -> str:
    """The text on one line, without what a terminal would obey: names come from engines."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def near_miss(name: str, known: Iterable[str]) -> str:
    """ ": did you mean 'x'?" if one of the known names is close, else nothing."""
    close = difflib.get_close_matches(name.lower(), list(known), n=3)
    if not close:
        return ""
    # Of equally close ones the first letter decides: it is seldom mistyped.
    best = next((other for other in close if other[:1] == name[:1].lower()), close[0])
    return f": did you mean {best!r}?"
