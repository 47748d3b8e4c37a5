"""Names chosen by shell patterns."""

import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from functools import lru_cache

__all__ = ["matcher", "matches"]

ESCAPED = re.compile(r"\[([*?[])\]")  # as glob.escape() writes them


def matches(engine: str, query: str, patterns: Sequence[str]) -> bool:
    """True if a shell pattern fits the query's name, or "engine/query".

    A pattern that begins with "!" excludes, and exclusions win in any order; if there are only
    exclusions, all else is included.
    """
    return matcher(tuple(patterns))(engine, query)


@lru_cache(maxsize=64)
def matcher(patterns: tuple[str, ...]) -> Callable[[str, str], bool]:
    """`matches` with the patterns prepared: thousands of plain names cost no more than one."""
    excluded = _any_of([pattern[1:] for pattern in patterns if pattern.startswith("!")])
    included = _any_of([pattern for pattern in patterns if not pattern.startswith("!")])
    only_exclusions = bool(patterns) and all(pattern.startswith("!") for pattern in patterns)

    def fits(engine: str, query: str) -> bool:
        names = (query, f"{engine}/{query}")
        if any(map(excluded, names)):
            return False
        return only_exclusions or any(map(included, names))

    return fits


def _any_of(patterns: Sequence[str]) -> Callable[[str], bool]:
    plain = set()
    wild = []
    for pattern in patterns:
        if set("*?[") & set(ESCAPED.sub("", pattern)):
            wild.append(translate(pattern))
        else:
            plain.add(ESCAPED.sub(r"\1", pattern))
    expression = re.compile("|".join(wild)) if wild else None
    return lambda name: name in plain or bool(expression and expression.match(name))
