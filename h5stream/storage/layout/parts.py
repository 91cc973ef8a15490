"""Parts of datasets: one dataset of one file, the fields that are read from it, and how its values are reached."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from h5stream.base.names import Ints
from h5stream.samples.space import Along
from h5stream.storage.decode.columns import Columns
from h5stream.storage.decode.elements import Leaf, as_complex
from h5stream.storage.decode.pipeline import Pipeline
from h5stream.storage.layout.access import (
    DECODED,
    IN_EXTERNAL_FILES,
    IS_VIRTUAL,
    VARIABLE_LENGTH,
    Chunked,
    Heap,
    ObjectsAsRows,
    RowsOfObjects,
    ThroughH5py,
    Unread,
)
from h5stream.storage.layout.heap import HeapValues
from h5stream.storage.layout.index import ChunkIndex, ColumnPiece

BLOCK_NBYTES = 256 * 1024
"""Approximate bytes of a shuffle block of data without chunks: reads of this size are as fast as longer ones."""


Meaning = tuple[tuple[str, str], ...]
"""The attributes of a dataset that define the meaning of its numbers, as pairs of name and text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A field that is read from a dataset."""

    field: int  # its index in `SampleLayout.fields`
    member: tuple[str, ...]  # the member path in the dataset's elements
    leaf: Leaf | None  # its bytes in a stored element; None if h5py converts them
    fill: NDArray[np.uint8]  # one element of the fill value, as the batch holds it
    # the inner members that form one row of numbers; empty if it is not stacked
    stacked: tuple[str, ...] = ()
    meaning: Meaning = ()
    # for joined objects: the places of those whose attributes differ from the first one's, with their attributes
    others: tuple[tuple[str, Meaning], ...] = ()
    moved: Ints | None = None  # new numbers of a sparse matrix's columns, if these are the field
    lengths: Ints | None = None  # bytes of the image in each row, if rows are images padded to one length

    def taken(self, elements: np.ndarray) -> np.ndarray:
        """Return the field's values from stored elements."""
        for name in self.member:
            elements = elements[name]
        parts = [as_complex(elements[name]) for name in self.stacked]
        whole = np.stack(parts, axis=-1) if parts else as_complex(elements)
        is_opaque = whole.dtype.kind == "V" and whole.dtype.names is None  # bits of a type that the user names
        return whole.view(f"u{whole.dtype.itemsize}") if is_opaque else whole


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetPart:
    """One dataset of one file, with the fields that are read from it."""

    file: int  # the index of its file in `SampleLayout.files`
    path: str  # path inside the file
    rows: int  # rows, row_start: its number of rows, and the number of the first one among all rows
    row_start: int
    via: Chunked | Heap | ThroughH5py | Unread  # how its values are reached
    chunk_rows: int  # rows that are read together
    pipeline: Pipeline = field(default_factory=Pipeline)  # its filters
    columns: Columns = None  # the user's selection
    pieces: tuple[ColumnPiece, ...] = ()  # the chunks across a row that contain selected columns
    targets: tuple[Target, ...] = ()  # the fields
    stored_element_nbytes: int = 0
    dtype_text: str = ""
    shape: tuple[int, ...] = ()  # of the whole dataset
    along: tuple[Along, ...] = ()  # a sample's extent along each axis, if it is a part of a volume
    objects: ObjectsAsRows | RowsOfObjects | None = None  # the objects that it joins

    @property
    def access(self) -> str:
        """`DIRECT`, `DECODED`, `HEAP` or `VIA_H5PY`."""
        return self.via.access

    @property
    def reason(self) -> str:
        """The reason for `access`."""
        if isinstance(self.via, ThroughH5py):
            return self.via.reason
        if isinstance(self.via, Heap):
            return VARIABLE_LENGTH
        if isinstance(self.via, Unread):
            return "nothing is read of it"
        return self.pipeline.describe() if self.pipeline.filters else "no filter"

    @property
    def index(self) -> ChunkIndex | None:
        """The index of its chunks; None if h5py reads, and for values of variable length."""
        return self.via.index if isinstance(self.via, Chunked) else None

    @property
    def heap(self) -> HeapValues | None:
        """The references to its values, if these are of variable length."""
        return self.via.references if isinstance(self.via, Heap) else None

    @property
    def behind(self) -> tuple[int, ...]:
        """Other files that libhdf5 reads it from, if they are watched for changes."""
        return self.via.behind if isinstance(self.via, ThroughH5py) else ()

    @property
    def queried(self) -> int:
        """The number of objects that libhdf5 opened, because their headers were not understood."""
        return self.objects.queried if isinstance(self.objects, ObjectsAsRows) else 0

    @property
    def leads_on(self) -> bool:
        """Whether its data may be stored in files outside the layout."""
        return isinstance(self.via, ThroughH5py) and self.via.reason in (IS_VIRTUAL, IN_EXTERNAL_FILES)

    @property
    def chunk_index(self) -> ChunkIndex:
        """The index of a part that is not read through h5py."""
        if not isinstance(self.via, Chunked):
            raise TypeError(f"{self.path!r} has no chunk index")
        return self.via.index

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a decoded chunk, or of the rows that h5py reads together."""
        if isinstance(self.via, Chunked):
            return math.prod(self.via.index.chunk_shape) * self.stored_element_nbytes
        return self.chunk_rows * self.stored_row_nbytes

    @property
    def spans(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first row of each object, relative to the part, and its number of rows; all rows without objects."""
        if not isinstance(self.objects, RowsOfObjects):
            return np.zeros(1, dtype=np.int64), np.array([self.rows], dtype=np.int64)
        return self.objects.edges[:-1], self.objects.rows

    def rows_of_chunks(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of rows in each chunk; the last chunk of an object may have fewer than the others."""
        (begins, counts), first = self.spans, chunks * self.chunk_rows
        k = np.searchsorted(begins, first, side="right") - 1
        remaining: NDArray[np.int64] = begins[k] + counts[k] - first
        return np.minimum(remaining, self.chunk_rows)

    def may_be_unfiltered(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the stored chunks that may be unfiltered because they reach beyond the data.

        ``H5Pset_chunk_opts`` allows that, and the index does not record it: such a chunk has an empty filter mask, but
        exactly the size of a raw one.
        """
        index = self.chunk_index
        if self.access != DECODED:
            return np.zeros(len(places), dtype=bool)
        raw: NDArray[np.bool_] = (index.nbytes[places] == self.chunk_nbytes) & (index.filter_mask[places] == 0)
        if raw.any():
            raw &= index.is_edge(index.numbers[places])
        return raw

    def with_fields(self, place: Mapping[int | None, int]) -> DatasetPart:
        """Return the part with the fields in `place` only, which maps their old numbers to new ones."""
        targets = (replace(target, field=place[target.field]) for target in self.targets if target.field in place)
        return replace(self, targets=tuple(targets))

    def path_of(self, k: int) -> str:
        """Return the path of the dataset in object `k`; its own path if it joins no objects."""
        if self.objects is None:
            return self.path
        below = "" if isinstance(self.objects, RowsOfObjects) else self.path[len(self.objects.paths[0]) :]
        return self.objects.paths[k] + below

    def in_object(self, number: int) -> tuple[DatasetPart, int]:
        """Return the part of the object that contains a chunk, and the chunk's number in it."""
        index, objects = self.chunk_index, self.objects
        row, inner = divmod(number, index.columns)
        if isinstance(objects, RowsOfObjects):
            k = int(np.searchsorted(objects.edges, row * self.chunk_rows, side="right")) - 1
            inner = number - int(objects.edges[k]) // self.chunk_rows * index.columns
            own = replace(index, shape=(int(objects.rows[k]), *self.shape[1:]), has_gaps=False)
        else:
            k, own = row, replace(index, shape=self.shape[1:], chunk_shape=index.chunk_shape[1:])
        via = Chunked(index=own, access=self.access)
        return replace(self, path=self.path_of(k), objects=None, shape=own.shape, via=via), inner

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Elements along each axis of a chunk, or of the rows that h5py reads together."""
        return self.via.index.chunk_shape if isinstance(self.via, Chunked) else (self.chunk_rows, *self.shape[1:])

    @property
    def stored_row_nbytes(self) -> int:
        """Bytes of a decoded row, before any selection of columns; the mean for values in a heap."""
        if isinstance(self.via, Heap):
            return math.ceil(self.via.references.row_nbytes)
        return sum(piece.row_elements for piece in self.pieces) * self.stored_element_nbytes
