"""Object headers as bytes: the compiled loop behind `h5stream.storage.headers`.

An object header is a list of messages, in one block and any number of continuation blocks. Version 1 has no checksums
and keeps messages at multiples of 8 bytes; version 2 has a signature and a checksum on each block. Of a dataset's
messages six matter here: dataspace, datatype, fill value (an old and a new one), layout, filter pipeline; and its
attributes, which are messages too until there are many.

Every function here gives up, with False or a negative number, at whatever it does not know: the caller asks libhdf5
then. Which messages, versions and flags are known is what HDF5 1.6 to 2.0 write.

# Guarantees: nothing is read but through `metadata_bytes.read`, which keeps to the file and to the buffer; every
position in the buffer is compared with the end of what was read before it is used; every loop is bounded by the bytes
of one header.

Source: the HDF5 File Format Specification, version 3.0, "Disk Format: Level 2A, Data Object Headers"; layout version 5
is that of libhdf5 2.0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from h5stream.compiled.instructions import copy_bytes
from h5stream.compiled.jit import jit, jit_inner
from h5stream.storage.heap_bytes import collect_records, find_in_heap, load_heap
from h5stream.storage.metadata_bytes import (
    BASE,
    BEYOND,
    FILE_NBYTES,
    LENGTH_NBYTES,
    NOWHERE,
    OFFSET_NBYTES,
    SLACK_NBYTES,
    address,
    address_of,
    checksum,
    ends_with_checksum,
    is_signed,
    length,
    number,
    read,
)

ABSENT, ASK = -1, -2
"""An attribute that the object lacks, and one that libhdf5 must be asked for."""

GROUP, CONTIGUOUS, COMPACT, CHUNKED = 0, 1, 2, 3
"""What an object is, by its header."""

BTREE_1, SINGLE, IMPLICIT, FIXED_ARRAY, EXTENSIBLE_ARRAY, BTREE_2 = range(6)
"""Kinds of chunk index, numbered as in libhdf5's ``H5D_chunk_index_t``."""

MOST_AXES = 8
MOST_BLOCKS = 256
MOST_KINDS = 16_384
FIRST_NBYTES = 512
"""Bytes that are read of each header first. h5py's usual ones take 272 bytes; another read costs as much as 2 KiB."""
ROOM_NBYTES = 512 * 1024
"""The longest header that is read, with its blocks and what its dense attributes need."""
KEY_NBYTES = 256 * 1024
POOL_NBYTES = 16 * 1024 * 1024
"""Bytes of distinct datatypes and the like that are told apart."""

_MOST_PROBES = 64
MOST_DENSE = 4096
_MOST_ELEMENTS = 1 << 60
_MOST_CHUNK_NBYTES = 1 << 40

# Messages by their number in the file: where each is noted in `found`, or what else becomes of it.
_IGNORED, _OF_GROUPS, _UNKNOWN = -1, -2, -3
_DATASPACE, _DATATYPE, _OLD_FILL, _FILL, _LAYOUT, _PIPELINE, ATTRIBUTE_INFO, SYMBOL_TABLE, LINK_INFO = range(9)
_SLOTS = np.array(
    [
        _IGNORED, _DATASPACE, LINK_INFO, _DATATYPE, _OLD_FILL, _FILL, _OF_GROUPS, _UNKNOWN,  # 0x07: external files
        _LAYOUT, _UNKNOWN, _OF_GROUPS, _PIPELINE, _UNKNOWN, _IGNORED, _IGNORED, _UNKNOWN,  # comment, old time
        _UNKNOWN, SYMBOL_TABLE, _IGNORED, _UNKNOWN, _UNKNOWN, ATTRIBUTE_INFO, _IGNORED, _UNKNOWN,  # time, references
    ]
)  # fmt: skip
_ATTRIBUTE, _CONTINUATION = 0x0C, 0x10
_SHARED, _KNOWN_FLAGS = 2, 0x47  # constant, shared, never to be shared, may be shared

