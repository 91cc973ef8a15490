"""Opening: names, defaults, several files, and what is wrong with a file, with messages that say the way out."""

import h5py
import numpy as np
import pytest
from support.making import low_level, make_file, numbers, write_datasets

from h5stream import H5Dataset
from h5stream.errors import CorruptChunkError, FieldLengthError, FieldNotFoundError
from h5stream.storage.file.discovery import is_bookkeeping


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
        pytest.raises(FieldLengthError, match="no datasets in 'g', so name the fields: "),
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


def test_a_chunk_too_large_to_be_compared_is_left_to_h5py(tmp_path, monkeypatch):
    monkeypatch.setattr("h5stream.storage.file.h5py_reader.COMPARED_NBYTES", 1000)
    path = make_file(tmp_path / "a.h5", data=numbers(1000, 10), chunks=(500, 10), compression="gzip")
    dataset = H5Dataset(path, "x")
    assert "too many to compare" in dataset.layout.datasets[0][0].reason
    assert (dataset[::7].numpy() == numbers(1000, 10)[::7]).all()


# --- several files -----------------------------------------------------------------------------------------------


VALUES = numbers(100, 6, dtype="<f4")


@pytest.fixture
def paths(tmp_path):
    cuts = [(0, 13), (13, 14), (14, 60), (60, 100)]
    return [make_file(tmp_path / f"part{k}.h5", data=VALUES[slice(*cut)]) for k, cut in enumerate(cuts)]


def test_a_pattern_takes_files_by_name(paths, tmp_path):
    assert H5Dataset(tmp_path / "part*.h5", "x")[:].numpy().tobytes() == VALUES.tobytes()
    two = H5Dataset([str(tmp_path / "part[01].h5"), paths[3]], "x")
    assert two[:].numpy().tobytes() == np.concatenate([VALUES[:14], VALUES[60:]]).tobytes()


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    path = make_file(tmp_path / "run[1].h5", data=numbers(3))
    assert len(H5Dataset(path, "x")) == 3


@pytest.mark.parametrize(("dtype", "shape"), [("f8", (4, 6)), ("f4", (4, 5)), ("i4", (4, 6)), ("S4", (4, 6))])
def test_files_whose_rows_differ_in_type_or_shape_are_refused_by_name(paths, tmp_path, dtype, shape):
    other = make_file(tmp_path / "other.h5", data=np.zeros(shape, dtype))
    with pytest.raises(FieldLengthError, match=r"other\.h5'.*'x' has rows of .* must agree"):
        H5Dataset([paths[0], other], "x")


def test_compounds_with_other_members_are_refused(tmp_path):
    one = make_file(tmp_path / "1.h5", data=np.zeros(3, [("a", "i4"), ("b", "i4")]))
    two = make_file(tmp_path / "2.h5", data=np.zeros(3, [("a", "i4"), ("c", "i4")]))
    with pytest.raises(FieldLengthError, match="compound members"):
        H5Dataset([one, two], "x")


def test_a_field_that_one_file_lacks_names_that_file(paths, tmp_path):
    other = make_file(tmp_path / "other.h5", name="y", data=numbers(3))
    with pytest.raises(FieldNotFoundError, match=r"other\.h5' has no dataset 'x'. .*It has: y"):
        H5Dataset([paths[0], other], "x")


# --- names that are not there ------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    obs, obsm = [("bulk_labels", "i1"), ("at", [("lat", "f4")])], [("X_pca", "f4", (2,))]
    held = {"X": np.zeros((4, 2), "f4"), "obs": np.zeros(4, obs), "obsm": np.zeros(4, obsm), "cells/kind": np.zeros(4)}
    held |= {"uns/bulk_labels_colors": np.zeros(10, "S7"), "t/_i_table/index/sorted": np.zeros(9)}
    return write_datasets(tmp_path / "a.h5", **held, t__table=np.zeros(4, [("index", "i8")]))


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("obs/bulk_labels", "obs:bulk_labels"),
        ("Obs:Bulk_Labels", "obs:bulk_labels"),
        ("bulk_labels", "obs:bulk_labels"),
        ("obs/at/lat", "obs:at:lat"),
        ("lat", "obs:at:lat"),
        ("obs:X_pca", "obsm:X_pca"),
        ("/x", "X"),
        ("cells:kind", "cells/kind"),
        ("kind", "cells/kind"),
    ],
)
def test_a_field_that_is_not_there_is_answered_with_the_one_that_is(path, asked, meant):
    with pytest.raises(FieldNotFoundError, match=rf"Did you mean '{meant}'\?"):
        H5Dataset(path, asked)
    assert len(H5Dataset(path, meant)) == 4


def test_nothing_is_suggested_where_nothing_is_near(path):
    for asked, has in (("zzzz", "It has: X, cells/kind, obs"), ("obs:qqqq", "bulk_labels, at")):
        with pytest.raises(FieldNotFoundError, match=has) as caught:
            H5Dataset(path, asked)
        assert "Did you mean" not in str(caught.value)


def test_what_pytables_keeps_for_itself_is_never_suggested(path):
    with pytest.raises(FieldNotFoundError) as caught:
        H5Dataset(path, "sorted")
    assert "_i_table" not in str(caught.value)
    assert is_bookkeeping("t/_i_table/index/sorted")
    assert len(H5Dataset(path, "t/_i_table/index/sorted")) == 9  # whoever asks for it by its name gets it
