"""Ragged fields: samples of unlike numbers of rows, beside h5py."""

import itertools

import h5py
import numpy as np
import pytest
import torch

from h5stream import (
    Bounds,
    Crop,
    Field,
    H5Dataset,
    H5StreamLoader,
    Lengths,
    Objects,
    Ragged,
    collate,
    errors,
    structure,
)
from h5stream.baseline import measure

FORMS = ("packed", "nested", "pad", "list")


def write(path, counts, **stored):
    """Write events of so many hits each, and all that says which hits are theirs; give the hits of each event."""
    counts, rng = np.asarray(counts), np.random.default_rng(0)
    bounds = np.append(0, np.cumsum(counts))
    hits = rng.integers(1, 100, (int(bounds[-1]), 3)).astype("f4")
    with h5py.File(path, "w") as file:
        file.create_dataset("hit", data=hits, **stored)
        file["time"], file["label"] = np.arange(len(hits)), np.arange(len(counts))
        file["bounds"], file["lengths"] = bounds, counts
    return [hits[low:high] for low, high in itertools.pairwise(bounds.tolist())]


FIELDS = {
    "hit": Field("hit", lookup=Bounds("bounds")),
    "label": "label",
    "time": Field("time", lookup=Lengths("lengths")),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_ragged_field_alone_is_a_batch_for_whatever_takes_batches(tmp_path, form):
    expected = write(tmp_path / "a.h5", [2, 0, 3, 1])
    dataset = H5Dataset(tmp_path / "a.h5", Field("hit", lookup=Bounds("bounds"), ragged=form))
    batch = next(iter(torch.utils.data.DataLoader(dataset, 4, collate_fn=collate)))
    some = structure.first_rows(batch, 3) if form in ("packed", "pad") else batch
    for rows in (batch, some):
        count = 4 if rows is batch else 3
        assert form == "list" or structure.rows_of(rows) == count  # tensors in a list may also be fields
        samples = [rows.sample(k) if form in ("packed", "pad") else rows[k] for k in range(count)]
        assert [one.tolist() for one in samples] == [hits.tolist() for hits in expected[:count]]
    assert measure.row_sums(batch).tolist() == measure.row_sums(expected).tolist()
    assert measure.batch_nbytes(batch) >= sum(hits.nbytes for hits in expected)


def test_the_forms_say_which_rows_are_whose(tmp_path):
    expected = write(tmp_path / "a.h5", [2, 0, 3])

    def read(**form):
        field = Field("hit", **form, lookup=Bounds("bounds"))
        return next(iter(H5StreamLoader(tmp_path / "a.h5", 3, fields=[field, "label"])))[0]

    packed, padded = read(), read(ragged=Ragged("pad", pad_value=-1))
    assert packed.offsets.tolist() == [0, 2, 2, 5]
    assert packed.values.shape == (5, 3)
    assert padded.values.shape == (3, 3, 3)
    assert padded.lengths.tolist() == [2, 0, 3]
    assert (padded.values[1] == -1).all()
    assert np.array_equal(padded.values[0, :2].numpy(), expected[0])
    assert [len(rows) for rows in read(ragged="list")] == [2, 0, 3]
    assert read(ragged="nested").is_nested
    assert read(ragged=Ragged("pad", crop=Crop(1, at="start"))).values.shape == (3, 1, 3)
    assert read(dtype=torch.float64).values.dtype == torch.float64


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (lambda: Field("hit", ragged="packed"), "lookup=Bounds"),
        (lambda: Field("hit", lookup=Bounds("bounds"), ragged="padded"), "'packed', 'nested'"),
        (lambda: Field("hit", lookup=Bounds("bounds"), ragged=Ragged(pad_value=1)), "is for .pad."),
        (lambda: Field("hit", lookup=Bounds("bounds"), ragged=Ragged(crop=Crop(0, at="start"))), "a row or more"),
        (lambda: Field("hit", lookup=Bounds("doubtful")), "where they begin or where they end"),
        (lambda: Field("hit", lookup=Bounds("half")), "whole numbers of rows, and has 0.5"),
        (lambda: Field("hit", lookup=Bounds("bound")), "Did you mean"),
        (
            lambda: Field("small", lookup=Bounds("bounds"), ragged=Ragged("pad", pad_value=-1)),
            "pad_value=-1 does not fit",
        ),
        (lambda: Field("hit", lookup=Lengths("time")), "there are 4 samples"),
        (lambda: Field("hit", lookup=Lengths("beyond")), "sample 3 is said to have rows"),
        (lambda: Field("hit", lookup=Bounds("backwards")), "go backwards or beyond"),
        (lambda: Field("text", lookup=Bounds("bounds")), "ragged rows are of numbers"),
        (lambda: Field("pair", lookup=Bounds("bounds")), "'pair:a'"),
    ],
)
def test_what_is_said_wrongly_is_told(tmp_path, field, says):
    write(tmp_path / "a.h5", [2, 0, 3, 1])
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["beyond"], file["backwards"], file["half"] = [2, 0, 3, 9], [0, 3, 2, 5, 6], [0.5] * 4
        file["doubtful"], file["small"] = [0, 2, 5, 6], np.zeros(6, "u1")
        file["text"] = ["a", "b", "c", "d", "e", "f"]
        file["pair"] = np.zeros(6, [("a", "f4"), ("b", "i4")])
    with pytest.raises(errors.H5StreamError, match=says):
        H5Dataset(tmp_path / "a.h5", [field(), "label"])


def test_a_sample_larger_than_the_budget_is_refused_with_the_number_that_would_do(tmp_path):
    write(tmp_path / "a.h5", [10, 400_000, 3])
    with pytest.raises(errors.BudgetError) as refused:
        H5StreamLoader(tmp_path / "a.h5", 1, fields=FIELDS, memory_budget="4MiB")
    with H5StreamLoader(tmp_path / "a.h5", 1, fields=FIELDS, memory_budget=refused.value.needed) as loader:
        assert sorted(len(batch["hit"].values) for batch in loader) == [3, 10, 400_000]


def test_rows_of_unlike_form_are_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(5):
            file[f"s{k}"] = np.zeros((k + 1, 4 if k == 3 else 3))
    with pytest.raises(errors.FieldLengthError, match="s3"):
        H5Dataset(tmp_path / "a.h5", {"x": Field(".", ragged="packed")}, samples=Objects("*"))


@pytest.mark.parametrize("made", ["value", "empty", "compound"])
def test_objects_that_have_no_rows_of_numbers_are_told(tmp_path, made):
    things = {"value": 3.0, "empty": h5py.Empty("f4"), "compound": np.zeros(3, [("a", "f4"), ("b", "i4")])}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v/0"], file["v/1"] = np.zeros(3, "f4"), things[made]
    with pytest.raises(errors.H5StreamError, match=r"single value|is empty|compound|must agree"):
        H5Dataset(tmp_path / "a.h5", {"x": Field(".", ragged="list")}, samples=Objects("v/*"))


def test_one_long_sample_that_makes_batches_too_large_is_told_the_ways_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(40):
            file[f"t{k}"] = np.zeros(4 if k else 400_000)
    with pytest.raises(errors.BudgetError, match=r"Ragged.*Crop.*draw=Sized"):
        H5StreamLoader(
            tmp_path / "a.h5", 32, samples=Objects("t*"), fields=Field(".", ragged="pad"), memory_budget=1 << 24
        )
