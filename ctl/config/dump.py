"""The configuration in force as a TOML file, with a comment on each key."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sched_ctl.config.files import DEFAULT_FILE
from sched_ctl.config.settings import Setting, Settings, declared
from sched_ctl.model.options import BackendOptions, inherited

__all__ = ["dump"]


def dump(settings: Settings) -> str:
    """The settings as a TOML file that `load` reads back as equal, with a comment on each key.

    Options of backends that are as they would be anyway come as comments.
    """
    values = msgspec.to_builtins(settings)
    lines = [f"# The configuration in force, as a file: {DEFAULT_FILE}", ""]
    tables: list[str] = []  # which end the part of the file in which plain keys can stand
    for setting in declared(Settings):
        value = values[setting.key]
        if setting.key == "policy":
            sections = [{k: v for k, v in section.items() if v is not None} for section in value]
        elif setting.key == "backends":
            tables += [*_comment(setting), "", *_options(value)]
        else:
            lines += [*_comment(setting), _entry(setting.key, value), ""]
    for section in sections:
        tables += ["[[policy]]", *(_entry(key, value) for key, value in section.items()), ""]
    return "\n".join([*lines, *tables])


def _comment(setting: Setting) -> list[str]:
    unit = f" ({setting.unit})" if setting.unit else ""
    bounds = f"; {setting.bounds}" if setting.bounds else ""
    return [f"# {line}" for line in textwrap.wrap(setting.description + unit + bounds, 96)]


def _options(given: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A table for each backend; those that others have options from are written first."""
    said: dict[str, dict[str, Any]] = {}
    for name in sorted(given, key=lambda name: "+" in name):
        anyway = msgspec.to_builtins(msgspec.convert(inherited(said), BackendOptions))[name]
        said[name] = {key: value for key, value in given[name].items() if value != anyway[key]}
    for backend in declared(BackendOptions):
        name = backend.key
        yield f"{'' if said[name] else '# '}[backends.{_key(name)}]"
        for option in declared(backend.type):
            yield from _comment(option)
            sign = "" if option.key in said[name] else "# "
            yield f"{sign}{_entry(option.key, given[name][option.key])}"
        yield ""


def _entry(key: str, value: Any) -> str:
    return f"{_key(key)} = {_inline(value).as_string()}"


def _key(name: str) -> str:
    import tomlkit  # only here: the main loop does not need it

    return tomlkit.key(name).as_string()


def _inline(value: Any) -> Any:
    """The value as TOML in one line, so that no table ends the one that it is in."""
    import tomlkit

    if isinstance(value, list | tuple):
        array = tomlkit.array()
        for part in value:
            array.append(_inline(part))
        return array
    if not isinstance(value, Mapping):
        return tomlkit.item(value)
    table = tomlkit.inline_table()
    for key, part in value.items():
        if part is not None:
            table.append(key, _inline(part))
    return table
