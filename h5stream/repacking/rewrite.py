"""Rewriting one file: decoded by the engine's threads, compressed by a pool, written and verified by one thread.

# Guarantees: the caller's thread writes and verifies. When `rewrite` returns or raises, all others have ended.
"""

from __future__ import annotations

import collections
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from h5stream import allowance
from h5stream.engine.reader import RowReader
from h5stream.engine.run import Run
from h5stream.engine.slots import Slot, SlotFormat, SlotRing
from h5stream.order.listed import ListedOrder
from h5stream.repacking.encode import encode, filters_for
from h5stream.repacking.survey import RawDataset, RewritePlan
from h5stream.repacking.verify import verify
from h5stream.repacking.writer import NewFile, rebuilding
from h5stream.storage.source import FileIdentity

TOGETHER_NBYTES = 16 * 1024 * 1024
"""Decoded bytes that are read together, at least: enough for every thread to have a share."""

MOST_TOGETHER_NBYTES = 128 * 1024 * 1024
"""... and at most, where old and new chunks do not line up."""

MEMORY_SHARE = 4
"""A shuffle may hold one part in this many of the available memory; the source is read once for each time that
the rows do not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackProgress:
    """How far one `repack` has come."""

    step: str
    """``"writing"`` or ``"verifying"``."""
    bytes_done: int
    """Decoded bytes written and verified so far."""
    bytes_total: int
    """Decoded bytes to be written and verified."""
    dataset: str
    """The dataset that is being written or verified."""


RepackProgressCallback = Callable[[RepackProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackResult:
    """What one `repack` did."""

    source: Path
    """What was rewritten."""
    target: Path
    """The new file."""
    bytes_before: int
    """Size of the source."""
    bytes_after: int
    """Size of the new file."""
    rewritten: tuple[str, ...]
    """Datasets that lie in new chunks."""
    copied: tuple[tuple[str, str], ...]
    """Datasets that were copied as they are, and why."""
    shuffled: tuple[str, ...]
    """Datasets whose rows were permuted."""
    samples: tuple[str, ...]
    """Of the rewritten datasets the one with the most bytes, and all that are as long: a loader's likely fields."""
    notices: tuple[str, ...]
    """What could not be kept, or should be known."""
    seconds: float = field(compare=False)
    """How long it took, verification included."""


_Order = NDArray[np.int64] | None
_Encoded = tuple[NDArray[np.uint8], int] | None


def rewrite(plan: RewritePlan, target: Path, progress: RepackProgressCallback | None = None) -> RepackResult:
    """Write the new file over `target`, which exists, and verify it against the source, which must not change."""
    begin, identity, order, bytes_done = time.monotonic(), FileIdentity.of(plan.source), plan.order(), 0
    total = sum(each.nbytes for each in (*plan.rewritten, *plan.datasets))

    def tell(step: str, dataset: RawDataset, nbytes: int) -> None:
        nonlocal bytes_done
        bytes_done += nbytes
        if progress is not None:
            progress(RepackProgress(step=step, bytes_done=bytes_done, bytes_total=total, dataset=dataset.path))

    with rebuilding(plan, str(target)) as new:
        for dataset in plan.datasets:
            moved = order if dataset.shuffled else None
            if dataset.rewritten:
                for nbytes in _written(new, dataset, moved, plan):
                    tell("writing", dataset, nbytes)
            elif moved is not None:
                new.permute_rows(dataset, moved)
    uncompared = verify(plan, target, new.places, order, lambda dataset, nbytes: tell("verifying", dataset, nbytes))
    identity.check_unchanged()
    rows = max(plan.rewritten, key=lambda each: each.nbytes).rows if plan.rewritten else 0
    return RepackResult(
        source=Path(plan.source),
        target=target,
        bytes_before=os.path.getsize(plan.source),
        bytes_after=target.stat().st_size,
        rewritten=tuple(each.path for each in plan.rewritten),
        copied=tuple((each.path, each.reason or "not among fields=") for each in plan.datasets if not each.rewritten),
        shuffled=tuple(each.path for each in plan.datasets if each.shuffled),
        samples=tuple(each.path for each in plan.rewritten if each.rows == rows),
        notices=(*plan.notices, *new.notices, *uncompared),
        seconds=time.monotonic() - begin,
    )


