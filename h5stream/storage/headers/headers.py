"""Addresses and shapes of the data of many objects, read from their headers together.

Opening a dataset through libhdf5 costs 50 us or more, under a lock. Comparing its header with a template takes a few
hundred nanoseconds, and the results for a million objects are arrays (`h5stream.storage.headers.templates`). An object
whose header matches no template is opened through libhdf5, and so is always the first object of each template.
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
"""An array with a column for each written chunk: the number of its object; its index in the grid of chunks, last axis
fastest; file offset and stored size in bytes; filter mask, whose bit `i` is set if filter `i` was skipped."""

ASK = -2
"""The address of a header, or of an attribute, that only libhdf5 can find."""

_LOT_NBYTES = 16 << 20
"""Bytes of headers in one comparison."""
_COMPARED_EACH, _COMPARED_MORE = 8, 1 << 20
"""The most comparisons of headers with templates, per object and in addition; libhdf5 opens the rest."""
_AT_ONCE = 1 << 18
"""Keys of B-trees, or elements of fixed arrays, that are parsed together."""
_MOST_UNKNOWN = 64
"""The most headers without a template or a second match; libhdf5 opens the rest."""
_SHORT_NBYTES = 64
"""The longest values of attributes that are returned with the headers."""
_MOST_CHUNK_NBYTES, _MOST_NBYTES = 1 << 40, 1 << 60
"""Upper bounds for a chunk and for contiguous data, in bytes."""


class Superblock(NamedTuple):
    """The properties of a file that are needed to read its headers."""

    file_nbytes: int  # bytes of the file; every address must lie inside
    offset_nbytes: int  # offset_nbytes, length_nbytes: bytes of an address, and of a count, in this file: 2, 4 or 8
    length_nbytes: int
    base_address: int  # the origin of addresses: the bytes of the user block


class HeaderBatch(NamedTuple):
    """The contents of the headers that match one template; every array has one entry per object."""

    template: Template
    which: Ints  # indices of the objects among the requested ones
    # address of contiguous or compact data, of a chunk index, or of a single chunk; `NOWHERE` if nothing was stored
    address: Ints
    nbytes: Ints  # stored bytes of contiguous or compact data, or of a single chunk
    mask: Ints  # the filter mask of a single chunk
    dims: Ints  # (objects, axes): the shape
    sides: Ints  # (objects, axes): the shape of its chunks; 0 without chunks
    # addresses of the values of wanted attributes that are in the header, and by "" of data that are not chunked
    values: dict[str, Ints]
    said: dict[str, Bytes]  # (objects, bytes): the values of those attributes, if they are short

    def of(self, fits: Bools) -> HeaderBatch:
        """Return the selected objects."""
        which, address, nbytes, mask, dims, sides = (array[fits] for array in self[1:-2])
        values = {name: array[fits] for name, array in self.values.items()}
        said = {name: array[fits] for name, array in self.said.items()}
        return HeaderBatch(self.template, which, address, nbytes, mask, dims, sides, values, said)


def superblock_of(file: Any, file_nbytes: int) -> Superblock:
    """Return the superblock of an open `h5py.File` of `file_nbytes` bytes."""
    creation = file.id.get_create_plist()
    wide, long = creation.get_sizes()
    return Superblock(file_nbytes, int(wide), int(long), int(creation.get_userblock()))


def raw_of(source: ByteSource, superblock: Superblock) -> Raw:
    """Return the bytes of a file for reading headers; none if its superblock has unusual values."""
    nbytes, wide, long, base = superblock
    is_usual = wide in (2, 4, 8) and long in (2, 4, 8) and 0 <= base < nbytes
    return Raw(source=source, wide=wide, long=long, origin=np.array([base]), end=np.array([nbytes if is_usual else 0]))


def read_headers(raw: Raw, addresses: Ints, attributes: Sequence[str] = ()) -> list[HeaderBatch]:
    """Read the headers at some addresses; objects that only libhdf5 understands are omitted."""
    # In file order: a million headers in random order take 2.5 s sorted, and 3.6 s unsorted.
    remaining = np.argsort(addresses, kind="stable")
    remaining = remaining[addresses[remaining] >= 0]
    batches, unknown, compared = list[HeaderBatch](), 0, 0
    while len(remaining) and unknown < _MOST_UNKNOWN and compared < _COMPARED_EACH * len(addresses) + _COMPARED_MORE:
        template = template_of(raw.of(remaining[:1]), int(addresses[remaining[0]]), attributes)
        if template is None:
            remaining, unknown = remaining[1:], unknown + 1
            continue
        compared += len(remaining)
        fits = list[Bools]()
        for lot in _lots(remaining, len(template.data), _LOT_NBYTES):
            matched = _compared(template, raw.of(lot), lot, addresses[lot])
            fits.append(matched[0])
            batches.append(matched[1].of(matched[0]))
        is_like = np.concatenate(fits)
        is_like[0] = True  # the template's own object is done, even if its header contradicts itself
        unknown += bool(is_like.sum() == 1)  # matched no other: libhdf5 is as fast, and used if there are many
        remaining = remaining[~is_like]
    return [batch for batch in batches if len(batch.which)]


def _compared(template: Template, raw: Raw, which: Ints, addresses: Ints) -> tuple[Bools, HeaderBatch]:
    """Compare objects with a template; return which match, and the contents of all headers."""
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
        is_stored = address != NOWHERE
        stored = lengths.prod(axis=1) * template.element_nbytes
        nbytes = stored if template.nbytes is None else matched.number(template.nbytes)
        if not is_chunked:
            fits &= nbytes == stored
        elif template.index == SINGLE:
            fits &= (dims <= sides).all(axis=1) & (~is_stored | (nbytes > 0))
        else:
            nbytes = zeros
        nbytes = np.where(is_stored, nbytes, 0)
        fits &= ~is_stored | ((address >= 0) & (nbytes >= 0) & (nbytes <= raw.end - address))
        mask = zeros if template.mask is None else matched.number(template.mask)
    values = {name: matched.where(place) if name else address for name, (place, _) in template.values.items()}
    short = {name: place for name, (place, _) in template.values.items() if name and place.nbytes <= _SHORT_NBYTES}
    contents = {name: matched.data[:, place.at : place.at + place.nbytes].copy() for name, place in short.items()}
    return fits, HeaderBatch(template, which, address, nbytes, mask, dims, sides, values, contents)


def looked_up(raw: Raw, groups: Ints, path: str) -> Ints:
    """Return the addresses of the headers of the objects at one path inside each group.

    The address is `ASK` if only libhdf5 can find it: a group on the path matches no template.
    """
    addresses = groups
    for step in filter(None, path.split("/")):
        headers, which = np.full(len(addresses), ASK), np.flatnonzero(addresses >= 0)
        name, template = step.encode("utf-8", "surrogateescape"), None
        if len(which):
            template = template_of(raw.of(which[:1]), int(addresses[which[0]]), link=name)
        if template is not None and name in template.links:
            for lot in _lots(which, len(template.data), _LOT_NBYTES):
                own = raw.of(lot)
                matched = match(template, own, addresses[lot])
                where = matched.address(template.links[name])
                headers[lot] = np.where(matched.fits & (where >= 0), where - own.origin, ASK)
        addresses = headers
    return addresses


def _lots(which: Ints, size: int, most: int) -> list[Ints]:
    """Divide objects of a size into lots of at most `most` in total, but at least one object."""
    step = max(1, most // max(1, size))
    return [which[low : low + step] for low in range(0, len(which), step)]


# --- chunk indexes ------------------------------------------------------------------------------------------------


def chunks_of(raw: Raw, headers: HeaderBatch) -> tuple[Bools, Chunks]:
    """Return the chunks of objects: contiguous data, or chunks in B-trees, one-page fixed arrays or single chunks.

    The first result is a mask of the objects that were understood; the others have no chunks here and are left to
    libhdf5. Chunks refer to objects by their index.
    """
    template, count = headers.template, len(headers.which)
    is_one = template.layout != CHUNKED or template.index == SINGLE
    read = {BTREE_1: _trees, FIXED_ARRAY: _arrays}.get(template.index)
    understood = np.full(count, is_one or read is not None)
    stored = np.flatnonzero((headers.address != NOWHERE) & (headers.dims != 0).all(axis=1) & understood)
    if is_one or read is None:
        zeros = np.zeros_like(stored)
        return understood, np.array(
            [stored, zeros, headers.address[stored], headers.nbytes[stored], headers.mask[stored]]
        )
    sides, grid = headers.sides[stored], -(-headers.dims[stored] // headers.sides[stored])
    understood[stored], chunks = read(template, raw.of(stored), headers.address[stored], grid, sides)
    chunks[0] = stored[chunks[0]]
    return understood, chunks


def _trees(template: Template, raw: Raw, where: Ints, grid: Ints, sides: Ints) -> tuple[Bools, Chunks]:
    """Read B-trees of chunks; each chunk must be inside the grid and the file."""
    is_known, columns = np.ones(len(where), dtype=bool), [np.zeros((5, 0), dtype=np.int64)]
    size = sides.prod(axis=1) * template.element_nbytes
    for tree, nbytes, mask, begins, child in _leaves(template, raw, where, sides, is_known):
        chunk, number = begins // sides[tree][:, None], np.zeros_like(child)
        for axis in range(template.rank):
            number = number * grid[tree, axis, None] + chunk[:, :, axis]
        sound = (chunk < grid[tree][:, None]).all(axis=(1, 2))
        sound &= ((nbytes > 0) & (nbytes <= raw.of(tree).end[:, None] - child)).all(axis=1)
        if not template.filters:
            sound &= ((nbytes == size[tree][:, None]) & (mask == 0)).all(axis=1)
        is_known[tree[~sound]] = False
        tree = np.broadcast_to(tree[:, None], child.shape)
        columns.append(np.array([array[sound].reshape(-1) for array in (tree, number, child, nbytes, mask)]))
    every = np.concatenate(columns, axis=1)
    return is_known, every[:, is_known[every[0]]]


def _leaves(
    template: Template, raw: Raw, where: Ints, sides: Ints, is_known: Bools
) -> Iterator[tuple[Ints, Ints, Ints, Ints, Ints]]:
    """Yield the leaves of B-trees: tree, and for each chunk bytes, filter mask, first element and address.

    libhdf5 lists all chunks, but a look-up finds only those between the keys on their left and right. So the first and
    the last key of a node must equal the keys around it in its parent, and ascend; others are set False in `is_known`.
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
        is_known[trees[~is_there]] = False
        for height, count in {*zip(level[is_there].tolist(), entries[is_there].tolist(), strict=True)}:
            for lot in _lots(np.flatnonzero(is_there & (level == height) & (entries == count)), count, _AT_ONCE):
                tree = trees[lot]
                sizes, begins, child, sound = _keys(template, raw.of(tree), places[lot], count, sides[tree])
                sound &= (begins[:, :1] == low[lot]).all(axis=(1, 2)) & (begins[:, -1:] == high[lot]).all(axis=(1, 2))
                is_known[tree[~sound]] = False
                tree, sizes, begins, child = (array[sound] for array in (tree, sizes, begins, child))
                if height:
                    keys = (array.reshape(-1, 1, rank + 1) for array in (begins[:, :-1], begins[:, 1:]))
                    nodes.append((np.repeat(tree, count), child.reshape(-1), *keys, height - 1))
                else:
                    yield tree, sizes[:, :-1, 0], sizes[:, :-1, 1], begins[:, :-1, :-1], child


