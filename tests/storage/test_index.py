"""The chunk index: every type that HDF5 has, and every place where a chunk can lie."""

import dataclasses

import h5py
import numpy as np
import pytest
from amounts import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from making import chunk_starts, index_type, leave_partial_chunks_unfiltered, low_level, make_file, numbers, write
from oracle import assert_like_h5py

from h5stream import H5Dataset
from h5stream.errors import SourceError, TruncatedFileError
from h5stream.storage.fallback import compact_offset
from h5stream.storage.index import build_index, check_inside
from h5stream.storage.source import identity_of

U = h5py.h5s.UNLIMITED


def early(creation):
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)


CASES = {
    "single chunk": {"shape": (20, 6), "chunks": (20, 6)},
    "implicit": {"shape": (20, 6), "chunks": (8, 4), "prepare": early},
    "fixed array": {"shape": (20, 6), "chunks": (8, 4)},
    "extensible array": {"shape": (20, 6), "chunks": (8, 4), "maxshape": (U, 6)},
    "btree v2": {"shape": (20, 6), "chunks": (8, 4), "maxshape": (U, U)},
    "btree v1": {"shape": (20, 6), "chunks": (8, 4), "libver": (h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST)},
    # More than 1,024 chunks are kept in pages, or beyond the first blocks.
    "fixed array, paged": {"shape": (3000, 2), "chunks": (2, 1)},
    "extensible array, large": {"shape": (5000,), "chunks": (2,), "maxshape": (U,)},
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("filters", [False, True])
def test_each_type_of_chunk_index_is_read(tmp_path, kind, filters):
    def prepare(creation):
        creation.set_shuffle()
        creation.set_deflate(4)

    options = CASES[kind] | ({"prepare": prepare} if filters and kind != "implicit" else {})
    path = low_level(tmp_path / "a.h5", then=write(numbers(*options["shape"])), **options)
    assert index_type(path) == kind.partition(",")[0]
    assert_like_h5py(path, access="decoded" if filters and kind != "implicit" else "direct")


def test_a_paged_fixed_array_with_pages_never_written_is_read(tmp_path):
    path = make_file(tmp_path / "a.h5", shape=(6000,), chunks=(2,), dtype="i4", fillvalue=-3)
    with h5py.File(path, "r+") as file:
        file["x"][4500:4520] = np.arange(20)
    assert index_type(path) == "fixed array"
    assert_like_h5py(path, access="direct")


@pytest.mark.parametrize("chunks", [None, (8, 4)])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("block_nbytes", [512, 4096])
def test_addresses_count_from_the_file_not_from_the_end_of_the_user_block(tmp_path, chunks, libver, block_nbytes):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=block_nbytes, libver=libver) as file:
        file.create_dataset("x", data=numbers(20, 6), chunks=chunks)
    path.write_bytes(b"#" * block_nbytes + path.read_bytes()[block_nbytes:])
    assert_like_h5py(path, access="direct")


@pytest.mark.parametrize("sizes", [(2, 2), (4, 4), (8, 4), (8, 8)])
def test_files_with_short_addresses_and_lengths_are_read(tmp_path, sizes):
    file_creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    file_creation.set_sizes(*sizes)
    path = low_level(
        tmp_path / "a.h5",
        (20, 6),
        chunks=(8, 4),
        file_creation=file_creation,
        libver=(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST),
        then=write(numbers(20, 6)),
    )
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


@pytest.mark.parametrize("kind", ["fixed array", "extensible array", "btree v2", "btree v1"])
def test_chunks_left_over_from_a_dataset_that_was_shrunk_are_not_read(tmp_path, kind):
    options = {key: value for key, value in CASES[kind].items() if key == "libver"}
    maxshape = {"fixed array": (40, 12), "extensible array": (U, 12), "btree v2": (U, U), "btree v1": (U, U)}[kind]

    def shrink(dataset):
        write(numbers(40, 12))(dataset)
        dataset.set_extent((11, 5))

    path = low_level(tmp_path / "a.h5", (40, 12), chunks=(4, 3), maxshape=maxshape, then=shrink, **options)
    assert_like_h5py(path, access="direct")


def test_a_dataset_that_grew_again_has_its_fill_value_where_it_was_shrunk(tmp_path):
    def shrink_and_grow(dataset):
        write(numbers(40))(dataset)
        dataset.set_extent((10,))
        dataset.set_extent((30,))

    path = low_level(tmp_path / "a.h5", (40,), chunks=(8,), maxshape=(U,), then=shrink_and_grow)
    assert_like_h5py(path, access="direct")


