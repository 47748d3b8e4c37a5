"""What counts as a value that an engine may report: the quick look finds what the slow one does."""

import numpy as np
import pytest

from sched_ctl.metrics.window import LARGEST, clean

LEAST = np.nextafter(0.0, 1.0)
MOST = LARGEST
MORE = np.nextafter(LARGEST, np.inf)


@pytest.mark.parametrize("good", [[], [0.0], [LEAST, 1.0, MOST], [[1.0, 2.0]]])
def test_what_is_well_stays(good: list[float]) -> None:
    assert np.array_equal(clean(good), np.array(good))


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, MORE, 1e304, -LEAST, -MOST, -1])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_cannot_be_is_unknown(bad: float, at: int) -> None:
    column = np.array([1.0, MOST, 0.0])
    column[at] = bad
    cleaned = clean(column)
    assert np.isnan(cleaned[at])
    assert np.array_equal(np.delete(cleaned, at), np.delete(column, at))
    assert column[at] == bad or np.isnan(bad)  # what came in is as it was


def test_minus_zero_and_whole_numbers_and_views_count() -> None:
    assert np.array_equal(clean([-0.0, 2.0]), [0.0, 2.0])
    assert np.array_equal(clean(np.arange(6)[::2]), [0.0, 2.0, 4.0])
    assert np.array_equal(clean(np.arange(6.0)[::-2]), [5.0, 3.0, 1.0])
