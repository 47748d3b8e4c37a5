"""Command line flags made from the declarations of the settings (`config.settings`)."""

import functools
import inspect
import itertools
import shlex
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from sched_ctl.config.files import DEFAULT_FILE, load, origin, parse_pairs, sections_of
from sched_ctl.config.settings import (
    ConfigError,
    Section,
    Setting,
    SettingError,
    Settings,
    declared,
)
from sched_ctl.errors import UserError, printable
from sched_ctl.model.options import BackendOptions
from sched_ctl.model.targets import parsed

__all__ = [
    "DEFAULT_RUN_DIR",
    "Json",
    "RunDir",
    "asked",
    "target",
    "with_sections",
    "with_settings",
]

T = TypeVar("T")
DEFAULT_RUN_DIR = Path(Settings().run_dir)


def _run_dir(context: typer.Context, given: Path) -> Path:
    """Where it is not given, what is configured, or was when the controller was started. Nothing
    wrong in the configuration keeps from putting back.
    """
    source = context.get_parameter_source("run_dir")
    if source is None or source.name != "DEFAULT" or context.resilient_parsing:
        return given
    from sched_ctl.service.lock import used_instead

    try:
        folder, wrong = Path(load().run_dir), None
    except ConfigError as error:
        folder, wrong = given, error.message
    if used := used_instead(folder):
        wrong = wrong or f"the controller was started with another run_dir than {folder}"
    folder = used or folder
    if wrong is not None:
        told = printable(f"{wrong}; the run folder is taken to be {folder}")
        print(f"warning: {told}", file=sys.stderr)
    return folder


Json = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
RunDir = Annotated[
    Path,
    typer.Option(
        "--run-dir",
        help="Folder of the controller's lock and socket.",
        metavar="DIR",
        readable=False,  # who may not read it gets our own error, with a hint
        show_default="as configured",
        callback=_run_dir,
    ),
]
CONFIG = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help=f"Configuration file, instead of {DEFAULT_FILE}; drop-ins lie beside it in a "
        "folder with .d for .toml.",
        show_default=False,
        readable=False,
    ),
]
PANEL = "Settings (each is also a key of the configuration file)"


@contextmanager
def asked() -> Iterator[None]:
    """What cannot be done in here was asked for in a wrong way: exit code 2."""
    try:
        yield
    except UserError as error:
        raise ConfigError(error.message, error.hint) from error


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for each setting; it is called with the `settings` in force.

    One with a parameter `read_again` gets what reads them anew, see `service.reload.ReadAgain`; one
    with `named` those that stand on the command line, and with `flags` these as they are typed.
    """
    settings = _settings()

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        file = arguments.pop("config")
        given = {setting.key: _given(setting, arguments) for setting in settings}

        first = _flags(given)
        lasting = all(path.is_file() for path in _files(given))  # and no pipe, which is read once

        def read(use: Callable[[Settings], T]) -> T:
            """What comes of the settings as they are now. A wrong one is told with its place."""
            flags = _flags(given) if lasting else first
            settings = load(file, flags)
            try:
                return use(settings)
            except SettingError as error:
                place = origin(file, flags, error.where)
                raise ConfigError(f"{place}: {error.message}", error.hint) from error

        if "read_again" in own.parameters:
            arguments["read_again"] = read
        if "named" in own.parameters:
            arguments["named"] = frozenset(first)
        if "flags" in own.parameters:
            arguments["flags"] = _typed(file, given)
        read(lambda settings: command(settings=settings, **arguments))

    own = inspect.signature(command)
    ours = ("settings", "read_again", "named", "flags")
    parameters = [p for p in own.parameters.values() if p.name not in ours]
    parameters += _parameters()
    run.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    )
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    del run.__wrapped__  # its signature would be taken instead
    return run


FILES = "program", "elastic", "prior"  # whose values name files


def _files(given: Mapping[str, Any]) -> list[Path]:
    return [Path(name) for key in FILES for name in given[key] or []]


def _flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the command line sets, keyed like `Settings`; files that it names are read."""
    flags = {
        setting.key: _value(setting, given[setting.key])
        for setting in declared(Settings)
        if given[setting.key] not in (None, [])
    }
    options = parse_pairs(given["options"] or [], "--policy-option")
    if options:
        if "policy" not in flags:
            raise ConfigError(
                "command line: --policy-option: which policy?", "give --policy as well"
            )
        for section in flags["policy"]:
            section["options"] = options
    return flags


@functools.cache
def _settings() -> tuple[Setting, ...]:
    return (*declared(Settings), *(s for s in declared(Section) if s.key == "options"))


@functools.cache
def _parameters() -> tuple[inspect.Parameter, ...]:
    """Of the settings. All commands have the same: to make them anew takes memory and time."""
    flags = [_keyword(setting.key, _option(setting)) for setting in _settings()]
    off = [_keyword(_off(s), _off_option(s)) for s in _settings() if s.type is bool]
    return (_keyword("config", CONFIG), *flags, *off)


