"""Logarithmic clusters: operators whose priorities lie within a factor of each other.

Sharaf et al. 2006, section 6.2.1: a wait-dependent policy compares one operator of each cluster
instead of all, and is as good as exact with a dozen clusters.
"""

import numpy as np

from sched_ctl.model.graph import Array, Index

__all__ = ["logarithmic_clusters"]


def logarithmic_clusters(values: Array, clusters: int) -> tuple[Index, Array]:
    """(n,) cluster of each value, and (clusters + 1,) edges at equal ratios.

    Cluster i covers edges[i] up to edges[i + 1], the last one its upper end as well. The edges go
    from the smallest positive value to the largest; values of 0 and below are with the smallest.
    If all positive values are the same, there is one cluster of no width; if there are none, its
    edges are 0.
    """
    positive = values[values > 0]
    if not len(positive):
        return np.zeros(len(values), dtype=np.intp), np.zeros(2)
    low, high = float(positive.min()), float(positive.max())
    if low == high:
        return np.zeros(len(values), dtype=np.intp), np.array([low, high])
    width = np.log(high / low) / clusters
    raw = np.log(np.maximum(values, low) / low) / width
    edges = low * np.exp(width * np.arange(clusters + 1))
    return np.minimum(raw.astype(np.intp), clusters - 1), edges
