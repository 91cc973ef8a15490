"""Collecting decoded chunks so that one kernel call scatters several of them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from h5stream.engine import kernels
from h5stream.engine.emit import Emitter, Program, Sink, dense_leaf
from h5stream.engine.plan import Task
from h5stream.engine.slots import address_of
from h5stream.storage.codecs import most_nbytes
from h5stream.storage.filters import DecodeScratch
from h5stream.storage.index import MISSING
from h5stream.storage.layout import DECODED, DatasetPart

Bytes = NDArray[np.uint8]

SMALL_CHUNK_NBYTES = 32 * 1024
"""Decoded chunks up to this many bytes are stacked: for larger ones a kernel call is lost in the decoding."""

BESIDE_NBYTES = 1024 * 1024
"""Decoded chunks that lie side by side are scattered together up to this many bytes: what a core's own cache
holds. Each cache line of the batch is then visited once, not once a chunk."""


class Stack:
    """Collects the small chunks of one task, one after the other, and scatters them with one call a field.

    # Guarantees: used by one thread, for one task.
    """

    def __init__(self, emitter: Emitter, task: Task, sink: Sink, scratch: DecodeScratch) -> None:
        self._programs, self._task, self._sink, self._scratch = emitter.programs_of(task.part), task, sink, scratch
        self._emitter = emitter
        self._region = scratch.buffer("stack", len(task.number) * task.part.chunk_nbytes)
        self._held: list[int] = []
        self._shuffled = 0
        self._inflatable = _inflatable(task)

    @staticmethod
    def pays(part: DatasetPart) -> bool:
        """Tell whether a part's chunks are small enough to be stacked."""
        return part.access == DECODED and part.chunk_nbytes <= SMALL_CHUNK_NBYTES

    def inflate(self, fetched: Bytes, base: int, start: int, stop: int) -> list[int]:
        """Inflate those of the chunks `start` to `stop` that need nothing else, with one call; give the others.

        `fetched` holds the file's bytes from `base` on. Also given back are all chunks if one of them does not
        inflate: what is wrong with it is found out one by one.
        """
        all_of_them = list(range(start, stop))
        decompressor = self._scratch.decompressor if self._inflatable is not None else None
        if self._inflatable is None or decompressor is None:
            return all_of_them
        easy, shuffled = self._inflatable
        chosen = np.flatnonzero(easy[start:stop]) + start
        if self._held and shuffled != self._shuffled:
            self.flush()
        task, chunk_nbytes = self._task, self._task.part.chunk_nbytes
        right = kernels.inflate_each(
            decompressor.function,
            decompressor.address,
            address_of(fetched),
            task.offset[chosen] - base,
            task.nbytes[chosen],
            address_of(self._region) + len(self._held) * chunk_nbytes,
            chunk_nbytes,
        )
        if right < len(chosen):
            return all_of_them
        self._shuffled = shuffled
        self._held += chosen.tolist()
        return [k for k in all_of_them if not easy[k]]

    def place_for(self, k: int, nbytes: int) -> Bytes:
        """Give the memory that the next chunk is decoded into."""
        at = len(self._held) * nbytes
        return self._region[at : at + nbytes]

    def keep(self, k: int, shuffled: int) -> None:
        """Keep chunk `k`, which was decoded into `place_for`; scatters first what is shuffled unlike it."""
        if self._held and shuffled != self._shuffled:
            last = self.place_for(k, self._task.part.chunk_nbytes).copy()
            self.flush()
            self.place_for(k, last.nbytes)[:] = last
        self._shuffled = shuffled
        self._held.append(k)

    def add(self, k: int, data: Bytes, shuffled: int) -> None:
        """Take in chunk `k`, which was decoded elsewhere."""
        self.place_for(k, data.nbytes)[:] = data
        self.keep(k, shuffled)

    def flush(self) -> None:
        """Scatter what is held."""
        held, self._held = self._held, []
        if not held:
            return
        chunk_nbytes = self._task.part.chunk_nbytes
        data = self._region[: len(held) * chunk_nbytes]
        chosen = np.array(held, dtype=np.int64)
        for program in self._programs:
            self._scatter(program, self._dense(program, data, len(held), chunk_nbytes), chosen, chunk_nbytes)

    def _dense(self, program: Program, data: Bytes, chunks: int, chunk_nbytes: int) -> Bytes:
        leaf, shuffled = program.leaf, self._shuffled
        if not shuffled:
            return dense_leaf(program, data, 0, self._scratch)
        count = chunk_nbytes // shuffled
        out = self._scratch.buffer(
            "dense", chunks * count * (leaf.nbytes if shuffled == leaf.stored_nbytes else shuffled)
        )
        if shuffled == leaf.stored_nbytes:
            kernels.gather_planes_stack(data, program.planes, count, chunk_nbytes, chunks, out)
            return out
        planes = np.arange(shuffled, dtype=np.int64) * count
        unshuffled = self._scratch.buffer("unshuffled", data.nbytes)
        kernels.gather_planes_stack(data, planes, count, chunk_nbytes, chunks, unshuffled)
        return dense_leaf(program, unshuffled, 0, self._scratch)

    def _scatter(self, program: Program, dense: Bytes, chosen: NDArray[np.int64], chunk_nbytes: int) -> None:
        task, sink, number = self._task, self._sink, program.target.field
        kernels.scatter_stack(
            address_of(dense),
            chunk_nbytes // program.leaf.stored_nbytes * program.leaf.nbytes,
            program.strides,
            program.all_segments,
            program.segment_edges,
            task.piece[chosen],
            task.low[chosen],
            task.high[chosen],
            task.placement.in_rows,
            task.placement.batch,
            task.placement.within,
            sink.slots,
            sink.format.offsets[number],
            sink.row_nbytes[number],
        )


