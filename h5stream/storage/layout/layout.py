"""The layout of a sample: which datasets of which files hold its fields, and how their bytes are reached.

Everything here is plain data, so that a layout travels to other processes without opening a file again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.samples.columns import DrawnRows, ValueColumn
from h5stream.samples.kinds import Draws
from h5stream.samples.packing import Packing
from h5stream.samples.ragged import Normalization, Ragged
from h5stream.samples.space import Along, Space
from h5stream.storage.decode.columns import ColumnPiece, Columns
from h5stream.storage.decode.elements import Leaf, Meanings, as_complex
from h5stream.storage.decode.filters import Pipeline
from h5stream.storage.decode.images import Images
from h5stream.storage.layout.axis_names import AxisNames
from h5stream.storage.layout.fields import Field, SampleShape
from h5stream.storage.layout.heap import HeapValues
from h5stream.storage.layout.index import ChunkIndex
from h5stream.storage.source.identity import SourceIdentity
from h5stream.storage.source.stores import is_address
from h5stream.structure import SparseRows, renumbered

DIRECT = "direct"
"""Stored without filters: bytes go from the file straight to the batch."""
DECODED = "decoded"
"""Filters are undone by h5stream, outside HDF5's lock."""
VIA_H5PY = "h5py"
"""Rows are read through h5py, under its lock."""

HEAP = "heap"
"""Values of variable length, read from the file's global heap by h5stream, outside HDF5's lock."""

IS_VIRTUAL = "a virtual dataset: libhdf5 puts it together"
IN_EXTERNAL_FILES = "its bytes lie in external files"
"""Two reasons for h5py: with these, other files are read than those of the layout."""


BLOCK_NBYTES = 256 * 1024
"""Bytes of a block of the shuffle, about, where no chunk says how many: they are read at the rate of a longer run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseEntry:
    """What a sparse field gives to a batch."""

    values: int  # values, columns: the numbers of the fields that its values and their columns are
    columns: int
    width: int  # columns of the matrix, or those that are wanted of it
    is_dense: bool  # whether the values come as rows of a dense matrix
    # whether columns are numbered as they were named: they do not ascend then, and number `width` is not wanted
    is_renumbered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldLayout:
    """One entry of a batch: a tensor, a list of bytes, or a list of objects."""

    name: str  # as the user wrote it, with the member after a colon
    # `"array"` (a tensor), `"bytes"` (a list of bytes), `"object"` (a list) or `"ragged"` (rows of which each sample
    # has another number)
    kind: str
    dtype: np.dtype[Any]  # scalar dtype in native byte order; `object` for kind `"object"`
    # shape of what a sample takes: of one row, or of one for each step, with these as first axis
    row_shape: tuple[int, ...]
    cast: Any = None  # what the user wants the batch cast to
    cut_at_nul: bool = False  # for bytes: whether a string ends at its first NUL
    # the rows that a sample takes, counted from its anchor; None where it takes one row, which is its own
    steps: tuple[int, ...] | None = None
    at: str = ""  # the column of a `Table` that says which row they count from; empty for the one that samples begin at
    pad: str | float | None = None  # what stands outside; None for what stands there in all fields
    ragged: Ragged | None = None  # of a ragged field, how it comes in a batch
    categories: tuple[str, ...] | None = None  # where its numbers are codes, what they stand for
    axes: tuple[AxisNames, ...] = dataclasses.field(default=(), compare=False)  # where its columns have names
    meanings: Meanings = ()  # of an enum, what its numbers stand for, in any of the files
    unit: str = ""  # of dates and times, which come as whole numbers, the NumPy type that says since when and of what
    images: Images | None = None  # where its bytes are encoded images, what is known of these
    normalize: Normalization | None = None  # what is done to its numbers in a batch
    # where each sample has a shape of its own, the number of the field that says which; `row_shape` holds any then
    shapes: int | None = None
    # how its stored numbers become floats before that; where datasets differ in it, `packed_by` is the number of the
    # field that says for each sample which of them it is
    packings: tuple[Packing, ...] = ()
    packed_by: int | None = None

    # of values of variable length, the type of their items; None for texts
    items: np.dtype[Any] | None = dataclasses.field(default=None, compare=False)

    @property
    def places(self) -> int:
        """Places that a sample has in a batch's list of a field: one, or one for each of its steps."""
        return 1 if self.steps is None else len(self.steps)

    @property
    def is_of_values(self) -> bool:
        """Whether its rows are values in memory, an array for each sample: attributes of any length."""
        return self.kind == "object" and self.ragged is not None and not self.is_listed

    @property
    def is_listed(self) -> bool:
        """Whether a batch has lists of it, and no tensor."""
        return self.dtype.kind in "OS"

    @property
    def is_as_stored(self) -> bool:
        """Whether its numbers come in a batch as they are stored."""
        return self.cast is None and self.normalize is None and not self.packings

    @property
    def row_nbytes(self) -> int:
        """Bytes of one sample in a slot; 0 for objects and ragged rows, which do not live in one."""
        return 0 if self.kind in ("object", "ragged") else math.prod(self.row_shape) * self.dtype.itemsize

    @property
    def dense_nbytes(self) -> int:
        """Bytes of one row of a sparse matrix that comes dense; 0 for all else."""
        return 0 if self.ragged is None else self.ragged.wanted * self.dtype.itemsize

    @property
    def placed_nbytes(self) -> int:
        """Bytes of one stored row in a batch: those of a sample, or its share of a sample of several."""
        if self.kind == "ragged":
            return math.prod(self.row_shape) * self.dtype.itemsize
        return self.row_nbytes if self.steps is None else self.row_nbytes // len(self.steps)


