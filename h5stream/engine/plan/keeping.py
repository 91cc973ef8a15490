"""Chunks that are decoded whole for the first time, so that all of their rows stay in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from h5stream.engine.plan.failing import chunk_by_chunk
from h5stream.engine.plan.tasks import TASK_NBYTES, Destination, Ints, Placement, Task, Tools
from h5stream.storage.layout.parts import DatasetPart


class Keeping:
    """Memory for all rows of the first chunks of a dataset part, and which of them are there.

    # Guarantees: any thread may bring chunks and say that they are there; who brings one writes the bytes that any
    other would write.
    """

    def __init__(
        self,
        part: DatasetPart,
        destination: Destination,
        filled: NDArray[np.bool_],
        copy: Callable[[Placement, Destination, Tools], None],
    ) -> None:
        self.part, self.filled = part, filled
        self.destination = destination  # a batch that has all rows, each at the place of its number
        self._copy = copy  # copies rows that are there to their places
        # Of rows that are cut into several pieces, each of which lies in a chunk of its own: those that are there.
        self._pieces = np.zeros((len(filled), len(part.pieces)), dtype=np.bool_)

    def rows_of(self, chunks: Ints) -> tuple[Ints, Ints]:
        """Return the first row of each chunk, and how many it has; none of those that there is no room for."""
        part, counts = self.part, self.part.rows_of_chunks(chunks)
        return part.row_start + chunks * part.chunk_rows, np.where(chunks < len(self.filled), counts, 0)

    def note(self, chunks: Ints, pieces: Ints) -> None:
        """Say that pieces of some chunks are there."""
        inside = chunks < len(self.filled)
        chunks, pieces = chunks[inside], pieces[inside]
        self._pieces[chunks, pieces] = True
        self.filled[chunks] = self._pieces[chunks].all(axis=1)

    def tasks(
        self,
        read: Callable[[Placement, Destination, Tools], None],
        placement: Placement,
        edges: Ints,
        chunks: Ints,
        missing: NDArray[np.bool_],
    ) -> Iterator[Task]:
        """Plan what reads all of the missing chunks, a few in each task, and copies the wanted rows from memory."""
        at_once = max(1, TASK_NBYTES // max(1, self.part.chunk_rows * self.part.stored_row_nbytes))
        wanted = np.flatnonzero(missing & (chunks < len(self.filled)))
        behind = np.flatnonzero(missing & (chunks >= len(self.filled)))
        for low in range(0, len(wanted), at_once):
            yield self._task(read, placement, edges, chunks, wanted[low : low + at_once])
        if len(behind):
            yield Task(
                shared=_of_chunks(placement, edges, behind),
                bring=read,
                apart=functools.partial(chunk_by_chunk, part=self.part),
            )

    def _task(
        self,
        read: Callable[[Placement, Destination, Tools], None],
        placement: Placement,
        edges: Ints,
        chunks: Ints,
        wanted: Ints,
    ) -> Task:
        present = chunks[wanted]

        def bring(placement: Placement, destination: Destination, tools: Tools) -> None:
            if not self.filled[present].all():
                read(Placement.by_number(*self.rows_of(present)).each_row(), self.destination, tools)
            if len(destination.slots):
                self._copy(placement, destination, tools)

        def apart(task: Task) -> Iterator[Task]:
            """Return tasks that keep nothing: one for each chunk."""
            yield from chunk_by_chunk(Task(shared=task.shared, bring=read), self.part)

        def note(_: int | None) -> None:
            for piece in range(self._pieces.shape[1]):
                self.note(present, np.full(len(present), piece))

        return Task(shared=_of_chunks(placement, edges, wanted), bring=bring, apart=apart, kept=note)


def _of_chunks(placement: Placement, edges: Ints, wanted: Ints) -> Placement:
    """Return the rows of some chunks, where those of each begin and end at two of the edges."""
    low, high = edges[:-1][wanted], edges[1:][wanted]
    if (low[1:] == high[:-1]).all():
        return placement[int(low[0]) : int(high[-1])]
    return placement[np.concatenate([np.arange(*each) for each in zip(low.tolist(), high.tolist(), strict=True)])]
