"""Links of a group as bytes: the compiled loops behind `h5stream.storage.links`.

A group of the old kind has its links in the leaves of a version 1 B-tree, in the order of their names, and the names in
a heap of its own. One of the new kind has link messages in a fractal heap, and their IDs in a version 2 B-tree.

Source: the HDF5 File Format Specification, version 3.0, "Group Symbol Table Nodes", "Local Heaps", "Link Message".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from h5stream.compiled.instructions import copy_bytes
from h5stream.compiled.jit import jit, jit_inner
from h5stream.storage.header_bytes import ABSENT, ASK, BLOCKS, IS_GROUP, LINK_INFO, SYMBOL_TABLE, USED, prefix, scan
from h5stream.storage.heap_bytes import collect_records, find_in_heap, load_heap
from h5stream.storage.index_bytes import NODE_NBYTES, open_node
from h5stream.storage.metadata_bytes import (
    BASE,
    LENGTH_NBYTES,
    NOWHERE,
    OFFSET_NBYTES,
    SLACK_NBYTES,
    address,
    address_of,
    checksum,
    is_signed,
    length,
    number,
    read,
)

DOUBT, FULL = -1, -2

NO_GROUP, SYMBOLS, DENSE, OTHER = range(4)
"""How a group keeps its links: OTHER is in its header, or not at all."""

_HARD, _SYMBOLIC = 0, 2
_LINK = 6
"""The message that is a link."""


class LinkColumns(NamedTuple):
    """What is filled, one place a link: where its name lies in the heap, its bytes, and the header's address."""

    name: Any
    name_nbytes: Any
    address: Any


@jit
def group_of(given, where, scratch, wanted):
    """Read a group's header; gives how it keeps its links, and two addresses: of a tree, and of a heap."""
    nothing = (NO_GROUP, np.int64(-1), np.int64(-1))
    if where < 0 or not scan(given, where + given[BASE], scratch, wanted) or not scratch.found[IS_GROUP]:
        return nothing
    buffer, found, wide = scratch.buffer, scratch.found, given[OFFSET_NBYTES]
    at, nbytes = found[2 * SYMBOL_TABLE], found[2 * SYMBOL_TABLE + 1]
    if at >= 0:
        if nbytes < 2 * wide:
            return nothing
        return SYMBOLS, address(given, buffer, at), address(given, buffer, at + wide)
    at, nbytes = found[2 * LINK_INFO], found[2 * LINK_INFO + 1]
    if at < 0 or nbytes < 2 or buffer[at] or buffer[at + 1] > 3:
        return nothing
    heap = at + 2 + (8 if buffer[at + 1] & 1 else 0)
    if heap + 2 * wide > at + nbytes:
        return nothing
    if address(given, buffer, heap) == NOWHERE:
        return OTHER, np.int64(-1), np.int64(-1)
    return DENSE, address(given, buffer, heap + wide), address(given, buffer, heap)


@jit
def local_heap(given, buffer, where):
    """Give the bytes of a local heap's data and where they lie; -1 for a doubt."""
    each = given[LENGTH_NBYTES]
    size = 8 + 2 * each + given[OFFSET_NBYTES]
    doubt = (np.int64(-1), np.int64(-1))
    if (
        where < 0 or not read(given, buffer, 0, size, where) or not is_signed(buffer, 0, 0x50414548) or buffer[4]
    ):  # HEAP
        return doubt
    return length(given, buffer, 8), address(given, buffer, 8 + 2 * each)


@jit_inner
def _name_nbytes(names, at):
    """Give the bytes of a name up to its null; -1 where it has none."""
    if at < 0:
        return np.int64(-1)
    for k in range(at, names.size - SLACK_NBYTES):
        if names[k] == 0:
            return np.int64(k - at)
    return np.int64(-1)


@jit_inner
def _comes_before(names, one, one_nbytes, other, other_nbytes):
    for k in range(min(one_nbytes, other_nbytes)):
        if names[one + k] != names[other + k]:
            return names[one + k] < names[other + k]
    return one_nbytes < other_nbytes


@jit_inner
def _is_not_after(names, one, other):
    """Tell whether a name does not come after another, by where they begin; False where one is none."""
    if one == other:
        return True
    one_nbytes, other_nbytes = _name_nbytes(names, one), _name_nbytes(names, other)
    return one_nbytes >= 0 and other_nbytes >= 0 and not _comes_before(names, other, other_nbytes, one, one_nbytes)


