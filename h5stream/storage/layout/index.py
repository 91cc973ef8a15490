"""The chunks of a dataset: byte address, stored size and filter mask of each, and the elements of rows that they hold.

A chunk may hold only some of a row's columns, reach beyond the data, or hold columns that were not selected. For each
position of a chunk across the row there are *segments*: runs of elements that are neighbours both in the chunk and in
the row of the batch.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import NoReturn

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError, SourceError, TruncatedFileError
from h5stream.storage.decode.columns import Columns, axes_taken
from h5stream.storage.decode.elements import is_readable, type_of
from h5stream.storage.decode.values import fill_value_of

MISSING = -1
"""The `offset` of a chunk that was never written; its elements are the fill value."""

COMPARED_NBYTES = 256 * 1024 * 1024
"""The largest chunk that is compared with h5py's; opening a file must not read gigabytes."""

READ_TOGETHER_NBYTES = 256 * 1024
"""Bytes of a block of unchunked data.

Small enough that a window holds many blocks, large enough that a read costs more than its system call."""

MOST_OFFSET = int(np.iinfo(np.int64).max)

_NOT_WRITTEN = ("not allocated", "address isn't defined")
"""libhdf5's messages for a chunk that was never written, by version."""


INDEX_UNREADABLE = (RuntimeError, OSError, OverflowError)
"""Exceptions of reading an index after which the data are read through h5py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkIndex:
    """The file offsets and sizes of the chunks of one dataset.

    A chunk's number is its index in the grid of chunks, last axis fastest. Contiguous data are divided into blocks of
    rows.
    """

    shape: tuple[int, ...]  # shape, chunk_shape: elements along each axis, of the data and of a chunk
    chunk_shape: tuple[int, ...]
    numbers: NDArray[np.int64]  # numbers of the stored chunks, ascending
    offset: NDArray[np.int64]  # offset, nbytes: file offset and stored size of each of them, in bytes
    nbytes: NDArray[np.int64]
    filter_mask: NDArray[np.uint32]  # bit `i` set: filter `i` of the pipeline was skipped for this chunk
    # whether any chunk may reach beyond the data, because it is the last chunk of one of several joined datasets
    has_gaps: bool = False
    grid: tuple[int, ...] = field(init=False)  # chunks along each axis
    chunks: int = field(init=False)  # chunks in the grid, stored or not
    columns: int = field(init=False)  # chunks in one row of chunks: the grid without its first axis

    def __post_init__(self) -> None:
        grid = list[int]()
        for n, c in zip(self.shape, self.chunk_shape, strict=True):
            grid.append(-(-n // c) if c else 1)
        object.__setattr__(self, "grid", tuple(grid))
        object.__setattr__(self, "chunks", math.prod(grid))
        object.__setattr__(self, "columns", math.prod(grid[1:]))

    def find(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each chunk in the arrays of this index, -1 if it is not stored."""
        if len(self.numbers) == 0:
            return np.full(len(numbers), MISSING, dtype=np.int64)
        if len(self.numbers) == self.chunks:  # dense: the number is the position
            return np.where(numbers < self.chunks, numbers, MISSING)
        places = np.searchsorted(self.numbers, numbers)
        places[places == len(self.numbers)] = 0
        return np.where(self.numbers[places] == numbers, places, MISSING)

    def coordinates(self, number: int) -> tuple[int, ...]:
        """Return the coordinates of a chunk's first element."""
        where = np.unravel_index(number, self.grid)
        return tuple(map(operator.mul, map(int, where), self.chunk_shape))

    def is_edge(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the chunks that reach beyond the data on any axis."""
        edge = np.full(len(numbers), self.has_gaps)
        for i, n, c in zip(np.unravel_index(numbers, self.grid), self.shape, self.chunk_shape, strict=True):
            edge |= (i + 1) * c > n
        return edge


def rows_together(row_nbytes: int, rows: int) -> int:
    """Return the number of rows in a block of unchunked data."""
    return max(1, min(READ_TOGETHER_NBYTES // max(1, row_nbytes), rows))


def cut_extent(shape: tuple[int, ...], offset: int | None, element_nbytes: int) -> ChunkIndex:
    """Return an index that divides contiguous data into blocks of rows, which are read like chunks."""
    row_nbytes, rows = element_nbytes * math.prod(shape[1:]), shape[0]
    together = rows_together(row_nbytes, rows)
    count = -(-rows // together)
    numbers = np.arange(0 if offset is None else count, dtype=np.int64)
    return ChunkIndex(
        shape=shape,
        chunk_shape=(together, *shape[1:]),
        numbers=numbers,
        offset=(offset or 0) + numbers * (together * row_nbytes),
        nbytes=np.minimum(together, rows - numbers * together) * row_nbytes,
        filter_mask=np.zeros(len(numbers), dtype=np.uint32),
    )


def build_index(dataset: h5py.Dataset, *, file_size: int, element_nbytes: int | None = None) -> ChunkIndex:
    """Read the chunk index of a chunked or contiguous dataset."""
    if dataset.chunks is not None:
        index = _chunked_index(dataset, file_size)
        check_inside(dataset, index.offset, index.nbytes, file_size)
        if element_nbytes is None:
            return index
        # libhdf5 would read beyond its buffer if the stored size of an unfiltered chunk were wrong.
        filters = (1 << dataset.id.get_create_plist().get_nfilters()) - 1
        is_plain, nbytes = index.filter_mask & filters == filters, math.prod(index.chunk_shape) * element_nbytes
        if len(wrong := np.flatnonzero(is_plain & (index.nbytes != nbytes))):
            chunk, size = index.coordinates(int(index.numbers[wrong[0]])), int(index.nbytes[wrong[0]])
            why = f"its chunk {chunk}, which has no filter, is said to have {size:,} bytes of {nbytes:,}"
            _refuse(dataset, f"it is damaged: {why}")
        return index
    element_nbytes = element_nbytes or dataset.id.get_type().get_size()
    begin, nbytes = offset_of(dataset.id), min(math.prod(dataset.shape) * element_nbytes, MOST_OFFSET)
    if begin is not None:
        check_inside(dataset, np.array([begin]), np.array([nbytes]), file_size)
    return cut_extent(dataset.shape, begin, element_nbytes)


def _chunked_index(dataset: h5py.Dataset, file_size: int) -> ChunkIndex:
    """Read the index of a chunked dataset; raise `RuntimeError` if it is not reliable."""
    axes = len(dataset.shape)
    # One flat list of numbers is half the cost of a list of tuples; a million chunks take a second or two.
    flat: list[int] = []
    extend, missing = flat.extend, list[None]()

    # A damaged tree may lead back into itself and have no end; but there are no more chunks than bytes.
    most_numbers = (axes + 3) * (file_size + 1)

    def visit(info: h5py.h5d.StoreInfo) -> bool | None:
        if info.chunk_offset is None:  # listed without an address: libhdf5 treats it as never written
            missing.append(None)
        else:
            extend(info.chunk_offset)
            extend((info.filter_mask, info.byte_offset, info.size))
        return True if len(flat) + len(missing) > most_numbers else None

    dataset.id.chunk_iter(visit)
    if len(flat) + len(missing) > most_numbers:
        _refuse(dataset, f"it is damaged: its chunk index names more chunks than the file has bytes ({file_size:,})")
    table = np.array(flat, dtype=np.int64).reshape(-1, axes + 3)
    begins, reported = table[:, :axes], table[:, :axes] // np.array(dataset.chunks)
    unlimited = dataset.maxshape.index(None) if None in dataset.maxshape else 0  # the first, if there are several
    if dataset.maxshape.count(None) == 1 and not reported[:, :unlimited].any():
        numbers = _numbers_with_unlimited_axis(dataset, reported, table[:, -1], unlimited)
    else:
        numbers = _ravel(reported, dataset)
    keep = np.flatnonzero(numbers != MISSING)  # chunks left over from a shrunk dataset are not part of it
    keep = keep[np.argsort(numbers[keep], kind="stable")]
    if (np.diff(numbers[keep]) == 0).any():
        _refuse(dataset, "its chunk index names a chunk twice, so it is damaged")
    # Every kind of index lists chunks in grid order, with the first or the unlimited axis slowest. If none is in that
    # order, the index is damaged, and libhdf5 misses some.
    for axis in (0, unlimited):
        further = np.diff(np.concatenate([begins[:, axis : axis + 1], np.delete(begins, axis, axis=1)], axis=1), axis=0)
        first = (further != 0).argmax(axis=1)[:, None]
        if (np.take_along_axis(further, first, axis=1) >= 0).all():
            break
    else:
        raise RuntimeError("its chunk index does not list chunks in order, so it is damaged")
    return ChunkIndex(
        shape=dataset.shape,
        chunk_shape=dataset.chunks,
        numbers=numbers[keep],
        offset=table[keep, -2],
        nbytes=table[keep, -1],
        filter_mask=table[keep, -3].astype(np.uint32),
    )


def _numbers_with_unlimited_axis(
    dataset: h5py.Dataset, reported: NDArray[np.int64], nbytes: NDArray[np.int64], unlimited: int
) -> NDArray[np.int64]:
    """Return chunk numbers for the grid positions that libhdf5 reports, if exactly one axis is unlimited.

    HDF5 numbers and looks up the chunks in its "extensible array" with that axis slowest. But its iterator counts as
    though the axes kept their order (HDF5 1.10 to 2.0): axes before the unlimited one are reported as 0, and their
    count is part of that of the unlimited one. Which of the two applies depends on the kind of index and on the version
    of libhdf5, and neither is known. So a chunk is looked up that exists in one reading and not in the other.

    Source: HDF5's ``H5D__earray_idx_get_addr`` and ``H5D__earray_idx_iterate_cb``, in ``H5Dearray.c``.
    """
    meant, rest = reported.copy(), reported[:, unlimited].copy()
    for before in reversed(range(unlimited)):
        most = min(-(-dataset.maxshape[before] // dataset.chunks[before]), np.iinfo(np.int64).max)
        rest, meant[:, before] = np.divmod(rest, max(1, most))
    meant[:, unlimited] = rest
    as_reported, undone = _ravel(reported, dataset), _ravel(meant, dataset)
    if (undone == as_reported).all():
        return as_reported
    for one, other in ((as_reported, undone), (undone, as_reported)):
        only_here = np.flatnonzero((one != MISSING) & ~np.isin(one, other))
        if len(only_here):
            smallest = only_here[np.argmin(nbytes[only_here])]
            places = reported if one is as_reported else meant
            start = tuple(map(operator.mul, places[smallest].tolist(), dataset.chunks))
            return one if _is_stored(dataset, start, int(nbytes[smallest])) else other
    raise RuntimeError(
        "libhdf5 often reports chunks of its kind in wrong places, and nothing tells whether it does here"
    )


def _ravel(places: NDArray[np.int64], dataset: h5py.Dataset) -> NDArray[np.int64]:
    """Return the chunk numbers of positions in the grid of a dataset's chunks, `MISSING` outside the grid."""
    numbers = np.zeros(len(places), dtype=np.int64)
    inside = np.ones(len(places), dtype=bool)
    for axis, (n, c) in enumerate(zip(dataset.shape, dataset.chunks, strict=True)):
        count = -(-n // c)
        inside &= places[:, axis] < count
        numbers = numbers * count + places[:, axis]
    return np.where(inside, numbers, MISSING)


def read_stored_chunk(dataset: h5py.Dataset, start: tuple[int, ...], nbytes: int) -> tuple[int, bytearray] | None:
    """Read the stored bytes and the filter mask of a chunk through libhdf5; None if it finds no chunk."""
    stored = bytearray(nbytes)
    try:
        filter_mask, _ = dataset.id.read_direct_chunk(start, out=stored)
    except (RuntimeError, OSError) as error:
        if any(text in str(error) for text in _NOT_WRITTEN):
            return None
        raise
    return filter_mask, stored


def offset_of(dataset: h5py.h5d.DatasetID) -> int | None:
    """Return the file offset of contiguous data; None if they were never written."""
    where: int | None = dataset.get_offset()
    if where is not None and where > MOST_OFFSET:  # damaged: beyond the end of every file
        return MOST_OFFSET
    # libhdf5 adds the size of the user block (512 bytes, 1024, ...) also to the undefined address.
    if where is not None and where & (where + 1) == 0 and where > 0:
        return None if h5py.h5i.get_file_id(dataset).get_create_plist().get_userblock() == where + 1 else where
    return where


def found_chunks(dataset: h5py.h5d.DatasetID) -> NDArray[np.int64]:
    """Return the number, offset, bytes and filter mask of the chunks that libhdf5 finds.

    A damaged tree may list chunks that a look-up does not find: h5py reads fill values for them.
    """
    whole = h5py.Dataset(dataset)
    index = _chunked_index(whole, h5py.h5i.get_file_id(dataset).get_filesize())
    is_found = [_is_found(whole, index.coordinates(number)) for number in index.numbers.tolist()]
    columns = np.array([index.numbers, index.offset, index.nbytes, index.filter_mask], np.int64)
    return columns.compress(is_found, axis=1)


def fill_of(dataset: h5py.h5d.DatasetID) -> tuple[int, int, bytes]:
    """Return the fill time, the state and the bytes of the fill value of a dataset."""
    creation = dataset.get_create_plist()
    defined = creation.fill_value_defined()
    dtype, can_ask = type_of(dataset.get_type()), is_readable(dataset.get_type())
    has_none = dtype.hasobject or not can_ask or defined == h5py.h5d.FILL_VALUE_UNDEFINED
    base = (dtype.subdtype or (dtype,))[0]  # h5py returns numbers in the machine's byte order
    value = b"" if has_none else np.asarray(fill_value_of(h5py.Dataset(dataset)), base).tobytes()
    return creation.get_fill_time(), defined, value


def _is_found(dataset: h5py.Dataset, start: tuple[int, ...]) -> bool:
    try:
        return read_stored_chunk(dataset, start, 0) is not None
    except (ValueError, RuntimeError, OSError):  # the chunk exists, and is larger or damaged
        return True


def _is_stored(dataset: h5py.Dataset, start: tuple[int, ...], nbytes: int) -> bool:
    # It has to be read: libhdf5 also returns a size for a missing chunk that is in its cache.
    if nbytes > COMPARED_NBYTES:
        raise RuntimeError(f"its chunks take {nbytes:,} bytes each, too many to ask h5py where one lies")
    try:
        return read_stored_chunk(dataset, start, nbytes) is not None
    except ValueError:  # the chunk exists, whatever its size
        return True


def _refuse(dataset: h5py.Dataset, why: str) -> NoReturn:
    file = h5py.h5f.get_name(dataset.file.id).decode(errors="replace")
    raise SourceError(f"{file!r}, dataset {dataset.name!r}: {why}. Copy it again from its source.", file=file)


def beyond_end(
    offset: NDArray[np.int64], nbytes: NDArray[np.int64] | int, file_size: NDArray[np.int64] | int
) -> NDArray[np.int64]:
    """Return the indices of the chunks that are not entirely inside their files."""
    return np.flatnonzero((offset < 0) | (nbytes < 0) | (offset > file_size - nbytes))


def check_inside(dataset: h5py.Dataset, offset: NDArray[np.int64], nbytes: NDArray[np.int64], file_size: int) -> None:
    """Raise `TruncatedFileError` if any chunk is not entirely inside the file."""
    beyond = beyond_end(offset, nbytes, file_size)
    for k in beyond[:1].tolist():
        file = h5py.h5f.get_name(dataset.file.id).decode(errors="replace")
        note = f" ({len(beyond)} of {len(offset)} chunks lie beyond its end)" * (dataset.chunks is not None)
        refuse_beyond(file, dataset.name, int(offset[k]), int(nbytes[k]), file_size, note)


def refuse_beyond(file: str, name: str, offset: int, nbytes: int, file_size: int, note: str = "") -> NoReturn:
    """Raise `TruncatedFileError` for data at an offset beyond the end of the file."""
    why = f"{file!r}, dataset {name!r}: its data are said to lie at bytes {offset} to {offset + nbytes}, but the file "
    raise TruncatedFileError(f"{why}has {file_size} bytes{note}. Copy it again from its source.", file=file)


# --- chunks across a row

_MAX_ROW_ELEMENTS = 1 << 31

_MAX_PIECES = 1 << 16
_MAX_CUT_ELEMENTS = 1 << 28
"""Limits of a row that is cut along its chunks: each piece is an object, each element an entry of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPiece:
    """The contribution of the chunks at one position across the row."""

    number: int  # the chunk's number within its row of chunks
    row_elements: int  # elements that one row takes inside the chunk
    # (n, 3), for each run: first element within the chunk's row, first element within the batch's row, elements
    segments: NDArray[np.int64]


def column_pieces(
    row_shape: tuple[int, ...], chunk_row_shape: tuple[int, ...], columns: Columns = None
) -> tuple[ColumnPiece, ...]:
    """Divide a row among the chunks that cross it."""
    elements = math.prod(row_shape)
    if elements > _MAX_ROW_ELEMENTS:
        raise OptionError(f"a row of {elements} elements is more than a batch can hold; take some of its columns=")
    if elements == 0:
        return ()
    if columns is None and row_shape == chunk_row_shape:
        return (ColumnPiece(number=0, row_elements=elements, segments=np.array([[0, 0, elements]])),)
    pieces = math.prod(-(-n // c) for n, c in zip(row_shape, chunk_row_shape, strict=True))
    if pieces > _MAX_PIECES or elements > _MAX_CUT_ELEMENTS:
        most = f"more than the {_MAX_PIECES:,} chunks and {_MAX_CUT_ELEMENTS:,} elements that are followed"
        problem = f"a row of {elements:,} elements lies in {pieces:,} chunks, {most}"
        raise OptionError(f"{problem}; store the data in chunks that reach further across rows")
    if columns is None:
        return _divide(chunk_row_shape, np.arange(elements, dtype=np.int64).reshape(row_shape))
    taken = [numbers for numbers, _ in axes_taken(row_shape, columns)]
    lengths = [len(numbers) for numbers in taken]
    places = np.full(row_shape, -1, dtype=np.int64)  # of each element in the batch's row; -1 if not selected
    places[np.ix_(*taken)] = np.arange(math.prod(lengths)).reshape(lengths)
    return _divide(chunk_row_shape, places)


def _divide(chunk_row_shape: tuple[int, ...], places: NDArray[np.int64]) -> tuple[ColumnPiece, ...]:
    """Divide the places of a row's elements among its chunks, leaving out chunks without a selected element."""
    pieces, grid = [], (-(-n // c) for n, c in zip(places.shape, chunk_row_shape, strict=True))
    for number, where in enumerate(np.ndindex(*grid)):
        box = places[tuple(slice(i * c, (i + 1) * c) for i, c in zip(where, chunk_row_shape, strict=True))]
        if not (box >= 0).any():
            continue
        whole = box
        if box.shape != chunk_row_shape:  # an edge chunk is stored whole; elements beyond the data are not selected
            whole = np.full(chunk_row_shape, -1, dtype=np.int64)
            whole[tuple(slice(0, n) for n in box.shape)] = box
        pieces.append(ColumnPiece(number=number, row_elements=whole.size, segments=_runs(whole.reshape(-1))))
    return tuple(pieces)


def _runs(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the runs of elements that are consecutive both in the chunk and in the row."""
    wanted = np.flatnonzero(places >= 0)
    target = places[wanted]
    first = np.append(0, np.flatnonzero((np.diff(wanted) != 1) | (np.diff(target) != 1)) + 1)
    lengths = np.diff(first, append=len(wanted))
    return np.stack([wanted[first], target[first], lengths], axis=1).astype(np.int64)
