"""Hints of messages: each names what to write, and what it names works."""

import re

import h5py
import numpy as np
import pytest
import torch
from support.commands import invoke
from torch.utils.data import DataLoader

from h5stream import Bounds, Field, H5Dataset, H5StreamLoader, Ids, Objects, Rows, Sequences, Values, errors
from h5stream.base import hints


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.arange(40.0).reshape(10, 4), np.arange(10)
    return tmp_path / "a.h5"


@pytest.fixture
def demos(tmp_path):
    with h5py.File(tmp_path / "demos.h5", "w") as file:
        for k in range(6):
            file[f"data/demo_{k}/obs"], file[f"data/demo_{k}/actions"] = np.zeros((8, 3)), np.zeros((8, 2))
            file[f"data/demo_{k}/age"] = k
    return tmp_path / "demos.h5"


@pytest.mark.parametrize("fields", ["x,y", "x, y", ["x,y"]])
def test_names_with_a_comma_are_answered_with_a_list(path, fields):
    with pytest.raises(
        errors.FieldNotFoundError, match=r"Several fields are a list: fields=\['x', 'y'\]\. It has: x, y"
    ):
        H5Dataset(path, fields)
    assert len(H5Dataset(path, ["x", "y"])) == 10


def test_a_dataset_whose_name_has_a_comma_is_a_field(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x,y"] = np.arange(3)
    assert H5Dataset(tmp_path / "a.h5", "x,y")[:].tolist() == [0, 1, 2]


@pytest.mark.parametrize("samples", [Sequences(4, of="data/*"), Rows(of="data/*"), Objects("data/*")])
def test_names_in_groups_are_said_as_they_are_written(demos, samples):
    said = r"no dataset 'observations' in 'data/demo_0'\. Did you mean 'obs'\? It has: actions, age, obs\."
    with pytest.raises(errors.FieldNotFoundError, match=said):
        H5Dataset(demos, ["observations"], samples=samples)
    assert len(H5Dataset(demos, ["obs"], samples=samples))


def test_a_name_that_many_groups_nearly_have_is_named_with_what_says_how_they_are_read(demos):
    with pytest.raises(errors.FieldNotFoundError, match=r"Did you mean 'obs'\? 6 groups hold one.*samples="):
        H5Dataset(demos, ["observations"])


def test_a_single_value_of_a_group_is_taken_for_each_of_its_rows(demos):
    with pytest.raises(errors.UnsupportedFieldError, match=r"Field\('age', take='all'\) gives it to each row"):
        H5Dataset(demos, ["obs", "age"], samples=Rows(of="data/*"))
    ages = H5Dataset(demos, ["obs", Field("age", take="all")], samples=Rows(of="data/*"))[:][1]
    assert ages.tolist() == np.repeat(np.arange(6), 8).tolist()


def test_groups_are_named_by_a_pattern_that_is_in_the_file(demos, tmp_path):
    with pytest.raises(errors.FieldLengthError, match=r"samples=Rows\(of='data/demo_\*'\) takes the rows of groups"):
        H5Dataset(demos)
    assert len(H5Dataset(demos, "obs", samples=Rows(of="data/demo_*"))) == 48
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["X/data"], file["X/indices"], file["X/indptr"] = np.ones(6), np.arange(6) % 3, np.arange(0, 8, 2)
        file["X"].attrs["encoding-type"], file["X"].attrs["shape"] = "csr_matrix", [3, 3]
    with pytest.raises(errors.FieldLengthError, match=r"Field\('X', ragged='dense'\) is the rows") as error:
        H5Dataset(tmp_path / "b.h5")
    assert "Rows(of=" not in str(error.value)
    assert len(H5Dataset(tmp_path / "b.h5", Field("X", ragged="dense"))) == 3


def test_unlike_groups_are_proposed_nothing(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train/x"], file["meta/y"] = np.arange(3), np.arange(4)
    with pytest.raises(errors.FieldLengthError) as error:
        H5Dataset(tmp_path / "a.h5")
    assert "Rows(of=" not in str(error.value)


SPLITS = {
    "test_size": r"split\(0.8, 0.2\)",
    "train_size": r"split\(0.8, 0.2\)",
    "random_state": "write seed=",
    "shuffle": "always drawn at random",
    "groups": "write by=",
    "sead": "Did you mean 'seed'",
}


@pytest.mark.parametrize("name", SPLITS)
def test_arguments_of_other_splits_are_answered_with_what_to_write(path, name):
    with pytest.raises(errors.OptionError, match=f"split has no argument {name}=: .*{SPLITS[name]}"):
        H5Dataset(path).split(**{name: 0.2})


def test_a_loader_is_no_iterator_and_no_dataset(path):
    with H5StreamLoader(path, 4, fields="y") as loader:
        with pytest.raises(errors.OptionError, match=r"iterator = iter\(loader\)"):
            next(loader)
        with pytest.raises(errors.OptionError, match=r"in place of a DataLoader; loader\.dataset"):
            next(iter(DataLoader(loader)))
        assert [len(batch) for batch in loader] == [4, 4, 2]
        assert next(iter(DataLoader(loader.dataset, 4))).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", ["float32", "torch.float32", np.float32, np.dtype("f4"), "f4", torch.float32])
def test_a_dtype_is_torchs_or_its_name(path, dtype):
    if isinstance(dtype, str) and dtype == "f4":
        with pytest.raises(errors.OptionError, match=r"takes a torch dtype, not 'f4'\. Did you mean 'float32'\?"):
            H5Dataset(path, Field("x", dtype=dtype))
        return
    field = Field("x", dtype=dtype)
    for batch in (H5Dataset(path, field)[:], H5Dataset(path, "y").with_fields([field])[:][0]):
        assert (batch.dtype, batch.tolist()) == (torch.float32, np.arange(40.0).reshape(10, 4).tolist())
    with H5StreamLoader(path, 4, fields={"x": field}) as loader:
        assert {batch["x"].dtype for batch in loader} == {torch.float32}


def test_values_in_memory_have_a_dtype_by_name_as_well(path):
    dataset = H5Dataset(path, ["y", Values(np.arange(10), dtype="float32")])
    assert (dataset[:][1].dtype, dataset[:][1].tolist()) == (torch.float32, [*range(10)])


def test_a_dtype_is_written_on_the_command_line(path):
    assert "10 samples" in invoke("statistics", path, "--fields", "Field('x', dtype='float32')").output


def test_a_type_that_models_do_not_take_is_hinted_at_once(path, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(hints, "_logged", logged := set())
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["audio"], file["image"], file["y"] = np.zeros((4, 9), "i2"), np.zeros((4, 9), "u1"), np.arange(4.0)
        file["t"] = np.zeros((4, 9), "i2")
        file["t"].attrs["scale_factor"], file["t"].attrs["add_offset"] = 0.5, 2.0
        file["filled"] = np.zeros((4, 9), "i4")
        file["filled"].attrs["_FillValue"] = np.int32(-1)
    packed, cast = Field("t", missing="netcdf"), Field("t", missing="netcdf", dtype="float32")
    sources = [(path, ["x", "y"]), (path, Field("x", dtype="float32")), (tmp_path / "b.h5", ["audio", "image", "y"])]
    filled = Field("filled", missing="netcdf")
    for source, fields in (*sources, *((tmp_path / "b.h5", one) for one in (packed, cast, filled))):
        with H5StreamLoader(source, 4, fields=fields) as loader:
            list(loader)
            list(loader)
    told = sorted(text for text in logged if "layers of models" in text)
    assert [text.partition(",")[0] for text in told] == [
        "field 'audio' is int16",
        "field 'filled' is float64",
        "field 't' is float64",
        "field 'x' is float64",
    ]
    assert "by its fill value, and layers" in told[1]
    assert "by its scale_factor and add_offset, and layers" in told[2]
    assert "Field('t', missing=..., dtype='float32') casts" in told[2]
    assert "Field('x', dtype='float32') casts" in told[3]


def test_segments_of_which_most_give_nothing_are_hinted_at(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["trial"] = np.arange(100), np.repeat(np.arange(10), 10)
    for of, says in ((Ids("trial"), ""), (Bounds("trial"), "of .* segments give no sample")):
        monkeypatch.setattr(hints, "_logged", logged := set())
        assert len(H5Dataset(tmp_path / "a.h5", "x", samples=Sequences(4, of=of))) > 0
        assert bool(logged) == bool(says)
        assert all(re.search(says, text) for text in logged)
