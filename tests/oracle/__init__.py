"""What h5py reads, in the shape in which h5stream gives it; and whether the two are the same, byte for byte."""

import h5py
import numpy as np
import torch

from h5stream import H5Dataset


def expected(value, dtype=None):
    """Turn an array that h5py read into what a batch of it must equal: native byte order, and dicts for compounds.

    Their members stand in the order of their offsets, since h5py's own order changes when libhdf5 converts.
    """
    dtype = value.dtype if dtype is None else dtype
    if dtype.names:
        return {name: expected(value[name]) for name in sorted(dtype.names, key=lambda name: dtype.fields[name][1])}
    return value.view("i8" if value.dtype.isnative else ">i8") if dtype.kind in "mM" else value


def same(ours, theirs) -> bool:
    """Tell whether a batch, or a part of it, equals what h5py read."""
    if isinstance(theirs, dict):
        return (
            isinstance(ours, dict) and list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in ours)
        )
    if isinstance(ours, torch.Tensor):
        theirs = np.ascontiguousarray(theirs, dtype=theirs.dtype.newbyteorder("="))
        mine = ours.numpy()
        if mine.dtype == bool and theirs.dtype == bool:  # a stored byte above 1 is true, and a copy of it may be a 1
            mine, theirs = mine.view("u1") != 0, theirs.view("u1") != 0
        return mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.tobytes() == theirs.tobytes()
    if isinstance(ours, list):
        if isinstance(theirs, np.ndarray) and theirs.dtype.kind == "S":
            return ours == theirs.tolist()
        return len(ours) == len(theirs) and all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    return type(ours) is type(theirs) and ours == theirs


def take(theirs, rows):
    """Take rows of an expected value."""
    if isinstance(theirs, dict):
        return {key: take(value, rows) for key, value in theirs.items()}
    return theirs[rows]


def assert_like_h5py(path, name="x", *, access=None, **options):
    """Read a dataset in whole, in random rows with repeats, in a slice and one by one; give the `H5Dataset`."""
    with h5py.File(path, "r") as file:
        theirs = expected(file[name][()])
        rows = file[name].shape[0]
    dataset = H5Dataset(path, name, **options)
    generator = np.random.default_rng(rows)
    for chosen in (np.arange(rows), generator.integers(0, rows, size=20), np.arange(rows)[1::3], np.array([rows - 1])):
        assert same(dataset[chosen], take(theirs, chosen)), f"rows {chosen.tolist()[:20]} differ from h5py"
    if access is not None:
        part = dataset.layout.datasets[0][0]
        assert part.access == access, part.reason
    dataset.close()
    return dataset
