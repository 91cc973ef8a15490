"""Filters: every one, in every order that HDF5 allows, with every mask; corrupt bytes are an error, never data."""

import itertools
import struct
import zlib
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
from oracle import assert_like_h5py
from support.inner import around, no_decompressor
from support.making import access_of, low_level, make_file, numbers, write

from h5stream import H5Dataset, H5StreamLoader
from h5stream.advice.listing import list_file
from h5stream.engine.plan.chunks import ChunkPlan
from h5stream.errors import CorruptChunkError
from h5stream.storage.decode import filters, plugins
from h5stream.storage.decode.pipeline import check_stored

STEPS = {
    "shuffle": lambda c: c.set_shuffle(),
    "deflate": lambda c: c.set_deflate(6),
    "fletcher32": lambda c: c.set_fletcher32(),
    "lzf": lambda c: c.set_filter(h5py.h5z.FILTER_LZF, h5py.h5z.FLAG_OPTIONAL),
    "zstd": lambda c: c.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,)),
}
ORDERS = [*itertools.permutations(STEPS, 2), ("lzf", "fletcher32", "shuffle", "zstd", "deflate")]
STEPS["bzip2"] = lambda c: c.set_filter(307, h5py.h5z.FLAG_OPTIONAL, (9,))
ORDERS += [("lzf", "bzip2", "fletcher32"), ("shuffle", "bzip2", "zstd"), ("fletcher32", "bzip2"), ("bzip2", "bzip2")]


def apply(order):
    def prepare(creation):
        for name in order:
            STEPS[name](creation)

    return prepare


@pytest.mark.parametrize("order", ORDERS, ids="+".join)
def test_filters_are_undone_in_whatever_order_they_were_applied(tmp_path, order):
    path = low_level(tmp_path / "a.h5", (50, 33), chunks=(16, 20), prepare=apply(order), then=write(numbers(50, 33)))
    assert_like_h5py(path, access="decoded")


@pytest.mark.parametrize("width", [2, 8, 3])
def test_a_shuffle_whose_width_is_not_the_elements_is_undone(tmp_path, width):
    # libhdf5 always writes the element's size, but it is a number in the file, and other writers set it as they like.
    values = numbers(16, 6, dtype="<u4")
    body = values.tobytes()
    planes = np.frombuffer(body, np.uint8).reshape(-1, width).T.tobytes()
    path = low_level(
        tmp_path / "a.h5",
        (16, 6),
        stored=h5py.h5t.STD_U32LE,
        chunks=(16, 6),
        libver=(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST),  # whose headers have no checksum
        prepare=STEPS["shuffle"],
        then=lambda dataset: dataset.write_direct_chunk((0, 0), planes),
    )
    content = bytearray(Path(path).read_bytes())
    at = content.index(b"shuffle\0") + 8
    assert content[at : at + 4] == struct.pack("<I", 4)
    content[at : at + 4] = struct.pack("<I", width)
    Path(path).write_bytes(content)
    assert_like_h5py(path, access="decoded")
    assert H5Dataset(path, "x")[:].numpy().tobytes() == body


@pytest.mark.parametrize("mask", range(8))
def test_a_chunks_filter_mask_says_which_filters_it_skipped(tmp_path, mask):
    order, values = ("shuffle", "deflate", "fletcher32"), numbers(16, 4, dtype="<f4")
    applied = [name for bit, name in enumerate(order) if not mask >> bit & 1]
    other = low_level(tmp_path / "b.h5", (16, 4), chunks=(16, 4), prepare=apply(applied), then=write(values))
    with h5py.File(other) as file:
        _, body = file["x"].id.read_direct_chunk((0, 0))

    def then(dataset):
        write(np.concatenate([values, values]))(dataset)
        dataset.write_direct_chunk((16, 0), body, filter_mask=mask)

    path = low_level(tmp_path / "a.h5", (32, 4), chunks=(16, 4), prepare=apply(order), then=then)
    assert_like_h5py(path, access="decoded")


@pytest.mark.parametrize("chunk", [0, 32])
def test_a_stream_that_is_shorter_than_its_chunk_is_corrupt_though_libhdf5_reads_beyond_its_end(tmp_path, chunk):
    path = make_file(tmp_path / "a.h5", data=numbers(64, 4), chunks=(32, 4), compression="gzip")
    with h5py.File(path, "r+") as file:
        file["x"].id.write_direct_chunk((chunk, 0), zlib.compress(b"\1" * 100))
    dataset = H5Dataset(path, "x")
    with pytest.raises(CorruptChunkError, match=rf"chunk \({chunk}, 0\).*gzip gave 100 bytes where 512 are promised"):
        dataset[chunk + 1]
    other = 32 - chunk
    assert dataset[other : other + 32].numpy().tobytes() == numbers(64, 4)[other : other + 32].tobytes()


