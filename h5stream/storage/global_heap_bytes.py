"""Global heap collections as bytes: where libhdf5 keeps values of variable length.

A collection has its size in its header, and behind that objects, each with its index and size. Source: the HDF5 File
Format Specification, version 3.0, "Global Heap"; what of a damaged one is taken follows libhdf5's ``H5HGcache.c``:
all of a collection must add up, and of two objects with one index the last counts.
"""

from __future__ import annotations

import numpy as np

from h5stream.compiled.instructions import copy_bytes
from h5stream.compiled.jit import jit
from h5stream.storage.metadata_bytes import (
    FILE_NBYTES,
    NOWHERE,
    SLACK_NBYTES,
    address_of,
    is_signed,
    length,
    number,
    read,
)

HEADER_NBYTES = 16
"""Of a collection, and of an object in one: lengths of up to 8 bytes, aligned."""

LEAST_NBYTES = 4096
"""Of a collection."""

MOST_OBJECTS = 1 << 16


@jit
def nbytes_around(nbytes):
    """Give the bytes of a collection for an object of so many bytes, if that is alone in it."""
    return max(LEAST_NBYTES, 2 * HEADER_NBYTES + ((nbytes + 7) & ~7))


@jit
def _find_objects(given, buffer, at, nbytes, table, turn):
    """Note where each object of a collection lies; False where its sizes do not add up."""
    end, has_free = at + nbytes, False
    at += HEADER_NBYTES
    while at + HEADER_NBYTES <= end:
        which, size = number(buffer, at, 2), length(given, buffer, at + 8)
        if size < 0 or size > end - at:
            return False
        step = HEADER_NBYTES + ((size + 7) & ~7) if which else size
        if step < 1 or step > end - at:
            return False
        table[which, 0], table[which, 1], table[which, 2] = turn, at + HEADER_NBYTES, size
        has_free |= which == 0
        at += step
    return at == end or not has_free  # less than a header is free space


@jit
def _close_by(address, nbytes, at, end, room, gap_nbytes):
    """Give where a range ends that also brings collections which lie close behind the first, and how many of these."""
    stop = at + 1
    while stop < address.size:
        farther = max(end, address[stop] + nbytes_around(nbytes[stop]))
        if address[stop] - end > gap_nbytes or farther - address[at] > room:
            break
        end = farther
        stop += 1
    return end, stop


@jit
def _nbytes_of(given, buffer, at, count):
    """Give the bytes that the header of a collection says; 0 where there is none."""
    if at + HEADER_NBYTES > count or not is_signed(buffer, at, 0x4C4F4347) or buffer[at + 4] != 1:  # GCOL
        return np.int64(0)
    return length(given, buffer, at + 8)


@jit
def read_objects(given, address, index, nbytes, wanted, target, buffer, gap_nbytes, failed):
    """Copy objects of global heaps to their places; gives how many bytes and ranges were read.

    Parameters
    ----------
    given : int64 array
        What `metadata_bytes` needs of the file.
    address : int64 array
        Of the collection of each object, ascending; `NOWHERE` for nothing, any other negative number for a doubt.
    index, nbytes : int64 array
        Of each object; its bytes must be as many.
    wanted, target : int64 array
        How many of them are copied, and to which address.
    buffer : uint8 array
        What is read into. An object whose collection does not fit is a doubt.
    gap_nbytes : int
        Bytes between two collections that are read along.
    failed : bool array
        Set to True for those that cannot be had here.
    """
    room, file_nbytes = buffer.size - SLACK_NBYTES, given[FILE_NBYTES]
    table = np.zeros((MOST_OBJECTS, 3), dtype=np.int64)  # pages that are not touched are not there
    turn, at, need = np.int64(0), 0, np.int64(0)
    total, ranges = np.int64(0), np.int64(0)
    while at < address.size:
        begin = address[at]
        if begin < 0:
            failed[at] = begin != NOWHERE
            at += 1
            continue
        end = begin + max(need, nbytes_around(nbytes[at]))
        end, stop = _close_by(address, nbytes, at, end, room, gap_nbytes)
        count = min(end, file_nbytes) - begin
        if count < 2 * HEADER_NBYTES or not read(given, buffer, 0, count, begin):
            failed[at:stop] = True
            at, need = stop, np.int64(0)
            continue
        total, ranges = total + count, ranges + 1
        known, sound, need = np.int64(NOWHERE), False, np.int64(0)
        for k in range(at, stop):
            if address[k] != known:
                known, sound, size = address[k], False, np.int64(0)
                start = known - begin
                size = _nbytes_of(given, buffer, start, count)
                if size >= LEAST_NBYTES and size <= min(room, file_nbytes - known):
                    if start + size > count:  # larger than was thought: once more, from here
                        stop, need = k, size
                        break
                    turn += 1
                    sound = _find_objects(given, buffer, start, size, table, turn)
            which = index[k]
            if (
                not sound
                or which < 1
                or which >= MOST_OBJECTS
                or table[which, 0] != turn
                or table[which, 2] != nbytes[k]
            ):
                failed[k] = True
            else:
                copy_bytes(target[k], address_of(buffer) + table[which, 1], wanted[k])
        at = stop
    return total, ranges
