"""The layout of a sample: the datasets and files of its fields, and how their bytes are read.

Everything here is plain data, so that a layout can be sent to other processes without opening a file again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from h5stream.samples.columns import SampleColumn
from h5stream.samples.kinds import Draws
from h5stream.samples.lookup import Lookup
from h5stream.samples.packing import Packing
from h5stream.samples.ragged import Normalization, Ragged
from h5stream.samples.space import Space
from h5stream.storage.decode.elements import Meanings
from h5stream.storage.decode.images import Images
from h5stream.storage.layout.axis_names import AxisNames
from h5stream.storage.layout.fields import Field
from h5stream.storage.layout.parts import DatasetPart
from h5stream.storage.layout.request import SampleShape
from h5stream.storage.source.identity import SourceIdentity
from h5stream.structure import SparseRows, renumbered


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseEntry:
    """A sparse matrix in a batch."""

    values: int  # values, columns: numbers of the fields with its values and their columns
    columns: int
    width: int  # columns of the matrix, or the number of selected ones
    is_dense: bool  # whether a batch holds rows of a dense matrix
    # whether columns are numbered in the order of selection: not ascending, and `width` marks those not selected
    is_renumbered: bool = False


Entry: TypeAlias = "int | SparseEntry | dict[str, Entry]"
"""An entry of a sample's structure: a field's number, a sparse matrix, or the members of a compound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenRows:
    """The rows that a sample takes of a field."""

    steps: tuple[int, ...] | None = None  # relative to the row that they count from; None for that row alone
    at: str = ""  # the column of a `Table` with the row that steps count from; empty for the row at which samples begin
    pad: str | float | None = None  # fills steps outside of the data; None for the default of all fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The meaning of a field's numbers and columns."""

    categories: tuple[str, ...] | None = None  # if its numbers are codes, their labels
    meanings: Meanings = ()  # labels of an enum, from all files
    unit: str = ""  # NumPy's type of dates and times, which a batch holds as int64
    axes: tuple[AxisNames, ...] = dataclasses.field(default=(), compare=False)  # the names of its columns, if any


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldLayout:
    """One entry of a batch: a tensor, a list of bytes, or a list of objects."""

    name: str  # as the user wrote it, with a member after a colon
    # `"array"` (a tensor), `"bytes"` (a list of bytes), `"object"` (a list) or `"ragged"` (a varying number of rows per
    # sample)
    kind: str
    dtype: np.dtype  # scalar dtype in native byte order; `object` for kind `"object"`
    # shape of a sample's part: one row, or one row for each step, with the steps as first axis
    row_shape: tuple[int, ...]
    cast: Any = None  # the type that the user wants the batch cast to
    cut_at_nul: bool = False  # for bytes: whether a string ends at its first NUL
    take: TakenRows = TakenRows()
    ragged: Ragged | None = None  # the form of a ragged field in a batch
    labels: Labels = Labels()
    images: Images | None = None  # if its bytes are encoded images, their format
    normalize: Normalization | None = None  # the normalization of its numbers in a batch
    # if samples differ in shape, the number of the field with their shapes; `row_shape` is then that of any of them
    shapes: int | None = None
    # how its stored numbers become floats before normalization; if datasets differ, `packed_by` is the number of the
    # field with the index of each sample's packing
    packings: tuple[Packing, ...] = ()
    packed_by: int | None = None
    # the type of the items of variable-length values; None for strings
    items: np.dtype | None = dataclasses.field(default=None, compare=False)

    def with_axes(self, axes: tuple[AxisNames, ...]) -> FieldLayout:
        """Return the field with the names of its columns."""
        return replace(self, labels=replace(self.labels, axes=axes))

    @property
    def places(self) -> int:
        """Entries of a sample in a batch's list of a field: one, or one for each step."""
        return 1 if self.take.steps is None else len(self.take.steps)

    @property
    def form(self) -> Ragged:
        """The form of its ragged rows in a batch; raises TypeError for other fields."""
        if self.ragged is None:
            raise TypeError(f"{self.name!r} is not ragged")
        return self.ragged

    @property
    def is_of_values(self) -> bool:
        """Whether its rows are attributes of varying length, which are arrays in memory."""
        return self.kind == "object" and self.ragged is not None and not self.is_listed

    @property
    def is_listed(self) -> bool:
        """Whether a batch holds it as a list, not as a tensor."""
        return self.dtype.kind in "OS"

    @property
    def is_as_stored(self) -> bool:
        """Whether its numbers are unchanged in a batch."""
        return self.cast is None and self.normalize is None and not self.packings

    @property
    def row_nbytes(self) -> int:
        """Bytes of one sample in a slot; 0 for objects and ragged rows, which have none."""
        return 0 if self.kind in ("object", "ragged") else math.prod(self.row_shape) * self.dtype.itemsize

    @property
    def dense_nbytes(self) -> int:
        """Bytes of one row of a sparse matrix that a batch holds dense; 0 for other fields."""
        return 0 if self.ragged is None else self.ragged.wanted * self.dtype.itemsize

    @property
    def placed_nbytes(self) -> int:
        """Bytes of one stored row in a batch: a sample's bytes, divided by its number of steps."""
        if self.kind == "ragged":
            return math.prod(self.row_shape) * self.dtype.itemsize
        return self.row_nbytes // self.places


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLayout:
    """Everything that is needed to read samples."""

    # in the order of their first rows; last the files that only links lead to
    files: tuple[SourceIdentity, ...]
    # number of each part's first row, and last the number of all rows. A part is a file, or one of several joined
    # groups of a file
    file_starts: tuple[int, ...]
    fields: tuple[FieldLayout, ...]  # the flat list of entries
    # for each dataset its parts, in order; part `k` has the same rows in all datasets
    datasets: tuple[tuple[DatasetPart, ...], ...]
    shape: SampleShape  # the user's structure
    # for each entry of the structure the number of its field, or for a whole compound a dict of numbers
    entries: tuple[Entry, ...]
    allow_external: bool  # whether h5py may follow data out of the opened files
    space: Space | None = None  # the samples, if these are not the rows
    left_out: int = 0  # files and groups of rows that lack a field
    columns: tuple[tuple[int, SampleColumn], ...] = ()  # numbers and columns of the fields that no dataset contains
    lookups: tuple[Lookup, ...] = ()  # for the datasets that are looked up, which are the last ones

    @property
    def ragged(self) -> dict[int, Lookup]:
        """The lookups with a varying number of rows per sample, by the numbers of their fields."""
        ragged = dict[int, Lookup]()
        for one in self.lookups:
            if one.counts is not None:
                ragged |= {target.field: one for target in self.datasets[one.dataset][0].targets}
        return ragged

    def field_named(self, name: str) -> int | None:
        """Return the number of the field with a name, in the sample or in the file; None if there is none."""
        keys = dict(zip(self.shape.keys, self.entries, strict=True))
        named = {field.name: number for number, field in enumerate(self.fields)}
        match = keys.get(name, named.get(name))
        return match if isinstance(match, int) else None

    def only(self, numbers: Sequence[int]) -> SampleLayout:
        """Return a layout with only the given fields, as a dict.

        If all of these are looked up, or come from no dataset, the smallest other field is appended.
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
        """The datasets whose rows are those of the samples: all that are not looked up."""
        return self.datasets[: len(self.datasets) - len(self.lookups)]

    def rows_of(self, dataset: int) -> int:
        """Return the number of rows of a dataset; it differs from `rows` only if the dataset is looked up."""
        last = self.datasets[dataset][-1]
        return last.row_start + last.rows

    @property
    def file_sizes(self) -> list[int]:
        """Bytes of each file."""
        return [size for file in self.files for size in file.file_sizes]

    @property
    def samples(self) -> int:
        """The number of samples: that of `space`, or of the rows."""
        return self.rows if self.space is None else self.space.samples

    @property
    def has_boxes(self) -> bool:
        """Whether samples are boxes of arrays, instead of rows or ranges of rows."""
        return self.space is not None and self.space.edges is None

    @property
    def segments(self) -> Space | None:
        """The space of samples, if they are ranges of rows within segments."""
        return None if self.space is None or self.space.edges is None else self.space

    @property
    def draws(self) -> Draws | None:
        """How an epoch's samples are drawn; None if it takes all."""
        return None if self.space is None else self.space.draws

    def anchors_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the rows at which samples begin; a sample that is a row has that row's number."""
        return numbers if self.space is None else self.space.anchors_of(numbers)

    @property
    def is_joined(self) -> bool:
        """Whether any dataset has rows of several files or objects."""
        return any(len(parts) > 1 or parts[0].objects is not None for parts in self.datasets)

    @property
    def paths(self) -> list[str]:
        """The paths of the datasets, without repetition."""
        return [*dict.fromkeys(parts[0].path.strip("/") for parts in self.datasets)]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.file_starts[-1]

    @property
    def is_far(self) -> bool:
        """Whether any of the files is an object in a store."""
        return any(identity.is_far for identity in self.files)

    def files_of(self, samples: np.ndarray) -> tuple[int, ...]:
        """Return the sorted indices of the files that samples are read from, files behind links included."""
        if len(self.files) == 1:
            return (0,)
        rows = self.anchors_of(samples)
        if (rows[:-1] <= rows[1:]).all():
            # In the rows' own type: comparing other types would copy all of them.
            starts = np.minimum(self.file_starts, np.iinfo(rows.dtype).max).astype(rows.dtype)
            places = np.flatnonzero(np.diff(np.searchsorted(rows, starts)) > 0)
        else:
            places = np.unique(np.searchsorted(self.file_starts, rows, side="right") - 1)
        files = {parts[place].file for parts in self.aligned for place in places.tolist()}
        files.update(*(parts[place].behind for parts in self.aligned for place in places.tolist()))
        # Rows that are looked up may be in any file of their dataset.
        files |= {part.file for one in self.lookups for part in self.datasets[one.dataset]}
        return tuple(sorted(files))

    def steps_of(self, dataset: int) -> tuple[tuple[int, ...] | None, str, str | float | None]:
        """Return the steps of a dataset's fields, the column they count from, and their padding."""
        field = self.fields[self.datasets[dataset][0].targets[0].field]
        return field.take.steps, field.take.at, self.pad_of(field)

    def pad_of(self, field: FieldLayout) -> str | float | None:
        """Return the padding of a field outside of segments and volumes."""
        return self.space.pad if self.space is not None and field.take.pad is None else field.take.pad

    @property
    def row_nbytes(self) -> int:
        """Bytes of one sample in a batch; the mean if samples differ in their number of rows."""
        nbytes, ragged = 0, self.ragged
        for n, field in self.listed:
            nbytes += self.datasets[n][0].stored_row_nbytes * field.places
        for entry in self.entries:
            if isinstance(entry, SparseEntry) and entry.is_dense:
                nbytes += self.fields[entry.values].dense_nbytes
                for number in (entry.values, entry.columns):
                    ragged.pop(number, None)
        for number, one in ragged.items():
            nbytes += round(one.mean_rows * self.fields[number].placed_nbytes)
        for field in self.fields:
            nbytes += field.row_nbytes
            if field.images and field.kind == "object":
                nbytes += round(field.images.mean_nbytes)
        return nbytes

    @property
    def columns_by_name(self) -> dict[int, tuple[str, ...]]:
        """The names of the columns of fields that select columns by name, by their index in a sample."""
        named = dict[int, tuple[str, ...]]()
        for k in self.shape.by_name:
            entry = self.entries[k]
            number = entry.values if isinstance(entry, SparseEntry) else entry
            for one in self.fields[number].labels.axes if isinstance(number, int) else ():
                named |= {k: tuple(map(str, one.read().tolist()))} if one.axis == 1 else {}
        return named

    @property
    def laid_dense(self) -> set[int]:
        """The numbers of the fields with the columns of dense matrices, which no batch holds."""
        return {entry.columns for entry in self.entries if isinstance(entry, SparseEntry) and entry.is_dense}

    @property
    def listed(self) -> tuple[tuple[int, FieldLayout], ...]:
        """The datasets whose values are read from a heap into lists, and their fields."""
        listed = list[tuple[int, FieldLayout]]()
        for n, parts in enumerate(self.datasets):
            if parts[0].heap is not None:
                field = self.fields[parts[0].targets[0].field]
                if field.kind == "object" and field.images is None:
                    listed.append((n, field))
        return tuple(listed)

    @property
    def leading(self) -> tuple[DatasetPart, ...]:
        """The parts of the aligned dataset with the most bytes per row, whose chunks are the shuffle's blocks."""
        sizes = [parts[0].stored_row_nbytes for parts in self.aligned]
        return self.aligned[sizes.index(max(sizes))]

    @property
    def asked(self) -> int:
        """The number of objects that libhdf5 opened, because their headers were not understood."""
        return max((sum(part.queried for part in parts) for parts in self.datasets), default=0)

    @property
    def leaves(self) -> list[tuple[str, int | SparseEntry]]:
        """The tensors and matrices of a batch by name, as `structure.leaves` lists them, with their fields."""
        entries = zip(self.shape.keys, self.entries, strict=True)
        return [leaf for key, entry in entries for leaf in leaves_of(key, entry)]

    def assemble(self, values: Sequence[Any]) -> Any:
        """Put one value per field into the user's structure."""
        entries = [_pick(entry, values) for entry in self.entries]
        if self.shape.kind == "one":
            return entries[0]
        return tuple(entries) if self.shape.kind == "tuple" else dict(zip(self.shape.keys, entries, strict=True))


def leaves_of(key: str, entry: Entry) -> Iterator[tuple[str, int | SparseEntry]]:
    """Yield the leaves of an entry by name: the members of a compound as ``key:member``."""
    if isinstance(entry, dict):
        for member, inner in entry.items():
            yield from leaves_of(f"{key}:{member}", inner)
    else:
        yield key, entry


def numbers_of(leaf: int | SparseEntry) -> tuple[int, ...]:
    """Return the numbers of the fields of a leaf, that of its values first."""
    return (leaf.values, leaf.columns) if isinstance(leaf, SparseEntry) else (leaf,)


def _pick(entry: Entry, values: Sequence[Any]) -> Any:
    if isinstance(entry, SparseEntry):
        rows = values[entry.values]
        if entry.is_dense:
            return rows
        matrix = SparseRows(rows.values, values[entry.columns].values, rows.offsets, entry.width)
        return renumbered(matrix) if entry.is_renumbered else matrix
    if isinstance(entry, dict):
        return {key: _pick(inner, values) for key, inner in entry.items()}
    return values[entry]
