"""Chunks that are decoded straight into their rows' place in a slot, and left in byte planes there.

A chunk that holds whole rows, all of them wanted and one behind the other in one slot, takes as many bytes
there as it has. Then nothing need be scattered, and a byte shuffle can be left to the device: the region is
noted as *planar* (`h5stream.engine.slots.PlanarRegions`) and laid out by a transpose once it has crossed.
Only slots in file order are filled like that; see `h5stream.order.transfer`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from h5stream.engine.emit import Program, Sink, dense_leaf
from h5stream.engine.plan import Task
from h5stream.engine.slots import PlanarRegions, address_of
from h5stream.storage.filters import DecodeScratch
from h5stream.storage.index import MISSING
from h5stream.storage.layout import DECODED, DatasetPart

Bytes = NDArray[np.uint8]


class Straight:
    """Finds the place of each chunk of one task, and notes what was left planar.

    # Guarantees: used by one thread, for one task. A region is one chunk's, so that no other task writes to it
    or notes it; a chunk that is carried a second time takes back what was noted the first time.

    Parameters
    ----------
    program : Program
        The one field that the part fills.
    task : Task
        The chunks; of a part that `pays`.
    sink : Sink
        The slots, with their memory.
    """

    def __init__(self, program: Program, task: Task, sink: Sink) -> None:
        self._program, self._task, self._sink = program, task, sink
        whole = (task.high - task.low == task.part.chunk_rows) & (task.place != MISSING)
        self._whole: list[bool] = whole.tolist()
        assert task.part.index is not None
        self._mask: NDArray[np.uint32] = task.part.index.filter_mask

    @staticmethod
    def pays(part: DatasetPart, programs: tuple[Program, ...], sink: Sink) -> bool:
        """Tell whether chunks of a part have the bytes of their rows and no others, and the sink takes them."""
        if not sink.memories or part.access != DECODED or len(programs) != 1 or len(part.pieces) != 1:
            return False
        (program,), (piece,) = programs, part.pieces
        row_nbytes = piece.row_elements * program.leaf.nbytes
        return (
            program.leaf.is_whole
            and piece.segments.tolist() == [[0, 0, piece.row_elements]]
            and part.chunk_nbytes == part.chunk_rows * row_nbytes
            and sink.row_nbytes[program.target.field] == row_nbytes
        )

    def place_for(self, k: int) -> Bytes | None:
        """Give the memory that chunk `k` is decoded into; None if its rows do not lie in one run of a slot."""
        task = self._task
        # Where a codec has memory of its own, scattering from there costs no more than copying.
        if not self._whole[k] or not task.part.pipeline.fills_out(
            int(self._mask[task.place[k]]), task.part.chunk_nbytes
        ):
            return None
        placement, low, high = task.placement, int(task.low[k]), int(task.high[k])
        within = placement.within[low:high]
        if placement.batch[low] != placement.batch[high - 1] or not (within[1:] - within[:-1] == 1).all():
            return None
        memory, planar, start = self._region(k)
        planar.pop((self._program.target.field, int(within[0])), None)
        return memory[start : start + task.part.chunk_nbytes]

    def _region(self, k: int) -> tuple[Bytes, PlanarRegions, int]:
        sink, placement, low = self._sink, self._task.placement, int(self._task.low[k])
        batch, field = int(placement.batch[low]), self._program.target.field
        start = sink.format.offsets[field] + int(placement.within[low]) * sink.row_nbytes[field]
        return sink.memories[batch], sink.planar[batch], start

    def keep(self, k: int, place: Bytes, data: Bytes, shuffled: int, scratch: DecodeScratch) -> None:
        """Keep chunk `k`, which was decoded into its place, or elsewhere where that was not possible."""
        if address_of(data) != address_of(place):
            place[:] = data
        if shuffled == self._program.leaf.stored_nbytes:
            _, planar, _ = self._region(k)
            first = int(self._task.placement.within[self._task.low[k]])
            planar[self._program.target.field, first] = (self._task.part.chunk_rows, shuffled)
        elif shuffled:  # of elements that are not the dataset's own
            place[:] = dense_leaf(self._program, place, shuffled, scratch)
