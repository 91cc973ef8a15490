"""Rows gathered from a mapping are those that reading gives, and a file that shrinks is an error, not a SIGBUS."""

from __future__ import annotations

import os
from dataclasses import replace

import h5py
import numpy as np
import pytest
from inner import stream_all

from h5stream import H5Dataset, H5StreamLoader
from h5stream.engine.landing.mapped import can_be_mapped
from h5stream.engine.reader import RowReader
from h5stream.errors import BudgetError, H5StreamError, SourceChangedError, TruncatedFileError
from h5stream.storage.fields import Field

ROWS = 3000


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("chunked", data=rng.integers(0, 99, (ROWS, 37)).astype("f4"), chunks=(64, 10))
        file["contiguous"] = rng.integers(0, 99, (ROWS, 300)).astype("f8")
        file.create_dataset("cube", data=rng.integers(0, 99, (ROWS, 5, 7)), chunks=(100, 2, 3))
        file["label"] = np.arange(ROWS)
        file["text"] = np.arange(ROWS).astype("S6")
        file.create_dataset("sparse", (ROWS, 3), "i2", chunks=(50, 3), fillvalue=-7)
        file["sparse"][120:130] = 1
        file.create_dataset("packed", data=rng.integers(0, 99, (ROWS, 8)), chunks=(50, 8), compression="gzip")
        file.create_dataset("swapped", data=np.arange(ROWS), dtype=">i8")
        file["pair"] = np.zeros(ROWS, dtype=[("a", "i4"), ("b", "f4")])
    return str(tmp_path / "a.h5")


def mapped(source, fields, **options):
    dataset = H5Dataset(source, fields, **options)
    return dataset.over(replace(dataset.layout, mapped=frozenset(range(len(dataset.layout.files)))))


def streamed(dataset, **options):
    with H5StreamLoader(dataset, 256, shuffle=True, seed=4, **options) as loader:
        return [as_bytes(batch) for epoch in range(2) for batch in loader]


def as_bytes(batch):
    return [value if isinstance(value, list) else value.numpy().tobytes() for value in batch]


FIELDS = ["chunked", "contiguous", "cube", "label", "text", "sparse"]


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch):
    stream_all(monkeypatch)


def small_budget(dataset):
    """A budget that a few batches fit into, and all rows do not."""
    with pytest.raises(BudgetError) as e:
        H5StreamLoader(H5Dataset(dataset.layout.files[0].path, FIELDS), 256, True, window="all", memory_budget=1)
    return e.value.needed * 3 // 4


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("window", ["auto", "all", 500])
def test_batches_are_those_that_reading_gives(path, window, threads):
    expected = streamed(H5Dataset(path, FIELDS), window=window, num_workers=2)
    dataset = mapped(path, FIELDS)
    assert RowReader(dataset.layout).mapped == tuple(range(len(FIELDS)))
    assert streamed(dataset, window=window, num_workers=threads) == expected


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_an_exact_global_shuffle_needs_room_for_a_few_batches_only(path, threads):
    expected = streamed(H5Dataset(path, FIELDS), window="all")
    dataset = mapped(path, FIELDS)
    budget = small_budget(dataset)
    loader = H5StreamLoader(dataset, 256, True, window="all", memory_budget=budget, num_workers=threads)
    assert 0 < loader.window_size.batches_at_once < 6
    assert loader.window_size.needed_nbytes <= budget
    assert streamed(dataset, window="all", memory_budget=budget, num_workers=threads) == expected


def test_read_ahead_ranks_and_selections_take_part(path):
    rows = np.arange(5, ROWS, 3)
    options = {"window": "all", "persistent_workers": True, "rank": 1, "world_size": 2, "drop_last": True}
    expected = streamed(H5Dataset(path, FIELDS, rows=rows), **options)
    dataset = mapped(path, FIELDS, rows=rows)
    assert streamed(dataset, **options, memory_budget=small_budget(dataset)) == expected


def test_columns_and_several_files_take_part(path, tmp_path):
    with h5py.File(path) as a, h5py.File(tmp_path / "b.h5", "w") as b:
        b.create_dataset("chunked", data=a["chunked"][:700][::-1], chunks=(9, 37))
        b.create_dataset("label", data=a["label"][:700], chunks=(11,))
    fields = [Field("chunked", columns=[30, 2, 3]), "label"]
    sources = [path, str(tmp_path / "b.h5")]
    for window in ("auto", "all"):
        assert streamed(mapped(sources, fields), window=window) == streamed(H5Dataset(sources, fields), window=window)


@pytest.mark.parametrize("name", ["packed", "swapped", "pair"])
def test_what_must_be_decoded_is_read(path, name):
    dataset = mapped(path, [name, "label"])
    assert not can_be_mapped(dataset.layout, 0)
    assert can_be_mapped(dataset.layout, 1)
    if name != "pair":
        assert streamed(dataset, window="all") == streamed(H5Dataset(path, [name, "label"]), window="all")


def test_nothing_is_mapped_unless_it_is_said_to_be_safe(path):
    assert RowReader(H5Dataset(path, FIELDS).layout).mapped == ()


def test_a_file_that_was_truncated_is_an_error_before_it_is_touched(path):
    dataset = mapped(path, ["contiguous"])
    # Without threads: one that copies rows at the moment of the truncation would die, as the module says.
    loader = H5StreamLoader(dataset, 64, shuffle=True, window=64, num_workers=0)
    iterator = iter(loader)
    next(iterator)
    os.truncate(path, 4096)
    with pytest.raises((SourceChangedError, TruncatedFileError)):
        for _ in iterator:
            pass


def test_a_file_that_was_truncated_before_it_is_mapped_is_an_error(path):
    dataset = mapped(path, ["contiguous"])
    os.truncate(path, 4096)
    with pytest.raises(H5StreamError):
        next(iter(H5StreamLoader(dataset, 64)))


def test_a_file_that_was_deleted_can_still_be_read_to_the_end_of_a_window(path):
    dataset = mapped(path, ["contiguous", "label"])
    mapping = RowReader(dataset.layout).mapped_files.mapping(0)
    os.unlink(path)
    mapping.check()
    assert mapping.memory[:4].tobytes() == b"\x89HDF"