# Places in `found` after the nine slots of (position, bytes).
_SHIFT, IS_GROUP, DOUBTED, _MESSAGES, BLOCKS, USED = range(18, 24)
FOUND = 24

# Columns of `values`.
VALUE_AT, VALUE_NBYTES, TYPE_AT, TYPE_NBYTES, SPACE_AT, SPACE_NBYTES = range(6)

# Places in `about`; after the last come the shape and the chunks' shape.
RANK, LAYOUT, AT, NBYTES, INDEX, IS_NUMBERED, MASK, ELEMENT, FILTERS, SHAPE = range(10)
CHUNK_SHAPE = SHAPE + MOST_AXES
ABOUT = CHUNK_SHAPE + MOST_AXES


class Scratch(NamedTuple):
    """Memory that the loop uses again for each object: bytes read, blocks to read, what was found where."""

    buffer: Any
    blocks: Any
    found: Any
    values: Any
    about: Any
    key: Any


class Wanted(NamedTuple):
    """Names of attributes, one behind the other, and where each begins; the last edge is the end."""

    names: Any
    edges: Any


class Interned(NamedTuple):
    """Byte strings that were seen, each once: one table for objects, and one for each attribute.

    `table` leads from a hash to a number, `places` from a number to bytes in `pool`; `counts` are numbers given out,
    and at its end the bytes used of the pool.
    """

    pool: Any
    places: Any
    table: Any
    counts: Any


# --- messages -------------------------------------------------------------------------------------------------


