"""`Field(mean=, std=, factor=, nan=)`: a batch is what NumPy makes of the stored numbers, however it is asked for."""

from __future__ import annotations

import io

import h5py
import imagecodecs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch.utils.data import DataLoader

from h5stream import Boxes, Field, H5Dataset, H5StreamLoader, Lengths, Objects, Sequences
from h5stream.engine.changes import Change
from h5stream.errors import FieldLengthError, OptionError
from h5stream.samples.normalising import normalisation


@given(
    values=arrays.arrays(
        st.sampled_from(["f4", "f8", "i2", "i4", "i8", "u1"]),
        (7, 3),
        elements=st.integers(0, 100),
    ),
    mean=st.floats(-50, 50) | st.lists(st.floats(-50, 50), min_size=3, max_size=3),
    std=st.floats(0.1, 50),
    factor=st.none() | st.just(1 / 255),
)
def test_numbers_become_what_numpy_makes_of_them(values, mean, std, factor):
    change = Change(torch.float32, normalisation("x", mean, std, factor, None))
    expected = ((values.astype("f8") * (1 if factor is None else factor)) - np.array(mean)) / std
    found = change.on_host(torch.from_numpy(values.copy()))
    assert found.dtype == torch.float32
    assert np.allclose(found.numpy(), expected, rtol=1e-5, atol=1e-4)


def test_large_offsets_are_taken_away_before_they_cost_digits():
    values = np.array([1e8 + 0.25, 1e8 + 0.5])
    found = Change(torch.float32, normalisation("x", 1e8, 0.25, None, None)).on_host(torch.from_numpy(values))
    assert found.tolist() == [1, 2]


def test_nan_is_replaced_last_and_infinity_stays():
    values = torch.tensor([np.nan, np.inf, -np.inf, 3.0])
    found = Change(torch.float32, normalisation("x", 1, 2, None, 0)).on_host(values)
    assert found.tolist() == [0, np.inf, -np.inf, 1]


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_dataset("x", data=rng.normal(5, 3, (300, 4)), chunks=(32, 4), compression="gzip")
        f["flat"] = rng.normal(size=(300, 4)).astype("f4")
        f["image"] = rng.integers(0, 256, (300, 3, 5, 6), dtype="u1")
        f["y"], f["lengths"] = np.arange(300), np.arange(300) % 4
        f["hits"] = rng.normal(size=(450, 2)).astype("f4")
        f["text"], f["wave"] = np.array([b"ab"] * 300), np.zeros(300, "c8")
        f["all"] = np.ones(300, [("a", "f4"), ("b", "f4")])
        vlen = f.create_dataset("vlen", 300, h5py.vlen_dtype("f4"))
        for k in range(300):
            vlen[k] = np.full(k % 3, k)
    return str(tmp_path / "a.h5")


MEAN, STD = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 0.5, 4.0]


@pytest.mark.parametrize("name", ["x", "flat"])
@pytest.mark.parametrize("form", [{}, {"columns": [2, 0]}, {"dtype": torch.float64}, {"dtype": torch.float16}])
def test_samples_slices_lists_and_batches_agree(path, name, form):
    take = [2, 0] if "columns" in form else [0, 1, 2, 3]
    mean, std = np.array(MEAN)[take], np.array(STD)[take]
    dataset = H5Dataset(path, [Field(name, mean=mean, std=std, **form), "y"])
    with h5py.File(path) as f:
        stored = f[name][()][:, take]
    expected = (stored.astype("f8") - mean) / std
    every = torch.cat([x for x, _ in H5StreamLoader(dataset, 64)])
    assert every.dtype == form.get("dtype", torch.float32)
    assert np.allclose(every.numpy(), expected, rtol=1e-2 if form.get("dtype") == torch.float16 else 1e-5, atol=1e-3)
    for again in (dataset[:][0], dataset[list(range(300))][0], torch.stack([dataset[k][0] for k in range(300)])):
        assert torch.equal(again, every)
    stock = torch.cat([x for x, _ in DataLoader(dataset, 64)])
    assert torch.equal(stock, every)
    one = H5Dataset(path, Field(name, mean=mean, std=std, **form))
    assert torch.equal(one[3:9], every[3:9])
    assert torch.equal(one[5], every[5])
    assert torch.equal(one[5], every[5])  # of a block that is kept


