"""Which chunks a window needs, in which order they are read, and where each of their rows lands: pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine.footprint import TASK_NBYTES
from h5stream.order.epoch import Window
from h5stream.order.places import Places, is_ascending, less, narrowed, new_array, pieces, sought
from h5stream.storage.index import MISSING
from h5stream.storage.layout import DECODED, DIRECT, DatasetPart

MAX_GAP_NBYTES = 4 * 1024
"""Bytes between two chunks that are read along rather than skipped: less than another system call costs. A page,
so that small chunks that lie scattered do not drag the whole file in."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the rows of a dataset part go; shared by all its tasks in a window.

    Attributes
    ----------
    in_rows : ndarray of int32, or of int64 where that is too small
        Each row's place inside its chunk.
    batch, within : ndarray of int32 or int64
        Its batch, counted from the window's first, and its place there.
    """

    in_rows: Places
    batch: Places
    within: Places


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Some chunks of one dataset part, neighbours in the file, read and scattered by one thread.

    Attributes
    ----------
    part : DatasetPart
        The dataset.
    placement : Placement
        Where its rows go.
    number, piece, place : ndarray of int64, shape (n,)
        For each chunk: its number, its place across the row (in ``part.pieces``), its place in the index
        (`MISSING` for the fill value, and always where h5py reads).
    low, high : ndarray of int64, shape (n,)
        Its rows, as a range in the placement's arrays.
    offset, nbytes : ndarray of int64, shape (n,)
        What to read for it.
    first_row : ndarray of int64, shape (n,)
        The row of the chunk that the bytes begin with; 0 unless unfiltered data is read in part.
    run : ndarray of int64
        Edges of the groups of chunks that one read fetches.
    """

    part: DatasetPart
    placement: Placement
    number: Ints
    piece: Ints
    place: Ints
    low: Ints
    high: Ints
    offset: Ints
    nbytes: Ints
    first_row: Ints
    run: Ints

    @property
    def first_batch(self) -> int:
        """The earliest batch, counted from the window's first, that needs this task."""
        ranges = zip(self.low.tolist(), self.high.tolist(), strict=True)
        return min(int(self.placement.batch[low:high].min()) for low, high in ranges)

    def split(self) -> Iterator[Task]:
        """Give one task for each chunk."""
        for k in range(len(self.number)):
            names = ("number", "piece", "place", "low", "high", "offset", "nbytes", "first_row")
            one = {name: getattr(self, name)[k : k + 1] for name in names}
            yield replace(self, run=np.array([0, 1], dtype=np.int64), **one)


def counted_from(window: Window, first_batch: int) -> Window:
    """Give a window with its batches counted from `first_batch`, all of it in 32-bit numbers where these are enough."""
    batch = less(window.batch, first_batch) if first_batch else narrowed(window.batch)
    return Window(rows=narrowed(window.rows), batch=batch, within=narrowed(window.within))


def plan_window(
    datasets: tuple[tuple[DatasetPart, ...], ...],
    window: Window,
    *,
    first_batch: int,
    task_nbytes: int = TASK_NBYTES,
    unfiltered: Callable[[DatasetPart, Window, int], Iterable[Any]] | None = None,
) -> list[Any]:
    """Plan the reads of a window.

    Parameters
    ----------
    datasets : tuple of tuple of DatasetPart
        The datasets to read, each with its parts.
    window : Window
        The rows.
    first_batch : int
        The window's first batch; the tasks count from it.
    task_nbytes : int
        Decoded bytes of one task.
    unfiltered : callable, optional
        Plans the rows of a part that nothing has to be decoded of, given the number of bytes of a task; such parts
        are planned like the others without it.

    Returns
    -------
    list of Task
        And of what `unfiltered` gave, in the order of the files' bytes, datasets taking turns.
    """
    window = counted_from(window, first_batch)
    if not is_ascending(window.rows):
        by_row = np.argsort(window.rows, kind="stable")
        window = Window(rows=window.rows[by_row], batch=window.batch[by_row], within=window.within[by_row])
    tasks: list[Any] = []
    for parts in datasets:
        for part, low, high in rows_of_parts(parts, window.rows):
            if not part.pieces:
                continue  # rows without elements
            ours = Window(rows=window.rows[low:high], batch=window.batch[low:high], within=window.within[low:high])
            if unfiltered is not None and part.access == DIRECT:
                tasks += unfiltered(part, ours, task_nbytes)
            else:
                tasks += _plan_part(part, ours.rows, ours.batch, ours.within, task_nbytes)
    return tasks


