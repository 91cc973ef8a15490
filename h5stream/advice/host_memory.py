"""What a setting holds in the host's memory: for a stock `DataLoader`, and for h5stream's one budget."""

from __future__ import annotations

import math

from h5stream.advice.suggestion import Suggestion, above_zero, at_least
from h5stream.engine.footprint import (
    AUTO_BATCHES,
    AUTO_BLOCKS,
    AUTO_NBYTES,
    AUTO_ROWS,
    CHUNK_PLAN_NBYTES,
    DEFAULT_BUDGET,
    Footprint,
    Shape,
    least_that_fits,
    size_window,
)
from h5stream.engine.tasks import TASK_NBYTES
from h5stream.order.places import place_nbytes
from h5stream.units import text_of_bytes

# What a worker process adds by itself. Noted with a PyTorch image pipeline: 4 workers about 2 GiB, 12 about
# 6 GiB, 16 about 8 GiB. A process forked late from a small parent adds less.
WORKER_BYTES = 512 << 20

_MANY_ROWS = 1 << 30  # more than a window has, and still numbers of 32 bits


def dataloader_memory(
    *, row_bytes: int, batch_size: int, workers: int, prefetch_factor: int = 2, available_bytes: int | None = None
) -> Suggestion:
    """Return the host memory that a stock `DataLoader` fills with a setting, rows being of all fields, decoded."""
    at_least(1, row_bytes=row_bytes, batch_size=batch_size, prefetch_factor=prefetch_factor)
    at_least(0, workers=workers, available_bytes=available_bytes)
    batch = row_bytes * batch_size
    queued = workers * prefetch_factor
    # Without workers the training process itself makes its one batch, and holds its rows meanwhile.
    collating = max(workers, 1) * batch
    worker_bytes = workers * WORKER_BYTES
    total = batch + queued * batch + collating + worker_bytes
    fits: tuple[str, ...] = ()
    if available_bytes is not None:
        share = f"{text_of_bytes(total)} of {text_of_bytes(available_bytes)} that can be taken here now"
        fits = (f"{'more than there is' if total > available_bytes else 'fits'}: {share}",)
    return Suggestion(
        title="Host memory, stock DataLoader",
        answer=f"{text_of_bytes(queued * batch)} queued, about {text_of_bytes(total)} in all",
        arithmetic=(
            f"batch: {batch_size} rows x {row_bytes} B = {text_of_bytes(batch)}",
            f"queued: {workers} workers x {prefetch_factor} batches = {queued} batches x "
            f"{text_of_bytes(batch)} = {text_of_bytes(queued * batch)}",
            f"rows on their way into a batch: {max(workers, 1)} x {text_of_bytes(batch)} = {text_of_bytes(collating)}",
            f"worker processes: {workers} x {text_of_bytes(WORKER_BYTES)} = {text_of_bytes(worker_bytes)}",
            f"and the batch in use: {text_of_bytes(batch)}; together {text_of_bytes(total)}",
        ),
        caveats=fits,
        sources=("DataLoader keeps at most prefetch_factor x num_workers batches outstanding (torch docs)",),
        figures={
            "batch_bytes": batch,
            "queued_batches": queued,
            "queued_bytes": queued * batch,
            "collating_bytes": collating,
            "worker_bytes": worker_bytes,
            "total_bytes": total,
            "available_bytes": available_bytes,
        },
    )


