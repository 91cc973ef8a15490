"""Files and groups that lack what the others have: left out if asked, and with a warning those of a pattern."""

import warnings

import h5py
import numpy as np
import pytest

from h5stream import Boxes, Field, H5Dataset, H5StreamLoader, Rows, Sequences, Table
from h5stream.errors import FieldNotFoundError, LeftOutWarning, OptionError

ROWS = (3, None, 0, 5, None)


@pytest.fixture
def folder(tmp_path):
    """Make files of which some have no stars; the others' rows say which they are."""
    for k, rows in enumerate(ROWS):
        with h5py.File(tmp_path / f"snap.{k}.hdf5", "w") as file:
            file["gas/mass"] = np.ones(4)
            file.attrs["time"] = float(k)
            if rows is not None:
                file["stars/mass"] = np.arange(rows) + 10.0 * k
                file["stars/age"] = np.arange(rows) - 10.0 * k
    return tmp_path


def masses():
    return np.concatenate([np.arange(rows) + 10.0 * k for k, rows in enumerate(ROWS) if rows is not None])


WAYS = {
    "rows": ("stars/mass", None),
    "fields": (["stars/mass", "stars/age", "@time"], None),
    "rows of a group": ("mass", Rows(of="stars")),
    "rows of a group by name": ("mass", Rows(of=["stars"])),
    "sequences": ("mass", Sequences(1, of="stars")),
    "sequences of files": ("stars/mass", Sequences(1)),
    "looked up": (["stars/age", Field("stars/mass", lookup="stars/place")], None),
}


@pytest.mark.parametrize("way", WAYS)
def test_files_of_a_pattern_without_any_of_the_fields_are_left_out_with_a_warning(folder, way):
    fields, samples = WAYS[way]
    for k, rows in enumerate(ROWS):
        with h5py.File(folder / f"snap.{k}.hdf5", "a") as file:
            if rows is not None:
                file["stars/place"] = np.arange(rows)
    pattern = str(folder / "snap.*.hdf5")
    with pytest.warns(LeftOutWarning, match=r"2 files of the pattern .*snap\.1\.hdf5', '.*snap\.4\.hdf5'") as caught:
        dataset = H5Dataset(pattern, fields, samples=samples)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with pytest.warns(LeftOutWarning) as caught, H5StreamLoader(pattern, 4, fields=fields, samples=samples):
        assert [one.filename for one in caught] == [__file__]
    got = dataset[:]
    names = [fields] if isinstance(fields, str) else fields
    mass = got[0] if way == "fields" else got[1] if way == "looked up" else got
    assert np.array_equal(mass.numpy().reshape(-1), masses())
    if way == "fields":
        assert got[2].tolist() == [0.0] * 3 + [3.0] * 5
    assert "2 files or groups without a field left out" in repr(dataset)
    assert len(names) == len(dataset.layout.shape.keys)


@pytest.mark.parametrize("samples", [Rows(missing="skip"), Sequences(1, missing="skip")])
def test_files_that_lack_a_field_are_left_out_without_a_warning_if_asked(folder, samples):
    paths = [str(folder / f"snap.{k}.hdf5") for k in range(len(ROWS))]
    for source in (str(folder / "snap.*.hdf5"), paths):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dataset = H5Dataset(source, ["stars/mass", "stars/age"], samples=samples)
        assert np.array_equal(dataset[:][0].numpy().reshape(-1), masses())
        assert "2 files" in repr(dataset)


def test_files_that_lack_a_field_are_refused_if_they_are_listed_or_it_is_asked(folder):
    paths = [str(folder / f"snap.{k}.hdf5") for k in range(len(ROWS))]
    for samples, field in ((None, "stars/mass"), (Rows(of="stars"), "mass"), (Sequences(1, of="stars"), "mass")):
        with pytest.raises(FieldNotFoundError, match=r"1\.hdf5"):
            H5Dataset(paths, field, samples=samples)
    pattern = str(folder / "*.hdf5")
    for samples, field in (
        (Rows(missing="error"), "stars/mass"),
        (Rows(of="stars", missing="error"), "mass"),
        (Sequences(1, missing="error"), "stars/mass"),
    ):
        with pytest.raises(FieldNotFoundError, match=r"1\.hdf5"):
            H5Dataset(pattern, field, samples=samples)
    with pytest.raises(FieldNotFoundError, match=r"1\.hdf5"):
        H5Dataset(pattern, "mass", samples=Table(row=[0], group=["stars"], file=[1]))


