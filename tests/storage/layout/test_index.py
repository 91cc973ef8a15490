"""The chunk index: places where a chunk can lie that ``tests/oracle`` does not draw, and chunks never written."""

import h5py
import numpy as np
import pytest
from oracle import assert_like_h5py
from support.making import (
    leave_partial_chunks_unfiltered,
    low_level,
    make_file,
    numbers,
    set_fill_bytes,
    string_type,
    write,
)

from h5stream import H5Dataset
from h5stream.errors import CorruptChunkError, SourceError

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


# --- chunks that were never written, which hold the fill value, or what libhdf5 gives without one ----------------


FILLS = [("<i4", -7), ("<f4", np.nan), ("<f2", -0.0), (">c16", np.nan + 1j), ("bool", True), ("S4", b"abc")]


def write_some(path, shape=(23, 7)):
    with h5py.File(path, "r+") as file:
        values = numbers(*shape, dtype="i4").astype(file["x"].dtype)
        file["x"][9:12] = values[9:12]
        file["x"][20:, 5:] = values[20:, 5:]


@pytest.mark.parametrize(("dtype", "fill"), FILLS)
@pytest.mark.parametrize("options", [{}, {"compression": "gzip", "shuffle": True}])
def test_missing_chunks_hold_the_fill_value(tmp_path, dtype, fill, options):
    path = make_file(tmp_path / "a.h5", shape=(23, 7), dtype=dtype, chunks=(4, 3), fillvalue=fill, **options)
    write_some(path)
    assert_like_h5py(path, access="decoded" if options else "direct")


def test_members_of_a_compound_each_have_their_part_of_the_fill_value(tmp_path):
    dtype = np.dtype([("a", ">i2"), ("in", [("b", "<f8"), ("c", "S3")]), ("d", "<i4", (2,))], align=True)
    fill = np.array((258, (2.5, b"ab"), (3, 4)), dtype)
    for name, options in {"plain": {}, "gzip": {"compression": "gzip", "shuffle": True}}.items():
        path = make_file(tmp_path / f"{name}.h5", shape=(10,), dtype=dtype, chunks=(4,), fillvalue=fill, **options)
        with h5py.File(path, "r+") as file:
            file["x"][5] = np.ones((), dtype)
        assert_like_h5py(path)


ARRAY = h5py.h5t.array_create(h5py.h5t.STD_I32BE, (3,))
ENDED, PADDED = (string_type(6, padding) for padding in (h5py.h5t.STR_NULLTERM, h5py.h5t.STR_SPACEPAD))
FILLED = {  # what is stored, the fill value's type and its bytes
    "an array": (ARRAY, ARRAY, np.array([1, 2, 3], ">i4").tobytes()),
    "another type": (h5py.h5t.IEEE_F32LE, h5py.h5t.STD_I64LE, np.array([200], "<i8").tobytes()),
    "ended text": (ENDED, ENDED, b"ab\0 c "),
    "padded text": (PADDED, PADDED, b"ab\0 c "),
}


@pytest.mark.parametrize("kind", FILLED)
def test_fill_values_of_other_types_are_what_h5py_reads(tmp_path, kind):
    stored, of_fill, raw = FILLED[kind]
    path = low_level(
        tmp_path / "a.h5", (10,), stored=stored, chunks=(4,), prepare=lambda c: set_fill_bytes(c, of_fill, raw)
    )
    assert_like_h5py(path)


def leave_undefined(creation):
    set_fill_bytes(creation, h5py.h5t.IEEE_F32LE, None)
    assert creation.fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED


def test_an_undefined_fill_value_reads_as_h5py_reads_it(tmp_path):
    path = low_level(tmp_path / "a.h5", (10,), chunks=(4,), prepare=leave_undefined)
    with h5py.File(path, "r+") as file:
        file["x"][5] = 3
    assert_like_h5py(path, access="direct")


@pytest.mark.parametrize("chunks", [None, (4,)])
def test_data_that_is_nowhere_is_an_error_for_us_as_for_h5py(tmp_path, chunks):
    path = low_level(tmp_path / "a.h5", (10,), chunks=chunks, prepare=leave_undefined)
    with h5py.File(path) as file, pytest.raises(OSError, match="no data can be read"):
        file["x"][()]
    dataset = H5Dataset(path, "x")
    with pytest.raises(CorruptChunkError, match="no data can be read"):
        dataset[:]


@pytest.mark.parametrize("said", [1, 17, 31, 33, 2**31])
def test_a_chunk_without_a_filter_that_is_said_to_have_other_than_its_bytes_is_refused(tmp_path, said):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w", libver="earliest") as file:
        file.create_dataset("x", data=np.arange(40, dtype="i4"), chunks=(8,))
    with h5py.File(path) as file:
        info = file["x"].id.get_chunk_info(2)
    key = info.size.to_bytes(4, "little") + bytes(4) + (16).to_bytes(8, "little") + bytes(8)
    with open(path, "r+b") as raw:
        raw.seek(raw.read().index(key + info.byte_offset.to_bytes(8, "little")))
        raw.write(said.to_bytes(4, "little"))
    with pytest.raises(SourceError, match=r"a\.h5', dataset '/x'"):  # h5py gives what is in memory behind them
        H5Dataset(path, "x")
