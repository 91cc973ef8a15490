"""`H5Dataset`: every way to name rows, and what a stock DataLoader asks of it."""

import copy

import numpy as np
import pytest
from support.inner import around
from support.making import vlen, write_datasets
from support.sample_files import write_sample

from h5stream import H5Dataset
from h5stream.errors import OptionError


@pytest.fixture
def sample(tmp_path):
    return write_sample(tmp_path, rows=100, chunk_rows=16)


@pytest.fixture
def dataset(sample):
    return H5Dataset(sample.path, ["x", "y"])


@pytest.mark.parametrize("index", [100, -101, 10**12, [0, 100], np.array([-101])])
def test_a_row_that_is_not_there_is_an_index_error_that_says_what_there_is(dataset, index):
    with pytest.raises(IndexError, match="is not there: the dataset has 100 rows, 0 to 99"):
        dataset[index]


@pytest.mark.parametrize("index", [1.5, "x", [0.5], None, True, [True, False], np.zeros((2, 2), dtype=bool)])
def test_what_names_no_row_is_refused(dataset, index):
    with pytest.raises(OptionError, match=r"rows are named by integers|a mask needs one value a row: 100 rows"):
        dataset[index]


def test_writing_into_a_sample_changes_no_later_one(tmp_path):
    names = {"data": np.array([[b"a", b"b"]] * 6), "chunks": (3, 2), "compression": "gzip"}
    ragged = vlen("i4", map(np.arange, range(6)))
    path = write_datasets(tmp_path / "a.h5", names=names, ragged=ragged, y=np.arange(6))
    dataset = H5Dataset(path, ["names", "ragged", "y"])
    for _ in range(2):
        names, ragged, y = dataset[4]
        assert (names, ragged.tolist(), int(y)) == ([b"a", b"b"], [0, 1, 2, 3], 4)
        names[0] = b"changed"
        ragged.fill_(-1)
        y.fill_(-1)


def test_neighbours_are_served_from_one_decoded_block(dataset, monkeypatch):
    reads = []
    around(monkeypatch, H5Dataset, "_read", before=lambda self, rows: reads.append(len(rows)))
    for i in range(16, 48):
        dataset[i]
    assert reads == [16, 16]
    for sample in dataset.subset(np.arange(32)):
        assert len(sample) == 2
    assert reads == [16, 16, 16]  # the second block was there still, and the first comes once


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "names no rows"),
        ([False] * 100, "names no rows"),
        ([1, 1], "names row 1 more than once"),
        ([1, -99], "row 1 more than once"),
        (["a"], "not <U1"),
        ([100], "names row 100, but there are 100 rows, 0 to 99"),
        ([True, False], r"one value a row: 100 rows, shape \(2,\)"),
        ([0.5], "integers, a slice or a mask, not float64"),
    ],
)
def test_a_wrong_selection_is_refused(sample, rows, message):
    with pytest.raises(OptionError, match=message):
        H5Dataset(sample.path, "y", rows=rows)


def test_a_copy_reads_on_its_own_and_close_only_pauses(sample, dataset):
    twin = copy.deepcopy(dataset)
    dataset.close()
    assert int(twin[3][1]) == int(dataset[3][1]) == 3
