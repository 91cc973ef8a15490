"""Opening: names, defaults, and what is wrong with a file, each with a message that says the way out."""

import h5py
import hdf5plugin
import numpy as np
import pytest
from making import low_level, make_file, numbers, write_datasets

from h5stream import H5Dataset
from h5stream.errors import CorruptChunkError, FieldLengthError
from h5stream.storage import fallback
from h5stream.storage.source import FileIdentity


def test_without_fields_a_root_without_datasets_lists_what_there_is(tmp_path):
    path = make_file(tmp_path / "a.h5", name="deep/x", data=numbers(5))
    with pytest.raises(FieldLengthError, match=r"no datasets at its root.*5 rows: deep/x"):
        H5Dataset(path)


def test_without_fields_single_values_at_the_root_and_groups_that_are_alike_are_named(tmp_path):
    path = tmp_path / "a.h5"
    write_datasets(path, x=numbers(5), version=3.0, g__a__x=numbers(5), g__a__y=numbers(4))
    with pytest.raises(FieldLengthError, match=r"5 rows: .*Without rows, single values: version\."):
        H5Dataset(path)
    with h5py.File(path) as file, pytest.raises(FieldLengthError, match=r"unlike length in 'g/a', so name the fields"):
        H5Dataset(file["g/a"])
    with (
        h5py.File(path) as file,
        pytest.raises(FieldLengthError, match=r"no datasets in 'g', .*samples=Rows\(of=...\)"),
    ):
        H5Dataset(file["g"])


@pytest.mark.parametrize("name", ["labels", "/labels", "labels/"])
def test_slashes_around_a_name_do_not_matter(tmp_path, name):
    assert H5Dataset(make_file(tmp_path / "a.h5", name="labels", data=np.arange(10)), name)[3].item() == 3


def test_a_broken_chunk_index_is_left_to_h5py(tmp_path):
    path = low_level(tmp_path / "a.h5", (100,), chunks=(2,), libver=(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST))
    with h5py.File(path, "r+") as file:
        file["x"][:] = numbers(100)
    with open(path, "rb") as file:
        content = bytearray(file.read())
    at = content.rindex(b"TREE")
    content[at : at + 4] = b"EERT"
    with open(path, "wb") as file:
        file.write(content)
    dataset = H5Dataset(path, "x")
    assert "its chunk index cannot be read" in dataset.layout.datasets[0][0].reason
    with pytest.raises(CorruptChunkError, match="h5py cannot read"):
        dataset[:]
    dataset.close()


def test_a_chunk_too_large_to_be_compared_is_left_to_h5py(tmp_path, monkeypatch):
    monkeypatch.setattr("h5stream.storage.fallback.COMPARED_NBYTES", 1000)
    path = make_file(tmp_path / "a.h5", data=numbers(1000, 10), chunks=(500, 10), compression="gzip")
    dataset = H5Dataset(path, "x")
    assert "too many to compare" in dataset.layout.datasets[0][0].reason
    assert (dataset[::7].numpy() == numbers(1000, 10)[::7]).all()


def test_what_a_plugin_decoded_is_compared_before_its_memory_is_gone(tmp_path):
    path = make_file(tmp_path / "a.h5", data=numbers(5000, 10), chunks=(1000, 10), **hdf5plugin.Blosc())
    part = H5Dataset(path, "x").layout.datasets[0][0]
    with h5py.File(path) as file:
        decoded = fallback.decode_stored(part, FileIdentity.of(path), place=0)
        assert decoded.base is None
        assert decoded.tobytes() == file["x"][:1000].tobytes()
