"""The storage of many similar members, objects of a file or whole files, as columns with one entry for each member.

Headers that fit one template are parsed as arrays of bytes (`h5stream.storage.headers.headers`). libhdf5 reads the
members whose headers are not understood, and verifies a few of the others. The catalogue caches the columns.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import h5py
import numpy as np

from h5stream.base.limits import cached_property
from h5stream.base.names import Ints, Names, Reading
from h5stream.errors import FieldLengthError, FieldNotFoundError
from h5stream.samples.packing import MEANINGS
from h5stream.storage.decode import elements
from h5stream.storage.decode.elements import (
    Meanings,
    joined_meanings,
    kind_of,
    may_be_sorted,
    meanings_of,
    same,
    same_type,
    sample_value,
)
from h5stream.storage.decode.small_floats import dtype_of_float, shown
from h5stream.storage.file.catalogue import Catalogue
from h5stream.storage.file.discovery import dataset_at, is_there, means, object_at, once_of, refusal, type_once
from h5stream.storage.file.external import Guard, without_soft_links
from h5stream.storage.file.groups import RawFile, checked
from h5stream.storage.file.h5py_reader import compact_offset
from h5stream.storage.file.meanings import meaning_of
from h5stream.storage.file.stored import open_hdf5
from h5stream.storage.headers.headers import ASK, Chunks, HeaderBatch, chunks_of, looked_up, read_headers
from h5stream.storage.headers.templates import CHUNKED, COMPACT, CONTIGUOUS, NOWHERE, Bools, Raw, is_sound, numbers_in
from h5stream.storage.layout.fields import Field
from h5stream.storage.layout.heap import DOUBTFUL
from h5stream.storage.layout.index import (
    INDEX_UNREADABLE,
    MOST_OFFSET,
    beyond_end,
    fill_of,
    found_chunks,
    offset_of,
    refuse_beyond,
)
from h5stream.storage.layout.parts import Meaning
from h5stream.storage.many.meanings import distinct_meanings
from h5stream.storage.source.handles import DAMAGE
from h5stream.storage.source.local import FilesIdentity, identity_of


class MixedStorageError(Exception):
    """Raised for a member that is stored in another way than the first; the caller then reads members one by one."""


class ObjectMembers:
    """Objects of one file that are a sample each, by number."""

    file: int | None = None  # the number of the source file of all parts; None for that of the first member
    first = 0  # the member that the others are compared with

    def __init__(self, raw_file: RawFile, names: Sequence[str], missing: str = "error") -> None:
        self.raw_file, self.raw, self.catalogue, self.guard = raw_file, raw_file.raw, raw_file.catalogue, raw_file.guard
        self.names, self.missing = names, missing  # missing: as in `Objects`
        addresses = names.addresses if isinstance(names, Names) else None
        self._addresses = {} if addresses is None else {"": addresses}

    def _header_addresses(self, path: str) -> Ints:
        """Return the header addresses of a path in each member; negative if it is not in this file."""
        if path not in self._addresses:
            is_inside = path and not path.startswith("/")
            names = self.names if is_inside else [member_path(name, path) for name in self.names]
            self._addresses[path] = self.raw_file.inside(names, path) if is_inside else self.raw_file.addresses(names)
        return self._addresses[path]

    def headers(self, path: str, attributes: Sequence[str]) -> list[HeaderBatch]:
        """Read the headers under a path in each member, with some of their attributes."""
        return self.raw_file.headers(self._header_addresses(path), attributes)

    def opened(self, k: int) -> contextlib.AbstractContextManager[tuple[h5py.File, str]]:
        """Return the file, which stays open, and the name of member `k`."""
        return contextlib.nullcontext((self.raw_file.file, self.names[k]))

    def has(self, k: int, file: h5py.File, path: str) -> bool:
        """Return whether member `k` has a path; raise `MixedStorageError` if it leads to another file."""
        if self._header_addresses(path)[k] >= 0:
            return True
        if is_there(file, member_path(self.names[k], path), file.filename):
            raise MixedStorageError(self.names[k])
        return False

    def file_range(self, which: Ints) -> tuple[Ints | int, Ints | int]:
        """Return the file size of members, and the position of their file in the bytes of all."""
        return self.raw_file.superblock.file_nbytes, 0


class FileMembers:
    """Files that are a sample each; see `ObjectMembers`."""

    file = first = 0

    def __init__(self, identity: FilesIdentity, catalogue: Catalogue, missing: str, guard: Guard) -> None:
        self.names, self.catalogue, self.missing = Names.of([""] * len(identity.paths)), catalogue, missing
        self.identity, self.paths, self.guard = identity, [*identity.paths], guard
        ends = identity.starts + identity.sizes
        self.raw = Raw(source=identity.for_structure(), wide=8, long=8, origin=identity.starts, end=ends)

    @cached_property
    def _roots(self) -> Ints:
        return root_addresses(self.raw)

    def headers(self, path: str, attributes: Sequence[str]) -> list[HeaderBatch]:
        """Read the headers under a path in each file, with some of their attributes."""
        return read_headers(self.raw, looked_up(self.raw, self._roots, path), attributes)

    @contextlib.contextmanager
    def opened(self, k: int) -> Iterator[tuple[h5py.File, str]]:
        """Open file `k`."""
        with open_hdf5(self.paths[k]) as file:
            yield file, ""

    def has(self, k: int, file: h5py.File, path: str) -> bool:
        """Return whether file `k` has a path; raise `MixedStorageError` if more than hard links lead there."""
        self.guard.check_links(file, path, file.filename)
        if not is_there(file, path, file.filename):
            return False
        obj = object_at(file, path or "/", file.filename)
        is_elsewhere = obj is not None and obj.file.filename != file.filename
        if is_elsewhere or without_soft_links(file, path).strip("/") != path:
            raise MixedStorageError(path)
        return True

    def file_range(self, which: Ints) -> tuple[Ints | int, Ints | int]:
        """Return the sizes of files, and their positions in the concatenation of all."""
        return self.identity.sizes[which], self.identity.starts[which]


Members = ObjectMembers | FileMembers


def chunk_offsets(members: Members, chunks: Chunks, which: Ints, path: str) -> Ints:
    """Return the offsets of chunks in the bytes of all members; raise if one is beyond the end of its file."""
    owner, _, offset, nbytes, _ = chunks
    file_nbytes, start = members.file_range(which[owner])
    for k in beyond_end(offset, nbytes, file_nbytes)[:1].tolist():
        with members.opened(int(which[owner[k]])) as (file, name):
            size = int(np.broadcast_to(file_nbytes, len(offset))[k])
            refuse_beyond(file.filename, member_path(name, path), int(offset[k]), int(nbytes[k]), size)
    return np.asarray(offset + start)


def member_path(name: str, path: str) -> str:
    """Return the path of a dataset in a member; "/labels/*" is beside it, with the member's name for the star."""
    if path.startswith("/"):
        return path[1:].replace("*", name.rpartition("/")[2])
    return f"{name}/{path}" if name and path else name or path