PLUGINS = {
    "bitshuffle-lz4": (hdf5plugin.Bitshuffle(), "f4"),
    "bitshuffle-zstd": (hdf5plugin.Bitshuffle(cname="zstd"), "i2"),
    "bitshuffle alone": (hdf5plugin.Bitshuffle(cname="none"), "u8"),
    **{f"blosc-{c}": (hdf5plugin.Blosc(cname=c), "f4") for c in ("lz4", "blosclz", "lz4hc", "snappy", "zlib", "zstd")},
    "blosc-bitshuffle": (hdf5plugin.Blosc(shuffle=hdf5plugin.Blosc.BITSHUFFLE), "i8"),
    **{f"blosc2-{c}": (hdf5plugin.Blosc2(cname=c), "f4") for c in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")},
    "blosc2-delta": (hdf5plugin.Blosc2(filters=hdf5plugin.Blosc2.DELTA), "i4"),
    "bzip2": (hdf5plugin.BZip2(), "f8"),
    "fcidecomp": (hdf5plugin.FciDecomp(), "u2"),
    "lz4": (hdf5plugin.LZ4(), "f4"),
    "lz4 in blocks": (hdf5plugin.LZ4(nbytes=512), "f4"),
    "sperr": (hdf5plugin.Sperr(rate=16), "f4"),
    "sz": (hdf5plugin.SZ(absolute=0.1), "f4"),
    **{f"szip {mask}": ({"compression": "szip", "compression_opts": (mask, 16)}, ">i4") for mask in ("nn", "ec")},
    "sz3": (hdf5plugin.SZ3(absolute=0.1), "f8"),
    "zfp": (hdf5plugin.Zfp(), "f4"),
    "zfp-rate": (hdf5plugin.Zfp(rate=12), "f8"),
    "zfp-reversible": (hdf5plugin.Zfp(reversible=True), "i4"),
    "zstd": (hdf5plugin.Zstd(), "c8"),
}


@pytest.mark.parametrize("name", PLUGINS)
def test_every_filter_of_hdf5plugin_and_szip_are_undone_here_to_libhdf5s_bytes(tmp_path, name):
    filter_options, dtype = PLUGINS[name]
    path = make_file(tmp_path / "a.h5", data=numbers(40, 30, dtype=dtype), chunks=(16, 30), **filter_options)
    assert_like_h5py(path, access="decoded")


@pytest.mark.parametrize("block", [2, 8, 32])
@pytest.mark.parametrize("shape", [(37,), (5, 7), (3, 64), (1, 4000)])
@pytest.mark.parametrize("dtype", ["u1", ">i2", "f4", "i8"])
def test_whole_chunks_of_szip_are_whole_whatever_their_lines_and_blocks(tmp_path, block, shape, dtype):
    data = np.cumsum(np.random.default_rng(1).integers(-3, 3, shape), axis=-1).astype(dtype)
    for mask in ("nn", "ec"):
        options = {"compression": "szip", "compression_opts": (mask, min(block, data.size // 2 * 2))}
        assert_like_h5py(make_file(tmp_path / f"{mask}.h5", data=data, chunks=shape, **options), access="decoded")


def test_a_chunk_of_szip_that_decodes_to_too_little_is_corrupt_and_not_what_the_memory_held(tmp_path):
    data = np.random.default_rng(2).integers(-500, 500, (5, 7)).astype("f4")
    options = {"chunks": (5, 7), "compression": "szip", "compression_opts": ("nn", 8)}
    path = make_file(tmp_path / "a.h5", data=data, **options)
    with h5py.File(path) as file:
        info, values = file["x"].id.get_chunk_info(0), file["x"].id.get_create_plist().get_filter(0)[2]
        stored = np.frombuffer(file["x"].id.read_direct_chunk((0, 0))[1], np.uint8)
    assert not filters.is_szip_short(values, stored, data.nbytes)
    changed = (
        np.r_[stored[:at], np.uint8(value), stored[at + 1 :]] for at in range(40, len(stored)) for value in (1, 64)
    )
    short = next(one for one in changed if filters.is_szip_short(values, one, data.nbytes))
    with open(path, "r+b") as file:
        file.seek(info.byte_offset)
        file.write(short.tobytes())
    with pytest.raises(CorruptChunkError, match="szip: its bytes end before the chunk is full"):
        H5Dataset(path, "x")[:]
    with h5py.File(path) as file, pytest.raises(OSError, match="szip: its bytes end before the chunk is full"):
        check_stored(file["x"])


def test_no_filter_of_hdf5plugin_is_left_out_of_these_tests():
    tested = {dict(options)["compression"] for options, _ in PLUGINS.values()}
    untested = {number for number in hdf5plugin.FILTERS.values() if plugins.plugin_function(number)} - tested
    assert {32033} >= untested, "htj2k has no encoder options here; any other new filter needs a case"


def test_a_missing_filter_that_no_chunk_needs_is_no_obstacle(tmp_path):
    def prepare(creation):  # as optional, so that libhdf5 still makes the dataset
        creation.set_filter(400, h5py.h5z.FLAG_OPTIONAL, (1, 2))

    path = low_level(tmp_path / "a.h5", (32, 4), chunks=(16, 4), prepare=prepare, then=write(numbers(32, 4)))
    assert_like_h5py(path, access="decoded")


def test_a_filter_parameter_that_gives_silent_garbage_is_noticed_when_the_file_is_opened(tmp_path, monkeypatch):
    path = make_file(tmp_path / "a.h5", data=numbers(32, 4), chunks=(16, 4), shuffle=True, compression="gzip")
    monkeypatch.setattr("h5stream.storage.decode.filters.element_nbytes_of", lambda values: 2)
    dataset = H5Dataset(path, "x")
    assert access_of(dataset) == ("h5py", "its first chunk, decoded here, is not what h5py reads")
    assert dataset[:].numpy().tobytes() == numbers(32, 4).tobytes()


# --- small chunks, by libdeflate ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("is_there", [True, False])
def test_small_chunks_are_h5pys_bytes_with_it_and_without(tmp_path, monkeypatch, shuffle, is_there):
    """One row a chunk, with missing chunks, some that do not shrink, and a first one that is not shuffled."""
    x, path, one_by_one = np.random.default_rng(0).integers(0, 2**62, (3000, 37)), tmp_path / "small.h5", []
    x[::2] %= 7
    with h5py.File(path, "w", alignment_threshold=1, alignment_interval=8192) as file:  # all are read apart
        data = file.create_dataset("x", x.shape, x.dtype, chunks=(1, 37), compression="gzip", shuffle=shuffle)
        data.id.write_direct_chunk((0, 0), zlib.compress(x[0].tobytes()), int(shuffle))
        data[1:2900] = x[1:2900]
    x[2900:] = 0
    if not is_there:
        no_decompressor(monkeypatch)
    elif filters.decoder_of(filters.DEFLATE) is None:
        pytest.skip("imagecodecs is not linked with a libdeflate that can be called by address")
    around(monkeypatch, ChunkPlan, "_land_one", before=lambda *_: one_by_one.append(1))
    rows = np.concatenate([batch.numpy() for batch in H5StreamLoader(path, 500, fields="x")])
    assert (rows == x).all()
    assert len(one_by_one) == (0 if is_there else 2900)


@pytest.mark.parametrize("nbytes", [1, 3])
def test_libhdf5_is_not_asked_for_a_chunk_that_is_shorter_than_its_checksum(tmp_path, nbytes):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("x", (8,), "i4", chunks=(4,), fletcher32=True)
        dataset[:] = np.arange(8)
        dataset.id.write_direct_chunk((4,), b"\0" * nbytes)  # whose process it would end
    dataset = H5Dataset(tmp_path / "a.h5", "x")
    assert dataset[:4].tolist() == [0, 1, 2, 3]
    with pytest.raises(CorruptChunkError, match="shorter than its checksum"):
        dataset[:]


@pytest.mark.parametrize("dtype", ["u1", "S1", "i4"])
def test_nor_is_it_for_hints_and_inspections_of_what_a_dataset_holds(tmp_path, dtype):
    paths = [tmp_path / f"{k}.h5" for k in range(3)]
    for path in paths:
        with h5py.File(path, "w") as file:
            dataset = file.create_dataset("x", (8,), dtype, chunks=(4,), fletcher32=True)
            dataset[:] = np.arange(8).astype(dtype)
            for start in (0, 4):
                dataset.id.write_direct_chunk((start,), b"\0")
            file["y"] = np.arange(8)
    dataset = H5Dataset(paths, ["x", "y"])  # which looks whether each file is an image
    with pytest.raises(CorruptChunkError, match="shorter than its checksum"):
        dataset[:]
    assert {entry.path for entry in list_file(str(paths[0])).entries} == {"x", "y"}


CUT = {
    "gzip": [(filters.DEFLATE, (4,))],
    "shuffle, gzip": [(filters.SHUFFLE, (2,)), (filters.DEFLATE, (4,))],
    "lzf": [(filters.LZF, ())],
    "shuffle, lzf, fletcher32": [(filters.SHUFFLE, (2,)), (filters.LZF, ()), (filters.FLETCHER32, ())],
    "lz4": [(filters.LZ4, (0,))],
    "zstd": [(filters.ZSTD, (3,))],
    "bzip2": [(filters.BZIP2, (9,))],
    "szip": [(filters.SZIP, (32, 8))],
    "bitshuffle": [(32008, (0, 2))],
    "nbit": [(filters.NBIT, ())],
    "nbit, gzip": [(filters.NBIT, ()), (filters.DEFLATE, (4,))],
    "scaleoffset": [(filters.SCALEOFFSET, (2, 0))],
    "scaleoffset, gzip": [(filters.SCALEOFFSET, (2, 0)), (filters.DEFLATE, (4,))],
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "odd") for name in CUT), *itertools.product(("nbit", "nbit, gzip"), ("array", "compound"))],
)
def test_a_chunk_that_is_cut_short_is_damage_for_types_that_hdf5_converts(tmp_path, name, kind):
    """Of many filters libhdf5 then gives what the memory held before, and h5py with it other numbers each time."""
    number = h5py.h5t.STD_U16LE.copy()
    number.set_precision(11)
    stored, dtype = number, np.dtype("u2")
    if kind == "array":
        stored, dtype = h5py.h5t.array_create(number, (3, 2)), np.dtype(("u2", (3, 2)))
    elif kind == "compound":
        stored, dtype = h5py.h5t.create(h5py.h5t.COMPOUND, 10), np.dtype([("a", "u2"), ("b", "f8")])
        stored.insert(b"a", 0, number)
        stored.insert(b"b", 2, h5py.h5t.IEEE_F64LE)
    values = np.zeros(800, dtype)
    numbers = values["a"] if kind == "compound" else values
    numbers[...] = (np.arange(numbers.size) // 3).reshape(numbers.shape)

    def prepare(creation):
        for code, parameters in CUT[name]:
            creation.set_filter(code, h5py.h5z.FLAG_MANDATORY, parameters)

    def then(dataset):
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=stored)

    low_level(tmp_path / "a.h5", (800,), stored=stored, chunks=(400,), prepare=prepare, then=then)
    field = "x:a" if kind == "compound" else "x"
    assert np.array_equal(H5Dataset(tmp_path / "a.h5", field)[:], numbers)
    with h5py.File(tmp_path / "a.h5") as file:
        mask, whole = file["x"].id.read_direct_chunk((400,))
    for nbytes in {1, 5, 13, 22, len(whole) // 2, len(whole) - 9, len(whole) - 2} & {*range(len(whole))}:
        with h5py.File(tmp_path / "a.h5", "r+") as file:
            file["x"].id.write_direct_chunk((400,), whole[:nbytes], mask)
        dataset = H5Dataset(tmp_path / "a.h5", field)
        assert np.array_equal(dataset[:400], numbers[:400])
        with pytest.raises(CorruptChunkError):
            dataset[:]


def test_zstd_chunks_along_an_unlimited_axis_are_checked_wherever_libhdf5_says_they_are(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        x = file.create_dataset("x", (10, 2), "u1", chunks=(5, 1), maxshape=(10, None), **hdf5plugin.Zstd())
        x[5:, 0] = x[:5, 1] = 7
        check_stored(x)
        check_stored(x, (5,), (5,))


def test_filter_masks_along_an_unlimited_axis_are_those_of_the_chunks(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        x = file.create_dataset("x", (2, 4), "f2", chunks=(1, 2), maxshape=(2, None), **hdf5plugin.LZ4())
        x[:] = np.arange(8).reshape(2, 4)
        for row, column, mask in [(0, 0, 0), (0, 2, 1), (1, 0, 0), (1, 2, 0)]:
            values = x[row, column : column + 2]
            if mask:
                x.id.write_direct_chunk((row, column), values.tobytes(), mask)
        for start in ((), (0,), (1,), (0, 2)):
            check_stored(x, start, (1,) * len(start))