@jit_inner
def _symbols(given, buffer, keys, at, where, names, columns, used):
    """Put the entries of one symbol table node behind the links in the columns; gives how many there are then.

    `keys` is where the key on the node's left lies in the buffer.
    """
    wide = given[OFFSET_NBYTES]
    if not read(given, buffer, at, 8, where) or not is_signed(buffer, at, 0x444F4E53) or buffer[at + 4] != 1:  # SNOD
        return DOUBT
    count, entry_nbytes = number(buffer, at + 6, 2), 2 * wide + 24
    if count == 0 or 8 + count * entry_nbytes > NODE_NBYTES:
        return DOUBT
    if not read(given, buffer, at + 8, count * entry_nbytes, where + 8):
        return DOUBT
    if count > columns.name.size - used:
        return FULL
    first, begin = used, at + 8
    for entry in range(begin, begin + count * entry_nbytes, entry_nbytes):
        name, what = number(buffer, entry, wide), number(buffer, entry + 2 * wide, 4)
        nbytes = _name_nbytes(names, name)
        target = address(given, buffer, entry + wide)
        if nbytes < 1 or what > _SYMBOLIC or (what != _SYMBOLIC and target < 0):
            return DOUBT
        if used and not _comes_before(names, columns.name[used - 1], columns.name_nbytes[used - 1], name, nbytes):
            return DOUBT
        columns.name[used], columns.name_nbytes[used] = name, nbytes
        columns.address[used] = -1 if what == _SYMBOLIC else target - given[BASE]
        used += 1
    # Libhdf5 lists all, but finds only names that come after the key on their left, and not after that on their right.
    each = given[LENGTH_NBYTES]
    left, right = number(buffer, keys, each), number(buffer, keys + each + wide, each)
    if not _is_not_after(names, columns.name[used - 1], right):
        return DOUBT
    is_last_before = first > 0 and left == columns.name[first - 1]
    if not is_last_before and (_name_nbytes(names, left) < 0 or _is_not_after(names, columns.name[first], left)):
        return DOUBT
    return used


@jit
def links_of_table(given, buffer, stack, where, names, columns):
    """Put the links of a group of the old kind into columns; gives how many there are, or a negative number."""
    wide = given[OFFSET_NBYTES]
    key, head = given[LENGTH_NBYTES], 8 + 2 * wide
    used, depth = np.int64(0), 0
    stack[0, 0], stack[0, 1] = open_node(given, buffer, 0, where, 0, key)
    stack[0, 2] = 0
    if stack[0, 0] < 0:
        return np.int64(DOUBT)
    while depth >= 0:
        if stack[depth, 2] == stack[depth, 1]:
            depth -= 1
            continue
        at = depth * NODE_NBYTES + head + stack[depth, 2] * (key + wide)
        stack[depth, 2] += 1
        child = address(given, buffer, at + key)
        if child < 0:
            return np.int64(DOUBT)
        if stack[depth, 0] == 0:
            used = _symbols(given, buffer, at, (depth + 1) * NODE_NBYTES, child, names, columns, used)
            if used < 0:
                return np.int64(used)
            continue
        level = stack[depth, 0] - 1
        depth += 1
        stack[depth, 0], stack[depth, 1] = open_node(given, buffer, depth * NODE_NBYTES, child, 0, key)
        stack[depth, 2] = 0
        if stack[depth, 0] != level or stack[depth, 1] == 0:
            return np.int64(DOUBT)
        first = depth * NODE_NBYTES + head
        last = first + stack[depth, 1] * (key + wide)
        if not _is_not_after(names, number(buffer, at, key), number(buffer, first, key)):
            return np.int64(DOUBT)
        if not _is_not_after(names, number(buffer, last, key), number(buffer, at + key + wide, key)):
            return np.int64(DOUBT)
    return np.int64(used)


@jit_inner
def _link(given, image, at, nbytes, columns, used):
    """Note a link message; False where it is of an unknown kind."""
    version, flags, end = image[at], np.int64(image[at + 1]), at + nbytes
    if version != 1 or flags & ~0x1F or nbytes < 4:
        return False
    place, what = at + 2, np.int64(_HARD)
    if flags & 8:
        what = np.int64(image[place])
        place += 1
    place += 8 if flags & 4 else 0
    place += 1 if flags & 16 else 0
    width = np.int64(1) << (flags & 3)
    if place + width > end:
        return False
    name_nbytes = number(image, place, width)
    place += width
    if name_nbytes < 1 or name_nbytes > end - place:
        return False
    columns.name[used], columns.name_nbytes[used], columns.address[used] = place, name_nbytes, -1
    if what == _HARD:
        place += name_nbytes
        target = address(given, image, place) if place + given[OFFSET_NBYTES] <= end else np.int64(-1)
        if target < 0:
            return False
        columns.address[used] = target - given[BASE]
    return True


@jit_inner
def _links_of_header(given, scratch, columns):
    """Put the links that are in a group's header, which was scanned, into columns; gives how many, or `DOUBT`."""
    buffer = scratch.buffer
    version, flags, at, nbytes = prefix(buffer, scratch.found[USED])
    head, end, used, block = 6 if flags & 4 else 4, at + nbytes, 0, 0
    behind = end + 4
    if version != 2:
        return np.int64(DOUBT)
    while True:
        while end - at >= head:
            body, size = at + head, number(buffer, at + 1, 2)
            if buffer[at] == _LINK:
                if used == columns.name.size or buffer[at + 3] & 2:  # shared
                    return np.int64(DOUBT)
                if size < 4 or not _link(given, buffer, body, size, columns, used):
                    return np.int64(DOUBT)
                used += 1
            at = body + size
        if block == scratch.found[BLOCKS]:
            return np.int64(used)
        size = scratch.blocks[block, 1]
        at, end = behind + 4, behind + size - 4
        behind += size
        block += 1


