"""Where the data of many things lie that are alike inside, objects of a file or files: one table for both.

Headers that are like one another are compared as bytes (`h5stream.storage.headers`). Whatever is not understood is
asked of libhdf5, and so is some of what is. The catalogue keeps what was found.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import h5py
import numpy as np

from h5stream.errors import FieldLengthError, FieldNotFoundError, TruncatedFileError
from h5stream.storage import elements
from h5stream.storage.catalogue import Catalogue
from h5stream.storage.discovery import dataset_at, is_attribute, is_there, once_of, refusal, thing_at
from h5stream.storage.elements import as_samples_have_it, kind_of, same
from h5stream.storage.external import Guard, without_soft_links
from h5stream.storage.fallback import compact_offset
from h5stream.storage.global_heap import DOUBTFUL
from h5stream.storage.handles import DAMAGE
from h5stream.storage.headers import ASK, Chunks, Headers, chunks_of, looked_up, read_headers
from h5stream.storage.index import INDEX_UNREADABLE, beyond_end, fill_of, found_chunks, offset_of
from h5stream.storage.names import Ints, Names
from h5stream.storage.parts import open_hdf5
from h5stream.storage.source import FilesIdentity, identity_of
from h5stream.storage.templates import CHUNKED, COMPACT, CONTIGUOUS, NOWHERE, Bools, Raw, checksums, numbers_in
from h5stream.storage.whereabouts import RawFile, checked


class UnlikeError(Exception):
    """Things that are stored in another way than the first: they are read one by one."""


class _Many:
    """Many things that are alike inside; each has its number."""

    file: int | None = None  # the number of the source that all lie in, where it is not that of the first
    first = 0  # the one that all have to be like

    def __init__(self, names: Sequence[str], catalogue: Catalogue, missing: str) -> None:
        self.names, self.catalogue = names, catalogue  # where each lies in its file
        self.missing = missing  # what becomes of one that lacks something, as `Objects` says it

    def __len__(self) -> int:
        return len(self.names)

    def lacks(self, file: Any, path: str) -> bool:
        """Tell whether one has nothing under a path."""
        return not is_there(file, path, file.filename)


class ObjectsOfFile(_Many):
    """Objects of one file; `addresses` says by paths inside of them where headers lie, "" for those of their own."""

    def __init__(self, within: RawFile, names: Sequence[str], missing: str = "error") -> None:
        super().__init__(names, within.catalogue, missing)
        self.within, self.raw = within, within.raw
        known = names.addresses if isinstance(names, Names) else None
        self._addresses = {} if known is None else {"": known}

    def at(self, path: str) -> Ints:
        """Return where headers lie under a path inside of each; `NOWHERE` for what is not in this file."""
        if path not in self._addresses:
            is_beside = path.startswith("/")
            names = [inside_of(name, path) for name in self.names] if is_beside else self.names
            found = self.within.inside(names, path) if path and not is_beside else self.within.addresses(names)
            self._addresses[path] = found
        return self._addresses[path]

    def headers(self, path: str, attributes: Sequence[str]) -> Headers:
        """Read what lies under a path inside of each, and some attributes of it."""
        return self.within.headers(self.at(path), attributes)

    def opened(self, k: int) -> contextlib.AbstractContextManager[tuple[Any, str]]:
        """Return the file, which stays open, and the name of one."""
        return contextlib.nullcontext((self.within.file, self.names[k]))

    def check(self, k: int, file: Any, path: str) -> None:
        """Refuse what is there, and in another file."""
        if self.at(path)[k] == NOWHERE and is_there(file, inside_of(self.names[k], path), file.filename):
            raise UnlikeError(self.names[k])

    def room(self, which: Ints) -> tuple[Any, Any]:
        """Return the bytes of the file of each, and where these begin in all bytes."""
        return self.within.superblock.file_nbytes, 0


class FilesEach(_Many):
    """Files of which each is a sample."""

    file = 0

    def __init__(self, identity: FilesIdentity, catalogue: Catalogue, missing: str, guard: Guard) -> None:
        super().__init__(Names.of([""] * len(identity.paths)), catalogue, missing)
        self.identity, self.paths, self.guard = identity, [*identity.paths], guard
        ends = identity.starts + identity.sizes
        self.raw = Raw(source=identity.for_structure(), wide=8, long=8, origin=identity.starts, end=ends)

    @functools.cached_property
    def _roots(self) -> Ints:
        return roots_of(self.raw)

    def headers(self, path: str, attributes: Sequence[str]) -> Headers:
        """Read what lies under a path in each, beginning at their root groups."""
        return read_headers(self.raw, looked_up(self.raw, self._roots, path), attributes)

    @contextlib.contextmanager
    def opened(self, k: int) -> Iterator[tuple[Any, str]]:
        """Open one."""
        with open_hdf5(self.paths[k]) as file:
            yield file, ""

    def lacks(self, file: Any, path: str) -> bool:
        """Tell whether one has nothing under a path; refuse an external link that must not, or cannot, be followed."""
        self.guard.check_links(file, path, file.filename)
        return super().lacks(file, path)

    def check(self, k: int, file: Any, path: str) -> None:
        """Refuse what other than hard links lead to: an external one has its bytes in another file."""
        if self.lacks(file, path):
            why = f": there is no dataset {path!r}. Objects(..., missing='skip') leaves out files that lack a field"
            raise refusal(file.filename, path, why, FieldNotFoundError)
        found = thing_at(file, path or "/", file.filename)
        is_elsewhere = found is not None and found.file.filename != file.filename
        if is_elsewhere or without_soft_links(file, path).strip("/") != path:
            raise UnlikeError(path)

    def room(self, which: Ints) -> tuple[Any, Any]:
        """Return the bytes of files, and where these begin one behind the other."""
        return self.identity.sizes[which], self.identity.starts[which]


Members = ObjectsOfFile | FilesEach


def placed(members: Members, chunks: Chunks, which: Ints, path: str) -> Ints:
    """Return where chunks begin in all bytes; refuse such as lie outside of their file."""
    owner, _, offset, nbytes, _ = chunks
    file_nbytes, start = members.room(which[owner])
    beyond = beyond_end(offset, nbytes, file_nbytes)
    if len(beyond):
        with members.opened(int(which[owner[beyond[0]]])) as (opened, name):
            file, name = opened.filename, inside_of(name, path)
        why = f"{file!r}: bytes of {name!r} are said to lie beyond the file's end. Copy it again from its source."
        raise TruncatedFileError(why, file=file)
    return np.asarray(offset + start)


def inside_of(name: str, path: str) -> str:
    """Return the path of what lies inside of something, or beside it: at "/labels/*", its own name for the star."""
    if path.startswith("/"):
        return path[1:].replace("*", name.rpartition("/")[2])
    return f"{name}/{path}" if name and path else name or path


def roots_of(raw: Raw) -> Ints:
    """Return where the root group of each of many files lies; `ASK` of those with anything unusual there.

    Source: the HDF5 File Format Specification, version 3.0, "Disk Format: Level 0A".
    """
    heads, _ = raw.read(raw.origin, _HEAD_NBYTES)
    usual = (heads[:, :16] == np.frombuffer(_OLD, np.uint8)).all(axis=1) & (heads[:, 20:24] == 0).all(axis=1)
    newer = (heads[:, :8] == np.frombuffer(_OLD[:8], np.uint8)).all(axis=1) & np.isin(heads[:, 8], (2, 3))
    newer &= (heads[:, 9:12] == [8, 8, 0]).all(axis=1)  # wide addresses and lengths; not being written
    newer &= checksums(heads[:, :44]) == numbers_in(heads, 44, 4)
    # The second of an old one is information of a driver.
    places = (24, 12), (48, 20), (40, 28), (64, 36)
    base, extension, end, root = (
        np.where(newer, numbers_in(heads, new, 8), numbers_in(heads, old, 8)) for old, new in places
    )
    usual = (usual | newer) & (base == 0) & (extension == -1) & (end >= 0) & (end <= raw.end - raw.origin)
    return np.where(usual, root, ASK)


_HEAD_NBYTES = 96
_OLD = b"\x89HDF\r\n\x1a\n" + bytes(5) + bytes([8, 8, 0])
"""A superblock of version 0 with addresses and lengths of 8 bytes."""


# --- What is looked for in all of them --------------------------------------------------------------------------------


class _Column:
    """What is looked for under one path inside of each.

    Headers say it (`take`), or libhdf5 (`ask`), which also says of some whether it is what was found (`agrees`).
    """

    attribute = ""  # the attribute there that is looked for; empty for what lies there itself
    table: dict[str, Any]  # arrays, or lists, of what was found, with one place for each

    def __init__(self, path: str, count: int) -> None:
        self.path, self.label = path, path  # the label is what it is called in the catalogue
        self.known = np.zeros(count, dtype=bool)  # of which it was found
        self.kind = np.full(count, -1)  # a number for all that are stored alike; -1 for none

    def lack(self, k: int) -> bool:
        """Take it that one has none; tells whether that can be."""
        return False

    def samples(self) -> list[int]:
        """Choose those of which libhdf5 is asked, too: the first of each kind, and some more."""
        each = (np.flatnonzero(self.kind == number) for number in np.unique(self.kind[self.kind >= 0]).tolist())
        return [int(some[k]) for some in each for k in checked(len(some))]

    def doubt(self, k: int) -> Bools:
        """Forget all of a kind; tells which these are."""
        some: Bools = self.kind == self.kind[k]
        self.known[some], self.kind[some] = False, -1
        return some

    def only(self, which: Ints) -> None:
        """Keep some, in an order."""
        for name, each in self.table.items():
            self.table[name] = each[which] if isinstance(each, np.ndarray) else [each[k] for k in which.tolist()]
        self.kind, self.known = self.kind[which], self.known[which]

    def save(self, catalogue: Catalogue) -> None:
        """Note what was found in the catalogue."""
        for name, each in self.table.items():
            catalogue.put(f"{self.label} {name}".rstrip(), each)

    def load(self, catalogue: Catalogue, count: int) -> None:
        """Take what the catalogue has; raises ValueError for what cannot be."""
        for name, each in self.table.items():
            self.table[name] = catalogue.values(f"{self.label} {name}".rstrip(), count, np.shape(each)[1:])


def find(members: Members, columns: Sequence[Column]) -> Ints:
    """Find what lies where in all of them; gives the numbers of those that have all of it.

    Raises ValueError where the catalogue has what libhdf5 does not say.
    """
    catalogue, count = members.catalogue, len(members)
    if catalogue.is_kept:
        which = catalogue.arrays["which"].astype(np.int64)
        if not len(which) or (np.diff(which) <= 0).any() or not 0 <= which[0] <= which[-1] < count:
            raise ValueError("which")
        for column in columns:
            column.load(catalogue, len(which))
        for row in checked(len(which), is_kept=True):
            with members.opened(int(which[row])) as (file, name):
                if not all(column.agrees(row, file, name) for column in columns):
                    raise ValueError(name)
        return which
    from_bytes(members, columns)
    left = np.flatnonzero(~np.logical_and.reduce([column.known for column in columns], axis=0, initial=True))
    there = np.ones(count, dtype=bool)
    for k in left.tolist():
        there[k] = _ask(members, columns, k)
    which = np.flatnonzero(there)
    for column in columns:
        if len(which) < count:
            column.only(which)
        column.save(catalogue)
    catalogue.arrays["which"] = which
    return which


def from_bytes(members: Members, columns: Sequence[Column]) -> None:
    """Take what headers say, and compare some of it with what libhdf5 says."""
    by_path: dict[str, list[Column]] = {}
    for column in columns:
        by_path.setdefault(column.path, []).append(column)
    for path, some in by_path.items():
        headers = members.headers(path, [column.attribute for column in some if column.attribute])
        for column in some:
            column.take(members, headers)
    for k in sorted({k for column in columns for k in column.samples()}):
        with members.opened(k) as (file, name):
            for column in columns:
                if column.known[k] and not column.agrees(k, file, name):
                    column.doubt(k)


def _ask(members: Members, columns: Sequence[Column], k: int) -> bool:
    """Ask libhdf5 for what is not known of one; tells whether it has all of it, where it need not."""
    with members.opened(k) as (file, name):
        for column in columns:
            if column.known[k]:
                continue
            if not column.attribute:
                if members.missing != "error" and members.lacks(file, inside_of(name, column.path)):
                    if members.missing == "skip":
                        return False
                    if column.lack(k):
                        continue
                members.check(k, file, column.path)
            try:
                column.ask(k, file, name)
            except FieldNotFoundError:
                if members.missing != "skip":
                    raise
                return False
    return True


# --- Datasets: of each, how it is stored, how many rows it has, and where its chunks lie ------------------------------


class StoredAs(NamedTuple):
    """What libhdf5 says of one dataset: all but its rows that others of its kind have too, and where its chunks lie."""

    name: str
    kind: Any
    fill: tuple[int, int, bytes]
    shape: tuple[int, ...]
    chunks: Ints  # (chunks, 4): number, offset, bytes, filter mask
    type: Any

    @property
    def is_chunked(self) -> bool:
        """Whether it is stored in chunks."""
        return bool(self.kind[0] == h5py.h5d.CHUNKED)

    @property
    def side(self) -> tuple[int, ...]:
        """The shape of its chunks; zeros where there are none."""
        return self.kind[-1] if self.is_chunked else (0,) * len(self.shape)

    @property
    def alike(self) -> Any:
        """What others of its kind have too, whatever their chunks."""
        return (self.kind[:-1] if self.is_chunked else self.kind), self.fill

    @property
    def is_whole(self) -> bool:
        """Whether all of it was written."""
        sides = zip(self.shape, self.side, strict=True) if self.is_chunked else ()
        return bool(len(self.chunks) == math.prod(-(-n // c) for n, c in sides))

    def differs(self, other: StoredAs) -> bool:
        """Tell whether another is stored otherwise, or stands for another value where it was never written."""
        return (other.kind, other.shape) != (self.kind, self.shape) or (other.fill != self.fill and not other.is_whole)

    def check(self, other: StoredAs, name: str, path: str) -> None:
        """Refuse another of another shape or type; one that is only stored otherwise is `UnlikeError`."""
        if other.shape != self.shape or not other.type.equal(self.type):
            first, this = (f"{one.type.dtype} {one.shape}" for one in (self, other))
            why = f": {name!r} holds {this}, and {self.name!r} {first}, but objects must be alike. "
            why += "Field(..., ragged='pad') takes different lengths, and Objects([...]) names"
            raise refusal(path, name, why, FieldLengthError)
        if self.differs(other):
            raise UnlikeError(name)


def asked_of(file: Any, name: str) -> StoredAs:
    """Ask libhdf5 how a dataset is stored, and where its chunks lie."""
    path = file.filename
    opened = dataset_at(file, name, path)
    creation, shape, stored = opened.get_create_plist(), opened.shape, opened.get_type()
    if not shape:
        why = f": {name!r} is {'empty' if shape is None else 'a single value'}, and has no rows for ragged= or lookup="
        why += "; numbers in memory are a field too, Values([f[name][()] for ...])"
        raise refusal(path, name, why, FieldLengthError)
    layout, fill, chunks = creation.get_layout(), fill_of(opened), np.zeros((0, 4), np.int64)
    pipeline = tuple(creation.get_filter(k) for k in range(creation.get_nfilters()))
    kind: tuple[Any, ...] = (layout, stored.encode(), shape[1:], pipeline)
    if layout == h5py.h5d.CHUNKED:
        with contextlib.suppress(*INDEX_UNREADABLE):
            return StoredAs(name, (*kind, creation.get_chunk()), fill, shape, found_chunks(opened), stored)
    where, is_plain = None, layout == h5py.h5d.CONTIGUOUS and not creation.get_external_count()
    if is_plain:
        where = offset_of(opened)
    elif layout == h5py.h5d.COMPACT and 0 not in shape:
        where = compact_offset(h5py.Dataset(opened), identity_of(path))
    if where is not None:
        chunks = np.array([[0, where, opened.get_storage_size(), 0]], dtype=np.int64)
    elif not is_plain:  # it is a kind of its own, which is read as it is described
        return StoredAs(name, f"{path}:{name}", fill, shape, chunks, stored)
    return StoredAs(name, kind, fill, shape, chunks, stored)


class Lying(_Column):
    """Where one dataset of each lies; where they are to be alike in all their axes, `like` is what the first is."""

    def __init__(self, path: str, count: int, like: StoredAs | None = None) -> None:
        super().__init__(path, count)
        self.like, self.asked = like, 0
        self.table = {"rows": np.zeros(count, dtype=np.int64), "kind": self.kind, "shape": np.zeros(count, np.int64)}
        self._pieces: list[Chunks] = [(np.zeros(0, np.int64),) * 5]
        self._shapes: dict[tuple[int, ...], int] = {}  # of chunks, by their numbers
        self._numbers: dict[Any, int] = {}  # of kinds, by their headers, or by what libhdf5 says
        self._said: dict[int, Any] = {}  # what libhdf5 says of each

    @property
    def rows(self) -> Ints:
        """The rows of each."""
        rows: Ints = self.table["rows"]
        return rows

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of chunks that there are, zeros for what has none; `table` has the number of that of each."""
        return [*self._shapes]

    @property
    def chunks(self) -> Chunks:
        """Where chunks lie, in the order of what they belong to and of their numbers."""
        if len(self._pieces) > 1:
            columns = [np.concatenate(each) for each in zip(*self._pieces, strict=True)]
            order = np.lexsort((columns[1], columns[0]))
            self._pieces = [tuple(each[order] for each in columns)]  # type: ignore[list-item]
        return self._pieces[0]

    def take(self, members: Members, headers: Headers) -> None:
        """Take those that are understood, and agree in their axes with the first."""
        dims = headers.dims[:, 0 if self.like else 1 :]
        usual = (headers.kind >= 0) & (headers.rank == headers.rank[members.first]) & (headers.rank > 0)
        usual &= (dims == dims[members.first]).all(axis=1)
        if self.like:
            usual &= (headers.chunk == headers.chunk[members.first]).all(axis=1)
        for kind in np.unique(headers.kind[usual]).tolist():
            some, chunks = _owned_chunks(members, headers, np.flatnonzero(usual & (headers.kind == kind)))
            self.known[some], self.rows[some] = True, headers.dims[some, 0]
            self.kind[some] = self._numbers.setdefault(headers.kinds[kind].kind, len(self._numbers))
            shapes, of_each = _shapes_of(headers.chunk[some, : headers.kinds[kind].rank])
            numbers = [self._shapes.setdefault(one, len(self._shapes)) for one in map(tuple, shapes.tolist())]
            self.table["shape"][some] = np.array(numbers, np.int64)[of_each]
            self._pieces.append(chunks)

    def ask(self, k: int, file: Any, name: str) -> None:
        """Ask for one; refuse one that is unlike the first."""
        name = inside_of(name, self.path)
        asked = asked_of(file, name)
        if self.like is not None:
            self.like.check(asked, name, file.filename)
        self.known[k], self.rows[k], self.asked = True, asked.shape[0], self.asked + 1
        self.kind[k] = self._numbers.setdefault(asked.alike, len(self._numbers))
        self.table["shape"][k] = self._shapes.setdefault(asked.side, len(self._shapes))
        self._said.setdefault(int(self.kind[k]), asked.alike)
        self._pieces.append((np.full(len(asked.chunks), k), *asked.chunks.T))

    def lack(self, k: int) -> bool:
        """Take it that one has no rows, or what stands for them."""
        self.known[k] = True
        return True

    def agrees(self, k: int, file: Any, name: str) -> bool:
        """Tell whether one is stored as was found, in the way of others of its kind."""
        name, number = inside_of(name, self.path), int(self.kind[k])
        if number < 0:
            return not is_there(file, name, file.filename)
        asked = asked_of(file, name)
        owner, *columns = self.chunks
        ours = slice(*np.searchsorted(owner, [k, k + 1]).tolist())
        found = np.stack([each[ours] for each in columns], axis=1)
        is_alike = asked.shape[0] == self.rows[k] and self._shapes.get(asked.side) == self.table["shape"][k]
        if not is_alike or not np.array_equal(found, asked.chunks):
            return False
        if self.like is not None and self.like.differs(asked):
            return False
        said = asked.alike
        if number not in self._said:  # the first of its kind
            other = self._numbers.setdefault(said, number)
            self._said[number] = self._said[other] = said
            self.kind[self.kind == number] = other
        return bool(self._said[number] == said)

    def doubt(self, k: int) -> Bools:
        """Forget all of a kind."""
        chunks, some = self.chunks, super().doubt(k)
        left = ~some[chunks[0]]
        self._pieces = [tuple(each[left] for each in chunks)]  # type: ignore[list-item]
        return some

    def only(self, which: Ints) -> None:
        """Keep some, in an order."""
        owner, *columns = self.chunks
        counts = np.bincount(owner, minlength=len(self.kind))
        begins, counts = (np.cumsum(counts) - counts)[which], counts[which]
        at = np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        owner = np.repeat(np.arange(len(which)), counts)
        self._pieces = [(owner, *(each[at] for each in columns))]
        super().only(which)

    def save(self, catalogue: Catalogue) -> None:
        """Note all."""
        self.table["kind"] = self.kind
        super().save(catalogue)
        catalogue.arrays |= {f"{self.path} {name}": values for name, values in zip(_KEPT, self.chunks, strict=True)}
        catalogue.arrays[f"{self.path} asked"] = np.array([self.asked])
        catalogue.arrays[f"{self.path} shapes"] = np.array([len(self._shapes), *itertools.chain(*self._shapes)])

    def load(self, catalogue: Catalogue, count: int) -> None:
        """Take all; what it says of chunks has to fit the rows."""
        super().load(catalogue, count)
        chunks = [catalogue.arrays[f"{self.path} {name}"].astype(np.int64, copy=False) for name in _KEPT]
        owner, number, _, nbytes, _ = chunks
        next_one = np.diff(owner) > 0
        next_of_it = (owner[1:] == owner[:-1]) & (number[1:] > number[:-1])
        is_sound = len({len(each) for each in chunks}) == 1 and (next_one | next_of_it).all() and (self.rows >= 0).all()
        if not is_sound or (number < 0).any() or (nbytes < 0).any():
            raise ValueError(self.path)
        if len(owner) and not 0 <= owner[0] <= owner[-1] < count:
            raise ValueError(self.path)
        self.kind, self.known = self.table["kind"].astype(np.int64), np.ones(count, dtype=bool)
        if self.like is not None and (self.rows[self.kind >= 0] != self.like.shape[0]).any():
            raise ValueError(self.path)
        shapes = catalogue.arrays[f"{self.path} shapes"]
        self._shapes = {tuple(one): k for k, one in enumerate(shapes[1:].reshape(int(shapes[0]), -1).tolist())}
        if not 0 <= self.table["shape"].min() <= self.table["shape"].max() < len(self._shapes) == shapes[0]:
            raise ValueError(self.path)
        self.asked = int(catalogue.arrays[f"{self.path} asked"][0])
        self._pieces = [tuple(chunks)]  # type: ignore[list-item]