def relative_path(path: str) -> str:
    """Return a path relative to a member, without "./" and slashes; empty for the member itself."""
    path = path.strip("/")
    return "" if path == "." else path.removeprefix("./")


def root_addresses(raw: Raw) -> Ints:
    """Return the address of each file's root group; `ASK` if its superblock is unusual.

    Source: the HDF5 File Format Specification, version 3.0, "Disk Format: Level 0A".
    """
    heads, _ = raw.read(raw.origin, 96)
    oldest = np.frombuffer(b"\x89HDF\r\n\x1a\n" + bytes(5) + bytes([8, 8, 0]), np.uint8)
    old = (heads[:, :16] == oldest).all(axis=1) & (heads[:, 20:24] == 0).all(axis=1)
    new = (heads[:, :8] == oldest[:8]).all(axis=1) & np.isin(heads[:, 8], (2, 3)) & is_sound(heads, 48)
    new &= (heads[:, 9:12] == [8, 8, 0]).all(axis=1)  # wide addresses and lengths; not being written
    # In an old superblock, the second address is that of the driver information block, not of an extension.
    places = (24, 12), (48, 20), (40, 28), (64, 36)
    base, extension, end, root = (
        np.where(new, numbers_in(heads, newer, 8), numbers_in(heads, older, 8)) for older, newer in places
    )
    usual = (old | new) & (base == 0) & (extension == -1) & (end >= 0) & (end <= raw.end - raw.origin)
    return np.where(usual, root, ASK)


# --- Columns: one entry for each member -------------------------------------------------------------------------------


