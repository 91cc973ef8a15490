"""Damaged chunks, decoded without a file: thousands for each filter that C undoes itself, in and out of its order.

Plugins may end the process, so theirs are read in children: see ``test_mutations.py``.
"""

import io

import h5py
import hdf5plugin
import numpy as np
import pytest

from h5stream.storage.decode.filters import DecodeError, DecodeScratch, pipeline_of

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
MOST = (
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
        at = int(generator.integers(min(len(changed), (24, len(changed))[generator.integers(2)]) or 1))
        match generator.integers(6):
            case 0 | 1:
                changed[at : at + 1] = generator.bytes(1)
            case 2:
                changed[at : at + 1] = [changed[at] ^ 1 << int(generator.integers(8))] if at < len(changed) else b""
            case 3:
                word = MOST[generator.integers(len(MOST))].to_bytes(4, ("little", "big")[generator.integers(2)])
                changed[at : at + 4] = word
            case 4:
                del changed[at:]
            case 5:
                changed += generator.bytes(int(generator.integers(1, 600)))
    return bytes(changed)


@pytest.fixture(params=FILTERS)
def dataset(request):
    """A dataset of one chunk, of an image of a file."""
    generator = np.random.default_rng(0)
    x = np.repeat(generator.integers(0, 99, (ROWS, COLUMNS // 3)), 3, axis=1).astype("f4")
    with h5py.File(io.BytesIO(), "w") as file:
        yield file.create_dataset("x", data=x, chunks=x.shape, **FILTERS[request.param])


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


def test_damaged_bytes_are_an_error_or_what_libhdf5_makes_of_them(dataset):
    pipeline, scratch = pipeline_of(dataset.id.get_create_plist()), DecodeScratch()
    assert pipeline.native(0, RAW_NBYTES) is not None
    stored, generator = dataset.id.read_direct_chunk((0, 0))[1], np.random.default_rng(1)
    assert decoded(pipeline, np.frombuffer(stored, np.uint8), scratch) == dataset[:].tobytes()
    failed = 0
    for _ in range(1000):
        mutant = damaged(stored, generator)
        ours = decoded(pipeline, np.frombuffer(mutant, np.uint8).copy(), scratch)
        failed += ours is None
        if ours is not None:
            dataset.id.write_direct_chunk((0, 0), mutant)
            dataset.id.refresh()  # or it gives the chunk that it has in its cache
            assert dataset[:].tobytes() == ours, mutant
    assert failed > 50
