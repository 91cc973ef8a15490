"""The blocks that single rows of `H5Dataset` objects were taken from last: one bounded cache for all of them."""

from __future__ import annotations

import collections
import itertools
import os
import sys
import threading
from collections.abc import Hashable
from typing import Any

import torch

from h5stream.dropped import Living

LIMIT_NBYTES = 64 * 1024 * 1024
"""Of all datasets of a process together: what 80 of them kept for themselves was 400 MB."""

_ENTRY_NBYTES = 1024
"""What an entry takes besides its values, about."""


class BlockCache:
    """The blocks of one dataset; what all caches of the process hold is bounded, and the oldest goes first.

    # Guarantees: any thread may call, and so may a forked child; blocks are never changed, and callers copy what they
    hand out. The blocks of a dataset that is gone are gone with it.
    """

    def __init__(self) -> None:
        self._blocks: collections.OrderedDict[Hashable, tuple[int, int, Any]] = collections.OrderedDict()
        with SHARED.lock:
            SHARED.caches.add(self)

    def get(self, key: Hashable) -> Any:
        """Return the block of a key, such as its first row; None where it is not held."""
        with SHARED.lock:
            entry = self._blocks.pop(key, None)
            if entry is None:
                return None
            self._blocks[key] = (next(SHARED.clock), entry[1], entry[2])
            return entry[2]

    def put(self, key: Hashable, block: Any) -> None:
        """Hold a block, and let go of the oldest ones of all caches until they fit."""
        nbytes = _ENTRY_NBYTES + _nbytes(block)
        with SHARED.lock:
            self._blocks[key] = (next(SHARED.clock), nbytes, block)
            caches = [cache for cache in SHARED.caches if cache._blocks]
            held = sum(cache.nbytes for cache in caches)
            while held > LIMIT_NBYTES:
                oldest = min((cache for cache in caches if cache._blocks), key=lambda cache: cache._age)
                held -= oldest._blocks.popitem(last=False)[1][1]

    @property
    def nbytes(self) -> int:
        """Bytes that are held for this dataset."""
        return sum(nbytes for _, nbytes, _ in self._blocks.values())

    @property
    def _age(self) -> int:
        return next(iter(self._blocks.values()))[0]


class _Shared:
    """What the caches of a process share: a clock, a lock, and each other."""

    def __init__(self) -> None:
        self.clock = itertools.count()
        self.caches: Living[BlockCache] = Living()
        self.renew()

    def renew(self) -> None:
        # Reentrant: the garbage collector may come while it is held. In a forked child the thread that held it is gone.
        self.lock = threading.RLock()


SHARED = _Shared()
os.register_at_fork(after_in_child=SHARED.renew)


def held_nbytes() -> int:
    """Return what all caches of this process hold together."""
    with SHARED.lock:
        return sum(cache.nbytes for cache in SHARED.caches)


def _nbytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return sys.getsizeof(value) + sum(_nbytes(inner) for inner in value)
    return sys.getsizeof(value)