def rows_of_parts(parts: tuple[DatasetPart, ...], rows: Places) -> Iterator[tuple[DatasetPart, int, int]]:
    """Give the parts that rows, ascending, lie in, and where in them each part's begin and end."""
    if len(parts) == 1:
        yield parts[0], 0, len(rows)
        return
    edges = sought(rows, [part.row_start for part in parts] + [parts[-1].row_start + parts[-1].rows])
    for part, low, high in zip(parts, edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if high > low:
            yield part, low, high


def _plan_part(part: DatasetPart, rows: Places, batch: Places, within: Places, task_nbytes: int) -> list[Task]:
    in_rows, edges, rows_of_chunks = _chunks_of(part, rows)
    placement = Placement(in_rows=in_rows, batch=batch, within=within)
    low, high = edges[:-1], edges[1:]
    # Every row of chunks crosses the same pieces: one column of this table each.
    table = _address(part, rows_of_chunks, in_rows[low].astype(np.int64), in_rows[high - 1].astype(np.int64))
    count = len(part.pieces)
    table["low"], table["high"] = np.repeat(low, count), np.repeat(high, count)
    by_offset = np.argsort(table["offset"], kind="stable")
    table = {key: values[by_offset] for key, values in table.items()}
    work = np.maximum(table["nbytes"], part.chunk_nbytes if part.access == DECODED else 1)
    # A gap that is read along costs as well: without it a task of tiny chunks could span gigabytes of the file.
    gap = _gaps(table["offset"], table["nbytes"])
    work[1:] += np.where((gap > 0) & (gap <= MAX_GAP_NBYTES), gap, 0)
    return [
        Task(part=part, placement=placement, run=_runs(cut["offset"], cut["nbytes"]), **cut)
        for cut in _cuts(table, work, task_nbytes)
    ]


def _chunks_of(part: DatasetPart, rows: Places) -> tuple[Places, Ints, Ints]:
    """Give each row's place in its chunk, where among the rows the chunks begin and the last ends, and their numbers.

    Numbers of chunks are those of rows of chunks: each holds all pieces across a row.
    """
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
    return in_rows, np.concatenate([*begins, [len(rows)]]), np.concatenate(numbers)


def _address(part: DatasetPart, chunks: Ints, first_row: Ints, last_row: Ints) -> dict[str, Ints]:
    """Find what to read for each piece of each row of chunks."""
    count = len(part.pieces)
    piece = np.tile(np.arange(count, dtype=np.int64), len(chunks))
    chunks, first_row, last_row = (np.repeat(a, count) for a in (chunks, first_row, last_row))
    index = part.index
    if index is None:
        row_nbytes = part.stored_row_nbytes
        return {
            "number": chunks,
            "piece": piece,
            "place": np.full(len(chunks), MISSING, dtype=np.int64),
            "offset": chunks * (part.chunk_rows * row_nbytes),
            "nbytes": (last_row - first_row + 1) * row_nbytes,
            "first_row": first_row,
        }
    numbers = chunks * index.columns + np.array([p.number for p in part.pieces], dtype=np.int64)[piece]
    place = index.find(numbers)
    stored = place != MISSING
    offset, nbytes = np.full(len(place), MISSING), np.zeros(len(place), dtype=np.int64)
    offset[stored], nbytes[stored] = index.offset[place[stored]], index.nbytes[place[stored]]
    begin = np.zeros(len(place), dtype=np.int64)
    if part.access == DIRECT:  # without filters only the rows that are wanted need be read
        stride = np.array([p.row_elements for p in part.pieces], dtype=np.int64)[piece] * part.stored_element_nbytes
        begin = np.where(stored, first_row, 0)
        nbytes = np.where(stored, (last_row - first_row + 1) * stride, 0)
        offset = np.where(stored, offset + first_row * stride, MISSING)
    return {
        "number": numbers,
        "piece": piece,
        "place": place,
        "offset": offset,
        "nbytes": nbytes,
        "first_row": begin,
    }


def _cuts(table: dict[str, Ints], work: Ints, task_nbytes: int) -> Iterator[dict[str, Ints]]:
    share = (np.cumsum(work) - work) // task_nbytes
    edges = np.concatenate([[0], np.flatnonzero(np.diff(share)) + 1, [len(work)]]).tolist()
    for start, stop in itertools.pairwise(edges):
        yield {key: values[start:stop] for key, values in table.items()}


def _gaps(offset: Ints, nbytes: Ints) -> Ints:
    """Give the bytes between each chunk and the next, -1 after one that has none in the file."""
    return np.where(offset[:-1] == MISSING, -1, offset[1:] - (offset[:-1] + nbytes[:-1]))


def _runs(offset: Ints, nbytes: Ints) -> Ints:
    """Group chunks that lie close together, so that one read fetches them."""
    gap = _gaps(offset, nbytes)
    apart = (gap < 0) | (gap > MAX_GAP_NBYTES)
    return np.concatenate([[0], np.flatnonzero(apart) + 1, [len(offset)]])
