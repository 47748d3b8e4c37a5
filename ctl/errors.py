"""Errors that a user can do something about."""

__all__ = ["UserError"]


class UserError(Exception):
    """Something the user can mend: what happened, and what to do next.

    `sched_ctl.cli.main` is the one place that turns it into text and an exit code; code below it
    raises it, or lets it pass.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
