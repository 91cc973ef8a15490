"""Chunks that were never written hold the fill value, whatever its type, or what libhdf5 gives without one."""

import h5py
import numpy as np
import pytest
from making import low_level, make_file, numbers, set_fill_bytes, string_type
from oracle import assert_like_h5py

from h5stream import Field, H5Dataset, H5StreamLoader, Objects
from h5stream.errors import CorruptChunkError

NEVER, IF_SET, ALLOC = h5py.h5d.FILL_TIME_NEVER, h5py.h5d.FILL_TIME_IFSET, h5py.h5d.FILL_TIME_ALLOC
FILLS = [
    ("<i4", -7),
    (">i2", 258),
    ("<f4", np.nan),
    (">f8", 1.5),
    ("<f2", -0.0),
    ("<c8", 1 - 2j),
    (">c16", np.nan + 1j),
    ("bool", True),
    ("S4", b"abc"),
]


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


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("chunks", [(4, 3), (20_000, 7)])  # which the engine decodes in two ways
def test_a_dataset_without_any_chunk_is_all_fill_value(tmp_path, libver, compression, chunks):
    path = make_file(
        tmp_path / "a.h5",
        libver=libver,
        shape=(23, 7),
        maxshape=(None, 7),
        dtype="f4",
        chunks=chunks,
        fillvalue=4.5,
        compression=compression,
    )
    assert_like_h5py(path, access="decoded" if compression else "direct")


def test_members_of_a_compound_each_have_their_part_of_the_fill_value(tmp_path):
    dtype = np.dtype([("a", ">i2"), ("in", [("b", "<f8"), ("c", "S3")]), ("d", "<i4", (2,))], align=True)
    fill = np.array((258, (2.5, b"ab"), (3, 4)), dtype)
    for name, options in {"plain": {}, "gzip": {"compression": "gzip", "shuffle": True}}.items():
        path = make_file(tmp_path / f"{name}.h5", shape=(10,), dtype=dtype, chunks=(4,), fillvalue=fill, **options)
        with h5py.File(path, "r+") as file:
            file["x"][5] = np.ones((), dtype)
        assert_like_h5py(path)


def test_a_fill_value_of_an_array_type_fills_every_element_of_the_array(tmp_path):
    stored = h5py.h5t.array_create(h5py.h5t.STD_I32BE, (3,))
    raw = np.array([1, 2, 3], ">i4").tobytes()
    path = low_level(
        tmp_path / "a.h5", (10,), stored=stored, chunks=(4,), prepare=lambda c: set_fill_bytes(c, stored, raw)
    )
    assert_like_h5py(path, access="direct")


def test_a_fill_value_of_another_type_than_the_data_is_converted(tmp_path):
    raw = np.array([200], "<i8").tobytes()
    path = low_level(
        tmp_path / "a.h5", (10,), chunks=(4,), prepare=lambda c: set_fill_bytes(c, h5py.h5t.STD_I64LE, raw)
    )
    assert_like_h5py(path, access="direct")


@pytest.mark.parametrize("padding", ["STR_NULLTERM", "STR_SPACEPAD"])
def test_a_fill_value_of_strings_is_cut_as_data_is(tmp_path, padding):
    stored = string_type(6, getattr(h5py.h5t, padding))
    path = low_level(
        tmp_path / "a.h5", (10,), stored=stored, chunks=(4,), prepare=lambda c: set_fill_bytes(c, stored, b"ab\0 c ")
    )
    assert_like_h5py(path)


@pytest.mark.parametrize("time", [NEVER, IF_SET, ALLOC])
@pytest.mark.parametrize("chunks", [None, (4,)])
def test_the_fill_time_decides_whether_the_fill_value_is_used_at_all(tmp_path, time, chunks):
    def prepare(creation):
        creation.set_fill_value(np.array(7, "f4"))
        creation.set_fill_time(time)

    path = low_level(tmp_path / "a.h5", (10,), chunks=chunks, prepare=prepare)
    assert_like_h5py(path, access="direct")


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
    dataset.close()


def test_variable_length_rows_that_were_never_written_are_empty(tmp_path):
    for name, dtype in {"s": h5py.string_dtype(), "v": h5py.vlen_dtype("f4")}.items():
        assert_like_h5py(make_file(tmp_path / f"{name}.h5", shape=(10,), dtype=dtype, chunks=(4,)), access="heap")


def test_the_loader_streams_fill_values_between_rows_that_were_written(tmp_path):
    path = make_file(tmp_path / "a.h5", shape=(100, 3), dtype="i4", chunks=(8, 2), fillvalue=-1)
    with h5py.File(path, "r+") as file:
        file["x"][40:50] = numbers(10, 3, dtype="i4")
        theirs = file["x"][()]
    loader = H5StreamLoader(path, 16, shuffle=True, fields="x")
    for rows, batch in zip(list(loader.batch_sampler), loader, strict=True):
        assert batch.numpy().tobytes() == theirs[rows].tobytes()


@pytest.mark.parametrize("userblock", [512, 4096])
def test_contiguous_data_never_written_behind_a_user_block_are_fill_value(tmp_path, userblock):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=userblock) as file:
        file.create_dataset("x", (5,), "f8", fillvalue=7)
        file.create_dataset("values", (3,), h5py.vlen_dtype("f4"))
        for k in range(5):
            for name, rows in ((f"alike/{k}", 3), (f"unlike/{k}", 3 + k)):
                dataset = file.create_dataset(name, (rows,), "f8", fillvalue=7)
                if k != 2:
                    dataset[:] = k
    with h5py.File(path) as file:
        alike = H5Dataset(path, {"x": "."}, samples=Objects("alike/*"))
        unlike = H5Dataset(path, {"x": Field(".", ragged="list")}, samples=Objects("unlike/*"))
        for k in range(5):
            assert np.array_equal(alike[k]["x"], file[f"alike/{k}"][:])
            assert np.array_equal(unlike[k]["x"], file[f"unlike/{k}"][:])
    assert H5Dataset(path, "x")[:].tolist() == [7] * 5
    assert [len(H5Dataset(path, Field("values", ragged="list"))[k]) for k in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("chunks", [None, (64,), (1,)])
@pytest.mark.parametrize("written", [5000, 300, 0])
def test_a_small_field_that_stays_in_memory_is_what_h5py_reads(tmp_path, chunks, written):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(5000), chunks=(50,), compression="gzip")
        y = file.create_dataset("y", 5000, "i4", chunks=chunks, fillvalue=7)
        if written:
            y[:written] = np.arange(written)
        expected = y[()]
    with H5StreamLoader(path, 64, True, fields=["x", "y"], seed=0) as loader:
        batches = [(x.numpy(), y.numpy()) for x, y in loader]
    x, y = (np.concatenate(each) for each in zip(*batches, strict=True))
    assert (y == expected[x]).all()
