"""The Prometheus text format, as metric reporters of engines serve it.

A scrape is read once a second or more often and has thousands of lines that differ from the last
scrape's in nothing but the values, so a line's labels are taken apart once and looked up after
that: 1 to 2 us a line, where the format's reference parser takes 67.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlencode

from sched_ctl.drivers.sources.http import Endpoint

__all__ = ["Labels", "Page"]

PAGE_LIMIT = 16 << 20  # bytes of a page
LINE_LIMIT = 4096  # characters of a sample's name and labels: longer ones are left out
REMEMBERED = 64 << 20  # bytes, about, of names and labels; beyond that we start again
LABEL_COSTS = 128  # bytes, beside its characters
LABEL = re.compile(r'\s*([a-zA-Z_:][\w:]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}

_numbers = itertools.count()


class Labels(dict[str, str]):
    """Of a series. number: another one in each of these, also after it has gone."""

    __slots__ = ("number",)

    def __init__(self, found: Mapping[str, str]) -> None:
        super().__init__(found)
        self.number = next(_numbers)


class Page:
    """A metrics page and some of its families, which Java's and Python's exporters can select."""

    def __init__(self, endpoint: Endpoint, families: Iterable[str], path: str = "/metrics") -> None:
        self._endpoint = endpoint
        self._families = frozenset(families)
        query = urlencode([("name[]", name) for name in sorted(self._families)], safe="[]")
        self._path = f"{path}?{query}"
        self._series: dict[str, tuple[str, Labels] | None] = {}
        self._size = 0  # of what is remembered

    def read(self, timeout_s: float) -> Iterator[tuple[str, Labels, float]]:
        """(family, labels, value) of every sample of the wanted families.

        A series has the same `labels` object in every scrape until too much is remembered, so what
        a caller finds by it can be kept by its number. Values are as the page has them: NaN,
        infinite and negative ones included. Lines that are not of the format are left out. Raises
        EngineError.
        """
        text = self._endpoint.get(self._path, timeout_s, PAGE_LIMIT).decode(errors="replace")
        return self.samples(text)

    def samples(self, text: str) -> Iterator[tuple[str, Labels, float]]:
        """The samples in a page's text."""
        if self._size > REMEMBERED:
            self._series.clear()
            self._size = 0
        for line in _lines(text):
            if not line or line[0] == "#":
                continue
            # A label may hold any character, so the value begins after the last brace.
            head, brace, tail = line.rpartition("}")
            if not brace:
                head, _, tail = line.partition(" ")
            try:
                series = self._series[head]
            except KeyError:
                if len(head) > LINE_LIMIT:
                    continue
                series = self._take_apart(head)
                if self._size <= REMEMBERED:
                    self._series[head] = series
                    count = 0 if series is None else len(series[1])
                    self._size += 2 * len(head) + LABEL_COSTS * (1 + count)
            if series is None:
                continue
            try:
                # A time stamp may follow.
                yield (*series, float(tail.split(None, 1)[0]))
            except (ValueError, IndexError):
                continue

    def _take_apart(self, head: str) -> tuple[str, Labels] | None:
        family, _, inside = head.partition("{")
        if family not in self._families:
            return None
        labels = {}
        end = 0
        while end < len(inside):
            match = LABEL.match(inside, end)
            if match is None:
                return None
            labels[match[1]] = ESCAPE.sub(lambda m: ESCAPED.get(m[1], m[0]), match[2])
            end = match.end()
        return family, Labels(labels)

    def close(self) -> None:
        self._endpoint.close()


def _lines(text: str) -> Iterator[str]:
    """One at a time: a page of short ones takes twenty times its size as a list."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]
