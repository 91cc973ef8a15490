"""What users give in place of a path is taken where it can be, and else answered with what to do."""

import contextlib
import io
import os
import re

import h5py
import numpy as np
import pytest
import torch
from support.making import make_file, numbers, write_datasets
from support.sample_files import plain

from h5stream import ChunkBatchSampler, Field, H5Dataset, H5StreamLoader, repack, stage
from h5stream.errors import OptionError
from h5stream.staging import list_staged


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    held = {"x": np.arange(6), "y": np.arange(6) * 2.0, "g/x": np.arange(4), "g/z": np.arange(4) * 3.0}
    return write_datasets(tmp_path_factory.mktemp("given") / "a.h5", **held, gs=h5py.SoftLink("/g"))


X, Y, GX, GZ = list(range(6)), [0.0, 2, 4, 6, 8, 10], list(range(4)), [0.0, 3, 6, 9]
TAKEN = {
    "a file": (lambda f, p: (f, None), {"x": X, "y": Y}),
    "a dataset": (lambda f, p: (f["x"], None), X),
    "a group": (lambda f, p: (f["g"], None), {"x": GX, "z": GZ}),
    "a group behind a link": (lambda f, p: (f["gs"], "z"), GZ),
    "a name in a group": (lambda f, p: (f["g"], ["z", "x"]), [GZ, GX]),
    "a name from the root": (lambda f, p: (f["g"], "/y"), Y),
    "datasets as fields": (lambda f, p: (f, [f["x"], f["y"]]), [X, Y]),
    "a dataset in a dict": (lambda f, p: (p, {"a": f["y"], "b": "x"}), {"a": Y, "b": X}),
    "a dataset in a Field": (lambda f, p: (p, Field(f["y"], dtype=torch.float32)), Y),
    "a file among paths": (lambda f, p: ([f, p], "x"), X + X),
    "bytes": (lambda f, p: (os.fsencode(p), "x"), X),
}


@pytest.mark.parametrize("what", TAKEN)
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_open_h5py_objects_stand_for_their_names(path, what, mode):
    make, expected = TAKEN[what]
    with h5py.File(path, mode) as file:
        source, fields = make(file, path)
        assert plain(H5Dataset(source, fields)[:]) == expected
        assert plain(next(iter(H5StreamLoader(source, 100, fields=fields)))) == expected


def test_datasets_of_several_files_are_one_sequence(path, tmp_path):
    with h5py.File(path) as one, h5py.File(tmp_path / "b.h5", "w") as other:
        other["x"] = np.arange(6, 8)
        assert H5Dataset([one["x"], other["x"]])[:].tolist() == list(range(8))


def test_a_home_folder_is_found(path, monkeypatch):
    monkeypatch.setenv("HOME", os.path.dirname(path))
    assert H5Dataset("~/a.h5", "x")[:].tolist() == X
    assert H5Dataset("~/*.h5", "x")[:].tolist() == X


def test_a_file_opened_by_a_relative_name_is_found_after_the_folder_changed(path, tmp_path, monkeypatch):
    monkeypatch.chdir(os.path.dirname(path))
    with h5py.File("a.h5") as file:
        monkeypatch.chdir(tmp_path)
        assert H5Dataset(file["x"])[:].tolist() == X


