"""What a program is to `bench.programs`: a file in its layout, its own reader, and ours."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from h5stream.results import Packed

THEIRS, SHUFFLED, IN_ORDER = "theirs", "h5stream", "h5stream, in file order"


class Program:
    """A program: `write` makes its file, `theirs` and `ours` open loaders of equal batches."""

    name, subject, file = "", "", "data.hdf5"
    packages: tuple[str, ...] = ()
    """What has to be installed for their reader; nothing where it is written in our own words."""
    batch, stored = 64, ("none",)
    """Samples of a batch; the filters with which the file is written."""
    shuffle, loaders = "all samples", (THEIRS, SHUFFLED)
    """What their loader shuffles; the loaders that are measured."""
    full: tuple[int, ...] = ()
    tiny: tuple[int, ...] = ()
    """Sizes of the file where it is measured, and in a test."""

    def absent(self) -> list[str]:
        """List the packages that are missing."""
        return [name for name in self.packages if not list(importlib.metadata.distributions(name=name))]

    def reader(self) -> Any:
        """Import their reader, if it is a package."""

    def open(self, loader: str, folder: Path, shuffle: bool = True, workers: int = 2) -> Iterable[Any]:
        """Open a loader by its name."""
        if loader == THEIRS:
            return self.theirs(folder, shuffle, workers)  # type: ignore[attr-defined, no-any-return]
        shuffle &= loader != IN_ORDER
        return self.ours(folder / self.file, batch_size=self.batch, shuffle=shuffle, keep="never")  # type: ignore[attr-defined, no-any-return]

    def stock(self, samples: Any, shuffle: bool, workers: int, **more: Any) -> Any:
        """Put a dataset under a ``DataLoader`` whose workers stay between epochs."""
        how = {"batch_size": self.batch, "shuffle": shuffle, **more}
        return DataLoader(samples, num_workers=workers, persistent_workers=workers > 0, **how)


def packed(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch: arrays of all samples, one after another, and where those of each begin; numbers are stacked."""
    batch: dict[str, Any] = {}
    for name, first in samples[0].items():
        parts = [one[name] for one in samples]
        if np.ndim(first):
            begins = np.cumsum([0, *map(len, parts)])
            batch[name] = Packed(torch.from_numpy(np.concatenate(parts)), torch.from_numpy(begins))
        else:
            batch[name] = torch.from_numpy(np.stack(parts))
    return batch
