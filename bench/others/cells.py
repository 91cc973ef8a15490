"""annbatch's comparison (arrayloader-benchmarks): batches of 4,096 cells of a sparse matrix, with their cell lines.

The loaders are set up as its script does; the cells are made up, as many and as full as Tahoe-100M's are wide: 62,710
genes, of which a cell has about 1,200. annbatch reads zarr as `write_sharded` makes it, with lz4 of blosc, scDataset an
.h5ad with gzip, as its is, and ours that and one with the zarr's filter.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anndata
import h5py
import hdf5plugin
import numpy as np
import pandas
import scipy.sparse
import torch
import zarr
import zarrs  # noqa: F401

from bench.child import disk_nbytes, warm
from bench.others.common import THREADS, apart, result
from h5stream import Field, H5StreamLoader

CELLS, GENES, BATCH, EPOCHS, PART_S = 196_608, 62_710, 4096, 3, 30.0
LINES = 50


def made(folder: Path, seed: int) -> tuple[Path, Path, Path]:
    """Write the cells as an .h5ad with gzip and with lz4, and as annbatch's sharded zarr."""
    import annbatch.io

    rng = np.random.default_rng(seed)
    counts = rng.integers(800, 1600, CELLS)
    bounds = np.append(0, counts.cumsum())
    values, columns = np.empty(bounds[-1], "f4"), np.empty(bounds[-1], "i4")
    for begin in range(0, CELLS, 4096):
        own = counts[begin : begin + 4096]
        kept = np.arange(1600) < own[:, None]
        gaps = rng.integers(1, 2 * GENES // 1700, (len(own), 1600)).cumsum(axis=1) - 1
        part = slice(bounds[begin], bounds[begin + len(own)])
        columns[part], values[part] = gaps[kept] % GENES, rng.geometric(0.6, part.stop - part.start)
    matrix = scipy.sparse.csr_matrix((values, columns, bounds), shape=(CELLS, GENES))
    matrix.has_sorted_indices = False
    matrix.sort_indices()
    lines = pandas.Categorical.from_codes(rng.integers(0, LINES, CELLS), [f"line {k}" for k in range(LINES)])
    cells = anndata.AnnData(matrix, obs=pandas.DataFrame({"cell_line": lines}, index=np.arange(CELLS).astype(str)))
    cells.write_h5ad(folder / "cells.h5ad", compression="gzip")
    with h5py.File(folder / "cells.h5ad") as source, h5py.File(folder / "cells.lz4.h5ad", "w") as file:
        for name in ("obs", "var"):
            source.copy(name, file)
        group = file.create_group("X")
        group.attrs.update(source["X"].attrs)
        group["indptr"] = source["X/indptr"][:]
        for name in ("data", "indices"):
            lz4 = hdf5plugin.Blosc(cname="lz4", clevel=3, shuffle=hdf5plugin.Blosc.SHUFFLE)
            group.create_dataset(name, data=source["X"][name][:], chunks=(64 * 1200,), compression=lz4)
    annbatch.io.write_sharded(zarr.open_group(str(folder / "cells.zarr"), mode="w", zarr_format=3), cells)
    return folder / "cells.h5ad", folder / "cells.lz4.h5ad", folder / "cells.zarr"


def annbatch_loader(path: Path) -> Iterable[Any]:
    """Open annbatch's loader as its script does."""
    from annbatch import Loader

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "threading.max_workers": None})
    loader = Loader(
        shuffle=True, chunk_size=256, preload_nchunks=64, batch_size=BATCH, preload_to_gpu=False, to="torch"
    )
    group = zarr.open(str(path))
    obs = anndata.io.read_elem(group["obs"])[["cell_line"]]
    return loader.add_datasets(datasets=[anndata.io.sparse_dataset(group["X"])], obs=[obs])


