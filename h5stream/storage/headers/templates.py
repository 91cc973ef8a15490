"""Templates of object headers: one header is parsed, and many others are compared with it, byte by byte.

The header of a first object is parsed message by message into a template: its bytes, a mask of those that must be
equal in all matching headers, and the positions of the numbers that may differ: lengths along the axes of the data and
of a chunk, addresses of data and chunk indexes, values of attributes. Other headers are read as bytes, many at once,
and are never parsed: they match the template or not. Objects without a matching template are opened through libhdf5,
and so is the first object of each template, which reveals a misunderstood header.

# Guarantees: nothing is read outside of the file, and a number is taken only from bytes that were read.

Source: the HDF5 File Format Specification, version 3.0, "Disk Format: Level 2A, Data Object Headers", "Version 1
B-trees", "Group Symbol Table Nodes" and "Local Heaps"; layout version 5 is that of libhdf5 2.0.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from h5stream.storage.source.identity import ByteSource

Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

NOWHERE, BEYOND = -1, -2
"""The undefined address, and an invalid one."""

GROUP, COMPACT, CONTIGUOUS, CHUNKED = -1, 0, 1, 2
"""The kind of an object: a group, or a dataset with one of libhdf5's layouts."""

BTREE_1, SINGLE, IMPLICIT, FIXED_ARRAY, EXTENSIBLE_ARRAY, BTREE_2 = range(6)
"""Kinds of chunk index, numbered as in libhdf5's ``H5D_chunk_index_t``."""

_INDEX_NBYTES = {BTREE_1: 0, SINGLE: 0, IMPLICIT: 0, FIXED_ARRAY: 1, EXTENSIBLE_ARRAY: 5, BTREE_2: 6}
"""By kind of chunk index, the bytes of its parameters before its address in a layout message."""

_MOST_NBYTES = 1 << 16
"""The longest block of a header that is parsed; h5py's usual headers have 272 bytes."""
_MOST_BLOCKS = 16
_MOST_AXES = 32
_READ_NBYTES, _ROOM_NBYTES = 1 << 20, 4 << 20
"""Bytes of one read, which may contain several blocks, and of the reads that are issued together."""
_GAP_NBYTES = 4096
"""Bytes of a gap between two blocks that is read rather than skipped."""

