"""`repack` on real files, and on files that nobody thought of."""

import contextlib
import itertools
import os
import uuid
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st

from h5stream import repack
from h5stream.errors import CorruptChunkError
from tests.staging.same_file import assert_same_tree

CORPUS = Path(os.environ.get("H5STREAM_CORPUS") or Path(__file__).resolve().parents[3] / "shared" / "corpus")
SMALL = 2 << 20

# Where h5py itself cannot read what a file holds, there is no oracle.
UNREADABLE = (OSError, RuntimeError, TypeError, ValueError)


OPTIONS = [{}, {"compress": "lz4", "chunk_nbytes": 8192}]


@pytest.mark.corpus
@pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])], ids=["in turns", "all"]
)
def test_every_file_of_the_corpus_comes_through(tmp_path, whole):
    """By default every sixth, with one of the options, and none of the two with thousands of datasets."""
    files = [path for path in sorted(CORPUS.rglob("*")) if path.is_file() and opens(path)]
    if not files:
        pytest.skip(f"no corpus at {CORPUS}")
    if whole:
        asked = list(itertools.product(files, OPTIONS))
    else:
        small = [path for path in files if "large_group" not in path.name]
        asked = list(zip(small[::6], itertools.cycle(OPTIONS)))
    compared = 0
    for path, options in asked:
        try:
            result = repack(path, tmp_path / "b.h5", overwrite=True, **options)
        except CorruptChunkError:
            assert "zfp_110xxx" in path.name
            continue
        if any("could not be kept" in notice for notice in result.notices):
            assert "globalheaps" in path.name or "var-length-strings-reused" in path.name
            continue
        with contextlib.suppress(*UNREADABLE):
            assert_same_tree(path, tmp_path / "b.h5")
            compared += 1
    assert compared > 0.8 * len(asked)


def opens(path):
    try:
        h5py.File(path).close()
    except OSError:
        return False
    return path.stat().st_size <= SMALL


ENCODINGS = st.sampled_from(
    [{}, {"compression": "gzip"}, {"compression": "lzf", "shuffle": True}, dict(hdf5plugin.LZ4())]
)
DTYPES = st.sampled_from(["u1", "<i2", ">i4", "<f8", ">f2", "S3", "?"])


@st.composite
def datasets(draw):
    shape = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    chunks = tuple(draw(st.integers(1, n)) for n in shape)
    grows = tuple(draw(st.sampled_from([n, None])) for n in shape)
    written = draw(st.integers(0, shape[0]))
    return (
        shape,
        draw(st.none() | st.just(chunks)),
        grows,
        draw(DTYPES),
        draw(ENCODINGS),
        written,
        draw(st.integers(0, 9)),
    )


@examples(40)
@given(
    content=st.lists(datasets(), min_size=1, max_size=3),
    chunk_nbytes=st.sampled_from([4096, 8192]),
    layout=st.sampled_from([{}, {"compress": "lz4"}, {"compress": "gzip"}, {"contiguous": True}]),
)
def test_random_files_come_through(tmp_path_factory, content, chunk_nbytes, layout):
    folder = tmp_path_factory.mktemp(uuid.uuid4().hex)
    with h5py.File(folder / "a.h5", "w") as file:
        for number, (shape, chunks, grows, dtype, filters, written, fill) in enumerate(content):
            storage = {"chunks": chunks, "maxshape": grows, **filters} if chunks else {}
            fills = {} if dtype == "S3" else {"fillvalue": np.array(fill).astype(dtype)}
            dataset = file.create_dataset(f"g{number % 2}/d{number}", shape, dtype, **storage, **fills)
            values = np.random.default_rng(number).integers(0, 9, (written, *shape[1:]))
            dataset[:written] = values.astype(dtype)
    repack(folder / "a.h5", folder / "b.h5", chunk_nbytes=chunk_nbytes, **layout)
    assert_same_tree(folder / "a.h5", folder / "b.h5")
