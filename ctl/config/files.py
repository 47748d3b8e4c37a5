"""Settings from files, drop-ins and flags: reading, checking, and which of them wins.

Precedence, highest first: flags, drop-ins (`sched-ctl.d/*.toml`, later names first), the file,
the defaults. A drop-in's `[[policy]]` section amends the section of the same name, key by key;
one with a new name goes before the others, because the first section that selects an operator
wins. So do its `[[prior]]` sections.
"""

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import Struct

from sched_ctl.config.settings import (
    ConfigError,
    Elastic,
    Prior,
    Section,
    Settings,
    Switch,
    declared,
)
from sched_ctl.model import programs
from sched_ctl.model.access import Access
from sched_ctl.model.options import BackendOptions, inherited
from sched_ctl.model.options import faults as faults_of_options
from sched_ctl.model.targets import Target, faults

__all__ = ["DEFAULT_FILE", "load", "origin", "parse_pairs", "sections_of", "targets"]

DEFAULT_FILE = Path("/etc/sched-ctl/sched-ctl.toml")
COMMAND_LINE = "command line"  # as a place of settings
TABLES = ("backends", "access")  # tables of tables, amended key by key
OTHERS: dict[str, type[Struct]] = {"elastic": Elastic, "prior": Prior}  # sections
PARTS_OF_PROGRAM: dict[str, type[Struct]] = {"find": programs.Find, "metrics": programs.Counters}
MAX_BYTES = 1 << 20  # of one file: more is no configuration of ours


def load(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings in force.

    file: None = `DEFAULT_FILE` if it exists; drop-ins lie in the folder of the file's name with
    `.d` for `.toml`. flags: values from the command line, keyed like `Settings`.
    Raises ConfigError.
    """
    merged: dict[str, Any] = {}
    main = DEFAULT_FILE if file is None else file
    if file is not None or _is_there(main):
        _merge(merged, _read(main))
    implied = "policy" not in merged
    merged.setdefault("policy", [{}])  # which drop-ins amend, or go before
    for drop_in in _drop_ins(main):
        _merge(merged, _read(drop_in))
    *before, last = merged["policy"]
    if implied and not last and any(map(_selects_all, before)):  # nothing is left for it
        merged["policy"] = before
    if flags:
        _validate(flags, COMMAND_LINE)
        _override(merged, flags)
    merged["backends"] = inherited(merged.get("backends", {}))
    settings = _validate(merged, str(main))
    for name, message in faults_of_options(settings.backends):
        place = origin(file, flags or {}, ("backends", name))
        raise ConfigError(f"{place}: {message}", "sched-ctl config shows what is in force")
    return settings


def origin(file: Path | None, flags: Mapping[str, Any], where: tuple[str, ...]) -> str:
    """Where a setting has its value from, as "FILE: KEY" or "command line: FLAG".

    file, flags: as given to `load`. where: as in `SettingError`.
    """
    main = DEFAULT_FILE if file is None else file
    tables = [(path, _read(path)) for path in (main, *_drop_ins(main)) if _is_there(path)]
    flagged = [(COMMAND_LINE, flags)]
    files = [(str(path), table) for path, table in reversed(tables)]
    # A section that does not set it has it from outside; a flag goes before all sections.
    outside = where[2:] if where[0] == "policy" else where
    sections = [] if where[0] == "policy" and "policy" in flags else files
    for keys, sources in (where, flagged), (outside, flagged), (where, sections), (outside, files):
        for source, table in sources:
            found = _find(table, keys)
            if found:
                if source == COMMAND_LINE:
                    found = {s.key: s.flag for s in declared()}[keys[0]]
                return f"{source}: {found}"
    return f"default: {where[-1]}"


def _find(table: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    """The keys as they stand in this table, or None if it does not set them."""
    if keys in ((), ("policy",)):  # there is no policy outside of sections
        return None
    if keys[0] == "prior":
        for index, prior in enumerate(_tables(table.get("prior"))):
            if prior.get("policy") == keys[1]:
                return f"prior[{index}].policy"
        return None
    if keys[0] != "policy":
        here: Any = table
        for key in keys:
            if not isinstance(here, Mapping) or key not in here:
                return None
            here = here[key]
        return ".".join(keys)
    _, name, key = keys
    for index, section in enumerate(_sections(table)):
        if _name(section) == name and key in section:
            return f"policy[{index}].{key}"
    return None


def _drop_ins(main: Path) -> list[Path]:
    folder = main.with_suffix(".d")
    try:
        names = [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(folder, error) from None
    # Hidden ones are an editor's: its lock (a link to nowhere), or its copy
    chosen = [name for name in names if name.endswith(".toml") and not name.startswith(".")]
    return [folder / name for name in sorted(chosen)]


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(path, error) from None
    return True


def _unreadable(path: Path, error: OSError, flag: str = "--config") -> ConfigError:
    return ConfigError(f"{path}: {error.strerror}", f"give another file with {flag}, or none")


def sections_of(path: Path, key: str) -> list[dict[str, Any]]:
    """The sections of one kind in a file. Raises ConfigError."""
    found: list[dict[str, Any]] = _read(path, f"--{key}").get(key, [])
    if not found:
        raise ConfigError(f"{path}: there is no [[{key}]] section in it")
    return found


def _read(path: Path, flag: str = "--config") -> dict[str, Any]:
    """A file as a checked dictionary of the keys that it sets."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error, flag) from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES >> 20} MiB, this is no configuration")
    try:
        table = tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:  # also numbers and tables beyond Python's limits
        raise ConfigError(f"{path}: {error}", "the file is TOML, see https://toml.io") from None
    _validate(table, str(path))
    return table


