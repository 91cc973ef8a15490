"""Boxes of volumes."""

import h5py
import numpy as np

from examples.gallery.program import GZIP, Program, measured
from h5stream import Boxes, H5StreamLoader


class TorchEM(Program):
    """A box anywhere in a volume, of raw data and labels; so many an epoch."""

    repository, subject, layout = "constantinpape/torch-em", "microscopy", "a volume"
    batch, size, drawn = 4, 1, True

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "volume.h5", "w") as file:
            file.create_dataset("raw", data=measured(rng, 40, 130, 130), chunks=(20, 64, 64), **GZIP)
            labels = rng.integers(0, 9, (40, 130, 130), "u1")
            file.create_dataset("labels", data=labels, chunks=(20, 64, 64), **GZIP)

    def __init__(self, folder):
        self.file = h5py.File(folder / "volume.h5")

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return self.read([np.random.randint(n - m + 1) for n, m in zip((40, 130, 130), (32, 128, 128), strict=True)])

    def read(self, first):
        box = tuple(slice(k, k + n) for k, n in zip(first, (32, 128, 128), strict=True))
        return {"raw": self.file["raw"][box], "labels": self.file["labels"][box]}

    def possible(self):
        return (self.read(first) for first in np.ndindex(9, 3, 3))

    @staticmethod
    def ours(folder, **options):
        samples = Boxes((32, 128, 128), per_epoch=60)
        return H5StreamLoader(
            folder / "volume.h5", samples=samples, fields={"raw": "raw", "labels": "labels"}, **options
        )


class Ffn(Program):
    """A box around each of a list of places in a volume."""

    repository, subject, layout = "google/ffn", "microscopy", "a volume, and a list of places"
    batch, size = 4, 8

    @staticmethod
    def make(folder, size=1):
        rng, shape = np.random.default_rng(0), (100, 250, 250)
        with h5py.File(folder / "volume.h5", "w") as file:
            file.create_dataset("raw", data=rng.integers(0, 60, shape, "u1"), chunks=(32, 64, 64), **GZIP)
            file.create_dataset("labels", data=rng.integers(0, 9, shape), chunks=(32, 64, 64), **GZIP)
        np.save(folder / "places.npy", rng.integers(24, np.array(shape) - 25, (20 * size, 3)))

    def __init__(self, folder):
        self.file, self.places = h5py.File(folder / "volume.h5"), np.load(folder / "places.npy")

    def __len__(self):
        return len(self.places)

    def __getitem__(self, index):
        z, y, x = self.places[index]
        box = np.s_[z - 24 : z + 25, y - 24 : y + 25, x - 24 : x + 25]
        return {"raw": self.file["raw"][box], "labels": self.file["labels"][box]}

    @staticmethod
    def ours(folder, **options):
        samples = Boxes((49, 49, 49), at=np.load(folder / "places.npy") - 24)
        return H5StreamLoader(
            folder / "volume.h5", samples=samples, fields={"raw": "raw", "labels": "labels"}, **options
        )
