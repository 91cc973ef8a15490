"""The loaders that people write today, each in its usual form."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
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
    path : str or sequence of str
        The file, or several, one after the other; opened lazily, once in each worker, as the forums recommend.
    fields : sequence of str
        Paths of datasets, with a compound member after a colon.
    """

    def __init__(self, path: str | Sequence[str], fields: Sequence[str]) -> None:
        self.paths = (path,) if isinstance(path, str) else tuple(path)
        self.fields = tuple(fields)
        self._columns: dict[int, list[tuple[Any, tuple[str, ...]]]] = {}
        self._starts = [0]
        for one in self.paths:
            with open_file(one) as file:
                self._starts.append(self._starts[-1] + int(file[self.fields[0].split(":")[0]].shape[0]))

    def __len__(self) -> int:
        return self._starts[-1]

    def _open(self, number: int = 0) -> list[tuple[Any, tuple[str, ...]]]:
        if number not in self._columns:
            file = open_file(self.paths[number])
            split = [name.split(":") for name in self.fields]
            self._columns[number] = [(file[path], tuple(member)) for path, *member in split]
        return self._columns[number]

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        number = bisect.bisect_right(self._starts, index) - 1
        row = index - self._starts[number]
        return tuple(_tensor(dataset[row], member) for dataset, member in self._open(number))


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


def _tensor(value: Any, member: tuple[str, ...]) -> Any:
    for name in member:
        value = value[name]
    return torch.as_tensor(np.asarray(value))


def _as_is(batch: Any) -> Any:
    return batch


def naive_loader(
    path: str | Sequence[str],
    fields: Sequence[str],
    batch_size: int,
    workers: int,
    *,
    wrapped: Callable[[NaiveDataset], Dataset[Any]] = lambda inner: inner,
) -> DataLoader[Any]:
    """Give the usual loader: one row at a time, shuffled, worker processes."""
    return DataLoader(wrapped(NaiveDataset(path, fields)), batch_size=batch_size, shuffle=True, num_workers=workers)


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
