"""Settings: what they are called, what they mean, and where their values come from.

Each setting is declared once, as a field of `Settings` (or of `Binding`, for one `[[policy]]`
section) with its type, bounds, unit and meaning. The TOML file, the command line flags
(`cli.flags`), `sched-ctl config` and docs/usage.md are made from, or checked against, these
declarations.

Precedence, highest first: flags, drop-ins (`sched-ctl.d/*.toml`, later names first), the file,
the defaults. A drop-in's `[[policy]]` section amends the section of the same name, key by key;
one with a new name goes before the others, because the first binding that selects an operator
wins.
"""

import difflib
import math
import re
import textwrap
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from sched_ctl.errors import UserError

__all__ = [
    "DEFAULT_FILE",
    "Binding",
    "ConfigError",
    "Setting",
    "SettingError",
    "Settings",
    "declared",
    "dump",
    "load",
    "origin",
    "parse_pairs",
    "resolve",
]

DEFAULT_FILE = Path("/etc/sched-ctl/sched-ctl.toml")
MAX_BYTES = 1 << 20  # of one file: more is no configuration of ours

Period = Annotated[
    float,
    Meta(
        description="time from one pass of the policy to the next",
        ge=0.001,
        le=3600,
        extra={"unit": "s"},
    ),
]
BackendName = Annotated[
    str,
    Meta(
        description="how schedules reach the kernel; auto takes the best one that works here",
        min_length=1,
    ),
]
LevelName = Annotated[
    Literal["auto", "physical", "logical"],
    Meta(
        description="whose priorities the policy computes: of the operators that the engine runs, "
        "of those that the user wrote (each engine operator then gets the largest of its logical "
        "ones), or what the policy itself prefers"
    ),
]
Share = Annotated[float, Meta(gt=0, le=1e6)]
Shares = Annotated[
    dict[str, Share],
    Meta(
        description="CPU shares of queries, relative to each other: pattern = share; queries that "
        "match no pattern get 1. Without any, queries are not grouped",
        extra={"flag": "--share", "metavar": "QUERY=SHARE"},
    ),
]
PolicyOptions = Annotated[
    dict[str, Any],
    Meta(
        description="options of the policy",
        extra={"flag": "--policy-option", "metavar": "KEY=VALUE"},
    ),
]


