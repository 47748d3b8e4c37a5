"""The median of a few numbers, as `numpy.median` has it, at a small part of its price.

That one takes 50 us or more, several times a pass, and its first call loads all of numpy.ma, for
which a slow CPU takes a tenth of a second.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["median"]


def median(values: npt.ArrayLike) -> float:
    """NaN if one of them is. Raises ValueError if there are none."""
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=None)
    if not len(ordered):
        raise ValueError("the median of nothing")
    half = len(ordered) // 2
    if np.isnan(ordered[-1]):  # sorted last
        return float("nan")
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)
