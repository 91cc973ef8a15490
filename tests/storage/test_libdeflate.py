"""libdeflate by its address: found behind imagecodecs, right, and dispensable."""

import importlib

import h5py
import numpy as np
import pytest
from inner import around, no_decompressor
from making import flip_byte

from h5stream import H5StreamLoader
from h5stream.compiled import _native as kernels
from h5stream.errors import CorruptChunkError
from h5stream.storage import codecs

ROWS, COLUMNS = 3_000, 37


@pytest.fixture
def decompressor():
    made = codecs.new_decompressor()
    if made is None:
        pytest.skip("imagecodecs is not linked with a libdeflate that can be called by address")
    return made


@pytest.fixture(params=[False, True], ids=["plain", "shuffle"])
def small_chunks(request, tmp_path):
    """One row a chunk, with missing chunks and some that do not shrink."""
    path, rng = str(tmp_path / "small.h5"), np.random.default_rng(0)
    x = rng.integers(0, 2**62, (ROWS, COLUMNS))
    x[::2] %= 7
    with h5py.File(path, "w") as file:
        data = file.create_dataset(
            "x", x.shape, x.dtype, chunks=(1, COLUMNS), compression="gzip", shuffle=request.param
        )
        data[: ROWS - 100] = x[: ROWS - 100]
    x[ROWS - 100 :] = 0
    return path, x


@pytest.mark.parametrize("is_there", [True, False])
def test_small_chunks_are_h5pys_bytes_with_it_and_without(small_chunks, monkeypatch, request, is_there):
    path, x = small_chunks
    inflated = []
    if is_there:
        request.getfixturevalue("decompressor")
    else:
        no_decompressor(monkeypatch)
    around(monkeypatch, kernels, "inflate_each", before=lambda *given: inflated.append(len(given[3])))
    rows = np.concatenate([batch.numpy() for batch in H5StreamLoader(path, 500, fields="x")])
    assert (rows == x).all()
    assert sum(inflated) == (ROWS - 100) * is_there


def test_a_corrupt_chunk_among_them_is_named(decompressor, small_chunks):
    path, x = small_chunks
    with h5py.File(path) as file:
        place = file["x"].id.get_chunk_info(700)
    flip_byte(path, place.byte_offset + place.size - 1)
    batches = iter(H5StreamLoader(path, 500, fields="x", window=500))
    assert (next(batches).numpy() == x[:500]).all()
    with pytest.raises(CorruptChunkError) as caught:
        next(batches)
    assert caught.value.chunk == (700, 0)
    skipping = H5StreamLoader(path, 500, fields="x", window=500, on_error="skip")
    kept = np.concatenate([batch.numpy() for batch in skipping])
    assert (kept == np.delete(x, 700, axis=0)).all()


def test_what_cannot_be_found_is_not_used(monkeypatch):
    def nothing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", nothing)
    codecs.found_functions.cache_clear()
    try:
        assert codecs.new_decompressor() is None
    finally:
        codecs.found_functions.cache_clear()
