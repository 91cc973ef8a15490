"""Files that are alike, a sample each, read as rows of one dataset a field, as objects of one file are.

The first file is opened like any, with every check. Of the others only what may differ is looked at: type, shape,
chunks, filters, addresses, and what each has once. Where one is stored in another way, all are opened one by one.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import FieldNotFoundError, H5StreamError, TruncatedFileError
from h5stream.samples.objects import Objects
from h5stream.storage import whereabouts
from h5stream.storage.agreement import FileParts
from h5stream.storage.catalogue import Catalogue
from h5stream.storage.discovery import dataset_at, is_attribute, is_there, open_hdf5
from h5stream.storage.extents import Extents
from h5stream.storage.external import Guard
from h5stream.storage.field_reader import FieldReader
from h5stream.storage.fields import Field, SampleShape
from h5stream.storage.headers import ASK, Headers, read_headers
from h5stream.storage.index import ChunkIndex, beyond_end
from h5stream.storage.layout import DECODED, DIRECT, DatasetPart, Target
from h5stream.storage.lookups import LookedUp
from h5stream.storage.names import Names
from h5stream.storage.object_rows import ObjectRows, Owned, Stored, asked_of, owned_chunks, together
from h5stream.storage.objects import (
    KEPT,
    NO_CHUNKS,
    Columns4,
    Ints,
    Like,
    UnlikeError,
    are_mergeable,
    as_rows,
    check_like_first,
    chunked,
    in_order,
    kept_chunks,
    stored_type,
    targets_like,
    value_of,
    values_in,
    with_fill,
)
from h5stream.storage.places import Files, OpenFile
from h5stream.storage.source import FilesIdentity
from h5stream.storage.templates import checksums
from h5stream.storage.values import same
from h5stream.storage.whereabouts import find_in_each

OPEN_AT_ONCE = 128
"""Files that are open together while their headers are read."""

Once = tuple[int, str, bool, Any]
"""Of what each file has once: the field's number, its path, whether it is an attribute, and what the first has."""


