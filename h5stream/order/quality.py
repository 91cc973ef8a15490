"""How well an order mixes: what a batch and a window hold, against a full shuffle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h5stream.order.blocks import Blocks
from h5stream.order.epoch import EpochOrder

FEW_BLOCKS = 100
"""Distinct blocks in a window, below which batches of a sorted file see few kinds of rows: with 64 the worst mean loss
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WeakMixing:
    """A window that mixes too few blocks."""

    window_blocks: int  # window_blocks, blocks: blocks in a window, and of the data
    blocks: int
    block_rows: int  # rows of a block, the mean
    batch_blocks: float  # batch_blocks, batch_blocks_full: distinct blocks in a batch, and in a batch of a full shuffle
    batch_blocks_full: float


def is_weak(window_blocks: int, blocks: int) -> bool:
    """Tell whether windows of so many blocks mix too little of data that has so many."""
    return window_blocks < min(FEW_BLOCKS, _NEARLY_ALL * blocks)


def weak_mixing(blocks: Blocks, *, window_rows: int, batch_rows: int, ranks: int = 1) -> WeakMixing | None:
    """Say what windows of so many rows mix, where that is too little; else None."""
    block_rows = blocks.total_rows / blocks.count
    held = min(blocks.count, max(1, round(ranks * window_rows / block_rows)))
    if ranks * window_rows >= blocks.total_rows or not is_weak(held, blocks.count):
        return None
    drawn = ranks * batch_rows
    return WeakMixing(
        window_blocks=held,
        blocks=blocks.count,
        block_rows=round(block_rows),
        batch_blocks=_distinct(held, drawn),
        batch_blocks_full=_distinct(blocks.count, drawn),
    )


def _distinct(blocks: int, drawn: int) -> float:
    """Return the expected number of distinct blocks among so many rows, as if drawn independently."""
    return blocks * (1 - (1 - 1 / blocks) ** drawn)


def measure(order: EpochOrder) -> Quality:
    """Measure the order of an epoch."""
    batches = [order.batch_rows(k) for k in range(order.batches)]
    windows = [order.outputs(k)[0] for k in range(len(order.window_edges) - 1)]
    return Quality(
        blocks_per_batch=float(np.mean([_blocks_in(order, rows) for rows in batches])),
        blocks_per_batch_full=_expected_blocks(order),
        blocks_per_window=float(np.mean([_blocks_in(order, rows) for rows in windows])),
        score=_score(batches),
    )


def forecast(order: EpochOrder) -> Quality:
    """Return what `measure` finds on average, from the blocks alone: no row is permuted.

    The blocks of each window are known; within a window rows are drawn without replacement. So the variance of
    batch means is that of the windows' means plus that of a sample of the window. The blocks must hold no
    selection of rows.
    """
    windows = [_WindowMoments.of(*order.window_ranges(k)) for k in range(len(order.window_edges) - 1)]
    weights = np.array([w.rows for w in windows], dtype=np.float64)
    batch, total = order.settings.batch_size, int(weights.sum())
    centre = np.average([w.mean for w in windows], weights=weights)
    apart = np.array([(w.mean - centre) ** 2 for w in windows])
    sampled = np.array([w.variance * _without_replacement(min(batch, w.rows), w.rows) for w in windows])
    everything = float(np.average(apart + [w.variance for w in windows], weights=weights))
    expected = everything * _without_replacement(min(batch, total), total)
    scattered = float(np.average(apart + sampled, weights=weights))
    return Quality(
        blocks_per_batch=float(np.average([w.blocks_in(batch) for w in windows], weights=weights)),
        blocks_per_batch_full=_expected_blocks(order),
        blocks_per_window=float(np.mean([len(w.sizes) for w in windows])),
        score=1.0 if scattered <= expected else expected / scattered,
    )


def _without_replacement(drawn: int, rows: int) -> float:
    """Return the variance of the mean of a sample, as a part of the variance of what it is drawn from."""
    return (rows - drawn) / max(1, rows - 1) / drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class _WindowMoments:
    rows: int
    mean: float
    variance: float
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> _WindowMoments:
        sizes = ends - begins
        middles = (begins + ends - 1) / 2
        mean = float(np.average(middles, weights=sizes))
        # Of a run of n rows around its middle: (n^2 - 1) / 12.
        inner = (sizes.astype(np.float64) ** 2 - 1) / 12
        variance = float(np.average((middles - mean) ** 2 + inner, weights=sizes))
        return cls(rows=int(sizes.sum()), mean=mean, variance=variance, sizes=sizes)

    def blocks_in(self, batch: int) -> float:
        """Return the expected number of distinct blocks among `batch` rows of the window."""
        return float((1 - (1 - self.sizes / self.rows) ** min(batch, self.rows)).sum())


def _blocks_in(order: EpochOrder, rows: np.ndarray) -> int:
    places = rows if order.blocks.rows is None else np.searchsorted(order.blocks.rows, rows)
    return len(np.unique(np.searchsorted(order.blocks.edges, places, side="right")))


def _expected_blocks(order: EpochOrder) -> float:
    """Return the expected number of distinct blocks among `batch_size` rows, as if drawn independently."""
    share = np.diff(order.blocks.edges) / order.blocks.total_rows
    return float((1 - (1 - share) ** order.settings.batch_size).sum())


def _score(batches: list[np.ndarray]) -> float:
    """Compare the variance of batch means with that of a full shuffle (sampling without replacement)."""
    full = [rows for rows in batches if len(rows) == len(batches[0])]
    if len(full) < 2:
        return 1.0
    everything = np.concatenate(full).astype(np.float64)
    size, total = len(full[0]), len(everything)
    expected = everything.var() / size * (total - size) / max(1, total - 1)
    found = float(np.var([rows.mean() for rows in full]))
    return 1.0 if found <= expected else float(expected / found)