class Binding(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[policy]]` section: which policy rules which operators, and how it is enforced.

    None = as the setting of the same name outside the section.
    """

    name: Annotated[
        str,
        Meta(description="name of this binding, for status and policy set; default: the policy's"),
    ] = ""
    policy: Annotated[
        str, Meta(description="name of the policy, see sched-ctl policies", min_length=1)
    ] = "auto"
    options: PolicyOptions = {}
    queries: Annotated[
        tuple[str, ...],
        Meta(description='queries it rules, as patterns of the name or of "engine:name"'),
    ] = ("*",)
    engines: Annotated[
        tuple[str, ...],
        Meta(description='engines it rules, as patterns of, for example, "flink:*"'),
    ] = ("*",)
    period: Period | None = None
    backend: BackendName | None = None
    level: LevelName | None = None
    shares: Shares | None = None


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything outside the `[[policy]]` sections, and the sections."""

    policy: Annotated[
        tuple[Binding, ...],
        Meta(
            description="policies and what they rule; the first whose patterns select an operator "
            "has it",
            extra={"flag": "--policy", "metavar": "[QUERIES=]NAME"},
        ),
    ] = (Binding(),)
    engine: Annotated[
        tuple[str, ...],
        Meta(
            description='engines to schedule, for example "flink:127.0.0.1:8081" or a kind alone; '
            "empty: all that are found on this machine",
            extra={"metavar": "KIND[:ADDRESS]"},
        ),
    ] = ()
    exclude: Annotated[
        tuple[str, ...],
        Meta(
            description="never touch these: patterns of a query, of query/operator, of a thread "
            "name, or of each after engine:",
            extra={"metavar": "PATTERN"},
        ),
    ] = ()
    period: Period = 1.0
    backend: BackendName = "auto"
    backends: Annotated[
        dict[str, dict[str, Any]],
        Meta(
            description="options of backends, a table for each",
            extra={"flag": "--backend-option", "metavar": "BACKEND.KEY=VALUE"},
        ),
    ] = {}
    level: LevelName = "auto"
    shares: Shares = {}
    helpers: Annotated[
        dict[str, str],
        Meta(
            description="engine threads that run no operator, role pattern = rule: follow (as "
            "urgent as the operator it serves), top (above all operators), neutral or leave; "
            "without a rule they are left alone",
            extra={"flag": "--helper", "metavar": "ROLE=RULE"},
        ),
    ] = {}
    window: Annotated[
        float,
        Meta(
            description="how far back counters are compared for rates and costs",
            ge=0.01,
            le=600,
            extra={"unit": "s"},
        ),
    ] = 5.0
    poll_timeout: Annotated[
        float,
        Meta(description="how long an engine may take to answer", gt=0, le=60, extra={"unit": "s"}),
    ] = 1.0
    stale_after: Annotated[
        float,
        Meta(
            description="an engine that stopped answering keeps its schedule for this long, then "
            "its threads go back to what they were",
            ge=0,
            le=86400,
            extra={"unit": "s"},
        ),
    ] = 10.0
    discover: Annotated[
        float,
        Meta(
            description="time from one search for engines to the next",
            ge=0.1,
            le=3600,
            extra={"unit": "s"},
        ),
    ] = 5.0
    run_dir: Annotated[
        str,
        Meta(
            description="folder of the lock, the control socket and the journal of changes",
            min_length=1,
        ),
    ] = "/run/sched-ctl"


class ConfigError(UserError):
    """A setting that cannot be used, with the file (or flag) and the key."""


class SettingError(UserError):
    """A value of the right form that means nothing here, such as a policy that does not exist.

    where: keys from the outermost inwards; that of a `[[policy]]` section is its name. `origin`
    tells which file it is in.
    """

    def __init__(self, where: tuple[str, ...], message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.where = where


@dataclass(frozen=True)
class Setting:
    """One declared setting, for flags and docs."""

    key: str
    type: Any  # without its annotations
    default: Any
    description: str
    unit: str
    flag: str
    metavar: str | None
    bounds: str


def declared(struct: type[Struct] = Settings) -> tuple[Setting, ...]:
    """The settings of `struct`, in order of declaration."""
    return tuple(_settings(struct))


def _settings(struct: type[Struct]) -> Iterator[Setting]:
    for field in msgspec.structs.fields(struct):
        kind, metas = _strip(field.type)
        extra: dict[str, Any] = {}
        description = ""
        bounds: list[str] = []
        for meta in metas:
            extra |= meta.extra or {}
            description = meta.description or description
            for sign, bound in (("> ", meta.gt), ("≥ ", meta.ge), ("< ", meta.lt), ("≤ ", meta.le)):
                if bound is not None:
                    bounds.append(f"{sign}{bound:g}")
        default = (
            field.default_factory()
            if field.default_factory is not msgspec.NODEFAULT
            else field.default
        )
        yield Setting(
            key=field.encode_name,
            type=kind,
            default=default,
            description=description,
            unit=extra.get("unit", ""),
            flag=extra.get("flag", "--" + field.encode_name.replace("_", "-")),
            metavar=extra.get("metavar"),
            bounds=", ".join(bounds),
        )


def _strip(kind: Any) -> tuple[Any, list[Meta]]:
    """A type without `Annotated` and `| None`, and its annotations, outermost first."""
    metas: list[Meta] = []
    while True:
        if get_origin(kind) is Annotated:
            kind, *more = get_args(kind)
            metas += [meta for meta in more if isinstance(meta, Meta)]
        elif get_origin(kind) in (Union, types.UnionType):
            [kind] = [part for part in get_args(kind) if part is not type(None)]
        else:
            return kind, metas


# --- reading ------------------------------------------------------------------------------------


def load(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings in force.

    file: None = `DEFAULT_FILE` if it exists; drop-ins lie in the folder of the file's name with
    `.d` for `.toml`. flags: values from the command line, keyed like `Settings`.
    Raises ConfigError.
    """
    merged: dict[str, Any] = {}
    main = DEFAULT_FILE if file is None else file
    if file is not None or main.exists():
        _merge(merged, _read(main))
    for drop_in in _drop_ins(main):
        _merge(merged, _read(drop_in))
    if flags:
        _validate(flags, "command line", convert_only=True)
        _override(merged, flags)
    return _validate(merged, str(main))


def origin(file: Path | None, flags: Mapping[str, Any], where: tuple[str, ...]) -> str:
    """Where a setting has its value from, as "FILE: KEY" or "command line: FLAG".

    file, flags: as given to `load`. where: as in `SettingError`.
    """
    main = DEFAULT_FILE if file is None else file
    tables = [(path, _read(path)) for path in (main, *_drop_ins(main)) if path.exists()]
    sources = [("command line", flags), *((str(path), table) for path, table in reversed(tables))]
    # A section that does not set it has it from outside.
    for keys in (where, where[2:]) if where[0] == "policy" else (where,):
        for source, table in sources:
            found = _find(table, keys)
            if found:
                if source == "command line":
                    found = {s.key: s.flag for s in declared()}[keys[0]]
                return f"{source}: {found}"
    return f"default: {where[-1]}"


def _find(table: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    """The keys as they stand in this table, or None if it does not set them."""
    if not keys:
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
    return sorted(folder.glob("*.toml")) if folder.is_dir() else []


def _read(path: Path) -> dict[str, Any]:
    """A file as a checked dictionary of the keys that it sets."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", "give another file with --config, or none"
        ) from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES >> 20} MiB, this is no configuration")
    try:
        table = tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}", "the file is TOML, see https://toml.io") from None
    _validate(table, str(path))
    return table


def _validate(table: Mapping[str, Any], origin: str, *, convert_only: bool = False) -> Settings:
    _check_keys(table, Settings, origin, "")
    for index, section in enumerate(_sections(table)):
        _check_keys(section, Binding, origin, f"policy[{index}].")
    try:
        settings = msgspec.convert(table, Settings)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        key = where.rstrip("`") or "the file"
        raise ConfigError(f"{origin}: {key}: {what}", _hint(key)) from None
    for key, value in _floats(msgspec.to_builtins(settings), ""):
        if not math.isfinite(value):
            raise ConfigError(f"{origin}: {key}: {value} is no finite number")
    if not convert_only:
        _check_names(settings, origin)
    return settings


