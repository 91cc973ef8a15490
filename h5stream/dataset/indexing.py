"""Indices of ``dataset[...]``: rows, and places within rows, with h5py's meaning.

Also the cache of blocks from which single rows were read last, with one bound for all `H5Dataset` objects.
"""

from __future__ import annotations

import collections
import itertools
import operator
import os
import sys
import threading
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from h5stream.base.leases import Living
from h5stream.base.texts import counted
from h5stream.errors import OptionError
from h5stream.order.blocks import numbers

LIMIT_NBYTES = 64 * 1024 * 1024
"""The bound for all datasets of a process together: caches of their own took 400 MB in 80 of them."""

_ENTRY_NBYTES = 1024
"""Approximate bytes of an entry besides its values."""


def split(index: object, shape: tuple[int, ...] | None) -> tuple[Any, tuple[Any, ...]]:
    """Split an index into rows and the indices within rows."""
    entries = list(index) if isinstance(index, tuple) else [index]
    dots = [k for k, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        raise OptionError("an index may hold one '...', not several")
    named = len(entries) - len(dots)
    if (named > 1 and shape is None) or (named and dots == [0] and shape is None):
        raise OptionError(
            "an index inside rows needs a dataset of one field that is a tensor. Index the rows, and then the field: "
            "x, y = dataset[2:4], then x[:, 0]. Some rows are a list: dataset[[1, 2]]"
        )
    if shape is not None and named > len(shape):
        axes = counted(len(shape), "axis", "axes")
        raise OptionError(f"{named} indices for data of {axes}, {shape}; some rows are a list: [[1, 2]]")
    if dots:
        missing = [slice(None)] * (len(shape or (0,)) - named)
        entries[dots[0] : dots[0] + 1] = missing
    if sum(not isinstance(entry, slice) and not is_one(entry) for entry in entries) > 1:
        raise OptionError("an index may hold one list, array or mask, not several; index the rest of what it gives")
    return (entries[0], tuple(entries[1:])) if entries else (slice(None), ())


def is_one(index: object) -> bool:
    """Return whether an index is a single integer, of Python, NumPy or torch."""
    if isinstance(index, (bool, np.bool_)):
        return False
    if isinstance(index, (int, np.integer)):
        return True
    if isinstance(index, torch.Tensor):
        return (
            index.ndim == 0 and not index.is_floating_point() and not index.is_complex() and index.dtype != torch.bool
        )
    return isinstance(index, np.ndarray) and index.ndim == 0 and np.issubdtype(index.dtype, np.integer)


def inside(value: torch.Tensor, indices: Sequence[Any], *, taken: bool) -> torch.Tensor:
    """Index within rows, axis by axis; `taken` says whether `value` still has the axis of rows."""
    # From the last axis on, so that those before keep their places.
    for place, index in reversed(list(enumerate(indices))):
        value = _along(value, place + taken, place + 1, index)
    return value


def _along(value: torch.Tensor, dim: int, axis: int, index: Any) -> torch.Tensor:
    count = value.shape[dim]
    if is_one(index):
        return value.select(dim, int(_within(np.array([operator.index(index)]), count, axis)[0]))
    if isinstance(index, slice) and (index.step is None or operator.index(index.step) > 0):
        return value[(slice(None),) * dim + (index,)]
    chosen = _within(numbers(index, count, axis=axis), count, axis)
    return value.index_select(dim, torch.from_numpy(chosen))


def _within(chosen: NDArray[np.int64], count: int, axis: int) -> NDArray[np.int64]:
    wrong = chosen[(chosen < -count) | (chosen >= count)]
    if len(wrong):
        raise IndexError(f"place {wrong[0]} on axis {axis} is not there: the axis has {count:,}, 0 to {count - 1:,}")
    return np.where(chosen < 0, chosen + count, chosen)


class BlockCache:
    """The cached blocks of one dataset; the caches of the process share a bound, and the oldest block is evicted first.

    # Guarantees: any thread may call, and so may a forked child; blocks are never changed, and callers copy what they
    hand out. The blocks of a dataset are released with it.
    """

    # By key, each with its time and its bytes; None until there is one: most datasets are never read row by row.
    _blocks: collections.OrderedDict[Hashable, tuple[int, int, Any]] | None = None

    def __reduce__(self) -> tuple[type[BlockCache], tuple[()]]:
        return BlockCache, ()

    def get(self, key: Hashable) -> Any:
        """Return the block of a key, such as its first row; None if it is not cached."""
        with SHARED.lock:
            if self._blocks is None or (entry := self._blocks.pop(key, None)) is None:
                return None
            self._blocks[key] = (next(SHARED.clock), entry[1], entry[2])
            return entry[2]

    def put(self, key: Hashable, block: Any) -> None:
        """Cache a block, and evict the oldest ones of all caches until they fit."""
        nbytes = _ENTRY_NBYTES + _nbytes(block)
        with SHARED.lock:
            if self._blocks is None:
                self._blocks = collections.OrderedDict()
                SHARED.caches.add(self)
            self._blocks[key] = (next(SHARED.clock), nbytes, block)
            caches = list(SHARED.caches)
            total = sum(cache.nbytes for cache in caches)
            while total > LIMIT_NBYTES:
                of_oldest = min((one._blocks for one in caches if one._blocks), key=lambda b: next(iter(b.values()))[0])
                total -= of_oldest.popitem(last=False)[1][1]

    @property
    def nbytes(self) -> int:
        """Bytes that are cached for this dataset."""
        return 0 if self._blocks is None else sum(nbytes for _, nbytes, _ in self._blocks.values())


class _SharedState:
    def __init__(self) -> None:
        self.clock, self.caches = itertools.count(), Living[BlockCache]()
        self.renew_lock()

    def renew_lock(self) -> None:
        """Replace the lock. It is reentrant: garbage collection may run while it is held."""
        self.lock = threading.RLock()


SHARED = _SharedState()
"""The state that the caches of a process share."""

os.register_at_fork(after_in_child=SHARED.renew_lock)  # the thread that held the lock does not exist in the child


def _nbytes(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return sys.getsizeof(value) + sum(_nbytes(inner) for inner in value)
    return sys.getsizeof(value)
