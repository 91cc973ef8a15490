"""Headers of many objects that are alike: one is looked at, and the others are compared with it, byte by byte.

The header of a first object is walked through, message by message. What comes of that is a template: its bytes, which
of these are the same in all that are alike, and where the numbers lie that may differ: lengths along the axes, of
the data and of a chunk, where data and a chunk index begin, values of attributes. The headers of others are read as
bytes, many at once, and what equals the template needs nothing more: nothing of theirs is interpreted. What no template
fits is asked of libhdf5, and so is some of what one does.

# Guarantees: nothing is read but inside of the file, and a number is taken only from inside of what was read.

Source: the HDF5 File Format Specification, version 3.0, "Disk Format: Level 2A, Data Object Headers", "Version 1
B-trees", "Group Symbol Table Nodes" and "Local Heaps"; layout version 5 is that of libhdf5 2.0.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h5stream.storage.identity import ByteSource

Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

NOWHERE, BEYOND = -1, -2
"""An address that stands for none, and one that cannot be right."""

GROUP, CONTIGUOUS, COMPACT, CHUNKED = 0, 1, 2, 3
"""What an object is, by its header."""

BTREE_1, SINGLE, IMPLICIT, FIXED_ARRAY, EXTENSIBLE_ARRAY, BTREE_2 = range(6)
"""Kinds of chunk index, numbered as in libhdf5's ``H5D_chunk_index_t``."""

MOST_AXES = 8
_MOST_NBYTES = 1 << 16
"""The longest header, or block of one, that is looked at; h5py's usual ones take 272 bytes."""
_MOST_BLOCKS = 16
_READ_NBYTES, _ROOM_NBYTES = 1 << 20, 4 << 20
"""Bytes that are read at once, for blocks that lie within them, and that are asked for together."""
_GAP_NBYTES = 4096
"""Bytes between two blocks that are read along."""
_MOST_ELEMENTS = 1 << 60
MOST_CHUNK_NBYTES = 1 << 40

