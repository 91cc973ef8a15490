"""Blocks of a layout: which rows, or samples, lie in one chunk, and so are read together.

All of it depends on the layout alone, so that all ranks and threads cut alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.order.blocks import Blocks, block_numbers, blocks_by, make_blocks
from h5stream.samples.space import Space
from h5stream.storage.layout import BLOCK_NBYTES, DECODED, DIRECT, HEAP, DatasetPart, Lookup, SampleLayout

WHOLE_NBYTES = 1024 * 1024
"""Chunks of more bytes that nothing has to be decoded of are cut into blocks of at most about `BLOCK_NBYTES`."""

SMALL_NBYTES = 8 * 1024 * 1024
"""A dataset of no more bytes, such as labels, does not keep others' chunks from being cut: it is kept in memory."""

SEQUENCES_NBYTES = 16 * 1024 * 1024
"""Bytes of the sequences of a block of several chunks, at most."""

BOXES_IN_BLOCK = 4
"""Boxes side by side that a block of unfiltered data has along an axis: what lies at its edges, a fifth at most, is
read for both neighbours."""


def blocks_of(layout: SampleLayout, rows: NDArray[np.int64] | None) -> Blocks:
    """Cut samples into blocks by where their own rows lie, whatever they look up."""
    if layout.space is None:
        return make_blocks(layout.file_starts, block_rows(layout), rows)
    numbers = np.arange(layout.samples) if rows is None else rows
    if layout.has_boxes:
        return blocks_by(_chunks_of_boxes(layout, layout.space, numbers), rows)
    anchors = layout.space.anchors_of(numbers)
    return blocks_by(block_numbers(layout.file_starts, block_rows(layout), anchors), rows, anchors)


def shuffled_blocks(layout: SampleLayout, rows: NDArray[np.int64] | None) -> Blocks:
    """Cut samples into the blocks of a shuffle: by what they look up, where that is most of their bytes."""
    chunks = looked_up_chunks(layout)
    return blocks_of(layout, rows) if chunks is None else blocks_by(chunks if rows is None else chunks[rows], rows)


def longest_block(layout: SampleLayout) -> int:
    """Return the rows of a block; of the longest, where they differ."""
    chunks = looked_up_chunks(layout)
    return max(block_rows(layout)) if chunks is None else int(np.bincount(chunks).max())


