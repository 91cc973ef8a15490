"""Where the data of many objects lie, read from their headers at once.

Opening a dataset through libhdf5 costs 50 us and more, under a lock; a header that is like another one is compared with
it in some hundred nanoseconds, and a million of them give arrays and no Python objects
(`h5stream.storage.headers.templates`). Whatever is like none is *not understood*: libhdf5 is asked for that object, and
always for the first of those alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from h5stream.storage.headers.templates import (
    BTREE_1,
    CHUNKED,
    COMPACT,
    FIXED_ARRAY,
    NOWHERE,
    SINGLE,
    Bools,
    Bytes,
    Ints,
    Raw,
    Template,
    is_sound,
    match,
    numbers_in,
    places_in,
    template_of,
)
from h5stream.storage.source.identity import ByteSource

Chunks = Ints
"""Of chunks, with one column for each that was ever written: what it belongs to; its place in the grid of that, last
axis fastest; file offset and stored size in bytes; filter mask, whose bit `i` says that filter `i` was skipped."""

ASK = -2
"""Where an attribute, or a header, lies that libhdf5 must be asked for."""

_LOT_NBYTES = 16 << 20
"""Bytes of headers that are compared together."""
_COMPARED_EACH, _COMPARED_MORE = 8, 1 << 20
"""Comparisons of a header with a template, for each object and besides, after which what is left is asked for."""
_AT_ONCE = 1 << 18
"""Keys of trees of chunks, or elements of arrays of them, that are looked at together."""
_MOST_UNKNOWN = 64
"""Headers that were looked at and not understood, after which what is left is asked for."""
_SHORT_NBYTES = 64
"""Of values of attributes that are taken along with the headers."""
_MOST_CHUNK_NBYTES, _MOST_NBYTES = 1 << 40, 1 << 60
"""Of a chunk, and of data that lie together."""


class Superblock(NamedTuple):
    """What must be known of a file to read its headers."""

    file_nbytes: int  # bytes of the file; every address must lie inside
    offset_nbytes: int  # offset_nbytes, length_nbytes: bytes of an address, and of a count, in this file: 2, 4 or 8
    length_nbytes: int
    base_address: int  # where addresses count from: the bytes of the user block


class Alike(NamedTuple):
    """What the headers of objects say that one template fits; every array has one place an object."""

    template: Template
    which: Ints  # which of those that were asked for
    # where contiguous or compact data lie, a chunk index, a single chunk; `NOWHERE` where nothing was stored
    address: Ints
    nbytes: Ints  # bytes stored there: of contiguous and compact data, and of a single chunk
    mask: Ints  # the filter mask of a single chunk
    dims: Ints  # (objects, axes): the shape
    sides: Ints  # (objects, axes): the shape of its chunks; 0 where there are none
    # where the values lie of those attributes that were wanted and are in the header; by "" that of data not in chunks
    values: dict[str, Ints]
    said: dict[str, Bytes]  # (objects, bytes): the values themselves of those attributes, where these are short

    def of(self, fits: Bools) -> Alike:
        """Return some of them."""
        which, address, nbytes, mask, dims, sides = (each[fits] for each in self[1:-2])
        values = {name: each[fits] for name, each in self.values.items()}
        said = {name: each[fits] for name, each in self.said.items()}
        return Alike(self.template, which, address, nbytes, mask, dims, sides, values, said)


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


def read_headers(raw: Raw, addresses: Ints, attributes: Sequence[str] = ()) -> list[Alike]:
    """Read the headers of some objects, of which h5py gives the addresses; those not understood are in none."""
    # In the order of the file: a million that are read in random order take 2.5 s so, and 3.6 s as they come.
    left = np.argsort(addresses, kind="stable")
    left = left[addresses[left] >= 0]
    found, unknown, compared = list[Alike](), 0, 0
    while len(left) and unknown < _MOST_UNKNOWN and compared < _COMPARED_EACH * len(addresses) + _COMPARED_MORE:
        template = template_of(raw.of(left[:1]), int(addresses[left[0]]), attributes)
        if template is None:
            left, unknown = left[1:], unknown + 1
            continue
        compared += len(left)
        fits = list[Bools]()
        for some in _lots(left, len(template.data), _LOT_NBYTES):
            alike = _compared(template, raw.of(some), some, addresses[some])
            fits.append(alike[0])
            found.append(alike[1].of(alike[0]))
        is_like = np.concatenate(fits)
        is_like[0] = True  # what was walked through is done, also if it contradicts itself
        unknown += bool(is_like.sum() == 1)  # like no other: libhdf5 is as quick, and asked for many such
        left = left[~is_like]
    return [alike for alike in found if len(alike.which)]


def _compared(template: Template, raw: Raw, which: Ints, addresses: Ints) -> tuple[Bools, Alike]:
    """Tell which of some objects a template fits, and what they say."""
    matched = match(template, raw, addresses)
    dims, sides = (matched.numbers(places, template.rank) for places in (template.dims, template.sides))
    is_chunked, zeros = template.layout == CHUNKED, np.zeros(len(which), np.int64)
    address, nbytes, mask = np.full(len(which), NOWHERE), zeros, zeros
    fits = matched.fits & (dims >= 0).all(axis=1)
    if template.address is not None:
        lengths = sides if is_chunked else dims
        whole = lengths.prod(axis=1, dtype=np.float64) * template.element_nbytes
        fits &= (lengths >= is_chunked).all(axis=1)  # a side of a chunk is one element or more
        fits &= whole <= (_MOST_CHUNK_NBYTES if is_chunked else _MOST_NBYTES)
        address = (matched.where if template.layout == COMPACT else matched.address)(template.address)
        there = address != NOWHERE
        stored = lengths.prod(axis=1) * template.element_nbytes
        nbytes = stored if template.nbytes is None else matched.number(template.nbytes)
        if not is_chunked:
            fits &= nbytes == stored
        elif template.index == SINGLE:
            fits &= (dims <= sides).all(axis=1) & (~there | (nbytes > 0))
        else:
            nbytes = zeros
        nbytes = np.where(there, nbytes, 0)
        fits &= ~there | ((address >= 0) & (nbytes >= 0) & (nbytes <= raw.end - address))
        mask = zeros if template.mask is None else matched.number(template.mask)
    values = {name: matched.where(place) if name else address for name, (place, _) in template.values.items()}
    short = {name: place for name, (place, _) in template.values.items() if name and place.nbytes <= _SHORT_NBYTES}
    said = {name: matched.data[:, place.at : place.at + place.nbytes].copy() for name, place in short.items()}
    return fits, Alike(template, which, address, nbytes, mask, dims, sides, values, said)


def looked_up(raw: Raw, groups: Ints, path: str) -> Ints:
    """Return where the headers lie of what has one path inside of each of some groups, by the addresses of those.

    `ASK` where libhdf5 must be asked: a group on the way is unlike that of the first which can be looked at.
    """
    addresses = groups
    for step in filter(None, path.split("/")):
        found, which = np.full(len(addresses), ASK), np.flatnonzero(addresses >= 0)
        name, template = step.encode("utf-8", "surrogateescape"), None
        if len(which):
            template = template_of(raw.of(which[:1]), int(addresses[which[0]]), link=name)
        if template is not None and name in template.links:
            for some in _lots(which, len(template.data), _LOT_NBYTES):
                own = raw.of(some)
                matched = match(template, own, addresses[some])
                where = matched.address(template.links[name])
                found[some] = np.where(matched.fits & (where >= 0), where - own.origin, ASK)
        addresses = found
    return addresses


def _lots(which: Ints, each: int, most: int) -> list[Ints]:
    """Cut those that have so much each into such as have no more than that together, if one has not."""
    step = max(1, most // max(1, each))
    return [which[low : low + step] for low in range(0, len(which), step)]


# --- chunk indexes ------------------------------------------------------------------------------------------------


def chunks_of(raw: Raw, alike: Alike) -> tuple[Bools, Chunks]:
    """Read where the data of objects lie: whole, or by chunk indexes that are trees, arrays of one page, single chunks.

    Tells first which were understood; libhdf5 must be asked for the others, of which no chunk is listed. What chunks
    belong to are places among these objects.
    """
    template, count = alike.template, len(alike.which)
    is_one = template.layout != CHUNKED or template.index == SINGLE
    read = {BTREE_1: _trees, FIXED_ARRAY: _arrays}.get(template.index)
    understood = np.full(count, is_one or read is not None)
    some = np.flatnonzero((alike.address != NOWHERE) & (alike.dims != 0).all(axis=1) & understood)
    if is_one or read is None:
        zeros = np.zeros_like(some)
        return understood, np.array([some, zeros, alike.address[some], alike.nbytes[some], alike.mask[some]])
    sides, grid = alike.sides[some], -(-alike.dims[some] // alike.sides[some])
    understood[some], chunks = read(template, raw.of(some), alike.address[some], grid, sides)
    chunks[0] = some[chunks[0]]
    return understood, chunks


def _trees(template: Template, raw: Raw, where: Ints, grid: Ints, sides: Ints) -> tuple[Bools, Chunks]:
    """Read trees; what is said of a chunk must be a place in the grid, and in the file."""
    known, found = np.ones(len(where), dtype=bool), [np.zeros((5, 0), dtype=np.int64)]
    size = sides.prod(axis=1) * template.element_nbytes
    for tree, nbytes, mask, begins, child in _leaves(template, raw, where, sides, known):
        chunk, number = begins // sides[tree][:, None], np.zeros_like(child)
        for axis in range(template.rank):
            number = number * grid[tree, axis, None] + chunk[:, :, axis]
        sound = (chunk < grid[tree][:, None]).all(axis=(1, 2))
        sound &= ((nbytes > 0) & (nbytes <= raw.of(tree).end[:, None] - child)).all(axis=1)
        if not template.filters:
            sound &= ((nbytes == size[tree][:, None]) & (mask == 0)).all(axis=1)
        known[tree[~sound]] = False
        tree = np.broadcast_to(tree[:, None], child.shape)
        found.append(np.array([each[sound].reshape(-1) for each in (tree, number, child, nbytes, mask)]))
    every = np.concatenate(found, axis=1)
    return known, every[:, known[every[0]]]


def _leaves(
    template: Template, raw: Raw, where: Ints, sides: Ints, known: Bools
) -> Iterator[tuple[Ints, Ints, Ints, Ints, Ints]]:
    """Yield leaves: of which tree, and of each chunk bytes, filter mask, first element and place.

    Libhdf5 lists all chunks, but finds only those that lie between the keys on their left and right. So the first and
    the last key of a node must be those between which its parent has it, and ascend; trees of others are not `known`.
    """
    rank, head = template.rank, 8 + 2 * raw.wide
    anywhere = np.zeros((len(where), 0, rank + 1), np.int64)
    nodes = [(np.arange(len(where)), where, anywhere, anywhere, -1)]
    while nodes:
        trees, places, low, high, wanted = nodes.pop()
        first, is_there = raw.of(trees).read(places, head)
        level, entries = first[:, 5].astype(np.int64), numbers_in(first, 6, 2)
        is_there &= (first[:, :5] == np.frombuffer(b"TREE\1", np.uint8)).all(axis=1)
        is_there &= (level == wanted) | (wanted < 0)
        known[trees[~is_there]] = False
        for height, count in {*zip(level[is_there].tolist(), entries[is_there].tolist(), strict=True)}:
            for lot in _lots(np.flatnonzero(is_there & (level == height) & (entries == count)), count, _AT_ONCE):
                tree = trees[lot]
                sizes, begins, child, sound = _keys(template, raw.of(tree), places[lot], count, sides[tree])
                sound &= (begins[:, :1] == low[lot]).all(axis=(1, 2)) & (begins[:, -1:] == high[lot]).all(axis=(1, 2))
                known[tree[~sound]] = False
                tree, sizes, begins, child = (each[sound] for each in (tree, sizes, begins, child))
                if height:
                    keys = (each.reshape(-1, 1, rank + 1) for each in (begins[:, :-1], begins[:, 1:]))
                    nodes.append((np.repeat(tree, count), child.reshape(-1), *keys, height - 1))
                else:
                    yield tree, sizes[:, :-1, 0], sizes[:, :-1, 1], begins[:, :-1, :-1], child


def _keys(template: Template, raw: Raw, where: Ints, count: int, sides: Ints) -> tuple[Ints, Ints, Ints, Bools]:
    """Return of nodes: the keys (bytes and mask; first element), the children, and which are sound."""
    rows, key = len(where), 8 * (template.rank + 2)
    head, each = 8 + 2 * raw.wide, key + raw.wide
    nbytes = count * each + key
    data, sound = raw.read(where, head + nbytes)
    records = np.zeros((rows, count + 1, each), np.uint8)
    records.reshape(rows, (count + 1) * each)[:, :nbytes] = data[:, head : head + nbytes]
    sizes = np.ascontiguousarray(records[:, :, :8]).view("<u4").astype(np.int64)
    begins = np.ascontiguousarray(records[:, :, 8:key]).view("<i8")
    children = raw.of(np.repeat(np.arange(rows), count))
    child = places_in(records[:, :-1].reshape(-1, each), key, children).reshape(rows, count)
    steps = np.append(sides, np.full((rows, 1), template.element_nbytes), axis=1)
    sound &= ((begins >= 0) & (begins % steps[:, None] == 0)).all(axis=(1, 2))
    sound &= ((begins[:, :-1, -1] == 0) & (child >= 0)).all(axis=1)
    further = np.diff(begins, axis=1)  # compared as libhdf5 looks keys up: number after number
    axis = (further != 0).argmax(axis=2)[:, :, None]
    sound &= (np.take_along_axis(further, axis, axis=2) > 0).all(axis=(1, 2))
    return sizes, begins, child, sound


def _arrays(template: Template, raw: Raw, where: Ints, grid: Ints, sides: Ints) -> tuple[Bools, Chunks]:
    """Read fixed arrays of one page, whose elements are all there in the grid's own order."""
    wide, long, is_filtered = raw.wide, raw.long, template.filters > 0
    known, found = np.zeros(len(where), dtype=bool), [np.zeros((5, 0), dtype=np.int64)]
    whole = sides.prod(axis=1) * template.element_nbytes
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
        for lot in _lots(np.flatnonzero(is_there & (count == several) & (each == size)), several, _AT_ONCE):
            own, begin = raw.of(lot), 6 + wide
            data, sound = _checked(own, block[lot], begin + several * size + 4, b"FADB\0" + bytes([is_filtered]))
            sound &= places_in(data, 6, own) == where[lot]
            every = np.ascontiguousarray(data[:, begin : begin + several * size]).reshape(-1, size)
            owner = np.repeat(lot, several)
            offset, nbytes, mask = places_in(every, 0, raw.of(owner)), whole[owner], np.zeros(len(owner), np.int64)
            if is_filtered:
                nbytes, mask = numbers_in(every, wide, size - wide - 4), numbers_in(every, size - 4, 4)
            there = offset != NOWHERE
            inside = (offset >= 0) & (nbytes > 0) & (nbytes <= raw.of(owner).end - offset)
            known[lot] = sound & (inside | ~there).reshape(len(lot), several).all(axis=1)
            number = np.tile(np.arange(several), len(lot))
            there &= known[owner]
            found.append(np.array([one[there] for one in (owner, number, offset, nbytes, mask)]))
    return known, np.concatenate(found, axis=1)


def _checked(raw: Raw, where: Ints, nbytes: int, sign: bytes) -> tuple[Bytes, Bools]:
    """Read structures that begin with some bytes and end with a checksum; tell which do."""
    data, is_there = raw.read(where, nbytes)
    is_there &= (data[:, : len(sign)] == np.frombuffer(sign, np.uint8)).all(axis=1) & is_sound(data, nbytes)
    return data, is_there
