"""The configuration in force as a TOML file, with a comment on each key."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from sched_ctl.config.files import DEFAULT_FILE
from sched_ctl.config.settings import Setting, Settings, declared

__all__ = ["dump"]


def dump(settings: Settings, backends: Mapping[str, type[Struct]] = {}) -> str:
    """The settings as a TOML file that `load` reads back as equal, with a comment on each key.

    backends: name -> what options there are; those that are not set come as comments.
    """
    values = msgspec.to_builtins(settings)
    lines = [f"# The configuration in force, as a file: {DEFAULT_FILE}", ""]
    tables: list[str] = []  # which end the part of the file in which plain keys can stand
    for setting in declared(Settings):
        value = values[setting.key]
        if setting.key == "policy":
            sections = [{k: v for k, v in section.items() if v is not None} for section in value]
        elif setting.key == "backends":
            tables += [*_comment(setting), ""]
            for name in dict.fromkeys([*backends, *value]):
                tables += [*_options_of(name, backends.get(name), value.get(name)), ""]
        else:
            lines += [*_comment(setting), _entry(setting.key, value), ""]
    for section in sections:
        tables += ["[[policy]]", *(_entry(key, value) for key, value in section.items()), ""]
    return "\n".join([*lines, *tables])


def _comment(setting: Setting) -> list[str]:
    unit = f" ({setting.unit})" if setting.unit else ""
    bounds = f"; {setting.bounds}" if setting.bounds else ""
    return [f"# {line}" for line in textwrap.wrap(setting.description + unit + bounds, 96)]


def _options_of(
    name: str, struct: type[Struct] | None, given: Mapping[str, Any] | None
) -> Iterator[str]:
    """The table of a backend's options. What the user did not set is commented out."""
    header = f"[backends.{_key(name)}]"
    yield header if given is not None else f"# {header}"
    left = dict(given or {})
    for option in () if struct is None else declared(struct):
        yield from _comment(option)
        if option.key in left:
            yield _entry(option.key, left.pop(option.key))
        else:
            yield f"# {_entry(option.key, option.default)}"
    for key, value in left.items():
        yield _entry(key, value)


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
