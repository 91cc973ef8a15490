"""Where the data of many objects lie, read from their headers at once.

Opening a dataset through libhdf5 costs 50 us and more, under a lock; a header that is like another one is compared with
it in some hundred nanoseconds, and a million of them give arrays and no Python objects (`h5stream.storage.templates`).
Whatever is like none is *not understood*: libhdf5 is asked for that object, and always for the first of each kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h5stream.storage.identity import ByteSource
from h5stream.storage.templates import (
    BTREE_1,
    CHUNKED,
    CONTIGUOUS,
    FIXED_ARRAY,
    MOST_AXES,
    MOST_CHUNK_NBYTES,
    NOWHERE,
    SINGLE,
    Bools,
    Bytes,
    Ints,
    Matched,
    Place,
    Raw,
    Template,
    checksums,
    lookup_of,
    match,
    numbers_in,
    places_in,
    template_of,
)

Chunks = tuple[Ints, Ints, Ints, Ints, Ints]
"""Of chunks, with one place for each that was ever written: what they belong to; their place in the grid of that, last
axis fastest; file offset and stored size in bytes; filter mask, whose bit `i` says that filter `i` was skipped."""

ABSENT, ASK = -1, -2
"""An attribute that an object lacks, and one that libhdf5 must be asked for."""

LOT = 1 << 16
"""Headers that are compared together."""
_COMPARED_EACH, _COMPARED_MORE = 8, 1 << 20
"""Comparisons of a header with a template, for each object and besides, after which what is left is asked for."""
_KEYS_AT_ONCE = 1 << 18
"""Keys of trees of chunks that are looked at together."""
_MOST_UNKNOWN = 64
"""Headers that were looked at and not understood, after which what is left is asked for."""


class Superblock(NamedTuple):
    """What must be known of a file to read its headers."""

    file_nbytes: int  # bytes of the file; every address must lie inside
    offset_nbytes: int  # offset_nbytes, length_nbytes: bytes of an address, and of a count, in this file: 2, 4 or 8
    length_nbytes: int
    base_address: int  # where addresses count from: the bytes of the user block


class AttributeValues(NamedTuple):
    """Where the values of one attribute lie; every array has one place an object."""

    # offset in the file of the value's bytes; `ABSENT` where the object has no such attribute, `ASK` where libhdf5 must
    # be asked, and for every object that is not understood
    address: Ints
    nbytes: Ints  # bytes of the value; 0 where there is no address, or nothing in it
    # numbers the distinct (datatype, dataspace), byte by byte, in no order that means anything; -1 where there is no
    # address
    kind: NDArray[np.int32]


class Headers(NamedTuple):
    """What the headers of some objects say; every array has one place an object, in the order they were asked for."""

    # numbers the distinct ways of being stored: layout, rank, and the bytes of the messages that say datatype, fill
    # value and filters. -1 where the header is not understood
    kind: NDArray[np.int32]
    rank: NDArray[np.int8]  # axes; 0 for a single value, -1 for none at all (a null dataspace) and for groups
    layout: NDArray[np.int8]  # `CONTIGUOUS`, `COMPACT`, `CHUNKED`, or `GROUP` for what is no dataset
    # offset in the file of contiguous or compact data, of a chunk index, of a single chunk; `NOWHERE` where nothing was
    # stored
    address: Ints
    nbytes: Ints  # bytes stored there: of contiguous and compact data, and of a single chunk
    filter_mask: NDArray[np.uint32]  # of a single chunk
    dims: Ints  # (objects, axes): the shape, 0 beyond the rank. As many axes as the highest rank
    chunk: Ints  # (objects, axes): the shape of its chunks, 0 beyond the rank, and where there are none
    attributes: dict[str, AttributeValues]  # the attributes that were wanted
    kinds: list[Template]  # of each kind, the first object that was met

    @property
    def understood(self) -> Bools:
        """Which headers were understood; libhdf5 must be asked for the others."""
        return self.kind >= 0


def superblock_of(file: Any, file_nbytes: int) -> Superblock:
    """Say what must be known of an open file of so many bytes to read its headers."""
    creation = file.id.get_create_plist()
    wide, long = creation.get_sizes()
    return Superblock(file_nbytes, int(wide), int(long), int(creation.get_userblock()))


def raw_of(source: ByteSource, superblock: Superblock) -> Raw:
    """Return the bytes of a file for reading headers. Of an odd one nothing is read."""
    nbytes, wide, long, base = superblock
    known = wide in (2, 4, 8) and long in (2, 4, 8) and 0 <= base < nbytes
    return Raw(source=source, wide=wide, long=long, origin=np.array([base]), end=np.array([nbytes if known else 0]))


def read_headers(raw: Raw, addresses: Ints, attributes: Sequence[str] = ()) -> Headers:
    """Read the headers of some objects, of which h5py gives the addresses."""
    addresses = np.asarray(addresses, dtype=np.int64)
    wanted = {name: name.encode("utf-8", "surrogateescape") for name in attributes}
    found = _room_for(len(addresses), wanted)
    # In the order of the file: a million that are read in random order take 2.5 s so, and 3.6 s as they come.
    left = np.argsort(addresses, kind="stable")
    left = left[addresses[left] >= 0]
    kinds: dict[Any, int] = {}
    unknown, compared = 0, 0
    while len(left) and unknown < _MOST_UNKNOWN and compared < _COMPARED_EACH * len(addresses) + _COMPARED_MORE:
        template = template_of(raw.of(left[:1]), int(addresses[left[0]]), [*wanted.values()])
        if template is None:
            left, unknown = left[1:], unknown + 1
            continue
        if template.kind not in kinds:
            kinds[template.kind] = len(found.kinds)
            found.kinds.append(template)
        compared += len(left)
        lots = (left[low : low + LOT] for low in range(0, len(left), LOT))
        fits = np.concatenate(
            [_take(found, template, kinds, some, addresses[some], raw.of(some), wanted) for some in lots]
        )
        fits[0] = True  # what was walked through is done, also if it contradicts itself
        unknown += bool(fits.sum() == 1)  # like no other: libhdf5 is as quick, and asked for many such
        left = left[~fits]
    axes = max(int(found.rank.max(initial=0)), 0)
    return found._replace(dims=found.dims[:, :axes], chunk=found.chunk[:, :axes])


def looked_up(raw: Raw, groups: Ints, path: str) -> Ints:
    """Return where the headers lie of what has one path inside of each of some groups, by the addresses of those.

    `ASK` where libhdf5 must be asked: a group on the way is unlike that of the first which can be looked at.
    """
    addresses = groups
    for step in filter(None, path.split("/")):
        found, which = np.full(len(addresses), ASK), np.flatnonzero(addresses >= 0)
        name, known = step.encode("utf-8", "surrogateescape"), None
        if len(which):
            known = lookup_of(raw.of(which[:1]), int(addresses[which[0]]), name)
        for low in range(0, len(which) if known else 0, LOT):
            assert known is not None
            some = which[low : low + LOT]
            own = raw.of(some)
            matched = match(known[0], own, addresses[some])
            where = matched.address(known[1], own)
            found[some] = np.where(matched.fits & (where >= 0), where - own.origin, ASK)
        addresses = found
    return addresses


def _room_for(count: int, names: Any) -> Headers:
    """Return headers of which nothing is known."""
    return Headers(
        kind=np.full(count, -1, dtype=np.int32),
        rank=np.full(count, -1, dtype=np.int8),
        layout=np.full(count, -1, dtype=np.int8),
        address=np.full(count, NOWHERE, dtype=np.int64),
        nbytes=np.zeros(count, dtype=np.int64),
        filter_mask=np.zeros(count, dtype=np.uint32),
        dims=np.zeros((MOST_AXES, count), dtype=np.int64).T,  # axes that no object has are never touched
        chunk=np.zeros((MOST_AXES, count), dtype=np.int64).T,
        attributes={
            name: AttributeValues(np.full(count, ASK), np.zeros(count, np.int64), np.full(count, -1, np.int32))
            for name in names
        },
        kinds=[],
    )


def _take(found: Headers, template: Template, kinds: Any, some: Ints, addresses: Ints, raw: Raw, wanted: Any) -> Bools:
    """Note what objects say that a template fits; tell which these are. `kinds` has a number for all that is a kind."""
    matched = match(template, raw, addresses)
    fits, rank = matched.fits, max(template.rank, 0)
    dims, chunk = (_numbers(matched, places, rank) for places in (template.dims, template.sides))
    fits &= (dims >= 0).all(axis=1)
    whole = chunk.prod(axis=1, dtype=np.float64) * template.element_nbytes
    fits &= (template.layout != CHUNKED) | ((chunk > 0).all(axis=1) & (whole > 0) & (whole <= MOST_CHUNK_NBYTES))
    address, nbytes = np.full(len(some), NOWHERE), np.zeros(len(some), np.int64)
    if template.address is not None:
        if template.layout == CHUNKED or template.layout == CONTIGUOUS:
            address = matched.address(template.address, raw)
        else:
            address = matched.begins[template.address.block] + template.address.at
        fits &= address >= NOWHERE
        nbytes = _nbytes(template, matched, address, dims, chunk)
        fits &= (address == NOWHERE) | ((nbytes >= 0) & (nbytes <= raw.end - address))
    which = some[fits]
    found.kind[which], found.rank[which], found.layout[which] = kinds[template.kind], template.rank, template.layout
    found.address[which], found.nbytes[which] = address[fits], nbytes[fits]
    if template.mask is not None:
        found.filter_mask[which] = matched.number(template.mask)[fits]
    found.dims[which, :rank], found.chunk[which, :rank] = dims[fits], chunk[fits]
    for name, encoded in wanted.items():
        _take_value(found.attributes[name], template, encoded, matched, fits, which, kinds)
    return fits


def _numbers(matched: Matched, places: list[Place], rank: int) -> Ints:
    """Return numbers of each, as many as axes; 0 where there are none."""
    every = [matched.number(place) for place in places] or [np.zeros(len(matched.fits), np.int64)] * rank
    return np.stack(every, axis=1) if rank else np.zeros((len(matched.fits), 0), np.int64)


def _nbytes(template: Template, matched: Matched, address: Ints, dims: Ints, chunk: Ints) -> Ints:
    """Return the bytes that are stored of each, -1 where they are not as many as its shape says."""
    if template.layout == CHUNKED and template.index != SINGLE:
        return np.zeros(len(address), np.int64)
    there = address != NOWHERE
    if template.layout == CHUNKED:
        nbytes = chunk.prod(axis=1) * template.element_nbytes
        is_one = (dims <= chunk).all(axis=1)
        if template.nbytes is not None:
            nbytes = matched.number(template.nbytes)
        return np.where(is_one & (~there | (nbytes > 0)), np.where(there, nbytes, 0), -1)
    assert template.nbytes is not None
    said = matched.number(template.nbytes)
    count = np.prod(dims, axis=1, dtype=np.float64) if template.rank >= 0 else np.zeros(len(address))
    with np.errstate(over="ignore"):
        wanted = np.prod(dims, axis=1) * template.element_nbytes * (template.rank >= 0)
    is_right = (said == wanted) & (count < 2.0**60 / template.element_nbytes)
    return np.where(is_right, np.where(there, said, 0), -1)


def _take_value(
    values: AttributeValues, template: Template, name: bytes, matched: Matched, fits: Bools, which: Ints, kinds: Any
) -> None:
    """Note where the values of an attribute lie."""
    value = template.values.get(name)
    if template.has_other_attributes:
        return  # they are outside of the header
    if value is None:
        values.address[which] = ASK if name in template.values else ABSENT
        return
    place, kind = value
    values.address[which] = matched.begins[place.block][fits] + place.at
    values.nbytes[which] = place.nbytes
    values.kind[which] = kinds.setdefault(kind, len(kinds))


def chunks_of(raw: Raw, headers: Headers, wanted: Ints) -> tuple[Bools, Chunks]:
    """Read the chunk indexes of some objects: trees, arrays of one page, single chunks.

    Tells first for each that was asked for whether it was understood; libhdf5 must be asked for the others, of which no
    chunk is listed. Chunks come in the order in which objects were asked for, those of one by their numbers.
    """
    understood = np.zeros(len(wanted), dtype=bool)
    parts = [np.zeros((0, 5), dtype=np.int64)]
    for number, template in enumerate(headers.kinds):
        places = np.flatnonzero(headers.kind[wanted] == number)
        if template.layout != CHUNKED or not len(places):
            continue
        owners = wanted[places]
        sides = headers.chunk[owners, : template.rank]
        grid = -(-headers.dims[owners, : template.rank] // sides)
        empty = (headers.address[owners] == NOWHERE) | (grid.prod(axis=1, dtype=np.float64) == 0)
        understood[places[empty]] = template.index in (BTREE_1, SINGLE, FIXED_ARRAY)
        places, owners, grid, sides = (each[~empty] for each in (places, owners, grid, sides))
        if not len(places):
            continue
        if template.index == SINGLE:
            known, of, zeros = np.ones(len(owners), dtype=bool), np.arange(len(owners)), np.zeros(len(owners), np.int64)
            mask = headers.filter_mask[owners].astype(np.int64)
            some = np.stack([of, zeros, headers.address[owners], headers.nbytes[owners], mask], axis=1)
        elif template.index in (BTREE_1, FIXED_ARRAY):
            read = _trees if template.index == BTREE_1 else _arrays
            known, some = read(template, raw.of(owners), headers.address[owners], grid, sides)
        else:
            continue
        some[:, 0] = places[some[:, 0]]
        understood[places[known]] = True
        parts.append(some)
    chunks = np.concatenate(parts)
    chunks = chunks[np.lexsort((chunks[:, 1], chunks[:, 0]))]
    place, chunk, offset, nbytes, mask = chunks.T
    return understood, (wanted[place], chunk, offset, nbytes, mask)


def _trees(template: Template, raw: Raw, where: Ints, grid: Ints, sides: Ints) -> tuple[Bools, Ints]:
    """Read trees; what is said of a chunk must be a place in the grid, ascending, and in the file.

    Libhdf5 lists all chunks, but finds only those that lie between the keys on their left and right. So the first and
    the last key of a node must be those between which its parent has it.
    """
    key = 8 * (template.rank + 2)
    head, each = 8 + 2 * raw.wide, key + raw.wide
    known, found = np.ones(len(where), dtype=bool), [np.zeros((0, 5), dtype=np.int64)]
    nodes = _Nodes(np.arange(len(where)), where, np.full(len(where), -1), *np.zeros((2, len(where), template.rank + 1)))
    while len(nodes.tree):
        first, is_there = raw.of(nodes.tree).read(nodes.where, head)
        is_there &= (first[:, :5] == np.frombuffer(b"TREE\1", np.uint8)).all(axis=1)
        level, entries = first[:, 5], np.ascontiguousarray(first[:, 6:8]).view("<u2")[:, 0].astype(np.int64)
        is_there &= (nodes.level < 0) | (nodes.level == level)
        known[nodes.tree[~is_there]] = False
        below = [nodes.taken(slice(0))]
        for height, count in {*zip(level[is_there].tolist(), entries[is_there].tolist(), strict=True)}:
            which = np.flatnonzero(is_there & (level == height) & (entries == count))
            for lot in np.array_split(which, 1 + len(which) * count // _KEYS_AT_ONCE):
                some = nodes.taken(lot)
                own, side = raw.of(some.tree), sides[some.tree]
                data, whole = own.read(some.where, head + count * each + key)
                keys, child, sound = _keys(data, head, each, count, side, template.element_nbytes, own)
                sound &= whole & some.holds(keys[:, :, 2:])
                if height:
                    below.append(some.taken(sound).children(height, keys[sound, :, 2:], child[sound]))
                else:
                    number, fits = _chunks_at(template, keys[:, :count], child, grid[some.tree], side, own)
                    sound &= fits
                    tree = np.broadcast_to(some.tree[:, None], number.shape)
                    columns = tree, number, child, keys[:, :count, 0], keys[:, :count, 1]
                    found.append(np.stack([one[sound].reshape(-1) for one in columns], axis=1))
                known[some.tree[~sound]] = False
        nodes = _Nodes(*map(np.concatenate, zip(*below, strict=True)))
    every = np.concatenate(found)
    return known, every[known[every[:, 0]]]


def _chunks_at(template: Template, keys: Ints, child: Ints, grid: Ints, sides: Ints, raw: Raw) -> tuple[Ints, Bools]:
    """Return the numbers of the chunks of leaves; tell which lie in the grid, and as many bytes in the file."""
    chunk, number = keys[:, :, 2:-1] // sides[:, None], np.zeros_like(child)
    for axis in range(template.rank):
        number = number * grid[:, axis, None] + chunk[:, :, axis]
    nbytes, mask = keys[:, :, 0], keys[:, :, 1]
    sound = np.asarray((chunk < grid[:, None]).all(axis=(1, 2)))
    sound &= ((nbytes > 0) & (nbytes <= raw.end[:, None] - child)).all(axis=1)
    if not template.filters:
        size = sides.prod(axis=1) * template.element_nbytes
        sound &= ((nbytes == size[:, None]) & (mask == 0)).all(axis=1)
    return number, sound


class _Nodes(NamedTuple):
    """Nodes of trees: of which tree, where, how many levels are below it (-1: any), and between which keys."""

    tree: Ints
    where: Ints
    level: Ints
    low: Ints
    high: Ints

    def taken(self, which: Any) -> _Nodes:
        """Return some of them."""
        return _Nodes(*(each[which] for each in self))

    def holds(self, keys: Ints) -> Bools:
        """Tell of which the keys begin and end where those of the parents say, and ascend in between."""
        same = (keys[:, 0] == self.low).all(axis=1) & (keys[:, -1] == self.high).all(axis=1)
        flat = keys.reshape(-1, keys.shape[2])
        ascends = _comes_before(flat[:-1], flat[1:])
        ascends = np.append(ascends, True).reshape(keys.shape[:2])[:, :-1]
        found: Bools = (same | (self.level < 0)) & ascends.all(axis=1)
        return found

    def children(self, level: int, keys: Ints, where: Ints) -> _Nodes:
        """Return the nodes below."""
        low, high = (each.reshape(-1, keys.shape[2]) for each in (keys[:, :-1], keys[:, 1:]))
        tree = np.repeat(self.tree, where.shape[1])
        return _Nodes(tree, where.reshape(-1), np.full(len(tree), level - 1), low, high)


def _arrays(template: Template, raw: Raw, where: Ints, grid: Ints, sides: Ints) -> tuple[Bools, Ints]:
    """Read fixed arrays of one page, whose elements are all there in the grid's own order."""
    wide, long = raw.wide, raw.long
    known, found = np.zeros(len(where), dtype=bool), [np.zeros((0, 5), dtype=np.int64)]
    whole, is_filtered = sides.prod(axis=1) * template.element_nbytes, int(template.filters > 0)
    head, is_there = _checked(raw, where, 12 + long + wide, b"FAHD\0" + bytes([is_filtered]))
    count, each, bits = numbers_in(head, 8, long), *head[:, 6:8].astype(np.int64).T
    # Libhdf5 takes the bytes of a size from those of a chunk (layout version 4), or of a length (5).
    # The bits of a number are the exponent of its float: chunks have at most 2**40 bytes.
    of_chunk = np.maximum(2, (np.frexp(whole)[1] - 1) // 8 + 2)
    fits = (each == wide + 4 + of_chunk) | (each == wide + 4 + long) if is_filtered else each == wide
    is_there &= (count == grid.prod(axis=1)) & fits & (count <= 1 << np.minimum(bits, 20))
    block = places_in(head, 8 + long, raw)
    known |= is_there & (block == NOWHERE)
    is_there &= block >= 0
    for several, size in {*zip(count[is_there].tolist(), each[is_there].tolist(), strict=True)}:
        which = np.flatnonzero(is_there & (count == several) & (each == size))
        own, begin = raw.of(which), 6 + wide
        data, sound = _checked(own, block[which], begin + several * size + 4, b"FADB\0" + bytes([is_filtered]))
        sound &= places_in(data, 6, own) == where[which]
        every = np.ascontiguousarray(data[:, begin : begin + several * size]).reshape(-1, size)
        offset = places_in(every, 0, raw.of(np.repeat(which, several)))
        nbytes, mask = np.repeat(whole[which], several), np.zeros(len(offset), np.int64)
        if is_filtered:
            nbytes, mask = numbers_in(every, wide, size - wide - 4), numbers_in(every, size - 4, 4)
        columns = [one.reshape(len(which), several) for one in (offset, nbytes, mask)]
        there = columns[0] != NOWHERE
        inside = (columns[0] >= 0) & (columns[1] > 0) & (columns[1] <= own.end[:, None] - columns[0])
        sound &= (inside | ~there).all(axis=1)
        known[which] = sound
        place, number = np.nonzero(there & sound[:, None])
        found.append(np.stack([which[place], number, *(one[place, number] for one in columns)], axis=1))
    return known, np.concatenate(found)


def _checked(raw: Raw, where: Ints, nbytes: int, sign: bytes) -> tuple[Bytes, Bools]:
    """Read structures that begin with some bytes and end with a checksum; tell which do."""
    data, is_there = raw.read(where, nbytes)
    is_there &= (data[:, : len(sign)] == np.frombuffer(sign, np.uint8)).all(axis=1)
    is_there &= checksums(data[:, : nbytes - 4]) == numbers_in(data, nbytes - 4, 4)
    return data, is_there


def _keys(
    data: Bytes, head: int, each: int, count: int, sides: Ints, element_nbytes: int, raw: Raw
) -> tuple[Ints, Ints, Bools]:
    """Return each node's keys (bytes, mask, a chunk's begin along each axis), its children, and whether it is sound."""
    rows, rank = sides.shape
    keys = np.zeros((rows, count + 1, rank + 3), dtype=np.int64)
    child = np.zeros((rows, count), dtype=np.int64)
    sound = np.ones(rows, dtype=bool)
    sides = np.append(sides, np.full((rows, 1), element_nbytes), axis=1)
    for k in range(count + 1):
        at = head + k * each
        keys[:, k, :2] = np.ascontiguousarray(data[:, at : at + 8]).view("<u4")
        keys[:, k, 2:] = np.ascontiguousarray(data[:, at + 8 : at + 8 * (rank + 2)]).view("<i8")
        sound &= ((keys[:, k, 2:] >= 0) & (keys[:, k, 2:] % sides == 0)).all(axis=1)
        if k < count:
            sound &= keys[:, k, -1] == 0
            child[:, k] = places_in(data, at + each - raw.wide, raw)
            sound &= child[:, k] >= 0
    return keys, child, sound


def _comes_before(one: Ints, other: Ints) -> Bools:
    """Tell which rows come before others, compared as libhdf5 looks keys up: number after number."""
    unlike = one != other
    axis = unlike.argmax(axis=1)
    every = np.arange(len(one))
    return np.asarray(unlike.any(axis=1) & (one[every, axis] < other[every, axis]))