_KEPT = ("owner", "number", "offset", "nbytes", "filter mask")


def _shapes_of(chunks: Ints) -> tuple[Ints, Ints]:
    """Return the shapes that chunks have, and which of them each has; objects are alike their neighbours."""
    begins = np.flatnonzero(np.append(True, (chunks[1:] != chunks[:-1]).any(axis=1))[: len(chunks)])
    shapes, of_run = np.unique(chunks[begins], axis=0, return_inverse=True)
    return shapes, np.repeat(of_run.reshape(-1), np.diff(begins, append=len(chunks)))


def _owned_chunks(members: Members, headers: Headers, which: Ints) -> tuple[Ints, Chunks]:
    """Return which of some of one kind are understood, and where their chunks lie."""
    layout = headers.layout[which[0]] if len(which) else -1
    if layout == CONTIGUOUS:
        dims, element_nbytes = headers.dims[which], headers.kinds[headers.kind[which[0]]].element_nbytes
        is_whole = headers.nbytes[which] == dims.prod(axis=1, where=dims > 0) * element_nbytes
        which = which[is_whole | (headers.address[which] == NOWHERE)]
        owner = which[headers.address[which] != NOWHERE]
        zeros = np.zeros_like(owner)
        offset = headers.address[owner] - members.room(owner)[1]
        return which, (owner, zeros, offset, headers.nbytes[owner], zeros)
    if layout != CHUNKED:
        none = which[:0]
        return none, (none, none, none, none, none)
    understood, (owner, number, offset, nbytes, mask) = chunks_of(members.raw, headers, which)
    return which[understood], (owner, number, offset - members.room(owner)[1], nbytes, mask)


