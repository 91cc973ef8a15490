"""The chunk index: places where a chunk can lie that ``tests/oracle`` does not draw."""

import h5py
import numpy as np
import pytest
from making import leave_partial_chunks_unfiltered, low_level, make_file, numbers, write
from oracle import assert_like_h5py

from h5stream import H5Dataset
from h5stream.errors import TruncatedFileError
from h5stream.storage.index import build_index, check_inside

U = h5py.h5s.UNLIMITED


def early(creation):
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)


def test_a_paged_fixed_array_with_pages_never_written_is_read(tmp_path):
    path = make_file(tmp_path / "a.h5", shape=(6000,), chunks=(2,), dtype="i4", fillvalue=-3)
    with h5py.File(path, "r+") as file:
        file["x"][4500:4520] = np.arange(20)
    assert_like_h5py(path, access="direct")


@pytest.mark.parametrize("shape", [(10, 5), (8, 6), (3, 5), (9, 2)])
def test_edge_chunks_that_were_left_unfiltered_are_read(tmp_path, shape):
    def prepare(creation):
        creation.set_shuffle()
        creation.set_deflate(4)
        leave_partial_chunks_unfiltered(creation)

    path = low_level(
        tmp_path / "a.h5", shape, chunks=(4, 3), maxshape=(U, U), prepare=prepare, then=write(numbers(*shape))
    )
    assert_like_h5py(path, access="decoded")


def test_an_edge_chunk_that_filtering_left_as_long_as_it_was_is_not_taken_for_unfiltered(tmp_path):
    # Shuffled, the edge chunk is exactly as long as a raw one.
    path = low_level(
        tmp_path / "a.h5", (6,), chunks=(4,), maxshape=(U,), prepare=lambda c: c.set_shuffle(), then=write(numbers(6))
    )
    assert_like_h5py(path, access="decoded")


def test_a_dataset_that_grew_again_has_its_fill_value_where_it_was_shrunk(tmp_path):
    def shrink_and_grow(dataset):
        write(numbers(40))(dataset)
        dataset.set_extent((10,))
        dataset.set_extent((30,))

    path = low_level(tmp_path / "a.h5", (40,), chunks=(8,), maxshape=(U,), then=shrink_and_grow)
    assert_like_h5py(path, access="direct")


@pytest.mark.parametrize("rows", [1, 2700])
def test_compact_data_is_found_in_a_header_that_goes_on_elsewhere(tmp_path, rows):
    path = low_level(
        tmp_path / "a.h5",
        (rows, 6),
        prepare=lambda c: c.set_layout(h5py.h5d.COMPACT),
        then=write(numbers(rows, 6)),
    )
    with h5py.File(path, "r+") as file:
        for number in range(40):
            file["x"].attrs[f"attribute {number}"] = np.arange(30)
    assert_like_h5py(path, access="direct")


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_very_many_chunks_are_indexed(tmp_path, count):
    path = low_level(tmp_path / "a.h5", (count,), chunks=(1,), prepare=early, stored=h5py.h5t.STD_U8LE)
    with h5py.File(path, "r+") as file:
        file["x"][count - 10 :] = np.arange(10)
    dataset = H5Dataset(path, "x")
    assert dataset.layout.datasets[0][0].index.chunks == count
    assert dataset[[count - 1, 0, count - 9]].tolist() == [9, 0, 1]


@pytest.mark.parametrize("first", [10**9 - 10, 2**63 - 40])
def test_a_chunk_beyond_the_files_end_is_named_with_its_bytes(tmp_path, first):
    path = make_file(tmp_path / "a.h5", data=numbers(100, 10), chunks=(10, 10))
    with h5py.File(path) as file:
        index = build_index(file["x"], file_size=10**9)
        index.offset[3] = first
        with pytest.raises(TruncatedFileError, match=rf"chunk \(30, 0\).*bytes {first} to"):
            check_inside(index, file["x"], 10**9)