def test_a_file_of_a_pattern_that_lacks_some_of_the_fields_is_refused(folder):
    with h5py.File(folder / "snap.4.hdf5", "a") as file:
        file["stars/mass"] = np.zeros(2)
    whole, inside = r"snap\.4\.hdf5' has no dataset 'stars/age'", r"snap\.4\.hdf5' has no dataset 'age' in 'stars'"
    for fields, samples, why in (
        (["stars/mass", "stars/age"], None, whole),
        (["mass", "age"], Rows(of="stars"), inside),
    ):
        with pytest.raises(FieldNotFoundError, match=why):
            H5Dataset(str(folder / "*.hdf5"), fields, samples=samples)
    skipped = H5Dataset(str(folder / "*.hdf5"), ["mass", "age"], samples=Rows(of="stars", missing="skip"))
    assert np.array_equal(skipped[:][0], masses())


def test_a_pattern_of_which_no_file_has_the_fields_is_refused(folder):
    for samples in (None, Rows(missing="skip")):
        with pytest.raises(FieldNotFoundError, match=r"each of 5 files or groups lacks a field"):
            H5Dataset(str(folder / "*.hdf5"), "discs/mass", samples=samples)


def test_groups_that_lack_a_field_are_left_out_if_asked(tmp_path):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        for k in range(30):
            if k % 7 != 3:
                file[f"g{k:02}/x"] = np.arange(6.0).reshape(2, 3) + 100 * k
            file[f"g{k:02}/y"] = np.arange(2) + k
    kept = [k for k in range(30) if k % 7 != 3]
    expected = np.concatenate([np.arange(6.0).reshape(2, 3) + 100 * k for k in kept])
    for samples in (Rows(of="g*", missing="skip"), Sequences(1, of="g*", missing="skip")):
        dataset = H5Dataset(path, ["x", "y"], samples=samples)
        x, y = dataset[:]
        assert np.array_equal(x.numpy().reshape(-1, 3), expected)
        assert y.reshape(-1).tolist() == [k + row for k in kept for row in range(2)]
        assert "4 files or groups" in repr(dataset)
        with H5StreamLoader(dataset, 8, shuffle=True, seed=0) as loader:
            assert sorted(v for batch in loader for v in batch[1].reshape(-1).tolist()) == sorted(
                y.reshape(-1).tolist()
            )
    names = ["g04", "none", "g03", "g01"]
    assert np.array_equal(H5Dataset(path, "x", samples=Rows(of=names, missing="skip"))[:], expected[[6, 7, 2, 3]])
    boxes = H5Dataset(path, "x", samples=Boxes((2, 3), at="grid", of="g*", missing="skip"))
    assert np.array_equal(boxes[:].numpy().reshape(-1, 3), expected)
    for samples in (Rows(of="g*"), Rows(of=names), Boxes((2, 3), at="grid", of="g*"), Sequences(1, of="g*")):
        with pytest.raises(FieldNotFoundError):
            H5Dataset(path, "x", samples=samples)


def test_other_words_for_what_lacks_a_field_are_refused():
    for make in (lambda word: Rows(of="*", missing=word), lambda word: Sequences(1, missing=word)):
        with pytest.raises(OptionError, match="is for Objects"):
            make("fill")
        with pytest.raises(OptionError, match="missing= is 'error' or 'skip', not 'none'"):
            make("none")
    with pytest.raises(OptionError, match="missing="):
        Boxes((2,), at="grid", missing="none")
