"""The few statistics that the learning page needs: means with intervals, and a correlation of ranks."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np


@functools.cache
def t_quantile(probability: float, freedom: int) -> float:
    """Give the quantile of Student's t above a half, by adding up its density.

    Examples
    --------
    >>> round(t_quantile(0.975, 9), 3)
    2.262
    """
    grid = np.linspace(0.0, 60.0, 600_001)
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    density = np.exp(log_scale - (freedom + 1) / 2 * np.log1p(grid**2 / freedom))
    mass = 0.5 + np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(grid))])
    return float(np.interp(probability, mass, grid))


def mean_and_margin(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Give the mean and half the width of its interval."""
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), t_quantile((1 + level) / 2, len(values) - 1) * spread


def differs(one: Sequence[float], other: Sequence[float], level: float) -> bool:
    """Say whether pairs differ: the interval of the mean difference does not hold 0."""
    mean, margin = mean_and_margin([a - b for a, b in zip(one, other, strict=True)], level)
    return abs(mean) > margin


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Give Spearman's correlation: 1 where both put everything in the same order.

    Examples
    --------
    >>> rank_correlation([1, 2, 3], [10, 20, 15])
    0.5
    """
    return round(float(np.corrcoef(_ranks(one), _ranks(other))[0, 1]), 10)


def _ranks(values: Sequence[float]) -> Any:
    found = np.asarray(values, dtype=np.float64)
    # Equal values share the mean of their ranks.
    return np.array([(np.sum(found < v) + np.sum(found <= v) - 1) / 2 for v in found])
