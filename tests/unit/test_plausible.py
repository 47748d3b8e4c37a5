"""Lines that cannot be true are set aside, with the reason, before anything is summed."""

from typing import Any

import pytest

from sched_ctl.pipeline.plausible import EARLIEST_MS, implausible
from sched_ctl.telemetry import records

NOW = 1_800_000_000_000


def record(**columns: Any) -> records.Record:
    given: dict[str, Any] = {"node": "n", "t": NOW, "d": 5000, "engine": "e", "epoch": 1} | columns
    return records.Record(**given)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (record(cpu=[10**12, 1]), "cpu 1000000000000 in 5000 ms"),
        (record(tuples_in=[2**53, 1]), "tuples_in"),
        (record(tuples_out=[1, 2**52]), "tuples_out"),
        (record(wait=[2**50, None]), "wait"),
        (record(q=[2**53, 0]), "q "),
        (record(age=[2**52, 0]), "age"),
        (record(busy=[10**9, 0]), "busy"),
        (record(psi=[0, 2**40, None]), "psi 1099511627776 in"),
        (record(verdict=[0, 2**40]), "verdict 1099511627776 in"),
        (record(d=86_400_001), "longer than a day"),
        (record(t=60_000), "clock was not set"),
        (record(t=EARLIEST_MS - 1), "clock was not set"),
        (record(t=2**53), "time"),
        (record(node=""), "no node"),
        (record(node="x" * 300), "120 bytes"),
        (record(node="\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 60), "120 bytes"),
        (records.Event(node="n", t=1, what="error"), "clock was not set"),
    ],
)
def test_nonsense_has_a_reason(line: records.Line, why: str) -> None:
    assert why in (implausible(line, ()) or "")


@pytest.mark.parametrize(
    ("line", "threads"),
    [
        (record(), ()),
        (record(cpu=[5_000_000, None], wait=[5_000_000, 0], busy=[5000, 5000]), ()),
        (record(cpu=[320_000_000, 0]), (64, 1)),
        (record(d=0, cpu=[10_000, 0], tuples_in=[100, 100]), ()),
        (record(tuples_in=[5 * 10**7, 0], q=[10**9, 0], age=[86_400_000, 0], lat=[10**12, 0]), ()),
        (record(psi=[10_000, None, 0], verdict=[9, None]), ()),
        (record(verdict=[20, 0]), ()),  # of a later version
        (records.Event(node="n", t=NOW, what="lost", count=10), ()),
    ],
)
def test_readings_of_real_engines_pass(line: records.Line, threads: tuple[int, ...]) -> None:
    assert implausible(line, threads) is None


def test_a_thousand_threads_may_use_more_than_one() -> None:
    many = record(cpu=[5_000_000_000, 0])
    assert implausible(many, (1, 1)) is not None
    assert implausible(many, (1000, 1)) is None
