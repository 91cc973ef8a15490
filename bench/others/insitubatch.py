"""insitubatch's `bench`: samples of 1 MB of a zarr array, zstd, with 1, 8 and 32 of them in a chunk.

Its program reads 32 batches before it times, which touches its memory; ours touch theirs too.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import zarr

from bench.child import warm
from bench.others.common import apart, decoding_alone, lines_of_json, rates, result, said
from h5stream import H5Dataset, H5StreamLoader

SAMPLES, SIDE, BATCH, CHUNKS, EPOCHS, NAME = 512, 512, 32, (1, 8, 32), 4, "t2m"
BLOCKS = (8, 32)  # chunks that are mixed with one another, as their `--full` has them; the best counts


def twin(source: Path, target: Path) -> None:
    """Write the zarr array as a dataset with the same chunks and filter."""
    array = zarr.open_array(str(source), path=NAME, mode="r")
    with h5py.File(target, "w") as file:
        made = file.create_dataset(NAME, array.shape, array.dtype, chunks=array.chunks, compression=hdf5plugin.Zstd())
        for begin in range(0, SAMPLES, 64):
            made[begin : begin + 64] = array[begin : begin + 64]


def checked(source: Path, path: Path, chunk: int) -> dict[str, Any]:
    """Compare what both bring of an epoch: the number of samples, and the sum of each."""
    from insitubatch import open_geometries, split_by_chunk
    from insitubatch.source import InSituDataset
    from insitubatch.store import obstore_store

    store = obstore_store(f"file://{source}")
    geometries = {NAME: open_geometries(store)[NAME]}
    split = split_by_chunk(geometries[NAME], fractions=(0.8, 0.1, 0.1))
    theirs = InSituDataset(store, split, geometries=geometries, batch_size=BATCH, block_chunks=8)
    one = np.concatenate([batch.arrays[NAME].sum(axis=(1, 2), dtype="f8") for batch in theirs.train])
    numbers = np.sort(np.concatenate([np.arange(c * chunk, (c + 1) * chunk) for c in split.chunks["train"]]))
    with H5StreamLoader(H5Dataset(path, NAME).subset(numbers), BATCH, shuffle=True) as loader:
        other = np.concatenate([batch.numpy().sum(axis=(1, 2), dtype="f8") for batch in loader])
    return {"same": bool(np.array_equal(np.sort(one), np.sort(other))), "numbers": numbers}


def ours(path: Path, numbers: np.ndarray, keep: str, seed: int) -> dict[str, Any]:
    """Time our epochs of the same samples."""
    dataset = H5Dataset(path, NAME).subset(numbers)
    with H5StreamLoader(dataset, BATCH, shuffle=True, keep=keep, seed=seed) as loader:  # type: ignore[arg-type]
        return {"rates": rates(loader, len(numbers), EPOCHS, len)}


def measure(folder: Path, seed: int, checkout: Path) -> list[dict[str, Any]]:
    """Run their engines and ours, chunk size by chunk size."""
    results = []
    for chunk in CHUNKS:
        source, path = folder / f"era5_c{chunk}.zarr", folder / f"era5_c{chunk}.h5"
        more = ["--n-samples", SAMPLES, "--inner", f"{SIDE},{SIDE}", "--sample-chunk", chunk, "--seed", seed]
        said(["-m", "bench.make_dataset", "--url", f"file://{source}", *map(str, more)], checkout)
        twin(source, path)
        for one in (source, path):
            warm(one)
        found = apart(checked, source, path, chunk)
        if not found["same"]:
            raise ValueError(f"{source.name}: they do not bring the same samples")
        case, train = f"{chunk} a chunk", len(found["numbers"])
        rows = folder / f"c{chunk}.jsonl"
        words = ["--url-prefix", f"file://{folder}/era5", "--chunk-sizes", chunk, "--out", rows, "--epochs", EPOCHS]
        words += ["--engines", "insitu,workers,memory", "--caches", "none,resident", "--num-workers", 2]
        words += ["--block-chunks", ",".join(map(str, BLOCKS))]
        said(["-m", "bench", *map(str, words)], checkout)
        by_reader: dict[str, list[list[float]]] = {}
        runs: dict[tuple[object, ...], list[float]] = {}
        for row in lines_of_json(rows):
            key = row["engine"], row["cache"], row["block_chunks"], row["num_workers"]
            runs.setdefault(key, []).append(row["samples_per_s"])
        for (engine, cache, *_), values in runs.items():
            name = {"insitu": f"insitubatch, cache={cache}", "workers": "DataLoader over zarr, 2 workers"}
            by_reader.setdefault(name.get(engine, "NumPy array in memory"), []).append(values)
        for keep in ("never", "auto"):
            by_reader[f"h5stream, keep={keep!r}"] = [apart(ours, path, found["numbers"], keep, seed)["rates"]]
        for reader, lists in by_reader.items():
            results += [result(case, reader, "first epoch", max(one[0] for one in lists), "samples/s")]
            later = max(statistics.median(one[1:]) for one in lists)
            results += [result(case, reader, "later epochs", later, "samples/s")]
        alone_s = decoding_alone(path, NAME) * train / SAMPLES
        results += [result(case, "limit: only decoding", "first epoch", train / alone_s, "samples/s")]
        path.unlink()
        said(["-c", f"import shutil; shutil.rmtree({str(source)!r})"], folder)
    return results
