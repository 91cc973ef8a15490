"""Whether runs of one setting are faster than runs of another, or only differ as runs of one setting do: pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_GAIN = 0.03
"""Share by which a setting must be faster, however little its runs differ: less is not worth another setting."""

CHANCE = 0.01
"""How likely an order of runs as clear as the one found may be where both settings are equally fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs of two settings that took turns."""

    gain: float
    """How many times faster the one is than the other: their median runs."""
    spread: float
    """Share by which two runs of one setting typically differ: high where something else uses the machine."""
    chance: float
    """How likely runs of equally fast settings come out in so clear an order."""

    @property
    def is_faster(self) -> bool:
        """Whether it is faster beyond the noise: by more than runs of one setting differ, and not by chance."""
        return self.gain > 1.0 + max(LEAST_GAIN, self.spread) and self.chance <= CHANCE


def compare(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """Compare the rates of two settings, run in turns; five runs of each can decide, fewer cannot.

    Examples
    --------
    >>> compare([120, 125, 118, 122, 121], [100, 103, 99, 104, 101]).is_faster
    True
    >>> noisy = compare([109, 60, 115, 105, 118], [100, 110, 55, 108, 98])
    >>> round(noisy.gain, 2), noisy.is_faster
    (1.09, False)
    """
    return Comparison(
        gain=statistics.median(ours) / max(1e-9, statistics.median(theirs)),
        spread=max(spread_of(ours), spread_of(theirs)),
        chance=_chance(ours, theirs),
    )


def spread_of(runs: Sequence[float]) -> float:
    """Return the share by which two runs of one setting typically differ: the median of all pairs of them.

    One run that was disturbed does not make it large; half of them do.

    Examples
    --------
    >>> spread_of([100, 75, 100, 75, 100]), spread_of([100, 100, 100, 100, 75]), spread_of([100])
    (0.25, 0.0, 0.0)
    """
    pairs = [1 - min(a, b) / max(a, b) for a, b in itertools.combinations(runs, 2) if max(a, b) > 0]
    return statistics.median(pairs) if pairs else 0.0


def _chance(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return how likely equally fast settings have so few upsets: pairs of runs in which theirs is not slower.

    All orders of the runs are then equally likely (the rank-sum test of Mann and Whitney, exact).
    """
    upsets = sum(theirs_run >= our_run for our_run in ours for theirs_run in theirs)
    orders = orders_by_upsets(len(ours), len(theirs))
    return sum(orders[: upsets + 1]) / math.comb(len(ours) + len(theirs), len(ours))


def orders_by_upsets(ours: int, theirs: int) -> list[int]:
    """Count the orders of so many runs of each by their upsets: the coefficients of the Gaussian binomial."""
    counts = [1] + [0] * (ours * theirs)
    for k in range(1, ours + 1):
        for place in range(len(counts) - 1, theirs + k - 1, -1):  # times 1 - q^(theirs + k)
            counts[place] -= counts[place - theirs - k]
        for place in range(k, len(counts)):  # divided by 1 - q^k
            counts[place] += counts[place - k]
    return counts
