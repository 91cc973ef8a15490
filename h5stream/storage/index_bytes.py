"""Chunk indexes as bytes: the compiled loop behind `h5stream.storage.headers.chunks_of`.

Version 1 B-trees, single chunks, implicit indexes and fixed arrays of one page are read; all else is left to libhdf5.
What is read of an object must be chunks of its grid in ascending order, each inside the file, so no damaged index can
lead the loop round in circles: every leaf has to bring a chunk that comes later than all before.

Source: the HDF5 File Format Specification, version 3.0, "Version 1 B-trees" and "Fixed Array Index".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from h5stream.compiled.jit import jit, jit_inner
from h5stream.storage.header_bytes import BTREE_1, FIXED_ARRAY, IMPLICIT, SINGLE
from h5stream.storage.metadata_bytes import (
    FILE_NBYTES,
    LENGTH_NBYTES,
    NOWHERE,
    OFFSET_NBYTES,
    SLACK_NBYTES,
    address,
    ends_with_checksum,
    is_signed,
    length,
    number,
    read,
)

MOST_LEVELS = 8
NODE_NBYTES = 64 * 1024
"""The largest node of a tree that is read; libhdf5's own have 64 entries of at most 88 bytes."""
_FIRST_NBYTES = 4096

DOUBT, FULL = -1, -2
"""What stands for the chunks of an object that must be asked for, and for too little room in the columns."""


def tree_scratch() -> tuple[Any, Any]:
    """Make memory for the nodes of a version 1 B-tree, and of one thing that its leaves lead to; and for a way down."""
    nodes = np.empty((MOST_LEVELS + 1) * NODE_NBYTES + SLACK_NBYTES, dtype=np.uint8)
    return nodes, np.zeros((MOST_LEVELS, 3), dtype=np.int64)


@jit_inner
def _put(columns, used, owner, chunk, offset, nbytes, mask):
    columns.owner[used], columns.number[used], columns.offset[used] = owner, chunk, offset
    columns.nbytes[used], columns.filter_mask[used] = nbytes, mask


@jit_inner
def open_node(given, buffer, at, where, what, key_nbytes):
    """Read a node of a version 1 B-tree; gives its level and its entries, level -1 where it is none."""
    doubt = (np.int64(-1), np.int64(0))
    head = 8 + 2 * given[OFFSET_NBYTES]
    got = min(_FIRST_NBYTES, given[FILE_NBYTES] - where)
    if where < 0 or got < head or not read(given, buffer, at, got, where):
        return doubt
    level, entries = np.int64(buffer[at + 5]), number(buffer, at + 6, 2)
    total = head + entries * (key_nbytes + given[OFFSET_NBYTES]) + key_nbytes
    if not is_signed(buffer, at, 0x45455254) or buffer[at + 4] != what or level >= MOST_LEVELS:  # TREE
        return doubt
    if total > NODE_NBYTES or (total > got and not read(given, buffer, at + got, total - got, where + got)):
        return doubt
    return level, entries


@jit_inner
def _chunk_of_key(buffer, at, rank, grid_shape, chunk_shape):
    """Give the number of the chunk that a key of a tree names; -1 where the grid has none there."""
    chunk = np.int64(0)
    for k in range(rank):
        start = number(buffer, at + 8 + 8 * k, 8)
        if start < 0 or start % chunk_shape[k] or start // chunk_shape[k] >= grid_shape[k]:
            return np.int64(-1)
        chunk = chunk * grid_shape[k] + start // chunk_shape[k]
    return chunk if number(buffer, at + 8 + 8 * rank, 8) == 0 else np.int64(-1)


@jit_inner
def _is_key(buffer, at, rank, chunk_shape, element_nbytes):
    """Tell whether a key of a tree is the first element of a chunk, be it one outside of the grid."""
    for k in range(rank + 1):
        start = number(buffer, at + 8 + 8 * k, 8)
        if start < 0 or start % (chunk_shape[k] if k < rank else element_nbytes):
            return False
    return True


