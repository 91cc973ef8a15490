"""Chunks that no kernel brings, decoded step by step or by libhdf5, and rows that h5py reads under its lock."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from h5stream.base.cancel import raise_if_stopped
from h5stream.compiled import _native as kernels
from h5stream.engine.counters import clock
from h5stream.engine.plan.failing import chunk_by_chunk
from h5stream.engine.plan.keeping import Keeping
from h5stream.engine.plan.tasks import TASK_NBYTES, Bytes, Destination, Ints, Placement, Task, Tools, cut_by
from h5stream.errors import CorruptChunkError
from h5stream.storage.decode.filters import DecodeError, NotAskedError
from h5stream.storage.file.h5py_reader import chunk_box
from h5stream.storage.layout.layout import FieldLayout
from h5stream.storage.layout.parts import DatasetPart


def decoded(part: DatasetPart, number: int, entry: int, stored: Bytes, tools: Tools) -> tuple[Bytes, int]:
    """Decode a chunk, by its number and its entry in the index.

    Gives its bytes, and the element size of a byte shuffle still to be undone, or 0.
    """
    mask = int(part.chunk_index.filter_mask[entry])
    if stored.nbytes == part.chunk_nbytes and part.may_be_unfiltered(np.array([entry]))[0]:
        return tools.h5py.chunk(part, number), 0
    if not part.pipeline.filters and stored.nbytes == _nbytes_inside(part, number) < part.chunk_nbytes:
        whole = tools.decoding.buffer("whole", part.chunk_nbytes)  # it ends with the dataset
        whole[: stored.nbytes], whole[stored.nbytes :] = stored, 0
        return whole, 0
    try:
        return part.pipeline.decode(stored, filter_mask=mask, raw_nbytes=part.chunk_nbytes, scratch=tools.decoding)
    except DecodeError as error:
        return _of_h5py(part, number, entry, error, tools), 0


def _nbytes_inside(part: DatasetPart, number: int) -> int:
    """Return the bytes that a chunk has of the dataset's elements."""
    if part.objects is not None:
        part, number = part.in_object(number)
    index = part.chunk_index
    count = chunk_box(index.shape, index.chunk_shape, index.coordinates(number))
    return math.prod(count) * part.stored_element_nbytes


def _of_h5py(part: DatasetPart, number: int, entry: int, error: DecodeError, tools: Tools) -> Bytes:
    """Read bytes that do not decode here with libhdf5, which decides whether they are corrupt."""
    index = part.chunk_index
    identity, offset = tools.sources[part.file].identity.at(int(index.offset[entry]))
    identity.check_unchanged()
    if not isinstance(error, NotAskedError):
        with contextlib.suppress(CorruptChunkError):
            return tools.h5py.chunk(part, number)
    nbytes = int(index.nbytes[entry])
    if part.objects is not None:
        part, number = part.in_object(number)
        index = part.chunk_index
    chunk = index.coordinates(number)
    raise CorruptChunkError(
        f"{identity.path!r}, dataset {part.path!r}: chunk {chunk} at byte {offset} "
        f"({nbytes} bytes) is corrupt: {error}. Copy the file again from its source.",
        file=identity.path,
        field=part.path,
        chunk=chunk,
        byte_offset=offset,
    ) from error


def kind_of(dtype: np.dtype[np.generic]) -> int:
    """Return the bytes of column numbers that others take the place of, below 0 for those without a sign."""
    return -dtype.itemsize if dtype.kind == "u" else dtype.itemsize


def renumbered(data: Bytes, dtype: np.dtype[np.generic], moved: Ints | None) -> Bytes:
    """Return column numbers of a sparse matrix with others in their place; those that it does not have stay wrong."""
    if moved is None:
        return data
    numbers = data.copy()
    kernels.renumber(numbers, kind_of(dtype), moved)
    return numbers


def plan_through_h5py(
    part: DatasetPart,
    fields: tuple[FieldLayout, ...],
    keep: Keeping | None,
    placement: Placement,
    task_nbytes: int,
    missing: NDArray[np.bool_] | None = None,
) -> Iterator[Task]:
    """Cut rows of a part that h5py reads, ascending, into tasks of whole chunks and about as many bytes."""

    def read(placement: Placement, destination: Destination, tools: Tools) -> None:
        """Read the rows of one chunk after the other, from the first that is wanted to the last, and scatter them."""
        _, edges, _ = placement.in_chunks(part)
        for low, high in itertools.pairwise(edges.tolist()):
            raise_if_stopped()
            wanted = placement[low:high]
            first, last = int(wanted.rows[0]), int(wanted.rows[-1])
            since = clock()
            rows = tools.h5py.rows(part, first - part.row_start, last - first + 1)
            since = tools.tally.via_h5py(since, rows.nbytes)
            for target in part.targets:
                layout, values = fields[target.field], target.taken(rows)
                if layout.dtype.kind == "O":
                    destination.put(target.field, wanted, (values[row - first] for row in wanted.rows.tolist()))
                    continue
                dense = np.ascontiguousarray(values, dtype=layout.dtype).reshape(-1).view(np.uint8)
                dense = renumbered(dense, layout.dtype, target.moved)
                inside = replace(wanted, rows=wanted.rows - first)
                destination.scatter_whole(target.field, inside, dense, layout.placed_nbytes)
            tools.tally.scattered(since)

    placement = placement.each_row().ascending()
    _, edges, chunks = placement.in_chunks(part)
    if keep is not None and missing is not None:
        yield from keep.tasks(read, placement, edges, chunks, missing)
        return
    spans = placement.rows[edges[1:] - 1].astype(np.int64) - placement.rows[edges[:-1]] + 1
    for cut in cut_by(np.maximum(1, spans * part.stored_row_nbytes), min(task_nbytes, TASK_NBYTES)):
        of_task = placement[int(edges[cut.start]) : int(edges[cut.stop])]
        yield Task(shared=of_task, bring=read, apart=functools.partial(chunk_by_chunk, part=part))
