"""What is expected of an order, against what it does."""

import numpy as np
import pytest
from listing import batches_of

from h5stream.order.blocks import make_blocks
from h5stream.order.epoch import EpochOrder
from h5stream.order.line import OrderSettings
from h5stream.order.quality import forecast


def measured(order):
    """Return distinct blocks of a batch and of a window, and by how much batch means scatter less than they do."""
    batches = [np.array(rows) for rows in batches_of(order)]
    windows = [order.outputs(k)[0] for k in range(len(order.window_edges) - 1)]
    held = [
        [len(np.unique(np.searchsorted(order.blocks.edges, r, side="right"))) for r in s] for s in (batches, windows)
    ]
    size, total = len(batches[0]), order.rows
    full = [rows.mean() for rows in batches if len(rows) == size]
    expected = np.arange(total).var() / size * (total - size) / (total - 1)
    return {
        "blocks_per_batch": np.mean(held[0]),
        "blocks_per_window": np.mean(held[1]),
        "score": min(1.0, expected / np.var(full)),
    }


@pytest.mark.parametrize(
    ("rows", "block", "batch", "window", "first"),
    [(50_000, 100, 500, 10_000, 5_000), (20_000, 10, 100, 1_000, 1_000), (30_000, 10, 256, 30_000, 640)],
)
def test_the_forecast_is_what_measuring_gives_on_average(rows, block, batch, window, first):
    orders = [
        EpochOrder(
            make_blocks((0, rows), (block,)),
            OrderSettings(batch_size=batch, window_rows=window, first_window_rows=first, seed=seed),
        )
        for seed in range(5)
    ]
    done, expected = [measured(o) for o in orders], [forecast(o) for o in orders]
    for name, tolerance in (("blocks_per_batch", 0.06), ("blocks_per_window", 1e-9), ("score", 0.2)):
        a = np.mean([q[name] for q in done])
        b = np.mean([getattr(q, name) for q in expected])
        assert a == pytest.approx(b, rel=tolerance), name
