"""What every program of the gallery has."""

import numpy as np
from torch.utils.data import DataLoader, Dataset, default_collate

GZIP = {"compression": "gzip", "compression_opts": 4}


class Program(Dataset):
    """A program; its first line says what a sample is. An instance is its reader, as its authors have it.

    `make(folder, size)` writes its files, with `size` times as many samples as a test needs. `ours(folder, **options)`
    gives the same samples in the same order. Where they are drawn by chance, `possible()` yields all that may come.
    """

    repository, subject, layout = "", "", ""
    batch, size = 64, 20
    """Samples of a batch, and what `make` is given, where both readers are measured."""
    drawn = False
    """Whether samples are drawn by chance."""
    transforms = False
    """Whether a batch is made of what is read by ``batch_transform=``."""
    in_memory = False
    """Whether the authors read everything into memory first."""

    def collate(self, samples):
        """Make a batch, as the authors do it."""
        return default_collate(samples)

    def loader(self, workers):
        """Give shuffled batches in worker processes, as the authors do it."""
        return DataLoader(self, self.batch, shuffle=True, num_workers=workers, collate_fn=self.collate,
                          persistent_workers=workers > 0)  # fmt: skip


def as_lists(samples):
    """Make a batch of samples of unlike lengths: a list for each field."""
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def measured(rng, *shape, dtype="f4"):
    """Give numbers that compress about as well as measured ones do."""
    return np.round(rng.standard_normal(shape, "f4") * 50).astype(dtype)


def pixels(rng, *shape):
    """Give pixels that compress about as well as pictures do."""
    return rng.integers(0, 60, shape, "u1")
