"""The median, as numpy has it, without what numpy loads for it."""

import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest

from sched_ctl.model.median import median

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    "values",
    [[3.0], [2.0, 1.0], [5, 1, 4], [1.0, INF], [1.0, INF, 2.0], [1.0, NAN, 2.0], [[4, 3], [2, 1]]],
)
def test_it_is_that_of_numpy(values: npt.ArrayLike) -> None:
    np.testing.assert_array_equal(median(values), np.median(np.asarray(values)))


def test_of_random_numbers_it_is_that_of_numpy() -> None:
    random = np.random.default_rng(1)
    for n in range(1, 40):
        values = random.lognormal(size=n)
        assert median(values) == np.median(values)


def test_nothing_has_none() -> None:
    with pytest.raises(ValueError, match="of nothing"):
        median([])


def test_to_decide_loads_no_masked_arrays() -> None:
    """They take a tenth of a second of a slow CPU while threads wait for their order."""
    source = """
import sys
import numpy as np
from sched_ctl.decide.held import steadily
from sched_ctl.model.policy import form
lengths = np.array([1.0, 2.0])
assert steadily(form(2, per_tuple=1.0), lengths, lengths, lengths, False)[1] == 1.0
assert "numpy.ma" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
