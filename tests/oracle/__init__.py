"""What h5py reads, in the shape in which h5stream gives it; and whether the two are the same, byte for byte."""

import h5py
import numpy as np

from h5stream import H5Dataset

from .compare import differs, plain


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
    return not differs(plain(ours), plain(theirs))


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