def loader_memory(
    *,
    row_bytes: int,
    batch_size: int,
    threads: int = 1,
    chunk_bytes: int = 1 << 20,
    block_rows: int | None = None,
    rows: int | None = None,
    memory_budget: int | None = None,
) -> Suggestion:
    """Return the host memory that `H5StreamLoader` plans with, and what a budget does to its window."""
    at_least(1, row_bytes=row_bytes, batch_size=batch_size, chunk_bytes=chunk_bytes)
    at_least(0, threads=threads)
    above_zero(block_rows=block_rows, rows=rows, memory_budget=memory_budget)
    budget = memory_budget or DEFAULT_BUDGET
    shape = _shape_of(row_bytes, chunk_bytes, rows or _MANY_ROWS, block_rows)
    asked, size, smallest = _sizes(shape, min(batch_size, shape.rows), threads, budget)
    held = shape.held_nbytes(min(batch_size, shape.rows), size.window_rows)
    fits = smallest <= budget
    slots = size.max_open_batches * size.batch_nbytes
    return Suggestion(
        title="Host memory, h5stream",
        answer=f"{text_of_bytes(size.needed_nbytes)}, window of {size.window_rows} rows"
        + ("" if fits else f": over the budget, {text_of_bytes(smallest)} would do"),
        arithmetic=(
            f"block: {text_of_bytes(chunk_bytes)} chunk / {row_bytes} B = {shape.block_rows} rows"
            if block_rows is None
            else f"block: {shape.block_rows} rows, those of a chunk ({text_of_bytes(chunk_bytes)})",
            _window_line(asked, size.window_rows, batch_size, shape),
            f"slots: {size.max_open_batches} batches x {text_of_bytes(size.batch_nbytes)} = {text_of_bytes(slots)} "
            f"(one window is read while one is consumed), and {text_of_bytes(held)} that the "
            "training loop holds as it goes from one batch to the next",
            f"plans: {shape.plan_row_nbytes:.0f} B a row of two windows = {text_of_bytes(size.plan_nbytes)}",
            f"scratch: {max(size.threads, 1)} threads x {text_of_bytes(shape.scratch_nbytes)} = "
            f"{text_of_bytes(size.scratch_nbytes)}",
        ),
        caveats=_budget_caveats(asked, size.window_rows, shape.block_rows, memory_budget, smallest, fits),
        sources=("h5stream's design: one budget over slots, windows, plans and scratch; loader.stats() measures",),
        figures={
            "batch_bytes": size.batch_nbytes,
            "window_rows": size.window_rows,
            "window_bytes": slots,
            "leased_bytes": held,
            "plan_bytes": size.plan_nbytes,
            "scratch_bytes": size.scratch_nbytes,
            "total_bytes": size.needed_nbytes,
            "threads": size.threads,
            "capped": size.window_rows < asked,
            "smallest_budget_bytes": smallest,
            "fits": fits,
        },
    )


def _shape_of(row_bytes: int, chunk_bytes: int, rows: int, block_rows: int | None) -> Shape:
    """Return the shape of data of which little is known: one compressed dataset, no chunk larger than it was."""
    chunk_rows = block_rows or max(1, chunk_bytes // row_bytes)
    chunk = chunk_bytes if block_rows else chunk_rows * row_bytes
    return Shape(
        rows=rows,
        field_nbytes=(row_bytes,),
        block_rows=chunk_rows,
        scratch_nbytes=min(TASK_NBYTES, rows * row_bytes + chunk) + 4 * chunk,
        plan_row_nbytes=4 * place_nbytes(rows)
        + max(1.0, chunk_rows * row_bytes / max(1, chunk)) / chunk_rows * CHUNK_PLAN_NBYTES,
    )


def _sizes(shape: Shape, batch_rows: int, threads: int, budget: int) -> tuple[int, Footprint, int]:
    """Return the rows of a window by the default budget, what this budget has room for or is least, and the least."""

    def sized(nbytes: int, most_rows: int | None = None) -> Footprint:
        return size_window(
            shape, batch_size=batch_rows, window="auto", memory_budget=nbytes, threads=threads, most_rows=most_rows
        )

    asked = least_that_fits(sized, DEFAULT_BUDGET).window_rows
    ours, least = (least_that_fits(lambda nbytes: sized(nbytes, asked), one) for one in (budget, 1))
    return asked, ours, least.memory_budget


def _window_line(asked: int, rows: int, batch_size: int, shape: Shape) -> str:
    wished = shape.wished_rows("auto", batch_size)
    line = f"window: all {wished} rows"
    if wished < shape.rows:
        line = (
            f"window: max({AUTO_BATCHES} x {batch_size}, {AUTO_BLOCKS} x {shape.block_rows}, "
            f"{text_of_bytes(AUTO_NBYTES)} of at most {AUTO_ROWS} rows) = {wished} rows"
        )
    if asked < wished:
        line += f", of which two fit {text_of_bytes(DEFAULT_BUDGET)}: {asked}"
    return line if rows == asked else f"{line}, cut to {rows} by the budget"


def _budget_caveats(
    asked: int, rows: int, block_rows: int, memory_budget: int | None, smallest: int, fits: bool
) -> tuple[str, ...]:
    if not fits:
        return (f"memory_budget={memory_budget or DEFAULT_BUDGET} is too small; memory_budget={smallest} would do",)
    if rows < asked:
        blocks = math.ceil(rows / block_rows)
        return (f"the shuffle mixes {blocks} blocks at a time instead of {math.ceil(asked / block_rows)}",)
    return (f"the least that would do, with a weaker shuffle: {text_of_bytes(smallest)}",)
