"""Samples along another axis than the first: what is told of those that do not fit; the oracle has the others."""

import math
from fractions import Fraction

import h5py
import numpy as np
import pytest
from support.amounts import crossed
from support.making import make_file, write_datasets

from h5stream import Ends, Field, H5Dataset, H5StreamLoader, Rows, Sequences, Table, Take
from h5stream.errors import FieldLengthError, OptionError, UnsupportedFieldError
from h5stream.samples.space import scaled


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


@pytest.fixture
def recording(tmp_path):
    held = {"x": np.zeros((3, 10)), "short": np.zeros((3, 9)), "y": np.zeros(10), "third": np.zeros(3)}
    return write_datasets(tmp_path / "a.h5", **held, text=np.zeros((3, 10), "S2"), empty=np.zeros((3, 0)))


@pytest.mark.parametrize(
    ("fields", "samples", "kind", "says"),
    [
        ("x", lambda: Sequences(2, of="rows"), OptionError, "so axis= is another"),
        ("x", lambda: Rows(), OptionError, "Rows needs of="),
        ("x", lambda: Sequences(2, axis=2), OptionError, r"'x'.*shape \(3, 10\), and no axis 2"),
        ("x", lambda: Sequences(11, axis=1), OptionError, "span 11 elements.*has 10"),
        (["x", "short"], lambda: Sequences(2, axis=1), FieldLengthError, "'short': it has 9 .*'x' has 10"),
        (["x", "y"], lambda: Sequences(2, axis=1), OptionError, r"'y'.*take=Take\(axis=\) names another"),
        (["x", "y"], lambda: Sequences(2, of="rows", axis=1), FieldLengthError, "'y': it has 10 .*'x' has 3"),
        ("y", lambda: Sequences(2, of="rows", axis=1), OptionError, "no field has as many axes"),
        ("text", lambda: Sequences(2, axis=1), UnsupportedFieldError, "parts of volumes are of numbers"),
        ("empty", lambda: Sequences(2, axis=1), FieldLengthError, "without elements"),
        (Field("x", take=Take(axis=1)), lambda: Sequences(2), OptionError, "a sample is a row of axis 0"),
        (Field("x", take=Take(scale=2)), lambda: Table(row=[0]), OptionError, "a sample is a row of axis 0"),
        (["x", Field("third", take=Take(axis="rows"))], lambda: Sequences(2, axis=1), OptionError, "the row of"),
        (["y", Field("x", take=Take(scale=2))], lambda: Sequences(2, of=Ends("y")), OptionError, "rows into segments"),
        (["x", Field("y", take=Take(axis=0, scale=0.5))], lambda: Sequences(2, axis=1), FieldLengthError, "and 5 with"),
        (["x", Field("third", take=Take(axis=0, scale=1 / 3))], lambda: Sequences(4, axis=1), OptionError, "makes 1.3"),
        (Field("x", take=Take(scale=0.5)), lambda: Sequences(2, axis=1), OptionError, "is relative to fields without"),
        ("x", lambda: Table(axis=1, row=[0]), OptionError, "needs a column 'start'"),
        ("x", lambda: Table(axis=1, length=3, row=[0], start=[8]), OptionError, "'start' is 8 at sample 0"),
        ("x", lambda: Table(axis=1, length=3, row=[3], start=[0]), OptionError, "'row' is 3 at sample 0"),
        ("x", lambda: Table(axis=1, length=3, start=[-1]), OptionError, "'start' is -1 at sample 0"),
        (Field("x", take=Take(at="end")), lambda: Table(axis=1, start=[1]), OptionError, "names a column"),
        (Field("x", columns=[3]), lambda: Sequences(2, of="rows", axis=1), OptionError, "none; leave it out"),
    ],
)
def test_what_does_not_fit_together_is_told(recording, fields, samples, kind, says):
    with pytest.raises(kind, match=says):
        H5Dataset(recording, fields, samples=samples())


def test_segments_that_are_too_short_are_counted(tmp_path):
    write_datasets(tmp_path / "a.h5", **{f"{k}/x": np.zeros((2, n)) for k, n in enumerate((10, 3, 2, 7))})
    assert "2 segments or objects" in repr(H5Dataset(tmp_path / "a.h5", "x", samples=Sequences(4, of="*", axis=1)))


SCALES = [
    *((1 / per, Fraction(1, per)) for per in (3000, 1 << 20, 1_000_001, 3_600_000, 999_999_937)),
    *((over / under, Fraction(over, under)) for over, under in ((16_384, 1_000_003), (30_000, 1001), (441, 10))),
    ((1 / 30) / (1 / 44_100), Fraction(1470)),
    (0.1 * 3, Fraction(3, 10)),
    (np.float32(1 / 3_600_000), Fraction(1, 3_600_000)),
    (math.pi / 10, Fraction(math.pi / 10)),
    (math.sqrt(2) * 1e-6, Fraction(math.sqrt(2) * 1e-6)),
    (Fraction(1_000_003, 2_000_029), Fraction(1_000_003, 2_000_029)),
    (Fraction(2**61 - 1, 2**62 - 57), Fraction(2**61 - 1, 2**62 - 57)),
]


@pytest.mark.parametrize(("given", "ratio"), SCALES, ids=str)
def test_a_scale_is_a_ratio_that_holds_for_any_number_of_rows(given, ratio):
    assert Take(scale=given).scale == (ratio,)
    rows = np.concatenate([np.arange(100), np.arange(10**9 - 3, 10**9 + 3), [2**40 + 1, 2**53 + 3]])
    rows = rows[rows * float(ratio) < 2**62]
    wanted = [row * ratio.numerator // ratio.denominator for row in rows.tolist()]
    assert scaled(rows, ratio).tolist() == wanted


@pytest.mark.parametrize("per", [1 << 20, 1_000_001, 3_600_000])
def test_labels_much_coarser_than_the_signal_come_at_their_place(tmp_path, per):
    rows, path = 3 * per, tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (rows, 1), "i1", chunks=(1 << 18, 1))
        file["label"] = np.arange(3)
    for scale in (1 / per, Fraction(1, per)):
        label = Field("label", take=Take(range(1), scale=scale))
        dataset = H5Dataset(path, {"x": "x", "label": label}, samples=Sequences(5, stride=per // 2))
        starts = np.arange(0, rows - 4, per // 2)
        assert [int(dataset[k]["label"]) for k in range(len(dataset))] == (starts // per).tolist()