@pytest.mark.parametrize(
    "arguments",
    [{"shuffle": True}, {"num_workers": 0}, {"device": "cpu"}],
    ids=str,
)
def test_every_route_gives_the_same(path, arguments):
    field = Field("image", factor=1 / 255, mean=np.reshape([0.4, 0.5, 0.6], (3, 1, 1)), std=0.25)
    dataset = H5Dataset(path, {"image": field, "y": "y"})
    expected = dataset[:]["image"]
    with h5py.File(path) as f:
        pixels = torch.from_numpy(f["image"][()]).float() / 255
    mean = torch.tensor([0.4, 0.5, 0.6]).reshape(3, 1, 1)
    assert torch.allclose(expected, (pixels - mean) / 0.25, atol=1e-5)
    with H5StreamLoader(dataset, 32, **arguments) as loader:
        batches = list(loader)
    y = torch.cat([batch["y"] for batch in batches])
    assert torch.equal(torch.cat([batch["image"] for batch in batches]), expected[y])


@pytest.mark.parametrize("form", ["packed", "pad", "list", "nested"])
def test_ragged_rows_are_normalised_and_their_padding_is_not(path, form):
    given = {"pad_value": -7.5} if form == "pad" else {}
    field = Field("hits", rows=Lengths("lengths"), ragged=form, mean=[1, 2], std=[2, 4], **given)
    with h5py.File(path) as f:
        hits = f["hits"][()]
    expected = torch.from_numpy((hits - [1, 2]) / [2, 4]).float()
    dataset = H5Dataset(path, {"h": field})
    batches = [batch["h"] for batch in H5StreamLoader(dataset, 50)]
    if form == "pad":
        for batch in batches:
            outside = torch.arange(batch.values.shape[1]) >= batch.lengths[:, None]
            assert (batch.values[outside] == -7.5).all()
        found = torch.cat([batch.sample(k) for batch in batches for k in range(len(batch.lengths))])
    else:
        found = torch.cat(
            [torch.cat(b) if form == "list" else b.values() if form == "nested" else b.values for b in batches]
        )
    assert torch.allclose(found, expected)
    assert torch.equal(torch.cat([dataset[k]["h"] for k in range(300)]), found)


@pytest.mark.parametrize(
    ("samples", "fields"),
    [
        (Sequences(5), Field("x", mean=MEAN, std=STD)),
        (Boxes((2, 2, 3, 3), at="grid", stride=(2, 2, 3, 3)), Field("image", mean=100, std=50)),
    ],
)
def test_samples_that_are_no_rows_are_normalised_as_their_batches(path, samples, fields):
    plain, ours = (H5Dataset(path, one, samples=samples) for one in (fields.name, fields))
    mean, std = fields.normalise.arrays
    assert np.allclose(ours[:].numpy(), (plain[:].numpy() - mean) / std, atol=1e-5)
    assert torch.equal(ours[7], ours[:][7])


