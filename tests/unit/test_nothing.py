"""Why there is nothing to show: the sentence says what is so, and what to do."""

from typing import Any

import pytest

from sched_ctl.service.idle import nothing


def engine(state: str = "ok", queries: tuple[str, ...] = ("q",), threads: int = 3) -> Any:
    return {"engine": "flink:1", "state": state, "queries": list(queries), "threads": threads}


@pytest.mark.parametrize(
    ("engines", "said"),
    [
        ([], "no engine is found"),
        ([engine("silent")], "no engine answers: flink:1 (silent)"),
        ([engine(queries=(), threads=0)], "flink:1 answers, and runs no query"),
        ([engine("new")], "flink:1 has not answered yet: it is asked again"),
        ([engine("new"), engine("silent")], "no engine answers: flink:1 (new), "),
        ([engine(threads=0)], "no thread of an operator is known"),
        ([engine()], "too early to tell"),
        ([engine(queries=(), threads=0), engine()], "too early to tell"),
    ],
)
def test_it_says_what_is_so(engines: list[Any], said: str) -> None:
    assert nothing({"engines": engines}).startswith(said)
