"""SPDL's example of decoding in threads: JPEGs of 256 x 256 in batches of 32, by 1, 2, 4 and 8 threads.

The pipeline is put together as `examples/multi_thread_preprocessing.py` does it, without the resizing: files of a
folder, decoded by FFmpeg in the threads of SPDL's Pipeline. A DataLoader decodes the same files by Pillow. Ours reads
the same JPEGs out of one HDF5 file, shuffled. Limit: only decoding in as many threads, by the library that ours uses.

SPDL needs FFmpeg's libraries; those of PyAV's wheel do, if LD_LIBRARY_PATH names a folder of links such as
libavutil.so.60 to them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import imagecodecs
import numpy as np
import torch
from PIL import Image

from bench.child import warm
from bench.others.common import apart, result
from h5stream import Field, H5StreamLoader

COUNT, SIDE, BATCH, THREADS, ROUNDS, MOST_APART = 4096, 256, 32, (1, 2, 4, 8), 3, 5.0


def made(folder: Path, seed: int) -> tuple[list[Path], Path]:
    """Write images as files, and all of them into one HDF5 file."""
    rng = np.random.default_rng(seed)
    (folder / "jpeg").mkdir()
    files = []
    with h5py.File(folder / "a.h5", "w") as file:
        held = file.create_dataset("image", (COUNT,), h5py.vlen_dtype(np.uint8))
        for k in range(COUNT):
            coarse = Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8))
            pixels = np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.int16)
            pixels = (pixels + rng.integers(-8, 9, pixels.shape)).clip(0, 255).astype("u1")
            data = imagecodecs.jpeg_encode(pixels, level=90)
            held[k] = np.frombuffer(data, np.uint8)
            files.append(folder / "jpeg" / f"{k:05}.jpg")
            files[-1].write_bytes(data)
    return files, folder / "a.h5"


def spdl_pipeline(files: list[Path], threads: int) -> Iterable[np.ndarray]:
    """Give batches by SPDL's pipeline."""
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    scaled = spdl.io.get_video_filter_desc(scale_width=SIDE, scale_height=SIDE)

    def decoded(path: Path) -> Any:
        return spdl.io.decode_packets(spdl.io.demux_image(str(path)), filter_desc=scaled)

    def joined(frames: list[Any]) -> np.ndarray:
        array: np.ndarray = spdl.io.to_numpy(spdl.io.convert_frames(frames))
        return array

    builder = PipelineBuilder().add_source(files).pipe(decoded, concurrency=threads).aggregate(BATCH).pipe(joined)
    pipeline = builder.add_sink(threads).build(num_threads=threads)
    with pipeline.auto_stop():
        yield from pipeline.get_iterator(timeout=60)


class Pictures(torch.utils.data.Dataset[np.ndarray]):
    """Files decoded by Pillow."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, k: int) -> np.ndarray:
        """Decode a file."""
        return np.array(Image.open(self.files[k]).convert("RGB"))


def loader_of(reader: str, files: list[Path], path: Path, threads: int, seed: int) -> Any:
    """Open a reader."""
    if reader == "SPDL":
        return spdl_pipeline(files, threads)
    if reader == "h5stream":
        field = Field("image", decode="jpeg")
        return H5StreamLoader(path, BATCH, True, num_workers=threads, fields=field, keep="never", seed=seed)
    return torch.utils.data.DataLoader(Pictures(files), BATCH, num_workers=threads)


def timed(reader: str, files: list[Path], path: Path, threads: int, seed: int) -> dict[str, Any]:
    """Time the images of some epochs."""
    rates = []
    for _ in range(ROUNDS):
        since, count = time.perf_counter(), 0
        for batch in loader_of(reader, files, path, threads, seed):
            count += len(batch)
        rates.append(count / (time.perf_counter() - since))
        if count != COUNT:
            raise ValueError(f"{reader}: {count} images")
    return {"rate": statistics.median(rates)}


def alone(files: list[Path], threads: int) -> dict[str, Any]:
    """Time decoding alone, of bytes in memory into one image's memory for each thread."""
    data = [path.read_bytes() for path in files]

    def work(part: list[bytes]) -> None:
        out = np.empty((SIDE, SIDE, 3), np.uint8)
        for one in part:
            imagecodecs.jpeg_decode(one, out=out)

    since = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        [*pool.map(work, [data[k::threads] for k in range(threads)])]
    return {"rate": COUNT / (time.perf_counter() - since)}


def nearness(files: list[Path], path: Path) -> dict[str, Any]:
    """Give how far the pixels of SPDL's and ours are apart on average: decoders differ in their chroma."""
    theirs = np.concatenate([*spdl_pipeline(files[:256], 1)]).astype(np.int16)
    with H5StreamLoader(path, 256, fields=Field("image", decode="jpeg")) as loader:
        ours = next(iter(loader)).numpy()
    return {"mean": float(np.abs(theirs - ours).mean())}


def measure(folder: Path, seed: int, _: Path) -> list[dict[str, Any]]:
    """Time each reader with each number of threads."""
    files, path = made(folder, seed)
    warm(folder)
    if (apart_by := apart(nearness, files, path)["mean"]) > MOST_APART:
        raise ValueError(f"pixels differ by {apart_by} on average")
    results = []
    for threads in THREADS:
        case = f"{threads} threads" if threads > 1 else "1 thread"
        for reader in ("SPDL", "DataLoader, Pillow", "h5stream"):
            rate = apart(timed, reader, files, path, threads, seed)["rate"]
            results.append(result(case, reader, "images", rate, "images/s"))
        results.append(result(case, "limit: only decoding", "images", apart(alone, files, threads)["rate"], "images/s"))
    return results