@jit_inner
def _comes_before(buffer, one, other, rank):
    """Tell whether a key of a tree comes before another, as libhdf5 looks them up."""
    for k in range(8, 16 + 8 * rank, 8):
        first, second = number(buffer, one + k, 8), number(buffer, other + k, 8)
        if first != second:
            return first < second
    return False


@jit_inner
def _from_tree(
    given, buffer, stack, where, rank, grid_shape, chunk_shape, element_nbytes, whole, filtered, owner, columns, used
):
    """Put the chunks of a version 1 B-tree behind those in the columns; gives how many there are then.

    Libhdf5 lists all chunks, but finds only those that lie between the keys on their left and right at every level.
    """
    key = 8 * (rank + 2)
    each, head = key + given[OFFSET_NBYTES], 8 + 2 * given[OFFSET_NBYTES]
    last, depth, stack[0, 2] = np.int64(-1), 0, 0
    stack[0, 0], stack[0, 1] = open_node(given, buffer, 0, where, 1, key)
    if stack[0, 0] < 0 or (stack[0, 0] > 0 and stack[0, 1] == 0):
        return DOUBT
    while depth >= 0:
        if stack[depth, 2] == stack[depth, 1]:
            depth -= 1
            continue
        at = depth * NODE_NBYTES + head + stack[depth, 2] * each
        stack[depth, 2] += 1
        child = address(given, buffer, at + key)
        if child < 0:
            return DOUBT
        if stack[depth, 0] > 0 or stack[depth, 2] == stack[depth, 1]:  # else the next key is that of a chunk
            after = at + each
            is_key = _is_key(buffer, after, rank, chunk_shape, element_nbytes)
            if not is_key or not _comes_before(buffer, at, after, rank):
                return DOUBT
        if stack[depth, 0] > 0:
            level = stack[depth, 0] - 1
            depth += 1
            stack[depth, 0], stack[depth, 1] = open_node(given, buffer, depth * NODE_NBYTES, child, 1, key)
            stack[depth, 2] = 0
            if stack[depth, 0] != level or stack[depth, 1] == 0:
                return DOUBT
            first = depth * NODE_NBYTES + head
            end = first + stack[depth, 1] * each
            if _comes_before(buffer, first, at, rank) or _comes_before(buffer, after, end, rank):
                return DOUBT
            continue
        chunk, nbytes = _chunk_of_key(buffer, at, rank, grid_shape, chunk_shape), number(buffer, at, 4)
        mask = number(buffer, at + 4, 4)
        if chunk <= last or nbytes == 0 or nbytes > given[FILE_NBYTES] - child:
            return DOUBT
        if not filtered and (nbytes != whole or mask != 0):
            return DOUBT
        if used == columns.owner.size:
            return FULL
        _put(columns, used, owner, chunk, child, nbytes, mask)
        used, last = used + 1, chunk
    return used


@jit_inner
def _from_fixed_array(given, buffer, where, count, whole, filtered, owner, columns, used):
    """Put the chunks of a fixed array of one page behind those in the columns; gives how many there are then."""
    offset_nbytes, size = given[OFFSET_NBYTES], 12 + given[LENGTH_NBYTES] + given[OFFSET_NBYTES]
    if not read(given, buffer, 0, size, where) or not is_signed(buffer, 0, 0x44484146):  # FAHD
        return DOUBT
    each, page_bits = np.int64(buffer[6]), np.int64(buffer[7])
    elements, block = length(given, buffer, 8), address(given, buffer, 8 + given[LENGTH_NBYTES])
    if not ends_with_checksum(buffer, 0, size) or buffer[4] != 0 or buffer[5] != filtered or elements < count:
        return DOUBT
    # Libhdf5 takes the bytes of a size from those of a chunk (layout version 4), or of a length (5), whatever is said.
    width, wide = each - offset_nbytes - 4 if filtered else np.int64(0), np.int64(2)
    while wide < 8 and whole >> (8 * (wide - 1)):
        wide += 1
    if (not filtered and each != offset_nbytes) or (filtered and width != wide and width != given[LENGTH_NBYTES]):
        return DOUBT
    if block == NOWHERE:
        return used
    head = 6 + offset_nbytes
    if page_bits > 20 or elements > 1 << page_bits or block < 0:
        return DOUBT
    if not read(given, buffer, 0, head + elements * each + 4, block) or not is_signed(buffer, 0, 0x42444146):  # FADB
        return DOUBT
    if not ends_with_checksum(buffer, 0, head + elements * each + 4) or buffer[4] != 0 or buffer[5] != filtered:
        return DOUBT
    if address(given, buffer, 6) != where:
        return DOUBT
    for chunk in range(elements):
        at = head + chunk * each
        offset = address(given, buffer, at)
        if offset == NOWHERE:
            continue
        if chunk >= count:  # libhdf5 lists chunks, too, that the dataset has no room for
            return DOUBT
        nbytes = number(buffer, at + offset_nbytes, width) if filtered else whole
        mask = number(buffer, at + offset_nbytes + width, 4) if filtered else 0
        if offset < 0 or nbytes <= 0 or nbytes > given[FILE_NBYTES] - offset:
            return DOUBT
        if used == columns.owner.size:
            return FULL
        _put(columns, used, owner, chunk, offset, nbytes, mask)
        used += 1
    return used


