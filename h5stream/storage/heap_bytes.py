"""Fractal heaps and version 2 B-trees as bytes: where libhdf5 keeps links and attributes once there are many.

The heap has the objects, as bytes at an offset of a space of its own that is cut into blocks of growing size; the
tree has their heap IDs, in the order of a hash of their names. Every block and node has a checksum, and all are
checked. What is not an ordinary ("managed") object in an unfiltered heap is left to libhdf5.

Source: the HDF5 File Format Specification, version 3.0, "Fractal Heap" and "Version 2 B-trees"; the bytes of counts in
inner nodes are those of libhdf5's ``H5B2__hdr_init``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from h5stream.compiled.instructions import copy_bytes
from h5stream.compiled.jit import jit, jit_inner
from h5stream.storage.metadata_bytes import (
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

NODE_NBYTES = 64 * 1024
MOST_DEPTH = 12
MOST_EXTENTS = 1 << 16
_MOST_QUEUED = 4096


class HeapScratch(NamedTuple):
    """Memory for reading heaps and trees: nodes, blocks that are still to be read, blocks that were."""

    node: Any
    queue: Any
    extents: Any
    steps: Any


class Heap(NamedTuple):
    """A heap whose blocks are in memory: how many bytes and blocks.

    `nbytes` is -1 where it was not understood. `id_nbytes`, `offset_nbytes` and `length_nbytes` are those of a heap ID.
    """

    nbytes: Any
    blocks: Any
    id_nbytes: Any
    offset_nbytes: Any
    length_nbytes: Any


def heap_scratch() -> HeapScratch:
    """Make memory for reading heaps and trees."""
    return HeapScratch(
        np.zeros((MOST_DEPTH + 1) * NODE_NBYTES + SLACK_NBYTES, dtype=np.uint8),
        np.zeros((_MOST_QUEUED, 3), dtype=np.int64),
        np.zeros((MOST_EXTENTS, 4), dtype=np.int64),
        np.zeros((MOST_DEPTH + 1, 4), dtype=np.int64),
    )


@jit_inner
def _bits(value):
    """Give the place of a number's highest bit: 0 for 1, 12 for 4096."""
    found = np.int64(-1)
    while value > 0:
        value >>= 1
        found += 1
    return found


@jit_inner
def _load_block(given, scratch, image, at, room, where, owner, offset, nbytes, width, checked, blocks):
    """Read a direct block behind those before it; False where it is none of this heap's, or there is no room."""
    head = 5 + given[OFFSET_NBYTES] + width
    extents = scratch.extents
    start = extents[blocks - 1, 3] + extents[blocks - 1, 1] if blocks else np.int64(at)
    if blocks == extents.shape[0] or nbytes > at + room - start or nbytes < head + 4:
        return False
    if (
        not read(given, image, start, nbytes, where) or not is_signed(image, start, 0x42444846) or image[start + 4]
    ):  # FHDB
        return False
    if address(given, image, start + 5) != owner or number(image, start + 5 + given[OFFSET_NBYTES], width) != offset:
        return False
    if checked:
        said = number(image, start + head, 4)
        for k in range(4):
            image[start + head + k] = 0
        if checksum(image, start, nbytes) != said:
            return False
    extents[blocks, 0], extents[blocks, 1], extents[blocks, 2], extents[blocks, 3] = offset, nbytes, where, start
    return True


@jit_inner
def _load_blocks(given, scratch, image, at, room, owner, columns, first_nbytes, most_nbytes, width, checked, queued):
    """Read the blocks below the queued indirect ones; gives how many there are, -1 for a doubt."""
    node, queue = scratch.node, scratch.queue
    blocks, done = np.int64(0), 0
    direct_rows = _bits(most_nbytes) - _bits(first_nbytes) + 2
    head = 5 + given[OFFSET_NBYTES] + width
    while done < queued:
        where, offset, rows = queue[done, 0], queue[done, 1], queue[done, 2]
        done += 1
        size = head + rows * columns * given[OFFSET_NBYTES] + 4
        if rows < 1 or rows > 64 or size > NODE_NBYTES or not read(given, node, 0, size, where):
            return np.int64(-1)
        if not is_signed(node, 0, 0x42494846) or node[4] or not ends_with_checksum(node, 0, size):  # FHIB
            return np.int64(-1)
        if address(given, node, 5) != owner or number(node, 5 + given[OFFSET_NBYTES], width) != offset:
            return np.int64(-1)
        for entry in range(rows * columns):
            row = entry // columns
            nbytes = first_nbytes << max(row - 1, 0)
            child = address(given, node, head + entry * given[OFFSET_NBYTES])
            if child == NOWHERE:
                offset += nbytes
                continue
            if nbytes > room or child < 0:
                return np.int64(-1)
            if row < direct_rows:
                if not _load_block(
                    given, scratch, image, at, room, child, owner, offset, nbytes, width, checked, blocks
                ):
                    return np.int64(-1)
                blocks += 1
            else:
                if queued == queue.shape[0]:
                    return np.int64(-1)
                queue[queued, 0], queue[queued, 1] = child, offset
                queue[queued, 2] = _bits(nbytes) - _bits(first_nbytes * columns) + 1
                queued += 1
            offset += nbytes
    return blocks


