"""`Field(normalize=)`: a batch is what NumPy makes of the stored numbers, however it is asked for."""

import io

import h5py
import imagecodecs
import numpy as np
import pytest
import torch
from support.making import vlen

from h5stream import Field, H5Dataset, H5StreamLoader, Objects
from h5stream.engine.changes import Change
from h5stream.errors import FieldLengthError, OptionError
from h5stream.samples.ragged import normalization


def test_large_offsets_are_taken_away_before_they_cost_digits():
    values = np.array([1e8 + 0.25, 1e8 + 0.5])
    found = Change(torch.float32, normalization("x", {"mean": 1e8, "std": 0.25})).on_host(torch.from_numpy(values))
    assert found.tolist() == [1, 2]


def test_nan_is_replaced_last_and_infinity_stays():
    values = torch.tensor([np.nan, np.inf, -np.inf, 3.0])
    found = Change(torch.float32, normalization("x", {"mean": 1, "std": 2, "nan": 0})).on_host(values)
    assert found.tolist() == [0, np.inf, -np.inf, 1]


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_dataset("x", data=rng.normal(5, 3, (300, 4)), chunks=(32, 4), compression="gzip")
        f["image"] = rng.integers(0, 256, (300, 3, 5, 6), dtype="u1")
        f["text"], f["wave"] = np.array([b"ab"] * 300), np.zeros(300, "c8")
        f["all"] = np.ones(300, [("a", "f4"), ("b", "f4")])
        f.create_dataset("vlen", **vlen("f4", [np.full(k % 3, k) for k in range(300)]))
    return str(tmp_path / "a.h5")


def test_objects_compounds_lists_and_images_are_normalized(tmp_path, path):
    with h5py.File(tmp_path / "o.h5", "w") as f:
        for k in range(9):
            f[f"data/{k}"] = np.full((2, 3), k)
            f[f"data/{k}"].attrs["level"] = k
        images = [imagecodecs.png_encode(np.full((4 + k % 2, 5, 3), 51, "u1")) for k in range(9)]
        f.create_dataset("jpeg", **vlen("u1", [np.frombuffer(image, "u1") for image in images]))
    source = tmp_path / "o.h5"
    objects = H5Dataset(
        source,
        {"x": Field(".", normalize={"mean": 1, "std": 2}), "l": Field("@level", normalize={"factor": 2})},
        samples=Objects("data/*"),
    )
    assert objects[:]["x"][:, 0, 0].tolist() == [(k - 1) / 2 for k in range(9)]
    assert objects[4]["l"] == 8
    pictures = H5Dataset(source, Field("jpeg", decode="png", normalize={"mean": [0.1, 0.2, 0.3], "factor": 1 / 255}))
    assert pictures[1].shape == (5, 5, 3)
    assert torch.allclose(pictures[:][0][0, 0], torch.tensor([0.1, 0.0, -0.1]), atol=1e-6)
    both = H5Dataset(path, Field("all", normalize={"factor": 3}))[:]
    assert both["a"].tolist() == both["b"].tolist() == [3] * 300
    lists = H5Dataset(path, Field("vlen", ragged="list", normalize={"mean": 1}))
    assert lists[2].tolist() == [1, 1]


def test_what_statistics_found_brings_a_field_to_mean_0_and_deviation_1(path):
    known = H5Dataset(path, ["x", "image"]).statistics(axis={"x": -1, "image": 0})
    fields = [Field("x", normalize=known["x"].normalize()), Field("image", normalize=known["image"].normalize())]
    again = H5Dataset(path, fields)
    x, image = again[:]
    assert np.allclose(x.double().mean(0), 0, atol=1e-6)
    assert np.allclose(x.double().std(0, correction=0), 1, atol=1e-6)
    assert np.allclose(image.double().std((0, 2, 3), correction=0), 1, atol=1e-5)
    # Of normalized fields they are those of what the file has.
    assert again.statistics(axis={"x": -1})["x"].mean.tolist() == known["x"].mean.tolist()
    saved = io.BytesIO()
    torch.save(H5StreamLoader(again, 32), saved)


@pytest.mark.parametrize(
    ("name", "given", "rule"),
    [
        ("x", {"std": 0}, "'std' of normalize= is above 0 everywhere: 1 leaves .*, not 0"),
        ("x", {"mean": 1 + 1j}, "'mean' of normalize= takes a real number or an array"),
        ("x", {"std": [2j]}, "'std' of normalize= takes a real number or an array"),
        ("x", {"std": np.nan}, "finite"),
        ("x", {"mean": [1, 2, 3]}, "does not fit a sample of \\(4,\\)"),
        ("image", {"mean": [1, 2, 3]}, "numpy.reshape\\(mean, \\(3, 1, 1\\)\\) does"),
        ("image", {"mean": np.zeros((2, 3, 5, 6))}, "does not fit"),
        ("x", {"mean": "1.5"}, "number or an array"),
        ("x", {"factor": 0}, "'factor' of normalize= is other than 0, not 0"),
        ("x", {"nan": "0"}, "takes a real number, not '0'"),
        ("text", {"mean": 1}, "is of texts, which come in lists; leave normalize= out"),
        ("wave", {"mean": 1}, "real numbers, and these are complex"),
        ("vlen", {"mean": 1}, "ragged='list'"),
        ("x", {"mean": 1}, "floating point"),
    ],
)
def test_what_makes_no_sense_is_refused(path, name, given, rule):
    with pytest.raises(OptionError, match=rule):
        H5Dataset(path, Field(name, normalize=given, dtype=torch.int32 if rule == "floating point" else None))


def test_datasets_that_are_joined_are_normalized_alike(path):
    with pytest.raises(FieldLengthError, match="normalized otherwise"):
        H5Dataset(
            [H5Dataset(path, Field("x", normalize={"mean": 1})), H5Dataset(path, Field("x", normalize={"mean": 2}))]
        )
    both = H5Dataset(
        [H5Dataset(path, Field("x", normalize={"mean": 1})), H5Dataset(path, Field("x", normalize={"mean": 1}))]
    )
    assert torch.equal(both[0], both[300])
