"""`ChunkBatchSampler`: the chunk-aware order, for a stock DataLoader over an `H5Dataset`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Sampler

from h5stream.dataset import H5Dataset
from h5stream.engine.budget import AUTO_BATCHES, AUTO_BLOCKS, FIRST_BLOCKS
from h5stream.errors import OptionError
from h5stream.order.epoch import EpochOrder, OrderSettings


class ChunkBatchSampler(Sampler[list[int]]):
    """Batches of row numbers, shuffled so that neighbours on disk are read together.

    Blocks of rows are permuted and cut into windows; rows are permuted inside each window. Every row comes
    once an epoch, and the order depends on nothing but the arguments.

    Parameters
    ----------
    dataset : H5Dataset
        The rows and their chunks.
    batch_size : int
        Rows of a batch.
    shuffle : bool
        False gives the rows in file order.
    drop_last : bool
        Leave out what does not fill a batch on every rank.
    seed : int
        Non-negative; another seed is another order.
    window : int, "auto" or "all"
        Rows that are shuffled with one another; ``"all"`` is an exact global shuffle.
    rank, world_size : int
        Which part of the epoch is ours. Every rank has the same number of batches.

    Examples
    --------
    >>> import h5py, tempfile, os, numpy as np
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["x"] = np.arange(10)
    >>> sampler = ChunkBatchSampler(H5Dataset(path), 4)
    >>> len(sampler), sorted(row for batch in sampler for row in batch)
    (3, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """

    def __init__(
        self,
        dataset: H5Dataset,
        batch_size: int = 8192,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        window: int | str = "auto",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not isinstance(dataset, H5Dataset):
            raise OptionError(f"ChunkBatchSampler needs an H5Dataset, whose chunks it knows, not {type(dataset)}")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise OptionError(f"batch_size= takes a positive number of rows, not {batch_size!r}")
        self.dataset = dataset
        self.epoch = 0
        self.batch_size = batch_size
        self.drop_last = drop_last
        block_rows = dataset.layout.leading[0].chunk_rows
        window_rows, first_rows = _window_rows(window, len(dataset), batch_size, block_rows)
        self._settings: dict[str, Any] = {
            "batch_size": batch_size,
            "window_rows": window_rows,
            "first_window_rows": first_rows,
            "shuffle": shuffle,
            "drop_last": drop_last,
            "seed": seed,
            "rank": rank,
            "world_size": world_size,
        }
        self._blocks = dataset.blocks
        self._order(0)  # complains now, not in the first epoch

    def _order(self, epoch: int) -> EpochOrder:
        return EpochOrder(self._blocks, OrderSettings(**self._settings, epoch=epoch))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; without it the first is 0, and each adds one."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._order(self.epoch).batches

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order(self.epoch)
        self.epoch += 1
        pending: dict[int, list[Any]] = {}
        selected = self._blocks.rows
        for window in order.windows():
            places = window.rows if selected is None else selected.searchsorted(window.rows)
            by_batch = window.batch.argsort(kind="stable")
            edges = (window.batch[by_batch][1:] != window.batch[by_batch][:-1]).nonzero()[0] + 1
            for part in _split(by_batch, edges):
                pending.setdefault(int(window.batch[part[0]]), []).append((window.within[part], places[part]))
            yield from self._complete(order, pending)

    @staticmethod
    def _complete(order: EpochOrder, pending: dict[int, list[Any]]) -> Iterator[list[int]]:
        for number in sorted(pending):
            size = order.batch_size_of(number)
            if sum(len(within) for within, _ in pending[number]) < size:
                return
            rows = [0] * size
            for within, places in pending.pop(number):
                for k, row in zip(within.tolist(), places.tolist(), strict=True):
                    rows[k] = row
            yield rows


def _split(array: Any, edges: Any) -> list[Any]:
    bounds = [0, *edges.tolist(), len(array)]
    return [array[a:b] for a, b in itertools.pairwise(bounds)]


def _window_rows(window: int | str, rows: int, batch_size: int, block_rows: int) -> tuple[int, int]:
    if window == "all":
        return rows, rows
    if window == "auto":
        wished = max(AUTO_BATCHES * batch_size, AUTO_BLOCKS * block_rows)
        return wished, min(wished, math.ceil(max(batch_size, FIRST_BLOCKS * block_rows)))
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise OptionError(f"window= takes a number of rows, 'auto' or 'all', not {window!r}")
    return window, window
