"""Rows are counted alike by the loader, `bench`, `diagnose` and `track`, also where a list stands for a field."""

import json

import numpy as np
import pytest
import torch
from support.commands import invoke
from support.each import for_each
from support.layouts import write
from support.making import vlen
from torch.utils.data import DataLoader, Dataset

from h5stream import Field, H5Dataset, H5StreamLoader, collate
from h5stream.advice.diagnose import time_loop
from h5stream.advice.loaders import lists_of_fields
from h5stream.advice.track import track
from h5stream.baseline.measure import measure_epoch
from h5stream.structure import Packed, Padded, SparseRows, first_rows, rows_of

ROWS, BATCH, LONG = 64, 8, 500
EQUAL = vlen("f4", [np.arange(LONG)] * ROWS)
UNEQUAL = vlen("f4", [np.arange(1 + k % 7) for k in range(ROWS)])
TEXTS = {"data": [f"{k}" for k in range(ROWS)]}
HELD = {"equal": EQUAL, "unequal": UNEQUAL, "texts": TEXTS, "others": TEXTS, "y": np.arange(ROWS)}

ALONE = ["equal", "unequal", "texts", "y", Field("equal", ragged="pad"), Field("unequal", ragged="packed")]
TUPLES = [["equal"], ["equal", "y"], ["y", "equal"], ["equal", "unequal"], ["unequal"], ["texts", "others"], ["y", "y"]]
NESTED = Field("equal", ragged="nested")
DICTS = [{"a": "equal", "b": "y"}, {"a": "unequal"}, {"a": "texts", "b": "equal"}, {"a": NESTED}]


@pytest.fixture
def path(tmp_path):
    write(tmp_path, {"a.h5": HELD})
    return tmp_path / "a.h5"


def halved(batch, of_fields):
    return rows_of(first_rows(batch, BATCH // 2, of_fields), of_fields)


@pytest.mark.parametrize("fields", [*ALONE, *TUPLES, *DICTS], ids=str)
def test_the_rows_of_a_loaders_batches_are_those_that_it_counts(path, fields):
    with H5StreamLoader(path, BATCH, shuffle=True, fields=fields) as loader:
        assert measure_epoch("ours", loader).rows == loader.stats().rows == ROWS
        trial = time_loop(loader, None, 0.001)
        assert (trial.rows, trial.largest) == (BATCH * trial.batches, BATCH)
        batch, of_fields = next(iter(loader)), lists_of_fields(loader)
        assert (rows_of(batch, of_fields), halved(batch, of_fields)) == (BATCH, BATCH // 2)
        assert type(first_rows(batch, 1, of_fields)) is type(batch)
        tracked = track(loader, monitor=False)
        assert len([*tracked]) == ROWS // BATCH
        assert (tracked.summary.samples, tracked.summary.batch_size) == (ROWS, BATCH)


@pytest.mark.parametrize("fields", [*TUPLES, "texts", "equal", "y"], ids=str)
def test_the_rows_of_a_stock_loader_over_our_dataset_are_counted(path, fields):
    dataset = H5Dataset(path, fields=fields)
    loader = DataLoader(dataset, BATCH, collate_fn=collate)
    assert time_loop(loader, None, 0.001).largest == BATCH


class Samples(Dataset):
    """Numbers and texts, as samples of any structure."""

    def __init__(self, sample):
        self.sample = sample

    def __len__(self):
        return ROWS

    def __getitem__(self, number):
        return self.sample


NUMBERS, TENSOR = {"a": 1, "b": torch.zeros(3)}, torch.zeros(3)
SAMPLES = [1, "a", TENSOR, (TENSOR, 1), (1, "a"), ("a", "b"), NUMBERS, (NUMBERS, NUMBERS), (TENSOR, NUMBERS)]


@pytest.mark.parametrize("sample", [*SAMPLES, {"a": ("a", "b")}, (TENSOR, (1, "a"))], ids=str)
def test_the_rows_of_what_torch_collates_are_counted(sample):
    loader = DataLoader(Samples(sample), BATCH)
    assert time_loop(loader, None, 0.001).largest == BATCH
    assert halved(next(iter(loader)), lists_of_fields(loader)) == BATCH // 2


def boxes(*counts):
    return [torch.zeros(count, 4) for count in counts]


COUNTS, FIVE = torch.tensor([0, 1, 3]), torch.arange(5)
# A batch, whether a list holds fields, its rows, and the first of them.
BATCHES = [
    (boxes(2, 5, 1), None, 3, boxes(2)),  # a value for each row: they differ in length
    (boxes(3, 3), None, 3, boxes(1, 1)),
    (boxes(3, 3), False, 2, boxes(3)),
    ((boxes(3, 3), torch.tensor(1.0)), False, 2, (boxes(3), torch.tensor(1.0))),
    ([], None, 0, []),
    (torch.tensor(1.0), None, None, torch.tensor(1.0)),
    (Packed(torch.arange(3), COUNTS), None, 2, Packed(torch.arange(1), COUNTS[:2])),
    (SparseRows(FIVE[:3], FIVE[:3], COUNTS, 9), None, 2, SparseRows(FIVE[:1], FIVE[:1], COUNTS[:2], 9)),
    (Padded(torch.zeros(2, 3), FIVE[:2]), None, 2, Padded(torch.zeros(1, 3), FIVE[:1])),
]


@for_each(BATCHES)
def test_a_list_of_unknown_origin_holds_fields_where_its_tensors_are_equally_long(batch, of_fields, count, first):
    assert rows_of(batch, of_fields) == count
    torch.testing.assert_close(first_rows(batch, 1, of_fields), first)


def test_what_the_users_functions_make_is_not_taken_for_the_loaders_own(path):
    functions = [{"batch_transform": list}, {"sample_transform": list}, {"collate_fn": list}]
    for given in functions:
        with H5StreamLoader(path, BATCH, fields=("y", "unequal"), **given) as loader:
            assert lists_of_fields(loader) is None


@pytest.mark.parametrize("fields", ["equal", "y,equal", "texts,others"])
def test_bench_and_diagnose_count_rows_of_equally_long_values(path, fields):
    words = ("--fields", fields, "--batch-size", BATCH, "--json", "--seconds")
    done = json.loads(invoke("bench", path, "--workers", "0", "--busy-ms", "0", *words, 3).stdout)
    assert {one["rows"] for one in done["results"] if "h5stream" in one["name"]} == {ROWS}
    done = json.loads(invoke("diagnose", path, "--step-ms", "5", *words, 0.1).stdout)
    assert 0.005 <= done["step_s"] < 0.1  # not a pause for each item of a value
    assert done["statistics"]["rows"] == BATCH * done["statistics"]["batches"]