def scdataset_loader(path: Path) -> Iterable[Any]:
    """Open scDataset over backed AnnData as the script does."""
    from scdataset import BlockShuffling, scDataset

    cells = anndata.experimental.AnnCollection([anndata.read_h5ad(path, backed="r")])
    dataset = scDataset(
        cells, BlockShuffling(block_size=4), batch_size=BATCH, fetch_factor=16, fetch_callback=lambda c, k: c[k].X
    )
    return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=THREADS, prefetch_factor=17)


def ours(path: Path) -> Iterable[Any]:
    """Open our loader of the .h5ad."""
    fields = {"x": Field("X", ragged="packed"), "cell_line": "obs/cell_line"}
    return H5StreamLoader(path, BATCH, shuffle=True, fields=fields, keep="never")


def kept(path: Path) -> Iterable[Any]:
    """Open our loader with all that fits kept in memory."""
    fields = {"x": Field("X", ragged="packed"), "cell_line": "obs/cell_line"}
    return H5StreamLoader(path, BATCH, shuffle=True, fields=fields, memory_budget="12GiB")


READERS = {
    "annbatch, zarr": annbatch_loader,
    "scDataset, .h5ad, 2 workers": scdataset_loader,
    "h5stream, .h5ad, keep='never'": ours,
    "h5stream, .h5ad with lz4, keep='never'": ours,
    "h5stream, .h5ad, kept in memory": kept,
}


def matrix_of(batch: Any) -> Any:
    """Give the values of a batch of any reader: a sparse tensor, scipy's matrix, or our own rows."""
    return batch["x"] if isinstance(batch, dict) and "x" in batch else batch["X"] if isinstance(batch, dict) else batch


def cells_in(batch: Any) -> int:
    """Count the cells of a batch."""
    x = matrix_of(batch)
    return len(x.offsets) - 1 if hasattr(x, "offsets") else int(x.shape[0])


def sum_of(batch: Any) -> float:
    """Sum the values of a batch."""
    x = matrix_of(batch)
    values = x.values() if isinstance(x, torch.Tensor) else x.data if scipy.sparse.issparse(x) else x.values
    return float(np.asarray(values).sum(dtype="f8"))


def timed(reader: str, path: Path, wanted: float) -> dict[str, Any]:
    """Time epochs, or a part of one; then check that an epoch has each value."""
    warnings.simplefilter("ignore")
    loader = READERS[reader](path)
    rates = list[float]()
    for _ in range(EPOCHS):
        since, cells = time.perf_counter(), 0
        for batch in loader:
            cells += cells_in(batch)
            if time.perf_counter() - since > PART_S and cells < CELLS:
                return {"rates": [cells / (time.perf_counter() - since)], "part": True}
        rates.append(cells / (time.perf_counter() - since))
    found = [(cells_in(batch), sum_of(batch)) for batch in loader]
    if sum(cells for cells, _ in found) != CELLS or not np.isclose(sum(total for _, total in found), wanted):
        raise ValueError(f"{reader} does not bring each cell once")
    return {"rates": rates}


def total_of(path: Path) -> dict[str, Any]:
    """Give the sum of all values of the file."""
    return {"total": float(anndata.read_h5ad(path).X.sum(dtype="f8"))}


def measure(folder: Path, seed: int, _: Path) -> list[dict[str, Any]]:
    """Time each reader of the same cells."""
    h5ad, lz4, sharded = made(folder, seed)
    total, case = apart(total_of, h5ad)["total"], f"{CELLS:,} cells"
    results = [result(case, one.name, "size", disk_nbytes(one) / 1e6, "MB") for one in (h5ad, lz4, sharded)]
    for reader in READERS:
        path = sharded if "zarr" in reader else lz4 if "lz4" in reader else h5ad
        warm(path)
        found = apart(timed, reader, path, total)
        results += [result(case, reader, "first epoch", found["rates"][0], "cells/s")]
        if not found.get("part"):
            results += [result(case, reader, "later epochs", statistics.median(found["rates"][1:]), "cells/s")]
    return results