class SideBySide:
    """Collects the decoded chunks of one task that lie side by side, and scatters them together.

    # Guarantees: used by one thread, for one task.
    """

    def __init__(self, program: Program, task: Task, sink: Sink, scratch: DecodeScratch) -> None:
        self._program, self._task, self._sink, self._scratch = program, task, sink, scratch
        leaf, index = program.leaf, task.part.index
        assert index is not None
        self._chunk_nbytes = math.prod(index.chunk_shape) * leaf.nbytes
        self._room = max(1, BESIDE_NBYTES // self._chunk_nbytes)
        self._held: list[int] = []

    @staticmethod
    def pays(programs: tuple[Program, ...]) -> bool:
        """Tell whether the chunks of a part are worth collecting: one field, in short runs across the row."""
        return len(programs) == 1 and any(programs[0].beside) and not any(programs[0].fused)

    def add(self, k: int, data: Bytes, shuffled: int) -> None:
        """Take in chunk `k`; scatters what was held if it does not go on there."""
        if self._held and not self._continues(k):
            self.flush()
        at = len(self._held) * self._chunk_nbytes
        region = self._scratch.buffer("beside", self._room * self._chunk_nbytes)
        dense_leaf(self._program, data, shuffled, self._scratch, region[at : at + self._chunk_nbytes])
        self._held.append(k)

    def _continues(self, k: int) -> bool:
        task, before = self._task, self._held[-1]
        piece = int(task.piece[k])
        return bool(
            len(self._held) < self._room
            and self._program.beside[piece]
            and task.piece[before] == piece - 1
            and task.low[before] == task.low[k]
        )

    def flush(self) -> None:
        """Scatter what is held."""
        held, self._held = self._held, []
        if not held:
            return
        task, sink, program = self._task, self._sink, self._program
        piece, number = int(task.piece[held[0]]), program.target.field
        low, high, placement = int(task.low[held[0]]), int(task.high[held[0]]), task.placement
        region = self._scratch.buffer("beside", self._room * self._chunk_nbytes)
        stride = task.part.pieces[piece].row_elements * program.leaf.nbytes
        runs = program.segments_nbytes[piece]
        if len(runs) != 1:
            whole = (address_of(region), stride, runs)
            kernels.scatter(
                *whole,
                placement.in_rows[low:high],
                placement.batch[low:high],
                placement.within[low:high],
                sink.slots,
                sink.format.offsets[number],
                sink.row_nbytes[number],
            )
            return
        from_row, into_row, count = runs[0].tolist()
        kernels.scatter_side_by_side(
            address_of(region) + from_row,
            self._chunk_nbytes,
            len(held),
            stride,
            into_row,
            count,
            placement.in_rows[low:high],
            placement.batch[low:high],
            placement.within[low:high],
            sink.slots,
            sink.format.offsets[number],
            sink.row_nbytes[number],
        )


def _inflatable(task: Task) -> tuple[NDArray[np.bool_], int] | None:
    """Tell which chunks of a task need inflating and nothing else, and the shuffle that is then still to be undone."""
    part, index = task.part, task.part.index
    assert index is not None
    alone, shuffled = part.pipeline.only_inflates(part.chunk_nbytes)
    if not alone or not len(index.numbers):
        return None
    # One that is as long as a decoded chunk may be an edge chunk that was left unfiltered.
    plausible = (task.nbytes != part.chunk_nbytes) & (task.nbytes <= most_nbytes(part.chunk_nbytes))
    return plausible & (task.place != MISSING) & (index.filter_mask[task.place] == 0), shuffled
