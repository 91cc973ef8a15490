"""Blocks of objects that libhdf5 has read, in memory, and the child nodes of the index nodes in them."""

from __future__ import annotations

import collections
import threading

BLOCK_NBYTES = 64 * 1024
"""Bytes of a cached block from which libhdf5's reads are served."""
HELD_NBYTES = 64 * 1024 * 1024
"""Bytes of blocks in memory while objects are opened; 1 / `_KEPT_SHARE` of it afterwards."""


Version = tuple[str, str, int, str]
"""The version of an object: its address, the word of its store, its bytes and its ETag."""

# A cache of the blocks that libhdf5 has read, least recently used first. Guarantees: any thread may call.

_blocks_lock = threading.Lock()
_blocks = collections.OrderedDict[tuple[Version, int], bytes]()


def forget_blocks(address: str) -> None:
    """Release all blocks of an object that may have changed unnoticed."""
    with _blocks_lock:
        for key in [key for key in _blocks if key[0][0] == address]:
            del _blocks[key]


def cached_block(version: Version, number: int) -> bytes | None:
    """Return a block, which becomes the most recently used; None if it is not in memory."""
    key = version, number
    with _blocks_lock:
        if key in _blocks:
            _blocks.move_to_end(key)
        return _blocks.get(key)


def cache_blocks(version: Version, number: int, data: memoryview) -> None:
    """Cache the bytes that start with block `number`."""
    with _blocks_lock:
        for k in range(0, data.nbytes, BLOCK_NBYTES):
            _blocks[version, number + k // BLOCK_NBYTES] = bytes(data[k : k + BLOCK_NBYTES])
    trim_blocks(HELD_NBYTES)


def trim_blocks(most_nbytes: int) -> None:
    """Release the oldest blocks until at most `most_nbytes` remain."""
    with _blocks_lock:
        while len(_blocks) * BLOCK_NBYTES > most_nbytes:
            _blocks.popitem(last=False)


def child_nodes(node: memoryview, size: int) -> list[tuple[int, int]]:
    """Return offset and bytes of the child nodes of a version 1 B-tree node; none if they are chunks."""
    if bytes(node[:4]) != b"TREE" or node.nbytes < _TREE_NBYTES:
        return []
    is_of_chunks, level, used = node[4], node[5], int.from_bytes(node[6:8], "little")
    key = (node.nbytes - _TREE_NBYTES - 64 * 8) // 65 if is_of_chunks else 8  # 64 below each, and a key more
    begins = range(_TREE_NBYTES + key, node.nbytes - 7, key + 8)[:used]
    if key < 8 or (is_of_chunks and not level):  # the children are chunks
        return []
    offsets = (int.from_bytes(node[begin : begin + 8], "little") for begin in begins)
    nbytes = node.nbytes if level else 328
    return [(offset, nbytes) for offset in offsets if offset + nbytes <= size]


_TREE_NBYTES = 24
"""Bytes of the header of a B-tree node."""
