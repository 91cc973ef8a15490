"""Numbers, addresses and checksums in the bytes of HDF5's metadata, in compiled code.

All metadata are read by these few functions. `given` says where from: an int64 array of the descriptor, the bytes of
the file, those of an address and of a length in it, and the offset that addresses count from.

# Guarantees: `read` keeps to the file and to the buffer, short by `SLACK_NBYTES`. The others trust a position that
their caller has compared with what was read, or that is at most `SLACK_NBYTES` beyond it.
"""

from __future__ import annotations

import numpy as np

from h5stream.compiled.instructions import close_descriptor, open_at, read_at, statx_by_address, word_at
from h5stream.compiled.jit import jit, jit_inner

NOWHERE, BEYOND = -1, -2
"""An address that stands for none, and one that cannot be right."""

SLACK_NBYTES = 64
"""Bytes at a buffer's end that nothing is read to, since numbers are loaded 8 bytes at a time."""

# Places in `given`.
DESCRIPTOR, FILE_NBYTES, OFFSET_NBYTES, LENGTH_NBYTES, BASE = range(5)

_INODE, _SIZE, _SECONDS, _NS = 4, 5, 14, 15
"""Words of what statx fills."""


@jit_inner
def address_of(buffer):
    """Give where an array's memory begins."""
    return np.int64(buffer.ctypes.data)


@jit_inner
def _read_fully(descriptor, target, nbytes, offset):
    done = 0
    while done < nbytes:
        got = read_at(descriptor, target + done, nbytes - done, offset + done)
        if got <= 0:
            return False
        done += got
    return True


@jit_inner
def read(given, buffer, at, nbytes, offset):
    """Read bytes of the file to a position of the buffer; False where they are not all inside of both."""
    if offset < 0 or nbytes < 0 or at < 0:
        return False
    if nbytes > given[FILE_NBYTES] - offset or nbytes > buffer.size - SLACK_NBYTES - at:
        return False
    return _read_fully(given[DESCRIPTOR], address_of(buffer) + at, nbytes, offset)


@jit_inner
def number(buffer, at, nbytes):
    """Give an unsigned number of so many bytes; one of 8 bytes that is 2**63 and more is negative."""
    word = word_at(address_of(buffer) + at)
    return word & ((np.int64(1) << (8 * nbytes)) - 1) if nbytes < 8 else word


@jit_inner
def length(given, buffer, at):
    """Give a count of bytes or elements as this file writes them; negative where it cannot be right."""
    return number(buffer, at, given[LENGTH_NBYTES])


@jit_inner
def address(given, buffer, at):
    """Give an address as an offset into the file; `NOWHERE` or `BEYOND` where it is none."""
    nbytes = given[OFFSET_NBYTES]
    value = number(buffer, at, nbytes)
    if value == -1 or (nbytes < 8 and value == (np.int64(1) << (8 * nbytes)) - 1):
        return NOWHERE
    if value < 0 or value >= given[FILE_NBYTES] - given[BASE]:
        return BEYOND
    return value + given[BASE]


@jit_inner
def is_signed(buffer, at, signature):
    """Tell whether four bytes are a signature, given as a number."""
    return number(buffer, at, 4) == signature


@jit_inner
def _turned(value, by):
    return ((value << by) | (value >> (32 - by))) & 0xFFFFFFFF


@jit_inner
def checksum(buffer, at, nbytes):
    """Give the checksum of metadata: lookup3's ``hashlittle``. Source: burtleburtle.net/bob/c/lookup3.c."""
    low = np.int64(0xFFFFFFFF)
    a = (np.int64(0xDEADBEEF) + nbytes) & low
    b, c = a, a
    while nbytes > 12:
        a = (a + number(buffer, at, 4)) & low
        b = (b + number(buffer, at + 4, 4)) & low
        c = (c + number(buffer, at + 8, 4)) & low
        a = ((a - c) & low) ^ _turned(c, 4)
        c = (c + b) & low
        b = ((b - a) & low) ^ _turned(a, 6)
        a = (a + c) & low
        c = ((c - b) & low) ^ _turned(b, 8)
        b = (b + a) & low
        a = ((a - c) & low) ^ _turned(c, 16)
        c = (c + b) & low
        b = ((b - a) & low) ^ _turned(a, 19)
        a = (a + c) & low
        c = ((c - b) & low) ^ _turned(b, 4)
        b = (b + a) & low
        at += 12
        nbytes -= 12
    if nbytes == 0:
        return c
    a = (a + number(buffer, at, min(4, nbytes))) & low
    b = (b + number(buffer, at + 4, max(0, min(4, nbytes - 4)))) & low
    c = (c + number(buffer, at + 8, max(0, nbytes - 8))) & low
    c = ((c ^ b) - _turned(b, 14)) & low
    a = ((a ^ c) - _turned(c, 11)) & low
    b = ((b ^ a) - _turned(a, 25)) & low
    c = ((c ^ b) - _turned(b, 16)) & low
    a = ((a ^ c) - _turned(c, 4)) & low
    b = ((b ^ a) - _turned(a, 14)) & low
    return ((c ^ b) - _turned(b, 24)) & low


@jit_inner
def ends_with_checksum(buffer, at, nbytes):
    """Tell whether the last four of some bytes are the checksum of those before them."""
    return nbytes > 4 and number(buffer, at + nbytes - 4, 4) == checksum(buffer, at, nbytes - 4)


@jit
def note_checked(each, nbytes, known):
    """Set to False which of some rows of bytes do not end with their checksum, of those that are still known."""
    for k in range(known.size):
        known[k] = known[k] and ends_with_checksum(each[k], 0, nbytes)


@jit
def read_files(statx, paths, path_at, sizes, mtimes, inodes, which, offsets, nbytes, targets):
    """Open a file for each read, read, and compare what the file is then with what it was; give how many came out well.

    Parameters
    ----------
    statx : int
        The address of the C library's function.
    paths : uint8 array
        The paths, each with a null behind it.
    path_at, sizes, mtimes, inodes : int64 arrays
        Of each file, where its path begins, and what it was.
    which, offsets, nbytes, targets : int64 arrays
        Of each read the number of the file, where it begins there, its bytes, and the address that they go to.
    """
    about = np.empty(32, dtype=np.int64)
    nothing = address_of(paths) + paths.size - 1
    for k in range(which.size):
        file = which[k]
        descriptor = open_at(address_of(paths) + path_at[file])
        if descriptor < 0:
            return k
        known = _read_fully(descriptor, targets[k], nbytes[k], offsets[k])
        known = known and statx_by_address(statx, descriptor, nothing, address_of(about)) == 0
        close_descriptor(descriptor)
        mtime = about[_SECONDS] * 1_000_000_000 + (about[_NS] & 0xFFFFFFFF)
        if not known or about[_INODE] != inodes[file] or about[_SIZE] != sizes[file] or mtime != mtimes[file]:
            return k
    return which.size