def _keys(template: Template, raw: Raw, where: Ints, count: int, sides: Ints) -> tuple[Ints, Ints, Ints, Bools]:
    """Return the keys of B-tree nodes (bytes and mask; first element), their children, and which nodes are sound."""
    rows, key = len(where), 8 * (template.rank + 2)
    head, record = 8 + 2 * raw.wide, key + raw.wide
    nbytes = count * record + key
    data, sound = raw.read(where, head + nbytes)
    records = np.zeros((rows, count + 1, record), np.uint8)
    records.reshape(rows, (count + 1) * record)[:, :nbytes] = data[:, head : head + nbytes]
    sizes = np.ascontiguousarray(records[:, :, :8]).view("<u4").astype(np.int64)
    begins = np.ascontiguousarray(records[:, :, 8:key]).view("<i8")
    children = raw.of(np.repeat(np.arange(rows), count))
    child = places_in(records[:, :-1].reshape(-1, record), key, children).reshape(rows, count)
    steps = np.append(sides, np.full((rows, 1), template.element_nbytes), axis=1)
    sound &= ((begins >= 0) & (begins % steps[:, None] == 0)).all(axis=(1, 2))
    sound &= ((begins[:, :-1, -1] == 0) & (child >= 0)).all(axis=1)
    further = np.diff(begins, axis=1)  # compared like libhdf5's look-up: number by number
    axis = (further != 0).argmax(axis=2)[:, :, None]
    sound &= (np.take_along_axis(further, axis, axis=2) > 0).all(axis=(1, 2))
    return sizes, begins, child, sound


