"""How well an order mixes: what a batch and a window hold, against a full shuffle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from h5stream.order.epoch import EpochOrder

FEW_BLOCKS = 100
"""With fewer distinct blocks per window, batches of a sorted file see few kinds of rows: with 64 the worst mean loss
was 1.05 of a full shuffle's, with 16 1.08, with 4 1.84 (docs/shuffling-results.md)."""

_NEARLY_ALL = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How well an order mixes."""

    # distinct blocks in a batch, the mean over batches. High is good; it cannot exceed the rows of a batch
    blocks_per_batch: float
    blocks_per_batch_full: float  # what a full shuffle would give on average
    blocks_per_window: float  # distinct blocks in a window, the mean over windows: the number that matters for learning
    # 1 if batch means of the row number scatter no more than under a full shuffle, towards 0 if each batch sees one
    # stretch of the file only. A low score harms where neighbouring rows resemble each other
    score: float


def is_weak(window_blocks: int, blocks: int) -> bool:
    """Return whether windows of so many blocks mix too little of data with so many blocks."""
    return window_blocks < min(FEW_BLOCKS, _NEARLY_ALL * blocks)


def distinct(blocks: int, drawn: int) -> float:
    """Return the expected number of distinct blocks among `drawn` independently drawn rows."""
    return blocks * (1 - (1 - 1 / blocks) ** drawn)


def forecast(order: EpochOrder) -> Quality:
    """Return the expected quality of an order from its blocks alone, which must not select rows.

    The variance of batch means is that of the windows' means plus that of a sample of a window without replacement.
    """
    batch, windows = order.settings.batch_size, []
    for number in range(len(order.window_edges) - 1):
        begins, ends = order.window_ranges(number)
        sizes, middles = ends - begins, (begins + ends - 1) / 2
        rows, mean = int(sizes.sum()), float(np.average(middles, weights=sizes))
        # A run of n rows has the variance (n^2 - 1) / 12 around its middle.
        variance = np.average((middles - mean) ** 2 + (sizes.astype(np.float64) ** 2 - 1) / 12, weights=sizes)
        distinct_blocks = (1 - (1 - sizes / rows) ** min(batch, rows)).sum()  # distinct blocks among a batch's rows
        sampled = variance * _without_replacement(min(batch, rows), rows)
        windows.append((rows, mean, variance, distinct_blocks, len(sizes), sampled))
    weights, means, variances, distincts, counts, samples = np.array(windows, dtype=np.float64).T
    apart, total = (means - np.average(means, weights=weights)) ** 2, int(weights.sum())
    everything = float(np.average(apart + variances, weights=weights))
    expected = everything * _without_replacement(min(batch, total), total)
    scattered = float(np.average(apart + samples, weights=weights))
    share = np.diff(order.blocks.edges) / order.blocks.total_rows
    return Quality(
        blocks_per_batch=float(np.average(distincts, weights=weights)),
        blocks_per_batch_full=float((1 - (1 - share) ** batch).sum()),
        blocks_per_window=float(np.mean(counts)),
        score=1.0 if scattered <= expected else expected / scattered,
    )


def _without_replacement(drawn: int, rows: int) -> float:
    """Return the variance of a sample mean as a fraction of the population variance, drawing without replacement."""
    return (rows - drawn) / max(1, rows - 1) / drawn
