"""How long an epoch's first batch takes: arithmetic over what must be there before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from h5stream.advice.batch_cost import DatasetCost
from h5stream.order.epoch import EpochOrder

ASSUMED_BYTES_PER_S = 1e9
"""Bytes a second that one thread reads, or decodes where no rate was measured: a fast disk, and gzip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBatch:
    """What comes before an epoch's first batch."""

    window_rows: int
    """Rows of the first window: its batches come when all of it is read."""
    read_nbytes: float
    decoded_nbytes: float
    """Bytes to read, and bytes that filters give of them, in the first epoch."""
    seconds: float
    """About how long that takes in the first epoch of a process; where epochs follow one another, the later ones' first
    window is read during the epoch before."""


def predict_first_batch(
    costs: Sequence[DatasetCost], rates: Sequence[float | None], order: EpochOrder, threads: int
) -> FirstBatch:
    """Predict the time to the first batch, from an epoch's costs and each dataset's decoded bytes a second and thread.

    What is kept is read in whole first, by one thread; where no rate was measured, one is assumed.

    Examples
    --------
    >>> from h5stream.order.blocks import make_blocks
    >>> from h5stream.order.epoch import OrderSettings
    >>> settings = OrderSettings(batch_size=4, window_rows=500, first_window_rows=100)
    >>> order = EpochOrder(make_blocks((0, 1000), (10,)), settings)
    >>> gzip = DatasetCost(path="x", chunks=1000, times_read=1.0, read_nbytes=5e8, decoded_nbytes=1e9)
    >>> found = predict_first_batch([gzip], [2e9], order, threads=2)
    >>> found.window_rows, found.decoded_nbytes, round(found.seconds, 3)
    (100, 100000000.0, 0.05)
    """
    window_rows = int(order.window_edges[1] - order.window_edges[0])
    read = decoded = seconds = 0.0
    for cost, rate in zip(costs, rates, strict=True):
        share, hands = (1.0, 1) if cost.kept else (window_rows / max(1, order.rows), max(1, threads))
        read, decoded = read + share * cost.read_nbytes, decoded + share * cost.decoded_nbytes
        work_s = cost.read_nbytes / ASSUMED_BYTES_PER_S + cost.decoded_nbytes / (rate or ASSUMED_BYTES_PER_S)
        seconds += share * work_s / hands
    return FirstBatch(window_rows=window_rows, read_nbytes=read, decoded_nbytes=decoded, seconds=seconds)
