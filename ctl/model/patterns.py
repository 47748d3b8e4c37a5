"""What a name pattern of the user means, wherever one may be given.

Shell patterns, in which upper and lower case differ: `*`, `?`, `[abc]`, `[!abc]`. One that begins
with "!" excludes; exclusions win in any order, and if there are only exclusions, all else is
included. What has an engine, such as a query, is meant by its name alone and by the name after the
engine or the kind of the engine: "etl", "flink:127.0.0.1:8081:etl" and "flink:etl" (a "/" in place
of the colon before the name is good as well), of a declared program by that one's name, too:
"cameras/front". An engine in a container, and all in it, is meant by that as well, see `runs_in`:
"pod:ingest/*". Where a table is keyed by patterns, each counts by itself, and the first that fits
has it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import translate
from functools import lru_cache
from typing import TypeVar

__all__ = ["engine_fits", "first", "fits", "matcher", "names_of", "runs_in"]

Value = TypeVar("Value")

PLACES = ("pod:", "container:")
_names: dict[str, tuple[str, ...]] = {}  # by engine; those of engines that are here


def fits(patterns: Iterable[str], *names: str) -> bool:
    """Whether the patterns mean what has these names (each of which is good)."""
    return matcher(tuple(patterns))(names)


def first(table: Mapping[str, Value], *names: str) -> Value | None:
    """What the first pattern that fits stands for; None if none does."""
    return next((value for pattern, value in table.items() if fits((pattern,), *names)), None)


def runs_in(engine: str, names: Iterable[str]) -> None:
    """From now on the engine may be meant by these: "pod:NAMESPACE/POD". None: by no such any more.

    It is said where an engine is found, once, and not handed through all that knows it by name.
    """
    _names.pop(engine, None)
    if found := tuple(names):
        _names[engine] = found


def names_of(engine: str, name: str) -> tuple[str, ...]:
    """By what a pattern may call something in an engine, such as a query: see above."""
    kind, _, address = engine.partition(":")
    names: tuple[str, ...] = f"{engine}:{name}", f"{engine}/{name}", f"{kind}:{name}"
    if not name.startswith(PLACES):  # nobody is elsewhere by what he calls himself
        names = name, *names
    for place in _names.get(engine, ()):
        names = *names, place, f"{place}:{name}"
    if kind != "program":
        return names
    program = address.partition("@")[0]  # whoever runs it
    return *names, f"{kind}:{program}:{name}", f"{program}:{name}", f"{program}/{name}"


def engine_fits(patterns: Iterable[str], engine: str) -> bool:
    """Whether the patterns mean the engine: by its name ("flink:127.0.0.1:8081"), its kind, or
    what it runs in."""
    return fits(patterns, engine, engine.partition(":")[0], *_names.get(engine, ()))


@lru_cache(maxsize=256)
def matcher(patterns: tuple[str, ...]) -> Callable[[Iterable[str]], bool]:
    """`fits` with the patterns prepared: thousands of plain names cost no more than one."""
    excluded = _any_of([pattern[1:] for pattern in patterns if pattern.startswith("!")])
    included = _any_of([pattern for pattern in patterns if not pattern.startswith("!")])
    only_exclusions = bool(patterns) and all(pattern.startswith("!") for pattern in patterns)

    def meant(names: Iterable[str]) -> bool:
        if any(map(excluded, names)):
            return False
        return only_exclusions or any(map(included, names))

    return meant


def _any_of(patterns: Iterable[str]) -> Callable[[str], bool]:
    plain = set()
    wild = []
    for pattern in patterns:
        plain.add(pattern)  # a name may have brackets itself: "Calc[3]"
        if set("*?[") & set(pattern):
            wild.append(translate(pattern))
    expression = re.compile("|".join(wild)) if wild else None
    return lambda name: name in plain or bool(expression and expression.match(name))
