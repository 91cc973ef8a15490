"""Where the data of many things lie that are alike inside, objects of a file or files: one table for both.

Headers that are like one another are compared as bytes (`h5stream.storage.headers.headers`). Whatever is not
understood is asked of libhdf5, and so is some of what is. The catalogue keeps what was found.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import h5py
import numpy as np

from h5stream.base.names import Ints, Names, Reading
from h5stream.errors import FieldLengthError, FieldNotFoundError
from h5stream.samples.packing import MEANINGS
from h5stream.storage.decode import elements
from h5stream.storage.decode.elements import (
    Meanings,
    as_samples_have_it,
    joined_meanings,
    kind_of,
    may_be_sorted,
    meanings_of,
    same,
    same_type,
)
from h5stream.storage.decode.small_floats import dtype_of_float, shown
from h5stream.storage.file.catalogue import Catalogue
from h5stream.storage.file.discovery import dataset_at, is_there, means, once_of, refusal, thing_at, type_once
from h5stream.storage.file.external import Guard, without_soft_links
from h5stream.storage.file.groups import RawFile, checked
from h5stream.storage.file.h5py_reader import compact_offset
from h5stream.storage.file.meanings import meaning_of
from h5stream.storage.file.stored import open_hdf5
from h5stream.storage.headers.headers import ASK, Alike, Chunks, chunks_of, looked_up, read_headers
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
from h5stream.storage.layout.layout import Meaning
from h5stream.storage.many.meanings import said_of
from h5stream.storage.source.handles import DAMAGE
from h5stream.storage.source.local import FilesIdentity, identity_of


class UnlikeError(Exception):
    """Things that are stored in another way than the first: they are read one by one."""


class ObjectsOfFile:
    """Objects of one file; each has its number."""

    file: int | None = None  # the number of the source that all lie in, where it is not that of the first
    first = 0  # the one that all have to be like

    def __init__(self, within: RawFile, names: Sequence[str], missing: str = "error") -> None:
        self.within, self.raw, self.catalogue, self.guard = within, within.raw, within.catalogue, within.guard
        self.names, self.missing = names, missing  # what becomes of one that lacks something, as `Objects` says it
        known = names.addresses if isinstance(names, Names) else None
        self._addresses = {} if known is None else {"": known}

    def _at(self, path: str) -> Ints:
        """Return where headers lie under a path inside of each; less than 0 for what is not in this file."""
        if path not in self._addresses:
            is_inside = path and not path.startswith("/")
            names = self.names if is_inside else [inside_of(name, path) for name in self.names]
            self._addresses[path] = self.within.inside(names, path) if is_inside else self.within.addresses(names)
        return self._addresses[path]

    def headers(self, path: str, attributes: Sequence[str]) -> list[Alike]:
        """Read what lies under a path inside of each, and some attributes of it."""
        return self.within.headers(self._at(path), attributes)

    def opened(self, k: int) -> contextlib.AbstractContextManager[tuple[Any, str]]:
        """Return the file, which stays open, and the name of one."""
        return contextlib.nullcontext((self.within.file, self.names[k]))

    def has(self, k: int, file: Any, path: str) -> bool:
        """Tell whether one has something under a path; what lies in another file is `UnlikeError`."""
        if self._at(path)[k] >= 0:
            return True
        if is_there(file, inside_of(self.names[k], path), file.filename):
            raise UnlikeError(self.names[k])
        return False

    def room(self, which: Ints) -> tuple[Any, Any]:
        """Return the bytes of the file of each, and where these begin in all bytes."""
        return self.within.superblock.file_nbytes, 0


class FilesEach:
    """Files of which each is a sample; see `ObjectsOfFile`."""

    file = first = 0

    def __init__(self, identity: FilesIdentity, catalogue: Catalogue, missing: str, guard: Guard) -> None:
        self.names, self.catalogue, self.missing = Names.of([""] * len(identity.paths)), catalogue, missing
        self.identity, self.paths, self.guard = identity, [*identity.paths], guard
        ends = identity.starts + identity.sizes
        self.raw = Raw(source=identity.for_structure(), wide=8, long=8, origin=identity.starts, end=ends)

    @functools.cached_property
    def _roots(self) -> Ints:
        return roots_of(self.raw)

    def headers(self, path: str, attributes: Sequence[str]) -> list[Alike]:
        """Read what lies under a path in each, beginning at their root groups."""
        return read_headers(self.raw, looked_up(self.raw, self._roots, path), attributes)

    @contextlib.contextmanager
    def opened(self, k: int) -> Iterator[tuple[Any, str]]:
        """Open one."""
        with open_hdf5(self.paths[k]) as file:
            yield file, ""

    def has(self, k: int, file: Any, path: str) -> bool:
        """Tell whether one has something under a path; what other than hard links lead to is `UnlikeError`."""
        self.guard.check_links(file, path, file.filename)
        if not is_there(file, path, file.filename):
            return False
        found = thing_at(file, path or "/", file.filename)
        is_elsewhere = found is not None and found.file.filename != file.filename
        if is_elsewhere or without_soft_links(file, path).strip("/") != path:
            raise UnlikeError(path)
        return True

    def room(self, which: Ints) -> tuple[Any, Any]:
        """Return the bytes of files, and where these begin one behind the other."""
        return self.identity.sizes[which], self.identity.starts[which]


Members = ObjectsOfFile | FilesEach


def placed(members: Members, chunks: Chunks, which: Ints, path: str) -> Ints:
    """Return where chunks begin in all bytes; refuse such as lie outside of their file."""
    owner, _, offset, nbytes, _ = chunks
    file_nbytes, start = members.room(which[owner])
    for k in beyond_end(offset, nbytes, file_nbytes)[:1].tolist():
        with members.opened(int(which[owner[k]])) as (file, name):
            size = int(np.broadcast_to(file_nbytes, len(offset))[k])
            refuse_beyond(file.filename, inside_of(name, path), int(offset[k]), int(nbytes[k]), size)
    return np.asarray(offset + start)


def inside_of(name: str, path: str) -> str:
    """Return the path of what lies inside of something, or beside it: at "/labels/*", its own name for the star."""
    if path.startswith("/"):
        return path[1:].replace("*", name.rpartition("/")[2])
    return f"{name}/{path}" if name and path else name or path


def within(path: str) -> str:
    """Return a path inside of something, which is empty for that itself; a dot may end a name."""
    path = path.strip("/")
    return "" if path == "." else path.removeprefix("./")


def roots_of(raw: Raw) -> Ints:
    """Return where the root group of each of many files lies; `ASK` of those with anything unusual there.

    Source: the HDF5 File Format Specification, version 3.0, "Disk Format: Level 0A".
    """
    heads, _ = raw.read(raw.origin, 96)
    oldest = np.frombuffer(b"\x89HDF\r\n\x1a\n" + bytes(5) + bytes([8, 8, 0]), np.uint8)
    old = (heads[:, :16] == oldest).all(axis=1) & (heads[:, 20:24] == 0).all(axis=1)
    new = (heads[:, :8] == oldest[:8]).all(axis=1) & np.isin(heads[:, 8], (2, 3)) & is_sound(heads, 48)
    new &= (heads[:, 9:12] == [8, 8, 0]).all(axis=1)  # wide addresses and lengths; not being written
    # The second of an old one is information of a driver.
    places = (24, 12), (48, 20), (40, 28), (64, 36)
    base, extension, end, root = (
        np.where(new, numbers_in(heads, newer, 8), numbers_in(heads, older, 8)) for older, newer in places
    )
    usual = (old | new) & (base == 0) & (extension == -1) & (end >= 0) & (end <= raw.end - raw.origin)
    return np.where(usual, root, ASK)


# --- What is looked for in all of them --------------------------------------------------------------------------------


class _Column:
    """What is looked for under one path inside of each.

    Headers say it (`take`), or libhdf5 (`ask`), which also says of some whether it is what was found (`agrees`).
    """

    attribute = ""  # the attribute there that is looked for; empty for what lies there itself
    about: tuple[str, ...] = ()  # attributes that say something of what lies there
    is_inside = True  # whether the path is one inside of each, or beside it

    def __init__(self, path: str, count: int, **found: Any) -> None:
        self.path, self.label = path, path  # the label is what it is called in the catalogue
        self.known = np.zeros(count, dtype=bool)  # of which it was found
        # arrays, or lists, of what was found, with one place for each; the kind numbers those that are stored alike
        self.table: dict[str, Any] = {"kind": np.full(count, -1), **found}

    @property
    def kind(self) -> Ints:
        """A number for all that are stored alike; -1 for none."""
        kind: Ints = self.table["kind"]
        return kind

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

    def save(self, catalogue: Catalogue) -> None:
        """Note what was found in the catalogue."""
        for name, each in self.table.items():
            catalogue.put(self._key(name), each)

    def load(self, catalogue: Catalogue, count: int) -> None:
        """Take what the catalogue has; raises ValueError for what cannot be."""
        for name, each in self.table.items():
            self.table[name] = catalogue.values(self._key(name), count, np.shape(each)[1:])

    def _key(self, name: str) -> str:
        """Return what an entry of the table is called in the catalogue; no path has two slashes."""
        return f"{self.label}//{name}" if name else self.label


def find(members: Members, columns: Sequence[Column]) -> Ints:
    """Find what lies where in all of them; gives the numbers of those that have all of it.

    Raises ValueError where the catalogue has what libhdf5 does not say.
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
        if column.is_inside:
            by_path.setdefault(column.path, []).append(column)
        else:
            column.take(members, [])
    for path, some in by_path.items():
        attributes = [name for column in some for name in (column.attribute, *column.about) if name]
        headers = members.headers(path, [*dict.fromkeys(attributes)])
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
            if column.is_inside and not column.attribute and not members.has(k, file, column.path):
                if members.missing == "skip":
                    return False
                if members.missing == "fill" and column.lack(k):
                    continue
            try:
                column.ask(k, file, name)
            except FieldNotFoundError:
                if members.missing != "skip":
                    raise
                return False
    return True