_NIL, _SPACE, _LINK_INFO, _TYPE, _OLD_FILL, _FILL, _LINK, _LAYOUT, _GROUP_INFO = 0, 1, 2, 3, 4, 5, 6, 8, 10
_PIPELINE, _ATTRIBUTE, _COMMENT, _OLD_TIME, _CONTINUATION, _SYMBOL_TABLE, _TIME = 11, 12, 13, 14, 16, 17, 18
_ATTRIBUTE_INFO, _REFERENCES = 21, 22
_OF_GROUPS = frozenset({_SYMBOL_TABLE, _LINK_INFO, _LINK})
_OF_DATASETS = frozenset({_SPACE, _TYPE, _OLD_FILL, _FILL, _LAYOUT, _PIPELINE})
_VARYING_FROM = {_NIL: 0, _OLD_TIME: 0, _TIME: 0, _LINK_INFO: 2, _ATTRIBUTE_INFO: 2}
"""By kind of message, the leading bytes that must be equal; the others do not matter here."""
_IS_SHARED = 2
"""The flag of a message that is stored elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """The bytes of one file, or of several concatenated ones, and the widths of their numbers."""

    source: ByteSource
    wide: int  # wide, long: bytes of an address, and of a length
    long: int
    origin: Ints  # origin, end: origin of addresses and end of the file, for each object or one for all
    end: Ints

    def of(self, which: Ints | Bools | slice) -> Raw:
        """Return the same for the selected objects."""
        return self if len(self.end) == 1 else replace(self, origin=self.origin[which], end=self.end[which])

    def read(self, where: Ints, nbytes: int) -> tuple[Bytes, Bools]:
        """Read `nbytes` at each position, padded to words of 8 bytes, with a mask of the reads inside their files."""
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
            part = slice(int(low[first]), int(high[last - 1]))
            at = ascending[part] + np.repeat(
                edges[first:last] - edges[first] - begins[first:last], (high - low)[first:last]
            )
            data[which[part], :nbytes] = np.lib.stride_tricks.sliding_window_view(room, nbytes)[at]
        return data, is_there


def _runs(numbers: Ints) -> Iterator[tuple[int, int]]:
    """Yield where runs of equal numbers begin and end."""
    edges = np.flatnonzero(np.diff(numbers)) + 1
    return itertools.pairwise([0, *edges.tolist(), len(numbers)] if len(numbers) else [])


class Span(NamedTuple):
    """The position and the width of a number in the bytes of all blocks."""

    at: int
    nbytes: int


class Block(NamedTuple):
    """A contiguous part of an object header in the file."""

    pointer: int  # position among all bytes of the address of this block; -1 for the object's own address
    begin: int  # position of the block among all bytes
    nbytes: int
    is_checked: bool  # whether it ends with a checksum


@dataclass(slots=True, kw_only=True)
class Template:
    """The common bytes of matching headers, and the positions of their numbers; groups have no type or layout."""

    data: bytearray = field(default_factory=bytearray)  # the bytes of all blocks, each padded to words of 8
    same: bytearray = field(default_factory=bytearray)  # 255 for bytes that must be equal, 0 for the others
    blocks: list[Block] = field(default_factory=list)
    layout: int = GROUP
    rank: int = 0
    dims: list[Span] = field(default_factory=list)
    sides: list[Span] = field(default_factory=list)  # of a chunk
    address: Span | None = None  # of data, or of a chunk index; of compact data the data themselves
    nbytes: Span | None = None
    mask: Span | None = None
    index: int = -1
    element_nbytes: int = 0
    filters: int = 0
    # by name of attribute, the position of the value, and the bytes of its type and shape; by "" for unchunked data
    values: dict[str, tuple[Span, bytes]] = field(default_factory=dict)
    links: dict[bytes, Span] = field(default_factory=dict)


class UnknownError(Exception):
    """A header that is not understood, and left to libhdf5."""


def template_of(raw: Raw, address: int, wanted: Sequence[str] = (), link: bytes = b"") -> Template | None:
    """Parse the header at an address, for the values of attributes or for a link; None if it is not understood."""
    with contextlib.suppress(UnknownError, OSError):
        parser = _HeaderParser(raw, address, wanted)
        if link:
            parser.symbols(link)
        return parser.template
    return None


class _HeaderParser:
    """A parser of the blocks of one object header, whose bytes are concatenated."""

    def __init__(self, raw: Raw, address: int, wanted: Sequence[str]) -> None:
        self._raw, self._wide, self._long, self._base = raw, raw.wide, raw.long, int(raw.origin[0])
        self._wanted, self.template = wanted, Template()
        self._messages: dict[int, Span] = {}  # by kind
        self._further: list[tuple[int, int, int]] = []  # continuation blocks: pointer, address, bytes
        self._header(address + self._base)
        self._describe()

    # --- bytes ---------------------------------------------------------------------------------------------------

    def _block(self, pointer: int, where: int, nbytes: int, *, is_checked: bool = False) -> int:
        """Read a block; return its position among all bytes."""
        template, begin = self.template, len(self.template.data)
        self._check(holds=0 < nbytes <= _MOST_NBYTES and len(template.blocks) < _MOST_BLOCKS)
        data, is_there = self._raw.read(np.array([where]), nbytes)
        self._check(holds=bool(is_there[0] and (not is_checked or is_sound(data, nbytes)[0])))
        template.blocks.append(Block(pointer, begin, nbytes, is_checked))
        template.data += data.tobytes()
        template.same += b"\xff" * nbytes + bytes(data.shape[1] - nbytes)
        if is_checked:
            self._mark_varying(begin + nbytes - 4, 4)
        return begin

    def _ahead(self, where: int, nbytes: int) -> bytes:
        """Return the first bytes of a block, which contain its length."""
        data, is_there = self._raw.read(np.array([where]), nbytes)
        self._check(holds=bool(is_there[0]))
        return data.tobytes()

    def _bytes(self, at: int, nbytes: int) -> bytes:
        self._check(holds=at + nbytes <= len(self.template.data))
        return bytes(self.template.data[at : at + nbytes])

    def _number(self, at: int, nbytes: int) -> int:
        return int.from_bytes(self._bytes(at, nbytes), "little")

    def _mark_varying(self, at: int, nbytes: int) -> Span:
        """Mark bytes that may differ, and return their position."""
        self._check(holds=0 <= nbytes <= len(self.template.data) - at)
        self.template.same[at : at + nbytes] = bytes(nbytes)
        return Span(at, nbytes)

    def _address(self, at: int) -> int:
        """Mark an address as varying; return it as an offset in the file, or `NOWHERE`."""
        value, _ = self._number(at, self._wide), self._mark_varying(at, self._wide)
        if value == (1 << 8 * self._wide) - 1:
            return NOWHERE
        self._check(holds=value < int(self._raw.end[0]) - self._base)
        return value + self._base

    def _check(self, *, holds: bool) -> None:
        if not holds:
            raise UnknownError

    # --- headers -------------------------------------------------------------------------------------------------

    def _header(self, where: int) -> None:
        """Parse a header with all its blocks."""
        head = self._ahead(where, 32)
        flags, is_new = head[5], head[:5] == b"OHDR\2"
        self._check(holds=is_new or head[0] == 1)
        begin, size_at, width, message_head, ahead = 16, 8, 4, 8, 0
        if is_new:
            size_at, width = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0), 1 << (flags & 3)
            begin, message_head, ahead = size_at + width, 6 if flags & 4 else 4, 4
        end = begin + int.from_bytes(head[size_at : size_at + width], "little")
        self._block(-1, where, end + ahead, is_checked=is_new)
        if is_new and flags & 0x20:
            self._mark_varying(6, 16)
        self._parse_messages(begin, end, message_head, is_new=is_new)
        for pointer, place, nbytes in self._further:  # grows meanwhile
            begin = self._block(pointer, place, nbytes, is_checked=is_new)
            self._parse_messages(begin + ahead, begin + nbytes - ahead, message_head, is_new=is_new)

    def _parse_messages(self, at: int, end: int, head: int, *, is_new: bool) -> None:
        """Parse the messages of one block."""
        width = 1 if is_new else 2
        while end - at >= head:
            kind, nbytes, flags = self._number(at, width), self._number(at + width, 2), self._number(at + width + 2, 1)
            self._check(holds=nbytes <= end - at - head and not flags & _IS_SHARED)
            self._message(kind, at + head, nbytes)
            at += head + nbytes

    def _message(self, kind: int, at: int, nbytes: int) -> None:
        """Parse a message, and mark the bytes that may differ."""
        if kind in _OF_DATASETS | _OF_GROUPS:
            self._check(holds=kind == _LINK or kind not in self._messages)
            self._messages[kind] = Span(at, nbytes)
        if kind in _VARYING_FROM:
            self._mark_varying(at + _VARYING_FROM[kind], nbytes - _VARYING_FROM[kind])
        elif kind == _ATTRIBUTE:
            self._attribute(at, at + nbytes)
        elif kind == _CONTINUATION:
            self._further.append((at, self._address(at), self._number(at + self._wide, self._long)))
        elif kind == _LINK:
            self._link(at)
        elif kind == _SYMBOL_TABLE:
            self._mark_varying(at, 2 * self._wide)
        else:
            self._check(holds=kind in _OF_DATASETS or kind in (_GROUP_INFO, _COMMENT, _REFERENCES))

    def _link(self, at: int) -> None:
        """Record the position of a hard link's address in the header of its group."""
        flags, at = self._number(at + 1, 1), at + 2
        is_hard = not flags & 8 or self._number(at, 1) == 0
        at += (1 if flags & 8 else 0) + (8 if flags & 4 else 0) + (1 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        nbytes = self._number(at, width)
        name, at = self._bytes(at + width, nbytes), at + width + nbytes
        if is_hard:
            self._check(holds=name not in self.template.links)
            self.template.links[name] = self._mark_varying(at, self._wide)

    def _lengths(self, at: int) -> tuple[int, int, int]:
        """Return the position and the number of a dataspace's lengths, and 1 if maximum lengths follow."""
        version, rank, flags, what = self._bytes(at, 4)
        self._check(holds=version in (1, 2) and flags < 2 and rank <= _MOST_AXES and (version == 1 or what < 2))
        return at + (8 if version == 1 else 4), rank, flags

    def _attribute(self, at: int, end: int) -> None:
        """Mark the value of an attribute as varying, and record its position if it is wanted."""
        version, flags = self._bytes(at, 2)
        self._check(holds=version in (1, 2, 3))
        unit, first = 8 if version == 1 else 1, at + (9 if version == 3 else 8)
        sizes = (-(-self._number(at + k, 2) // unit) * unit for k in (2, 4, 6))
        name_at, type_at, space_at, value_at = itertools.accumulate(sizes, initial=first)
        self._mark_varying(value_at, end - value_at)
        name = self._bytes(name_at, type_at - name_at).partition(b"\0")[0].decode("utf-8", "surrogateescape")
        if name not in self._wanted or (version > 1 and flags):
            return
        if self._bytes(space_at, 4)[::3] == b"\2\2":  # without a value: left to libhdf5
            return
        lengths_at, rank, _ = self._lengths(space_at)
        count = math.prod(self._number(lengths_at + k * self._long, self._long) for k in range(rank))
        nbytes = count * self._number(type_at + 4, 4)
        self._check(holds=value_at + nbytes <= end)
        self.template.values.setdefault(name, (Span(value_at, nbytes), self._bytes(type_at, value_at - type_at)))

    # --- datasets ------------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        """Set the kind of the object, and for a dataset its shape, type and layout, from its messages."""
        template, messages, long = self.template, self._messages, self._long
        if kinds := messages.keys() & _OF_GROUPS:
            self._check(
                holds=not {_SPACE, _TYPE, _LAYOUT} & messages.keys() and not {_SYMBOL_TABLE, _LINK_INFO} <= kinds
            )
            return
        self._check(holds={_SPACE, _TYPE, _LAYOUT} <= messages.keys())
        first, template.rank, has_most = self._lengths(messages[_SPACE].at)
        self._mark_varying(first, template.rank * long * (1 + has_most))
        template.dims = [Span(first + k * long, long) for k in range(template.rank)]
        template.element_nbytes = self._number(messages[_TYPE].at + 4, 4)
        template.filters = self._number(messages[_PIPELINE].at + 1, 1) if _PIPELINE in messages else 0
        at, nbytes = messages[_LAYOUT]
        version, template.layout = self._bytes(at, 2)
        self._check(holds=template.element_nbytes > 0 and version in (3, 4, 5))
        if template.layout == COMPACT:
            template.nbytes = Span(at + 2, 2)
            self._check(holds=4 + self._number(at + 2, 2) <= nbytes)
            template.address = self._mark_varying(at + 4, self._number(at + 2, 2))
        elif template.layout == CONTIGUOUS:
            template.address = self._mark_varying(at + 2, self._wide)
            template.nbytes = self._mark_varying(at + 2 + self._wide, long)
        else:
            self._check(holds=template.layout == CHUNKED and template.rank > 0)
            self._chunks(at, version)
        if template.layout != CHUNKED and template.address is not None:
            template.values[""] = template.address, self._bytes(*messages[_TYPE]) + bytes([template.rank])

    def _chunks(self, at: int, version: int) -> None:
        """Parse the chunks' shape and index; unfiltered edge chunks are left to libhdf5."""
        template, flags, after = self.template, 0, at + 3
        if version == 3:
            template.index, rank, width, sides_at = BTREE_1, self._number(at + 2, 1), 4, at + 3 + self._wide
        else:
            (flags, rank, width), sides_at = self._bytes(at + 2, 3), at + 5
            after = sides_at + width * rank + 1
            template.index = self._number(after - 1, 1)
        self._check(
            holds=rank == template.rank + 1 and 1 <= width <= 8 and (version == 3) == (template.index == BTREE_1)
        )
        template.sides = [self._mark_varying(sides_at + k * width, width) for k in range(template.rank)]
        is_filtered_one = template.index == SINGLE and template.filters > 0
        self._check(holds=flags == 2 * is_filtered_one and template.index in _INDEX_NBYTES)
        if is_filtered_one:
            template.nbytes, template.mask = (
                self._mark_varying(after, self._long),
                self._mark_varying(after + self._long, 4),
            )
            after += self._long + 4
        template.address = self._mark_varying(after + _INDEX_NBYTES[template.index], self._wide)

    # --- groups --------------------------------------------------------------------------------------------------

    def symbols(self, name: bytes) -> None:
        """Follow a name through the symbol table of an old group: heap of names, B-tree and one leaf."""
        if _SYMBOL_TABLE not in self._messages:
            return
        wide, long = self._wide, self._long
        pointer = self._messages[_SYMBOL_TABLE].at
        head = self._block(pointer + wide, self._address(pointer + wide), 8 + 2 * long + wide)
        names_at = head + 8 + 2 * long
        names = self._block(names_at, self._address(names_at), self._number(head + 8, long))
        for _ in range(_MOST_BLOCKS):
            where = self._address(pointer)
            sign = self._ahead(where, 8)
            count = int.from_bytes(sign[6:8], "little")
            if sign[:4] == b"SNOD":
                self._leaf(self._block(pointer, where, 8 + count * (2 * wide + 24)), names, count)
                return
            self._check(holds=sign[:5] == b"TREE\0")
            first, entry = 8 + 2 * wide, long + wide
            begin = self._block(pointer, where, first + count * entry + long)
            self._mark_varying(begin + 8, 2 * wide)
            pointers = range(begin + first + long, begin + first + long + count * entry, entry)
            for one in pointers:
                self._mark_varying(one, wide)
            ends = (self._text(names, self._number(one + wide, long)) for one in pointers)
            pointer = next((one for one, end in zip(pointers, ends, strict=True) if name <= end), -1)
            self._check(holds=pointer >= 0)

    def _text(self, names: int, at: int) -> bytes:
        self._check(holds=names + at < len(self.template.data))
        return bytes(self.template.data[names + at :]).partition(b"\0")[0]

    def _leaf(self, begin: int, names: int, count: int) -> None:
        wide, entry = self._wide, 2 * self._wide + 24
        for at in range(begin + 8, begin + 8 + count * entry, entry):
            link = self._mark_varying(at + wide, wide)
            self._mark_varying(at + 2 * wide + 8, 16)
            if self._number(at + 2 * wide, 4) < 2:  # no soft link
                self.template.links[self._text(names, self._number(at, wide))] = link


# --- comparing many headers ---------------------------------------------------------------------------------------


class Matched(NamedTuple):
    """A comparison of objects with a template: which match, the addresses of their blocks, and their bytes."""

    template: Template
    raw: Raw
    fits: Bools
    begins: list[Ints]
    data: Bytes

    def number(self, place: Span) -> Ints:
        """Return a number of each object; 2**63 or more becomes negative."""
        return numbers_in(self.data, *place)

    def numbers(self, places: Sequence[Span], count: int) -> Ints:
        """Return several numbers of each object; `count` zeros without spans."""
        every = [self.number(place) for place in places] or [np.zeros(len(self.fits), np.int64)] * count
        return np.array(every, dtype=np.int64).reshape(count, len(self.fits)).T

    def address(self, place: Span) -> Ints:
        """Return an address of each object as an offset among all files; `NOWHERE` or `BEYOND` if it is not valid."""
        return places_in(self.data, place.at, self.raw)

    def where(self, place: Span) -> Ints:
        """Return the file offset of a number in each object's header."""
        number = sum(block.begin <= place.at for block in self.template.blocks) - 1
        return self.begins[number] + (place.at - self.template.blocks[number].begin)


def numbers_in(data: Bytes, at: int, nbytes: int) -> Ints:
    """Return a number from each row; 2**63 or more becomes negative."""
    wide = np.zeros((len(data), 8), dtype=np.uint8)
    wide[:, :nbytes] = data[:, at : at + nbytes]
    return wide.view("<i8")[:, 0]


def places_in(data: Bytes, at: int, raw: Raw) -> Ints:
    """Return an address from each row as an offset among all files; `NOWHERE` or `BEYOND` if it is not valid."""
    value = numbers_in(data, at, raw.wide)
    bad = (value < 0) | (value >= raw.end - raw.origin)
    nothing = (1 << 8 * raw.wide) - 1 if raw.wide < 8 else -1
    return np.where(value == nothing, NOWHERE, np.where(bad, BEYOND, value + raw.origin))


def match(template: Template, raw: Raw, addresses: Ints) -> Matched:
    """Compare the objects at some addresses with a template."""
    data, fits = np.zeros((len(addresses), len(template.data)), np.uint8), np.ones(len(addresses), dtype=bool)
    begins = list[Ints]()
    for block in template.blocks:
        begins.append(addresses + raw.origin if block.pointer < 0 else places_in(data, block.pointer, raw))
        block_bytes, is_there = raw.read(begins[-1], block.nbytes)
        fits &= is_there if not block.is_checked else is_there & is_sound(block_bytes, block.nbytes)
        data[:, block.begin : block.begin + block_bytes.shape[1]] = block_bytes
    same = np.frombuffer(template.same, np.uint64)
    fits &= ((data.view(np.uint64) & same) == (np.frombuffer(template.data, np.uint64) & same)).all(axis=1)
    return Matched(template, raw, fits, begins, data)


def is_sound(data: Bytes, nbytes: int) -> Bools:
    """Return which rows have a valid checksum in their last 4 of `nbytes` bytes."""
    return np.asarray(checksums(data[:, : nbytes - 4]) == numbers_in(data, nbytes - 4, 4))


def checksums(data: Bytes) -> NDArray[np.uint32]:
    """Return the checksum of each row: lookup3's ``hashlittle``. Source: burtleburtle.net/bob/c/lookup3.c."""
    rows, nbytes = data.shape
    words = np.zeros((rows, max(1, -(-nbytes // 12)) * 12), dtype=np.uint8)
    words[:, :nbytes] = data
    columns = np.ascontiguousarray(words.view("<u4").T)
    a = np.full(rows, (0xDEADBEEF + nbytes) & 0xFFFFFFFF, dtype=np.uint32)
    b, c = a, a

    def turned(value: NDArray[np.uint32], by: int) -> NDArray[np.uint32]:
        return (value << np.uint32(by)) | (value >> np.uint32(32 - by))

    for k in range(0, len(columns), 3):
        if nbytes == 0:
            return c
        a, b, c = a + columns[k], b + columns[k + 1], c + columns[k + 2]
        if k == len(columns) - 3:
            break
        for by in (4, 6, 8, 16, 19, 4):  # a, b and c take turns
            a, b, c = b, c + b, (a - c) ^ turned(c, by)
    for by in (14, 11, 25, 16, 4, 14, 24):  # likewise
        a, b, c = b, (c ^ b) - turned(b, by), a
    return b
