"""How well an order mixes: what a batch and a window hold, against a full shuffle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from h5stream.order.epoch import EpochOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How well an order mixes.

    Attributes
    ----------
    blocks_per_batch : float
        Distinct blocks in a batch, the mean over batches. High is good; it cannot exceed the rows of a batch.
    blocks_per_batch_full : float
        What a full shuffle would give on average.
    blocks_per_window : float
        Distinct blocks in a window, the mean over windows: the number that matters for learning.
    score : float
        1 if batch means of the row number scatter no more than under a full shuffle, towards 0 if each batch
        sees one stretch of the file only. A low score harms where neighbouring rows resemble each other.
    """

    blocks_per_batch: float
    blocks_per_batch_full: float
    blocks_per_window: float
    score: float


def measure(order: EpochOrder) -> Quality:
    """Measure the order of an epoch.

    Examples
    --------
    >>> from h5stream.order.blocks import make_blocks
    >>> from h5stream.order.epoch import OrderSettings
    >>> settings = OrderSettings(batch_size=100, window_rows=1000, first_window_rows=1000)
    >>> measure(EpochOrder(make_blocks((0, 1000), (10,)), settings)).score > 0.5
    True
    """
    batches = [order.batch_rows(k) for k in range(order.batches)]
    windows = [order.outputs(k)[0] for k in range(len(order.window_edges) - 1)]
    return Quality(
        blocks_per_batch=float(np.mean([_blocks_in(order, rows) for rows in batches])),
        blocks_per_batch_full=_expected_blocks(order),
        blocks_per_window=float(np.mean([_blocks_in(order, rows) for rows in windows])),
        score=_score(batches),
    )


def _blocks_in(order: EpochOrder, rows: np.ndarray) -> int:
    places = rows if order.blocks.rows is None else np.searchsorted(order.blocks.rows, rows)
    return len(np.unique(np.searchsorted(order.blocks.edges, places, side="right")))


def _expected_blocks(order: EpochOrder) -> float:
    """Give the expected number of distinct blocks among `batch_size` rows, drawn independently."""
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
