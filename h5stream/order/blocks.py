"""Blocks: runs of consecutive rows that are read together, chosen from the layout alone, so equal on all ranks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h5stream.base.texts import check_holds, check_ordered
from h5stream.errors import OptionError
from h5stream.order.places import Places, is_ascending, new_array, pieces, place_dtype
from h5stream.samples.lookup import Lookup
from h5stream.samples.segments import Ints, as_array
from h5stream.samples.space import Grid, Space, scaled
from h5stream.storage.layout.access import DECODED, DIRECT, HEAP, RowsOfObjects
from h5stream.storage.layout.layout import SampleLayout
from h5stream.storage.layout.parts import BLOCK_NBYTES, DatasetPart

_MAX_BLOCKS = 1 << 26

WHOLE_NBYTES = 1024 * 1024
"""Larger chunks that need no decoding are cut into blocks of about `BLOCK_NBYTES`."""

SMALL_NBYTES = 8 * 1024 * 1024
"""Datasets up to this size, such as labels, are kept in memory; they do not prevent cutting the chunks of others."""

SEQUENCES_NBYTES = 16 * 1024 * 1024
"""Maximum bytes of the sequences in a block of several chunks."""

MOST_LISTED = 1 << 20
"""Limit on the blocks of an unshuffled epoch over a grid, and on the stretches of unfiltered data along an axis; above
it, blocks get larger."""

BOXES_IN_BLOCK = 4
"""Neighbouring boxes per block of unfiltered data along an axis. Data at the edges of a block is read for both
neighbours: a fifth at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The blocks of a sequence of rows, in file order.

    Attributes
    ----------
    edges : ndarray of int64, shape (blocks + 1,)
        Block ``k`` holds the places ``edges[k]`` to ``edges[k + 1]`` of the selected rows; none is empty.
    rows : ndarray of int or None
        The selected rows, ascending, or as the user lists them for an epoch that is not shuffled; a row that is
        selected several times has several places. None where all rows are selected, and a row is its place.
    lengths : ndarray of int64 or None
        The length of each place if batches are cut by it: the rows that the sample has of a ragged field.
    strata : ndarray of int64 or None
        The source of each block if every window contains a share of each source.
    first, every : ndarray of int64 or None
        Set if blocks are *turns* of others: each holds places from ``first`` on at a distance of ``every``, and edges
        only count them.
    count : int
        The number of blocks.
    total_rows : int
        The number of rows in all blocks.
    """

    edges: NDArray[np.int64]
    rows: Places | None = None
    lengths: NDArray[np.int64] | None = None
    strata: NDArray[np.int64] | None = None
    first: NDArray[np.int64] | None = None
    every: NDArray[np.int64] | None = None
    count: int = field(init=False, repr=False)
    total_rows: int = field(init=False, repr=False)
    _largest: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", len(self.edges) - 1)
        object.__setattr__(self, "total_rows", int(self.edges[-1]))
        if self.rows is not None:  # a user's own order may name any of them
            object.__setattr__(self, "_largest", int(self.rows.max(initial=0)))

    def rows_at(self, places: Places) -> Places:
        """Look up the rows at places of the selection.

        Parameters
        ----------
        places : ndarray of int
            Places, each from 0 to less than `total_rows`.

        Returns
        -------
        ndarray of int
            The row of the files at each of them.
        """
        if self.rows is None:
            return places
        rows = new_array(len(places), place_dtype(self._largest + 1))
        for piece in pieces(len(places)):
            rows[piece] = self.rows[places[piece]]
        return rows


Stretch = tuple[Ints, Places | None]
"""Consecutive blocks to send to another process: their edges, and their rows; None for all rows between the edges."""


def stretches(blocks: Blocks, count: int) -> list[Stretch]:
    """Cut blocks into at most `count` stretches of about equal numbers of rows."""
    ends = np.searchsorted(blocks.edges, blocks.total_rows * np.arange(1, count) // count)
    cuts = np.unique([0, *ends, blocks.count]).tolist()
    edges = [blocks.edges[first : last + 1] for first, last in itertools.pairwise(cuts)]
    return [(bounds, None if blocks.rows is None else blocks.rows[bounds[0] : bounds[-1]]) for bounds in edges]


def blocks_in(stretch: Stretch) -> Blocks:
    """Return the blocks of a stretch."""
    edges, rows = stretch
    if rows is None and edges[0]:
        rows = np.arange(edges[0], edges[-1])
    return Blocks(edges=edges - edges[0], rows=rows)


def make_blocks(file_starts: tuple[int, ...], block_rows: tuple[int, ...], rows: Ints | None = None) -> Blocks:
    """Cut each file's rows into blocks; a block never crosses from one file into the next."""
    starts, sizes = np.array(file_starts, dtype=np.int64), np.array(block_rows, dtype=np.int64)
    counts = -(-np.diff(starts) // sizes)
    if (count := int(counts.sum())) > _MAX_BLOCKS:
        raise OptionError(
            f"the rows make {count:,} blocks, more than {_MAX_BLOCKS:,}: take some by rows=, or store larger chunks"
        )
    before = np.cumsum(counts) - counts  # blocks of the files before each
    begins = np.repeat(starts[:-1] - before * sizes, counts) + np.arange(count) * np.repeat(sizes, counts)
    edges = np.append(begins, file_starts[-1])
    return Blocks(edges=edges if rows is None else np.unique(np.searchsorted(rows, edges)), rows=rows)


def blocks_by(keys: Ints, rows: Ints | None = None, begins: Ints | None = None) -> Blocks:
    """Group rows, or samples, by a key each: the chunk that they begin in or look up."""
    begins = keys if begins is None else begins
    if not is_ascending(begins):
        by_key = np.argsort(begins, kind="stable")
        keys, rows = keys[by_key], by_key if rows is None else rows[by_key]
    edges = np.flatnonzero(np.diff(keys)) + 1
    return Blocks(edges=np.concatenate([[0], edges, [len(keys)]]), rows=rows)


def block_numbers(file_starts: tuple[int, ...], block_rows: ArrayLike, rows: Ints) -> Ints:
    """Return the block number of each row; see `make_blocks`."""
    starts, sizes = np.array(file_starts[:-1]), np.asarray(block_rows)
    counts = -(-np.diff(file_starts) // sizes)
    file = np.searchsorted(starts, rows, side="right") - 1
    numbers: Ints = (np.cumsum(counts) - counts)[file] + (rows - starts[file]) // sizes[file]
    return numbers


def listed_blocks(rows: Ints, block_rows: int) -> Blocks:
    """Cut rows in a user's order into stretches for an epoch without shuffling."""
    return Blocks(edges=np.append(np.arange(0, len(rows), block_rows, dtype=np.int64), len(rows)), rows=rows)


def select_rows(selection: object, total: int) -> Ints | None:
    """Turn indices or a boolean mask into ascending row numbers."""
    if selection is None:
        return None
    rows = row_numbers(selection, total)
    if not is_ascending(rows):
        rows.sort()
    for piece in pieces(len(rows) - 1):
        after = rows[piece.start + 1 : piece.stop + 1]
        if len(twice := after[after == rows[piece]]):
            raise OptionError(
                f"the selection names row {twice[0]} more than once; only a torch.utils.data.Subset may repeat rows"
            )
    return rows


def numbers(index: object, count: int, *, axis: int) -> Ints:
    """Return the indices that a slice, a list, an array or a mask selects on an axis of `count` places, unchecked."""
    check_ordered("an index", index)
    what = "rows are" if axis == 0 else f"places on axis {axis} are"
    if isinstance(index, slice):
        return np.arange(*index.indices(count), dtype=np.int64)
    try:
        chosen = as_array(index)
    except OptionError as error:
        raise OptionError(f"{what} named by integers, a slice or a mask, not {index!r:.200}: {error}") from None
    if chosen.dtype == bool:
        if chosen.shape != (count,):
            unit, units = ("row", "rows") if axis == 0 else (f"place on axis {axis}", "places")
            raise OptionError(f"a mask needs one value a {unit}: {count:,} {units}, shape {chosen.shape}")
        return np.flatnonzero(chosen)
    if chosen.ndim != 1 or (len(chosen) and not np.issubdtype(chosen.dtype, np.integer)):
        shown = f"{chosen.dtype} of shape {chosen.shape}" if chosen.ndim else repr(index)
        raise OptionError(f"{what} named by integers, a slice or a mask, not {shown}; a list has one axis: reshape(-1)")
    if chosen.dtype == np.uint64 and len(chosen):
        check_holds("an index", int(chosen.max()))
    return chosen.astype(np.int64)


def row_numbers(selection: object, total: int) -> Ints:
    """Turn indices, a slice or a boolean mask into row numbers, keeping their order and repetitions."""
    check_ordered("the selection of rows", selection)
    chosen = selection
    if not isinstance(selection, slice):
        array = as_array(selection)
        chosen = array if array.dtype == bool else array.reshape(-1)
    rows = numbers(chosen, total, axis=0)
    if len(rows) == 0:
        raise OptionError("the selection names no rows")
    if rows.min() < -total or rows.max() >= total:
        wrong = rows[(rows < -total) | (rows >= total)]
        raise OptionError(f"the selection names row {wrong[0]}, but there are {total:,} rows, 0 to {total - 1:,}")
    rows[rows < 0] += total
    return rows


# --- blocks of a layout: which rows, or samples, lie in one chunk ---------------------------------------


def blocks_of(layout: SampleLayout, rows: Ints | None) -> Blocks:
    """Cut samples into blocks by the chunks of their own rows, ignoring lookups."""
    if layout.space is None:
        return make_blocks(layout.file_starts, block_rows(layout), rows)
    if rows is None and isinstance(layout.space.starts, Grid) and layout.space.volumes.shape[1] == 1:
        edges = _edges_of_boxes(layout, layout.space) if layout.has_boxes else _edges_of_grid(layout, layout.space)
        if edges is not None:
            return Blocks(edges=np.unique(np.append(edges, layout.samples)))
    numbers = np.arange(layout.samples) if rows is None else rows
    if layout.has_boxes:
        return blocks_by(_chunks_of_boxes(layout, layout.space, numbers), rows)
    anchors = layout.space.anchors_of(numbers)
    return blocks_by(block_numbers(layout.file_starts, block_rows(layout), anchors), rows, anchors)


def _edges_of_grid(layout: SampleLayout, space: Space) -> Ints | None:
    """Compute the block edges of samples on a regular grid; None if there would be more blocks than samples."""
    sizes = block_rows(layout)
    if sum(-(-part.rows // size) for part, size in zip(layout.leading, sizes, strict=True)) > space.samples:
        return None
    return space.number_at(make_blocks(layout.file_starts, sizes).edges[:-1])


def _edges_of_boxes(layout: SampleLayout, space: Space) -> Ints | None:
    """Compute the block edges of boxes that move along one axis of the volumes; None if they move along several."""
    assert isinstance(space.starts, Grid)
    moving = [axis for axis, along in enumerate(layout.leading[0].along) if along.origin is not None]
    if len(moving) != 1:
        return None
    (elements, sizes), scale = _chunks_along(layout, moving[0]), layout.leading[0].along[moving[0]].scale
    counts = -(-elements // sizes)
    if (total := int(counts.sum())) > space.samples:
        return None
    volume = np.repeat(np.arange(len(counts)), counts)
    chunk = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return space.starts.before(volume, np.where(chunk > 0, -scaled(-chunk * sizes[volume], 1 / scale), 0))


def shuffled_blocks(layout: SampleLayout, rows: Ints | None) -> Blocks:
    """Cut samples into blocks for shuffling: by the chunks they look up, if these dominate their bytes."""
    if rows is not None and not is_ascending(rows):
        rows = np.sort(rows)
    chunks = looked_up_chunks(layout) if layout.lookups else None
    if chunks is None:
        return blocks_of(layout, rows)
    if layout.space is None and len(layout.file_starts) > 2:
        # Rows of a block that follow one another are read as one span, which must lie in one file.
        file = np.searchsorted(layout.file_starts[1:-1], np.arange(len(chunks)), side="right")
        chunks = chunks * (len(layout.file_starts) - 1) + file
    return blocks_by(chunks if rows is None else chunks[rows], rows)


def epoch_blocks(layout: SampleLayout, rows: Ints | None, *, shuffle: bool, is_drawn: bool) -> Blocks:
    """Cut the samples of an epoch into blocks: shuffled, in file order, or in the order listed."""
    if shuffle:
        return shuffled_blocks(layout, rows)
    space = layout.space
    in_order = space is None or (space.edges is not None and (is_drawn or space.is_ascending))
    if in_order and (rows is None or is_ascending(rows)):
        return blocks_of(layout, rows)
    if rows is None and space is not None and isinstance(space.starts, Grid):
        step = -(-space.samples // MOST_LISTED)
        edges = np.arange(0, space.samples, step, dtype=np.int64)
        return Blocks(edges=np.unique(np.concatenate([edges, space.starts.ends])))
    return listed_blocks(np.arange(layout.samples) if rows is None else rows, max(block_rows(layout)))


def longest_block(layout: SampleLayout) -> int:
    """Return the number of rows in the longest block."""
    chunks = looked_up_chunks(layout) if layout.lookups else None
    return max(block_rows(layout)) if chunks is None else int(np.bincount(chunks).max())


def block_rows(layout: SampleLayout) -> tuple[int, ...]:
    """Return the rows per block for each file: a chunk of the lead, or a part of one that needs no decoding."""
    if layout.has_boxes:
        return (1,) * len(layout.leading)
    sizes = []
    for number, lead in enumerate(layout.leading):
        if lead.objects is not None:
            sizes.append(max(1, min(lead.rows, BLOCK_NBYTES // max(1, lead.stored_row_nbytes))))
            continue
        is_whole = False
        for parts in layout.aligned:
            is_whole = is_whole or _is_decoded(layout, parts, number)
        rows = lead.chunk_rows if is_whole else _cut_rows(lead, 0 if layout.segments is None else layout.row_nbytes)
        sizes.append(rows if layout.segments is None else rows * _chunks_of_sequences(layout, lead))
    return tuple(sizes)


def most_blocks(layout: SampleLayout) -> int:
    """Return an upper bound for the number of blocks."""
    blocks = 0
    for part, rows in zip(layout.leading, block_rows(layout), strict=True):
        blocks += -(-part.rows // rows)
    if not layout.has_boxes:
        return blocks
    moving = [axis for axis, along in enumerate(layout.leading[0].along) if along.origin is not None]
    if len(moving) != 1:
        return blocks
    elements, sizes = _chunks_along(layout, moving[0])
    return min(blocks, layout.samples, int((-(-elements // sizes)).sum()))


def _cut_rows(part: DatasetPart, sample_nbytes: int = 0) -> int:
    """Return the rows of a chunk, or of a part of a large chunk that needs no decoding, which mixes better.

    A chunk also counts as large if the samples of `sample_nbytes` that begin in each of its rows are large together.
    """
    nbytes = max(part.chunk_nbytes, part.chunk_rows * sample_nbytes)
    cut = part.access in (DIRECT, HEAP) and nbytes > WHOLE_NBYTES
    return max(1, -(-part.chunk_rows // (-(-nbytes // BLOCK_NBYTES) if cut else 1)))


def _chunks_of_sequences(layout: SampleLayout, lead: DatasetPart) -> int:
    """Return the number of chunks in a block of sequences: chunks at its edges are also decoded for its neighbours.

    Enough for the rows that a sequence spans, so that a chunk is decoded twice an epoch and not once per chunk of the
    sequence; fewer if sequences are large, since a window holds many blocks.
    """
    steps = layout.fields[lead.targets[0].field].take.steps if lead.targets else None
    if steps is None or lead.access == DIRECT:
        return 1
    wanted = -(-(max(steps) - min(steps) + 1) // lead.chunk_rows)
    return max(1, min(wanted, SEQUENCES_NBYTES // max(1, layout.row_nbytes * lead.chunk_rows)))


def _is_decoded(layout: SampleLayout, parts: tuple[DatasetPart, ...], number: int) -> bool:
    """Return whether reading rows of a file decodes chunks of a dataset that is too large to keep in memory."""
    if parts[number].access in (DIRECT, HEAP):
        return False
    row_nbytes = 0
    for target in parts[0].targets:
        row_nbytes += layout.fields[target.field].placed_nbytes
    return row_nbytes == 0 or layout.rows * row_nbytes > SMALL_NBYTES


def looked_up_chunks(layout: SampleLayout) -> Ints | None:
    """Return the chunk that each sample looks up in every epoch; None unless a lookup outweighs a sample's own rows."""
    stay = [one for one in layout.lookups if one.draw is None]
    lead = max(stay, key=lambda one: _mean_nbytes(layout, one), default=None)
    if lead is None or (mean_nbytes := _mean_nbytes(layout, lead)) <= layout.leading[0].stored_row_nbytes:
        return None
    parts, rows = layout.datasets[lead.dataset], lead.first_rows
    chunk_rows = np.array([part.chunk_rows if part.heap is None else _cut_rows(part) for part in parts])
    if layout.ragged and all(part.access == DIRECT for parts in layout.datasets for part in parts):
        # Nothing is decoded: blocks of as many bytes of samples as a chunk has, with those of the other fields.
        share = mean_nbytes / max(1, layout.row_nbytes)
        chunk_rows = np.maximum(1, (chunk_rows * min(1.0, share)).astype(np.int64))
    elif mean_nbytes > parts[0].stored_row_nbytes and parts[0].access == DECODED:
        # Samples of many rows cross the edges of chunks; a chunk that a block's edge cuts is decoded twice.
        sizes = [max(1, part.chunk_nbytes) for part in parts]
        chunk_rows *= np.array([max(1, BLOCK_NBYTES // n, min(4, 4 * WHOLE_NBYTES // n)) for n in sizes])
    starts = (*(part.row_start for part in parts), parts[-1].row_start + parts[-1].rows)
    if any(isinstance(one.objects, RowsOfObjects) for one in parts):
        part = np.searchsorted(starts[:-1], rows, side="right") - 1  # an empty object may begin where the last ends
        return _blocks_of_objects(parts, part, rows - np.array(starts)[part])
    return block_numbers(starts, chunk_rows, rows)


def _mean_nbytes(layout: SampleLayout, one: Lookup) -> float:
    part = layout.datasets[one.dataset][0]
    are_rows = part.heap is None or layout.fields[part.targets[0].field].is_listed
    return part.stored_row_nbytes * (one.mean_rows if are_rows else 1.0)


def _blocks_of_objects(parts: tuple[DatasetPart, ...], part: Ints, rows: Ints) -> Ints:
    """Return a number for the stretch of the file that each object begins in, by its part and its first row in it."""
    place = np.zeros(len(rows), dtype=np.int64)
    for number, one in enumerate(parts):
        members = np.flatnonzero(part == number)
        if one.index is None or not len(one.index.numbers):
            continue
        chunk = rows[members] // one.chunk_rows * one.index.columns
        stored = np.minimum(np.searchsorted(one.index.numbers, chunk), len(one.index.numbers) - 1)
        place[members] = one.index.offset[stored] // BLOCK_NBYTES
    files = np.array([one.file for one in parts])[part]
    _, numbers = np.unique(np.stack([files, place]), axis=1, return_inverse=True)
    return np.asarray(numbers, dtype=np.int64).reshape(-1)


def _chunks_of_boxes(layout: SampleLayout, space: Space, boxes: Ints) -> Ints:
    """Return a number for the chunk that each box begins in, ascending by volume and place."""
    volume, origins = space.boxes_of(boxes)
    key = volume.copy()
    for axis, along in enumerate(layout.leading[0].along):
        if along.origin is not None:
            elements, sizes = _chunks_along(layout, axis)
            key = key * int((-(-elements // sizes)).max()) + np.clip(along.begins(origins), 0, None) // sizes[volume]
    return key


def _chunks_along(layout: SampleLayout, axis: int) -> tuple[Ints, Ints]:
    """Return the elements of each volume along an axis of the lead, and the elements that are read together."""
    along = layout.leading[0].along[axis]
    elements = np.array([part.shape[axis] for part in layout.leading])
    sizes = np.array([part.grid_shape[axis] for part in layout.leading])
    unfiltered = np.array([part.access == DIRECT for part in layout.leading])
    few = max(BOXES_IN_BLOCK * along.span, -(-int(elements.sum()) // MOST_LISTED))
    return elements, np.where(unfiltered, np.minimum(sizes, few), sizes)
