"""Chunks that were never written hold the fill value, whatever its type, or what libhdf5 gives without one."""

import h5py
import numpy as np
import pytest
from making import low_level, make_file, numbers, set_fill_bytes, string_type
from oracle import assert_like_h5py

from h5stream import H5Dataset
from h5stream.errors import CorruptChunkError

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
    dataset.close()