def _sections(table: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    policy = table.get("policy", [])
    return [p for p in policy if isinstance(p, Mapping)] if isinstance(policy, list) else []


def _check_keys(table: Mapping[str, Any], struct: type[Struct], origin: str, where: str) -> None:
    known = [setting.key for setting in declared(struct)]
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            other = Binding if struct is Settings else Settings
            if near:
                hint = f"did you mean {near[0]}?"
            elif key in [setting.key for setting in declared(other)]:
                place = "in a [[policy]] section" if other is Binding else "outside [[policy]]"
                hint = f"{key} belongs {place}"
            else:
                hint = "known keys: " + ", ".join(known)
            raise ConfigError(f"{origin}: {where}{key}: there is no such setting", hint)


def _check_names(settings: Settings, origin: str) -> None:
    names = [binding.name or binding.policy for binding in settings.policy]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"{origin}: policy: two [[policy]] sections are named {name}",
                "give each a name of its own: name = ...",
            )
    if not settings.policy:
        raise ConfigError(f"{origin}: policy: the list is empty", "name at least one policy")


def _hint(key: str) -> str | None:
    match = re.fullmatch(r"(?:policy\[\d+\]\.)?(\w+)(.*)", key)
    if match is None:
        return None
    struct = Binding if key.startswith("policy[") else Settings
    for setting in declared(struct):
        if setting.key == match[1]:
            unit = f" ({setting.unit})" if setting.unit else ""
            bounds = f", {setting.bounds}" if setting.bounds else ""
            if get_origin(setting.type) is Literal:
                bounds = f", one of {', '.join(get_args(setting.type))}"
            return f"{setting.key}{unit}{bounds}: {setting.description}"
    return None


