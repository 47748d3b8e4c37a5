"""The reader of metrics pages."""

import math
import tracemalloc
from typing import cast

import pytest

from sched_ctl.drivers.sources import prometheus
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.drivers.sources.prometheus import Page

TEXT = r"""# HELP m something
# TYPE m gauge
m{a="1",b="x y",} 3.0
m{a="2", b="} \"quoted\" \\ \n {"} 4 1700000000
m{a="nan"} NaN
m{a="inf"} +Inf
m{a="neg"} -1e3
plain 7
other{a="1"} 5
m{a="broken} 1
m{a="1",b="x y",}
m{a="text"} many
garbage
"""


def page(*families: str) -> Page:
    return Page(cast(Endpoint, None), families)


def test_samples() -> None:
    found = [(f, tuple(labels.values()), v) for f, labels, v in page("m", "plain").samples(TEXT)]
    assert found[0] == ("m", ("1", "x y"), 3.0)
    assert found[1] == ("m", ("2", '} "quoted" \\ \n {'), 4.0)
    assert math.isnan(found[2][2])
    assert found[3][2] == math.inf
    assert found[4][2] == -1000.0
    assert found[5] == ("plain", (), 7.0)
    assert len(found) == 6


def test_labels_keep_their_identity() -> None:
    reader = page("m")
    first = [id(labels) for _, labels, _ in reader.samples(TEXT)]
    assert first == [id(labels) for _, labels, _ in reader.samples(TEXT)]


def test_what_is_remembered_of_a_page_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "REMEMBERED", 100_000)
    reader = page("m")
    most = 0
    for scrape in range(50):
        text = "\n".join(f'm{{a="{scrape}-{i}",b="{"x" * 1000}"}} 1' for i in range(50))
        assert len(list(reader.samples(text))) == 50
        most = max(most, sum(map(len, reader._series)))
    assert most < 200_000


def test_labels_cost_more_than_their_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "REMEMBERED", 300_000)
    labels = ",".join(f'{letter}{number:x}=""' for number in range(250) for letter in "ab")
    reader = page("m")
    text = "\n".join(f'm{{c="{line}",{labels}}} 1' for line in range(200))
    tracemalloc.start()
    try:
        for _ in range(3):
            assert sum(1 for _ in reader.samples(text)) == 200
            assert tracemalloc.get_traced_memory()[0] < 600_000
    finally:
        tracemalloc.stop()


def test_a_page_of_short_lines_takes_no_more_than_its_size() -> None:
    reader, text = page("m"), "ab\n" * 100_000
    tracemalloc.start()
    try:
        assert list(reader.samples(text)) == []
        assert tracemalloc.get_traced_memory()[1] < len(text)
    finally:
        tracemalloc.stop()


def test_endless_lines_are_left_out() -> None:
    reader = page("m")
    text = f'm{{a="{"x" * 5000}"}} 1\nm{{a="1"}} 2\nother{{b="{"x" * 5000}"}} 1'
    assert [value for _, _, value in reader.samples(text)] == [2.0]
    assert sum(map(len, reader._series)) < 100


def test_query_selects_families() -> None:
    assert page("b", "a")._path == "/metrics?name[]=a&name[]=b"
