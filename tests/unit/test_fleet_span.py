"""The part of a fleet that a verb looks at, as a user says it."""

import pytest

from sched_ctl.errors import UserError
from sched_ctl.pipeline.choice import HOUR_MS, chosen, days_of, moment

DAY = 1_795_305_600_000  # 2026-11-22, 00:00 UTC


def test_a_moment_is_a_date_a_time_or_so_long_ago() -> None:
    assert moment("2026-11-22") == DAY
    assert moment("2026-11-22T03:00") == moment("2026-11-22 04:00+01:00") == DAY + 3 * HOUR_MS
    assert moment("12h", DAY / 1e3) == DAY - 12 * HOUR_MS
    assert moment("2w", DAY / 1e3) == moment("14d", DAY / 1e3) == DAY - 14 * 24 * HOUR_MS
    for wrong in ("", "yesterday", "7", "7y", "2026-13-01", "-1h", "999999d"):
        with pytest.raises(UserError, match="is no time"):
            moment(wrong)


def test_a_span_is_of_whole_hours() -> None:
    choice = chosen("2026-11-22T03:20", "2026-11-22T05:01", ["gw-*"], [])
    assert (choice.since_ms, choice.until_ms) == (DAY + 3 * HOUR_MS, DAY + 6 * HOUR_MS)
    assert choice.nodes == ("gw-*",)
    with pytest.raises(UserError, match="is not after"):
        chosen("2026-11-22T05:00", "2026-11-22T05:00", [], [])


def test_days_that_something_stays() -> None:
    assert (days_of("30d"), days_of("8w")) == (30, 56)
    for wrong in ("0d", "12h", "30", "d"):
        with pytest.raises(UserError, match="no number of days"):
            days_of(wrong)