class _ColumnBase:
    """One path, or one attribute, of every member.

    Entries come from headers (`add_headers`) or from libhdf5 (`query`), which also verifies some of them (`matches`).
    """

    attribute = ""  # the attribute that is read; empty for the object itself
    extra_attributes: tuple[str, ...] = ()  # further attributes that are read
    is_inside = True  # whether the path is inside the members, or beside them

    def __init__(self, path: str, count: int, **arrays: Any) -> None:
        self.path, self.label = path, path  # the label is the column's key in the catalogue
        self.valid = np.zeros(count, dtype=bool)  # which entries are filled
        # arrays or lists with one entry for each member, by their keys in the catalogue; "kind": see `kind`
        self.table: dict[str, Any] = {"kind": np.full(count, -1), **arrays}

    @property
    def kind(self) -> Ints:
        """Members that are stored in the same way have the same number; -1 if unknown."""
        kind: Ints = self.table["kind"]
        return kind

    def set_missing(self, k: int) -> bool:
        """Mark member `k` as lacking the path; return whether this is allowed."""
        return False

    def spot_checks(self) -> list[int]:
        """Return the members to verify through libhdf5: the first of each kind, and a few more."""
        kinds = (np.flatnonzero(self.kind == number) for number in np.unique(self.kind[self.kind >= 0]).tolist())
        return [int(indices[k]) for indices in kinds for k in checked(len(indices))]

    def invalidate(self, k: int) -> Bools:
        """Discard the entries of all members of the kind of `k`; return their mask."""
        mask: Bools = self.kind == self.kind[k]
        self.valid[mask], self.kind[mask] = False, -1
        return mask

    def select(self, which: Ints) -> None:
        """Keep only the members `which`, in that order."""
        for name, values in self.table.items():
            self.table[name] = values[which] if isinstance(values, np.ndarray) else [values[k] for k in which.tolist()]

    def save(self, catalogue: Catalogue) -> None:
        """Put the column into the catalogue."""
        for name, values in self.table.items():
            catalogue.put(self._key(name), values)

    def load(self, catalogue: Catalogue, count: int) -> None:
        """Read the column from the catalogue; raise ValueError if it is not consistent."""
        for name, values in self.table.items():
            self.table[name] = catalogue.values(self._key(name), count, np.shape(values)[1:])

    def _key(self, name: str) -> str:
        """Return the catalogue's key of an array of the table; no path contains two slashes."""
        return f"{self.label}//{name}" if name else self.label


def fill_columns(members: Members, columns: Sequence[MemberColumn]) -> Ints:
    """Fill all columns; return the numbers of the members that have all of them.

    Raises ValueError if the catalogue and libhdf5 disagree.
    """
    catalogue, count = members.catalogue, len(members.names)
    if catalogue.is_kept:
        which = catalogue.arrays["which"].astype(np.int64)
        if not len(which) or (np.diff(which) <= 0).any() or not 0 <= which[0] <= which[-1] < count:
            raise ValueError("which")
        for column in columns:
            column.load(catalogue, len(which))
        for row in checked(len(which), is_kept=True):
            with members.opened(int(which[row])) as (file, name):
                if not all(column.matches(row, file, name) for column in columns):
                    raise ValueError(name)
        return which
    fill_from_headers(members, columns)
    pending = np.flatnonzero(~np.logical_and.reduce([column.valid for column in columns], axis=0, initial=True))
    present = np.ones(count, dtype=bool)
    for k in pending.tolist():
        present[k] = _fill_member(members, columns, k)
    which = np.flatnonzero(present)
    for column in columns:
        if len(which) < count:
            column.select(which)
        column.save(catalogue)
    catalogue.arrays["which"] = which
    return which


def fill_from_headers(members: Members, columns: Sequence[MemberColumn]) -> None:
    """Fill columns from headers, and discard kinds for which libhdf5 disagrees."""
    by_path: dict[str, list[MemberColumn]] = {}
    for column in columns:
        if column.is_inside:
            by_path.setdefault(column.path, []).append(column)
        else:
            column.add_headers(members, [])
    for path, columns_here in by_path.items():
        attributes = [name for column in columns_here for name in (column.attribute, *column.extra_attributes) if name]
        headers = members.headers(path, [*dict.fromkeys(attributes)])
        for column in columns_here:
            column.add_headers(members, headers)
    for k in sorted({k for column in columns for k in column.spot_checks()}):
        with members.opened(k) as (file, name):
            for column in columns:
                if column.valid[k] and not column.matches(k, file, name):
                    column.invalidate(k)


def _fill_member(members: Members, columns: Sequence[MemberColumn], k: int) -> bool:
    """Fill the remaining entries of a member through libhdf5; return whether it has them all, if it may lack some."""
    with members.opened(k) as (file, name):
        for column in columns:
            if column.valid[k]:
                continue
            if column.is_inside and not column.attribute and not members.has(k, file, column.path):
                if members.missing == "skip":
                    return False
                if members.missing == "fill" and column.set_missing(k):
                    continue
            try:
                column.query(k, file, name)
            except FieldNotFoundError:
                if members.missing != "skip":
                    raise
                return False
    return True


# --- Datasets: how each is stored, its number of rows, and its chunks -------------------------------------------------


