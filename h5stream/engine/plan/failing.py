"""Tasks that fail: which batch each of them spoils, and what is left of batches whose corrupt chunks are left out."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from h5stream.base.names import is_address
from h5stream.engine.counters import RunCounters
from h5stream.engine.kinds.ragged import RaggedRows, join_columns
from h5stream.engine.plan.tasks import Task, Tools
from h5stream.engine.slots import SlotFormat
from h5stream.errors import CorruptChunkError, H5StreamError, SourceError
from h5stream.storage.layout.parts import DatasetPart

if TYPE_CHECKING:
    from h5stream.engine.batches import PlannedWindow, ReadyBatch

_log = logging.getLogger("h5stream")


def row_by_row(task: Task) -> Iterator[Task]:
    """Return one task for each row, or span."""
    for placement in task.placement.in_steps(1):
        yield replace(task, shared=placement)


def chunk_by_chunk(task: Task, part: DatasetPart) -> Iterator[Task]:
    """Return one task for each chunk that has some of a part's rows, which are ascending."""
    _, edges, _ = task.placement.in_chunks(part)
    for low, high in itertools.pairwise(edges.tolist()):
        yield replace(task, shared=task.placement[low:high])


def first_failure(
    window: PlannedWindow, task: Task, error: H5StreamError, tools: Tools, skipping: RunCounters | None
) -> tuple[int, H5StreamError] | None:
    """Return the earliest batch that a failed task of a window spoils, and the error, after filling the other batches.

    A task holds many chunks, and a corrupt one must not take along the batches that never needed it. Where corrupt
    chunks are left out, `skipping` counts them; None if all that failed is one of these.
    """
    failures: list[tuple[int, H5StreamError]] = []
    dropped = False
    # What a store refuses is no damage of a chunk, and each would wait for as long again.
    is_far = isinstance(error, SourceError) and is_address(error.file or "")
    for one in () if is_far else task.apart(task):
        try:
            one.land(window.destination, tools)
        except H5StreamError as refused:
            if skipping is not None and isinstance(refused, CorruptChunkError):
                _drop(window, one, refused, skipping)
                dropped = True
            else:
                failures.append((one.placement.first_batch, refused))
    if dropped and not failures:
        return None
    # If the retry succeeded, the failure was transient, and the bytes are right; report it anyway.
    first, why = min(failures, key=lambda failure: failure[0], default=(task.placement.first_batch, error))
    if skipping is None and isinstance(why, CorruptChunkError):
        why.args = (f"{why.args[0].rstrip('.')}; on_error='skip' leaves its rows out",)
    failures.clear()  # each knows this frame, and by it the window and its files
    try:
        return window.numbers.start + first, why
    finally:
        del why


def _drop(window: PlannedWindow, task: Task, error: CorruptChunkError, counters: RunCounters) -> None:
    """Note that the rows of a task, which holds one chunk, cannot be had; the first time is worth a warning.

    # Guarantees: called by any reader before the window's last task is reported; `_log` and the list are safe.
    """
    if counters.skip(f"{error.file}:{error.field} chunk {error.chunk}"):
        # Its text: log records that are kept must not keep the traceback, and by it the files and buffers.
        _log.warning("on_error='skip': rows are left out, and loader.stats() counts them, because %s", str(error))
    rows = task.placement.each_row()
    # Nor may a batch that waits keep them, nor, without threads, itself.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    window.dropped.append((rows.batch, rows.samples, error))


def close_gaps(batch: ReadyBatch, slot_format: SlotFormat, row_nbytes: Sequence[int]) -> int:
    """Move the rows of a batch over the places that stayed empty, and give how many those were."""
    present = np.ones(batch.rows, dtype=bool)
    for places in batch.dropped:
        present[places] = False
    rows = int(present.sum())
    for offset, nbytes in zip(slot_format.offsets, row_nbytes, strict=True):
        column = batch.slot.memory[offset : offset + batch.rows * nbytes].reshape(batch.rows, nbytes)
        column[:rows] = column[present]
    for number, values in batch.objects.items():
        batch.objects[number] = (
            values.without(present)
            if isinstance(values, RaggedRows)
            else [*itertools.compress(values, present.repeat(len(values) // batch.rows).tolist())]
        )
    join_columns(batch.objects)
    gone, batch.rows = batch.rows - rows, rows
    batch.dropped = ()
    return gone


def nothing_left(batch: int, corrupt: CorruptChunkError, world_size: int) -> CorruptChunkError:
    """Return the error for a batch that one of several ranks cannot leave out: the others would wait for it."""
    error = CorruptChunkError(
        f"nothing is left of batch {batch}, and one of {world_size} ranks cannot leave a batch out, because "
        f"the others would wait for it: {corrupt} (on_error='skip' needs batches with rows of other chunks, "
        "too: pass shuffle=True or a larger batch_size=)",
        **vars(corrupt),
    )
    error.__cause__ = corrupt
    return error
