"""Damaged chunks, decoded without a file: thousands for each filter that C undoes itself, in and out of its order.

Plugins may end the process, so theirs are read in children: see ``test_mutations.py``.
"""

import io

import h5py
import hdf5plugin
import numpy as np
import pytest
from support.inner import no_decompressor

from h5stream.storage.decode.filters import DecodeError, DecodeScratch
from h5stream.storage.decode.pipeline import pipeline_of

ROWS, COLUMNS = 40, 30
RAW_NBYTES = ROWS * COLUMNS * 4

FILTERS = {
    "gzip": {"compression": "gzip"},
    "shuffle gzip fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "fletcher32": {"fletcher32": True},
    "lzf": {"compression": "lzf"},
    "shuffle lzf": {"compression": "lzf", "shuffle": True},
    "lz4": hdf5plugin.LZ4(),
    "lz4 in blocks": hdf5plugin.LZ4(nbytes=512),
    "zstd": hdf5plugin.Zstd(),
    "zstd fletcher32": {**hdf5plugin.Zstd(), "fletcher32": True},
    "blosc": hdf5plugin.Blosc(),
    "blosc zlib": hdf5plugin.Blosc(cname="zlib", shuffle=2),
    "blosc zstd": hdf5plugin.Blosc(cname="zstd"),
}
LENGTHS = (
    0,
    1,
    2**7,
    2**15,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    RAW_NBYTES,
    RAW_NBYTES - 1,
    RAW_NBYTES + 1,
    2 * RAW_NBYTES,
)


def damaged(stored: bytes, generator) -> bytes:
    """Change few bytes, mostly of the first; or put a length there, cut the end off, or add to it."""
    changed = bytearray(stored)
    for _ in range(generator.integers(1, 4)):
        at = int(generator.integers(1 + min(len(changed), (24, len(changed))[generator.integers(2)])))
        match generator.integers(5):
            case 0:
                changed[at : at + 1] = generator.bytes(1)
            case 1:
                changed[at : at + 1] = [each ^ 1 << int(generator.integers(8)) for each in changed[at : at + 1]]
            case 2:
                word = LENGTHS[generator.integers(len(LENGTHS))].to_bytes(4, ("little", "big")[generator.integers(2)])
                changed[at : at + 4] = word
            case 3:
                del changed[at:]
            case 4:
                changed += generator.bytes(int(generator.integers(1, 600)))
    return bytes(changed)


WITHOUT_LIBDEFLATE = "gzip without libdeflate"


@pytest.fixture(params=[*FILTERS, WITHOUT_LIBDEFLATE])
def dataset(request, monkeypatch):
    """A dataset of one chunk, of an image of a file."""
    if request.param == WITHOUT_LIBDEFLATE:
        no_decompressor(monkeypatch)
    generator = np.random.default_rng(0)
    x = np.repeat(generator.integers(0, 99, (ROWS, COLUMNS // 3)), 3, axis=1).astype("f4")
    with h5py.File(io.BytesIO(), "w") as file:
        yield file.create_dataset("x", data=x, chunks=x.shape, **FILTERS[request.param.split(" without")[0]])


def decoded(pipeline, stored, scratch):
    """Decode to memory of its own, and to what is given, behind which nothing may be written; None if that fails."""
    held = np.full(RAW_NBYTES + 64, 0xA5, np.uint8)
    answers = []
    for out in (held[:RAW_NBYTES], None):
        try:
            data, shuffled = pipeline.decode(stored, filter_mask=0, raw_nbytes=RAW_NBYTES, scratch=scratch, out=out)
        except DecodeError as error:
            answers.append(f"{type(error).__name__}: {error}")
        else:
            answers.append((data.reshape(max(shuffled, 1), -1).T if shuffled else data).tobytes())
    assert (held[RAW_NBYTES:] == 0xA5).all()
    assert answers[0] == answers[1]
    return answers[0] if isinstance(answers[0], bytes) else None


def test_damaged_bytes_are_an_error_or_what_libhdf5_makes_of_them(dataset, request):
    pipeline, scratch = pipeline_of(dataset.id.get_create_plist()), DecodeScratch()
    assert (pipeline.native(0, RAW_NBYTES) is None) == (WITHOUT_LIBDEFLATE in request.node.name)
    stored, generator = dataset.id.read_direct_chunk((0, 0))[1], np.random.default_rng(1)
    assert decoded(pipeline, np.frombuffer(stored, np.uint8), scratch) == dataset[:].tobytes()
    failed = 0
    for _ in range(1000):
        mutant = damaged(stored, generator)
        data = decoded(pipeline, np.frombuffer(mutant, np.uint8).copy(), scratch)
        failed += data is None
        if data is not None:
            dataset.id.write_direct_chunk((0, 0), mutant)
            dataset.id.refresh()  # or it gives the chunk that it has in its cache
            assert dataset[:].tobytes() == data, mutant
    assert failed > 50
