"""What users who had never seen the project stumbled over: mistakes that they made, and what they were told."""

import h5py
import numpy as np
import pytest
import torch

from h5stream import Boxes, Ends, Field, H5Dataset, Rows, Sequences, Table, Take, Values, errors


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k, rows in enumerate((6, 9, 4)):
            file[f"data/demo_{k}/done"] = np.arange(rows, dtype="u1")
            file[f"data/demo_{k}/x"] = np.arange(rows, dtype="f4")
            file[f"eeg/{k}/signal"] = np.zeros((3, 20 + k))
            file[f"events/{k}"] = np.zeros((rows, 2))
        file["mask/train"] = np.array([b"data/demo_2", b"data/demo_0"])
        file["odd/a/x"], file["odd/b/y"] = np.zeros(3), np.zeros(3)
        file["terminals"], file["raw"] = np.zeros(10, bool), np.zeros((8, 8), "u1")
        file["u"] = np.arange(24.0).reshape(2, 4, 3)
    return tmp_path / "a.h5"


@pytest.mark.parametrize("pad", [-1, 300, 0.5, float("nan")])
@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_a_number_that_a_field_cannot_hold_is_no_padding(path, pad, dtype):
    with pytest.raises(errors.OptionError, match=r"pad=.* does not fit into field 'done', which is stored as uint8"):
        H5Dataset(path, Field("done", dtype=dtype), samples=Sequences(4, of="data/*", pad=pad))
    with pytest.raises(errors.OptionError, match="does not fit into field 'raw'"):
        H5Dataset(path, "raw", samples=Boxes((2, 2), at="grid", halo=(1, 1), pad=pad))
    with pytest.raises(errors.OptionError, match="does not fit into field 'raw'"):
        H5Dataset(path, "raw", samples=Table(row=[7], length=2, pad=pad))


def test_each_field_may_be_padded_with_its_own(path):
    fields = {"raw": "raw", "label": Field("raw", take=Take(pad=9))}
    boxes = H5Dataset(path, fields, samples=Boxes((2, 2), at="grid", halo=(1, 1), pad="reflect"))
    assert boxes[0]["label"][0].tolist() == [9] * 4
    assert boxes[0]["raw"][0].tolist() == [0] * 4
    with pytest.raises(errors.OptionError, match="nothing is padded"):
        H5Dataset(path, Field("x", take=Take(pad=3)), samples=Sequences(3, of="data/*"))
    with pytest.raises(errors.OptionError, match="pad= is 'edge', 'zeros' or a number"):
        Field("x", take=Take(pad="mirror"))


@pytest.mark.parametrize("kind", [lambda of: Sequences(2, of=of), lambda of: Rows(of=of)])
def test_names_come_as_arrays_too(path, kind):
    with h5py.File(path) as file:
        names = file["mask/train"][:]
    expected = H5Dataset(path, "x", samples=kind(["data/demo_2", "data/demo_0"]))[:].tolist()
    for of in (names, names.astype("U"), tuple(names)):
        assert H5Dataset(path, "x", samples=kind(of))[:].tolist() == expected
    with pytest.raises(errors.OptionError, match="not 3"):
        kind(3)
    with pytest.raises(errors.OptionError, match="names 'data/demo_0' twice"):
        kind(["data/demo_0", "data/demo_0"])


def test_values_of_unlike_length_are_a_list(path):
    dataset = H5Dataset(path, ["terminals", Values([[1], [1, 2]] * 5)])
    assert dataset[1][1] == [1, 2]


@pytest.mark.parametrize(
    ("fields", "samples", "says"),
    [
        ("x", lambda: Rows(of="events/*"), r"It matches datasets, such as 'events/0': each of these is the field '\.'"),
        (".", lambda: Rows(of="data/*"), "It matches groups, such as 'data/demo_0'"),
        ("x", lambda: Sequences(2, of="terminals"), r"It is a dataset; .*of=Ends\('terminals'\)"),
        ("signal", lambda: Sequences(5, of="eeg/*"), r"in group 'eeg/1' of .* but .* in group 'eeg/0' .* along axis 1"),
        ("x", lambda: Rows(of="odd/*"), r"Each group that of='odd/\*' matches needs the field; a narrower pattern"),
        ("x", lambda: Rows(of=Ends("terminals")), "of= names groups"),
        ("x", lambda: Rows(of="rows"), "of='rows' is for another axis"),
        ("raw", lambda: Boxes((2, 2), at="grid", of=Ends("terminals")), "of= names groups that hold volumes"),
        ("x", lambda: Table(group=["data/demo_7"], row=[0]), r"samples=Table\(group=\[...\]\) names.*Did you mean"),
        ("raw", lambda: Table(row=[1], start=[2]), "says where a sample begins along axis=, and there is none"),
        ("raw", lambda: Table(row=[-1], length=3, pad="zeros"), "steps= may lead out of it, with pad="),
        ("raw", lambda: Table(axis=1, row=[0], start=[9], length=3), "steps= may lead out of it, with pad="),
    ],
)
def test_mistakes_are_told_with_the_way_out(path, fields, samples, says):
    with pytest.raises(errors.H5StreamError, match=says):
        H5Dataset(path, fields, samples=samples())


def test_columns_of_an_index_that_nothing_names_are_left_alone(path):
    index = {"row": [0, 5], "magnitude": [0.5, float("nan")], "agency": ["a", None], "group": ["data/demo_1"] * 2}
    assert H5Dataset(path, "x", samples=Table(index))[:].tolist() == [0, 5]


def test_an_answer_that_is_none_is_told(path):
    dataset = H5Dataset(path, ["raw"], samples=Boxes((2, 2), per_epoch=3, accept=lambda raw: None, accept_on="raw"))
    with pytest.raises(errors.OptionError, match="answers True or False for a box: it returned None"):
        dataset[0]
    dataset = H5Dataset(path, ["raw"], samples=Boxes((2, 2), per_epoch=3, accept=lambda raw: raw > 0, accept_on="raw"))
    with pytest.raises(errors.OptionError, match="answers True or False for a box: Boolean value of Tensor"):
        dataset[0]