def targets(tables: Iterable[Mapping[str, Any]]) -> tuple[Target, ...]:
    """Of the command line alone. Raises ConfigError."""
    return _validate({"target": [*tables]}, COMMAND_LINE).target


def _validate(table: Mapping[str, Any], origin: str) -> Settings:
    for part, struct, where in _parts(table):
        _check_keys(part, struct, origin, where)
    _check_threads(table, origin)
    try:
        settings = msgspec.convert(table, Settings)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        key = where.rstrip("`") or "the file"
        raise ConfigError(f"{origin}: {key}: {what}", _hint(key)) from None
    for key, value in _values(msgspec.to_builtins(settings), ""):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{origin}: {key}: {value} is no finite number")
        if isinstance(value, str) and "\0" in value:
            raise ConfigError(f"{origin}: {key}: a NUL character", "take it out")
    _check_targets(settings, origin)
    for place, key, message, hint in programs.faults(settings.program):
        raise ConfigError(f"{origin}: program[{place}].{key}: {message}", hint)
    _check_names(settings, origin)
    return settings


def _parts(table: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], type[Struct], str]]:
    """(table, what it is made of, its place as text with a dot) of all tables, outermost first."""
    yield table, Settings, ""
    for index, section in enumerate(_sections(table)):
        yield section, Section, f"policy[{index}]."
        for number, switch in enumerate(_tables(section.get("switch"))):
            yield switch, Switch, f"policy[{index}].switch[{number}]."
        for number, target in enumerate(_tables(section.get("target"))):
            yield target, Target, f"policy[{index}].target[{number}]."
    for index, target in enumerate(_tables(table.get("target"))):
        yield target, Target, f"target[{index}]."
    for index, part in enumerate(_tables(table.get("elastic"))):
        yield part, Elastic, f"elastic[{index}]."
    for index, part in enumerate(_tables(table.get("prior"))):
        yield part, Prior, f"prior[{index}]."
    for index, program in enumerate(_tables(table.get("program"))):
        yield from _of_program(program, f"program[{index}].")
    for name, reached in _named(table.get("access")):
        yield reached, Access, f"access.{name}."
    if isinstance(backends := table.get("backends"), Mapping):
        yield backends, BackendOptions, "backends."
    for name, options in _named(backends):
        yield options, _options_of(name), f"backends.{name}."


