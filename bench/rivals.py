"""The loaders of people who have read the forums to the end, and what free data would give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from h5stream.baseline import NaiveDataset


class TunedDataset(NaiveDataset):
    """The same of one file with ``__getitems__``: one h5py read a batch, with a sorted index list."""

    def __getitems__(self, indices: list[int]) -> list[tuple[Any, ...]]:
        wanted = np.asarray(indices)
        by_row = np.argsort(wanted)
        place = np.empty_like(by_row)
        place[by_row] = np.arange(len(by_row))
        columns = []
        for dataset, member in self._open():
            values = dataset[wanted[by_row]]
            for name in member:
                values = values[name]
            columns.append(torch.from_numpy(np.ascontiguousarray(values[place])))
        return list(zip(*columns, strict=True))


class RamDataset(Dataset[Any]):
    """Arrays that are in memory already, behind ``__getitems__``: what a stock DataLoader makes of free data."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.arrays = tuple(arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(torch.as_tensor(array[index]) for array in self.arrays)

    def __getitems__(self, indices: list[int]) -> tuple[Any, ...]:
        chosen = np.asarray(indices)
        return tuple(torch.from_numpy(array[chosen]) for array in self.arrays)


def _as_is(batch: Any) -> Any:
    return batch


def tuned_loader(path: str, fields: Sequence[str], batch_size: int, workers: int) -> DataLoader[Any]:
    """Give the loader of people who have read the forums to the end."""
    return DataLoader(TunedDataset(path, fields), batch_size=batch_size, shuffle=True, num_workers=workers)


def ram_loader(arrays: Sequence[Any], batch_size: int) -> DataLoader[Any]:
    """Give a stock loader over arrays in memory, indexed a batch at a time in the main process."""
    return DataLoader(RamDataset(arrays), batch_size=batch_size, shuffle=True, collate_fn=_as_is)
