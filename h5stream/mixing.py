"""Says so where a loader's windows mix too little of the data; what is too little, `order.quality` knows."""

from __future__ import annotations

import warnings

from h5stream.engine.footprint import DEFAULT_BUDGET
from h5stream.errors import WeakShuffleWarning
from h5stream.order.blocks import Blocks
from h5stream.order.quality import FEW_BLOCKS, WeakMixing, weak_mixing
from h5stream.storage.layout import SampleLayout

_LARGE_CHUNK_NBYTES = 4 * 1024 * 1024
"""From here on smaller chunks give blocks enough; repack writes them of 1 MiB."""


def warn_of_weak_shuffle(
    layout: SampleLayout,
    blocks: Blocks,
    *,
    window: int | str,
    window_rows: int,
    batch_rows: int,
    memory_budget: int | None,
    ranks: int = 1,
    stacklevel: int = 3,
) -> None:
    """Warn where a window holds too few blocks, with the figures and the ways out."""
    weak = weak_mixing(blocks, window_rows=window_rows, batch_rows=batch_rows, ranks=ranks)
    if weak is None:
        return
    ways = [_larger_window(weak, window, window_rows, memory_budget)]
    if layout.leading[0].pipeline.filters and layout.leading[0].chunk_nbytes >= _LARGE_CHUNK_NBYTES:
        ways.append("a copy with smaller chunks (h5stream repack FILE NEW --chunk-bytes 1MiB)")
    said = "Ways out" if len(ways) > 1 else "The way out"
    warnings.warn(
        f"{_figures(weak, layout, batch_rows * ranks)} {said}: {', or '.join(ways)}. {_HARMLESS}",
        WeakShuffleWarning,
        stacklevel=stacklevel,
    )


_HARMLESS = (
    "If the file's rows are in random order already, nothing is wrong: "
    'warnings.simplefilter("ignore", h5stream.errors.WeakShuffleWarning)'
)


def _figures(weak: WeakMixing, layout: SampleLayout, rows: int) -> str:
    batch = (
        f", so the {rows:,} rows of a batch come from about {weak.batch_blocks:,.0f} of them, where a full shuffle has "
        f"{weak.batch_blocks_full:,.0f}"
        if rows > 1
        else ""
    )
    return (
        f"the shuffle is weak: a window holds {weak.window_blocks:,} of the {weak.blocks:,} blocks of this data (a "
        f"block is {weak.block_rows:,} rows that lie together, by the chunks of {layout.leading[0].path!r}){batch}. In "
        "a file that is sorted, by class or by recording, a batch then sees few kinds of rows, and training suffers."
    )


def _larger_window(weak: WeakMixing, window: int | str, window_rows: int, memory_budget: int | None) -> str:
    wanted, with_budget = min(FEW_BLOCKS, weak.blocks), ""
    if window == "auto" and memory_budget is not None:
        # What a budget leaves a window grows with it, a little more than in proportion.
        needed = -(-min(memory_budget, DEFAULT_BUDGET) * wanted // weak.window_blocks)
        with_budget = f" with memory_budget={needed}" if needed > memory_budget else ""
    return f"window={wanted * weak.block_rows} or more{with_budget} (it is {window_rows:,} rows)"