def _of_program(
    program: Mapping[str, Any], where: str
) -> Iterator[tuple[Mapping[str, Any], type[Struct], str]]:
    yield program, programs.Program, where
    for key, part in _named(program):
        if key in PARTS_OF_PROGRAM:
            yield part, PARTS_OF_PROGRAM[key], f"{where}{key}."
    for pattern, role in _named(program.get("threads")):
        yield role, programs.Helper, f"{where}threads.{programs.shown(pattern)}."


def _options_of(backend: str) -> type[Struct]:
    kinds: dict[str, type[Struct]] = {s.key: s.type for s in declared(BackendOptions)}
    return kinds[backend]


def _named(value: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """What of a table can be tables; the wrong rest is refused later."""
    items = value.items() if isinstance(value, Mapping) else ()
    return [(str(name), part) for name, part in items if isinstance(part, Mapping)]


def _sections(table: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return _tables(table.get("policy"))


def _tables(value: Any) -> list[Mapping[str, Any]]:
    """What of a list can be a table; the wrong rest is refused later."""
    return [part for part in value if isinstance(part, Mapping)] if isinstance(value, list) else []


def _check_keys(table: Mapping[str, Any], struct: type[Struct], origin: str, where: str) -> None:
    known = [setting.key for setting in declared(struct)]
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            others: dict[type[Struct], type[Struct]] = {Settings: Section, Section: Settings}
            other = others.get(struct)
            if other is not None and key in [setting.key for setting in declared(other)]:
                place = "in a [[policy]] section" if other is Section else "outside [[policy]]"
                hint = f"{key} belongs {place}"
            elif near:
                hint = f"did you mean {near[0]}?"
            elif struct is programs.Helper and "role" not in table:  # TOML made tables of it
                hint = "a pattern with a dot is in quotes: 'PATTERN' = \"operator\""
            else:
                hint = "known keys: " + ", ".join(known)
            raise ConfigError(f"{origin}: {where}{key}: there is no such setting", hint)


def _check_threads(table: Mapping[str, Any], origin: str) -> None:
    """What patterns of programs say: the library's words do not tell which pattern is meant."""
    for index, program in enumerate(_tables(table.get("program"))):
        threads = program.get("threads")
        for pattern, what in threads.items() if isinstance(threads, Mapping) else ():
            role = what.get("role") if isinstance(what, Mapping) else what
            if not isinstance(role, str):
                place = f"program[{index}].threads.{programs.shown(pattern)}"
                message = f'{origin}: {place}: neither "operator" nor a role'
                raise ConfigError(message, programs.KINDS)


def _check_targets(settings: Settings, origin: str) -> None:
    places = [("", settings.target)]
    places += [(f"policy[{i}].", s.target or ()) for i, s in enumerate(settings.policy)]
    for where, targets in places:
        for place, key, message, hint in faults(targets):
            raise ConfigError(f"{origin}: {where}target[{place}].{key}: {message}", hint)


def _check_names(settings: Settings, origin: str) -> None:
    names = [section.name or section.policy for section in settings.policy]
    for name in names:
        if names.count(name) > 1:
            if origin == COMMAND_LINE:
                raise ConfigError(
                    f"{origin}: --policy: two are for {name}",
                    "give each queries of its own: --policy QUERIES=NAME",
                )
            raise ConfigError(
                f"{origin}: policy: two [[policy]] sections are named {name}",
                "give each a name of its own: name = ...",
            )
    if not settings.policy:
        raise ConfigError(f"{origin}: policy: the list is empty", "name at least one policy")


def _hint(key: str) -> str | None:
    if key == "policy":
        return 'each policy is a section: a line [[policy]], and below it policy = "hr"'
    if key == "target":
        return "each target is a section: a line [[target]], and below it queries and latency"
    if key == "elastic":
        return "queries with replicas by themselves are a section: a line [[elastic]]"
    if key == "prior":
        return "an order to begin with is a section: a line [[prior]], and below it policy"
    if re.fullmatch(r"program\[\d+\]\.edges.*", key):
        return 'OPERATOR = ["WHOM", "IT", "FEEDS"]'
    program = re.fullmatch(r"program\[\d+\]\.(?:(find|metrics)\.)?(\w+)", key)
    if program:
        return _told(PARTS_OF_PROGRAM.get(program[1] or "", programs.Program), program[2])
    if key.startswith("program"):
        return "each program is a section: [[program]] with name and find, and [program.threads]"
    target = re.fullmatch(r"(?:policy\[\d+\]\.)?target\[\d+\]\.(\w+)", key)
    option = re.fullmatch(r"backends\.(?P<backend>[^.]+)\.(\w+).*", key)
    other = re.fullmatch(r"(elastic|prior)\[\d+\]\.(\w+)", key)
    match = target or option or other or re.fullmatch(r"(?:policy\[\d+\]\.)?(\w+)(.*)", key)
    if match is None:
        return None
    struct: type[Struct] = Section if key.startswith("policy[") else Settings
    struct = (
        OTHERS[other[1]]
        if other
        else Target
        if target
        else _options_of(option["backend"])
        if option
        else struct
    )
    return _told(struct, match[2 if option or other else 1])


def _told(struct: type[Struct], key: str) -> str | None:
    for setting in declared(struct):
        if setting.key == key:
            unit = f" ({setting.unit})" if setting.unit else ""
            bounds = f", {setting.bounds}" if setting.bounds else ""
            if get_origin(setting.type) is Literal:
                bounds = f", one of {', '.join(get_args(setting.type))}"
            return f"{setting.key}{unit}{bounds}: {setting.description}"
    return None


def _values(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """All that is no table and no list, with its key."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _values(part, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _values(part, f"{where}[{index}]")
    else:
        yield where, value


def _merge(into: dict[str, Any], table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        if key == "policy":
            into["policy"] = _merge_sections(into.get("policy", []), value)
        elif key == "program":  # one with a known name in its place
            mine = {program.get("name"): program for program in into.get(key, [])}
            into[key] = [*(mine | {program.get("name"): program for program in value}).values()]
        elif key == "prior":  # before the others: the first that fits counts
            into[key] = [*value, *into.get(key, [])]
        elif key in TABLES:
            mine = into.get(key, {})
            amended = {name: {**mine.get(name, {}), **options} for name, options in value.items()}
            # Before the others: of access, the first whose pattern fits counts.
            into[key] = amended | {n: table for n, table in mine.items() if n not in amended}
        else:
            into[key] = value


def _merge_sections(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[Any]:
    amend = {_name(section): section for section in new}
    amended = [{**section, **amend.pop(_name(section), {})} for section in old]
    return [section for section in new if _name(section) in amend] + amended


def _name(section: Mapping[str, Any]) -> str:
    return str(section.get("name") or section.get("policy") or "auto")


def _selects_all(section: Mapping[str, Any]) -> bool:
    return all(
        "*" in patterns and not any(pattern.startswith("!") for pattern in patterns)
        for patterns in (section.get("queries", "*"), section.get("engines", "*"))
    )


def _override(merged: dict[str, Any], flags: Mapping[str, Any]) -> None:
    """Flags win over everything: also over the same key in each [[policy]] section."""
    of_sections = {setting.key for setting in declared(Section)} - {"name", "policy"}
    for key, value in flags.items():
        if key in (*TABLES, "program"):
            _merge(merged, {key: value})
        elif key == "policy":
            merged["policy"] = value
        else:
            merged[key] = value
            if key in of_sections:
                for section in merged.get("policy", []):
                    section.pop(key, None)


def parse_pairs(texts: Sequence[str], flag: str, form: str = "KEY=VALUE") -> dict[str, Any]:
    """`KEY=VALUE` arguments of a flag as a dictionary; a value is TOML where it can be read so.

    form: what the flag's help calls them, for whoever got it wrong.
    """
    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ConfigError(f"{flag}: expected {form}, got '{text}'")
        try:
            pairs[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            pairs[key] = value
        except (ValueError, RecursionError) as error:  # as in `_read`
            raise ConfigError(f"{flag}: {key}: {error}") from None
        if any(isinstance(v, float) and not math.isfinite(v) for _, v in _values(pairs[key], "")):
            raise ConfigError(f"{flag}: {text}: {value} is no finite number")
    return pairs