# --- Values: what each has once ---------------------------------------------------------------------------------------


class Once(_Column):
    """What each has once, an attribute or a dataset that is a value: an array for all, or a list."""

    def __init__(self, given: Any, file: Any, name: str, value: Any, count: int, guard: Guard) -> None:
        first = given.inside(name).name
        self._is_attribute = is_attribute(file, first, file.filename)
        owner, _, attribute = given.name.rpartition("@") if self._is_attribute else (given.name, "", "")
        super().__init__(given.beside or owner.strip("/."), count)
        self.attribute, self.label = attribute, f"value {given.name}"
        self._given, self._first, self._guard = given, value, guard
        is_array = isinstance(value, np.ndarray)
        self._stored = _stored_type(file, first, self._is_attribute) if is_array else None
        self.table = {"": np.empty((count, *value.shape), value.dtype) if is_array else [None] * count}

    @property
    def values(self) -> Any:
        """The value of each."""
        return self.table[""]

    def take(self, members: Members, headers: Headers) -> None:
        """Read the values of those that are like the first one's."""
        if self._stored is None or not self._first.size:
            return
        found = headers.attributes[self.attribute] if self.attribute else headers
        nbytes, first = self._stored.base.itemsize * self._first.size, members.first
        there = (found.kind == found.kind[first]) & (found.kind >= 0) & (found.address >= 0)
        if not self.attribute:
            there &= (headers.layout == CONTIGUOUS) | (headers.layout == COMPACT)
            there &= (headers.rank == headers.rank[first]) & (headers.dims == headers.dims[first]).all(axis=1)
        if not there[first] or found.nbytes[first] != nbytes:
            return
        some = np.flatnonzero(there)
        data, is_read = members.raw.of(some).read(found.address[some], nbytes)
        which, data = some[is_read], np.ascontiguousarray(data[is_read, :nbytes])
        self.values[which] = data.view(self._stored.base).reshape(len(which), *self._first.shape)
        self.known[which], self.kind[which] = True, 0

    def _asked(self, file: Any, name: str) -> Any:
        name = self._given.inside(name).name
        one, first = value_of(file, name, self._guard, is_attribute=self._is_attribute), self._first
        is_array = isinstance(first, np.ndarray)
        if kind_of(one) == kind_of(first) and not (is_array and (one.shape, one.dtype) != (first.shape, first.dtype)):
            return one
        said = (f"{v.dtype} {v.shape}" if isinstance(v, np.ndarray) else kind_of(v) for v in (one, first))
        why = f": {name!r} is {', and that of the first object '.join(said)}, but objects must be alike"
        raise refusal(file.filename, name, why, FieldLengthError)

    def ask(self, k: int, file: Any, name: str) -> None:
        """Read one; refuse one of another type or shape than the first."""
        self.values[k], self.known[k] = self._asked(file, name), True

    def agrees(self, k: int, file: Any, name: str) -> bool:
        """Tell whether one is what was found."""
        return bool(same(self.values[k], self._asked(file, name)))


