"""Values of variable length, read from the global heap beside h5py."""

import os

import h5py
import numpy as np
import pytest
from making import corrupt_chunk, vlen, write_datasets

from h5stream import Field, H5Dataset, H5StreamLoader, errors
from tools import fuzz_files


def write(path, counts, base):
    """Write a value of so many items for each row, but for every seventh, which is left unwritten; give the values."""
    rng = np.random.default_rng(0)
    values = [rng.integers(0, 100, 0 if k % 7 == 6 else count).astype(base) for k, count in enumerate(counts)]
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (len(counts),), dtype=h5py.vlen_dtype(base))
        for k, value in enumerate(values):
            if k % 7 != 6:
                dataset[k] = value
        file["y"] = np.arange(len(counts))
    return values


def check(batches, values, form):
    """Compare each sample with what was written; give the samples."""
    seen = []
    for batch in batches:
        for k, number in enumerate(batch["y"].tolist()):
            found = (batch["x"].sample(k) if form == "packed" else batch["x"][k]).numpy()
            assert (found.tolist(), found.dtype) == (values[number].tolist(), values[number].dtype), number
            seen.append(number)
    return seen


@pytest.mark.parametrize("form", [None, "packed"])
@pytest.mark.parametrize("at", [0, 8, 24])  # the signature, the size of the collection, that of its first object
def test_a_heap_that_lies_is_an_error_that_names_the_sample_and_skip_leaves_it_out(tmp_path, form, at):
    values = write(tmp_path / "a.h5", [10_000] * 20, "f8")  # each in a collection of its own
    content = bytearray((tmp_path / "a.h5").read_bytes())
    layout = H5Dataset(tmp_path / "a.h5", "x").layout
    where = int(layout.datasets[0][0].heap.address[4]) + at
    content[where : where + 8] = (2**40).to_bytes(8, "little")
    (tmp_path / "a.h5").write_bytes(content)
    fields = {"x": "x" if form is None else Field("x", ragged=form), "y": "y"}
    with pytest.raises(errors.CorruptChunkError, match=r"'x'.* 4"):
        list(H5StreamLoader(tmp_path / "a.h5", 4, fields=fields))
    with H5StreamLoader(tmp_path / "a.h5", 4, fields=fields, on_error="skip", shuffle=True) as loader:
        assert sorted(check(loader, values, form)) == [k for k in range(20) if k != 4]


@pytest.mark.parametrize("field", [Field("v", ragged="packed"), Field("v", decode="png")])
def test_a_damaged_chunk_of_places_is_named_where_no_value_can_be_had(tmp_path, field):
    v = {**vlen("u1", [np.arange(k % 7) for k in range(60)]), "chunks": (20,), "compression": "gzip"}
    path = write_datasets(tmp_path / "a.h5", v=v)
    corrupt_chunk(path, 1, "v")
    with pytest.raises(errors.CorruptChunkError, match=r"'v': .*chunk \(20,\) at byte \d+: gzip") as found:
        H5Dataset(path, field)
    assert (found.value.file, found.value.field, found.value.chunk) == (path, "v", (20,))


@pytest.mark.parametrize("seed", [7400, pytest.param(None, id="anew", marks=pytest.mark.slow)])
def test_damaged_heaps_are_what_h5py_says_of_them(tmp_path, seed):
    """A short part of ``python tools/fuzz_files.py heaps``."""
    counts, wrong = fuzz_files.fuzz("heaps", 100, seed or int.from_bytes(os.urandom(4), "little"), tmp_path / "wrong")
    assert not wrong, wrong
    assert counts["files"] >= 100
