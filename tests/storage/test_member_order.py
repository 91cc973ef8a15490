"""The members of a compound come in the order in which they lie in an element, whoever read the file before."""

import h5py
import numpy as np
import pytest
from making import access_of, low_level, string_type, write_datasets, write_raw
from oracle import assert_like_h5py

from h5stream import H5Dataset
from h5stream.advice.listing import list_file

# What has to be converted: libhdf5 sorts the members of an open dataset's type when it does that.
KINDS = {"direct": h5py.h5t.STD_I32LE, "h5py": string_type(4, h5py.h5t.STR_SPACEPAD)}


def out_of_order(path, access, nested=False):
    inner = h5py.h5t.create(h5py.h5t.COMPOUND, 8)
    inner.insert(b"second", 4, h5py.h5t.STD_I16LE)
    inner.insert(b"first", 0, KINDS[access])
    stored = inner
    if nested:
        stored = h5py.h5t.create(h5py.h5t.COMPOUND, 16)
        stored.insert(b"late", 8, inner)
        stored.insert(b"early", 2, h5py.h5t.STD_I32BE)
    raw = np.random.default_rng(0).integers(97, 99, (20, stored.get_size()), dtype=np.uint8)
    return low_level(path, (20,), stored=stored, chunks=(6,), then=write_raw(raw, stored))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("access", KINDS)
def test_fields_keep_their_order_when_a_file_is_opened_again(tmp_path, access, nested):
    path = out_of_order(tmp_path / "a.h5", access, nested)
    first = H5Dataset(path, "x")
    assert access_of(first)[0] == access
    names = [field.name for field in first.layout.fields]
    assert names == (["x:early", "x:late:first", "x:late:second"] if nested else ["x:first", "x:second"])
    assert_like_h5py(path, access=access)
    assert list(first[:]) == [name.split(":")[1] for name in dict.fromkeys(":".join(n.split(":")[:2]) for n in names)]
    listed = list_file(path).entries[0].dtype
    with h5py.File(path, locking=False) as file:  # still open, so that all of this shares libhdf5's type
        file["x"][()]
        again = H5Dataset(path, "x")
        assert [field.name for field in again.layout.fields] == names
        assert again.layout.datasets[0][0].dtype_text == first.layout.datasets[0][0].dtype_text
        assert list_file(path).entries[0].dtype == listed


def test_files_whose_members_are_listed_in_another_order_are_read_as_one(tmp_path):
    paths = []
    for turn, names in enumerate([("a", "b"), ("b", "a")]):
        path = tmp_path / f"{turn}.h5"
        dtype = np.dtype({"names": names, "formats": ["<i2", "<i2"], "offsets": [4 * (n == "b") for n in names]})
        values = np.zeros(3, dtype)
        values["a"], values["b"] = turn, 10 + turn
        write_datasets(path, x=values)
        paths.append(str(path))
    batch = H5Dataset(paths, "x")[:]
    assert batch["a"].tolist() == [0, 0, 0, 1, 1, 1]
    assert batch["b"].tolist() == [10, 10, 10, 11, 11, 11]
