"""Rows of a sparse matrix, as AnnData writes it: shuffled epochs beside anndata itself, scDataset and annbatch.

    python -m pytest bench/test_sparse.py --benchmark-enable --benchmark-json=sparse.json -s

By default 20,000 rows; `H5STREAM_BENCH_SPARSE=full` takes 100,000 x 30,000 at 5 % (150 million values, 1.2 GB; with
`H5STREAM_BENCH_FOLDER` they are kept) and holds ours to what is promised. anndata reads a batch of random rows at a
time, as programs do; scDataset as its authors recommend, for an epoch; annbatch reads the same rows, which it
converted for itself. Those that are not installed are left out, and the results say so.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
import warnings

import h5py
import numpy as np
import pytest

from bench import cases
from h5stream import Field, H5StreamLoader

FULL = os.environ.get("H5STREAM_BENCH_SPARSE") == "full"
ROWS, GENES, SHARE, WANTED, BATCH = (100_000 if FULL else 20_000), 30_000, 0.05, 2_000, 1024
ROUNDS, OF_ANNBATCH, OF_ANNDATA, PARTLY_S, BUDGET = 3, 1.0, 20.0, 4.0, 1 << 30
STORED = {"none": {}, "lzf": {"compression": "lzf"}, "gzip": {"compression": "gzip"}}

pytestmark = pytest.mark.timeout(3600)  # converting takes minutes


def write_cells(path, rows, stored):
    """Write a matrix with the chunks that anndata leaves to h5py, and a column of categories."""
    rng, counts = np.random.default_rng(0), []
    options = {"maxshape": (None,), **STORED[stored]}
    partial = path.with_suffix(".partial")
    with h5py.File(partial, "w") as file:
        matrix = file.create_group("X")
        most = int(rows * GENES * SHARE)
        data, indices = (
            matrix.create_dataset(n, (most,), t, **options) for n, t in (("data", "f4"), ("indices", "i4"))
        )
        end = 0
        for first in range(0, rows, 1000):
            row, column = np.nonzero(rng.random((min(1000, rows - first), GENES), "f4") < SHARE)
            for one, values in ((indices, column), (data, np.log1p(rng.geometric(0.3, len(column))))):
                one.resize((max(len(one), end + len(column)),))
                one[end : end + len(column)] = values
            counts.append(np.bincount(row, minlength=min(1000, rows - first)))
            end += len(column)
        data.resize((end,))
        indices.resize((end,))
        matrix["indptr"] = np.append(0, np.concatenate(counts).cumsum())
        _encode(matrix, "csr_matrix", shape=(rows, GENES))
        _encode(file, "anndata")
        for name, length in (("obs", rows), ("var", GENES)):
            frame = file.create_group(name)
            frame["_index"] = np.array([f"{name}{k}" for k in range(length)], dtype=h5py.string_dtype())
            _encode(frame["_index"], "string-array", "0.2.0")
            _encode(frame, "dataframe", "0.2.0", _index="_index")
            frame.attrs["column-order"] = np.array(["kind"] if name == "obs" else [], dtype=h5py.string_dtype())
        kinds = file.create_group("obs/kind")
        kinds["codes"] = rng.integers(0, 3, rows, "i1")
        kinds["categories"] = np.array(["a", "b", "c"], dtype=h5py.string_dtype())
        _encode(kinds["codes"], "array", "0.2.0")
        _encode(kinds["categories"], "string-array", "0.2.0")
        _encode(kinds, "categorical", "0.2.0", ordered=False)
    partial.rename(path)


def _encode(thing, kind, version="0.1.0", **others):
    thing.attrs.update({"encoding-type": kind, "encoding-version": version, **others})


# --- what others make of the same rows --------------------------------------------------------------------------


def genes_wanted():
    return np.sort(np.random.default_rng(1).permutation(GENES)[:WANTED])


def lacking(*modules):
    """Say which modules are not installed; empty if all are."""
    return ", ".join(one for one in modules if importlib.util.find_spec(one) is None)


def partly(batches):
    """Give the rows a second of what gives the rows of one batch after the other, the first left out."""
    batches = iter(batches)
    next(batches)
    began, rows = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < PARTLY_S or not rows:
        rows += next(batches)
    return rows / spent


def rate_of_anndata(path, dense):
    """A batch of random rows at a time, sorted as backed files want them."""
    import anndata

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cells, genes = anndata.read_h5ad(path, backed="r"), genes_wanted()
        order = np.random.default_rng(0).permutation(cells.n_obs)

        def batches():
            for first in itertools.cycle(range(0, cells.n_obs - BATCH, BATCH)):
                some = cells[np.sort(order[first : first + BATCH])].to_memory()
                x = some.X[:, genes].toarray() if dense else some.X
                yield min(len(x) if dense else x.shape[0], len(some.obs["kind"]))

        return partly(batches())


def rate_of_scdataset(path, dense):
    """Blocks of 16 rows, 16 batches fetched at once, as its authors recommend."""
    import anndata
    import torch
    from scdataset import BlockShuffling, scDataset

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cells, genes = anndata.read_h5ad(path, backed="r"), genes_wanted()

        def made(some):
            x = torch.from_numpy(some.X[:, genes].toarray()) if dense else some.X
            return x.shape[0], some.obs["kind"].cat.codes.to_numpy()

        strategy, fetch = BlockShuffling(block_size=16), lambda some: some.to_memory()
        loader = scDataset(
            cells, strategy, batch_size=BATCH, fetch_factor=16, fetch_transform=fetch, batch_transform=made
        )

        began = time.perf_counter()  # a whole epoch: what is fetched for one batch is for 15 more
        rows = sum(rows for rows, _ in loader)
        return rows / (time.perf_counter() - began)


def annbatch_epoch(path, dense):
    """Give what reads an epoch by annbatch of the same rows as zarr, which it wrote once; and how many rows."""
    import anndata
    import torch
    import zarr
    from annbatch import DatasetCollection, Loader

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    folder, genes = path.with_suffix(".zarr"), genes_wanted()
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        DatasetCollection(partial).add_adatas(adata_paths=[str(path)], shuffle=True, dataset_size="600MB")
        partial.rename(folder)
    for each in folder.rglob("*"):  # warm, as the others' file is
        if each.is_file():
            each.read_bytes()

    def load(group):
        frame = anndata.io.read_elem(group["obs"])[["kind"]]
        return anndata.AnnData(X=anndata.io.sparse_dataset(group["X"]), obs=frame)

    loader = Loader(batch_size=BATCH, shuffle=True, preload_to_gpu=False, to=None if dense else "torch")
    loader = loader.use_collection(DatasetCollection(folder), load_adata=load)

    def epoch():
        for batch in loader:
            if dense:
                torch.from_numpy(batch["X"][:, genes].toarray())

    return epoch


# --- ours -------------------------------------------------------------------------------------------------------


def field_of(form):
    if form == "packed":
        return Field("X", ragged="packed")
    return Field("X", ragged="dense", columns=genes_wanted() if form == "dense" else None)


@pytest.fixture
def cells(bench_folder):
    def file_of(stored):
        path = bench_folder / f"sparse-{ROWS}-{stored}.h5ad"
        if not path.exists():
            write_cells(path, ROWS, stored)
        with path.open("rb") as stream:
            while stream.read(1 << 24):
                pass
        return path

    return file_of


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["packed", "dense"])
@pytest.mark.parametrize("stored", STORED)
def test_an_epoch_of_rows_of_a_sparse_matrix(benchmark, cells, stored, form):
    path, dense = cells(stored), form == "dense"
    absent = {"annbatch": lacking("annbatch", "zarrs"), "scDataset": lacking("scdataset", "anndata")}
    theirs = None if absent["annbatch"] else annbatch_epoch(cells("none"), dense)
    fields = {"x": field_of(form), "kind": "obs/kind"}
    pairs = []
    for _ in range(ROUNDS):
        # Closed before the other side is timed: the next epoch would be read ahead meanwhile.
        with H5StreamLoader(path, BATCH, shuffle=True, fields=fields) as loader:

            def ours(loader=loader):
                for _ in loader:
                    pass

            for _ in range(2):  # in the second, what is read ahead of the third has its memory touched
                ours()
            mine, decoded = cases.seconds_of(ours), loader.stats().read_amplification
        pairs.append((mine, None if theirs is None else cases.seconds_of(theirs)))
    benchmark.pedantic(lambda: None, rounds=1)
    rate = ROWS / statistics.median(mine for mine, _ in pairs)
    found = {"rows_per_s": rate, "amplification": decoded}
    if theirs is not None:
        found["annbatch_rows_per_s"] = ROWS / statistics.median(each for _, each in pairs)
        found["of_annbatch"] = statistics.median(each / mine for mine, each in pairs)
    for name, measured in (("anndata", rate_of_anndata), ("scDataset", rate_of_scdataset)):
        if not absent["scDataset"]:
            found[f"{name}_rows_per_s"] = measured(path, dense)
            found[f"of_{name}"] = rate / found[f"{name}_rows_per_s"]
    benchmark.group = "sparse"
    benchmark.extra_info.update(
        case=f"{ROWS:,} x {GENES:,}", stored=stored, form=form, absent={k: v for k, v in absent.items() if v}, **found
    )
    print(f"\n{stored}, {form}, {ROWS:,} rows: {json.dumps(found)}")
    if FULL:
        assert found.get("of_annbatch", OF_ANNBATCH) >= OF_ANNBATCH
        assert min(found.get(f"of_{name}", OF_ANNDATA) for name in ("anndata", "scDataset")) >= OF_ANNDATA


MEMORY = f"""
import sys
from h5stream import Field, H5Dataset, H5StreamLoader
def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) << 10
dataset = H5Dataset(sys.argv[1], {{"x": Field("X", ragged="dense"), "kind": "obs/kind"}})
before = peak = anonymous()
with H5StreamLoader(dataset, {BATCH}, shuffle=True, memory_budget={BUDGET}) as loader:
    for _ in loader:
        peak = max(peak, anonymous())
print(peak - before)
"""


def test_the_budget_holds_with_whole_dense_rows(benchmark, cells):
    """A batch is 1,024 x 30,000 float32, 120 MB."""
    found = []
    command = [sys.executable, "-c", MEMORY, str(cells("none"))]
    benchmark.pedantic(lambda: found.append(subprocess.run(command, check=True, capture_output=True)), rounds=1)
    grown = int(found[0].stdout)
    benchmark.group = "sparse"
    benchmark.extra_info.update(case="memory", rows=ROWS, grown_nbytes=grown, budget_nbytes=BUDGET)
    print(f"\nwhole dense rows: an epoch grew the process by {grown / 2**20:,.0f} MiB of {BUDGET >> 20}")
    assert grown <= BUDGET
