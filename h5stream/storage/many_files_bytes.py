"""Bytes of many files, each opened for one read, in compiled code: the loop behind `h5stream.storage.many_files`."""

from __future__ import annotations

import numpy as np

from h5stream.compiled.instructions import close_descriptor, open_at, read_at, statx_by_address
from h5stream.compiled.jit import jit, jit_inner
from h5stream.storage.metadata_bytes import address_of

_INODE, _SIZE, _SECONDS, _NS = 4, 5, 14, 15
"""Words of what statx fills."""


@jit_inner
def _read_whole(descriptor, target, nbytes, offset):
    done = 0
    while done < nbytes:
        got = read_at(descriptor, target + done, nbytes - done, offset + done)
        if got <= 0:
            return False
        done += got
    return True


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
        known = _read_whole(descriptor, targets[k], nbytes[k], offsets[k])
        known = known and statx_by_address(statx, descriptor, nothing, address_of(about)) == 0
        close_descriptor(descriptor)
        mtime = about[_SECONDS] * 1_000_000_000 + (about[_NS] & 0xFFFFFFFF)
        if not known or about[_INODE] != inodes[file] or about[_SIZE] != sizes[file] or mtime != mtimes[file]:
            return k
    return which.size
