"""zarr_benchmarks: 1,024^3 uint16 in chunks of 256^3, plain and with zstd, read whole and chunk by chunk.

Its own program reads zarr with zarrs; h5py and h5stream read an HDF5 twin.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import zarr

from bench.child import warm
from bench.others.common import WARMED, apart, decoding_alone, result, said
from h5stream import Boxes, H5Dataset, H5StreamLoader

SIDE, CHUNK, ROUNDS = 1024, 256, 3
PROGRAM = "src/zarr_benchmarks/zarrs_python_benchmark_read.py"


def made(folder: Path, seed: int) -> None:
    """Write the values of its generator, shifted by the seed, as zarr and as HDF5, plain and compressed."""
    g = np.arange(SIDE, dtype=np.int64)
    for name, compressors, options in (
        ("plain", None, {}),
        ("zstd", zarr.codecs.ZstdCodec(level=0), hdf5plugin.Zstd()),
    ):
        shape, chunks = (SIDE,) * 3, (CHUNK,) * 3
        array = zarr.create_array(
            str(folder / f"{name}.zarr"), shape=shape, chunks=chunks, dtype="u2", compressors=compressors
        )
        with h5py.File(folder / f"{name}.h5", "w") as file:
            made = file.create_dataset("x", shape, "u2", chunks=chunks, **options)
            for begin in range(0, SIDE, CHUNK):
                part = g[begin : begin + CHUNK, None, None] ** 3 + (g[:, None] ** 2) // 32 + g + seed
                array[begin : begin + CHUNK] = made[begin : begin + CHUNK] = (part % 65536).astype("u2")


def by_h5py(path: Path, how: str) -> dict[str, Any]:
    """Read with h5py, whole or chunk by chunk."""
    with h5py.File(path) as file:
        x, since = file["x"], time.perf_counter()
        if how == "whole":
            x[:]
        else:
            for chunk in x.iter_chunks():
                x[chunk]
        return {"s": time.perf_counter() - since}


def by_us(path: Path, how: str) -> dict[str, Any]:
    """Read with h5stream: as rows of the dataset at once, or as boxes on a grid."""
    if how == "whole":
        dataset = H5Dataset(path, "x")
        since = time.perf_counter()
        dataset[:]
        return {"s": time.perf_counter() - since}
    samples = Boxes((CHUNK,) * 3, at="grid")
    with H5StreamLoader(path, 1, fields="x", samples=samples, keep="never") as loader:
        since = time.perf_counter()
        boxes = sum(len(batch) for batch in loader)
        seconds = time.perf_counter() - since
    if boxes != (SIDE // CHUNK) ** 3:
        raise ValueError(f"{boxes} boxes")
    return {"s": seconds}


def same(folder: Path, name: str) -> dict[str, Any]:
    """Compare all three, bit for bit."""
    x = zarr.open(str(folder / f"{name}.zarr"))[:]
    with h5py.File(folder / f"{name}.h5") as file:
        is_same = np.array_equal(x, file["x"][:])
    is_same &= np.array_equal(x, H5Dataset(folder / f"{name}.h5", "x")[:].numpy())
    samples = Boxes((CHUNK,) * 3, at="grid")
    with H5StreamLoader(folder / f"{name}.h5", 1, fields="x", samples=samples) as loader:
        boxes = [batch[0].numpy() for batch in loader]
    grid = [x[a : a + CHUNK, b : b + CHUNK, c : c + CHUNK] for a in range(0, SIDE, CHUNK)
            for b in range(0, SIDE, CHUNK) for c in range(0, SIDE, CHUNK)]  # fmt: skip
    return {"same": is_same and all(map(np.array_equal, boxes, grid))}


def measure(folder: Path, seed: int, checkout: Path) -> list[dict[str, Any]]:
    """Read each file in each way, in turns; the best of each counts, as in theirs."""
    made(folder, seed)
    results = []
    for name in ("plain", "zstd"):
        path = folder / f"{name}.h5"
        for one in (path, folder / f"{name}.zarr"):
            warm(one)
        if not apart(same, folder, name)["same"]:
            raise ValueError(f"{name}: other values")
        for how, flags in (("whole", ["--read_all"]), ("by chunks", ["--concurrent_chunks", "2"])):
            best: dict[str, float] = {}
            for _ in range(ROUNDS):
                printed = said(
                    ["-c", WARMED, "click,zarr,zarrs", PROGRAM, str(folder / f"{name}.zarr"), *flags], checkout
                )
                theirs = float(re.search(r"Decoded in ([\d.]+)ms", printed)[1]) / 1e3  # type: ignore[index]
                times = {"zarr with zarrs": theirs}
                times |= {"h5py": apart(by_h5py, path, how)["s"], "h5stream": apart(by_us, path, how)["s"]}
                if name == "zstd":
                    times["limit: only decoding"] = apart(_alone, path)["s"]
                best = {reader: min(s, best.get(reader, s)) for reader, s in times.items()}
            results += [result(f"{name}, {how}", reader, "best", s, "s") for reader, s in best.items()]
    return results


def _alone(path: Path) -> dict[str, Any]:
    return {"s": decoding_alone(path, "x")}