Meaning = tuple[tuple[str, str], ...]
"""The attributes of a dataset that say what its numbers mean, by name, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A field that is filled from a dataset."""

    field: int  # its place in `SampleLayout.fields`
    member: tuple[str, ...]  # the member path inside the dataset's elements
    leaf: Leaf | None  # where its bytes lie inside a stored element; None where h5py converts them
    fill: NDArray[np.uint8]  # one element of the fill value, as the batch holds it
    # the members inside of it that make one row of numbers; empty where it is taken as it is
    stacked: tuple[str, ...] = ()
    meaning: Meaning = ()
    # of objects that are read as one: where some are whose attributes say otherwise than the first one's, and what
    others: tuple[tuple[str, Meaning], ...] = ()

    def taken(self, elements: NDArray[Any]) -> NDArray[Any]:
        """Return the field's values of stored elements, as NumPy has them."""
        for name in self.member:
            elements = elements[name]
        parts = [as_complex(elements[name]) for name in self.stacked]
        whole = np.stack(parts, axis=-1) if parts else as_complex(elements)
        is_opaque = whole.dtype.kind == "V" and whole.dtype.names is None  # bits that the user says the type of
        return whole.view(f"u{whole.dtype.itemsize}") if is_opaque else whole


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetPart:
    """One dataset of one file, with the fields that are filled from it."""

    file: int  # its file's place in `SampleLayout.files`
    path: str  # path inside the file
    rows: int  # rows, row_start: its rows, and the number of its first row in the whole sample sequence
    row_start: int
    access: str  # `DIRECT`, `DECODED`, `HEAP` or `VIA_H5PY`
    reason: str  # why it is read that way
    chunk_rows: int  # rows that are read together
    index: ChunkIndex | None = None  # none where h5py reads, and for values of variable length
    pipeline: Pipeline = dataclasses.field(default_factory=Pipeline)  # its filters
    columns: Columns = None  # the user's selection
    pieces: tuple[ColumnPiece, ...] = ()  # the chunks across a row that hold something asked for
    targets: tuple[Target, ...] = ()  # the fields
    stored_element_nbytes: int = 0
    dtype_text: str = ""
    shape: tuple[int, ...] = ()  # of the whole dataset
    along: tuple[Along, ...] = ()  # what a sample takes along each axis, where it is a part of a volume
    # where its rows are objects: their paths; below each of them the dataset's is as below the first. Where they are
    # rows of objects: the paths of these datasets
    objects: Sequence[str] = ()
    asked: int = 0  # how many of these libhdf5 was asked for, because their headers were not understood
    # object_edges, object_rows: where they are rows of objects: the first row of each and at last where they end, and
    # how many rows each has. Between an object's last row and the next one's first there may be some that no sample has
    object_edges: NDArray[np.int64] | None = None
    object_rows: NDArray[np.int64] | None = None
    behind: tuple[int, ...] = ()  # other files that libhdf5 reads it from, as far as they are watched
    heap: HeapValues | None = None  # where its values lie, if they are of variable length
    moved: NDArray[np.int64] | None = None  # of columns of a sparse matrix, by what numbers to replace theirs
    lengths: NDArray[np.int64] | None = None  # of rows that are images filled up to one length, the bytes of each
    # the first element of a chunk that does not decode, which was to say where values of variable length lie
    damaged: tuple[int, ...] | None = None

    @property
    def leads_on(self) -> bool:
        """Whether its data may lie in files that are not the layout's."""
        return self.reason in (IS_VIRTUAL, IN_EXTERNAL_FILES)

    @property
    def chunk_index(self) -> ChunkIndex:
        """The index, for what is done only with parts that have one."""
        assert self.index is not None
        return self.index

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a decoded chunk; for h5py, of the rows that are read together."""
        if self.index is not None:
            return math.prod(self.index.chunk_shape) * self.stored_element_nbytes
        return self.chunk_rows * self.stored_row_nbytes

    @property
    def spans(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first row of each object, counted from the part's, and how many it has; without objects of all rows."""
        if self.object_edges is None or self.object_rows is None:
            return np.zeros(1, dtype=np.int64), np.array([self.rows], dtype=np.int64)
        return self.object_edges[:-1], self.object_rows

    def rows_of_chunks(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many rows chunks have, by their numbers; the last of an object may have fewer than the others."""
        (begins, counts), first = self.spans, chunks * self.chunk_rows
        k = np.searchsorted(begins, first, side="right") - 1
        there: NDArray[np.int64] = begins[k] + counts[k] - first
        return np.minimum(there, self.chunk_rows)

    def may_be_unfiltered(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which stored chunks may have been left unfiltered because they reach beyond the data.

        A file can ask for that (``H5Pset_chunk_opts``), and the index does not tell: such a chunk has no filter
        mask, but exactly the size of a raw one.
        """
        assert self.index is not None
        if self.access != DECODED:
            return np.zeros(len(places), dtype=bool)
        raw: NDArray[np.bool_] = (self.index.nbytes[places] == self.chunk_nbytes) & (
            self.index.filter_mask[places] == 0
        )
        if raw.any():
            raw &= self.index.is_edge(self.index.numbers[places])
        return raw

    def with_fields(self, place: Mapping[int | None, int]) -> DatasetPart:
        """Return the part with the targets of some fields alone, whose new numbers are given by the old ones."""
        targets = (replace(target, field=place[target.field]) for target in self.targets if target.field in place)
        return replace(self, targets=tuple(targets))

    def path_of(self, k: int) -> str:
        """Return the path of the dataset that is, or is in, one of the part's objects."""
        return self.objects[k] + (self.path[len(self.objects[0]) :] if self.object_edges is None else "")

    def in_object(self, number: int) -> tuple[DatasetPart, int]:
        """Return the part of the one object that a chunk belongs to, and the number that it has there."""
        index = self.chunk_index
        row, inner = divmod(number, index.columns)
        if self.object_edges is None:
            own = replace(index, shape=self.shape[1:], chunk_shape=index.chunk_shape[1:])
            return replace(self, path=self.path_of(row), objects=(), shape=own.shape, index=own), inner
        assert self.object_rows is not None
        k = int(np.searchsorted(self.object_edges, row * self.chunk_rows, side="right")) - 1
        first, shape = int(self.object_edges[k]) // self.chunk_rows, (int(self.object_rows[k]), *self.shape[1:])
        own = replace(index, shape=shape, has_gaps=False)
        part = replace(
            self, path=self.path_of(k), objects=(), object_edges=None, object_rows=None, shape=shape, index=own
        )
        return part, number - first * index.columns

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Elements of a chunk along each axis, or of what h5py reads together."""
        return (self.chunk_rows, *self.shape[1:]) if self.index is None else self.index.chunk_shape

    @property
    def stored_row_nbytes(self) -> int:
        """Bytes that one row takes once decoded, before any selection of columns; of values in a heap the mean."""
        if self.heap is not None:
            return math.ceil(self.heap.row_nbytes)
        return sum(piece.row_elements for piece in self.pieces) * self.stored_element_nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Which rows of a dataset samples have, where these are not their own."""

    dataset: int  # its number
    rows: NDArray[np.int64]  # the row of each sample, or its first; none where `draw` alone says it
    counts: NDArray[np.int64] | None = None  # how many consecutive rows each sample has; None where each has one
    # rows of the dataset, of which `rows` and `counts` are stretches then: those that samples list, in any order
    listed: NDArray[np.int64] | None = None
    # how many more rows there are that a random crop may begin behind, counted in rows of the crop that leads; None
    # where all are taken, or always the same
    spare: NDArray[np.int64] | None = None
    # the length of the crop that leads each sample's, where any other than its own does
    paces: NDArray[np.int64] | None = None
    length: int = 0  # that of its own
    # gives the row of each sample anew in each epoch; with `counts` its place in these and in `rows`
    draw: DrawnRows | None = None

    def stretches(self, samples: NDArray[Any], drawn: tuple[int, int]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the first row of each of some samples, and how many it has; `drawn` are seed and epoch."""
        assert self.counts is not None
        of = samples if self.draw is None else self.draw.of(samples, *drawn)
        return self.rows[of], self.counts[of]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        every = self.rows, self.counts, self.listed, self.spare, self.paces
        return sum(each.nbytes for each in every if each is not None)

    @property
    def first_rows(self) -> NDArray[np.int64]:
        """The row of the dataset that each sample has first; of an empty list another's, or 0 if all are empty."""
        if self.listed is None:
            return self.rows
        return self.listed[np.minimum(self.rows, len(self.listed) - 1)] if len(self.listed) else self.rows * 0

    @property
    def mean_rows(self) -> float:
        """Rows of a sample, on average."""
        return 1.0 if self.counts is None else float(self.counts.mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLayout:
    """Everything that must be known to read rows."""

    # in the order in which their first rows follow one another; behind them those that only links lead to
    files: tuple[SourceIdentity, ...]
    # number of each part's first row, and at the end the number of all rows. A part is a file, or one of several groups
    # of a file that were joined
    file_starts: tuple[int, ...]
    fields: tuple[FieldLayout, ...]  # the flat list of entries
    # for each dataset its parts, in turn; part `k` of all of them has the same rows
    datasets: tuple[tuple[DatasetPart, ...], ...]
    shape: SampleShape  # the user's structure
    # for each entry of the structure: the number of its field, or, for a whole compound, a dict of them
    entries: tuple[Any, ...]
    allow_external: bool  # whether h5py may follow data out of the opened files
    space: Space | None = None  # which samples there are, where these are not the rows
    left_out: int = 0  # files and groups of rows that lack a field
    columns: tuple[tuple[int, ValueColumn], ...] = ()  # by field number, the fields that come from no dataset
    lookups: tuple[Lookup, ...] = ()  # the datasets that are looked up; all behind the others

    @property
    def ragged(self) -> dict[int, Lookup]:
        """What says which rows samples have, by the number of each ragged field."""
        return {
            target.field: one
            for one in self.lookups
            if one.counts is not None
            for target in self.datasets[one.dataset][0].targets
        }

    def field_named(self, name: str) -> int | None:
        """Return the number of the field that a sample has under a name, or that was asked for by it; None for none."""
        keys = dict(zip(self.shape.keys, self.entries, strict=True))
        named = {field.name: number for number, field in enumerate(self.fields)}
        found = keys.get(name, named.get(name))
        return found if isinstance(found, int) else None

    def only(self, numbers: Sequence[int]) -> SampleLayout:
        """Return the layout of some of the fields, by number, as a dict of them.

        Where all of these are looked up, or come from no dataset, the smallest of the others is there too, behind them.
        """
        aligned = len(self.aligned)
        kept = {
            n for n, parts in enumerate(self.datasets) if any(target.field in numbers for target in parts[0].targets)
        }
        wanted = list(numbers)
        wanted += dict.fromkeys(n for n in (self.fields[k].packed_by for k in numbers) if n is not None)
        if not kept & set(range(aligned)):
            small = min(range(aligned), key=lambda n: self.datasets[n][0].stored_row_nbytes)
            wanted += [target.field for target in self.datasets[small][0].targets[:1]]
            kept.add(small)
        place: dict[int | None, int] = {number: k for k, number in enumerate(wanted)}
        listed = sorted(kept)
        return replace(
            self,
            fields=tuple(
                replace(one, shapes=place.get(one.shapes), packed_by=place.get(one.packed_by))
                for one in (self.fields[n] for n in wanted)
            ),
            datasets=tuple(tuple(part.with_fields(place) for part in self.datasets[n]) for n in listed),
            shape=SampleShape(
                kind="dict", keys=tuple(map(str, wanted)), fields=tuple(Field(self.fields[n].name) for n in wanted)
            ),
            entries=tuple(range(len(wanted))),
            columns=tuple((place[number], column) for number, column in self.columns if number in place),
            lookups=tuple(
                replace(one, dataset=listed.index(one.dataset)) for one in self.lookups if one.dataset in kept
            ),
        )

    @property
    def aligned(self) -> tuple[tuple[DatasetPart, ...], ...]:
        """The datasets of which a sample takes its own rows: those that are not looked up."""
        return self.datasets[: len(self.datasets) - len(self.lookups)]

    def rows_of(self, dataset: int) -> int:
        """Return the rows of a dataset: those of all, but where it is looked up."""
        return sum(part.rows for part in self.datasets[dataset])

    @property
    def file_sizes(self) -> list[int]:
        """Bytes of each file."""
        return [size for file in self.files for size in file.file_sizes]

    @property
    def samples(self) -> int:
        """All samples: rows, unless `space` says which there are."""
        return self.rows if self.space is None else self.space.samples

    @property
    def has_boxes(self) -> bool:
        """Whether samples are parts of arrays, and not rows or several rows of segments."""
        return self.space is not None and self.space.edges is None

    @property
    def segments(self) -> Space | None:
        """The samples, where these are of segments of rows."""
        return None if self.has_boxes else self.space

    @property
    def draws(self) -> Draws | None:
        """How an epoch's samples are drawn; None where it takes all."""
        return None if self.space is None else self.space.draws

    def anchors_of(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the rows that samples begin at, by their numbers: a sample that is a row has that row's number."""
        return numbers if self.space is None else self.space.anchors_of(numbers)

    @property
    def rows(self) -> int:
        """All rows."""
        return self.file_starts[-1]

    @property
    def is_far(self) -> bool:
        """Whether any of the files is an object in a store."""
        return any(is_address(identity.path) for identity in self.files)

    def files_of(self, samples: NDArray[Any]) -> tuple[int, ...]:
        """Return the files that samples lie in, whatever their order, with those that links lead to from there."""
        if len(self.files) == 1:
            return (0,)
        rows = self.anchors_of(samples)
        if (rows[:-1] <= rows[1:]).all():
            # In the rows' own type: they are many, and would be copied to be compared.
            starts = np.minimum(self.file_starts, np.iinfo(rows.dtype).max).astype(rows.dtype)
            places = np.flatnonzero(np.diff(np.searchsorted(rows, starts)) > 0)
        else:
            places = np.unique(np.searchsorted(self.file_starts, rows, side="right") - 1)
        found = {parts[place].file for parts in self.aligned for place in places.tolist()}
        found.update(*(parts[place].behind for parts in self.aligned for place in places.tolist()))
        # What is looked up may lie in any of its files.
        found |= {part.file for one in self.lookups for part in self.datasets[one.dataset]}
        return tuple(sorted(found))

    def steps_of(self, dataset: int) -> tuple[tuple[int, ...] | None, str, str | float | None]:
        """Return the steps of the fields that a dataset fills, the column they count from, and their padding."""
        field = self.fields[self.datasets[dataset][0].targets[0].field]
        return field.steps, field.at, self.pad_of(field)

    def pad_of(self, field: FieldLayout) -> str | float | None:
        """Return what stands outside of segments and volumes in a field."""
        return self.space.pad if self.space is not None and field.pad is None else field.pad

    @property
    def row_nbytes(self) -> int:
        """Bytes that one sample takes in a batch; on average, where samples have unlike numbers of rows."""
        listed = sum(self.datasets[n][0].stored_row_nbytes * field.places for n, field in self.listed)
        listed += sum(round(f.images.mean_nbytes) for f in self.fields if f.images and f.kind == "object")
        matrices = [entry for entry in self.entries if isinstance(entry, SparseEntry) and entry.is_dense]
        dense = sum(self.fields[one.values].dense_nbytes for one in matrices)
        left_out = {one.values for one in matrices} | self.laid_dense
        ragged = sum(
            round(one.mean_rows * self.fields[number].placed_nbytes)
            for number, one in self.ragged.items()
            if number not in left_out
        )
        return listed + ragged + dense + sum(field.row_nbytes for field in self.fields)

    @property
    def columns_by_name(self) -> dict[int, tuple[str, ...]]:
        """The names of columns, in their order, of fields that go by them, by the place of each in a sample."""
        named = dict[int, tuple[str, ...]]()
        for k in self.shape.by_name:
            entry = self.entries[k]
            number = entry.values if isinstance(entry, SparseEntry) else entry
            for one in self.fields[number].axes if isinstance(number, int) else ():
                named |= {k: tuple(map(str, one.read().tolist()))} if one.axis == 1 else {}
        return named

    @property
    def laid_dense(self) -> set[int]:
        """The numbers of fields that say where the values of a dense matrix go, which no batch holds."""
        return {entry.columns for entry in self.entries if isinstance(entry, SparseEntry) and entry.is_dense}

    @property
    def listed(self) -> tuple[tuple[int, FieldLayout], ...]:
        """The datasets whose values come from a heap into lists, and the fields that they fill."""
        fields = [(n, self.fields[p[0].targets[0].field]) for n, p in enumerate(self.datasets) if p[0].heap is not None]
        return tuple((n, field) for n, field in fields if field.kind == "object" and field.images is None)

    @property
    def leading(self) -> tuple[DatasetPart, ...]:
        """The parts of the dataset, not looked up, with the most bytes a row: its chunks are the blocks."""
        return max(self.aligned, key=lambda parts: parts[0].stored_row_nbytes)

    @property
    def asked(self) -> int:
        """How many objects libhdf5 was asked for, because their headers were not understood."""
        return max((sum(part.asked for part in parts) for parts in self.datasets), default=0)

    @property
    def leaves(self) -> list[tuple[str, int | SparseEntry]]:
        """What a batch holds, by name, as `structure.leaves` lists it: numbers of fields, and sparse matrices."""
        entries = zip(self.shape.keys, self.entries, strict=True)
        return [leaf for key, entry in entries for leaf in leaves_of(key, entry)]

    def assemble(self, values: Sequence[Any]) -> Any:
        """Put one value for each field into the user's structure."""
        return self.shape.assemble([_pick(entry, values) for entry in self.entries])


def leaves_of(key: str, entry: Any) -> Iterator[tuple[str, int | SparseEntry]]:
    """Yield what an entry holds, by name: a compound has each member, as ``key:member``."""
    if isinstance(entry, dict):
        for member, inner in entry.items():
            yield from leaves_of(f"{key}:{member}", inner)
    else:
        yield key, entry


def numbers_of(leaf: int | SparseEntry) -> tuple[int, ...]:
    """Return the numbers of the fields that a leaf is made of, that of its values first."""
    return (leaf.values, leaf.columns) if isinstance(leaf, SparseEntry) else (leaf,)


def _pick(entry: Any, values: Sequence[Any]) -> Any:
    if isinstance(entry, SparseEntry):
        rows = values[entry.values]
        if entry.is_dense:
            return rows
        matrix = SparseRows(rows.values, values[entry.columns].values, rows.offsets, entry.width)
        return renumbered(matrix) if entry.is_renumbered else matrix
    if isinstance(entry, dict):
        return {key: _pick(inner, values) for key, inner in entry.items()}
    return values[entry]