def with_sections(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for each field of its parameters that are dataclasses (sections).

    A field's annotation is a typer option or argument; the section's docstring heads its flags.
    """
    own = inspect.signature(command)
    kinds: dict[str, Any] = {p.name: p.annotation for p in own.parameters.values()}
    sections = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}

    def run(**arguments: Any) -> None:
        made: dict[str, Any] = {
            name: kinds[name](**{f.name: arguments.pop(f.name) for f in fields(kind)})
            for name, kind in sections.items()
        }
        command(**made, **arguments)

    parameters = []
    for parameter in own.parameters.values():
        if parameter.name not in sections:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        kind = sections[parameter.name]
        hints = typing.get_type_hints(kind, include_extras=True)
        for f in fields(kind):
            about = hints[f.name].__metadata__[0]
            if isinstance(about, typer.models.OptionInfo):
                about.rich_help_panel = about.rich_help_panel or inspect.getdoc(kind)
            parameters.append(
                inspect.Parameter(
                    f.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=f.default,
                    annotation=hints[f.name],
                )
            )
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return run


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _off(setting: Setting) -> str:
    """Name of the flag that turns it off."""
    return f"no_{setting.key}"


def _off_option(setting: Setting) -> Any:
    """Not in the panel: a column for these takes the room of all descriptions."""
    return Annotated[bool, typer.Option(_off_flag(setting), hidden=True)]


def _off_flag(setting: Setting) -> str:
    return f"--{_off(setting).replace('_', '-')}"


def _given(setting: Setting, arguments: dict[str, Any]) -> Any:
    """What stands on the command line; taken out of `arguments`."""
    value = arguments.pop(setting.key)
    if setting.type is not bool:
        return value
    if arguments.pop(_off(setting)):
        return False
    return value or None


def _typed(file: Path | None, given: Mapping[str, Any]) -> list[str]:
    """The words of a command line that has these settings."""
    words = [] if file is None else ["--config", str(file)]
    for setting in _settings():
        value = given[setting.key]
        if isinstance(value, bool):
            words.append(setting.flag if value else _off_flag(setting))
            continue
        for one in value if isinstance(value, list) else [value]:
            words += [] if one is None else [setting.flag, str(one)]
    return words


def _option(setting: Setting) -> Any:
    many = typing.get_origin(setting.type) in (tuple, dict) or setting.type is BackendOptions
    kind: Any = list[str] | None if many else str | None
    metavar = setting.metavar or setting.key.upper()
    help_text = setting.description[0].upper() + setting.description[1:]
    if setting.type is float:
        kind, metavar = float | None, setting.metavar or "SECONDS"
    elif setting.type is bool:
        kind, metavar = bool, ""
        help_text += f"; off: {_off_flag(setting)}"
    elif typing.get_origin(setting.type) is Literal:
        help_text += f" ({', '.join(typing.get_args(setting.type))})"
    short, _, rest = metavar.partition("[,")
    if rest:  # a long form in its column would leave none for the words
        metavar, help_text = short, f"{help_text}; then, if wanted, [,{rest}"
    if many:
        help_text += " (repeat the flag for more)"
    if setting.default not in ((), {}, "") and isinstance(setting.default, (str, float)):
        shown = f"{setting.default:g}" if isinstance(setting.default, float) else setting.default
        help_text += f" (default: {shown})"  # in brackets it would be a style of rich's
    option = typer.Option(
        setting.flag,
        help=help_text,
        metavar=metavar or None,
        show_default=False,
        rich_help_panel=PANEL,
    )
    return Annotated[kind, option]


def _value(setting: Setting, given: Any) -> Any:
    if setting.key == "policy":
        return _rules(given)
    if setting.key == "target":
        return [target(text) for text in given]
    if setting.key in FILES:
        return [section for name in given for section in sections_of(Path(name), setting.key)]
    if setting.key in ("backends", "access"):
        tables: dict[str, dict[str, Any]] = {}
        for key, value in parse_pairs(given, setting.flag, setting.metavar or "").items():
            # An engine's name has dots, an option's key has none; it is the other way round with
            # a backend's and its options' (caps by query).
            split = str.partition if setting.key == "backends" else str.rpartition
            name, _, option = split(key, ".")
            if not (name and option):
                raise ConfigError(
                    f"command line: {setting.flag}: expected {setting.metavar}, got '{key}'"
                )
            tables.setdefault(name, {})[option] = value
        return tables
    if typing.get_origin(setting.type) is dict:
        return parse_pairs(given, setting.flag, setting.metavar or "KEY=VALUE")
    return given


def target(text: str) -> dict[str, Any]:
    """A `--target` as the table that it stands for."""
    try:
        return parsed(text)
    except UserError as error:
        raise ConfigError(f"command line: --target: {error.message}", error.hint) from error


def _rules(given: list[str]) -> list[dict[str, Any]]:
    for before, behind in itertools.pairwise(given):
        if "=" not in before and behind != before:
            raise ConfigError(
                f"command line: --policy: {behind} rules nothing, as {before} selects all queries",
                f"put it first: --policy {shlex.quote(behind)} --policy {shlex.quote(before)}",
            )
    return [_section(text) for text in given]


def _section(text: str) -> dict[str, Any]:
    pattern, _, policy = text.rpartition("=")
    if not pattern:
        return {"policy": policy}
    return {"name": pattern, "policy": policy, "queries": [pattern]}
