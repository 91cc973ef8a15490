"""Attributes that hold arrays of any length: ragged fields of objects, groups and files."""

import itertools

import h5py
import numpy as np
import pytest
import torch

from h5stream import (
    Crop,
    Field,
    H5Dataset,
    H5StreamLoader,
    Objects,
    Ragged,
    Rows,
    SampleNumber,
    Sequences,
    errors,
)

COUNT = 12
VALUES = {
    "picks": [np.arange(k % 4) * 10.0 if k % 4 else [] for k in range(COUNT)],
    "boxes": [np.arange(k % 3 * 4).reshape(k % 3, 4).astype("f4") for k in range(COUNT)],
    "big": [np.arange(k % 3 + 1).astype(">i4") for k in range(COUNT)],
    "single": [5.0 + k if k % 2 else np.arange(k % 5) * 1.0 for k in range(COUNT)],
    "empty": [h5py.Empty("i2") if k % 2 else np.arange(2, dtype="i2") for k in range(COUNT)],
}
WORDS = [[f"w{j}" for j in range(k % 3 + 1)] for k in range(COUNT)]
SHAPES = [np.full((k % 3 + 1, k % 2 + 1), k, "i2") for k in range(COUNT)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Write a file of groups and datasets with attributes, and a file for each of these."""
    folder = tmp_path_factory.mktemp("attributes")

    def put(attributes, k):
        for name, values in VALUES.items():
            attributes[name] = values[k]
        attributes["words"], attributes["shapes"] = WORDS[k], SHAPES[k]

    with h5py.File(folder / "all.h5", "w") as file:
        for k in range(COUNT):
            file[f"g/{k:02}/x"] = np.arange(2.0) + k
            file[f"d/{k:02}"] = np.full(3, k)
            put(file[f"g/{k:02}"].attrs, k)
            put(file[f"d/{k:02}"].attrs, k)
    for k in range(COUNT):
        with h5py.File(folder / f"{k:02}.h5", "w") as file:
            file["x"] = np.arange(2.0) + k
            put(file.attrs, k)
    return folder / "all.h5", sorted(folder.glob("[0-9]*.h5"))


SAMPLES = {
    "groups": (0, "x", Objects("g/*"), 1),
    "datasets": (0, ".", Objects("d/*"), 1),
    "files": (1, "x", Objects("files"), 1),
    "rows of groups": (0, "x", Rows(of="g/*"), 2),
    "rows of datasets": (0, ".", Rows(of="d/*"), 3),
    "rows of files": (1, "x", None, 2),
    "sequences of groups": (0, "x", Sequences(2, of="g/*"), 1),
}


def opened(paths, kind, **fields):
    which, x, samples, each = SAMPLES[kind]
    return H5Dataset(paths[which], {"x": x, "n": SampleNumber(), **fields}, samples=samples), each


FORMS = ("list", "pad", "packed", "nested", "arrays")


@pytest.mark.parametrize("kind", SAMPLES)
def test_attributes_of_any_length_come_in_each_ragged_form(paths, kind):
    every = [(form, name) for form in FORMS for name in VALUES]
    fields = {f"{form} {name}": Field(f"@{name}", ragged=form) for form, name in every}
    dataset, each = opened(paths, kind, **fields)
    assert len(dataset) == COUNT * each
    with H5StreamLoader(dataset, 5, shuffle=True, seed=2) as loader:
        batches = [*loader]
    for batch in batches:
        for (form, name), place in itertools.product(every, range(len(batch["n"]))):
            value, values = VALUES[name][int(batch["n"][place]) // each], batch[f"{form} {name}"]
            expected = [] if isinstance(value, h5py.Empty) else np.atleast_1d(value).tolist()
            one = values.sample(place) if form in ("pad", "packed") else values[place]
            assert one.tolist() == expected, (form, name, place)
    sample = dataset[each]
    assert all(
        sample[f"{form} {name}"].tolist() == np.atleast_1d(VALUES[name][1]).tolist()
        for form in FORMS
        for name in ("picks", "boxes", "big", "single")
    )
    kinds = {"picks": torch.float64, "boxes": torch.float32, "big": torch.int32, "empty": torch.int16}
    assert {name: sample[f"pad {name}"].dtype for name in kinds} == kinds


@pytest.mark.parametrize("kind", SAMPLES)
def test_texts_are_lists_and_unlike_shapes_are_arrays(paths, kind):
    fields = {"w": Field("@words", ragged="list"), "s": Field("@shapes", ragged="arrays")}
    dataset, each = opened(paths, kind, **fields)
    assert dataset[:]["w"] == [WORDS[k // each] for k in range(len(dataset))]
    assert [one.tolist() for one in dataset[:]["s"]] == [SHAPES[k // each].tolist() for k in range(len(dataset))]
    with pytest.raises(errors.OptionError, match=r"'@words' is of texts.*ragged='list'"):
        opened(paths, kind, w=Field("@words", ragged="pad"))
    with pytest.raises(errors.FieldLengthError, match=r"int16 \(2,\).*ragged='arrays'"):
        opened(paths, kind, s=Field("@shapes", ragged="packed"))


@pytest.mark.parametrize("name", ["@picks", "@boxes", "@shapes"])
@pytest.mark.parametrize("kind", SAMPLES)
def test_the_message_about_unlike_lengths_names_ragged(paths, kind, name):
    with pytest.raises(errors.FieldLengthError, match=r"ragged='pad'"):
        opened(paths, kind, v=name)


def test_padding_crops_casts_and_normalization_apply_to_attributes(paths):
    form = Ragged("pad", crop=Crop(2, at="start"), pad_value=-1)
    dataset, _ = opened(paths, "groups", v=Field("@picks", ragged=form, dtype=torch.float32))
    values, lengths = dataset[:4]["v"]
    assert values.dtype == torch.float32
    assert values.tolist() == [[-1, -1], [0, -1], [0, 10], [0, 10]]
    assert lengths.tolist() == [0, 1, 2, 2]
    normalized, _ = opened(paths, "groups", v=Field("@picks", ragged="pad", normalize={"mean": 10, "std": 2}))
    assert normalized[1:4]["v"].values.tolist() == [[-5, 0, 0], [-5, 0, 0], [-5, 0, 5]]
    assert normalized.statistics()["v"].count == sum(len(one) for one in VALUES["picks"])
    joined = H5Dataset([dataset, dataset])
    assert joined[COUNT + 2]["v"].tolist() == [0, 10]


@pytest.mark.parametrize(
    "field",
    [
        Field("@picks", ragged=Ragged("pad", crop=Crop(2))),
        Field("@picks", ragged="dense"),
        Field("@big", ragged=Ragged("pad", pad_value=0.5)),
        Field("@picks", ragged="pad", columns=[0]),
        Field("@none", ragged="pad"),
    ],
    ids=repr,
)
def test_what_does_not_go_with_ragged_attributes_is_refused(paths, field):
    with pytest.raises(errors.H5StreamError):
        opened(paths, "groups", v=field)


def test_the_catalogue_has_attributes_of_any_length(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("H5STREAM_CATALOGUE", raising=False)
    monkeypatch.setattr("h5stream.storage.file.groups.MANY", 10)
    monkeypatch.setattr("h5stream.storage.file.catalogue._SETTLED_NS", 0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(30):
            file[f"d/{k:02}"] = np.arange(3)
            file[f"d/{k:02}"].attrs["v"] = np.arange(k % 4 * 2.0).reshape(-1, 2)
    fields = {"x": ".", "v": Field("@v", ragged="list")}
    for _ in range(2):
        dataset = H5Dataset(tmp_path / "a.h5", fields, samples=Objects("d/*"))
        assert [one.tolist() for one in dataset[:]["v"]] == [
            np.arange(k % 4 * 2.0).reshape(-1, 2).tolist() for k in range(30)
        ]
    assert len([*(tmp_path / "cache").rglob("*.zip")]) == 1
