"""The command line. Each file holds the commands of one kind; what they do lies elsewhere.

Of these files only the one with the command that was asked for is imported, and commands import
what they need when they run: a start is quick, and the main loop small.
"""

import errno
import importlib
import io
import logging
import os
import sys
import traceback
from typing import Annotated

import typer
from typer.models import CommandInfo

from sched_ctl import __version__
from sched_ctl.cli.plain import App
from sched_ctl.errors import UserError, printable

__all__ = ["FILES", "main", "make_app", "name_of"]

SHOW_CURSOR = "\x1b[?25h"  # DECTCEM, of all terminals that rich writes to

# File -> its commands and groups.
FILES = {
    "look": ("check", "engines", "policies", "plan", "status", "explain", "config"),
    "held": ("bottlenecks", "top"),
    "load": ("load", "reload", "policy", "unload", "restore"),
    "watch": ("watch",),
    "scale": ("scale",),
    "lab": ("demo", "lab"),
    "simulate": ("simulate",),
    "stats": ("stats",),
    "replay": ("replay",),
    "waits": ("waits",),
    "fleet": ("fleet",),
}


def _version(value: bool) -> None:
    if value:
        typer.echo(f"sched-ctl {__version__}")
        raise typer.Exit


def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Log more, and show tracebacks of errors.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Schedule the operator threads of stream processing engines from the kernel."""
    from sched_ctl.cli import log

    log.set_up(logging.DEBUG if debug else logging.INFO)


def make_app(asked: str | None = None) -> App:
    """With the command or group of this name alone; with all, if there is none of that name."""
    app = App(
        name="sched-ctl",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="Start with: sched-ctl check, sched-ctl demo, sched-ctl plan, sched-ctl load",
    )
    app.callback()(options)
    chosen = [file for file, names in FILES.items() if asked in names]
    for file in chosen or FILES:
        importlib.import_module(f"sched_ctl.cli.{file}").add_to(app)
    if chosen:  # to make the others of their functions takes time, too
        app.registered_commands = [one for one in app.registered_commands if name_of(one) == asked]
        app.registered_groups = [one for one in app.registered_groups if one.name == asked]
    return app


def name_of(command: CommandInfo) -> str | None:
    called = command.name or getattr(command.callback, "__name__", None)
    return called and called.replace("_", "-")


def main() -> None:
    """The one place where errors become text and exit codes."""
    # numpy would start threads for linear algebra that nobody here does.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A caller may have closed them: nobody wants the text then.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that is not UTF-8 has no check mark
    if os.environ.get("COLUMNS") == "0":  # not told; rich would print nothing at all
        del os.environ["COLUMNS"]
    try:
        try:
            make_app(next((word for word in sys.argv[1:] if not word.startswith("-")), None))()
        except SystemExit as end:
            # Ctrl-C. A progress bar may just have hidden it, and taken sys.stderr's place.
            if end.code == 130 and sys.__stderr__ is not None and sys.__stderr__.isatty():
                sys.__stderr__.write(SHOW_CURSOR)
                sys.__stderr__.flush()
            if isinstance(end.__context__, BrokenPipeError):  # typer ends with 1 then
                raise end.__context__ from None
            raise
        finally:
            sys.stdout.flush()  # here, where an error still becomes an exit code
    except UserError as error:
        _trace()
        print(f"error: {printable(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"hint: {printable(error.hint)}", file=sys.stderr)
        sys.exit(error.code)
    except BrokenPipeError:
        # Whoever read our output has gone (head, less): no error, but say nothing more.
        _discard_output()
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        _trace()
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            _discard_output()
            print(f"error: {error.strerror}", file=sys.stderr)
            sys.exit(1)
        print(f"error: {type(error).__name__}: {printable(str(error))}", file=sys.stderr)
        print("hint: this is a fault of sched-ctl; --debug shows where", file=sys.stderr)
        sys.exit(1)


def _trace() -> None:
    """With --debug, where the error that is being told came from."""
    if "--debug" in sys.argv:
        traceback.print_exc()


def _discard_output() -> None:
    """Drop what cannot be written; Python would try once more at its end, and end with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