def _floats(value: Any, where: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield where, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _floats(part, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _floats(part, f"{where}[{index}]")


# --- precedence ---------------------------------------------------------------------------------


def _merge(into: dict[str, Any], table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        if key == "policy":
            into["policy"] = _merge_sections(into.get("policy", []), value)
        elif key == "backends":
            mine = into.setdefault("backends", {})
            for backend, options in value.items():
                mine[backend] = {**mine.get(backend, {}), **options}
        else:
            into[key] = value


def _merge_sections(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[Any]:
    amend = {_name(section): section for section in new}
    amended = [{**section, **amend.pop(_name(section), {})} for section in old]
    return [section for section in new if _name(section) in amend] + amended


def _name(section: Mapping[str, Any]) -> str:
    return str(section.get("name") or section.get("policy") or "auto")


def _override(merged: dict[str, Any], flags: Mapping[str, Any]) -> None:
    """Flags win over everything: also over the same key in each [[policy]] section."""
    of_sections = {setting.key for setting in declared(Binding)} - {"name", "policy"}
    for key, value in flags.items():
        if key == "backends":
            _merge(merged, {"backends": value})
        elif key == "policy":
            merged["policy"] = value
        else:
            merged[key] = value
            if key in of_sections:
                for section in merged.get("policy", []):
                    section.pop(key, None)


def parse_pairs(texts: Sequence[str], flag: str) -> dict[str, Any]:
    """`KEY=VALUE` arguments of a flag as a dictionary; a value is TOML where it can be read so."""
    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ConfigError(f"{flag}: expected KEY=VALUE, got '{text}'")
        try:
            pairs[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            pairs[key] = value
    return pairs


# --- writing ------------------------------------------------------------------------------------


def resolve(settings: Settings) -> tuple[Binding, ...]:
    """The bindings with every key set: None replaced by the general setting."""
    return tuple(
        msgspec.structs.replace(
            binding,
            name=binding.name or binding.policy,
            period=settings.period if binding.period is None else binding.period,
            backend=binding.backend or settings.backend,
            level=binding.level or settings.level,
            shares=settings.shares if binding.shares is None else binding.shares,
        )
        for binding in settings.policy
    )


def dump(settings: Settings, backends: Mapping[str, type[Struct]] = {}) -> str:
    """The settings as a TOML file that `load` reads back as equal, with a comment on each key.

    backends: name -> what options there are; those that are not set come as comments.
    """
    import tomli_w  # only here: the main loop does not need it

    lines = ["# The configuration in force, as a file: " + str(DEFAULT_FILE), ""]
    tables: list[str] = []
    values = msgspec.to_builtins(settings)
    for setting in declared(Settings):
        if setting.key == "policy":
            continue
        value = values[setting.key]
        comment = _comment(setting)
        if setting.key == "backends" and backends:
            names = dict.fromkeys([*backends, *value])
            options = [_options_of(name, backends.get(name), value.get(name)) for name in names]
            tables.append("\n".join([*comment, "", *options]))
            continue
        entry = f"{setting.key} = {{}}" if value == {} else tomli_w.dumps({setting.key: value})
        # A table ends the part of the file in which plain keys can stand.
        (tables if isinstance(value, dict) and value else lines).append(
            "\n".join([*comment, entry.strip(), ""])
        )
    sections = []
    for binding in settings.policy:
        section = {k: v for k, v in msgspec.to_builtins(binding).items() if v is not None}
        sections.append(tomli_w.dumps({"policy": [section]}).strip() + "\n")
    return "\n".join([*lines, *tables, *sections])


def _comment(setting: Setting) -> list[str]:
    unit = f" ({setting.unit})" if setting.unit else ""
    bounds = f"; {setting.bounds}" if setting.bounds else ""
    return [f"# {line}" for line in textwrap.wrap(setting.description + unit + bounds, 96)]


def _options_of(name: str, struct: type[Struct] | None, given: Mapping[str, Any] | None) -> str:
    """The table of a backend's options. What the user did not set is commented out."""
    import tomli_w

    def entry(key: str, value: Any) -> str:
        if isinstance(value, Mapping):  # in one line: a table of its own would end this one
            return f"{key} = {{{', '.join(tomli_w.dumps(value).splitlines())}}}"
        return tomli_w.dumps({key: value}).strip()

    header = tomli_w.dumps({"backends": {name: {}}}).strip()
    lines = [f"# {header}"] if given is None else [header]
    left = dict(given or {})
    for option in () if struct is None else declared(struct):
        lines += _comment(option)
        if option.key in left:
            lines.append(entry(option.key, left.pop(option.key)))
        else:
            lines.append(f"# {entry(option.key, option.default)}")
    lines += [entry(key, value) for key, value in left.items()]
    return "\n".join([*lines, ""])