_SPACE, _LINK_INFO, _TYPE, _OLD_FILL, _FILL, _LINK, _LAYOUT, _PIPELINE = 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x08, 0x0B
_NIL, _GROUP_INFO, _ATTRIBUTE, _COMMENT, _OLD_TIME, _CONTINUATION = 0x00, 0x0A, 0x0C, 0x0D, 0x0E, 0x10
_SYMBOL_TABLE, _TIME, _ATTRIBUTE_INFO, _REFERENCES = 0x11, 0x12, 0x15, 0x16
_SHARED, _KNOWN_FLAGS = 2, 0x47
"""Flags of messages: constant, shared, never to be shared, may be shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """The bytes that objects lie in, of one file or of several one behind the other, and how wide numbers are there."""

    source: ByteSource
    wide: int  # wide, long: bytes of an address, and of a length
    long: int
    origin: Ints  # origin, end: where addresses of a file count from, and where it ends; of each object, or of all
    end: Ints

    def of(self, which: Any) -> Raw:
        """Return the same for some objects."""
        return self if len(self.end) == 1 else replace(self, origin=self.origin[which], end=self.end[which])

    def read(self, where: Ints, nbytes: int) -> tuple[Bytes, Bools]:
        """Read so many bytes at each of some places, filled up to words of 8 bytes; tell which lie in their files."""
        data = np.zeros((len(where), -(-nbytes // 8) * 8), dtype=np.uint8)
        is_there = (where >= 0) & (where <= self.end - nbytes)
        which = np.flatnonzero(is_there)
        which = which[np.argsort(where[which], kind="stable")]
        ascending = where[which]
        apart = (np.diff(ascending) > nbytes + _GAP_NBYTES) | (np.diff(ascending // _READ_NBYTES) > 0)
        low = np.append(0, np.flatnonzero(apart) + 1)[: len(which)]
        high = np.append(low[1:], len(which))[: len(which)]
        begins = ascending[low]
        sizes = ascending[high - 1] + nbytes - begins
        edges = np.append(0, np.cumsum(sizes))
        for first, last in _runs(edges[:-1] // _ROOM_NBYTES):
            room = np.empty(edges[last] - edges[first], np.uint8)
            ends = itertools.pairwise((edges[first : last + 1] - edges[first]).tolist())
            self.source.read_many(begins[first:last].tolist(), [room.data[one:other] for one, other in ends])
            some = slice(int(low[first]), int(high[last - 1]))
            at = ascending[some] + np.repeat(
                edges[first:last] - edges[first] - begins[first:last], (high - low)[first:last]
            )
            data[which[some], :nbytes] = np.lib.stride_tricks.sliding_window_view(room, nbytes)[at]
        return data, is_there


def _runs(numbers: Ints) -> Iterator[tuple[int, int]]:
    """Yield where runs of equal numbers begin and end."""
    edges = np.flatnonzero(np.diff(numbers)) + 1
    return itertools.pairwise([0, *edges.tolist(), len(numbers)] if len(numbers) else [])


class Place(NamedTuple):
    """Where a number lies: in which block, behind so many bytes, of how many."""

    block: int
    at: int
    nbytes: int


class Block(NamedTuple):
    """Bytes that lie together, and the number that says where; None for where the object itself lies."""

    where: Place | None
    data: Bytes
    same: Bools
    is_checked: bool


@dataclass(slots=True, kw_only=True)
class Template:
    """What objects that are alike have in common, and where the rest lies. A group has neither type nor layout."""

    blocks: list[Block] = field(default_factory=list)
    layout: int = GROUP
    rank: int = -1
    dims: list[Place] = field(default_factory=list)
    address: Place | None = None
    nbytes: Place | None = None
    mask: Place | None = None
    index: int = -1
    element_nbytes: int = 0
    filters: int = 0
    sides: list[Place] = field(default_factory=list)  # of a chunk; those of another may be others
    messages: dict[int, bytes] = field(default_factory=dict)
    # of attributes: where the value lies, and the bytes of its datatype and dataspace
    values: dict[bytes, tuple[Place, bytes] | None] = field(default_factory=dict)
    has_other_attributes: bool = False
    links: dict[bytes, Place] = field(default_factory=dict)
    tables: tuple[Place, Place] | None = None

    @property
    def kind(self) -> tuple[Any, ...]:
        """All that objects of one kind have in common: how they are stored, but for the shape of chunks."""
        said = (self.messages.get(kind, b"") for kind in (_TYPE, _OLD_FILL, _FILL, _PIPELINE))
        return self.layout, self.rank, self.index, *said


class UnknownError(Exception):
    """What is not understood: libhdf5 is asked."""


def template_of(raw: Raw, address: int, wanted: Sequence[bytes] = ()) -> Template | None:
    """Walk through the header at an address, for the values of some attributes too; None if it is not understood."""
    with contextlib.suppress(UnknownError, OSError):
        return _Walk(raw, wanted).header(address)
    return None


def lookup_of(raw: Raw, address: int, name: bytes) -> tuple[Template, Place] | None:
    """Walk through a group to one of its links; give where the address lies that it leads to, or None."""
    with contextlib.suppress(UnknownError, OSError):
        walk = _Walk(raw, ())
        found = walk.header(address)
        if found.tables is not None:
            walk.symbols(name)
        if name in found.links:
            return found, found.links[name]
    return None


class _Walk:
    """A way through the blocks of one object."""

    def __init__(self, raw: Raw, wanted: Sequence[bytes]) -> None:
        self._raw, self._wide, self._long, self._base = raw, raw.wide, raw.long, int(raw.origin[0])
        self._wanted, self._found = wanted, Template()
        self._queue: list[tuple[Place, int, int]] = []
        self._layout_at = (0, 0, 0)

    # --- bytes ---------------------------------------------------------------------------------------------------

    def _read(self, where: Place | None, address: int, nbytes: int, *, is_checked: bool = False) -> int:
        """Read a block; give its number."""
        blocks = self._found.blocks
        self._check(holds=0 < nbytes <= _MOST_NBYTES and len(blocks) < _MOST_BLOCKS)
        data = np.frombuffer(self._there(address, nbytes), dtype=np.uint8)
        same = np.ones(nbytes, dtype=bool)
        if is_checked:
            same[-4:] = False
            if checksums(data[None, :-4])[0] != int.from_bytes(data[-4:].tobytes(), "little"):
                raise UnknownError
        blocks.append(Block(where, data, same, is_checked))
        return len(blocks) - 1

    def _there(self, where: int, nbytes: int) -> bytes:
        """Read some bytes, all of which must be there."""
        data, is_there = self._raw.read(np.array([where]), nbytes)
        self._check(holds=bool(is_there[0]))
        return data[0, :nbytes].tobytes()

    def _bytes(self, block: int, at: int, nbytes: int) -> bytes:
        if not 0 <= at <= at + nbytes <= len(self._found.blocks[block].data):
            raise UnknownError
        return self._found.blocks[block].data[at : at + nbytes].tobytes()

    def _number(self, block: int, at: int, nbytes: int) -> int:
        return int.from_bytes(self._bytes(block, at, nbytes), "little")

    def _varying(self, block: int, at: int, nbytes: int) -> Place:
        """Let some bytes be others in others."""
        self._bytes(block, at, nbytes)
        self._found.blocks[block].same[at : at + nbytes] = False
        return Place(block, at, nbytes)

    def _address(self, block: int, at: int) -> tuple[Place, int]:
        """Let an address be another in others; give it as an offset in the file, or `NOWHERE`."""
        value, place = self._number(block, at, self._wide), self._varying(block, at, self._wide)
        if value == (1 << 8 * self._wide) - 1:
            return place, NOWHERE
        self._check(holds=value < int(self._raw.end[0]) - self._base)
        return place, value + self._base

    def _check(self, *, holds: bool) -> None:
        if not holds:
            raise UnknownError

    # --- headers -------------------------------------------------------------------------------------------------

    def header(self, address: int) -> Template:
        """Walk through a header with all its blocks."""
        where, found = address + self._base, self._found
        head = self._there(where, 32)
        if head[0] == 1:
            end, count = 16 + int.from_bytes(head[8:12], "little"), int.from_bytes(head[2:4], "little")
            block = self._read(None, where, end)
            seen = self._messages(block, 16, end, 1, 0)
        else:
            flags = head[5]
            self._check(holds=head[:5] == b"OHDR\x02" and flags < 0x40)
            begin, count = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0), -1
            width = 1 << (flags & 3)
            end = begin + width + int.from_bytes(head[begin : begin + width], "little")
            block = self._read(None, where, end + 4, is_checked=True)
            if flags & 0x20:
                self._varying(block, 6, 16)
            seen = self._messages(block, begin + width, end, 2, flags)
        while self._queue:
            place, at, nbytes = self._queue.pop(0)
            block = self._read(place, at, nbytes, is_checked=count < 0)
            if count < 0:
                self._check(holds=self._bytes(block, 0, 4) == b"OCHK")
                self._messages(block, 4, nbytes - 4, 2, flags)
            else:
                seen += self._messages(block, 0, nbytes, 1, 0)
        self._check(holds=count in (-1, seen) and (count < 0 or not found.has_other_attributes))
        self._describe()
        return found

    def _messages(self, block: int, at: int, end: int, version: int, flags: int) -> int:
        """Walk through the messages of one block; give how many there are."""
        head, seen = 8 if version == 1 else 6 if flags & 4 else 4, 0
        while end - at >= head:
            if version == 1:
                kind, nbytes, how = self._number(block, at, 2), self._number(block, at + 2, 2), at + 4
                self._check(holds=nbytes % 8 == 0)
            else:
                kind, nbytes, how = self._number(block, at, 1), self._number(block, at + 1, 2), at + 3
            self._check(holds=nbytes <= end - at - head)
            self._message(block, kind, self._number(block, how, 1), at + head, nbytes)
            at, seen = at + head + nbytes, seen + 1
        self._check(holds=version == 2 or at == end)
        return seen

    def _message(self, block: int, kind: int, flags: int, at: int, nbytes: int) -> None:
        shared, found, end = bool(flags & _SHARED), self._found, at + nbytes
        self._check(holds=not flags & ~_KNOWN_FLAGS)
        if kind in (_NIL, _OLD_TIME, _TIME):
            self._varying(block, at, nbytes)
        elif kind == _ATTRIBUTE:
            self._attribute(block, at, nbytes, shared=shared)
        elif kind == _CONTINUATION:
            place, where = self._address(block, at)
            self._check(holds=not shared and nbytes >= self._wide + self._long)
            self._queue.append((place, where, self._number(block, at + self._wide, self._long)))
        elif kind in (_SYMBOL_TABLE, _LINK_INFO, _LINK, _ATTRIBUTE_INFO):
            self._check(holds=not shared)
            self._of_group(block, kind, at, end)
        elif kind in (_GROUP_INFO, _COMMENT, _REFERENCES):
            pass
        else:
            self._check(holds=kind in _OF_DATASETS and not shared and kind not in found.messages)
            if kind == _SPACE:
                self._space(block, at, nbytes)
            elif kind == _LAYOUT:
                self._layout_at = block, at, nbytes
            found.messages[kind] = self._bytes(block, at, nbytes)

    def _of_group(self, block: int, kind: int, at: int, end: int) -> None:
        """Note what a message says of a group's links, or that an object has attributes outside of its header."""
        found = self._found
        if kind == _SYMBOL_TABLE:
            self._check(holds=found.tables is None)
            found.tables = self._address(block, at)[0], self._address(block, at + self._wide)[0]
        elif kind == _LINK:
            self._link(block, at, end)
        else:
            flags = self._number(block, at + 1, 1)
            self._check(holds=self._number(block, at, 1) == 0 and flags < 4)
            heap = at + 2 + (0 if not flags & 1 else 8 if kind == _LINK_INFO else 2)
            self._varying(block, at + 2, heap - at - 2)
            for k in range(3 if flags & 2 else 2):
                _, where = self._address(block, heap + k * self._wide)
                found.has_other_attributes |= kind == _ATTRIBUTE_INFO and k == 0 and where != NOWHERE
        if kind != _ATTRIBUTE_INFO:
            found.messages[kind] = b""

    def _link(self, block: int, at: int, end: int) -> None:
        """Note where a hard link leads that lies in the header of its group."""
        version, flags = self._number(block, at, 1), self._number(block, at + 1, 1)
        self._check(holds=version == 1 and flags < 0x20)
        at += 2
        is_hard = not flags & 8 or self._number(block, at, 1) == 0
        at += (1 if flags & 8 else 0) + (8 if flags & 4 else 0) + (1 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        nbytes = self._number(block, at, width)
        name = self._bytes(block, at + width, nbytes)
        if is_hard:
            self._check(holds=at + width + nbytes + self._wide <= end and name not in self._found.links)
            self._found.links[name] = self._address(block, at + width + nbytes)[0]

    def _extent(self, block: int, at: int, nbytes: int) -> tuple[int, int, int, bool]:
        """Return a dataspace's rank, where its lengths begin, its elements, and whether largest lengths follow."""
        version, rank, flags = (self._number(block, at + k, 1) for k in range(3))
        head = 8 if version == 1 else 4
        self._check(holds=version in (1, 2) and flags < 2 and head + rank * self._long * (1 + flags) <= nbytes)
        if version == 2:
            what = self._number(block, at + 3, 1)
            if what == 2 and rank == 0:
                return -1, at, 0, False
            self._check(holds=what == min(rank, 1))
        sides = [self._number(block, at + head + k * self._long, self._long) for k in range(rank)]
        count = math.prod(sides)
        self._check(holds=count <= _MOST_ELEMENTS and max(sides, default=0) <= _MOST_ELEMENTS)
        return rank, at + head, count, bool(flags)

    def _space(self, block: int, at: int, nbytes: int) -> None:
        """Let the lengths along the axes, and the largest ones, be others."""
        found, long = self._found, self._long
        found.rank, first, _, has_most = self._extent(block, at, nbytes)
        self._check(holds=found.rank <= MOST_AXES)
        found.dims = [Place(block, first + k * long, long) for k in range(found.rank)]
        self._varying(block, first, max(found.rank, 0) * long * (1 + has_most))

    def _attribute(self, block: int, at: int, nbytes: int, *, shared: bool) -> None:
        """Let the value of an attribute be another, and note where it lies if it is wanted."""
        version, flags = self._number(block, at, 1), self._number(block, at + 1, 1)
        self._check(holds=version in (1, 2, 3) and not shared)
        counts = [self._number(block, at + k, 2) for k in (2, 4, 6)]
        name_at = at + (9 if version == 3 else 8)
        padded = [-(-count // 8) * 8 if version == 1 else count for count in counts]
        type_at = name_at + padded[0]
        space_at = type_at + padded[1]
        value_at = space_at + padded[2]
        self._check(holds=value_at <= at + nbytes)
        name, null, rest = self._bytes(block, name_at, counts[0]).partition(b"\0")
        self._check(holds=null == b"\0" and not rest)
        self._varying(block, value_at, at + nbytes - value_at)
        if name not in self._wanted:
            return
        if (version > 1 and flags) or name in self._found.values:
            self._found.values[name] = None
            return
        _, _, count, _ = self._extent(block, space_at, counts[2])
        value_nbytes = count * _element_nbytes(self._bytes(block, type_at, counts[1]))
        self._check(holds=value_at + value_nbytes <= at + nbytes)
        kind = self._bytes(block, type_at, counts[1]) + b" " + self._bytes(block, space_at, counts[2])
        self._found.values[name] = Place(block, value_at, value_nbytes), kind

    # --- datasets ------------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        """Say what the messages make: a group, or a dataset and how it is stored."""
        found = self._found
        is_group = {_SYMBOL_TABLE, _LINK_INFO, _LINK} & found.messages.keys()
        of_dataset = {_SPACE, _TYPE, _LAYOUT} & found.messages.keys()
        if is_group:
            self._check(holds=not of_dataset and not {_SYMBOL_TABLE, _LINK_INFO} <= found.messages.keys())
            return
        self._check(holds=len(of_dataset) == 3)
        kind, fill, pipeline = (found.messages.get(each, b"") for each in (_TYPE, _FILL, _PIPELINE))
        self._check(holds=not fill or (len(fill) > 1 and 1 <= fill[0] <= 3))
        self._check(holds=not pipeline or (len(pipeline) > 1 and 1 <= pipeline[0] <= 2 and pipeline[1] <= 32))
        found.element_nbytes, found.filters = _element_nbytes(kind), pipeline[1] if pipeline else 0
        block, at, nbytes = self._layout_at
        version, how = self._number(block, at, 1), self._number(block, at + 1, 1)
        self._check(holds=found.element_nbytes > 0 and version in (3, 4, 5) and how < 3)
        if how == 0:
            size = self._number(block, at + 2, 2)
            found.layout, found.nbytes = COMPACT, Place(block, at + 2, 2)
            self._check(holds=4 + size <= nbytes and not found.filters)
            found.address = self._varying(block, at + 4, size)
        elif how == 1:
            self._check(holds=not found.filters)
            found.layout, found.address = CONTIGUOUS, self._address(block, at + 2)[0]
            found.nbytes = self._varying(block, at + 2 + self._wide, self._long)
        else:
            self._check(holds=found.rank > 0)
            found.layout = CHUNKED
            self._chunks(block, at, nbytes, version)

    def _chunks(self, block: int, at: int, nbytes: int, version: int) -> None:
        """Note what is said of chunks and their index; edge chunks that are not filtered are left to libhdf5."""
        found = self._found
        if version == 3:
            flags, rank, width, sides_at = 0, self._number(block, at + 2, 1), 4, at + 3 + self._wide
            found.index, after = BTREE_1, at + 3
        else:
            flags, rank, width, sides_at = *(self._number(block, at + k, 1) for k in (2, 3, 4)), at + 5
            after = sides_at + width * rank + 1
            found.index = self._number(block, after - 1, 1)
        self._check(holds=rank == found.rank + 1 and 1 <= width <= 8 and (version == 3) == (found.index == BTREE_1))
        # The bytes of an element stand behind the sides.
        self._check(holds=self._number(block, sides_at + found.rank * width, width) == found.element_nbytes)
        found.sides = [self._varying(block, sides_at + k * width, width) for k in range(found.rank)]
        if found.index == SINGLE and found.filters:
            self._check(holds=flags == 2)
            found.nbytes = self._varying(block, after, self._long)
            found.mask = self._varying(block, after + self._long, 4)
            after += self._long + 4
        else:
            self._check(holds=flags == 0 and found.index in _INDEX_NBYTES)
            after += _INDEX_NBYTES[found.index]
        self._check(holds=after + self._wide <= at + nbytes)
        found.address = self._address(block, after)[0]

    # --- groups --------------------------------------------------------------------------------------------------

    def symbols(self, name: bytes) -> None:
        """Walk through the table of a group of the old kind to the link of a name: names, tree, and one leaf."""
        found, wide = self._found, self._wide
        assert found.tables is not None
        tree, heap = found.tables
        block = self._read(heap, self._address(*heap[:2])[1], 8 + 2 * self._long + wide)
        self._check(holds=self._bytes(block, 0, 5) == b"HEAP\0")
        place, where = self._address(block, 8 + 2 * self._long)
        names = self._read(place, where, self._number(block, 8, self._long))
        place, where = tree, self._address(*tree[:2])[1]
        for _ in range(MOST_AXES):
            head = self._there(where, 8)
            self._check(holds=head[:5] in (b"TREE\0", b"SNOD\1"))
            count = int.from_bytes(head[6:8], "little")
            if head[:4] == b"SNOD":
                self._leaf(self._read(place, where, 8 + count * (2 * wide + 24)), names, count)
                return
            begin, each = 8 + 2 * wide, self._long + wide
            block = self._read(place, where, begin + count * each + self._long)
            self._varying(block, 8, 2 * wide)
            children = [self._address(block, begin + k * each + self._long) for k in range(count)]
            ends = [self._text(names, self._number(block, begin + (k + 1) * each, self._long)) for k in range(count)]
            chosen = next((k for k, end in enumerate(ends) if name <= end), -1)
            self._check(holds=chosen >= 0)
            place, where = children[chosen]
        raise UnknownError

    def _text(self, names: int, at: int) -> bytes:
        data = self._found.blocks[names].data.tobytes()
        self._check(holds=at < len(data))
        return data[at : data.index(0, at) if 0 in data[at:] else len(data)]

    def _leaf(self, block: int, names: int, count: int) -> None:
        for k in range(count):
            at = 8 + k * (2 * self._wide + 24)
            kind = self._number(block, at + 2 * self._wide, 4)
            link = self._address(block, at + self._wide)[0]
            self._varying(block, at + 2 * self._wide + 8, 16)
            if kind < 2:  # no soft link
                self._found.links[self._text(names, self._number(block, at, self._wide))] = link


def _element_nbytes(kind: bytes) -> int:
    """Return the bytes of an element, by the message that says its type."""
    if len(kind) < 8 or not 1 <= kind[0] >> 4 <= 5 or kind[0] & 15 > 11:
        raise UnknownError
    return int.from_bytes(kind[4:8], "little")


_INDEX_NBYTES = {BTREE_1: 0, SINGLE: 0, IMPLICIT: 0, FIXED_ARRAY: 1, EXTENSIBLE_ARRAY: 5, BTREE_2: 6}
"""By kind of chunk index, the bytes that a layout says of it before its address."""

_OF_DATASETS = frozenset({_SPACE, _TYPE, _OLD_FILL, _FILL, _LAYOUT, _PIPELINE})


# --- many ---------------------------------------------------------------------------------------------------------


class Matched(NamedTuple):
    """Which of some objects a template fits, and of each where its blocks begin and their bytes."""

    fits: Bools
    begins: list[Ints]
    data: list[Bytes]

    def number(self, place: Place) -> Ints:
        """Return a number of each; one of 2**63 and more is negative."""
        return numbers_in(self.data[place.block], place.at, place.nbytes)

    def address(self, place: Place, raw: Raw) -> Ints:
        """Return an address of each as a place in all bytes; `NOWHERE` or `BEYOND` where it is none."""
        return places_in(self.data[place.block], place.at, raw)


def numbers_in(data: Bytes, at: int, nbytes: int) -> Ints:
    """Return a number of each row; one of 2**63 and more is negative."""
    wide = np.zeros((len(data), 8), dtype=np.uint8)
    wide[:, :nbytes] = data[:, at : at + nbytes]
    return wide.view("<i8")[:, 0]


def places_in(data: Bytes, at: int, raw: Raw) -> Ints:
    """Return an address of each row as a place in all bytes; `NOWHERE` or `BEYOND` where it is none."""
    value = numbers_in(data, at, raw.wide)
    bad = (value < 0) | (value >= raw.end - raw.origin)
    nothing = (1 << 8 * raw.wide) - 1 if raw.wide < 8 else -1
    return np.where(value == nothing, NOWHERE, np.where(bad, BEYOND, value + raw.origin))


def match(template: Template, raw: Raw, addresses: Ints) -> Matched:
    """Compare objects at some addresses with a template."""
    fits, found = np.ones(len(addresses), dtype=bool), Matched(np.ones(len(addresses), dtype=bool), [], [])
    for block in template.blocks:
        where = addresses + raw.origin if block.where is None else found.address(block.where, raw)
        data, is_there = raw.read(where, len(block.data))
        fits &= is_there & ~_differ(data, block)
        if block.is_checked:
            said = np.ascontiguousarray(data[:, len(block.data) - 4 : len(block.data)]).view("<u4")[:, 0]
            fits &= checksums(data[:, : len(block.data) - 4]) == said
        found.begins.append(where)
        found.data.append(data)
    return found._replace(fits=fits)


def _differ(data: Bytes, block: Block) -> Bools:
    """Tell which rows are unlike a block, in bytes that are to be the same; rows are filled up to words of 8 bytes."""
    room = data.shape[1] - len(block.data)
    same = np.pad(np.where(block.same, 255, 0).astype(np.uint8), (0, room)).view(np.uint64)
    wanted = np.pad(block.data, (0, room)).view(np.uint64) & same
    found: Bools = ((data.view(np.uint64) & same) != wanted).any(axis=1)
    return found


def checksums(data: Bytes) -> NDArray[np.uint32]:
    """Return the checksum of each row: lookup3's ``hashlittle``. Source: burtleburtle.net/bob/c/lookup3.c."""
    rows, nbytes = data.shape
    words = np.zeros((rows, max(1, -(-nbytes // 12)) * 12), dtype=np.uint8)
    words[:, :nbytes] = data
    columns = np.ascontiguousarray(words.view("<u4").T)
    a = np.full(rows, (0xDEADBEEF + nbytes) & 0xFFFFFFFF, dtype=np.uint32)
    b, c = a, a

    def turned(value: Any, by: int) -> Any:
        return (value << np.uint32(by)) | (value >> np.uint32(32 - by))

    for k in range(0, len(columns), 3):
        if nbytes == 0:
            return c
        a, b, c = a + columns[k], b + columns[k + 1], c + columns[k + 2]
        if k == len(columns) - 3:
            break
        for by in (4, 6, 8, 16, 19, 4):  # a, b, c take turns
            a, b, c = b, c + b, (a - c) ^ turned(c, by)
    c = (c ^ b) - turned(b, 14)
    a = (a ^ c) - turned(c, 11)
    b = (b ^ a) - turned(a, 25)
    c = (c ^ b) - turned(b, 16)
    a = (a ^ c) - turned(c, 4)
    b = (b ^ a) - turned(a, 14)
    return (c ^ b) - turned(b, 24)  # type: ignore[no-any-return]
