"""`H5Dataset`: single rows, slices, lists, masks, subsets, and a stock DataLoader."""

import h5py
import numpy as np
import pytest
import torch
from making import make_file, numbers

from h5stream import H5Dataset, collate
from h5stream.errors import OptionError, SourceChangedError

VALUES = numbers(50, 3)


@pytest.fixture(params=["contiguous", "gzip", "scaleoffset"])
def dataset(request, tmp_path):
    options = {"contiguous": {}, "gzip": {"chunks": (8, 2), "compression": "gzip"}, "scaleoffset": {"scaleoffset": 3}}
    path = make_file(tmp_path / "a.h5", data=VALUES, **options[request.param])
    with h5py.File(path, "r+") as file:
        file["y"] = np.arange(50)
    dataset = H5Dataset(path, ["x", "y"])
    yield dataset
    dataset.close()


@pytest.mark.parametrize(
    "index",
    [
        slice(None),
        slice(5, 40, 7),
        slice(None, None, -1),
        slice(10, 10),
        [3, 3, -1],
        np.array([], int),
        VALUES[:, 0] > 70,
    ],
    ids=str,
)
def test_an_index_takes_what_numpy_takes(dataset, index):
    x, y = dataset[index]
    assert y.tolist() == np.arange(50)[index].tolist()
    assert torch.allclose(x, torch.from_numpy(VALUES[index].copy()), atol=1e-3)


def test_one_row_is_one_sample(dataset):
    for row in (0, 7, 8, 49, -1, -50, np.int32(5)):
        x, y = dataset[row]
        assert (x.shape, y.item()) == ((3,), row % 50)


@pytest.mark.parametrize("row", [50, -51])
def test_a_row_beyond_the_end_is_an_index_error(dataset, row):
    with pytest.raises(IndexError, match=f"row {row} is not there: the dataset has 50 rows"):
        dataset[row]
    with pytest.raises(IndexError):
        dataset[[0, row]]


@pytest.mark.parametrize("index", [[0.5], "x", [True], True, None], ids=str)
def test_an_index_that_is_no_row_is_refused(dataset, index):
    with pytest.raises(OptionError):
        dataset[index]


def test_iterating_ends_with_the_last_row(dataset):
    assert [y.item() for _, y in dataset] == list(range(50))


def test_what_a_caller_does_to_a_row_does_not_reach_the_next_caller(tmp_path):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.ones((8, 2)), chunks=(4, 2), compression="gzip")
        file.create_dataset("s", data=np.full((8, 2), b"ab"), chunks=(4, 2), compression="gzip")
    dataset = H5Dataset(path, {"x": "x", "s": "s"})
    first = dataset[1]
    first["x"][:] = 7
    first["s"][0] = b"changed"
    assert dataset[1]["x"].tolist() == [1, 1]
    assert dataset[1]["s"] == [b"ab", b"ab"]


@pytest.mark.parametrize("rows", [[4, 40, 5], VALUES[:, 0] > 70, [-1]], ids=str)
def test_a_subset_has_the_files_order(dataset, rows):
    expected = np.sort(np.arange(50)[rows]).tolist()
    part = dataset.subset(rows)
    assert len(part) == len(expected)
    assert part[:][1].tolist() == expected
    assert [y.item() for _, y in part] == expected
    assert part[-1][1].item() == expected[-1]
    part.close()


def test_a_subset_of_a_subset_counts_in_the_first(dataset):
    assert dataset.subset([10, 20, 30, 40]).subset([1, 3])[:][1].tolist() == [20, 40]


@pytest.mark.parametrize(
    ("rows", "why"),
    [([3, 3], "more than once"), ([50], "row 50"), ([], "selects no rows"), ([True], "mask"), ([0.5], "not float64")],
)
def test_a_subset_that_cannot_be_is_refused(dataset, rows, why):
    with pytest.raises(OptionError, match=why):
        dataset.subset(rows)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stock_dataloader_reads_it(dataset, workers):
    loader = torch.utils.data.DataLoader(dataset, 8, num_workers=workers, collate_fn=collate)
    batches = list(loader)
    assert [y.tolist() for _, y in batches] == [list(range(k, min(k + 8, 50))) for k in range(0, 50, 8)]
    assert torch.allclose(torch.cat([x for x, _ in batches]), torch.from_numpy(VALUES), atol=1e-3)


def test_default_collate_stacks_the_same_samples(dataset):
    x, y = next(iter(torch.utils.data.DataLoader(dataset, 8)))
    assert (x.shape, y.tolist()) == ((8, 3), list(range(8)))


@pytest.mark.parametrize("rows", [3, [1, 5, 700]])
def test_a_file_that_is_rewritten_after_it_was_opened_is_an_error_and_not_other_rows(tmp_path, rows):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(1000), chunks=(100,), compression="gzip")
    dataset = H5Dataset(path)
    dataset[rows]
    with h5py.File(path, "w") as file:  # in place: the inode stays
        file.create_dataset("x", data=np.full(2000, -1), chunks=(100,), compression="gzip")
    with pytest.raises(SourceChangedError, match="changed while it was being read"):
        dataset[rows]
