"""Samples along another axis than the first, beside slices of h5py: recordings, simulations, unlike rates, tables."""

import h5py
import numpy as np
import pytest
from amounts import crossed
from making import make_file

from h5stream import Boxes, Ends, Field, H5Dataset, H5StreamLoader, Rows, SampleNumber, Sequences, Table, Take, errors


@pytest.mark.parametrize(
    ("stored", "columns", "samples"),
    crossed(
        ({}, {"chunks": True}, {"chunks": True, "compression": "gzip"}),
        ([], slice(9, None), (slice(None), slice(2, 2))),
        (Rows(axis=1), Sequences(2, axis=1), Sequences(2, axis=1, pad=5)),
    ),
    ids=str,
)
def test_a_choice_of_no_columns_gives_samples_without_elements(tmp_path, stored, columns, samples):
    make_file(tmp_path / "a.h5", "x", None, data=np.zeros((3, 6, 4)), **stored)
    dataset = H5Dataset(tmp_path / "a.h5", Field("x", columns=columns), samples=samples)
    first, last = (3, 0) if isinstance(columns, tuple) else (0, 4)
    shape = (first, last) if isinstance(samples, Rows) else (first, 2, last)
    assert dataset[0].shape == shape
    with H5StreamLoader(dataset, len(dataset), shuffle=True) as loader:
        assert [batch.shape for batch in loader] == [(len(dataset), *shape)]


@pytest.mark.parametrize("stored", [{}, {"chunks": (4, 4, 4), "compression": "gzip"}], ids=["contiguous", "gzip"])
@pytest.mark.parametrize("at", ["random", "grid", "listed"])
def test_boxes_of_fields_of_unlike_resolution_are_of_the_same_place(tmp_path, stored, at):
    rng = np.random.default_rng(0)
    raw, label = rng.random((12, 16, 20), "f4"), rng.integers(0, 5, (12, 8, 10))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("raw", data=raw, **stored)
        file.create_dataset("label", data=label, **stored)
    given = {
        "random": {"per_epoch": 20},
        "grid": {"at": "grid", "stride": (3, 4, 4)},
        "listed": {"at": [[0, 0, 0], [5, 6, 8], [8, 12, 12]]},
    }[at]
    boxes = Boxes((4, 4, 8), **given)
    fields = {"raw": "raw", "label": Field("label", take=Take(scale=(1, 0.5, 0.5))), "n": SampleNumber()}
    with H5StreamLoader(tmp_path / "a.h5", 3, shuffle=True, fields=fields, samples=boxes) as loader:
        space, count = loader.dataset.layout.space, 0
        for batch in loader:
            for place, origin in enumerate(space.boxes_of(batch["n"].numpy())[1].tolist()):
                z, y, x = origin
                assert (batch["raw"][place].numpy() == raw[z : z + 4, y : y + 4, x : x + 8]).all()
                y, x = y / 2, x / 2
                assert y == int(y)
                assert x == int(x)
                wanted = label[z : z + 4, int(y) : int(y) + 2, int(x) : int(x) + 4]
                assert (batch["label"][place].numpy() == wanted).all()
                count += 1
    assert count == len(loader.dataset)


@pytest.fixture
def recording(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["short"], file["y"] = np.zeros((3, 10)), np.zeros((3, 9)), np.zeros(10)
        file["third"], file["text"] = np.zeros(3), np.zeros((3, 10), "S2")
        file["empty"] = np.zeros((3, 0))
    return tmp_path / "a.h5"


@pytest.mark.parametrize(
    ("fields", "samples", "kind", "says"),
    [
        ("x", lambda: Sequences(2, of="rows"), errors.OptionError, "so axis= is another"),
        ("x", lambda: Rows(), errors.OptionError, "Rows needs of="),
        ("x", lambda: Sequences(2, axis=2), errors.OptionError, r"'x'.*shape \(3, 10\), and no axis 2"),
        ("x", lambda: Sequences(11, axis=1), errors.OptionError, "span 11 elements.*has 10"),
        (["x", "short"], lambda: Sequences(2, axis=1), errors.FieldLengthError, "'short': it has 9 .*'x' has 10"),
        (["x", "y"], lambda: Sequences(2, axis=1), errors.OptionError, r"'y'.*take=Take\(axis=\) names another"),
        (["x", "y"], lambda: Sequences(2, of="rows", axis=1), errors.FieldLengthError, "'y': it has 10 .*'x' has 3"),
        ("y", lambda: Sequences(2, of="rows", axis=1), errors.OptionError, "no field has as many axes"),
        ("text", lambda: Sequences(2, axis=1), errors.UnsupportedFieldError, "parts of volumes are of numbers"),
        ("empty", lambda: Sequences(2, axis=1), errors.FieldLengthError, "without elements"),
        (Field("x", take=Take(axis=1)), lambda: Sequences(2), errors.OptionError, "a sample is a row of axis 0"),
        (Field("x", take=Take(scale=2)), lambda: Table(row=[0]), errors.OptionError, "a sample is a row of axis 0"),
        (["x", Field("third", take=Take(axis="rows"))], lambda: Sequences(2, axis=1), errors.OptionError, "the row of"),
        (
            ["y", Field("x", take=Take(scale=2))],
            lambda: Sequences(2, of=Ends("y")),
            errors.OptionError,
            "cuts rows into segments",
        ),
        (
            ["x", Field("y", take=Take(axis=0, scale=0.5))],
            lambda: Sequences(2, axis=1),
            errors.FieldLengthError,
            "and 5 with scale",
        ),
        (
            ["x", Field("third", take=Take(axis=0, scale=1 / 3))],
            lambda: Sequences(4, axis=1),
            errors.OptionError,
            "makes 1.33333",
        ),
        (
            Field("x", take=Take(scale=0.5)),
            lambda: Sequences(2, axis=1),
            errors.OptionError,
            "is relative to fields without",
        ),
        ("x", lambda: Table(axis=1, row=[0]), errors.OptionError, "needs a column 'start'"),
        ("x", lambda: Table(axis=1, length=3, row=[0], start=[8]), errors.OptionError, "'start' is 8 at sample 0"),
        ("x", lambda: Table(axis=1, length=3, row=[3], start=[0]), errors.OptionError, "'row' is 3 at sample 0"),
        ("x", lambda: Table(axis=1, length=3, start=[-1]), errors.OptionError, "'start' is -1 at sample 0"),
        (Field("x", take=Take(at="end")), lambda: Table(axis=1, start=[1]), errors.OptionError, "names a column"),
        (Field("x", columns=[3]), lambda: Sequences(2, of="rows", axis=1), errors.OptionError, "none; leave it out"),
    ],
)
def test_what_does_not_fit_together_is_told(recording, fields, samples, kind, says):
    with pytest.raises(kind, match=says):
        H5Dataset(recording, fields, samples=samples())


def test_segments_that_are_too_short_are_counted(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k, length in enumerate((10, 3, 2, 7)):
            file[f"{k}/x"] = np.zeros((2, length))
            file[f"{k}/y"] = np.zeros(length)
    assert "2 segment(s)" in repr(H5Dataset(tmp_path / "a.h5", "x", samples=Sequences(4, of="*", axis=1)))
    assert "2 segment(s)" in repr(H5Dataset(tmp_path / "a.h5", "y", samples=Sequences(4, of="*")))
