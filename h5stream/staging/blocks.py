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
from dataclasses import dataclass

from h5stream.errors import SourceChangedError, StagedFileDamagedError
from h5stream.staging.checksum import PIECE_BYTES, block_hash

# What copy_file_range says where it does not work between two files; a copy by hand then does.
_CANNOT = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EBADF}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopy:
    """One block to be copied between two open files."""

    source: int
    """Descriptor of the source."""
    target: int
    """Descriptor of the copy, open for reading and writing."""
    offset: int
    """First byte."""
    length: int
    """Bytes."""
    in_kernel: bool
    """Try copy_file_range: on one file system that shares extents or copies on its server."""
    name: str
    """The source, for messages."""


def copy_block(block: BlockCopy, progress: Callable[[int], None]) -> bytes:
    """Copy one block and give the hash of its bytes; `progress` is told the bytes of every piece.

    It is an error if the source ends inside the block, or what is read back differs from what was read.
    """
    read, back = block_hash(), block_hash()
    # On page boundaries: what was read, and what was read back.
    given, got = (memoryview(mmap.mmap(-1, PIECE_BYTES)) for _ in range(2))
    write = _write_in_kernel if block.in_kernel else _write
    at, end = block.offset, block.offset + block.length
    while at < end:
        count = os.preadv(block.source, [given[: end - at]], at)
        if count == 0:
            raise SourceChangedError(
                f"{block.name} changed while it was copied: it ends at byte {at}, {end} were expected. "
                f"Its copy was not kept; stage again when nothing writes to it",
                file=block.name,
            )
        read.update(given[:count])
        write(block, given[:count], at)
        back.update(read_back(block, got[:count], at))
        at += count
        progress(count)
    digest = read.digest()
    if back.digest() != digest:
        raise StagedFileDamagedError(
            f"the copy of {block.name} differs from it between bytes {block.offset} and {end}: what was "
            "written there is not what is read back. Its copy was not kept; memory or storage at fault is "
            "likely",
            file=block.name,
        )
    return digest


def _write(block: BlockCopy, piece: memoryview, at: int) -> None:
    done = 0
    while done < len(piece):
        done += os.pwrite(block.target, piece[done:], at + done)


def _write_in_kernel(block: BlockCopy, piece: memoryview, at: int) -> None:
    done = 0
    try:
        while done < len(piece):
            moved = os.copy_file_range(block.source, block.target, len(piece) - done, at + done, at + done)
            if moved == 0:
                break
            done += moved
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    # What the kernel did not take; the bytes that were hashed, in any case.
    _write(block, piece[done:], at + done)


def read_back(block: BlockCopy, space: memoryview, at: int) -> memoryview:
    """Read what was written, from storage where that can be asked for; gives `space`, filled."""
    done = 0
    while done < len(space):
        count = os.preadv(block.target, [space[done:]], at + done)
        if count == 0:
            break  # shorter than what was written: the hashes will differ
        done += count
    return space[:done]
