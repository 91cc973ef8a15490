"""Rows and where each goes: what an order hands to the engine, and how it is cut; pure.

This is the one place between order and plan. A sample that takes several rows of a dataset comes in here: a value that
stands beside `Placement` and has stretches (first row, rows, batch, place of the first) in place of single rows. What
carries batches out asks it for no more than `len`, `files_of` and `rows_of_batches`; a way of landing that copies
stretches is a file in `h5stream.engine.landing`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.order.epoch import Window
from h5stream.order.places import Places, is_ascending, less, narrowed, new_array, pieces, sought
from h5stream.storage.layout import DatasetPart, SampleLayout

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Some rows, and where each goes; 32-bit numbers where these are enough.

    Attributes
    ----------
    rows : ndarray of int32 or int64
        Row numbers of the whole sequence of rows, or of a chunk where one is cut into those.
    batch, within : ndarray of int32 or int64
        The batch of each, counted from the window's first, and its place there.
    """

    rows: Places
    batch: Places
    within: Places

    @classmethod
    def of(cls, window: Window, first_batch: int = 0) -> Placement:
        """Take over a window of an order, its batches counted from `first_batch`."""
        batch = less(window.batch, first_batch) if first_batch else narrowed(window.batch)
        return cls(rows=narrowed(window.rows), batch=batch, within=narrowed(window.within))

    @classmethod
    def from_first(cls, window: Window) -> tuple[int, Placement]:
        """Give a window's first batch, and the window with its batches counted from that one."""
        first = int(window.batch.min())
        return first, cls.of(window, first)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Any) -> Placement:
        return Placement(rows=self.rows[chosen], batch=self.batch[chosen], within=self.within[chosen])

    @property
    def first_batch(self) -> int:
        """The earliest batch, counted from the window's first, that any of the rows goes to."""
        return int(self.batch.min())

    def rows_of_batches(self) -> Ints:
        """Count the rows of each batch, piece by piece: `numpy.bincount` makes 64-bit numbers of all it is given."""
        counts = np.zeros(int(self.batch.max()) + 1, dtype=np.int64)
        for piece in pieces(len(self)):
            first = int(self.batch[piece].min())
            some = np.bincount(self.batch[piece] - first)
            counts[first : first + len(some)] += some
        return counts

    def files_of(self, layout: SampleLayout) -> tuple[int, ...]:
        """Give the files of a layout that any of the rows lies in."""
        return layout.files_of(self.rows)

    def ascending(self) -> Placement:
        """Give the same by ascending row, the order in which files like to be read."""
        return self if is_ascending(self.rows) else self[np.argsort(self.rows, kind="stable")]

    def of_parts(self, parts: tuple[DatasetPart, ...]) -> Iterator[tuple[int, Placement]]:
        """Give the number of each part that rows lie in, and those rows; they must be ascending."""
        if len(parts) == 1:
            yield 0, self
            return
        edges = sought(self.rows, [part.row_start for part in parts] + [parts[-1].row_start + parts[-1].rows])
        for number, (low, high) in enumerate(itertools.pairwise(edges.tolist())):
            if high > low:
                yield number, self[low:high]

    def in_steps(self, count: int) -> Iterator[Placement]:
        """Cut into so many rows each."""
        for low in range(0, len(self), count):
            yield self[low : low + count]

    def in_chunks(self, part: DatasetPart) -> tuple[Placement, Ints, Ints]:
        """Give ascending rows their numbers inside their chunks.

        Returns
        -------
        placement : Placement
            The same with each row's number inside its chunk.
        edges : ndarray of int64
            Where the rows of each chunk begin, and where the last ends.
        numbers : ndarray of int64
            The chunks, as numbers of rows of chunks: each holds all pieces across a row.
        """
        rows = self.rows
        in_rows = new_array(len(rows), rows.dtype)
        begins, numbers, before = [], [], -1
        chunk_rows = min(part.chunk_rows, int(np.iinfo(rows.dtype).max))
        for piece in pieces(len(rows)):
            local = rows[piece] - part.row_start
            chunk = local // chunk_rows
            np.subtract(local, chunk * chunk_rows, out=in_rows[piece])
            first = np.flatnonzero(np.diff(chunk, prepend=before))
            begins.append(first + piece.start)
            numbers.append(chunk[first].astype(np.int64))
            before = chunk[-1]
        edges = np.concatenate([*begins, [len(rows)]])
        return replace(self, rows=in_rows), edges, np.concatenate(numbers)


def cut_by(work: Ints, most: int) -> Iterator[slice]:
    """Cut neighbours wherever their work, such as bytes, adds up to `most`.

    Examples
    --------
    >>> list(cut_by(np.array([2, 2, 2]), 4))
    [slice(0, 2, None), slice(2, 3, None)]
    """
    share = (np.cumsum(work) - work) // most
    edges = np.concatenate([[0], np.flatnonzero(np.diff(share)) + 1, [len(work)]]).tolist()
    for start, stop in itertools.pairwise(edges):
        yield slice(start, stop)