def test_objects_compounds_lists_and_images_are_normalised(tmp_path, path):
    with h5py.File(tmp_path / "o.h5", "w") as f:
        for k in range(9):
            f[f"data/{k}"] = np.full((2, 3), k)
            f[f"data/{k}"].attrs["level"] = k
        images = f.create_dataset("jpeg", 9, h5py.vlen_dtype("u1"))
        for k in range(9):
            encoded = imagecodecs.png_encode(np.full((4 + k % 2, 5, 3), 51, "u1"))
            images[k] = np.frombuffer(encoded, "u1")
    source = tmp_path / "o.h5"
    objects = H5Dataset(
        source, {"x": Field(".", mean=1, std=2), "l": Field("@level", factor=2)}, samples=Objects("data/*")
    )
    assert objects[:]["x"][:, 0, 0].tolist() == [(k - 1) / 2 for k in range(9)]
    assert objects[4]["l"] == 8
    pictures = H5Dataset(source, Field("jpeg", decode="png", factor=1 / 255, mean=[0.1, 0.2, 0.3]))
    assert pictures[1].shape == (5, 5, 3)
    assert torch.allclose(pictures[:][0][0, 0], torch.tensor([0.1, 0.0, -0.1]), atol=1e-6)
    both = H5Dataset(path, Field("all", factor=3))[:]
    assert both["a"].tolist() == both["b"].tolist() == [3] * 300
    lists = H5Dataset(path, Field("vlen", ragged="list", mean=1))
    assert lists[2].tolist() == [1, 1]


def test_what_statistics_found_brings_a_field_to_mean_0_and_deviation_1(path):
    known = H5Dataset(path, ["x", "image"]).statistics(axis={"x": -1, "image": 0})
    fields = [Field("x", **known["x"].normalise()), Field("image", **known["image"].normalise())]
    again = H5Dataset(path, fields)
    x, image = again[:]
    assert np.allclose(x.double().mean(0), 0, atol=1e-6)
    assert np.allclose(x.double().std(0, correction=0), 1, atol=1e-6)
    assert np.allclose(image.double().std((0, 2, 3), correction=0), 1, atol=1e-5)
    # Of normalised fields they are those of what the file has.
    assert again.statistics(axis={"x": -1})["x"].mean.tolist() == known["x"].mean.tolist()
    saved = io.BytesIO()
    torch.save(H5StreamLoader(again, 32), saved)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"name": "x", "std": 0}, "above 0"),
        ({"name": "x", "std": [1, 1, 0, 1]}, "above 0"),
        ({"name": "x", "std": np.nan}, "finite"),
        ({"name": "x", "mean": [1, 2, 3]}, "does not fit a sample of \\(4,\\)"),
        ({"name": "image", "mean": [1, 2, 3]}, "numpy.reshape\\(mean, \\(3, 1, 1\\)\\) does"),
        ({"name": "image", "mean": np.zeros((2, 3, 5, 6))}, "does not fit"),
        ({"name": "x", "mean": "a"}, "number or an array"),
        ({"name": "x", "mean": "1.5"}, "number or an array"),
        ({"name": "x", "std": b"1"}, "number or an array"),
        ({"name": "x", "std": []}, "number or an array"),
        ({"name": "x", "factor": 0}, "other than 0"),
        ({"name": "x", "factor": [1]}, None),
        ({"name": "x", "nan": "0a"}, "takes a number"),
        ({"name": "x", "nan": "0"}, "takes a number"),
        ({"name": "text", "mean": 1}, "real numbers"),
        ({"name": "wave", "mean": 1}, "real numbers"),
        ({"name": "vlen", "mean": 1}, "ragged='list'"),
        ({"name": "x", "mean": 1, "dtype": torch.int32}, "floating point"),
    ],
)
def test_what_makes_no_sense_is_refused(path, given, rule):
    if rule is None:
        with pytest.raises(OptionError, match="takes a number"):
            Field(**given | {"factor": [1, 2]})
        return
    with pytest.raises(OptionError, match=rule):
        H5Dataset(path, Field(**given))


def test_datasets_that_are_joined_are_normalised_alike(path):
    with pytest.raises(FieldLengthError, match="normalised otherwise"):
        H5Dataset([H5Dataset(path, Field("x", mean=1)), H5Dataset(path, Field("x", mean=2))])
    both = H5Dataset([H5Dataset(path, Field("x", mean=1)), H5Dataset(path, Field("x", mean=1))])
    assert torch.equal(both[0], both[300])