def _written(new: NewFile, dataset: RawDataset, order: _Order, plan: RewritePlan) -> Iterator[int]:
    """Decode a dataset's rows in their new order, compress them chunk by chunk, and store them; yield their bytes."""
    chunk_rows, filters = plan.chunk_rows(dataset), filters_for(plan.recipe.compress, dataset.element_nbytes)
    nothing = np.tile(dataset.fill, chunk_rows * dataset.row_nbytes // len(dataset.fill))

    def encoded(chunk: NDArray[np.uint8], rows: int) -> _Encoded:
        used = rows * dataset.row_nbytes
        if dataset.is_sparse and np.array_equal(chunk[:used], nothing[:used]):
            return None  # never written in the source either
        chunk[used:] = nothing[used:]
        return encode(filters, chunk)

    for number, rows, slot, chunk in _decoded(dataset, chunk_rows, order, encoded):
        if plan.recipe.contiguous:
            new.write_rows(dataset, number * chunk_rows, slot.memory[: rows * dataset.row_nbytes])
        elif chunk is not None:
            new.write_chunk(dataset, number * chunk_rows, *chunk)
        yield rows * dataset.row_nbytes


def _decoded(
    dataset: RawDataset, chunk_rows: int, order: _Order, encoded: Callable[[NDArray[np.uint8], int], _Encoded]
) -> Iterator[tuple[int, int, Slot, _Encoded]]:
    """Yield the new chunks in their order: number, rows, the slot that holds them, and what to store."""
    assert dataset.layout is not None
    threads, together = allowance.cpus(), _chunks_together(dataset, chunk_rows, order)
    carrier, slot_format = RowReader(dataset.layout), SlotFormat.for_rows(dataset.layout.fields, chunk_rows)
    ring, nbytes = SlotRing(slot_format.nbytes), chunk_rows * dataset.row_nbytes
    starts = range(0, dataset.rows, chunk_rows)
    run = Run(
        carrier,
        ListedOrder(
            (_rows(dataset, start, chunk_rows, order) for start in starts),
            together=together,
            total_rows=dataset.rows,
            count=len(starts),
        ),
        ring,
        slot_format,
        threads=threads,
        # A shuffle fills its memory with one window; else the next one is decoded while this one is written.
        max_open_batches=together if order is not None else 2 * together,
    )
    waiting: collections.deque[tuple[int, int, Slot, Future[_Encoded]]] = collections.deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="h5stream-encode") as pool:
        try:
            while (batch := run.next_batch()) is not None or waiting:
                if batch is not None:
                    future = pool.submit(encoded, batch.slot.memory[:nbytes], batch.rows)
                    waiting.append((batch.number, batch.rows, batch.slot, future))
                if batch is None or len(waiting) > 2 * threads:
                    number, rows, slot, future = waiting.popleft()
                    yield number, rows, slot, future.result()
                    ring.give_back(slot)
        finally:
            run.stop()
            pool.shutdown(cancel_futures=True)
            carrier.close()


def _rows(dataset: RawDataset, start: int, count: int, order: _Order) -> NDArray[np.int64]:
    stop = min(start + count, dataset.rows)
    return np.arange(start, stop, dtype=np.int64) if order is None else order[start:stop]


def _chunks_together(dataset: RawDataset, chunk_rows: int, order: _Order) -> int:
    """Choose how many new chunks are decoded as one window, so that old chunks are rarely decoded twice."""
    if order is not None:
        return max(1, allowance.memory_available_bytes() // MEMORY_SHARE // (chunk_rows * dataset.row_nbytes))
    old_rows, at_least = dataset.part.chunk_rows, -(-TOGETHER_NBYTES // dataset.row_nbytes)
    aligned = math.lcm(old_rows, chunk_rows)
    if aligned * dataset.row_nbytes <= MOST_TOGETHER_NBYTES:
        rows = -(-at_least // aligned) * aligned
    else:  # at most one old chunk in four is decoded twice
        rows = max(at_least, min(4 * old_rows, MOST_TOGETHER_NBYTES // dataset.row_nbytes))
    return max(1, -(-rows // chunk_rows))
