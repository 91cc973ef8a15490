"""Copying one block of a file: read, hash, write, read back and compare, in pieces that stay in the cache.

Measured (docs/notes-staging.md): with pieces of 64 KiB to 1 MiB the read-back and both hashes cost nothing
that can be seen beside the two copies through the kernel, because the piece is still in the processor's
cache; with 4 MiB they do. Mapping the source, or the target, was slower than reading and writing: each page
of a mapping is faulted in by itself.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable

from h5stream.errors import SourceChangedError, StagedFileDamagedError
from h5stream.staging.checksum import PIECE_BYTES, block_hash

# What copy_file_range says where it does not work between two files; a copy by hand then does.
_CANNOT = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EBADF}


def copy_block(
    name: str, source: int, target: int, span: range, *, in_kernel: bool, progress: Callable[[int], None]
) -> bytes:
    """Copy some bytes of an open file to another one and give their hash; `progress` is told the bytes of every piece.

    It is an error if the source, called `name`, ends among them, or what is read back differs from what was read. With
    `in_kernel`, copy_file_range is tried: on one file system that shares extents or copies on its server.
    """
    read, back = block_hash(), block_hash()
    # On page boundaries: what was read, and what was read back.
    given, got = (memoryview(mmap.mmap(-1, PIECE_BYTES)) for _ in range(2))
    at, end = span.start, span.stop
    while at < end:
        count = os.preadv(source, [given[: end - at]], at)
        if count == 0:
            raise SourceChangedError(
                f"{name} changed while it was copied: it ends at byte {at}, {end} were expected. "
                f"Its copy was not kept; stage again when nothing writes to it",
                file=name,
            )
        read.update(given[:count])
        taken = _copied_in_kernel(source, target, at, count) if in_kernel else 0
        # What the kernel did not take; the bytes that were hashed, in any case.
        _write(target, given[taken:count], at + taken)
        back.update(read_back(target, got[:count], at))
        at += count
        progress(count)
    digest = read.digest()
    if back.digest() != digest:
        raise StagedFileDamagedError(
            f"the copy of {name} differs from it between bytes {span.start} and {end}: what was "
            "written there is not what is read back. Its copy was not kept; memory or storage at fault is "
            "likely",
            file=name,
        )
    return digest


def _write(target: int, piece: memoryview, at: int) -> None:
    done = 0
    while done < len(piece):
        done += os.pwrite(target, piece[done:], at + done)


def _copied_in_kernel(source: int, target: int, at: int, count: int) -> int:
    """Let the kernel copy bytes; give how many it took."""
    done = 0
    try:
        while done < count and (moved := os.copy_file_range(source, target, count - done, at + done, at + done)):
            done += moved
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    return done


def read_back(target: int, space: memoryview, at: int) -> memoryview:
    """Read what was written, from storage where that can be asked for; gives `space`, filled."""
    done = 0
    while done < len(space):
        count = os.preadv(target, [space[done:]], at + done)
        if count == 0:
            break  # shorter than what was written: the hashes will differ
        done += count
    return space[:done]
