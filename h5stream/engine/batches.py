"""What is on its way through the executor: planned windows, and batches that fill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine.carry import FileTask
from h5stream.engine.emit import Sink
from h5stream.engine.kept import KeptTask
from h5stream.engine.slots import Slot, SlotFormat, address_of
from h5stream.errors import CorruptChunkError
from h5stream.order.places import Places, pieces


@dataclass(slots=True)
class ReadyBatch:
    """A batch that the engine has filled, or is filling.

    Attributes
    ----------
    number, rows : int
        Which batch, and how many rows it has.
    slot : Slot
        Its memory.
    objects : dict
        By field number, lists of what does not live in a slot.
    missing : int
        Rows that are still to come; 0 once it may be handed over.
    dropped : list of ndarray
        Places of rows that cannot be had and are left out.
    corrupt : CorruptChunkError or None
        Why, for one of them.
    """

    number: int
    rows: int
    slot: Slot
    objects: dict[int, list[Any]]
    missing: int
    dropped: list[Places] = field(default_factory=list)
    corrupt: CorruptChunkError | None = None


@dataclass(slots=True, eq=False)
class PlannedWindow:
    """A window whose tasks are known; once admitted it has slots, and `pending` counts the tasks to come.

    `dropped` names rows that cannot be had, by batch (counted from the window's first) and place in it, and why.
    """

    first_batch: int
    rows_of_batch: NDArray[np.int64]
    tasks: list[FileTask | KeptTask]
    files: tuple[int, ...]
    pending: int = 0
    sink: Sink | None = None
    batches: list[ReadyBatch] = field(default_factory=list)
    dropped: list[tuple[Places, Places, CorruptChunkError]] = field(default_factory=list)


def rows_of_batches(batch: Places) -> NDArray[np.int64]:
    """Count the rows of each batch, piece by piece: `numpy.bincount` makes 64-bit numbers of all that it is given."""
    counts = np.zeros(int(batch.max()) + 1, dtype=np.int64)
    for piece in pieces(len(batch)):
        first = int(batch[piece].min())
        some = np.bincount(batch[piece] - first)
        counts[first : first + len(some)] += some
    return counts


def sink_of(batches: list[ReadyBatch], slot_format: SlotFormat, row_nbytes: tuple[int, ...]) -> Sink:
    """Give where a window's rows go."""
    return Sink(
        slots=np.array([address_of(batch.slot.memory) for batch in batches], dtype=np.int64),
        format=slot_format,
        row_nbytes=row_nbytes,
        objects=[batch.objects for batch in batches],
    )


def will_complete(batch: ReadyBatch, active: Sequence[PlannedWindow]) -> bool:
    """Tell whether the windows that are being carried out bring all rows that a batch still lacks."""
    coming = sum(
        int(w.rows_of_batch[batch.number - w.first_batch])
        for w in active
        if 0 <= batch.number - w.first_batch < len(w.rows_of_batch)
    )
    return batch.missing <= coming