def test_contiguous_data_is_read_in_blocks_of_rows(tmp_path):
    path = make_file(tmp_path / "a.h5", data=numbers(3000, 100))
    dataset = assert_like_h5py(path, access="direct")
    part = dataset.layout.datasets[0][0]
    assert 1 < part.chunk_rows < 3000
    assert part.index.chunks == -(-3000 // part.chunk_rows)


@pytest.mark.parametrize("version", [h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST])
@pytest.mark.parametrize("userblock", [0, 1024])
@pytest.mark.parametrize("rows", [1, 20, 2700])
def test_compact_data_is_found_in_its_header(tmp_path, version, userblock, rows):
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_userblock(userblock)
    path = low_level(
        tmp_path / "a.h5",
        (rows, 6),
        prepare=lambda c: c.set_layout(h5py.h5d.COMPACT),
        libver=(version, h5py.h5f.LIBVER_LATEST),
        file_creation=creation,
        then=write(numbers(rows, 6)),
    )
    with h5py.File(path, "r+") as file:
        for number in range(40):  # the header goes on elsewhere
            file["x"].attrs[f"attribute {number}"] = np.arange(30)
    assert_like_h5py(path, access="direct")


def test_compact_data_that_is_not_found_goes_through_h5py(tmp_path):
    path = low_level(
        tmp_path / "a.h5", (20, 6), prepare=lambda c: c.set_layout(h5py.h5d.COMPACT), then=write(numbers(20, 6))
    )
    with h5py.File(path) as file:
        identity = identity_of(path)
        assert compact_offset(file["x"], identity) is not None
        short = dataclasses.replace(identity, size=100)
        assert compact_offset(file["x"], short) is None


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_very_many_chunks_are_indexed(tmp_path, count):
    path = low_level(tmp_path / "a.h5", (count,), chunks=(1,), prepare=early, stored=h5py.h5t.STD_U8LE)
    with h5py.File(path, "r+") as file:
        file["x"][count - 10 :] = np.arange(10)
    dataset = H5Dataset(path, "x")
    assert dataset.layout.datasets[0][0].index.chunks == count
    assert dataset[[count - 1, 0, count - 9]].tolist() == [9, 0, 1]


def test_a_file_that_ends_before_a_chunk_names_the_chunk_and_its_bytes(tmp_path):
    path = make_file(tmp_path / "a.h5", data=numbers(100, 10), chunks=(10, 10))
    with h5py.File(path) as file, pytest.raises(TruncatedFileError, match=r"chunk \(\d+, 0\).*bytes \d+ to \d+"):
        build_index(file["x"], file_size=3000)


def test_a_file_cut_off_at_its_end_is_refused_when_it_is_opened(tmp_path):
    path = make_file(tmp_path / "a.h5", data=numbers(1000, 10), chunks=(10, 10))
    with open(path, "r+b") as file:
        file.truncate(20_000)
    with pytest.raises(TruncatedFileError, match="truncated"):
        H5Dataset(path, "x")


@pytest.mark.parametrize("keep", [0, 4, 100, 600])
def test_hardly_anything_of_a_file_is_refused_as_one_of_our_errors(tmp_path, keep):
    path = make_file(tmp_path / "a.h5", data=numbers(1000, 10), chunks=(10, 10))
    with open(path, "r+b") as file:
        file.truncate(keep)
    with pytest.raises(SourceError):
        H5Dataset(path, "x")


SHAPES = st.integers(1, 3).flatmap(
    lambda rank: st.tuples(*(st.tuples(st.integers(1, 12), st.integers(1, 14)) for _ in range(rank)))
)


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    axes=SHAPES,
    growing=st.integers(0, 3),
    dtype=st.sampled_from(["u1", "<i2", ">i4", "<f4", ">f8", "<c8", "bool", "S5"]),
    filters=st.sampled_from(
        [
            {},
            {"compression": "gzip"},
            {"compression": "gzip", "shuffle": True},
            {"compression": "lzf", "fletcher32": True},
            {"shuffle": True},
        ]
    ),
    missing=st.integers(0, 2**32 - 1),
    libver=st.sampled_from(["earliest", "latest"]),
)
def test_any_grid_of_chunks_reads_as_h5py_reads_it(tmp_path, axes, growing, dtype, filters, missing, libver):
    shape = tuple(n for n, _ in axes)
    maxshape = tuple(None if i < growing else n for i, n in enumerate(shape))
    chunks = tuple(c if m is None else min(c, m) for (_, c), m in zip(axes, maxshape, strict=True))
    path = tmp_path / "a.h5"
    values = numbers(*shape, dtype="i4").astype(dtype)
    with h5py.File(path, "w", libver=libver) as file:
        dataset = file.create_dataset("x", shape, dtype, chunks=chunks, maxshape=maxshape, **filters)
        for k, start in enumerate(chunk_starts(shape, chunks)):
            if not missing >> k % 32 & 1:
                box = tuple(slice(s, s + c) for s, c in zip(start, chunks, strict=True))
                dataset[box] = values[box]
    assert_like_h5py(path, access="decoded" if filters else "direct")


def test_an_address_whose_end_is_no_integer_is_beyond_the_files_end(tmp_path):
    path = make_file(tmp_path / "a.h5", data=numbers(100, 10), chunks=(10, 10))
    with h5py.File(path) as file:
        index = build_index(file["x"], file_size=10**9)
        index.offset[3] = 2**63 - 40
        with pytest.raises(TruncatedFileError, match=r"chunk \(30, 0\).*bytes 9223372036854775768 to"):
            check_inside(index, file["x"], 10**9)
