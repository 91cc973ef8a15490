"""The loaders that people write today, each in its usual form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import hdf5plugin  # noqa: F401  so that files with its filters open here as well
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from h5stream.storage.handles import open_file


class NaiveDataset(Dataset[Any]):
    """One row a ``__getitem__`` through h5py: each decodes a whole chunk.

    Parameters
    ----------
    path : str
        The file; opened lazily, once in each worker, as the forums recommend.
    fields : sequence of str
        Paths of datasets, with a compound member after a colon.
    """

    def __init__(self, path: str, fields: Sequence[str]) -> None:
        self.path, self.fields = path, tuple(fields)
        self._columns: list[tuple[Any, tuple[str, ...]]] | None = None
        with open_file(path) as file:
            self._rows = int(file[self.fields[0].split(":")[0]].shape[0])

    def __len__(self) -> int:
        return self._rows

    def _open(self) -> list[tuple[Any, tuple[str, ...]]]:
        if self._columns is None:
            file = open_file(self.path)
            split = [name.split(":") for name in self.fields]
            self._columns = [(file[path], tuple(member)) for path, *member in split]
        return self._columns

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(_tensor(dataset[index], member) for dataset, member in self._open())


class TunedDataset(NaiveDataset):
    """The same with ``__getitems__``: one h5py read a batch, with a sorted index list."""

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


def _tensor(value: Any, member: tuple[str, ...]) -> Any:
    for name in member:
        value = value[name]
    return torch.as_tensor(np.asarray(value))


def _as_is(batch: Any) -> Any:
    return batch


def naive_loader(path: str, fields: Sequence[str], batch_size: int, workers: int) -> DataLoader[Any]:
    """Give the usual loader: one row at a time, shuffled, worker processes."""
    return DataLoader(NaiveDataset(path, fields), batch_size=batch_size, shuffle=True, num_workers=workers)


def tuned_loader(path: str, fields: Sequence[str], batch_size: int, workers: int) -> DataLoader[Any]:
    """Give the loader of people who have read the forums to the end."""
    return DataLoader(TunedDataset(path, fields), batch_size=batch_size, shuffle=True, num_workers=workers)


def ram_loader(arrays: Sequence[Any], batch_size: int) -> DataLoader[Any]:
    """Give a stock loader over arrays in memory, indexed a batch at a time in the main process."""
    return DataLoader(RamDataset(arrays), batch_size=batch_size, shuffle=True, collate_fn=_as_is)


def first_batches(loader: DataLoader[Any], seconds: float, clock: Any) -> Iterator[int]:
    """Yield the rows of each batch until the time is over; at least one batch."""
    start = clock()
    for batch in loader:
        yield len(batch[0])
        if clock() - start >= seconds:
            return