# --- Datasets: of each, how it is stored, how many rows it has, and where its chunks lie ------------------------------


class StoredAs(NamedTuple):
    """What libhdf5 says of one dataset: how it is stored, and where its chunks lie."""

    name: str
    shape: tuple[int, ...]
    side: tuple[int, ...]  # the shape of its chunks; zeros where there are none
    alike: Any  # what others of its kind have too, whatever their rows and chunks: all but the next
    fill: tuple[int, int, bytes]
    chunks: Ints  # (4, chunks): number, offset, bytes, filter mask
    type: Any
    meaning: Meaning  # what attributes say of its numbers

    def differs(self, other: StoredAs) -> bool:
        """Tell whether another is stored otherwise, or stands for another value where it was never written."""
        sides = zip(other.shape, other.side, strict=True)
        is_whole = other.chunks.shape[1] == math.prod(-(-n // c) if c else 1 for n, c in sides)
        is_same = (other.alike, other.side, other.shape) == (self.alike, self.side, self.shape)
        return not is_same or (other.fill != self.fill and not is_whole)

    def check(self, other: StoredAs, name: str, path: str) -> None:
        """Refuse another of another shape or type; one that is only stored otherwise is `UnlikeError`."""
        dtypes = [elements.type_if_any(one.type) for one in (self, other)]
        first, this = dtypes
        is_other = not other.type.equal(self.type) if first is None or this is None else not same_type(first, this)
        if other.shape != self.shape or (
            is_other and not any(one is not None and may_be_sorted(one) for one in dtypes)
        ):
            texts = ("a type that h5py cannot read" if dtype is None else shown(dtype) for dtype in dtypes)
            mine, others = (f"{text} {one.shape}" for text, one in zip(texts, (self, other), strict=True))
            why = f": {name!r} holds {others}, and {self.name!r} {mine}, but objects must be alike. "
            why += "Field(..., ragged='pad') takes different lengths, and Objects([...]) only those that it names"
            raise refusal(path, name, why, FieldLengthError)
        if self.differs(other):
            places = repr(self.name), repr(name)
            if first is not None and this is not None and (why := elements.why_not_joined(first, this, places)):
                why = f": {name!r} and {self.name!r} have the same numbers, but of its {why}, so a code would not mean"
                raise refusal(path, name, f"{why} the same; write them with one enum", FieldLengthError)
            raise UnlikeError(name)


def _shown(value: Any) -> str:
    """Return the type of a value, and the value where it is short."""
    if isinstance(value, np.ndarray):
        return f"{shown(value.dtype)} {value.shape}"
    kind = "text" if isinstance(value, (str, bytes)) else "empty" if isinstance(value, h5py.Empty) else "a list"
    return kind if isinstance(value, h5py.Empty) else f"{kind} ({reprlib.repr(value)})"


def asked_of(file: Any, name: str) -> StoredAs:
    """Ask libhdf5 how a dataset is stored, and where its chunks lie."""
    path = file.filename
    opened = dataset_at(file, name, path)
    creation, shape, stored = opened.get_create_plist(), opened.shape, opened.get_type()
    if not shape:
        why = f": {name!r} is {'empty' if shape is None else 'a single value'}, and has no rows for ragged= or lookup="
        why += "; numbers in memory are a field too, Values([f[name][()] for ...])"
        raise refusal(path, name, why, FieldLengthError)
    layout, side, where = creation.get_layout(), (0,) * len(shape), None
    alike: Any = layout, stored.encode(), shape[1:], *(creation.get_filter(k) for k in range(creation.get_nfilters()))
    chunks, is_known = np.zeros((4, 0), np.int64), layout == CONTIGUOUS and not creation.get_external_count()
    if is_known:
        where = offset_of(opened)
    elif layout == COMPACT and 0 not in shape:
        where = compact_offset(h5py.Dataset(opened), identity_of(path))
    elif layout == CHUNKED:
        with contextlib.suppress(*INDEX_UNREADABLE):
            side, chunks, is_known = creation.get_chunk(), found_chunks(opened), True
    if where is not None:
        nbytes = min(opened.get_storage_size(), MOST_OFFSET)  # a damaged file may say more
        chunks = np.array([[0], [where], [nbytes], [0]], dtype=np.int64)
    elif not is_known:  # it is a kind of its own, which is read as it is described
        alike = f"{path}:{name}"
    return StoredAs(name, shape, side, alike, fill_of(opened), chunks, stored, meaning_of(h5py.Dataset(opened)))


class Lying(_Column):
    """Where one dataset of each lies; where they are to be alike in all their axes, `like` is what the first is."""

    about = MEANINGS

    def __init__(self, path: str, count: int, like: StoredAs | None = None) -> None:
        rows, shape, said = (np.zeros(count, np.int64) for _ in range(3))
        super().__init__(path, count, rows=rows, shape=shape, said=said)
        self._meanings: dict[Meaning, int] = {}  # what attributes say of numbers, by the numbers in the table
        self.like, self.asked = like, 0
        self._pieces: list[Chunks] = [np.zeros((5, 0), np.int64)]
        self._shapes: dict[tuple[int, ...], int] = {}  # of chunks, by their numbers
        self._kinds: dict[Any, int] = {}  # by what libhdf5 says of them
        self._numbers = itertools.count()

    @property
    def rows(self) -> Ints:
        """The rows of each."""
        rows: Ints = self.table["rows"]
        return rows

    @property
    def meanings(self) -> list[Meaning]:
        """What attributes say of the numbers of some; `table` has the number of what they say of each one's."""
        return [*self._meanings]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of chunks that there are, zeros for what has none; `table` has the number of that of each."""
        return [*self._shapes]

    @property
    def chunks(self) -> Chunks:
        """Where chunks lie, in the order of what they belong to and of their numbers."""
        if len(self._pieces) > 1:
            chunks = np.concatenate(self._pieces, axis=1)
            self._pieces = [chunks.take(np.lexsort((chunks[1], chunks[0])), axis=1)]
        return self._pieces[0]

    def chunks_of(self, which: Ints) -> Chunks:
        """Return the chunks of some, in their order; what they belong to are the places there."""
        begins, ends = (np.searchsorted(self.chunks[0], which, side) for side in ("left", "right"))
        counts = ends - begins
        at = np.arange(counts.sum()) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
        found: Chunks = self.chunks.take(at, axis=1)
        found[0] = np.repeat(np.arange(len(which)), counts)
        return found

    def take(self, members: Members, headers: list[Alike]) -> None:
        """Take those that are understood, and agree in their axes with the first, or with the first that are alike."""
        for alike in headers:
            rank = alike.template.rank
            if not rank or (self.like and len(self.like.shape) != rank):
                continue
            usual = (alike.dims[:, 1:] == alike.dims[0, 1:]).all(axis=1)
            if self.like:
                usual = (alike.dims == self.like.shape).all(axis=1) & (alike.sides == self.like.side).all(axis=1)
            some = alike.of(usual)
            understood, chunks = chunks_of(members.raw.of(some.which), some)
            chunks[0] = some.which[chunks[0]]
            chunks[2] -= members.room(chunks[0])[1]
            self._pieces.append(chunks)
            which, sides = some.which[understood], some.sides[understood]
            self.known[which], self.rows[which] = True, some.dims[understood, 0]
            self.kind[which] = next(self._numbers)
            self.table["shape"][which] = self._numbered(sides)
            self._take_meanings(members, some.of(understood))

    def _take_meanings(self, members: Members, alike: Alike) -> None:
        """Take what attributes say of the numbers of some that are alike."""
        if not len(alike.which):
            return
        meanings, number = list[Meaning]([()]), np.zeros(len(alike.which), np.int64)
        if alike.said:
            with members.opened(int(alike.which[0])) as (file, name):
                dataset = h5py.Dataset(dataset_at(file, inside_of(name, self.path), file.filename))
                meanings, number = said_of(members.raw, alike, dataset)
        numbers = np.array([self._meanings.setdefault(one, len(self._meanings)) for one in meanings])
        self.table["said"][alike.which] = numbers[number]

    def _numbered(self, sides: Ints) -> Ints:
        """Return the numbers of shapes of chunks; objects are alike their neighbours."""
        begins = np.flatnonzero(np.append(True, (sides[1:] != sides[:-1]).any(axis=1))[: len(sides)])
        numbers = [self._shapes.setdefault(tuple(one), len(self._shapes)) for one in sides[begins].tolist()]
        return np.repeat(np.array(numbers, np.int64), np.diff(begins, append=len(sides)))

    def ask(self, k: int, file: Any, name: str) -> None:
        """Ask for one; refuse one that is unlike the first."""
        name = inside_of(name, self.path)
        asked = asked_of(file, name)
        if self.like is not None:
            self.like.check(asked, name, file.filename)
        self.known[k], self.rows[k], self.asked = True, asked.shape[0], self.asked + 1
        self.kind[k] = self._kinds.setdefault((asked.alike, asked.fill), next(self._numbers))
        self.table["shape"][k] = self._shapes.setdefault(asked.side, len(self._shapes))
        self.table["said"][k] = self._meanings.setdefault(asked.meaning, len(self._meanings))
        self._pieces.append(np.insert(asked.chunks, 0, k, axis=0))

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
        is_alike = asked.shape[0] == self.rows[k] and self._shapes.get(asked.side) == self.table["shape"][k]
        is_alike = is_alike and self._meanings.get(asked.meaning) == self.table["said"][k]
        if not is_alike or not np.array_equal(self.chunks_of(np.array([k]))[1:], asked.chunks):
            return False
        if self.like is not None and self.like.differs(asked):
            return False
        said = asked.alike, asked.fill
        if number not in self._kinds.values():  # the first of its kind
            kind = self._kinds.setdefault(said, number)
            self.kind[self.kind == number] = kind
            number = kind
        return self._kinds.get(said) == number

    def doubt(self, k: int) -> Bools:
        """Forget all of a kind."""
        chunks, some = self.chunks, super().doubt(k)
        self._pieces = [chunks.compress(~some[chunks[0]], axis=1)]
        return some

    def only(self, which: Ints) -> None:
        """Keep some, in an order."""
        self._pieces = [self.chunks_of(which)]
        super().only(which)

    def save(self, catalogue: Catalogue) -> None:
        """Note all."""
        super().save(catalogue)
        catalogue.arrays |= {f"{self.path} {name}": values for name, values in zip(_KEPT, self.chunks, strict=True)}
        catalogue.arrays[f"{self.path} asked"] = np.array([self.asked])
        if self._meanings:
            catalogue.put(f"{self.path} meanings", [json.dumps(one) for one in self._meanings])
        catalogue.arrays[f"{self.path} shapes"] = np.array([len(self._shapes), *itertools.chain(*self._shapes)])

    def load(self, catalogue: Catalogue, count: int) -> None:
        """Take all; what it says of chunks has to fit the rows."""
        super().load(catalogue, count)
        shapes = catalogue.arrays[f"{self.path} shapes"]
        self._shapes = {tuple(one): k for k, one in enumerate(shapes[1:].reshape(int(shapes[0]), -1).tolist())}
        key = f"{self.path} meanings"
        texts = catalogue.names(key) if f"{key} text" in catalogue.arrays else ()
        self._meanings = {tuple(map(tuple, json.loads(one))): k for k, one in enumerate(texts)}
        self._pieces = [np.array([catalogue.arrays[f"{self.path} {name}"] for name in _KEPT], np.int64)]
        self.asked = int(catalogue.arrays[f"{self.path} asked"][0])
        owner, number, _, nbytes, _ = self._pieces[0]
        numbers, step = self.table["shape"], np.diff(owner)
        is_sound = ((step > 0) | ((step == 0) & (np.diff(number) > 0))).all() and (self.rows >= 0).all()
        is_sound &= ((owner >= 0) & (owner < count) & (number >= 0) & (nbytes >= 0)).all()
        said = self.table["said"][self.kind >= 0]
        is_sound &= ((said >= 0) & (said < len(self._meanings))).all()
        is_sound &= ((numbers >= 0) & (numbers < len(self._shapes))).all() and len(self._shapes) == shapes[0]
        if not is_sound or (self.like and (self.rows[self.kind >= 0] != self.like.shape[0]).any()):
            raise ValueError(self.path)


_KEPT = ("owner", "number", "offset", "nbytes", "filter mask")


# --- Values: what each has once ---------------------------------------------------------------------------------------


class Once(_Column):
    """What each has once, an attribute or a dataset that is a value: an array for all, or a list."""

    def __init__(
        self, given: Field, member: tuple[str, ...], file: Any, name: str, value: Any, count: int, guard: Guard
    ) -> None:
        first = given.inside(name).name
        meaning = means(file, first, file.filename, guard) or Reading(first)
        is_array = isinstance(value, np.ndarray) and given.ragged is None
        every = np.empty((count, *value.shape), value.dtype) if is_array else [None] * count
        is_inside = bool(given.beside) or not name or f"{meaning.path}/".startswith(f"{name}/")
        super().__init__(given.beside or within(meaning.path[len(name) :]), count, **{"": every})
        self.is_inside, self._is_shared = is_inside, bool(name) and first == given.name  # all of a file have that one
        self.attribute = meaning.rest[0] if meaning.mark == "@" else ""
        self.label = f"value {':'.join((given.name, *member))}"
        self._given, self._member, self._first, self._guard = given, member, value, guard
        self._is_member = meaning.mark == ":"
        self._stored = _stored_type(file, meaning) if is_array and is_inside and not member else None
        self.meanings = self._meanings_at(file, first)  # if it is an enum, of all that libhdf5 was asked for

    @property
    def values(self) -> Any:
        """The value of each."""
        return self.table[""]

    def take(self, members: Members, headers: list[Alike]) -> None:
        """Read the values of those whose type and shape are the first one's."""
        if self._is_shared:
            self.known[:], self.kind[:] = True, 0
            self.values[:] = self._first if isinstance(self._first, np.ndarray) else [self._first] * len(self.known)
            return
        first = next((alike for alike in headers if members.first in alike.which), None)
        if self._stored is None or not self._first.size or first is None or self.attribute not in first.values:
            return
        nbytes, (place, said) = self._stored.base.itemsize * self._first.size, first.template.values[self.attribute]
        for number, alike in enumerate(headers if place.nbytes == nbytes or not self.attribute else ()):
            where = alike.values.get(self.attribute)
            if where is None or alike.template.values[self.attribute][1] != said:
                continue
            is_like = where >= 0
            if not self.attribute:
                dims = first.dims[first.which == members.first]
                is_like &= (alike.dims == dims).all(axis=1) & (alike.nbytes == nbytes)
            some = alike.which[is_like]
            data, is_read = members.raw.of(some).read(where[is_like], nbytes)
            which, data = some[is_read], np.ascontiguousarray(data[is_read, :nbytes])
            self.values[which] = data.view(self._stored.base).reshape(len(which), *self._first.shape)
            self.known[which], self.kind[which] = True, number

    def _asked(self, file: Any, name: str) -> Any:
        path, mark = inside_of(name, self.path), "@" if self.attribute else ":" if self._is_member else ""
        name = self._given.inside(name).name
        meaning = (
            Reading(path, mark, (self.attribute,)) if self.is_inside else means(file, name, file.filename, self._guard)
        )
        asked = self._given.dtype
        one, first = value_of(file, name, meaning, self._guard, self._member, asked), self._first
        if self._given.ragged is not None:
            return one  # they are compared once all are known
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
        why = (
            f": {name!r} is {_shown(one)}, and that of the first object is {_shown(first)}, but objects must be alike. "
        )
        why += "Field(..., ragged='pad') takes attributes of any length, also 'list', 'packed' and 'nested', and "
        why += "'arrays' any shape. " if self.attribute else ""
        why += (
            "Objects([...]) takes only those that you name, and Values([...]) values of your own, one for each object"
        )
        raise refusal(file.filename, name, why, FieldLengthError)

    def _meanings_at(self, file: Any, name: str) -> Meanings:
        if not isinstance(self._first, np.ndarray) or self._first.dtype.kind not in "iu":
            return ()
        stored = type_once(file, name, file.filename, self._guard)
        return meanings_of(elements.member_type(stored, self._member))

    def ask(self, k: int, file: Any, name: str) -> None:
        """Read one; refuse one of another type or shape than the first."""
        self.values[k], self.known[k] = self._asked(file, name), True

    def agrees(self, k: int, file: Any, name: str) -> bool:
        """Tell whether one is what was found."""
        return bool(same(self.values[k], self._asked(file, name)))


def _stored_type(file: Any, meaning: Reading) -> np.dtype[Any] | None:
    """Return the type that numbers are stored with; None where only libhdf5 makes NumPy's out of their bytes."""
    if meaning.mark == ":":
        return None
    opened = file[meaning.path or "/"].attrs.get_id(meaning.rest[0]) if meaning.mark else file[meaning.path].id
    dtype = elements.type_of(opened.get_type())
    return dtype if elements.is_stored_as(opened.get_type(), dtype) else None


def value_of(
    file: Any, name: str, meaning: Reading | None, guard: Guard, member: tuple[str, ...] = (), asked: Any = None
) -> Any:
    """Return an attribute, or a dataset that is a value, or a member of it, as samples have it; see `once_of`."""
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
                return as_samples_have_it(numbers)
    value = elements.value_as_asked(once_of(file, name, file.filename, guard), asked)
    if member and elements.compound_of(value) is None:
        why = f": {name!r} is {_shown(as_samples_have_it(value))}, and that of the first object is a compound"
        raise refusal(file.filename, name, why, FieldLengthError)
    try:
        return as_samples_have_it(elements.member_of(value, member))
    except (ValueError, KeyError):
        why = f": {name!r} has no member {':'.join(member)!r}, which that of the first object has"
        raise refusal(file.filename, name, why, FieldLengthError) from None


# --- Bytes: objects that are bytes, each of a length of its own, such as encoded images -------------------------------


class EachBytes(_Column):
    """Where objects that are bytes lie, and how many they are; `DOUBTFUL` where only libhdf5 can read them."""

    def __init__(self, path: str, count: int, guard: Guard) -> None:
        super().__init__(path, count, where=np.full(count, DOUBTFUL), nbytes=np.ones(count, np.int64))
        self.label, self._guard = f"bytes {path}", guard

    def _note(self, which: Any, where: Any, nbytes: Any, kind: int) -> None:
        self.table["where"][which], self.table["nbytes"][which] = where, nbytes
        self.known[which], self.kind[which] = True, kind

    def take(self, members: Members, headers: list[Alike]) -> None:
        """Take those that are understood, and lie together."""
        for number, alike in enumerate(headers):
            if alike.template.layout == CONTIGUOUS:
                some = alike.of(alike.address >= 0)
                self._note(some.which, some.address, some.nbytes, number)

    def ask(self, k: int, file: Any, name: str) -> None:
        """Ask for one; refuse what is no bytes."""
        self._note(k, *self._asked(file, inside_of(name, self.path)), -1)

    def _asked(self, file: Any, name: str) -> tuple[int, int]:
        path = file.filename
        opened = dataset_at(file, name, path)
        dtype, shape = elements.type_of(opened.get_type()), opened.shape
        if shape is None or elements.bytes_leaf(dtype) is None or len(shape) > 1 or (shape and dtype.itemsize > 1):
            said = "of variable length" if dtype.kind == "O" else dtype
            why = f": {name!r} is {said} {shape}: decode= takes objects that are bytes: uint8, or one opaque value "
            why += "(np.void); values of variable length are taken as rows of one dataset"
            raise refusal(path, name, why)
        self._guard.check_data(h5py.Dataset(opened), name, path)
        creation, nbytes = opened.get_create_plist(), dtype.itemsize * math.prod(shape)
        is_plain = dtype.kind != "u" or elements.is_stored_as(opened.get_type(), dtype)
        if not is_plain or creation.get_layout() != CONTIGUOUS or creation.get_external_count():
            return DOUBTFUL, 1
        where = offset_of(opened)
        return (NOWHERE, 0) if where is None else (where, nbytes)

    def agrees(self, k: int, file: Any, name: str) -> bool:
        """Tell whether one lies where it was found."""
        found = int(self.table["where"][k]), int(self.table["nbytes"][k])
        return self._asked(file, inside_of(name, self.path)) == found


Column = Lying | Once | EachBytes