class AlikeFiles:
    """Files of which each is a sample."""

    def __init__(
        self, every: Files, shape: SampleShape, group: str, samples: Objects, guard: Guard, words: Sequence[str]
    ) -> None:
        self._every, self._shape, self._group, self._samples = every, shape, group, samples
        self._guard = guard
        self._paths = [one.path for one in every.identities[: every.named]]
        self.identity = FilesIdentity.of(every.identities[: every.named])  # type: ignore[arg-type]
        is_ragged = any(isinstance(f, Field) and f.ragged is not None for f in shape.fields)
        self._catalogue = Catalogue(None if is_ragged else self.identity, *words)
        self._first, self._like = 0, list[tuple[DatasetPart, Like]]()
        self._once: list[Once] = []
        self._own: dict[int, LookedUp] = {}
        self._ragged: dict[int, RowsOfFiles] = {}
        self.left_out = 0

    def read(self, looked_up: dict[int, LookedUp]) -> FileParts | None:
        """Return all files as rows; None where they have to be read one by one. `looked_up` gets ragged fields."""
        if any(isinstance(f, Field) and (f.is_looked_up or f.decode) for f in self._shape.fields):
            return None
        try:
            if self._catalogue.is_kept:
                with contextlib.suppress(ValueError, LookupError, H5StreamError, UnlikeError):
                    return self._merged()
                self._catalogue.forget()
            found = self._merged()
            for place, rows in self._ragged.items():
                rows.add_to(
                    looked_up.setdefault(place, LookedUp(name=rows.first.name, crop=rows.first.crop)), self.identity
                )
            return found
        except UnlikeError:
            return None

    def _merged(self) -> FileParts:
        arrays, kept = self._catalogue.arrays, self._catalogue.is_kept
        first = self._described_first(arrays.get("which"))
        which, found, once = self._kept() if kept else self._found()
        self.left_out = len(self._paths) - len(which)
        names = Names(np.zeros(0, np.uint8), np.zeros(len(which) + 1, np.int64))
        parts, like = list[DatasetPart](), iter((*one, chunks) for one, chunks in zip(self._like, found, strict=True))
        for number, part in enumerate(first.parts):
            merged = replace(part, file=0, rows=len(which), row_start=0, objects=names)
            if part.pieces:
                index = self._index(*next(like), which)
                merged = replace(merged, asked=int(arrays["asked"][0]))
                merged = as_rows(merged, index, self._targets(part, number, index, which))
            parts.append(merged)
        values = tuple((number, each) for (number, *_), each in zip(self._once, once, strict=True))
        return replace(first, rows=len(which), parts=tuple(parts), once=values, are_objects=True)

    def _index(self, part: DatasetPart, like: Like, found: Columns4, which: Ints) -> ChunkIndex:
        """Put the chunks of all files together, which lie where they do in the file of each."""
        numbers, offset, nbytes, mask = found
        of = which[numbers // like.across]
        _check_inside(self.identity, of, offset, nbytes, part.path)
        return like.index(len(which), (numbers, offset + self.identity.starts[of], nbytes, mask))

    def _targets(self, part: DatasetPart, number: int, index: ChunkIndex, which: Ints) -> tuple[Target, ...]:
        """Return what a part fills, with the value that stands for what was never written."""
        lacking = np.bincount(index.numbers // index.columns, minlength=len(which)) < index.columns
        if not lacking.any():
            return part.targets
        try:
            return targets_like(part, self._described(int(which[np.flatnonzero(lacking)[0]])).parts[number])
        except FieldNotFoundError:
            with open_hdf5(self._paths[self._first]) as file:
                return with_fill(file[part.path], part.targets)

    def save(self) -> None:
        """Keep what was found for the next time."""
        if not self._catalogue.is_kept and len(self._paths) >= whereabouts.MANY:
            self._catalogue.save(len(self._paths), int(self._catalogue.arrays["asked"][0]))

    # --- the first, and any that is in doubt ---------------------------------------------------------------------

    def _described(self, k: int) -> FileParts:
        """Open a file with every check."""
        own = self._own = {}
        with open_hdf5(self._paths[k]) as file, contextlib.ExitStack() as linked:
            opened = OpenFile(file, k, self._every, self._guard, linked)
            reader = FieldReader(opened, 0, self._samples, Extents.of(self._samples), own)
            found = reader.read(self._shape, self._group)
            every = (*found.parts, *(part for known in own.values() for part in known.parts))
            is_usual = are_mergeable(found, self._group) and all(part.file == k for part in every)
            if not is_usual or (own and self._samples.missing != "error"):
                raise UnlikeError(self._paths[k])
            self._check_links(file, [part.path for part in every if part.path])
        return found

    def _described_first(self, which: Ints | None) -> FileParts:
        """Open the first file that has all fields, and note what the others are to be like."""
        candidates = range(len(self._paths)) if which is None else which[:1].tolist()
        for first in candidates:
            self._first = first
            try:
                found = self._described(first)
                break
            except FieldNotFoundError:
                if self._samples.missing == "error" or first == candidates[-1]:
                    raise
        named = {
            entry: f.name for entry, f in zip(found.entries, self._shape.fields, strict=True) if type(entry) is int
        }
        with open_hdf5(self._paths[self._first]) as file:
            self._like = [(part, Like(file[part.path], part)) for part in found.parts if part.pieces]
            self._once = [
                (number, named[number], is_attribute(file, named[number], file.filename), value)
                for number, value in found.once
            ]
            count = len(self._paths)
            self._ragged = {place: RowsOfFiles(known, file, count) for place, known in self._own.items()}
        return found

    def _check_links(self, file: Any, paths: list[str]) -> None:
        """Refuse paths that other than hard links lead along; raises KeyError for one that is not there."""
        for path in paths:
            steps = path.strip("/").split("/")
            for k in range(len(steps)):
                step = "/".join(steps[: k + 1])
                if not is_there(file, step, file.filename):
                    raise KeyError(path)
                if file.id.links.get_info(step.encode()).type != h5py.h5l.TYPE_HARD:
                    raise UnlikeError(path)

    # --- the others ----------------------------------------------------------------------------------------------

    def _found(self) -> tuple[Ints, list[Columns4], list[Any]]:
        """Say which files have all fields, where their chunks lie, and what each has once."""
        count = len(self._paths)
        once = [
            np.empty((count, *value.shape), value.dtype) if isinstance(value, np.ndarray) else [None] * count
            for *_, value in self._once
        ]
        known, chunks = self._from_bytes(once)
        there = np.ones(count, dtype=bool)
        for k in np.flatnonzero(~known).tolist():
            try:
                some, values = self._asked_of(k)
                self._ask_for_rows(k)
            except FieldNotFoundError:
                if self._samples.missing != "skip":
                    raise
                there[k] = False
                continue
            for every, one in zip(chunks, some, strict=True):
                every.append(one)
            for each, value in zip(once, values, strict=True):
                each[k] = value
        found = [in_order(each) for each in chunks]
        for k in whereabouts.checked(count if count >= whereabouts.MANY else 0):
            if known[k]:
                self._compare(k, k, found, once)
                with open_hdf5(self._paths[k]) as file:
                    for rows in self._ragged.values():
                        rows.compare(file, k)
        which, row = np.flatnonzero(there), np.cumsum(there) - 1
        for (_, like), columns in zip(self._like, found, strict=True):
            columns[0][:] = row[columns[0] // like.across] * like.across + columns[0] % like.across
        once = [each[which] if isinstance(each, np.ndarray) else [each[k] for k in which] for each in once]
        self._note(which, found, once, int((~known).sum()) if count >= whereabouts.MANY else 0)
        return which, found, once

    def _note(self, which: Ints, found: list[Columns4], once: list[Any], asked: int) -> None:
        """Put what was found into the catalogue."""
        catalogue = self._catalogue
        catalogue.arrays |= {"which": which, "asked": np.array([asked])}
        for number, columns in enumerate(found):
            catalogue.arrays |= {f"{number} {name}": column for name, column in zip(KEPT, columns, strict=True)}
        for number, values in enumerate(once):
            catalogue.put(f"value {number}", values)

    def _from_bytes(self, once: list[Any]) -> tuple[NDArray[np.bool_], list[list[Columns4]]]:
        """Read what is understood from the files' bytes: which files, and their chunks; fills what is there once."""
        count, chunks = len(self._paths), [list[Columns4]() for _ in self._like]
        known = np.zeros(count, dtype=bool)
        if count < whereabouts.MANY or not all(isinstance(value, np.ndarray) for *_, value in self._once):
            return known, chunks
        with open_hdf5(self._paths[self._first]) as file:
            stored_as = [stored_type(file, name, is_attribute=is_one) for _, name, is_one, _ in self._once]
        types = [one for one in stored_as if one is not None]
        if len(types) < len(stored_as):
            return known, chunks
        places = np.zeros((len(self._once), count), dtype=np.int64)
        for low in range(0, count, OPEN_AT_ONCE):
            # The first comes before the others of each lot: it is what they are compared with.
            some = np.concatenate([[self._first], np.arange(low, min(count, low + OPEN_AT_ONCE))])
            alike, found, places[:, some], ragged = self._lot(some, types)
            known[some[1:]] = alike[1:]
            alike[0] = False
            for rows, one in zip(self._ragged.values(), ragged, strict=True):
                rows.take(some, alike, *one)
            for every, (_, like), (numbers, offset, nbytes, mask) in zip(chunks, self._like, found, strict=True):
                of, inner = np.divmod(numbers, like.across)
                ours = alike[of]
                numbers = some[of] * like.across + inner
                every.append((numbers[ours], offset[ours], nbytes[ours], mask[ours]))
        which, source = np.flatnonzero(known), self.identity.open()
        for values, at, stored in zip(once, places, types, strict=True):
            nbytes = stored.base.itemsize * math.prod(values.shape[1:])
            room = np.empty((len(which), nbytes), dtype=np.uint8)
            begins = room.ctypes.data + np.arange(len(which)) * nbytes
            source.read_each(self.identity.starts[which] + at[which], np.full(len(which), nbytes), begins)
            values[which] = room.view(stored.base).reshape(len(which), *values.shape[1:])
        return known, chunks

    def _lot(
        self, some: Ints, types: list[np.dtype[Any]]
    ) -> tuple[NDArray[np.bool_], list[Columns4], Ints, list[tuple[Ints, Owned]]]:
        """Read some files' bytes.

        Gives which are like the first of them, their chunks, where lies what is there once, and ragged rows.
        """
        named = [_owner(name) if is_attribute else (name.strip("/."), "") for _, name, is_attribute, _ in self._once]
        paths: dict[str, list[str]] = {part.path: [] for part, _ in self._like}
        paths |= {rows.path: [] for rows in self._ragged.values()}
        ragged = list[tuple[Ints, Owned]]()
        for owner, attribute in named:
            paths.setdefault(owner, []).extend(filter(None, [attribute]))
        alike, found, places = (
            np.ones(len(some), dtype=bool),
            list[Columns4](),
            np.zeros((len(named), len(some)), np.int64),
        )
        with contextlib.ExitStack() as opened:
            givens, roots = _opened_raw([self._paths[k] for k in some.tolist()], opened)
            headers = {path: read_headers(givens, _inside(givens, roots, path), names) for path, names in paths.items()}
            for part, like in self._like:
                one = headers[part.path]
                ours = like.are_alike(one)
                found.append(like.stored(one, ours) if like.chunks is None else chunked(givens, one, ours))
                alike &= ours
            for rows in self._ragged.values():
                ours, counts, chunks = rows.understood(givens, headers[rows.path])
                ragged.append((counts, chunks))
                alike &= ours
        for number, ((owner, attribute), stored) in enumerate(zip(named, types, strict=True)):
            places[number], there = values_in(headers[owner], attribute, stored, self._once[number][3])
            alike &= there
        return alike, found, places, ragged

    def _kept(self) -> tuple[Ints, list[Columns4], list[Any]]:
        """Return what the catalogue has, some of it compared with what libhdf5 says."""
        catalogue = self._catalogue
        which = catalogue.arrays["which"].astype(np.int64)
        if not len(which) or (np.diff(which) <= 0).any() or not 0 <= which[0] <= which[-1] < len(self._paths):
            raise ValueError("which")
        every = (kept_chunks(catalogue, part, str(k), like, len(which)) for k, (part, like) in enumerate(self._like))
        found = [one for one in every if one is not None]
        values = enumerate(value for *_, value in self._once)
        once = [catalogue.values(f"value {number}", len(which), np.shape(value)) for number, value in values]
        for row in whereabouts.checked(len(which), is_kept=True):
            self._compare(int(which[row]), row, found, once)
        return which, found, once

    def _compare(self, k: int, row: int, found: list[Columns4], once: list[Any]) -> None:
        """Refuse what is known of a file if libhdf5 sees it otherwise."""
        chunks, values = self._asked_of(k, row)
        for (_, like), ours, theirs in zip(self._like, found, chunks, strict=True):
            if not like.agree(row, ours, theirs):
                raise UnlikeError(self._paths[k])
        if not all(same(a[row], b) for a, b in zip(once, values, strict=True)):
            raise UnlikeError(self._paths[k])

    def _ask_for_rows(self, k: int) -> None:
        """Ask libhdf5 for the rows of ragged fields."""
        if not self._ragged:
            return
        with open_hdf5(self._paths[k]) as file:
            for rows in self._ragged.values():
                try:
                    self._check_links(file, [rows.path])
                except KeyError:
                    raise UnlikeError(rows.path) from None
                rows.ask(file, k)

    def _asked_of(self, k: int, row: int = -1) -> tuple[list[Columns4], list[Any]]:
        """Ask libhdf5 where the chunks of a file's datasets lie, and for what it has once."""
        path, chunks, once = self._paths[k], list[Columns4](), list[Any]()
        row = k if row < 0 else row
        with open_hdf5(path) as file:
            for part, like in self._like:
                try:
                    self._check_links(file, [part.path])
                except KeyError:
                    if self._samples.missing == "fill":
                        chunks.append(NO_CHUNKS)
                        continue
                    raise FieldNotFoundError(
                        f"{path!r}: there is no dataset {part.path!r}. Objects(..., missing='skip') leaves out files "
                        "that lack a field",
                        field=part.path,
                        file=path,
                    ) from None
                chunks.append(like.of(dataset_at(file, part.path, path), row, part.path, path))
            for _, name, is_attribute, value in self._once:
                one = value_of(file, name, self._guard, is_attribute=is_attribute)
                once.append(check_like_first(one, value, name, path))
        return chunks, once


def _owner(name: str) -> tuple[str, str]:
    """Return the path of what has an attribute, and the attribute's name."""
    owner, _, attribute = name.rpartition("@")
    return owner.strip("/."), attribute


def _check_inside(files: FilesIdentity, of: Ints, offset: Ints, nbytes: Ints, name: str) -> None:
    """Refuse chunks of one dataset of each of some files that are said to lie beyond their ends."""
    beyond = beyond_end(offset, nbytes, files.sizes[of])
    if len(beyond):
        path = files.paths[int(of[beyond[0]])]
        raise TruncatedFileError(
            f"{path!r}: bytes of {name!r} are said to lie beyond the file's end. Copy it again from its source.",
            file=path,
        )


def _opened_raw(paths: list[str], opened: contextlib.ExitStack) -> tuple[Ints, Ints]:
    """Open files, and give what compiled code takes of each, and where its root group lies.

    The root is `ASK` in files that have anything unusual there, such as a user block.

    Source: the HDF5 File Format Specification, version 3.0, "Disk Format: Level 0A".
    """
    givens, heads = np.zeros((len(paths), 5), np.int64), np.zeros((len(paths), _HEAD_NBYTES), np.uint8)
    givens[:, 2:4] = 8
    for k, path in enumerate(paths):
        with contextlib.suppress(OSError):  # libhdf5 says what is wrong
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, descriptor)
            givens[k, :2] = descriptor, os.fstat(descriptor).st_size
            head = os.pread(descriptor, _HEAD_NBYTES, 0)
            heads[k, : len(head)] = np.frombuffer(head, np.uint8)
    usual = (heads[:, :16] == np.frombuffer(_OLD, np.uint8)).all(axis=1) & (heads[:, 20:24] == 0).all(axis=1)
    newer = (heads[:, :8] == np.frombuffer(_OLD[:8], np.uint8)).all(axis=1) & np.isin(heads[:, 8], (2, 3))
    newer &= (heads[:, 9:12] == [8, 8, 0]).all(axis=1)  # wide addresses and lengths; not being written
    newer &= checksums(heads[:, :44]) == np.ascontiguousarray(heads[:, 44:48]).view("<u4")[:, 0]
    # The second of an old one is information of a driver.
    base, extension, end, root = (_words(heads, *places, newer) for places in ((24, 12), (48, 20), (40, 28), (64, 36)))
    usual = (usual | newer) & (base == 0) & (extension == -1) & (end >= 0)
    usual &= end <= givens[:, 1]
    return givens, np.where(usual, root, ASK)


_HEAD_NBYTES = 96
_OLD = b"\x89HDF\r\n\x1a\n" + bytes(5) + bytes([8, 8, 0])
"""A superblock of version 0 with addresses and lengths of 8 bytes."""


def _words(heads: NDArray[np.uint8], old: int, new: int, are_new: NDArray[np.bool_]) -> Ints:
    """Give numbers of 8 bytes that lie in one place in superblocks of the old format, and in another in newer ones."""
    at = [np.ascontiguousarray(heads[:, place : place + 8]).view("<i8")[:, 0] for place in (old, new)]
    found: Ints = np.where(are_new, at[1], at[0])
    return found


def _inside(givens: Ints, addresses: Ints, path: str) -> Ints:
    """Return where the headers of objects lie that have one path in each file."""
    for step in filter(None, path.split("/")):
        addresses = find_in_each(givens, addresses, step)
    return addresses


class RowsOfFiles:
    """The rows that files have of a ragged field."""

    def __init__(self, first: LookedUp, file: Any, count: int) -> None:
        if len(first.parts) != 1 or first.parts[0].access not in (DIRECT, DECODED) or first.parts[0].index is None:
            raise UnlikeError(first.name)
        self.first, self.template = first, first.parts[0]
        self.path, self._is_chunked = self.template.path, file[self.template.path].chunks is not None
        self._kind, self._rows, self._chunks = asked_of(file, self.path).kind, np.zeros(count, np.int64), list[Owned]()

    def understood(self, givens: Ints, headers: Headers) -> tuple[NDArray[np.bool_], Ints, Owned]:
        """Say of which files it is stored as in the first of them, how many rows each has, and where chunks lie."""
        alike = (headers.kind == headers.kind[0]) & (headers.kind >= 0) & (headers.rank == headers.rank[0])
        alike &= (headers.rank > 0) & (headers.dims[:, 1:] == headers.dims[:1, 1:]).all(axis=1)
        rows = headers.dims[:, 0] if headers.dims.shape[1] else np.zeros(len(alike), np.int64)
        which, chunks = owned_chunks(givens, headers, np.flatnonzero(alike))
        alike[:] = False
        alike[which] = True
        return alike, rows, chunks

    def take(self, files: Ints, alike: NDArray[np.bool_], rows: Ints, chunks: Owned) -> None:
        """Take what was found of some files, of those that are alike."""
        owner, *others = chunks
        ours = alike[owner]
        self._rows[files[alike]] = rows[alike]
        self._chunks.append((files[owner[ours]], *(each[ours] for each in others)))  # type: ignore[arg-type]

    def ask(self, file: Any, k: int) -> None:
        """Ask libhdf5 for those of one file."""
        asked = asked_of(file, self.path)
        if asked.kind != self._kind:
            raise UnlikeError(self.path)
        self._rows[k] = asked.shape[0]
        number, offset, nbytes, mask = asked.chunks.T
        self._chunks.append((np.full(len(number), k), number, offset, nbytes, mask))

    def compare(self, file: Any, k: int) -> None:
        """Refuse what was found of a file if libhdf5 sees it otherwise."""
        asked, ours = asked_of(file, self.path), self._columns(k)
        if asked.kind != self._kind or asked.shape[0] != self._rows[k] or not np.array_equal(ours, asked.chunks):
            raise UnlikeError(self.path)

    def add_to(self, known: LookedUp, files: FilesIdentity) -> None:
        """Put the rows of all files one behind the other, as what is looked up."""
        owner, number, offset, nbytes, mask = (np.concatenate(each) for each in zip(*self._chunks, strict=True))
        index, count = self.template.index, len(self._rows)
        assert index is not None
        chunk_rows = np.full(count, index.chunk_shape[0]) if self._is_chunked else np.maximum(self._rows, 1)
        if (np.bincount(owner, minlength=count) < -(-self._rows // chunk_rows) * index.columns).any():
            raise UnlikeError(self.path)  # what was never written has a value that must be asked for
        _check_inside(files, owner, offset, nbytes, self.path)
        stored = Stored(
            which=np.arange(count),
            rows=self._rows,
            owner=owner,
            number=number,
            offset=offset + files.starts[owner],
            nbytes=nbytes,
            filter_mask=mask,
        )
        names = Names.of([self.path] * count)
        part, first = together(self.template, stored, names, is_chunked=self._is_chunked)
        known.entry, known.is_given, known.layouts = self.first.entry, True, self.first.layouts
        known.add_rows(
            *known.add_objects(ObjectRows(parts=[replace(part, file=0, row_start=0)], first=first, counts=self._rows))
        )

    def _columns(self, k: int) -> Ints:
        """Return the chunks of one file."""
        some = (np.stack(each[1:], axis=1)[each[0] == k] for each in self._chunks)
        return np.concatenate([np.zeros((0, 4), np.int64), *some])
