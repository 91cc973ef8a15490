"""Fields that are looked up, and fields of other files: beside NumPy's own indexing, through dataset and loader."""

from itertools import pairwise

import h5py
import numpy as np
import pytest

from h5stream import Field, H5Dataset, Lengths, Sequences, errors

ROWS, FEATURES = 300, 50


@pytest.fixture(params=[{}, {"chunks": (4, 30), "compression": "gzip"}], ids=["contiguous", "gzip"])
def data(request, tmp_path):
    """Questions that name images, in one file; what is known of the images in another; answers in a third."""
    rng = np.random.default_rng(0)
    features, named = rng.random((FEATURES, 30), "f4"), rng.integers(0, FEATURES, ROWS)
    with h5py.File(tmp_path / "questions.h5", "w") as file:
        file["question"], file["image"] = np.arange(ROWS), named
    with h5py.File(tmp_path / "features.h5", "w") as file:
        file.create_dataset("features", data=features, **request.param)
    with h5py.File(tmp_path / "answers.h5", "w") as file:
        file["answer"] = np.arange(ROWS) * 3
    return tmp_path, features, named


def fields_of(folder, rows):
    return {
        "question": "question",
        "features": Field("features", file=folder / "features.h5", lookup=rows),
        "answer": Field("answer", file=folder / "answers.h5"),
    }


def test_chunks_that_are_looked_up_make_the_blocks(data):
    folder, _, named = data
    with h5py.File(folder / "features.h5") as file:
        chunk_rows = file["features"].chunks[0] if file["features"].chunks else FEATURES
    blocks = H5Dataset(folder / "questions.h5", fields_of(folder, "image")).blocks
    rows = blocks.rows_at(np.arange(ROWS))
    chunks = [set(named[rows[low:high]] // chunk_rows) for low, high in pairwise(blocks.edges)]
    assert all(len(some) == 1 for some in chunks)
    assert len(chunks) == len(set(named // chunk_rows))
    assert sorted(rows.tolist()) == list(range(ROWS))


def test_sequences_of_what_is_looked_up_alone_are_as_long_as_they_say(tmp_path):
    counts = np.array([2, 0, 3, 1, 4])
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["hit"], file["counts"] = np.arange(10), counts
    fields = {"hit": Field("hit", lookup=Lengths("counts"), ragged="list")}
    dataset = H5Dataset(tmp_path / "f.h5", fields, samples=Sequences(3))
    assert [one.tolist() for one in dataset[:]["hit"]] == [[0, 1], [], [2, 3, 4]]


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"lookup": np.full(ROWS, FEATURES)}, errors.OptionError, "names row 50 at 0.*0 to 49"),
        ({"lookup": np.full(ROWS, -1)}, errors.OptionError, "Negative numbers do not count"),
        ({"lookup": [1, 2]}, errors.OptionError, "2 numbers, and needs one for each of 300"),
        ({"lookup": "imag"}, errors.FieldNotFoundError, "Did you mean 'image'"),
        ({"lookup": [0.5] * ROWS}, errors.OptionError, "row number for each sample"),
        ({}, errors.FieldLengthError, "must agree in rows"),
        ({"file": ["features.h5", "features.h5"]}, errors.OptionError, "2 files stand beside 1"),
        ({"lookup": "image", "take": [0]}, errors.OptionError, "without take="),
    ],
    ids=str,
)
def test_bad_input_is_told_with_the_way_out(data, monkeypatch, options, kind, says):
    monkeypatch.chdir(data[0])
    with pytest.raises(kind, match=says):
        H5Dataset("questions.h5", ["question", Field("features", **{"file": "features.h5"} | options)])