@jit_inner
def extent(given, buffer, at, nbytes):
    """Give a dataspace's rank, the position of its lengths, its elements. Rank -1: it holds nothing; -2: a doubt."""
    doubt = (np.int64(-2), np.int64(0), np.int64(0))
    if nbytes < 4:
        return doubt
    version, rank, flags, what = buffer[at], np.int64(buffer[at + 1]), buffer[at + 2], buffer[at + 3]
    head = 8 if version == 1 else 4
    each = given[LENGTH_NBYTES]
    if version < 1 or version > 2 or flags > 1 or head + rank * each * (1 + flags) > nbytes:
        return doubt
    if version == 2 and what == 2 and rank == 0:
        return np.int64(-1), np.int64(0), np.int64(0)
    if version == 2 and what != min(rank, 1):
        return doubt
    count = np.int64(1)
    for k in range(rank):
        side = number(buffer, at + head + k * each, each)
        if side < 0 or (side and count > _MOST_ELEMENTS // side):
            return doubt
        count *= side
    return rank, at + head, count


@jit_inner
def element_nbytes(buffer, at, nbytes):
    """Give the bytes of one element of a datatype; 0 for a doubt."""
    if nbytes < 8:
        return np.int64(0)
    version, kind = buffer[at] >> 4, buffer[at] & 15
    if version < 1 or version > 5 or kind > 11:
        return np.int64(0)
    return number(buffer, at + 4, 4)


@jit_inner
def _same(one, at, other, there, nbytes):
    """Tell whether bytes of two buffers are the same."""
    for k in range(0, nbytes, 8):
        count = min(8, nbytes - k)
        if number(one, at + k, count) != number(other, there + k, count):
            return False
    return True


@jit_inner
def _number_wanted(buffer, at, nbytes, wanted):
    """Give the number of the wanted attribute with this name; -1 if it is none of them."""
    for which in range(wanted.edges.size - 1):
        start = wanted.edges[which]
        if wanted.edges[which + 1] - start == nbytes and _same(buffer, at, wanted.names, start, nbytes):
            return which
    return -1


@jit_inner
def _padded(nbytes, version):
    return (nbytes + 7) & ~7 if version == 1 else nbytes


@jit_inner
def _ends_in_null(buffer, at, nbytes):
    """Tell whether the one null of some bytes is their last."""
    for k in range(nbytes):
        if buffer[at + k] == 0:
            return k == nbytes - 1
    return False


@jit_inner
def note_attribute(given, scratch, body, nbytes, shift, wanted):
    """Note where the value of an attribute lies if it is wanted; False where the message cannot be made out."""
    buffer, values = scratch.buffer, scratch.values
    version = np.int64(buffer[body]) if nbytes else 0
    head = 9 if version == 3 else 8
    if version < 1 or version > 3 or nbytes < head:
        return False
    # Flags say that the datatype or the dataspace is kept elsewhere.
    flags = buffer[body + 1] if version > 1 else 0
    name_nbytes, type_nbytes = number(buffer, body + 2, 2), number(buffer, body + 4, 2)
    space_nbytes = number(buffer, body + 6, 2)
    name_at = body + head
    type_at = name_at + _padded(name_nbytes, version)
    space_at = type_at + _padded(type_nbytes, version)
    value_at = space_at + _padded(space_nbytes, version)
    if value_at > body + nbytes or not _ends_in_null(buffer, name_at, name_nbytes):
        return False
    which = _number_wanted(buffer, name_at, name_nbytes - 1, wanted)
    if which < 0:
        return True
    if flags or values[which, VALUE_AT] != ABSENT:
        values[which, VALUE_AT] = ASK
        return True
    rank, _, count = extent(given, buffer, space_at, space_nbytes)
    each = element_nbytes(buffer, type_at, type_nbytes)
    if rank < -1 or each == 0 or count > (body + nbytes - value_at) // each:
        values[which, VALUE_AT] = ASK
        return True
    values[which, VALUE_AT], values[which, VALUE_NBYTES] = value_at + shift, count * each
    values[which, TYPE_AT], values[which, TYPE_NBYTES] = type_at, type_nbytes
    values[which, SPACE_AT], values[which, SPACE_NBYTES] = space_at, space_nbytes
    return True


@jit_inner
def _note_message(given, scratch, kind, flags, body, nbytes, shift, wanted):
    """Note where a message lies; False where it makes the header one that is not understood."""
    found, blocks = scratch.found, scratch.blocks
    shared = flags & _SHARED != 0
    if flags & ~_KNOWN_FLAGS:
        return False
    if kind == _ATTRIBUTE:
        if shared or not note_attribute(given, scratch, body, nbytes, shift, wanted):
            found[DOUBTED] = 1
        return True
    if kind == _CONTINUATION:
        known = found[BLOCKS]
        if shared or known == blocks.shape[0] or nbytes < given[OFFSET_NBYTES] + given[LENGTH_NBYTES]:
            return False
        blocks[known, 0] = address(given, scratch.buffer, body)
        blocks[known, 1] = length(given, scratch.buffer, body + given[OFFSET_NBYTES])
        found[BLOCKS] += 1
        return True
    slot = _SLOTS[kind] if kind < _SLOTS.size else _UNKNOWN
    if slot in (_OF_GROUPS, SYMBOL_TABLE, LINK_INFO):
        found[IS_GROUP] = 1
    if slot in (_OF_GROUPS, _IGNORED):
        return True
    if slot == _UNKNOWN or shared or found[2 * slot] >= 0:
        return False
    found[2 * slot], found[2 * slot + 1] = body, nbytes
    if slot == _LAYOUT:
        found[_SHIFT] = shift
    return True


@jit_inner
def _note_messages(given, scratch, at, end, shift, version, flags, wanted):
    """Note where the messages of one block lie."""
    buffer = scratch.buffer
    head = 8 if version == 1 else 6 if flags & 4 else 4
    while end - at >= head:
        if version == 1:
            kind, nbytes, how = number(buffer, at, 2), number(buffer, at + 2, 2), np.int64(buffer[at + 4])
        else:
            kind, nbytes, how = np.int64(buffer[at]), number(buffer, at + 1, 2), np.int64(buffer[at + 3])
        body = at + head
        if nbytes > end - body or (version == 1 and nbytes & 7):
            return False
        if not _note_message(given, scratch, kind, how, body, nbytes, shift, wanted):
            return False
        scratch.found[_MESSAGES] += 1
        at = body + nbytes
    return version == 2 or at == end


@jit_inner
def prefix(buffer, got):
    """Give a header's version, flags, where its messages begin and how many bytes they take; version 0: a doubt."""
    doubt = (np.int64(0), np.int64(0), np.int64(0), np.int64(0))
    if buffer[0] == 1:
        return np.int64(1), np.int64(0), np.int64(16), number(buffer, 8, 4)
    flags = np.int64(buffer[5])
    if not is_signed(buffer, 0, 0x5244484F) or buffer[4] != 2 or flags & ~0x3F:  # OHDR
        return doubt
    at = np.int64(6)
    at += 16 if flags & 0x20 else 0  # four times
    at += 4 if flags & 0x10 else 0  # when attributes become dense
    width = np.int64(1) << (flags & 3)
    nbytes = number(buffer, at, width)
    if at + width > got or nbytes < 0:
        return doubt
    return np.int64(2), flags, at + width, nbytes


@jit_inner
def scan(given, where, scratch, wanted):
    """Read a header with all its blocks and note where its messages lie; False for any doubt."""
    buffer, blocks, found = scratch.buffer, scratch.blocks, scratch.found
    for k in range(FOUND):
        found[k] = -1 if k < _SHIFT else 0
    for which in range(scratch.values.shape[0]):
        scratch.values[which, VALUE_AT] = ABSENT
    got = min(FIRST_NBYTES, given[FILE_NBYTES] - where)
    if where < 0 or got < 32 or not read(given, buffer, 0, got, where):
        return False
    version, flags, begin, nbytes = prefix(buffer, got)
    total = begin + nbytes + (4 if version == 2 else 0)
    if version == 0 or nbytes > ROOM_NBYTES or (total > got and not read(given, buffer, got, total - got, where + got)):
        return False
    if version == 2 and not ends_with_checksum(buffer, 0, total):
        return False
    messages = number(buffer, 2, 2)
    found[USED] = total
    if not _note_messages(given, scratch, begin, begin + nbytes, where, version, flags, wanted):
        return False
    block = 0
    while block < found[BLOCKS]:
        at, size, offset = found[USED], blocks[block, 1], blocks[block, 0]
        if size < 8 or not read(given, buffer, at, size, offset):
            return False
        found[USED] += size
        begin, end = at, at + size
        if version == 2:
            if not is_signed(buffer, at, 0x4B48434F) or not ends_with_checksum(buffer, at, size):  # OCHK
                return False
            begin, end = at + 4, at + size - 4
        if not _note_messages(given, scratch, begin, end, offset - at, version, flags, wanted):
            return False
        block += 1
    # Of two ways of keeping its links libhdf5 takes one; of attributes in a heap it knows in version 2 alone.
    if found[2 * SYMBOL_TABLE] >= 0 and found[2 * LINK_INFO] >= 0:
        return False
    return version == 2 or (found[_MESSAGES] == messages and found[2 * ATTRIBUTE_INFO] < 0)


# --- attributes that are not in the header ----------------------------------------------------------------------


@jit_inner
def _note_dense(given, scratch, heaps, ids, tree, heap_at, wanted):
    """Note where the values of wanted attributes lie that are in a heap; False for any doubt."""
    buffer, used = scratch.buffer, scratch.found[USED]
    heap = load_heap(given, heaps, buffer, used, buffer.size - SLACK_NBYTES - used, heap_at)
    if heap.nbytes < 0 or heap.id_nbytes != 8:
        return False
    # A record has the ID, the flags of the message, a number in order of creation, and the hash of the name.
    count = collect_records(given, heaps, tree, 8, 17, 13, ids)
    for k in range(count):
        at, nbytes, shift = find_in_heap(heaps, buffer, heap, ids, 17 * k)
        if nbytes < 8 or ids[17 * k + 8] & ~_KNOWN_FLAGS or ids[17 * k + 8] & _SHARED:
            return False
        if not note_attribute(given, scratch, at, nbytes, shift, wanted):
            return False
        name_at = at + (9 if buffer[at] == 3 else 8)
        if checksum(buffer, name_at, number(buffer, at + 2, 2) - 1) != number(ids, 17 * k + 13, 4):
            return False
    return count >= 0


@jit_inner
def _dense(given, scratch):
    """Give the addresses of the tree and the heap that have attributes outside of the header, if some are wanted.

    `NOWHERE` for the heap where there is none to be looked at; `BEYOND` for a doubt.
    """
    buffer, found, wide = scratch.buffer, scratch.found, given[OFFSET_NBYTES]
    at, nbytes = found[2 * ATTRIBUTE_INFO], found[2 * ATTRIBUTE_INFO + 1]
    if at < 0:
        return np.int64(NOWHERE), np.int64(NOWHERE)
    flags = buffer[at + 1] if nbytes >= 2 else 0
    heap = at + 2 + (2 if flags & 1 else 0)
    if nbytes < 2 or buffer[at] or flags > 3 or heap + 2 * wide > at + nbytes:
        return np.int64(NOWHERE), np.int64(BEYOND)
    where = address(given, buffer, heap)
    for which in range(scratch.values.shape[0]):
        if where != NOWHERE and scratch.values[which, VALUE_AT] != ABSENT:  # libhdf5 does not look at the header's then
            return np.int64(NOWHERE), np.int64(BEYOND)
    return address(given, buffer, heap + wide), where


@jit_inner
def _ask(values):
    """Let libhdf5 be asked for all wanted attributes."""
    for which in range(values.shape[0]):
        values[which, VALUE_AT] = ASK


# --- datasets -------------------------------------------------------------------------------------------------


@jit_inner
def _describe_chunks_3(given, scratch, at, nbytes):
    """Note what a chunked layout of version 3 says."""
    buffer, about = scratch.buffer, scratch.about
    rank = about[RANK]
    dims = at + 3 + given[OFFSET_NBYTES]
    if buffer[at + 2] != rank + 1 or dims + 4 * (rank + 1) > at + nbytes:
        return False
    about[AT], about[INDEX] = address(given, buffer, at + 3), BTREE_1
    for k in range(rank):
        about[CHUNK_SHAPE + k] = number(buffer, dims + 4 * k, 4)
    return number(buffer, dims + 4 * rank, 4) == about[ELEMENT]


@jit_inner
def _describe_chunks_4(given, scratch, at, nbytes, filtered):
    """Note what a chunked layout of version 4 or 5 says; edge chunks that are not filtered are left to libhdf5."""
    buffer, about = scratch.buffer, scratch.about
    rank, end = about[RANK], at + nbytes
    if nbytes < 5:
        return False
    flags, width, dims = buffer[at + 2], np.int64(buffer[at + 4]), at + 5
    after = dims + width * (rank + 1)
    if buffer[at + 3] != rank + 1 or width < 1 or width > 8 or after >= end:
        return False
    for k in range(rank):
        about[CHUNK_SHAPE + k] = number(buffer, dims + width * k, width)
    if number(buffer, dims + width * rank, width) != about[ELEMENT]:
        return False
    index = np.int64(buffer[after])
    about[INDEX] = index
    after += 1
    if index == SINGLE and filtered:
        if flags != 2 or after + given[LENGTH_NBYTES] + 4 > end:
            return False
        about[NBYTES] = length(given, buffer, after)
        about[MASK] = number(buffer, after + given[LENGTH_NBYTES], 4)
        after += given[LENGTH_NBYTES] + 4
    elif flags != 0:
        return False
    elif index == FIXED_ARRAY:
        after += 1
    elif index == EXTENSIBLE_ARRAY:
        after += 5
    elif index == BTREE_2:
        after += 6
    if index < SINGLE or index > BTREE_2 or after + given[OFFSET_NBYTES] > end:
        return False
    about[AT] = address(given, buffer, after)
    return True


@jit_inner
def _check_chunks(given, scratch, filtered):
    """Tell whether chunks have a shape, and a single one its place; notes the bytes of an unfiltered one."""
    about = scratch.about
    nbytes = about[ELEMENT]
    is_one = True
    for k in range(about[RANK]):
        side = about[CHUNK_SHAPE + k]
        if side <= 0 or side > _MOST_CHUNK_NBYTES // nbytes:
            return False
        nbytes *= side
        is_one = is_one and about[SHAPE + k] <= side
    if about[INDEX] == SINGLE:
        if not is_one:
            return False
        if not filtered:
            about[NBYTES] = nbytes
        if about[AT] == NOWHERE:
            about[NBYTES], about[MASK] = 0, 0
        elif about[NBYTES] <= 0 or about[NBYTES] > given[FILE_NBYTES] - about[AT]:
            return False
    return about[AT] != BEYOND


@jit_inner
def _is_numbered(given, scratch, space, dims):
    """Tell whether the chunks' places in the index are their numbers in the grid.

    Arrays of chunks are numbered by the largest grid that there may ever be; only the first axis may still grow.
    """
    buffer, about = scratch.buffer, scratch.about
    each = given[LENGTH_NBYTES]
    if buffer[space + 2] == 0 or about[INDEX] == BTREE_1 or about[INDEX] == SINGLE or about[INDEX] == BTREE_2:
        return True
    for k in range(1, about[RANK]):
        if about[CHUNK_SHAPE + k] <= 0:
            return False
        most, side = length(given, buffer, dims + (about[RANK] + k) * each), about[CHUNK_SHAPE + k]
        if most < 0 or (most - 1) // side != (about[SHAPE + k] - 1) // side:
            return False
    return True


@jit_inner
def _describe_whole(given, scratch, at, nbytes, count):
    """Note where data lie that are not chunked."""
    buffer, about = scratch.buffer, scratch.about
    if buffer[at + 1] == 0:
        size = number(buffer, at + 2, 2)
        about[LAYOUT], about[AT], about[NBYTES] = COMPACT, at + 4 + scratch.found[_SHIFT], size
        return size == count * about[ELEMENT] and 4 + size <= nbytes
    if 2 + given[OFFSET_NBYTES] + given[LENGTH_NBYTES] > nbytes:
        return False
    where, size = address(given, buffer, at + 2), length(given, buffer, at + 2 + given[OFFSET_NBYTES])
    about[LAYOUT], about[AT] = CONTIGUOUS, where
    if size != count * about[ELEMENT] or where == BEYOND:
        return False
    if where != NOWHERE:
        about[NBYTES] = size
        return size <= given[FILE_NBYTES] - where
    return True


@jit_inner
def _knows_filters_and_fill(buffer, found):
    """Tell whether the messages of fill value and filters are of a known version; how many filters there are."""
    at, nbytes = found[2 * _FILL], found[2 * _FILL + 1]
    if at >= 0 and (nbytes < 2 or buffer[at] < 1 or buffer[at] > 3):
        return np.int64(-1)
    at, nbytes = found[2 * _PIPELINE], found[2 * _PIPELINE + 1]
    if at < 0:
        return np.int64(0)
    if nbytes < 2 or buffer[at] < 1 or buffer[at] > 2 or buffer[at + 1] > 32:
        return np.int64(-1)
    return np.int64(buffer[at + 1])


@jit_inner
def _describe(given, scratch):
    """Say what the noted messages make: a group, or a dataset and where it lies. False for any doubt."""
    buffer, found, about = scratch.buffer, scratch.found, scratch.about
    for k in range(ABOUT):
        about[k] = 0
    about[RANK], about[AT] = -1, NOWHERE
    space, kind, at = found[2 * _DATASPACE], found[2 * _DATATYPE], found[2 * _LAYOUT]
    if found[IS_GROUP]:
        about[LAYOUT] = GROUP
        return space < 0 and kind < 0 and at < 0
    if space < 0 or kind < 0 or at < 0:
        return False
    nbytes = found[2 * _LAYOUT + 1]
    rank, dims, count = extent(given, buffer, space, found[2 * _DATASPACE + 1])
    about[RANK], about[ELEMENT] = rank, element_nbytes(buffer, kind, found[2 * _DATATYPE + 1])
    filters = _knows_filters_and_fill(buffer, found)
    about[FILTERS] = filters
    if rank < -1 or rank > MOST_AXES or about[ELEMENT] <= 0 or count > _MOST_ELEMENTS // about[ELEMENT] or filters < 0:
        return False
    for k in range(rank):
        about[SHAPE + k] = length(given, buffer, dims + k * given[LENGTH_NBYTES])
    if nbytes < 4 or buffer[at] < 3 or buffer[at] > 5:
        return False
    if buffer[at + 1] < 2:
        return filters == 0 and _describe_whole(given, scratch, at, nbytes, count)
    if buffer[at + 1] > 2 or rank < 1:  # virtual
        return False
    about[LAYOUT] = CHUNKED
    if buffer[at] == 3:
        known = _describe_chunks_3(given, scratch, at, nbytes)
    else:
        known = _describe_chunks_4(given, scratch, at, nbytes, filters > 0)
    about[IS_NUMBERED] = known and _is_numbered(given, scratch, space, dims)
    return known and _check_chunks(given, scratch, filters > 0)


# --- kinds ----------------------------------------------------------------------------------------------------


@jit_inner
def _add(key, used, source, at, nbytes):
    """Put some bytes behind a key, with their count; gives the bytes used, -1 where there is no room."""
    if used < 0 or used + 4 + nbytes > key.size - SLACK_NBYTES:
        return np.int64(-1)
    for k in range(4):
        key[used + k] = (nbytes >> (8 * k)) & 0xFF
    copy_bytes(address_of(key) + used + 4, address_of(source) + at, nbytes)
    return used + 4 + nbytes


@jit_inner
def _key_of_object(scratch):
    """Write down all that objects of one kind have in common; gives its bytes."""
    key, about, found = scratch.key, scratch.about, scratch.found
    key[0], key[1] = about[LAYOUT], about[RANK] + 1
    used = np.int64(2)
    if about[LAYOUT] == CHUNKED:
        for k in range(about[RANK]):
            for byte in range(8):
                key[used] = (about[CHUNK_SHAPE + k] >> (8 * byte)) & 0xFF
                used += 1
    if about[LAYOUT] != GROUP:
        for slot in (_DATATYPE, _OLD_FILL, _FILL, _PIPELINE):
            at = found[2 * slot]
            used = _add(key, used, scratch.buffer, max(at, 0), found[2 * slot + 1] if at >= 0 else 0)
    return used


@jit_inner
def _intern(key, nbytes, interned, which):
    """Give the number of a key, a new one where it was not seen before; -1 where there is no room for another."""
    pool, places, table = interned.pool, interned.places, interned.table
    mixed = np.uint64(14695981039346656037)
    for k in range(0, nbytes, 8):  # like FNV-1a, by words; keys of one hash are still compared
        mixed = (mixed ^ np.uint64(number(key, k, min(8, nbytes - k)))) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    mask = table.shape[1] - 1
    slot = np.int64(mixed >> np.uint64(33)) & mask
    for _ in range(_MOST_PROBES):
        seen = table[which, slot]
        if seen < 0:
            seen, start = interned.counts[which], interned.counts[-1]
            if seen == places.shape[1] or nbytes > pool.size - SLACK_NBYTES - start:
                return np.int64(-1)
            copy_bytes(address_of(pool) + start, address_of(key), nbytes)
            places[which, seen, 0], places[which, seen, 1], table[which, slot] = start, nbytes, seen
            interned.counts[which], interned.counts[-1] = seen + 1, start + nbytes
            return np.int64(seen)
        start = places[which, seen, 0]
        if places[which, seen, 1] == nbytes and _same(pool, start, key, 0, nbytes):
            return np.int64(seen)
        slot = (slot + 1) & mask
    return np.int64(-1)


# --- every object ---------------------------------------------------------------------------------------------


@jit_inner
def _keep(scratch, interned, i, headers):
    """Put what was found of one object to its place in the headers; its kind stays -1 where it has no number."""
    about = scratch.about
    used = _key_of_object(scratch)
    kind = _intern(scratch.key, used, interned, 0) if used >= 0 else np.int64(-1)
    if kind < 0:
        return
    kinds = headers.kinds
    if kinds.first[kind] < 0:
        kinds.first[kind], kinds.element_nbytes[kind], kinds.filters[kind] = i, about[ELEMENT], about[FILTERS]
        for k in range(MOST_AXES):
            kinds.chunk_shape[kind, k] = about[CHUNK_SHAPE + k]
    headers.kind[i], headers.rank[i], headers.layout[i] = kind, about[RANK], about[LAYOUT]
    headers.address[i], headers.nbytes[i] = about[AT], about[NBYTES]
    headers.index[i] = about[INDEX] if about[LAYOUT] == CHUNKED else -1
    headers.filter_mask[i], headers.is_numbered[i] = about[MASK], about[IS_NUMBERED] != 0
    for k in range(about[RANK]):
        headers.shape[k, i] = about[SHAPE + k]


@jit_inner
def _keep_attributes(scratch, interned, i, columns):
    """Put where the values of one object's attributes lie to their places in the columns."""
    values = scratch.values
    for which in range(values.shape[0]):
        at = values[which, VALUE_AT]
        kind = np.int64(-1)
        if at >= 0:
            used = _add(scratch.key, 0, scratch.buffer, values[which, TYPE_AT], values[which, TYPE_NBYTES])
            used = _add(scratch.key, used, scratch.buffer, values[which, SPACE_AT], values[which, SPACE_NBYTES])
            kind = _intern(scratch.key, used, interned, 1 + which) if used >= 0 else kind
            at = at if kind >= 0 else ASK
        columns.address[which, i], columns.kind[which, i] = at, kind
        columns.nbytes[which, i] = values[which, VALUE_NBYTES] if at >= 0 else 0


@jit
def read_each(givens, addresses, scratch, interned, headers, is_dense):
    """Read the header of every object at its address; those that are not understood keep the kind -1.

    Parameters
    ----------
    givens : int64 array, shape (1, 5) or (n, 5)
        Descriptor, bytes of the file, bytes of an address and of a length in it, where addresses count from: of the
        one file that all lie in, or of that of each.
    addresses : int64 array
        Of the headers, counted from there.
    scratch, interned
        See their classes.
    headers, is_dense
        Filled; the last tells which objects have attributes elsewhere that `read_dense` has to look at.
    """
    for i in range(addresses.size):
        given = givens[i % givens.shape[0]]
        known = addresses[i] >= 0 and scan(given, addresses[i] + given[BASE], scratch, headers.wanted)
        if known and _describe(given, scratch):
            if scratch.values.shape[0]:
                _, heap = _dense(given, scratch)
                is_dense[i] = heap >= 0
                if heap == BEYOND or scratch.found[DOUBTED]:
                    _ask(scratch.values)
                _keep_attributes(scratch, interned, i, headers.values)
            _keep(scratch, interned, i, headers)


@jit
def read_dense(givens, addresses, which, scratch, interned, headers, heaps, ids):
    """Look for the wanted attributes of some objects outside of their headers, which `read_each` has read.

    Parameters
    ----------
    which : int64 array
        Places of the objects among all.
    heaps, ids
        Memory for what is read.
    """
    wanted = headers.wanted
    for i in which:
        given = givens[i % givens.shape[0]]
        if scan(given, addresses[i] + given[BASE], scratch, wanted):
            tree, heap = _dense(given, scratch)
            if heap == BEYOND or (heap != NOWHERE and not _note_dense(given, scratch, heaps, ids, tree, heap, wanted)):
                scratch.found[DOUBTED] = 1
        else:  # it was read a moment ago
            scratch.found[DOUBTED] = 1
        if scratch.found[DOUBTED]:
            _ask(scratch.values)
        _keep_attributes(scratch, interned, i, headers.values)
