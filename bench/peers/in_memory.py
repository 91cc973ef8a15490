"""Arrays: what is left when nothing has to be decoded. Not formats that hold more than memory does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from bench.peers.protocol import ByImport, OnPlainHdf5
from bench.peers.source import length, slabs
from bench.rivals import RamDataset, ram_loader


class _OneByOne(Dataset[Any]):
    """Rows of arrays through ``__getitem__`` alone, as most datasets are written."""

    def __init__(self, arrays: Any) -> None:
        self.rows = RamDataset(arrays)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class Ram(OnPlainHdf5):
    """The rows as NumPy arrays behind a stock DataLoader; reading the file counts as opening."""

    reads, needs, shuffle = "memory", (), "full"

    def __init__(self, *, by_batch: bool) -> None:
        self.by_batch = by_batch
        self.name = "NumPy in RAM, " + ("__getitems__" if by_batch else "per sample")

    def open(self, path: Path, batch_rows: int) -> Any:
        with h5py.File(path, "r") as file:
            arrays = [file["x"][:], file["y"][:]]
        if self.by_batch:
            return ram_loader(arrays, batch_rows)
        return DataLoader(_OneByOne(arrays), batch_size=batch_rows, shuffle=True)


class Memmap(ByImport):
    """The same over ``.npy`` files that are mapped: the page cache is the memory."""

    needs, reads, shuffle = (), "converted", "full"

    def __init__(self, *, by_batch: bool) -> None:
        self.by_batch = by_batch
        self.name = "NumPy memmap, " + ("__getitems__" if by_batch else "per sample")

    def prepare(self, source: Path, folder: Path) -> Path:
        rows = length(source)
        with h5py.File(source, "r") as file:
            width = file["x"].shape[1]
        x = np.lib.format.open_memmap(folder / "x.npy", "w+", dtype="f4", shape=(rows, width))
        y = np.lib.format.open_memmap(folder / "y.npy", "w+", dtype="i8", shape=(rows,))
        for start, values, labels in slabs(source):
            x[start : start + len(values)] = values
            y[start : start + len(labels)] = labels
        x.flush(), y.flush()
        return folder

    def open(self, path: Path, batch_rows: int) -> Any:
        arrays = [np.load(path / "x.npy", mmap_mode="c"), np.load(path / "y.npy", mmap_mode="c")]
        if self.by_batch:
            return ram_loader(arrays, batch_rows)
        return DataLoader(_OneByOne(arrays), batch_size=batch_rows, shuffle=True)


class TorchIndex(OnPlainHdf5):
    """No loader at all: a tensor in RAM and a permutation. What fits should be read so."""

    name, needs, reads, shuffle = "torch index in RAM", (), "memory", "full"

    def open(self, path: Path, batch_rows: int) -> Any:
        with h5py.File(path, "r") as file:
            return _TorchIndex(torch.from_numpy(file["x"][:]), torch.from_numpy(file["y"][:]), batch_rows)


class _TorchIndex:
    def __init__(self, x: Any, y: Any, batch_rows: int) -> None:
        self.x, self.y, self.batch_rows = x, y, batch_rows

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        order = torch.randperm(len(self.x))
        for rows in order.split(self.batch_rows):
            yield self.x[rows], self.y[rows]
