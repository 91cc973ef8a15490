"""The loader that people write today, in its usual form."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import hdf5plugin  # noqa: F401  so that files with its filters open here as well
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from h5stream.storage.handles import open_file


class NaiveDataset(Dataset[Any]):
    """One row a ``__getitem__`` through h5py: each decodes a whole chunk.

    Files stand one after the other, and are opened lazily, once in each worker, as the forums recommend. Fields are
    paths of datasets, with a compound member after a colon.
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


def _tensor(value: Any, member: tuple[str, ...]) -> Any:
    for name in member:
        value = value[name]
    return torch.as_tensor(np.asarray(value))


def naive_loader(
    path: str | Sequence[str],
    fields: Sequence[str],
    batch_size: int,
    workers: int,
    *,
    wrapped: Callable[[NaiveDataset], Dataset[Any]] = lambda inner: inner,
) -> DataLoader[Any]:
    """Return the usual loader: one row at a time, shuffled, worker processes."""
    return DataLoader(wrapped(NaiveDataset(path, fields)), batch_size=batch_size, shuffle=True, num_workers=workers)
