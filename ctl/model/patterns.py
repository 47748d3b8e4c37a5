"""What a name pattern of the user means, wherever one may be given.

Shell patterns, in which upper and lower case differ: `*`, `?`, `[abc]`, `[!abc]`. One that begins
with "!" excludes; exclusions win in any order, and if there are only exclusions, all else is
included. What has an engine, such as a query, is meant by its name alone and by the name after the
engine or the kind of the engine: "etl", "flink:127.0.0.1:8081:etl" and "flink:etl" (a "/" in place
of the colon before the name is good as well), of a declared program by that one's name, too:
"cameras/front". Where a table is keyed by patterns, each counts by
itself, and the first that fits has it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import translate
from functools import lru_cache
from typing import TypeVar

__all__ = ["engine_fits", "first", "fits", "matcher", "names_of"]

Value = TypeVar("Value")


def fits(patterns: Iterable[str], *names: str) -> bool:
    """Whether the patterns mean what has these names (each of which is good)."""
    return matcher(tuple(patterns))(names)


def first(table: Mapping[str, Value], *names: str) -> Value | None:
    """What the first pattern that fits stands for; None if none does."""
    return next((value for pattern, value in table.items() if fits((pattern,), *names)), None)


def names_of(engine: str, name: str) -> tuple[str, ...]:
    """By what a pattern may call something in an engine, such as a query: see above."""
    kind, _, address = engine.partition(":")
    names = name, f"{engine}:{name}", f"{engine}/{name}", f"{kind}:{name}"
    if kind != "program":
        return names
    program = address.partition("@")[0]  # whoever runs it
    return *names, f"{kind}:{program}:{name}", f"{program}:{name}", f"{program}/{name}"


def engine_fits(patterns: Iterable[str], engine: str) -> bool:
    """Whether the patterns mean the engine: by its name, "flink:127.0.0.1:8081", or its kind."""
    return fits(patterns, engine, engine.partition(":")[0])


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
        if set("*?[") & set(pattern):
            wild.append(translate(pattern))
        else:
            plain.add(pattern)
    expression = re.compile("|".join(wild)) if wild else None
    return lambda name: name in plain or bool(expression and expression.match(name))
