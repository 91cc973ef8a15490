"""One number of bytes bounds slots, windows, scratch and what is kept: arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from h5stream.engine.carry import Carrier
from h5stream.engine.kept import KeptDatasets, datasets_to_keep
from h5stream.engine.plan import TASK_NBYTES
from h5stream.engine.slots import SlotFormat
from h5stream.errors import BudgetError, OptionError
from h5stream.order.windows import AUTO_BATCHES, first_rows, wished_rows
from h5stream.storage.layout import DIRECT, SampleLayout

DEFAULT_BUDGET = 2 * 1024**3
"""Bytes, or a quarter of the machine's memory if that is less: two windows of 1,024 blocks of 1 MiB. What is free
at the moment must not matter: it would choose the window, and with it the order of the rows."""

SCRATCH_SHARE = 4
"""An automatic window leaves scratch one part in so many of the budget (and one thread's scratch at least), however
many threads there are: their number must not choose the window either."""

TOGETHER_NBYTES = 8 * 1024 * 1024
"""Bytes of batches that are read together where rows cost the same wherever they lie, if that is more."""

LEAST_READ_NBYTES = 256
"""Bytes of a row for each read that it takes, at least, for rows to be read one by one: shorter reads cost their
system call, half a microsecond, and little else."""

PERMUTATION_NBYTES = 8
"""Bytes a row that the order of an epoch takes where it is held in whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSize:
    """How much is read together.

    Attributes
    ----------
    window_rows, first_window_rows : int
        Rows of a window, and of an epoch's first.
    max_open_batches : int
        Batches that the engine may fill or hold ready at a time.
    needed_nbytes : int
        Bytes that this takes at most: slots, scratch and kept datasets.
    together : int
        Batches of a window where rows cost the same wherever they lie; 0 where windows are read whole.
    slot_rows : int
        Rows of a slot where it does not hold a batch, but crosses to a device window; else 0.
    notice : str
        Says so if the budget made the window smaller than wished; else empty.
    """

    window_rows: int
    first_window_rows: int
    max_open_batches: int
    needed_nbytes: int
    together: int = 0
    slot_rows: int = 0
    notice: str = ""


def scratch_nbytes(layout: SampleLayout) -> int:
    """Give the bytes of scratch that one reader thread may need.

    A read of one task, the last chunk of which may be large, two decode buffers, one unshuffled copy, one of a member.
    What need not be decoded is read by pieces of a task's size.
    """
    largest_stored = largest_chunk = 0
    for parts in layout.datasets:
        for part in parts:
            if part.access == DIRECT:
                largest_stored = max(largest_stored, part.stored_element_nbytes)
                continue
            largest_chunk = max(largest_chunk, part.chunk_nbytes if part.index is None or part.pipeline.filters else 0)
            if part.index is not None and len(part.index.nbytes):
                largest_stored = max(largest_stored, int(part.index.nbytes.max()))
    return TASK_NBYTES + largest_stored + 3 * largest_chunk


def size_window(
    layout: SampleLayout,
    *,
    rows: int,
    batch_size: int,
    window: int | str,
    memory_budget: int,
    threads: int,
    kept_nbytes: int,
    rows_anywhere: bool = False,
) -> WindowSize:
    """Size the windows so that everything fits the budget.

    Parameters
    ----------
    layout : SampleLayout
        The fields.
    rows, batch_size : int
        Rows of the epoch; rows of a batch.
    window : int, "auto" or "all"
        Rows of a window as asked for.
    memory_budget, kept_nbytes : int
        Bytes allowed, and bytes of the kept datasets.
    threads : int
        Reader threads, at least 1.
    rows_anywhere : bool
        Whether rows can be read one by one at about the same cost, so that ``"all"`` need not fit into memory.

    Raises
    ------
    BudgetError
        If it does not fit; names the number that would do.
    OptionError
        If `window` is none of the three.
    """
    block_rows = block_rows_of(layout)
    slot = -(-SlotFormat.for_rows(layout.fields, batch_size).nbytes // 4096) * 4096
    fixed = threads * scratch_nbytes(layout) + kept_nbytes
    affordable = (memory_budget - fixed) // slot
    wished = wished_rows(window, rows=rows, batch_size=batch_size, block_rows=block_rows, row_nbytes=layout.row_nbytes)
    notice = ""
    share = (memory_budget - _scratch_share(layout, memory_budget) - kept_nbytes) // slot
    if window == "auto" and wished > (fits := _rows_in(share, batch_size, block_rows, rows)):
        notice = (
            f"window: {fits:,} rows instead of {wished:,}, so that two windows fit "
            f"memory_budget={memory_budget:,} bytes"
        )
        wished = fits
    # A window ends at a block's edge, and its last batch may go on in the next.
    must_hold = wished if window == "auto" else wished + block_rows
    least = math.ceil(min(must_hold, rows) / batch_size) + 1
    if affordable < least and rows_anywhere and window == "all":
        # What fits is read in file order, which is faster by half; what does not, row by row.
        fixed += PERMUTATION_NBYTES * rows
        affordable, least = (memory_budget - fixed) // slot, 2
        if affordable >= least:
            return _piecewise(rows, slot, fixed, affordable)
    needed = fixed + least * slot
    if window == "auto":
        block_slots = math.ceil(min(block_rows, rows) / batch_size) + 1
        needed = _least_for_auto(layout, threads, kept_nbytes + block_slots * slot)
    if needed > memory_budget:
        raise BudgetError(
            f"memory_budget={memory_budget:,} bytes is too small for window={window!r}: batches of {slot:,} bytes, the "
            f"scratch of {threads} reader thread(s) and what is kept need {needed:,}. Pass memory_budget={needed} or "
            "more, fewer num_workers, a smaller window or a smaller batch_size",
            needed=needed,
            budget=memory_budget,
        )
    window_batches = math.ceil(wished / batch_size) + 2
    open_batches = int(min(affordable, 2 * window_batches))
    return WindowSize(
        window_rows=wished,
        first_window_rows=wished if window == "all" else min(wished, first_rows_of(layout, batch_size)),
        max_open_batches=open_batches,
        needed_nbytes=fixed + open_batches * slot,
        notice=notice,
    )


def _rows_in(slots: int, batch_size: int, block_rows: int, rows: int) -> int:
    """Give the rows of a window of which two fit so many slots; at least a block."""
    fits_twice = max(slots // 2 - 1, slots - 1 if slots < 4 else 1, 0) * batch_size
    # Whole blocks, because a window goes on to the next block's edge.
    return max(min(block_rows, rows), fits_twice // block_rows * block_rows)


def block_rows_of(layout: SampleLayout) -> int:
    """Give the rows of a block; of the longest, where files differ."""
    return max(layout.block_rows)


def first_rows_of(layout: SampleLayout, batch_size: int) -> int:
    """Give the rows of an epoch's first window, where windows are not smaller anyway."""
    return first_rows(batch_size=batch_size, block_rows=block_rows_of(layout), row_nbytes=layout.row_nbytes)


def threads_within(layout: SampleLayout, threads: int, memory_budget: int) -> int:
    """Give as many of these threads as share the part of a budget that is for scratch; at least one.

    For the number that nobody chose: a machine of 200 processors must not need 200 threads' scratch.
    """
    return max(1, min(threads, _scratch_share(layout, memory_budget) // scratch_nbytes(layout)))


def _scratch_share(layout: SampleLayout, memory_budget: int) -> int:
    return max(memory_budget // SCRATCH_SHARE, scratch_nbytes(layout))


def _least_for_auto(layout: SampleLayout, threads: int, window_nbytes: int) -> int:
    """Give the least budget of which scratch and a window that takes so many bytes get their shares."""
    scratch = scratch_nbytes(layout)
    return max(
        SCRATCH_SHARE * threads * scratch if threads > 1 else 0,
        window_nbytes + scratch,
        -(-window_nbytes * SCRATCH_SHARE // (SCRATCH_SHARE - 1)),
    )


def _piecewise(rows: int, slot_nbytes: int, fixed_nbytes: int, affordable: int) -> WindowSize:
    """Size an exact global shuffle that reads a few batches at a time."""
    together = min(affordable // 2, max(AUTO_BATCHES, TOGETHER_NBYTES // slot_nbytes))
    return WindowSize(
        window_rows=rows,
        first_window_rows=rows,
        max_open_batches=2 * together,
        needed_nbytes=fixed_nbytes + 2 * together * slot_nbytes,
        together=together,
    )


def keep_and_size(carrier: Carrier, *, memory_budget: int, **sizes: Any) -> tuple[KeptDatasets, WindowSize]:
    """Choose what is kept and size the windows with what is left; takes the arguments of `size_window`."""
    layout = carrier.layout
    for numbers in (datasets_to_keep(layout, memory_budget), ()):
        kept = KeptDatasets(carrier, numbers)
        try:
            streamed = set(range(len(layout.datasets))) - set(numbers)
            return kept, size_window(
                layout,
                memory_budget=memory_budget,
                kept_nbytes=kept.nbytes,
                rows_anywhere=_rows_anywhere(carrier, streamed),
                **sizes,
            )
        except BudgetError:  # keeping is only worth memory that nothing else needs
            if not numbers:
                raise
    raise AssertionError("the loop ends with nothing kept")


def _rows_anywhere(carrier: Carrier, streamed: set[int]) -> bool:
    """Tell whether the rows of datasets can be read one by one: none is decoded, and reads are not for a few bytes."""
    reads = nbytes = 0
    for number in streamed - set(carrier.mapped.numbers):
        parts = [part for part in carrier.layout.datasets[number] if part.pieces]
        if any(part.access != DIRECT for part in parts):
            return False
        reads += max((len(carrier.unfiltered.reach(part).extents) for part in parts), default=0)
        nbytes += carrier.layout.datasets[number][0].stored_row_nbytes
    return nbytes >= reads * LEAST_READ_NBYTES


def default_budget(total_nbytes: int) -> int:
    """Give the budget of a loader that was given none, on a machine with so much memory.

    Examples
    --------
    >>> default_budget(4 << 30) >> 20
    1024
    """
    return min(DEFAULT_BUDGET, total_nbytes // 4)


def check_budget(memory_budget: int) -> int:
    """Check that a budget is a positive number of bytes."""
    if isinstance(memory_budget, bool) or not isinstance(memory_budget, int) or memory_budget < 1:
        raise OptionError(f"memory_budget= takes a positive number of bytes, not {memory_budget!r}")
    return memory_budget
