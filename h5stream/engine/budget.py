"""What a layout needs of memory, and what of it is kept: the numbers that `h5stream.engine.footprint` reckons with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from h5stream.engine.footprint import (
    BLOCK_NBYTES,
    DEFAULT_BUDGET,
    SCRATCH_SHARE,
    TASK_NBYTES,
    Shape,
    WindowSize,
    size_window,
)
from h5stream.engine.landing.mapped import can_be_mapped
from h5stream.engine.landing.resident import GATHERED_NBYTES, datasets_to_keep, resident_format
from h5stream.engine.landing.unfiltered import reach_of
from h5stream.errors import BudgetError, OptionError
from h5stream.order.windows import first_rows
from h5stream.storage.layout import DECODED, DIRECT, DatasetPart, SampleLayout
from h5stream.units import as_bytes

LEAST_READ_NBYTES = 256
"""Bytes of a row for each read that it takes, at least, for rows to be read one by one: shorter reads cost their
system call, half a microsecond, and little else."""


def scratch_nbytes(layout: SampleLayout) -> int:
    """Give the bytes of scratch that one reader thread may need.

    A read of one task, the last chunk of which may be large, two decode buffers, one unshuffled copy, one of a member.
    What need not be decoded is read by pieces of a task's size.
    """
    largest_stored = largest_chunk = largest_dataset = 0
    for parts in layout.datasets:
        for part in parts:
            largest_dataset = max(largest_dataset, part.rows * part.stored_row_nbytes)
            if part.access == DIRECT:
                largest_stored = max(largest_stored, part.stored_element_nbytes)
                continue
            largest_chunk = max(largest_chunk, part.chunk_nbytes if part.index is None or part.pipeline.filters else 0)
            if part.index is not None and len(part.index.nbytes):
                largest_stored = max(largest_stored, int(part.index.nbytes.max()))
    return min(TASK_NBYTES, largest_dataset + largest_stored) + largest_stored + 3 * largest_chunk


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
    scratch = scratch_nbytes(layout)
    return max(1, min(threads, max(memory_budget // SCRATCH_SHARE, scratch) // scratch))


def shape_of(layout: SampleLayout, kept: tuple[int, ...] = (), selected: NDArray[np.int64] | None = None) -> Shape:
    """Give what of a layout decides how much memory an epoch takes.

    Parameters
    ----------
    layout : SampleLayout
        The fields.
    kept : tuple of int
        Datasets that are kept in memory.
    selected : ndarray of int64, optional
        The rows of an epoch, if not all.
    """
    rows = layout.rows if selected is None else len(selected)
    read = [
        parts
        for number, parts in enumerate(layout.datasets)
        if number not in kept and not can_be_mapped(layout, number)
    ]
    planned = [parts for parts in read if any(part.access != DIRECT for part in parts)]
    return Shape(
        rows=rows,
        field_nbytes=tuple(field.row_nbytes for field in layout.fields),
        block_rows=block_rows_of(layout),
        scratch_nbytes=scratch_nbytes(layout),
        planned=len(planned),
        chunks_a_row=sum(min(_chunks(parts) / rows, len(parts[0].pieces)) for parts in planned),
        kept_nbytes=resident_format(layout, kept).nbytes if kept else 0,
        data_nbytes=_data_nbytes(layout, selected),
        largest_row=layout.rows,
        objects=sum(field.kind == "object" for field in layout.fields),
        seam_rows=_seam_rows(layout, planned),
        anywhere=not planned and _rows_anywhere(read),
    )


def _chunks(parts: Iterable[DatasetPart]) -> int:
    return sum(-(-part.rows // part.chunk_rows) * len(part.pieces) for part in parts)


def _data_nbytes(layout: SampleLayout, selected: NDArray[np.int64] | None) -> int:
    """Give the bytes of chunk indexes, of the blocks and of the selected rows."""
    indexes = [part.index for parts in layout.datasets for part in parts if part.index is not None]
    index = sum(i.numbers.nbytes + i.offset.nbytes + i.nbytes.nbytes + i.filter_mask.nbytes for i in indexes)
    blocks = sum(-(-part.rows // rows) for part, rows in zip(layout.leading, layout.block_rows, strict=True))
    return index + blocks * BLOCK_NBYTES + (0 if selected is None else selected.nbytes)


def _seam_rows(layout: SampleLayout, planned: Iterable[tuple[DatasetPart, ...]]) -> int:
    """Give the rows of the longest chunk that is decoded, and that the edges of blocks may cut."""
    cut = (
        part.chunk_rows
        for parts in planned
        for part, block_rows in zip(parts, layout.block_rows, strict=True)
        if part.access == DECODED and block_rows % part.chunk_rows
    )
    return max(cut, default=0)


def size_for(
    layout: SampleLayout,
    *,
    selected: NDArray[np.int64] | None = None,
    memory_budget: int,
    batch_size: int,
    window: int | str,
    threads: int,
    shuffle: bool = True,
    on_device: bool = False,
) -> tuple[tuple[int, ...], WindowSize]:
    """Choose the datasets that are kept, and size the windows with what is left.

    Parameters are those of `shape_of` and `h5stream.engine.footprint.size_window`, and whether windows lie on a
    device, to which kept data cross like all others.

    Raises
    ------
    BudgetError
        If it does not fit; names the number that would do.
    """
    for kept in (datasets_to_keep(layout, memory_budget), ()):
        try:
            size = size_window(
                shape_of(layout, kept, selected),
                batch_size=batch_size,
                window=window,
                memory_budget=memory_budget,
                threads=threads,
                shuffle=shuffle,
            )
            return kept, size if on_device else gathered(layout, kept, size)
        except BudgetError:  # keeping is only worth memory that nothing else needs
            if not kept:
                raise
    raise AssertionError("the loop ends with nothing kept")


def gathered(layout: SampleLayout, kept: tuple[int, ...], size: WindowSize) -> WindowSize:
    """Give the size with a few batches together where all data is kept: rows cost the same wherever they lie."""
    if size.together or len(kept) < len(layout.datasets):
        return size
    together = max(1, min(size.max_open_batches // 2, GATHERED_NBYTES // size.batch_nbytes))
    batches = min(size.max_open_batches, 2 * together)
    spared = (size.max_open_batches - batches) * size.batch_nbytes
    return replace(size, together=together, max_open_batches=batches, needed_nbytes=size.needed_nbytes - spared)


def _rows_anywhere(datasets: Iterable[tuple[DatasetPart, ...]]) -> bool:
    """Tell whether rows that need no decoding can be read one by one: reads must not be for a few bytes."""
    reads = nbytes = 0
    for parts in datasets:
        reads += max((len(reach_of(part).extents) for part in parts if part.pieces), default=0)
        nbytes += parts[0].stored_row_nbytes
    return nbytes >= reads * LEAST_READ_NBYTES


def default_budget(total_nbytes: int) -> int:
    """Give the budget of a loader that was given none, on a machine with so much memory.

    Examples
    --------
    >>> default_budget(4 << 30) >> 20
    1024
    """
    return min(DEFAULT_BUDGET, total_nbytes // 4)


def check_budget(memory_budget: int | str) -> int:
    """Give a budget in bytes: of a positive number, or of a text such as ``"4GiB"``."""
    nbytes = as_bytes(memory_budget, name="memory_budget=")
    if nbytes < 1:
        raise OptionError(f"memory_budget= takes at least a byte, not {memory_budget!r}")
    return nbytes