def _arrays(template: Template, raw: Raw, where: Ints, grid: Ints, sides: Ints) -> tuple[Bools, Chunks]:
    """Read fixed arrays of one page, which have all elements in grid order."""
    wide, long, is_filtered = raw.wide, raw.long, template.filters > 0
    is_known, columns = np.zeros(len(where), dtype=bool), [np.zeros((5, 0), dtype=np.int64)]
    whole = sides.prod(axis=1) * template.element_nbytes
    head, is_there = _checked(raw, where, 12 + long + wide, b"FAHD\0" + bytes([is_filtered]))
    count, element_nbytes, bits = numbers_in(head, 8, long), *head[:, 6:8].astype(np.int64).T
    # The bytes of a size are those of a chunk's size (layout version 4), or of a length (5).
    # The bits of a number are the exponent of its float: chunks have at most 2**40 bytes.
    of_chunk = np.maximum(2, (np.frexp(whole)[1] - 1) // 8 + 2)
    size_nbytes = element_nbytes - wide - 4  # of the stored size of a filtered chunk
    fits = (size_nbytes == of_chunk) | (size_nbytes == long) if is_filtered else element_nbytes == wide
    is_there &= (count == grid.prod(axis=1)) & fits & (count <= 1 << np.minimum(bits, 20))
    block = places_in(head, 8 + long, raw)
    is_known |= is_there & (block == NOWHERE)
    is_there &= block >= 0
    for elements, size in {*zip(count[is_there].tolist(), element_nbytes[is_there].tolist(), strict=True)}:
        for lot in _lots(np.flatnonzero(is_there & (count == elements) & (element_nbytes == size)), elements, _AT_ONCE):
            own, begin = raw.of(lot), 6 + wide
            data, sound = _checked(own, block[lot], begin + elements * size + 4, b"FADB\0" + bytes([is_filtered]))
            sound &= places_in(data, 6, own) == where[lot]
            every = np.ascontiguousarray(data[:, begin : begin + elements * size]).reshape(-1, size)
            owner = np.repeat(lot, elements)
            offset, nbytes, mask = places_in(every, 0, raw.of(owner)), whole[owner], np.zeros(len(owner), np.int64)
            if is_filtered:
                nbytes, mask = numbers_in(every, wide, size - wide - 4), numbers_in(every, size - 4, 4)
            is_stored = offset != NOWHERE
            inside = (offset >= 0) & (nbytes > 0) & (nbytes <= raw.of(owner).end - offset)
            is_known[lot] = sound & (inside | ~is_stored).reshape(len(lot), elements).all(axis=1)
            number = np.tile(np.arange(elements), len(lot))
            is_stored &= is_known[owner]
            columns.append(np.array([one[is_stored] for one in (owner, number, offset, nbytes, mask)]))
    return is_known, np.concatenate(columns, axis=1)


def _checked(raw: Raw, where: Ints, nbytes: int, sign: bytes) -> tuple[Bytes, Bools]:
    """Read structures with a signature and a checksum; return them, and a mask of those that have both."""
    data, is_there = raw.read(where, nbytes)
    is_there &= (data[:, : len(sign)] == np.frombuffer(sign, np.uint8)).all(axis=1) & is_sound(data, nbytes)
    return data, is_there
