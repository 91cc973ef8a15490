"""The main job on files that somebody else wrote."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from h5stream import H5Dataset, H5StreamLoader

CORPUS = Path(os.environ.get("H5STREAM_CORPUS", Path(__file__).resolve().parents[3] / "shared" / "corpus"))

pytestmark = [pytest.mark.corpus, pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no real files at {CORPUS}")]


@pytest.mark.parametrize("count", [1_000_000, pytest.param(10_000_000, marks=pytest.mark.slow)])
def test_millions_of_rows_stream_in_shuffled_batches_of_8192_each_once(count):
    path = CORPUS / "real" / "manycontigs.cool"
    fields = ["bins/chrom", "bins/start", "bins/end"]
    seen = torch.zeros(count, dtype=torch.bool)
    sums = np.zeros(3, dtype=np.int64)
    dataset = H5Dataset(path, fields, rows=slice(count))
    with H5StreamLoader(dataset, batch_size=8192, shuffle=True) as loader:
        # Every contig is 1,000 bins of one width, so chrom and start name the row.
        width = int(loader.dataset[0][2])
        for chrom, start, end in loader:
            rows = chrom.long() * 1000 + start.long() // width
            assert not seen[rows].any()
            seen[rows] = True
            assert bool((end > start).all())
            sums += [int(chrom.sum()), int(start.sum()), int(end.sum())]
        assert len(loader) == -(-count // 8192)
    assert bool(seen.all())
    assert sums.tolist() == _sums_by_h5py(path, fields, count)


def _sums_by_h5py(path, fields, count):
    import h5py

    with h5py.File(path) as file:
        return [int(file[name][:count].astype(np.int64).sum()) for name in fields]