def _stored_type(file: Any, name: str, is_attribute: bool) -> np.dtype[Any] | None:
    """Return the type that numbers are stored with; None where only libhdf5 makes NumPy's out of their bytes."""
    owner, _, attribute = name.rpartition("@")
    opened = file[owner.strip("/") or "/"].attrs.get_id(attribute) if is_attribute else file[name].id
    dtype = np.dtype(opened.dtype)
    return dtype if elements.is_stored_as(opened.get_type(), dtype) else None


def value_of(file: Any, name: str, guard: Guard, *, is_attribute: bool) -> Any:
    """Return an attribute, or a dataset that is a value, as samples have it; see `once_of`."""
    owner, _, attribute = name.rpartition("@")
    guard.check_links(file, owner if is_attribute else name, file.filename)
    with contextlib.suppress(*DAMAGE, NotImplementedError):
        if is_attribute:
            opened = h5py.h5a.open(h5py.h5o.open(file.id, owner.strip("/").encode() or b"."), attribute.encode())
        else:
            opened = h5py.h5d.open(file.id, name.encode())
        if opened.dtype.kind in "biufc" and opened.dtype.itemsize <= 16 and opened.shape is not None:
            numbers = np.empty(opened.shape, opened.dtype)
            opened.read(*[h5py.h5s.ALL] * (0 if is_attribute else 2), numbers)
            return as_samples_have_it(numbers)
    return as_samples_have_it(once_of(file, name, file.filename, guard))