@jit_inner
def _put_in_order(extents, blocks):
    """Sort blocks by where they are in the heap: those below inner ones come last."""
    gap = blocks // 2
    while gap > 0:  # Shell's sort
        for k in range(gap, blocks):
            here = k
            while here >= gap and extents[here - gap, 0] > extents[here, 0]:
                for column in range(4):
                    kept = extents[here, column]
                    extents[here, column] = extents[here - gap, column]
                    extents[here - gap, column] = kept
                here -= gap
        gap //= 2


@jit_inner
def heap_header(given, node, where):
    """Read the header of a heap; gives its bytes, 0 for a doubt."""
    each, offset = given[LENGTH_NBYTES], given[OFFSET_NBYTES]
    size = 22 + 12 * each + 3 * offset + 4
    if where < 0 or not read(given, node, 0, size, where) or not is_signed(node, 0, 0x50485246):  # FRHP
        return np.int64(0)
    if node[4] or number(node, 7, 2) or not ends_with_checksum(node, 0, size):  # filters make it longer
        return np.int64(0)
    return size


@jit
def nbytes_of_heap(given, node, where):
    """Give the bytes that a heap's blocks take; -1 for a doubt."""
    if not heap_header(given, node, where):
        return np.int64(-1)
    return length(given, node, 14 + 3 * given[LENGTH_NBYTES] + 2 * given[OFFSET_NBYTES])