@jit_inner
def _links_of_symbols(given, scratch, buffer, stack, tree, heap, names, columns):
    """Put the links of a group's table into columns, and their names into `names`; gives how many, or `DOUBT`."""
    nbytes, at = local_heap(given, scratch.buffer, heap)
    room = names.size - 2 * SLACK_NBYTES
    if at < 0 or nbytes < 0 or nbytes > room or not read(given, names, 0, nbytes, at):
        return np.int64(DOUBT)
    names[nbytes : nbytes + SLACK_NBYTES] = 0
    return links_of_table(given, buffer, stack, tree, names[: nbytes + SLACK_NBYTES], columns)


@jit_inner
def _address_named(image, columns, used, name, nbytes):
    """Give the address that a name leads to, `ABSENT` or `ASK`."""
    for k in range(used):
        if columns.name_nbytes[k] == nbytes:
            same, begin = True, columns.name[k]
            for byte in range(nbytes):
                same = same and image[begin + byte] == name[byte]
            if same:
                return columns.address[k] if columns.address[k] >= 0 else np.int64(ASK)
    return np.int64(ABSENT)


@jit
def find_each(givens, addresses, name, scratch, wanted, buffer, stack, names, columns, found):
    """Find a name in a group of each of many files, if these keep their links in tables or in the group's header.

    `found` gets the addresses of what it leads to; `ABSENT` where there is no such name, and `ASK` where libhdf5 has to
    be asked. `name` has slack behind it, and `names` is room for the names of a group.
    """
    nbytes = name.size - SLACK_NBYTES
    for i in range(addresses.size):
        found[i] = ASK
        given = givens[i]
        how, tree, heap = group_of(given, addresses[i], scratch, wanted)
        if how == SYMBOLS:
            used = _links_of_symbols(given, scratch, buffer, stack, tree, heap, names, columns)
            if used >= 0:
                found[i] = _address_named(names, columns, used, name, nbytes)
        elif how == OTHER:
            used = _links_of_header(given, scratch, columns)
            if used >= 0:
                found[i] = _address_named(scratch.buffer, columns, used, name, nbytes)


@jit
def links_of_heap(given, scratch, image, tree, heap_at, ids, columns):
    """Put the links of a group of the new kind into columns, in no order; gives how many there are, or `DOUBT`."""
    heap = load_heap(given, scratch, image, 0, image.size - SLACK_NBYTES, heap_at)
    if heap.nbytes < 0 or heap.id_nbytes != 7:
        return np.int64(DOUBT)
    used = collect_records(given, scratch, tree, 5, 11, 0, ids)
    if used > columns.name.size:
        return np.int64(DOUBT)
    for k in range(used):
        at, nbytes, _ = find_in_heap(scratch, image, heap, ids, 11 * k + 4)
        if nbytes < 4 or not _link(given, image, at, nbytes, columns, k):
            return np.int64(DOUBT)
        if checksum(image, columns.name[k], columns.name_nbytes[k]) != number(ids, 11 * k, 4):
            return np.int64(DOUBT)
    return used


@jit
def pack(names, starts, edges, packed, head):
    """Copy names one behind the other, with the same bytes before each."""
    for k in range(edges.size - 1):
        at, nbytes = edges[k] + head.size, edges[k + 1] - edges[k] - head.size
        copy_bytes(address_of(packed) + edges[k], address_of(head), head.size)
        copy_bytes(address_of(packed) + at, address_of(names) + starts[k], nbytes)


@jit
def find_names(names, edges, wanted, starts, nbytes, found):
    """Look for names among some that ascend by their bytes; -1 for what is not there."""
    for k in range(starts.size):
        low, high = 0, edges.size - 1
        while low < high:
            middle = (low + high) // 2
            at, here = edges[middle], edges[middle + 1] - edges[middle]
            same = 0
            while same < here and same < nbytes[k] and names[at + same] == wanted[starts[k] + same]:
                same += 1
            if same < nbytes[k] and (same == here or names[at + same] < wanted[starts[k] + same]):
                low = middle + 1
            else:
                high = middle
        found[k] = -1
        if low < edges.size - 1 and edges[low + 1] - edges[low] == nbytes[k]:
            at, same = edges[low], 0
            while same < nbytes[k] and names[at + same] == wanted[starts[k] + same]:
                same += 1
            if same == nbytes[k]:
                found[k] = low


@jit
def names_as_words(names, starts, nbytes, table):
    """Write names as big-endian numbers of 8 bytes, which sort as the names do."""
    for k in range(starts.size):
        for place in range(nbytes[k]):
            shift = np.uint64(8 * (7 - (place & 7)))
            table[place >> 3, k] |= np.uint64(names[starts[k] + place]) << shift
