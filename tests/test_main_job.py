"""The main job on files that somebody else wrote."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from h5stream import H5Dataset, H5StreamLoader

CORPUS = Path(os.environ.get("H5STREAM_CORPUS", Path(__file__).resolve().parents[2] / "shared" / "corpus"))

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no folder of real files at {CORPUS}"),
]


def test_ten_million_rows_stream_in_shuffled_batches_of_8192_each_once():
    path = CORPUS / "real" / "manycontigs.cool"
    fields = ["bins/chrom", "bins/start", "bins/end"]
    seen = torch.zeros(10_000_000, dtype=torch.bool)
    sums = np.zeros(3, dtype=np.int64)
    with H5StreamLoader(path, batch_size=8192, shuffle=True, fields=fields) as loader:
        # Every contig is 1,000 bins of one width, so chrom and start name the row.
        width = int(loader.dataset[0][2])
        for chrom, start, end in loader:
            rows = chrom.long() * 1000 + start.long() // width
            assert not seen[rows].any()
            seen[rows] = True
            assert bool((end > start).all())
            sums += [int(chrom.sum()), int(start.sum()), int(end.sum())]
        assert len(loader) == -(-10_000_000 // 8192)
    assert bool(seen.all())
    assert sums.tolist() == _sums_by_h5py(path, fields)


def _sums_by_h5py(path, fields):
    import h5py

    with h5py.File(path) as file:
        return [int(file[name][:].astype(np.int64).sum()) for name in fields]


def test_a_classifier_learns_cell_types_better_than_the_majority():
    """700 cells, 765 genes in chunks of 44 x 96; the labels are a compound's member."""
    torch.manual_seed(0)
    path = CORPUS / "real" / "pbmc68k_reduced.h5ad"
    fields = ["X", "obs:bulk_labels"]
    mask = np.random.default_rng(0).random(700) < 0.8
    train = H5StreamLoader(H5Dataset(path, fields, rows=mask), batch_size=64, shuffle=True)
    test = H5StreamLoader(H5Dataset(path, fields, rows=~mask), batch_size=256)
    model = torch.nn.Linear(765, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(15):
        for x, label in train:
            loss = torch.nn.functional.cross_entropy(model(x), label.long())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == label).sum()) for x, label in test)
    labels = torch.cat([label for _, label in test]).long()
    majority = int(labels.bincount().max())
    assert right > majority + 0.2 * len(labels), f"{right} of {len(labels)} right, the majority class has {majority}"
