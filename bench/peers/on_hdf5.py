"""Peers that read plain HDF5, ours first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader

from bench.peers.block_shuffle import SHUFFLE, BlockShuffle
from bench.peers.protocol import CHUNK_ROWS, WORKERS, ByImport, OnPlainHdf5
from bench.rivals import tuned_loader
from h5stream import H5StreamLoader
from h5stream.baseline import naive_loader

FIELDS = ("x", "y")


class Ours(OnPlainHdf5):
    name, needs = "h5stream", ()

    def __init__(self, window: int | str = "auto", keep: str = "auto") -> None:
        self.window, self.keep = window, keep
        self.name = "h5stream" if window == "auto" else f"h5stream, window={window!r}"
        self.name += f", keep={keep!r}" if keep != "auto" else ""
        self.shuffle = "full" if window == "all" else "blocks of 1,024 rows, up to 1,024 mixed"

    def open(self, path: Path, batch_rows: int) -> Any:
        return H5StreamLoader(path, batch_rows, shuffle=True, fields=list(FIELDS), window=self.window, keep=self.keep)


class Naive(OnPlainHdf5):
    """A row costs the same in a batch of any size; eight workers would fill eight whole batches before the first."""

    needs, shuffle, batch_rows = (), "full", 512

    def __init__(self, workers: int) -> None:
        self.name, self.workers = f"naive DataLoader, {workers} workers", workers
        self.together = max(1, workers)

    def open(self, path: Path, batch_rows: int) -> Any:
        return naive_loader(str(path), FIELDS, batch_rows, self.workers)


class Tuned(OnPlainHdf5):
    name, needs, shuffle = f"tuned h5py, {WORKERS} workers", (), "full"

    def open(self, path: Path, batch_rows: int) -> Any:
        return tuned_loader(str(path), FIELDS, batch_rows, WORKERS)


class H5pyBlocks(OnPlainHdf5):
    """The block shuffle over h5py itself: whole chunks, one thread, because h5py's lock lets no second one read."""

    name, needs, shuffle = "h5py, block shuffle", (), SHUFFLE

    def open(self, path: Path, batch_rows: int) -> Any:
        file = h5py.File(path, "r")
        x, y = file["x"], file["y"]
        return BlockShuffle(len(x), batch_rows, lambda a, b: (x[a:b], y[a:b]), threads=1)


class ScDataset(OnPlainHdf5):
    """Blocks of a chunk, 16 batches fetched together, runs of rows read as slices: what its paper recommends."""

    name, needs = "scDataset", ("scdataset",)
    shuffle = f"blocks of {CHUNK_ROWS:,} rows, 128 mixed"

    def open(self, path: Path, batch_rows: int) -> Any:
        from scdataset import BlockShuffling, MultiIndexable, scDataset

        def fetch(collection: Any, indices: Any) -> Any:
            with h5py.File(collection.path, "r") as file:
                return MultiIndexable(**{name: _by_runs(file[name], indices) for name in FIELDS})

        def pick(data: Any, indices: Any) -> tuple[Any, Any]:
            batch = data[indices]
            return torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"])

        dataset = scDataset(
            _Collection(path),
            BlockShuffling(block_size=CHUNK_ROWS),
            batch_size=batch_rows,
            fetch_factor=16,
            fetch_callback=fetch,
            batch_callback=pick,
        )
        return DataLoader(dataset, batch_size=None, num_workers=WORKERS)


class _Collection:
    def __init__(self, path: Path) -> None:
        self.path = path
        with h5py.File(path, "r") as file:
            self.rows = len(file["x"])

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, indices: Any) -> Any:
        raise TypeError("read through the fetch callback")


def _by_runs(dataset: Any, indices: Any) -> Any:
    ordered = np.sort(np.asarray(indices))
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) != 1) + 1)
    return np.concatenate([dataset[run[0] : run[-1] + 1] for run in runs])


class Pyfive(OnPlainHdf5):
    name, needs, shuffle = "pyfive, block shuffle", ("pyfive",), SHUFFLE

    def open(self, path: Path, batch_rows: int) -> Any:
        import pyfive

        file = pyfive.File(str(path))
        x, y = file["x"], file["y"]
        return BlockShuffle(x.shape[0], batch_rows, lambda a, b: (np.array(x[a:b]), np.array(y[a:b])))


class Hidefix(OnPlainHdf5):
    name, needs, shuffle = "hidefix, block shuffle", ("hidefix",), SHUFFLE

    def open(self, path: Path, batch_rows: int) -> Any:
        import hidefix

        index = hidefix.Index(str(path))
        x, y = index["x"], index["y"]
        rows, width = x.shape()

        def read(start: int, stop: int) -> tuple[Any, Any]:
            return x[start:stop, 0:width].reshape(-1, width), y[(slice(start, stop),)].reshape(-1)

        return BlockShuffle(rows, batch_rows, read)


class H5torch(ByImport):
    """HDF5 in its own arrangement: its writer takes arrays in memory and sets no filter."""

    name, needs, reads, shuffle = f"h5torch, {WORKERS} workers", ("h5torch",), "converted", "full"

    def prepare(self, source: Path, folder: Path) -> Path:
        import h5torch

        with h5py.File(source, "r") as file:
            x, y = file["x"][:], file["y"][:]
        path = folder / "h5torch.h5"
        with h5torch.File(str(path), "w") as out:
            out.register(x, "central")
            out.register(y, 0, name="y")
        return path

    def open(self, path: Path, batch_rows: int) -> Any:
        return PairsOf(
            DataLoader(_LazyH5torch(str(path)), batch_size=batch_rows, shuffle=True, num_workers=WORKERS),
            "central",
            "0/y",
        )


class _LazyH5torch:
    """Opened in each worker: an HDF5 handle must not cross a fork."""

    def __init__(self, path: str) -> None:
        self.path, self._dataset = path, None
        with h5py.File(path, "r") as file:
            self.rows = len(file["central"])

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Any:
        if self._dataset is None:
            import h5torch

            self._dataset = h5torch.Dataset(self.path)
        return self._dataset[index]


class PairsOf:
    """Batches that are mappings, as pairs."""

    def __init__(self, loader: Any, x: str, y: str) -> None:
        self.loader, self.x, self.y = loader, x, y

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for batch in self.loader:
            yield batch[self.x], batch[self.y]