@jit_inner
def _from_places(given, where, count, whole, owner, columns, used):
    """Put chunks that lie one behind the other behind those in the columns; gives how many there are then."""
    if count > (given[FILE_NBYTES] - where) // whole:
        return DOUBT
    if count > columns.owner.size - used:
        return FULL
    for chunk in range(count):
        _put(columns, used + chunk, owner, chunk, where + chunk * whole, whole, 0)
    return used + count


@jit_inner
def _chunks(given, buffer, stack, headers, sides, owner, columns, used):
    """Put the chunks of one object behind those in the columns; gives how many there are then, or a negative number."""
    kind, rank, where, index = headers.kind[owner], headers.rank[owner], headers.address[owner], headers.index[owner]
    kinds = headers.kinds
    if index < 0 or kind < 0 or not headers.is_numbered[owner]:
        return DOUBT
    whole, count = kinds.element_nbytes[kind], np.int64(1)
    for k in range(rank):
        side = kinds.chunk_shape[kind, k]
        sides[k] = (headers.shape[k, owner] + side - 1) // side
        whole *= side
        count *= sides[k]
    filtered = kinds.filters[kind] != 0
    if where == NOWHERE or count == 0:
        return used
    if index == BTREE_1:
        chunk_shape = kinds.chunk_shape[kind]
        each = kinds.element_nbytes[kind]
        return _from_tree(
            given, buffer, stack, where, rank, sides, chunk_shape, each, whole, filtered, owner, columns, used
        )
    if index == FIXED_ARRAY:
        return _from_fixed_array(given, buffer, where, count, whole, filtered, owner, columns, used)
    if index == IMPLICIT and not filtered:
        return _from_places(given, where, count, whole, owner, columns, used)
    if index == SINGLE:
        if used == columns.owner.size:
            return FULL
        _put(columns, used, owner, 0, where, headers.nbytes[owner], headers.filter_mask[owner])
        return used + 1
    return DOUBT


@jit
def chunks_of_each(givens, buffer, stack, headers, which, columns, start, used):
    """Put the chunks of some objects into columns.

    Parameters
    ----------
    givens : int64 array, shape (1, 5) or (objects, 5)
        As for `header_bytes.read_each`.
    buffer, stack : ndarray
        Memory for nodes, and for what is left to do of each.
    headers : headers.Headers
        The objects.
    which : int64 array
        Numbers of those that are wanted.
    columns : headers.StoredChunks
        Filled.
    start, used : int
        The first of `which` to be done; chunks that are in the columns.

    Returns
    -------
    tuple of int
        How many of `which` are done, and chunks that are in the columns. Not all are done where there was no room.
    """
    sides = np.zeros(16, dtype=np.int64)
    for place in range(start, which.size):
        given = givens[which[place] % givens.shape[0]]
        after = _chunks(given, buffer, stack, headers, sides, which[place], columns, used)
        if after == FULL:
            return place, used
        columns.understood[place] = after >= 0
        used = max(after, used) if after >= 0 else used
    return which.size, used
