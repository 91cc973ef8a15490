"""``on_error="skip"``: rows of corrupt chunks are left out of their batches, counted and named."""

from __future__ import annotations

import logging

import numpy as np

from h5stream.engine.batches import PlannedWindow, ReadyBatch
from h5stream.engine.counters import RunCounters
from h5stream.engine.plan import Task
from h5stream.engine.slots import SlotFormat
from h5stream.errors import CorruptChunkError

_log = logging.getLogger("h5stream")


def drop_rows(window: PlannedWindow, one: Task, error: CorruptChunkError, counters: RunCounters) -> None:
    """Note that the rows of a task, which holds one chunk, cannot be had; the first time is worth a warning.

    # Guarantees: called by any reader before the window's last task is reported; `_log` and both lists are safe.
    """
    name = f"{error.file}:{error.field} chunk {error.chunk}"
    if counters.skip(name):
        # Its text: whoever keeps log records must not keep the traceback, and by it the files and buffers.
        _log.warning("on_error='skip': rows are left out, and loader.stats() counts them, because %s", str(error))
    for low, high in zip(one.low.tolist(), one.high.tolist(), strict=True):
        window.dropped.append((one.placement.batch[low:high], one.placement.within[low:high], error))


def hand_down(window: PlannedWindow) -> None:
    """Tell each batch of a window which of its places stay empty."""
    for batch, within, error in window.dropped:
        for number in np.unique(batch).tolist():
            window.batches[number].dropped.append(within[batch == number])
            window.batches[number].corrupt = error


def close_gaps(batch: ReadyBatch, slot_format: SlotFormat, row_nbytes: tuple[int, ...]) -> int:
    """Move a batch's rows together over the places that stayed empty, and give how many those were."""
    kept = np.ones(batch.rows, dtype=bool)
    for places in batch.dropped:
        kept[places] = False
    rows = int(kept.sum())
    for offset, nbytes in zip(slot_format.offsets, row_nbytes, strict=True):
        field = batch.slot.memory[offset : offset + batch.rows * nbytes].reshape(batch.rows, nbytes)
        field[:rows] = field[kept]
    for number, values in batch.objects.items():
        batch.objects[number] = [value for value, keep in zip(values, kept.tolist(), strict=True) if keep]
    dropped, batch.rows = batch.rows - rows, rows
    batch.dropped.clear()
    return dropped


def nothing_left(batch: ReadyBatch, world_size: int) -> CorruptChunkError:
    """Give the error for a batch that one of several ranks cannot leave out: the others would wait for it for ever.

    An empty batch in its place would be worse: a mean over no rows is NaN, which every rank would then average in.
    """
    found = batch.corrupt
    assert found is not None
    error = CorruptChunkError(
        f"nothing is left of batch {batch.number}, and one of {world_size} ranks cannot leave a batch out, because the "
        f"others would wait for it: {found} (on_error='skip' leaves out rows of batches that other chunks have a share "
        "in: shuffle=True or a larger batch_size= see to that)",
        file=found.file,
        field=found.field,
        chunk=found.chunk,
        byte_offset=found.byte_offset,
    )
    error.__cause__ = found
    return error
