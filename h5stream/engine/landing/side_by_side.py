"""Chunks that lie side by side across the row are collected, and each cache line of a batch is visited once for all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h5stream.engine import kernels
from h5stream.engine.counters import clock
from h5stream.engine.landing.chunks import ChunkTask
from h5stream.engine.landing.programs import Program, dense_leaf
from h5stream.engine.slots import address_of
from h5stream.engine.tasks import Destination, Tools

Bytes = NDArray[np.uint8]

COLLECTED_NBYTES = 1024 * 1024
"""Decoded chunks that lie side by side are scattered together up to this many bytes: what a core's own cache holds."""


def lie_side_by_side(programs: tuple[Program, ...]) -> bool:
    """Tell whether the chunks of a part are worth collecting: one field, in short stretches across the row."""
    return len(programs) == 1 and any(programs[0].continues) and not any(programs[0].fused)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySideTask(ChunkTask):
    """Chunks of one dataset part, several of which make up a row."""

    def land(self, stored: Iterator[Bytes], destination: Destination, tools: Tools) -> None:
        """Decode one chunk after the other, and scatter neighbours together."""
        neighbours = _Neighbours(self, destination, tools)
        self.fill_missing(destination, tools)
        for k, data, shuffled, since in self.decoded(stored, tools):
            neighbours.add(k, data, shuffled)
            tools.tally.scattered(since)
        since = clock()
        neighbours.scatter()
        tools.tally.scattered(since)


class _Neighbours:
    """Decoded chunks of one task that go on where the one before ends, until they are scattered together."""

    def __init__(self, task: SideBySideTask, destination: Destination, tools: Tools) -> None:
        self._task, self._destination, self._scratch = task, destination, tools.scratch
        (self._program,) = task.programs
        index = task.part.chunk_index
        self._chunk_nbytes = math.prod(index.chunk_shape) * self._program.leaf.nbytes
        self._room = max(1, COLLECTED_NBYTES // self._chunk_nbytes)
        self._held: list[int] = []

    @property
    def _region(self) -> Bytes:
        return self._scratch.buffer("side by side", self._room * self._chunk_nbytes)

    def add(self, k: int, data: Bytes, shuffled: int) -> None:
        """Take in chunk `k`; scatters what was held if it does not go on there."""
        if self._held and not self._continues(k):
            self.scatter()
        at = len(self._held) * self._chunk_nbytes
        dense_leaf(self._program, data, shuffled, self._scratch, self._region[at : at + self._chunk_nbytes])
        self._held.append(k)

    def _continues(self, k: int) -> bool:
        task, before = self._task, self._held[-1]
        piece = int(task.piece[k])
        return bool(
            len(self._held) < self._room
            and self._program.continues[piece]
            and task.piece[before] == piece - 1
            and task.low[before] == task.low[k]
        )

    def scatter(self) -> None:
        """Scatter what is held."""
        held, self._held = self._held, []
        if not held:
            return
        program, piece = self._program, int(self._task.piece[held[0]])
        to = self._destination.of(program.field, self._task.rows_of(held[0]).each_row())
        source, stride, segments = address_of(self._region), int(program.strides[piece]), program.segments_nbytes[piece]
        if len(segments) != 1:
            kernels.scatter(source, stride, segments, *to)
            return
        from_row, into_row, count = segments[0].tolist()
        kernels.scatter_side_by_side(source + from_row, self._chunk_nbytes, len(held), stride, into_row, count, *to)