@jit_inner
def load_heap(given, scratch, image, at, room, where):
    """Read all blocks of a heap to a part of a buffer, one behind the other.

    Returns
    -------
    Heap
        With `nbytes` -1 where it was not understood.
    """
    node = scratch.node
    each, wide = given[LENGTH_NBYTES], given[OFFSET_NBYTES]
    doubt = Heap(np.int64(-1), np.int64(0), np.int64(0), np.int64(0), np.int64(0))
    size = heap_header(given, node, where)
    if not size:
        return doubt
    nbytes = length(given, node, 14 + 3 * each + 2 * wide)
    shape = 14 + 10 * each + 2 * wide
    id_nbytes, checked, most = number(node, 5, 2), node[9] & 2, number(node, 10, 4)
    columns, first_nbytes, most_nbytes = (
        number(node, shape, 2),
        length(given, node, shape + 2),
        length(given, node, shape + 2 + each),
    )
    bits = number(node, shape + 2 + 2 * each, 2)
    root, rows = address(given, node, shape + 6 + 2 * each), number(node, shape + 6 + 2 * each + wide, 2)
    if nbytes < 0 or nbytes > room or first_nbytes < 1 or most_nbytes < first_nbytes or most_nbytes > 1 << 30:
        return doubt
    if columns < 1 or columns > 1024 or bits < 1 or bits > 56 or root < 0 or most < 1:
        return doubt
    if first_nbytes & (first_nbytes - 1) or most_nbytes & (most_nbytes - 1) or columns & (columns - 1):
        return doubt
    width = (bits + 7) // 8
    if rows == 0:
        if not _load_block(
            given, scratch, image, at, nbytes, root, where, np.int64(0), first_nbytes, width, checked, 0
        ):
            return doubt
        blocks = np.int64(1)
    else:
        scratch.queue[0, 0], scratch.queue[0, 1], scratch.queue[0, 2] = root, 0, rows
        blocks = _load_blocks(
            given, scratch, image, at, nbytes, where, columns, first_nbytes, most_nbytes, width, checked, 1
        )
    if blocks < 0:
        return doubt
    _put_in_order(scratch.extents, blocks)
    of_length = min((_bits(most_nbytes) + 7) // 8, _bits(most) // 8 + 1)
    return Heap(nbytes, blocks, id_nbytes, width, of_length)


@jit_inner
def find_in_heap(scratch, image, heap, node, at):
    """Find the object with an ID; gives its position in the image, its bytes, and file offset less position."""
    doubt = (np.int64(-1), np.int64(0), np.int64(0))
    if (
        node[at] != 0 or 1 + heap.offset_nbytes + heap.length_nbytes > heap.id_nbytes
    ):  # huge, tiny, or of a later version
        return doubt
    offset = number(node, at + 1, heap.offset_nbytes)
    nbytes = number(node, at + 1 + heap.offset_nbytes, heap.length_nbytes)
    low, high = np.int64(0), heap.blocks
    while high - low > 1:
        middle = (low + high) // 2
        if scratch.extents[middle, 0] <= offset:
            low = middle
        else:
            high = middle
    if heap.blocks == 0 or offset < scratch.extents[low, 0] or nbytes < 1:
        return doubt
    within = offset - scratch.extents[low, 0]
    if within > scratch.extents[low, 1] or nbytes > scratch.extents[low, 1] - within:
        return doubt
    position = scratch.extents[low, 3] + within
    return position, nbytes, scratch.extents[low, 2] + within - position


@jit_inner
def _open_tree_node(given, node, at, where, depth, kind, records, each, pointer_nbytes):
    """Read a node of a version 2 B-tree; False where it is none."""
    size = 6 + records * each + 4
    if depth > 0:
        size += (records + 1) * pointer_nbytes
    if where < 0 or size > NODE_NBYTES - SLACK_NBYTES or not read(given, node, at, size, where):
        return False
    signature = 0x4E495442 if depth > 0 else 0x464C5442  # BTIN, BTLF
    if not is_signed(node, at, signature) or node[at + 4] or node[at + 5] != kind:
        return False
    return ends_with_checksum(node, at, size)


@jit_inner
def collect_records(given, scratch, where, kind, each, hash_at, ids):
    """Put all records of a version 2 B-tree into an array; gives how many there are, -1 for a doubt.

    Parameters
    ----------
    kind : int
        Of the tree's records: 5 links by name, 8 attributes by name.
    each, hash_at : int
        Bytes of a record, and where it has the hash of a name; records must ascend by it.
    ids : uint8 array
        Filled; a tree with more records than there is room for is a doubt.
    """
    node, steps, wide = scratch.node, scratch.steps, given[OFFSET_NBYTES]
    size = 16 + wide + 2 + given[LENGTH_NBYTES] + 4
    if where < 0 or not read(given, node, 0, size, where) or not is_signed(node, 0, 0x44485442):  # BTHD
        return np.int64(-1)
    node_nbytes, depth = number(node, 6, 4), number(node, 12, 2)
    child, records = address(given, node, 16), number(node, 16 + wide, 2)
    total = length(given, node, 18 + wide)
    if not ends_with_checksum(node, 0, size) or node[4] or node[5] != kind or number(node, 10, 2) != each:
        return np.int64(-1)
    if total < 0 or total > (ids.size - SLACK_NBYTES) // each or depth >= MOST_DEPTH or node_nbytes < 32:
        return np.int64(-1)
    if total == 0:
        return np.int64(0) if child == NOWHERE and records == 0 else np.int64(-1)
    count_nbytes = _widths_of_counts(steps, node_nbytes, each, wide, depth)
    used, level, last = np.int64(0), depth, np.int64(0)
    steps[level, 0], steps[level, 1] = records, 0
    if not _open_tree_node(given, node, level * NODE_NBYTES, child, level, kind, records, each, steps[level, 2]):
        return np.int64(-1)
    while level <= depth:
        records, step = steps[level, 0], steps[level, 1]
        at = level * NODE_NBYTES
        # In a leaf each step is a record; above, a node and a record take turns.
        if step == (2 * records + 1 if level > 0 else records):
            level += 1
            continue
        steps[level, 1] += 1
        place = step // 2 if level > 0 else step
        if level == 0 or step & 1:
            start = at + 6 + place * each
            if used == total or (used and number(node, start + hash_at, 4) < last):
                return np.int64(-1)
            last = number(node, start + hash_at, 4)
            copy_bytes(address_of(ids) + used * each, address_of(node) + start, each)
            used += 1
        else:
            pointer = at + 6 + records * each + place * steps[level, 2]
            child, held = address(given, node, pointer), number(node, pointer + wide, count_nbytes)
            level -= 1
            steps[level, 0], steps[level, 1] = held, 0
            at = level * NODE_NBYTES
            if held < 1 or not _open_tree_node(given, node, at, child, level, kind, held, each, steps[level, 2]):
                return np.int64(-1)
    return used if used == total else np.int64(-1)


@jit_inner
def _widths_of_counts(steps, node_nbytes, each, wide, depth):
    """Note the bytes of a pointer in the inner nodes of each level; gives those of a count of records."""
    most = (node_nbytes - 10) // each
    count_nbytes = _bits(max(most, 1)) // 8 + 1
    total, total_nbytes = most, np.int64(0)
    steps[0, 2] = 0
    for level in range(1, depth + 1):
        pointer = wide + count_nbytes + total_nbytes
        steps[level, 2] = pointer
        held = max((node_nbytes - 10 - pointer) // (each + pointer), 0)
        total = min((held + 1) * total + held, np.int64(1) << 60)
        total_nbytes = _bits(max(total, 1)) // 8 + 1
    return count_nbytes
