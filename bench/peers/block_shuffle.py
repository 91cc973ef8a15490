"""A good block shuffle for readers that only know slices: the best that a careful user builds on top of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from bench.peers.protocol import CHUNK_ROWS, WORKERS

WINDOW_BLOCKS = 64
SHUFFLE = f"blocks of {CHUNK_ROWS:,} rows, {WINDOW_BLOCKS} mixed"


class BlockShuffle:
    """Reads random blocks in threads, mixes the rows of a window of them, cuts batches.

    The next window is read while this one's batches are taken.

    Parameters
    ----------
    rows : int
        Rows there are.
    batch_rows : int
        Rows of a batch.
    read : callable
        Gives ``x[start:stop], y[start:stop]`` as arrays; called by several threads.
    threads : int
        How many threads read.
    """

    def __init__(self, rows: int, batch_rows: int, read: Callable[[int, int], Any], threads: int = WORKERS) -> None:
        self.rows, self.batch_rows, self.read, self.threads = rows, batch_rows, read, threads
        self.epoch = 0

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        rng = np.random.default_rng(self.epoch)
        self.epoch += 1
        starts = rng.permutation(np.arange(0, self.rows, CHUNK_ROWS))
        windows = [starts[k : k + WINDOW_BLOCKS] for k in range(0, len(starts), WINDOW_BLOCKS)]
        left: tuple[Any, Any] | None = None
        with ThreadPoolExecutor(self.threads) as pool:
            ahead = self._request(pool, windows[0])
            for number in range(len(windows)):
                blocks = [future.result() for future in ahead]
                if number + 1 < len(windows):
                    ahead = self._request(pool, windows[number + 1])
                x, y = _mixed(blocks, left, rng)
                full = len(x) // self.batch_rows * self.batch_rows
                for k in range(0, full, self.batch_rows):
                    yield x[k : k + self.batch_rows], y[k : k + self.batch_rows]
                left = (x[full:], y[full:])
        if left is not None and len(left[0]):
            yield left

    def _request(self, pool: ThreadPoolExecutor, starts: Any) -> list[Any]:
        return [pool.submit(self.read, int(s), min(int(s) + CHUNK_ROWS, self.rows)) for s in starts]


def _mixed(blocks: list[Any], left: tuple[Any, Any] | None, rng: np.random.Generator) -> tuple[Any, Any]:
    x = torch.cat([torch.from_numpy(block[0]) for block in blocks])
    y = torch.cat([torch.from_numpy(block[1]) for block in blocks])
    order = torch.from_numpy(rng.permutation(len(x)))
    x, y = x[order], y[order]
    if left is None or not len(left[0]):
        return x, y
    return torch.cat([left[0], x]), torch.cat([left[1], y])