class DatasetStorage(NamedTuple):
    """How a dataset is stored, according to libhdf5, and its chunks."""

    name: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]  # zeros if it has no chunks
    kind: object  # equal for datasets that are stored in the same way, whatever their rows, chunks and fill values
    fill: tuple[int, int, bytes]
    chunks: Ints  # (4, chunks): number, offset, bytes, filter mask
    type: h5py.h5t.TypeID
    meaning: Meaning  # the attributes that say what its numbers mean
    path: str  # of its file

    def differs(self, other: DatasetStorage) -> bool:
        """Return whether another is stored in another way, or has another fill value and is incomplete."""
        sides = zip(other.shape, other.chunk_shape, strict=True)
        is_whole = other.chunks.shape[1] == math.prod(-(-n // c) if c else 1 for n, c in sides)
        is_same = (other.kind, other.chunk_shape, other.shape) == (self.kind, self.chunk_shape, self.shape)
        return not is_same or (other.fill != self.fill and not is_whole)

    def check(self, other: DatasetStorage, name: str, path: str) -> None:
        """Raise if another has another shape or type; `MixedStorageError` if it is only stored in another way."""
        dtypes = [elements.type_if_any(one.type) for one in (self, other)]
        first, this = dtypes
        is_other = not other.type.equal(self.type) if first is None or this is None else not same_type(first, this)
        if other.shape != self.shape or (
            is_other and not any(one is not None and may_be_sorted(one) for one in dtypes)
        ):
            texts = ("a type that h5py cannot read" if dtype is None else shown(dtype) for dtype in dtypes)
            own_text, other_text = (f"{text} {one.shape}" for text, one in zip(texts, (self, other), strict=True))
            where = f" of {self.path!r}" * (self.path != path)
            why = f": {name!r} holds {other_text}, and {self.name!r}{where} {own_text}, but objects must be alike. "
            if not is_other and len(other.shape) == len(self.shape):
                form, what = ("pad", "lengths") if other.shape[1:] == self.shape[1:] else ("arrays", "shapes")
                why += f"Field(..., ragged={form!r}) takes different {what}, and "
            why += "Objects([...]) takes only those that it names"
            raise refusal(path, name, why, FieldLengthError)
        if self.differs(other):
            places = repr(self.name), repr(name)
            if first is not None and this is not None and (why := elements.why_not_joined(first, this, places)):
                why = f": {name!r} and {self.name!r} have the same numbers, but of its {why}, so a code would not mean"
                raise refusal(path, name, f"{why} the same; write them with one enum", FieldLengthError)
            raise MixedStorageError(name)


def _value_text(value: object) -> str:
    """Return a value's type for messages, with the value itself unless it is an array."""
    if isinstance(value, np.ndarray):
        return f"{shown(value.dtype)} {value.shape}"
    kind = "text" if isinstance(value, (str, bytes)) else "empty" if isinstance(value, h5py.Empty) else "a list"
    return kind if isinstance(value, h5py.Empty) else f"{kind} ({reprlib.repr(value)})"


def storage_of(file: h5py.File, name: str) -> DatasetStorage:
    """Return how a dataset is stored, according to libhdf5."""
    path = file.filename
    opened = dataset_at(file, name, path)
    creation, shape, stored = opened.get_create_plist(), opened.shape, opened.get_type()
    if not shape:
        why = f": {name!r} is {'empty' if shape is None else 'a single value'}, and has no rows for ragged= or lookup="
        why += "; numbers in memory are a field too, Values([f[name][()] for ...])"
        raise refusal(path, name, why, FieldLengthError)
    layout, chunk_shape, offset = creation.get_layout(), (0,) * len(shape), None
    kind: object = layout, stored.encode(), shape[1:], *(creation.get_filter(k) for k in range(creation.get_nfilters()))
    chunks, is_indexed = np.zeros((4, 0), np.int64), layout == CONTIGUOUS and not creation.get_external_count()
    if is_indexed:
        offset = offset_of(opened)
    elif layout == COMPACT and 0 not in shape:
        offset = compact_offset(h5py.Dataset(opened), identity_of(path))
    elif layout == CHUNKED:
        with contextlib.suppress(*INDEX_UNREADABLE):
            chunk_shape, chunks, is_indexed = creation.get_chunk(), found_chunks(opened), True
    if offset is not None:
        nbytes = min(opened.get_storage_size(), MOST_OFFSET)  # a damaged file may claim more
        chunks = np.array([[0], [offset], [nbytes], [0]], dtype=np.int64)
    elif not is_indexed:  # a kind of its own: no other dataset describes how to read it
        kind = f"{path}:{name}"
    return DatasetStorage(
        name, shape, chunk_shape, kind, fill_of(opened), chunks, stored, meaning_of(h5py.Dataset(opened)), path
    )


class DatasetColumn(_ColumnBase):
    """The chunks of one dataset of each member; with `reference`, all must have its shape and be stored like it."""

    extra_attributes = MEANINGS

    def __init__(self, path: str, count: int, reference: DatasetStorage | None = None) -> None:
        rows, shape, meaning = (np.zeros(count, np.int64) for _ in range(3))
        super().__init__(path, count, rows=rows, shape=shape, said=meaning)
        self._meanings: dict[Meaning, int] = {}  # the distinct meanings, with their numbers
        self.reference, self.queried = reference, 0  # queried: members that libhdf5 had to read
        self._pieces: list[Chunks] = [np.zeros((5, 0), np.int64)]
        self._shapes: dict[tuple[int, ...], int] = {}  # the distinct chunk shapes, with their numbers
        self._kinds: dict[object, int] = {}  # the kinds by their storage and fill value
        self._numbers = itertools.count()

    @property
    def rows(self) -> Ints:
        """The number of rows of each member."""
        rows: Ints = self.table["rows"]
        return rows

    @property
    def shape_numbers(self) -> Ints:
        """The index of each member's chunk shape in `shapes`."""
        numbers: Ints = self.table["shape"]
        return numbers

    @property
    def meaning_numbers(self) -> Ints:
        """The index of each member's meaning in `meanings`."""
        numbers: Ints = self.table["said"]
        return numbers

    @property
    def meanings(self) -> list[Meaning]:
        """The distinct meanings of the datasets' numbers."""
        return [*self._meanings]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The distinct chunk shapes; zeros for contiguous datasets."""
        return [*self._shapes]

    @property
    def chunks(self) -> Chunks:
        """All chunks, sorted by member and by chunk number."""
        if len(self._pieces) > 1:
            chunks = np.concatenate(self._pieces, axis=1)
            self._pieces = [chunks.take(np.lexsort((chunks[1], chunks[0])), axis=1)]
        return self._pieces[0]

    def chunks_of(self, which: Ints) -> Chunks:
        """Return the chunks of the members `which`, in that order; their owners are positions in `which`."""
        begins, ends = (np.searchsorted(self.chunks[0], which, side) for side in ("left", "right"))
        counts = ends - begins
        at = np.arange(counts.sum()) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
        chunks: Chunks = self.chunks.take(at, axis=1)
        chunks[0] = np.repeat(np.arange(len(which)), counts)
        return chunks

    def add_headers(self, members: Members, headers: list[HeaderBatch]) -> None:
        """Fill the entries of headers that are understood and have the reference's axes, or those of their template."""
        for group in headers:
            rank = group.template.rank
            if not rank or (self.reference and len(self.reference.shape) != rank):
                continue
            usual = (group.dims[:, 1:] == group.dims[0, 1:]).all(axis=1)
            if self.reference:
                usual = (group.dims == self.reference.shape).all(axis=1) & (
                    group.sides == self.reference.chunk_shape
                ).all(axis=1)
            usual_group = group.of(usual)
            understood, chunks = chunks_of(members.raw.of(usual_group.which), usual_group)
            chunks[0] = usual_group.which[chunks[0]]
            chunks[2] -= members.file_range(chunks[0])[1]
            self._pieces.append(chunks)
            which, sides = usual_group.which[understood], usual_group.sides[understood]
            self.valid[which], self.rows[which] = True, usual_group.dims[understood, 0]
            self.kind[which] = next(self._numbers)
            self.shape_numbers[which] = self._shape_indices(sides)
            self._add_meanings(members, usual_group.of(understood))

    def _add_meanings(self, members: Members, group: HeaderBatch) -> None:
        """Fill the meanings of members whose headers fit one template."""
        if not len(group.which):
            return
        meanings, number = list[Meaning]([()]), np.zeros(len(group.which), np.int64)
        if group.said:
            with members.opened(int(group.which[0])) as (file, name):
                dataset = h5py.Dataset(dataset_at(file, member_path(name, self.path), file.filename))
                meanings, number = distinct_meanings(members.raw, group, dataset)
        numbers = np.array([self._meanings.setdefault(one, len(self._meanings)) for one in meanings])
        self.meaning_numbers[group.which] = numbers[number]

    def _shape_indices(self, sides: Ints) -> Ints:
        """Return the index of each chunk shape in `shapes`; fast because neighbours mostly have the same."""
        begins = np.flatnonzero(np.append(True, (sides[1:] != sides[:-1]).any(axis=1))[: len(sides)])
        numbers = [self._shapes.setdefault(tuple(one), len(self._shapes)) for one in sides[begins].tolist()]
        return np.repeat(np.array(numbers, np.int64), np.diff(begins, append=len(sides)))

    def query(self, k: int, file: h5py.File, name: str) -> None:
        """Read member `k` through libhdf5; raise if it differs from the reference."""
        name = member_path(name, self.path)
        storage = storage_of(file, name)
        if self.reference is not None:
            self.reference.check(storage, name, file.filename)
        self.valid[k], self.rows[k], self.queried = True, storage.shape[0], self.queried + 1
        self.kind[k] = self._kinds.setdefault((storage.kind, storage.fill), next(self._numbers))
        self.shape_numbers[k] = self._shapes.setdefault(storage.chunk_shape, len(self._shapes))
        self.meaning_numbers[k] = self._meanings.setdefault(storage.meaning, len(self._meanings))
        self._pieces.append(np.insert(storage.chunks, 0, k, axis=0))

    def set_missing(self, k: int) -> bool:
        """Mark member `k` as having no chunks: no rows, or only fill values."""
        self.valid[k] = True
        return True

    def matches(self, k: int, file: h5py.File, name: str) -> bool:
        """Return whether libhdf5 confirms member `k`, and its kind."""
        name, number = member_path(name, self.path), int(self.kind[k])
        if number < 0:
            return not is_there(file, name, file.filename)
        storage = storage_of(file, name)
        is_alike = storage.shape[0] == self.rows[k] and self._shapes.get(storage.chunk_shape) == self.shape_numbers[k]
        is_alike = is_alike and self._meanings.get(storage.meaning) == self.meaning_numbers[k]
        if not is_alike or not np.array_equal(self.chunks_of(np.array([k]))[1:], storage.chunks):
            return False
        if self.reference is not None and self.reference.differs(storage):
            return False
        key = storage.kind, storage.fill
        if number not in self._kinds.values():  # the first of its kind
            kind = self._kinds.setdefault(key, number)
            self.kind[self.kind == number] = kind
            number = kind
        return self._kinds.get(key) == number

    def invalidate(self, k: int) -> Bools:
        """Discard the entries and chunks of all members of the kind of `k`; return their mask."""
        chunks, mask = self.chunks, super().invalidate(k)
        self._pieces = [chunks.compress(~mask[chunks[0]], axis=1)]
        return mask

    def select(self, which: Ints) -> None:
        """Keep only the members `which`, in that order."""
        self._pieces = [self.chunks_of(which)]
        super().select(which)

    def save(self, catalogue: Catalogue) -> None:
        """Put the column and its chunks into the catalogue."""
        super().save(catalogue)
        catalogue.arrays |= {
            f"{self.path} {name}": values for name, values in zip(_CHUNK_ARRAYS, self.chunks, strict=True)
        }
        catalogue.arrays[f"{self.path} asked"] = np.array([self.queried])
        if self._meanings:
            catalogue.put(f"{self.path} meanings", [json.dumps(one) for one in self._meanings])
        catalogue.arrays[f"{self.path} shapes"] = np.array([len(self._shapes), *itertools.chain(*self._shapes)])

    def load(self, catalogue: Catalogue, count: int) -> None:
        """Read the column and its chunks from the catalogue; raise ValueError if they are not consistent."""
        super().load(catalogue, count)
        shapes = catalogue.arrays[f"{self.path} shapes"]
        self._shapes = {tuple(one): k for k, one in enumerate(shapes[1:].reshape(int(shapes[0]), -1).tolist())}
        key = f"{self.path} meanings"
        texts = catalogue.names(key) if f"{key} text" in catalogue.arrays else ()
        self._meanings = {tuple(map(tuple, json.loads(one))): k for k, one in enumerate(texts)}
        self._pieces = [np.array([catalogue.arrays[f"{self.path} {name}"] for name in _CHUNK_ARRAYS], np.int64)]
        self.queried = int(catalogue.arrays[f"{self.path} asked"][0])
        owner, number, _, nbytes, _ = self._pieces[0]
        numbers, step = self.shape_numbers, np.diff(owner)
        is_sound = ((step > 0) | ((step == 0) & (np.diff(number) > 0))).all() and (self.rows >= 0).all()
        is_sound &= ((owner >= 0) & (owner < count) & (number >= 0) & (nbytes >= 0)).all()
        number_of_meaning = self.meaning_numbers[self.kind >= 0]
        is_sound &= ((number_of_meaning >= 0) & (number_of_meaning < len(self._meanings))).all()
        is_sound &= ((numbers >= 0) & (numbers < len(self._shapes))).all() and len(self._shapes) == shapes[0]
        if not is_sound or (self.reference and (self.rows[self.kind >= 0] != self.reference.shape[0]).any()):
            raise ValueError(self.path)


_CHUNK_ARRAYS = ("owner", "number", "offset", "nbytes", "filter mask")


# --- Values: one for each member --------------------------------------------------------------------------------------


class ValueColumn(_ColumnBase):
    """One value of each member, an attribute or a scalar dataset: an array of all, or a list."""

    def __init__(
        self, spec: Field, member: tuple[str, ...], file: h5py.File, name: str, value: Any, count: int, guard: Guard
    ) -> None:
        first = spec.inside(name).name
        meaning = means(file, first, file.filename, guard) or Reading(first)
        is_array = isinstance(value, np.ndarray) and spec.ragged is None
        values = np.empty((count, *value.shape), value.dtype) if is_array else [None] * count
        is_inside = bool(spec.beside) or not name or f"{meaning.path}/".startswith(f"{name}/")
        super().__init__(spec.beside or relative_path(meaning.path[len(name) :]), count, **{"": values})
        self.is_inside, self._is_shared = is_inside, bool(name) and first == spec.name  # shared by all of a file
        self.attribute = meaning.rest[0] if meaning.mark == "@" else ""
        self.label = f"value {':'.join((spec.name, *member))}"
        self._spec, self._member, self._first, self._guard = spec, member, value, guard
        self._is_member = meaning.mark == ":"
        self._stored = _stored_type(file, meaning) if is_array and is_inside and not member else None
        self.meanings = self._meanings_at(file, first)  # the labels of an enum, of all values that libhdf5 read

    @property
    def values(self) -> Any:
        """The value of each member."""
        return self.table[""]

    def add_headers(self, members: Members, headers: list[HeaderBatch]) -> None:
        """Read the values of members that have the first one's type and shape."""
        if self._is_shared:
            self.valid[:], self.kind[:] = True, 0
            self.values[:] = self._first if isinstance(self._first, np.ndarray) else [self._first] * len(self.valid)
            return
        first = next((group for group in headers if members.first in group.which), None)
        if self._stored is None or not self._first.size or first is None or self.attribute not in first.values:
            return
        nbytes = self._stored.base.itemsize * self._first.size
        place, type_bytes = first.template.values[self.attribute]
        for number, group in enumerate(headers if place.nbytes == nbytes or not self.attribute else ()):
            addresses = group.values.get(self.attribute)
            if addresses is None or group.template.values[self.attribute][1] != type_bytes:
                continue
            is_like = addresses >= 0
            if not self.attribute:
                dims = first.dims[first.which == members.first]
                is_like &= (group.dims == dims).all(axis=1) & (group.nbytes == nbytes)
            members_here = group.which[is_like]
            data, is_read = members.raw.of(members_here).read(addresses[is_like], nbytes)
            which, data = members_here[is_read], np.ascontiguousarray(data[is_read, :nbytes])
            self.values[which] = data.view(self._stored.base).reshape(len(which), *self._first.shape)
            self.valid[which], self.kind[which] = True, number

    def _query(self, file: h5py.File, name: str) -> Any:
        path, mark = member_path(name, self.path), "@" if self.attribute else ":" if self._is_member else ""
        name = self._spec.inside(name).name
        meaning = (
            Reading(path, mark, (self.attribute,)) if self.is_inside else means(file, name, file.filename, self._guard)
        )
        one, first = read_value(file, name, meaning, self._guard, self._member, self._spec.dtype), self._first
        if self._spec.ragged is not None:
            return one  # types and shapes are compared once all values are known
        is_array = isinstance(first, np.ndarray)
        if kind_of(one) == kind_of(first) and (
            not is_array or (one.shape == first.shape and same_type(one.dtype, first.dtype))
        ):
            several = (self.meanings, "the objects before"), (self._meanings_at(file, name), repr(name))
            self.meanings, why = joined_meanings(several)
            if why:
                why = f": {name!r} is an enum whose {why}, so a code would not mean the same; write them with one enum"
                raise refusal(file.filename, name, why, FieldLengthError)
            return one
        why = f": {name!r} is {_value_text(one)}, and that of the first object is {_value_text(first)}, but objects "
        why += "must be alike. Field(..., ragged='pad') takes attributes of any length, also 'list', 'packed' and "
        why += "'nested', and "
        why += "'arrays' any shape. " if self.attribute else ""
        why += (
            "Objects([...]) takes only those that you name, and Values([...]) values of your own, one for each object"
        )
        raise refusal(file.filename, name, why, FieldLengthError)

    def _meanings_at(self, file: h5py.File, name: str) -> Meanings:
        if not isinstance(self._first, np.ndarray) or self._first.dtype.kind not in "iu":
            return ()
        stored = type_once(file, name, file.filename, self._guard)
        return meanings_of(elements.member_type(stored, self._member))

    def query(self, k: int, file: h5py.File, name: str) -> None:
        """Read the value of member `k`; raise if it differs from the first in type or shape."""
        self.values[k], self.valid[k] = self._query(file, name), True

    def matches(self, k: int, file: h5py.File, name: str) -> bool:
        """Return whether libhdf5 reads the same value of member `k`."""
        return bool(same(self.values[k], self._query(file, name)))


def _stored_type(file: h5py.File, meaning: Reading) -> np.dtype | None:
    """Return the type of stored numbers; None if only libhdf5 can convert their bytes to NumPy's."""
    if meaning.mark == ":":
        return None
    opened = file[meaning.path or "/"].attrs.get_id(meaning.rest[0]) if meaning.mark else file[meaning.path].id
    dtype = elements.type_of(opened.get_type())
    return dtype if elements.is_stored_as(opened.get_type(), dtype) else None


def read_value(
    file: h5py.File, name: str, meaning: Reading | None, guard: Guard, member: tuple[str, ...] = (), cast: object = None
) -> Any:
    """Return the value of an attribute or a scalar dataset, or of a member of it; see `once_of`."""
    if meaning is not None and meaning.mark != ":":
        guard.check_links(file, meaning.path, file.filename)
        with contextlib.suppress(*DAMAGE, NotImplementedError):
            path = meaning.path.encode("utf-8", "surrogateescape")
            if meaning.mark:
                owner = h5py.h5o.open(file.id, path or b".")
                opened = h5py.h5a.open(owner, meaning.rest[0].encode("utf-8", "surrogateescape"))
            else:
                opened = h5py.h5d.open(file.id, path)
            is_number = dtype_of_float(opened.get_type()) is None and opened.dtype.kind in "biufc"
            if is_number and opened.dtype.itemsize <= 16 and opened.shape is not None and not member:
                numbers = np.zeros(opened.shape, opened.dtype)
                opened.read(*[h5py.h5s.ALL] * (0 if meaning.mark else 2), numbers)
                return sample_value(numbers)
    value = elements.value_as_torch_bits(once_of(file, name, file.filename, guard), cast)
    if member and elements.compound_of(value) is None:
        why = f": {name!r} is {_value_text(sample_value(value))}, and that of the first object is a compound"
        raise refusal(file.filename, name, why, FieldLengthError)
    try:
        return sample_value(elements.member_of(value, member))
    except (ValueError, KeyError):
        why = f": {name!r} has no member {':'.join(member)!r}, which that of the first object has"
        raise refusal(file.filename, name, why, FieldLengthError) from None


# --- Bytes: objects that are byte strings of any length, such as encoded images ---------------------------------------


class BytesColumn(_ColumnBase):
    """The address and length of objects that are byte strings; `DOUBTFUL` if only libhdf5 can read one."""

    def __init__(self, path: str, count: int, guard: Guard) -> None:
        super().__init__(path, count, where=np.full(count, DOUBTFUL), nbytes=np.ones(count, np.int64))
        self.label, self._guard = f"bytes {path}", guard

    def _set(self, which: Ints | int, address: Ints | int, nbytes: Ints | int, kind: int) -> None:
        self.table["where"][which], self.table["nbytes"][which] = address, nbytes
        self.valid[which], self.kind[which] = True, kind

    def add_headers(self, members: Members, headers: list[HeaderBatch]) -> None:
        """Fill the entries of headers that are understood and whose data are contiguous."""
        for number, group in enumerate(headers):
            if group.template.layout == CONTIGUOUS:
                stored = group.of(group.address >= 0)
                self._set(stored.which, stored.address, stored.nbytes, number)

    def query(self, k: int, file: h5py.File, name: str) -> None:
        """Read the address of member `k` through libhdf5; raise if it is not a byte string."""
        self._set(k, *self._query(file, member_path(name, self.path)), -1)

    def _query(self, file: h5py.File, name: str) -> tuple[int, int]:
        path = file.filename
        opened = dataset_at(file, name, path)
        dtype, shape = elements.type_of(opened.get_type()), opened.shape
        if shape is None or elements.bytes_leaf(dtype) is None or len(shape) > 1 or (shape and dtype.itemsize > 1):
            type_text = "of variable length" if dtype.kind == "O" else dtype
            why = (
                f": {name!r} is {type_text} {shape}: decode= takes objects that are bytes: uint8, or one opaque value "
            )
            why += "(np.void); values of variable length are taken as rows of one dataset"
            raise refusal(path, name, why)
        self._guard.check_data(h5py.Dataset(opened), name, path)
        creation, nbytes = opened.get_create_plist(), dtype.itemsize * math.prod(shape)
        is_plain = dtype.kind != "u" or elements.is_stored_as(opened.get_type(), dtype)
        if not is_plain or creation.get_layout() != CONTIGUOUS or creation.get_external_count():
            return DOUBTFUL, 1
        offset = offset_of(opened)
        return (NOWHERE, 0) if offset is None else (offset, nbytes)

    def matches(self, k: int, file: h5py.File, name: str) -> bool:
        """Return whether libhdf5 gives the same address and length for member `k`."""
        expected = int(self.table["where"][k]), int(self.table["nbytes"][k])
        return self._query(file, member_path(name, self.path)) == expected


MemberColumn = DatasetColumn | ValueColumn | BytesColumn
