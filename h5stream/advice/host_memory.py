"""What a setting holds in the host's memory: for a stock `DataLoader`, and for h5stream's one budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

from h5stream.advice.rules import above_zero, at_least
from h5stream.advice.suggestion import Suggestion, bytes_text
from h5stream.order.windows import AUTO_BATCHES, AUTO_BLOCKS, AUTO_NBYTES, AUTO_ROWS, wished_rows

# What a worker process adds by itself. Noted with a PyTorch image pipeline: 4 workers about 2 GB, 12 about
# 6 GB, 16 about 8 GB. A process forked late from a small parent adds less.
WORKER_BYTES = 512 << 20

_MANY_ROWS = 1 << 62
# One window is read while another is consumed.
_WINDOWS = 2
# A thread holds a chunk as stored and a chunk decoded.
_SCRATCH_CHUNKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoaderMemory(Suggestion):
    """Host memory of a `torch.utils.data.DataLoader`.

    Attributes
    ----------
    batch_bytes : int
        One batch.
    queued_batches : int
        Batches that are ready or being made, at most.
    queued_bytes : int
        Their bytes: how much is queued.
    collating_bytes : int
        The rows that workers hold as a list while they copy them into a batch.
    worker_bytes : int
        The worker processes themselves.
    total_bytes : int
        All of it, and the batch that the training loop holds.
    available_bytes : int or None
        Memory that could be taken, as given.
    """

    batch_bytes: int
    queued_batches: int
    queued_bytes: int
    collating_bytes: int
    worker_bytes: int
    total_bytes: int
    available_bytes: int | None


def dataloader_memory(
    *,
    row_bytes: int,
    batch_size: int,
    workers: int,
    prefetch_factor: int = 2,
    worker_bytes: int = WORKER_BYTES,
    available_bytes: int | None = None,
) -> DataLoaderMemory:
    """Give the host memory that a stock `DataLoader` fills with a setting.

    Parameters
    ----------
    row_bytes : int
        Bytes of a row, all fields together, decoded.
    batch_size : int
        Rows.
    workers : int
        ``num_workers``; with 0 there is no queue.
    prefetch_factor : int, optional
        Batches ahead for each worker; 2 is the `DataLoader`'s default.
    worker_bytes : int, optional
        What a worker process takes by itself.
    available_bytes : int, optional
        Memory that could be taken, to compare with.

    Examples
    --------
    >>> memory = dataloader_memory(row_bytes=1024, batch_size=8192, workers=8, prefetch_factor=16)
    >>> memory.queued_batches, memory.queued_bytes == 1 << 30
    (128, True)
    """
    at_least(1, row_bytes=row_bytes, batch_size=batch_size, prefetch_factor=prefetch_factor)
    at_least(0, workers=workers, worker_bytes=worker_bytes, available_bytes=available_bytes)
    batch = row_bytes * batch_size
    queued = workers * prefetch_factor
    # Without workers the training process itself makes its one batch, and holds its rows meanwhile.
    collating = max(workers, 1) * batch
    total = batch + queued * batch + collating + workers * worker_bytes
    return DataLoaderMemory(
        title="Host memory, stock DataLoader",
        answer=f"{bytes_text(queued * batch)} queued, about {bytes_text(total)} in all",
        arithmetic=(
            f"batch: {batch_size} rows x {row_bytes} B = {bytes_text(batch)}",
            f"queued: {workers} workers x {prefetch_factor} batches = {queued} batches x "
            f"{bytes_text(batch)} = {bytes_text(queued * batch)}",
            f"rows on their way into a batch: {max(workers, 1)} x {bytes_text(batch)} = {bytes_text(collating)}",
            f"worker processes: {workers} x {bytes_text(worker_bytes)} = {bytes_text(workers * worker_bytes)}",
            f"and the batch in use: {bytes_text(batch)}; together {bytes_text(total)}",
        ),
        caveats=_against_available(total, available_bytes),
        sources=("DataLoader keeps at most prefetch_factor x num_workers batches outstanding (torch docs)",),
        batch_bytes=batch,
        queued_batches=queued,
        queued_bytes=queued * batch,
        collating_bytes=collating,
        worker_bytes=workers * worker_bytes,
        total_bytes=total,
        available_bytes=available_bytes,
    )


def _against_available(total: int, available_bytes: int | None) -> tuple[str, ...]:
    if available_bytes is None:
        return ()
    share = f"{bytes_text(total)} of {bytes_text(available_bytes)} that can be taken here now"
    return (f"more than there is: {share}" if total > available_bytes else f"fits: {share}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderMemory(Suggestion):
    """Host memory of `H5StreamLoader`, by its design: slots, windows and scratch under one budget.

    Attributes
    ----------
    batch_bytes : int
        One batch, which is one slot.
    window_rows : int
        Rows that are shuffled with one another, after a budget's cap.
    window_bytes : int
        One window; two are held.
    leased_bytes : int
        Slots that the consumer holds.
    scratch_bytes : int
        The threads' buffers.
    total_bytes : int
        All of it.
    capped : bool
        True if the budget made the window smaller than asked.
    smallest_budget_bytes : int
        The budget that would just do, with a window of one batch or one block.
    fits : bool
        False if the budget is smaller than that.
    """

    batch_bytes: int
    window_rows: int
    window_bytes: int
    leased_bytes: int
    scratch_bytes: int
    total_bytes: int
    capped: bool
    smallest_budget_bytes: int
    fits: bool


def loader_memory(
    *,
    row_bytes: int,
    batch_size: int,
    threads: int = 1,
    chunk_bytes: int = 1 << 20,
    window_rows: int | None = None,
    leased_batches: int = 2,
    memory_budget: int | None = None,
) -> LoaderMemory:
    """Give the host memory that `H5StreamLoader` plans with, and what a budget does to its window.

    The window is in the batch slots themselves: there is no queue of batches beside it, whatever the number
    of threads. Two windows are held, one that is read while the other is consumed.

    Parameters
    ----------
    row_bytes : int
        Bytes of a row, all fields together, decoded.
    batch_size : int
        Rows. A budget never changes it.
    threads : int, optional
        Reader threads.
    chunk_bytes : int, optional
        Bytes of a decoded chunk of the largest field; one chunk's rows are a block.
    window_rows : int, optional
        Rows of a window; by default those of ``window="auto"`` over a large file.
    leased_batches : int, optional
        Batches that the consumer keeps at a time.
    memory_budget : int, optional
        Bytes that must do.

    Examples
    --------
    >>> free = loader_memory(row_bytes=1024, batch_size=8192, threads=8)
    >>> free.window_rows, free.window_bytes == 1 << 30
    (1048576, True)
    >>> tight = loader_memory(row_bytes=1024, batch_size=8192, threads=8, memory_budget=512 << 20)
    >>> tight.capped, tight.total_bytes <= 512 << 20
    (True, True)
    """
    at_least(1, row_bytes=row_bytes, batch_size=batch_size, chunk_bytes=chunk_bytes)
    at_least(0, threads=threads, leased_batches=leased_batches)
    above_zero(window_rows=window_rows, memory_budget=memory_budget)
    block_rows = max(1, chunk_bytes // row_bytes)
    asked = window_rows or wished_rows(
        "auto", rows=_MANY_ROWS, batch_size=batch_size, block_rows=block_rows, row_nbytes=row_bytes
    )
    batch = batch_size * row_bytes
    scratch = max(threads, 1) * _SCRATCH_CHUNKS * chunk_bytes
    fixed = leased_batches * batch + scratch
    least_rows = min(asked, max(batch_size, block_rows))
    smallest = fixed + _WINDOWS * least_rows * row_bytes
    rows = asked
    if memory_budget is not None:
        # Whole blocks, so that no chunk is decoded twice at the seam of two windows.
        room = (memory_budget - fixed) // (_WINDOWS * row_bytes) // block_rows * block_rows
        rows = min(asked, max(room, least_rows))
    total = fixed + _WINDOWS * rows * row_bytes
    fits = memory_budget is None or total <= memory_budget
    return LoaderMemory(
        title="Host memory, h5stream",
        answer=f"{bytes_text(total)}, window of {rows} rows"
        + ("" if fits else f": over the budget, {bytes_text(smallest)} would do"),
        arithmetic=(
            f"block: {bytes_text(chunk_bytes)} chunk / {row_bytes} B = {block_rows} rows",
            _window_line(asked, rows, batch_size, block_rows, window_rows),
            f"windows: {_WINDOWS} x {rows} rows x {row_bytes} B = "
            f"{bytes_text(_WINDOWS * rows * row_bytes)} (one is read while one is consumed)",
            f"leased: {leased_batches} batches x {bytes_text(batch)} = {bytes_text(leased_batches * batch)}",
            f"scratch: {max(threads, 1)} threads x {_SCRATCH_CHUNKS} chunks x {bytes_text(chunk_bytes)} = "
            f"{bytes_text(scratch)}",
        ),
        caveats=_budget_caveats(asked, rows, block_rows, memory_budget, smallest, fits),
        sources=("h5stream's design: one budget over slots, windows and scratch; loader.stats() measures",),
        batch_bytes=batch,
        window_rows=rows,
        window_bytes=rows * row_bytes,
        leased_bytes=leased_batches * batch,
        scratch_bytes=scratch,
        total_bytes=total,
        capped=rows < asked,
        smallest_budget_bytes=smallest,
        fits=fits,
    )


def _window_line(asked: int, rows: int, batch_size: int, block_rows: int, given: int | None) -> str:
    if given is not None:
        line = f"window: {given} rows, as given"
    else:
        line = (
            f"window: max({AUTO_BATCHES} x {batch_size}, {AUTO_BLOCKS} x {block_rows}, {bytes_text(AUTO_NBYTES)} of "
            f"at most {AUTO_ROWS} rows) = {asked} rows"
        )
    return line if rows == asked else f"{line}, cut to {rows} by the budget"


def _budget_caveats(
    asked: int, rows: int, block_rows: int, memory_budget: int | None, smallest: int, fits: bool
) -> tuple[str, ...]:
    if memory_budget is None:
        return (f"the least that would do, with a weaker shuffle: {bytes_text(smallest)}",)
    if not fits:
        return (f"memory_budget={memory_budget} is too small; memory_budget={smallest} would do",)
    if rows < asked:
        blocks = math.ceil(rows / block_rows)
        return (f"the shuffle mixes {blocks} blocks at a time instead of {math.ceil(asked / block_rows)}",)
    return ()