# --- Bytes: objects that are bytes, each of a length of its own, such as encoded images -------------------------------


class EachBytes(_Column):
    """Where objects that are bytes lie, and how many they are; `DOUBTFUL` where only libhdf5 can read them."""

    def __init__(self, path: str, count: int, guard: Guard) -> None:
        super().__init__(path, count)
        self._guard, self.table = guard, {"where": np.full(count, DOUBTFUL), "bytes": np.ones(count, np.int64)}

    def _note(self, which: Any, where: Any, nbytes: Any, kind: int) -> None:
        self.table["where"][which], self.table["bytes"][which] = where, nbytes
        self.known[which], self.kind[which] = True, kind

    def take(self, members: Members, headers: Headers) -> None:
        """Take those that are understood, stored like the first."""
        usual = (headers.kind == headers.kind[members.first]) & (headers.kind >= 0) & (headers.layout == CONTIGUOUS)
        some = np.flatnonzero(usual & (headers.address >= 0))
        self._note(some, headers.address[some], headers.nbytes[some], 0)

    def ask(self, k: int, file: Any, name: str) -> None:
        """Ask for one; refuse what is no bytes."""
        self._note(k, *self._asked(file, inside_of(name, self.path)), -1)

    def _asked(self, file: Any, name: str) -> tuple[int, int]:
        path = file.filename
        opened = dataset_at(file, name, path)
        dtype, shape = opened.dtype, opened.shape
        if shape is None or elements.bytes_leaf(dtype) is None or len(shape) > 1 or (shape and dtype.itemsize > 1):
            said = "of variable length" if dtype.kind == "O" else dtype
            why = f": {name!r} is {said} {shape}: decode= takes objects that are bytes: uint8, or one opaque value "
            why += "(np.void); values of variable length are taken as rows of one dataset"
            raise refusal(path, name, why)
        self._guard.check_data(h5py.Dataset(opened), name, path)
        creation, nbytes = opened.get_create_plist(), dtype.itemsize * math.prod(shape)
        is_plain = dtype.kind != "u" or elements.is_stored_as(opened.get_type(), dtype)
        if not is_plain or creation.get_layout() != h5py.h5d.CONTIGUOUS or creation.get_external_count():
            return DOUBTFUL, 1
        where = offset_of(opened)
        return (NOWHERE, 0) if where is None else (where, nbytes)

    def agrees(self, k: int, file: Any, name: str) -> bool:
        """Tell whether one lies where it was found."""
        found = int(self.table["where"][k]), int(self.table["bytes"][k])
        return self._asked(file, inside_of(name, self.path)) == found


Column = Lying | Once | EachBytes