def block_rows(layout: SampleLayout) -> tuple[int, ...]:
    """Return the rows of a block, for each file: those of a chunk of the leading dataset, or of a part of one.

    A chunk is cut where nothing that is streamed has to be decoded; a part of a chunk would be decoded whole.
    """
    if layout.has_boxes:
        return (1,) * len(layout.leading)
    sizes = []
    for number, lead in enumerate(layout.leading):
        if lead.objects:
            sizes.append(max(1, min(lead.rows, BLOCK_NBYTES // max(1, lead.stored_row_nbytes))))
            continue
        whole = any(_is_decoded(layout, parts, number) for parts in layout.aligned)
        sizes.append((lead.chunk_rows if whole else _cut_rows(lead)) * _chunks_of_sequences(layout, lead))
    return tuple(sizes)


def _cut_rows(part: DatasetPart) -> int:
    """Return the rows of a chunk, or of a part of a large one that nothing has to be decoded of.

    A window then mixes rows of as many places as with small chunks; so many bytes are read at the rate of a longer run.
    """
    cut = part.access in (DIRECT, HEAP) and part.chunk_nbytes > WHOLE_NBYTES
    return max(1, -(-part.chunk_rows // (-(-part.chunk_nbytes // BLOCK_NBYTES) if cut else 1)))


def _chunks_of_sequences(layout: SampleLayout, lead: DatasetPart) -> int:
    """Return how many chunks a block of sequences has: chunks at its edges are decoded for its neighbours too.

    As many as hold the rows that a sequence spans, so that a chunk is decoded twice an epoch and not as often as
    sequences are longer than it; fewer where sequences are large, since a window holds many blocks.
    """
    steps = layout.fields[lead.targets[0].field].steps if lead.targets else None
    if layout.segments is None or steps is None or lead.access == DIRECT:
        return 1
    wanted = -(-(max(steps) - min(steps) + 1) // lead.chunk_rows)
    return max(1, min(wanted, SEQUENCES_NBYTES // max(1, layout.row_nbytes * lead.chunk_rows)))


def _is_decoded(layout: SampleLayout, parts: tuple[DatasetPart, ...], number: int) -> bool:
    """Tell whether rows of a file cost the decoding of a chunk, of a dataset too large to be kept."""
    row_nbytes = sum(layout.fields[target.field].placed_nbytes for target in parts[0].targets)
    is_small = row_nbytes > 0 and layout.rows * row_nbytes <= SMALL_NBYTES
    return parts[number].access not in (DIRECT, HEAP) and not is_small


def looked_up_chunks(layout: SampleLayout) -> NDArray[np.int64] | None:
    """Return the chunk that each sample looks up in every epoch; None where none has more bytes than its own rows."""
    stay = [one for one in layout.lookups if one.draw is None]
    lead = max(stay, key=lambda one: _mean_nbytes(layout, one), default=None)
    if lead is None or (mean_nbytes := _mean_nbytes(layout, lead)) <= layout.leading[0].stored_row_nbytes:
        return None
    parts, rows = layout.datasets[lead.dataset], lead.rows
    starts = np.array([part.row_start for part in parts])
    chunk_rows = np.array([part.chunk_rows if part.heap is None else _cut_rows(part) for part in parts])
    if layout.ragged and all(part.access == DIRECT for parts in layout.datasets for part in parts):
        # Nothing is decoded: blocks of as many bytes of samples as a chunk has, the other fields' with them.
        share = mean_nbytes / max(1, layout.row_nbytes)
        chunk_rows = np.maximum(1, (chunk_rows * min(1.0, share)).astype(np.int64))
    elif mean_nbytes > parts[0].stored_row_nbytes and parts[0].access == DECODED:
        # Samples of many rows go over the edges of chunks, and what is cut at a block's edge is decoded twice.
        sizes = [max(1, part.chunk_nbytes) for part in parts]
        chunk_rows *= np.array([max(1, BLOCK_NBYTES // n, min(4, 4 * WHOLE_NBYTES // n)) for n in sizes])
    chunks = -(-np.array([part.rows for part in parts]) // chunk_rows)
    part = np.searchsorted(starts, rows, side="right") - 1
    if any(one.object_edges is not None for one in parts):
        return _blocks_of_objects(parts, part, rows - starts[part])
    found: NDArray[np.int64] = (np.cumsum(chunks) - chunks)[part] + (rows - starts[part]) // chunk_rows[part]
    return found


def _mean_nbytes(layout: SampleLayout, one: Lookup) -> float:
    part = layout.datasets[one.dataset][0]
    are_rows = part.heap is None or layout.fields[part.targets[0].field].is_listed
    return part.stored_row_nbytes * (one.mean_rows if are_rows else 1.0)


def _blocks_of_objects(
    parts: tuple[DatasetPart, ...], part: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the stretch of its file that each object begins in, as a number, by its part and its first row there."""
    place = np.zeros(len(rows), dtype=np.int64)
    for number, one in enumerate(parts):
        ours = np.flatnonzero(part == number)
        if one.index is None or not len(one.index.numbers):
            continue
        chunk = rows[ours] // one.chunk_rows * one.index.columns
        stored = np.minimum(np.searchsorted(one.index.numbers, chunk), len(one.index.numbers) - 1)
        place[ours] = one.index.offset[stored] // BLOCK_NBYTES
    files = np.array([one.file for one in parts])[part]
    _, numbers = np.unique(np.stack([files, place]), axis=1, return_inverse=True)
    return np.asarray(numbers, dtype=np.int64).reshape(-1)


def _chunks_of_boxes(layout: SampleLayout, space: Space, boxes: NDArray[Any]) -> NDArray[np.int64]:
    """Return a number for the chunk that each of some boxes begins in, ascending with its volume and its place."""
    volume, origins = space.boxes_of(boxes)
    key = volume.copy()
    for axis, along in enumerate(layout.leading[0].along):
        if along.origin is not None:
            elements = np.array([part.shape[axis] for part in layout.leading])
            sizes = np.array([part.grid_shape[axis] for part in layout.leading])
            unfiltered = np.array([part.access == DIRECT for part in layout.leading])
            sizes = np.where(unfiltered, np.minimum(sizes, BOXES_IN_BLOCK * along.span), sizes)
            key = key * int((-(-elements // sizes)).max()) + np.clip(along.begins(origins), 0, None) // sizes[volume]
    return key