REFUSED = {
    "an array": (lambda f: np.arange(3), r"not numpy.ndarray.*TensorDataset"),
    "a tensor": (lambda f: torch.arange(3), r"not torch.Tensor.*TensorDataset"),
    "a dict of arrays": (lambda f: {"x": np.arange(3)}, "not a dict"),
    "an address": (lambda f: "ftp://host/a.h5", r"'ftp://host/a.h5' is an address that h5stream does not read.*s3://"),
    "a scheme in capitals": (lambda f: "S3://bucket/a.h5", "Did you mean 's3://'"),
    "a bucket": (lambda f: "s3://bucket", r"is a bucket or a folder, .*'s3://bucket/a.h5', .* 's3://bucket/\*.h5'"),
    "a web server": (lambda f: "https://host/", "not an object; name one, such as 'https://host/a.h5'$"),
    "a file address": (lambda f: "file:///tmp/a.h5", "leave out 'file://'"),
    "a stream": (lambda f: io.BytesIO(b"abc"), "not an open stream"),
    "nothing": (lambda f: None, "a source is a path, a pattern or several of them, not None"),
    "datasets of one file": (lambda f: [f["x"], f["y"]], r"fields=\[...\]"),
    "a file in memory": (lambda f: h5py.File(io.BytesIO(), "w"), "not of a file on disk"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_taken_is_answered_with_what_to_do(path, what):
    make, message = REFUSED[what]
    with h5py.File(path) as file:
        given = make(file)
        with pytest.raises(OptionError, match=message):
            H5Dataset(given)
        with contextlib.suppress(AttributeError):
            given.close()


def test_a_closed_file_no_longer_says_its_name(path):
    with h5py.File(path) as file:
        x = file["x"]
    for given in (file, x):
        with pytest.raises(OptionError, match=r"is closed.*give the file's path"):
            H5Dataset(given)


def test_a_field_of_another_file_is_refused(path, tmp_path):
    with h5py.File(path) as file, h5py.File(tmp_path / "b.h5", "w") as other:
        other["x"] = np.arange(6)
        with pytest.raises(OptionError, match=re.escape("b.h5', which is not among the files that are opened")):
            H5Dataset(file, [file["y"], other["x"]])
        with pytest.raises(OptionError, match="a field's name is the path of a dataset, not <HDF5 group"):
            H5Dataset(file, [file["g"]])
        with pytest.raises(OptionError, match="leave out fields="):
            H5Dataset(file["x"], "y")


CHOSEN = {
    "slice": slice(1, None, 2),
    "mask": np.arange(6) % 2 == 1,
    "list of bool": [False, True] * 3,
    "tensor": torch.tensor([1, 3, 5]),
    "negative": [-1, 1, 3],
}


@pytest.mark.parametrize("what", CHOSEN)
def test_a_subset_takes_whatever_names_rows(path, what):
    assert H5Dataset(path, "x").subset(CHOSEN[what])[:].tolist() == [1, 3, 5]
    assert H5Dataset(path, "x", rows=CHOSEN[what])[:].tolist() == [1, 3, 5]
    twice = H5Dataset(path, "x", rows=slice(3, 6)).subset(slice(1, None))
    assert "2 rows of x" in repr(twice)
    assert [row for batch in H5StreamLoader(twice, 1) for row in batch.tolist()] == [4, 5]
    assert len(ChunkBatchSampler(H5Dataset(path, "x").subset(CHOSEN[what]), 2)) == 2


def test_staging_and_repacking_find_a_home_folder(path, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    repack(path, "~/b.h5")
    staged = stage("~/b.h5", to="~/fast")
    assert staged.paths == (tmp_path / "fast" / "b.h5",)
    with H5StreamLoader("~/b.h5", 6, fields="x", stage_to="~/fast") as loader:
        assert [batch.tolist() for batch in loader] == [X]
    assert len(list_staged("~/fast")) == 1


# --- which columns of a row, which is answered with the field where there are none -------------------------------


def test_only_the_chunks_that_hold_the_columns_are_read(tmp_path):
    path = make_file(tmp_path / "a.h5", data=numbers(40, 30), chunks=(10, 5), compression="gzip")
    with H5StreamLoader(path, 40, fields=Field("x", columns=[29, 6]), keep="never") as loader:
        list(loader)
        assert loader.stats().chunks == 8


@pytest.mark.parametrize(
    ("shape", "columns", "why"),
    [
        ((50, 30), [0, -30], "names a column twice"),
        ((50, 30), [-31], "columns=-31 is not there"),
        ((6, 5, 4, 3), (..., 1, ...), "'...' may stand once"),
        ((6, 5, 4, 3), (0, slice(2), 1, slice(1)), "names 4 axes, and rows have 3"),
    ],
)
def test_columns_that_are_not_there_or_named_twice_are_refused_with_the_field(tmp_path, shape, columns, why):
    path = make_file(tmp_path / "a.h5", data=numbers(*shape))
    with pytest.raises(OptionError, match=rf"a\.h5': field 'x': .*{why}"):
        H5Dataset(path, Field("x", columns=columns))


@pytest.mark.parametrize("columns", [(0,), (2, 0), (np.int64(1), 0)], ids=str)
def test_a_tuple_of_numbers_is_a_place_to_numpy_and_refused_with_both_readings(columns):
    numbers = ", ".join(map(str, columns))
    with pytest.raises(OptionError, match=rf"columns=\[{numbers}\] takes .* columns=\({numbers}, \.\.\.\)"):
        Field("x", columns=columns)


def test_columns_inside_a_member_are_refused_by_what_they_are(tmp_path):
    path = make_file(tmp_path / "a.h5", data=np.zeros(20, [("v", "f4", (3,)), ("n", "i4")]))
    with pytest.raises(OptionError, match="field 'x:v': columns= chooses among a dataset's axes, not inside a member"):
        H5Dataset(path, Field("x:v", columns=[0]))
    with pytest.raises(OptionError, match=r"field 'x:n': .*one number a row"):
        H5Dataset(path, Field("x:n", columns=[0]))


@pytest.mark.parametrize("made", [list, np.array, torch.tensor])
def test_a_mask_takes_columns_and_is_of_all_of_them(tmp_path, made):
    mask = made([True, False, True])
    values = np.arange(30.0).reshape(10, 3)
    path = make_file(tmp_path / "a.h5", data=values)
    assert np.array_equal(H5Dataset(path, Field("x", columns=mask))[:], values[:, [0, 2]])
    with pytest.raises(OptionError, match="a mask of 2 columns, and there are 3"):
        H5Dataset(path, Field("x", columns=mask[:2]))
