"""Peers with a format of their own: each converts first, and its conversion is timed."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from bench.peers.block_shuffle import SHUFFLE, BlockShuffle
from bench.peers.on_hdf5 import PairsOf
from bench.peers.protocol import CHUNK_ROWS, WORKERS, ByImport
from bench.peers.source import length, slabs


class ZarrWithZarrs(ByImport):
    """Zarr v3 arrays with the HDF5 file's chunks, read by the Rust pipeline; zstd where the source is compressed."""

    name, needs, reads, shuffle = "zarr with zarrs, block shuffle", ("zarr", "zarrs"), "converted", SHUFFLE

    def prepare(self, source: Path, folder: Path) -> Path:
        import zarr

        with h5py.File(source, "r") as file:
            rows, width = file["x"].shape
            compressors = None if file["x"].compression is None else "auto"
        group = zarr.open_group(str(folder / "zarr"), mode="w")
        chunks = (min(rows, CHUNK_ROWS), width)
        x = group.create_array("x", shape=(rows, width), chunks=chunks, dtype="f4", compressors=compressors)
        y = group.create_array("y", shape=(rows,), chunks=(min(rows, 8192),), dtype="i8", compressors=compressors)
        for start, values, labels in slabs(source):
            x[start : start + len(values)] = values
            y[start : start + len(labels)] = labels
        return folder / "zarr"

    def open(self, path: Path, batch_rows: int) -> Any:
        import zarr

        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "threading.max_workers": WORKERS})
        group = zarr.open_group(str(path), mode="r")
        x, y = group["x"], group["y"][:]  # the label is small: kept, as we keep it
        return BlockShuffle(len(y), batch_rows, lambda a, b: (x[a:b], y[a:b]))


class HuggingFace(ByImport):
    """Arrow files on disk, mapped; whole batches by a list of rows, which is its quick way."""

    name, needs, reads = f"Hugging Face datasets (Arrow), {WORKERS} workers", ("datasets",), "converted"
    shuffle = "full"

    def prepare(self, source: Path, folder: Path) -> Path:
        import datasets

        with h5py.File(source, "r") as file:
            width = file["x"].shape[1]
        features = datasets.Features(
            {"x": datasets.Sequence(datasets.Value("float32"), length=width), "y": datasets.Value("int64")}
        )
        made = datasets.Dataset.from_generator(
            _arrow_rows,
            features=features,
            gen_kwargs={"source": str(source)},
            cache_dir=str(folder / "cache"),
        )
        made.save_to_disk(str(folder / "arrow"))
        return folder / "arrow"

    def open(self, path: Path, batch_rows: int) -> Any:
        import datasets

        data = datasets.load_from_disk(str(path)).with_format("torch")
        batches = BatchSampler(RandomSampler(data), batch_rows, drop_last=False)
        return PairsOf(DataLoader(data, sampler=batches, batch_size=None, num_workers=WORKERS), "x", "y")


def _arrow_rows(source: str) -> Iterator[dict[str, Any]]:
    for _, x, y in slabs(Path(source)):
        for row, label in zip(x, y, strict=True):
            yield {"x": row, "y": label}


class LitData(ByImport):
    name, needs, reads = f"litdata, {WORKERS} workers", ("litdata",), "converted"
    shuffle = "chunks of 64 MB, rows mixed inside each"

    def prepare(self, source: Path, folder: Path) -> Path:
        import litdata

        starts = list(range(0, length(source), CHUNK_ROWS))
        litdata.optimize(
            fn=functools.partial(_litdata_rows, str(source)),
            inputs=starts,
            output_dir=str(folder / "litdata"),
            chunk_bytes="64MB",
            num_workers=WORKERS,
            verbose=False,
        )
        return folder / "litdata"

    def open(self, path: Path, batch_rows: int) -> Any:
        import litdata

        data = litdata.StreamingDataset(str(path), shuffle=True, drop_last=False)
        return PairsOf(litdata.StreamingDataLoader(data, batch_size=batch_rows, num_workers=WORKERS), "x", "y")


def _litdata_rows(source: str, start: int) -> Iterator[dict[str, Any]]:
    with h5py.File(source, "r") as file:
        x, y = file["x"][start : start + CHUNK_ROWS], file["y"][start : start + CHUNK_ROWS]
    for row, label in zip(x, y, strict=True):
        yield {"x": np.ascontiguousarray(row), "y": int(label)}


class Mosaic(ByImport):
    name, needs, reads = f"MosaicML streaming (MDS), {WORKERS} workers", ("streaming",), "converted"
    shuffle = "blocks of 262,144 rows, mixed inside (py1e)"

    def load(self) -> None:
        stand_in_for_torchvision()
        super().load()

    def prepare(self, source: Path, folder: Path) -> Path:
        from streaming import MDSWriter

        with h5py.File(source, "r") as file:
            width = file["x"].shape[1]
        columns = {"x": f"ndarray:float32:{width}", "y": "int64"}
        with MDSWriter(out=str(folder / "mds"), columns=columns) as out:
            for _, x, y in slabs(source):
                for row, label in zip(x, y, strict=True):
                    out.write({"x": row, "y": label})
        return folder / "mds"

    def open(self, path: Path, batch_rows: int) -> Any:
        import streaming

        streaming.base.util.clean_stale_shared_memory()
        data = streaming.StreamingDataset(
            local=str(path), shuffle=True, batch_size=batch_rows, num_canonical_nodes=1, shuffle_block_size=1 << 18
        )
        return PairsOf(streaming.StreamingDataLoader(data, batch_size=batch_rows, num_workers=WORKERS), "x", "y")


def stand_in_for_torchvision() -> None:
    """Let ``streaming`` be imported where torchvision is not installed.

    It imports a base class from it for folders of images, which are not measured; torchvision itself would
    bring another torch than the one that all peers are measured with.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return
    import transformers.feature_extraction_utils  # noqa: F401  looks for torchvision, and must not find this

    names = ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional")
    made = {name: types.ModuleType(name) for name in names}
    for name, module in made.items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    made["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
    made["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
    sys.modules.update(made)
