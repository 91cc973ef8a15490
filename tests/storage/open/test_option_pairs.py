"""Each option of a field beside each kind of field and of samples: the values that it asks for, or words."""

import h5py
import imagecodecs
import numpy as np
import pytest
from support.making import sparse_group, vlen

from h5stream import Bounds, Boxes, Crop, Field, H5Dataset, H5StreamError, Objects, Ragged, Rows, Sequences, Table, Take

COUNT = 6


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "a.h5"
    with h5py.File(path, "w") as file:
        sparse_group(file, "sparse", np.outer(np.arange(COUNT) + 1.0, [1, 0]))
        file["bounds"], file["flat"] = np.arange(COUNT + 1), np.arange(COUNT)
        file["plain"], file["one"], file.attrs["own"] = np.arange(COUNT), 7, [7, 8]
        file.create_dataset("values", **vlen("i4", [[k] for k in range(COUNT)]))
        images = [imagecodecs.png_encode(np.full((2, 2), k, "u1")) for k in range(COUNT)]
        file.create_dataset("images", **vlen("u1", [np.frombuffer(image, "u1") for image in images]))
        for k in range(COUNT):
            for name in ("x", "label"):
                file[f"objects/{k}/{name}"] = np.full(3, k)
            file[f"objects/{k}"].attrs["mark"] = k
    return path


KINDS = {
    "plain": ({}, lambda batch: first_of(batch)),
    "sparse": ({"ragged": "dense"}, lambda batch: (first_of(batch) - 1).astype(int)),
    "values": ({"ragged": "packed"}, lambda batch: batch.values.numpy()),
    "images": ({"decode": "png"}, lambda batch: first_of(batch)),
    "flat": ({"lookup": Bounds("bounds")}, lambda batch: batch.values.numpy()),
}
SAMPLES = {
    "rows": (None, list(range(COUNT))),
    "Sequences": (Sequences(1, stride=2), [0, 2, 4]),
    "several": (Sequences(2), None),
    "Table": (Table(row=[5, 0], other=[3, 2]), [5, 0]),
    "Table of several": (Table(row=[4, 0], other=[3, 2], length=2), None),
}
OPTIONS = {
    "nothing": ({}, lambda rows: rows),
    "steps": ({"take": [1]}, lambda rows: [row + 1 for row in rows]),
    "at": ({"take": Take(at="other")}, lambda rows: [3, 2]),
    "axis": ({"take": Take(axis=1)}, None),
    "scale": ({"take": Take(scale=0.5)}, None),
    "pad": ({"take": Take(pad=-1)}, None),
    "columns": ({"columns": [0]}, lambda rows: rows),  # of a sparse matrix
    "members": ({"columns": ["a"]}, None),
    "missing": ({"missing": 100}, lambda rows: rows),
    "crop": ({"ragged": Ragged(crop=Crop(1))}, lambda rows: rows),
    "length": ({"decode": ("png", "plain")}, None),
    "names": ({"lookup": ["a"]}, None),
}


def first_of(batch):
    return batch.reshape(len(batch), -1)[:, 0].numpy()


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_option_is_taken_or_refused_in_words(path, kind, samples, option):
    (made, read), (value, expected), (of, given) = KINDS[kind], OPTIONS[option], SAMPLES[samples]
    try:
        field = Field(kind, **{**made, **value})
        fields = {"kind": field} if option in ("steps", "at") else {"kind": field, "plain": "plain"}
        batch = H5Dataset(path, fields, samples=of)[:]
    except H5StreamError as error:
        is_one = kind in ("sparse", "values") and "several rows" in str(error)
        if option == "nothing" and not (is_one and samples in ("Sequences", "several", "Table of several")):
            raise
        return
    assert expected is not None
    if given is not None:
        assert read(batch["kind"]).tolist() == [k for k in expected(given) if k < COUNT]


@pytest.mark.parametrize(
    ("samples", "beside", "name"),
    [
        (Objects("objects/*"), "label", "x"),
        (Objects("objects/*"), "label", "@mark"),
        (Rows(of=["objects/0"]), "x", "@mark"),
        (None, "plain", "@own"),
        (Sequences(2), "plain", "@own"),
        (Boxes((1,), at="grid"), "plain", "@own"),
    ],
    ids=str,
)
@pytest.mark.parametrize("option", ["steps", "at", "axis", "scale", "pad", "members"])
def test_whole_objects_and_what_is_there_once_take_no_places(path, samples, beside, name, option):
    with pytest.raises(H5StreamError):
        H5Dataset(path, {"beside": beside, "x": Field(name, **OPTIONS[option][0])}, samples=samples)


@pytest.mark.parametrize("samples", [None, Sequences(2), Boxes((1,), at="grid")], ids=str)
def test_an_attribute_takes_no_columns(path, samples):
    with pytest.raises(H5StreamError):
        H5Dataset(path, {"x": "plain", "once": Field("@own", columns=[0])}, samples=samples)
