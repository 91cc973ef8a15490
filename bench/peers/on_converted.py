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


class Lance(ByImport):
    """Rows of a fixed size, whole batches by a list of rows, in workers that are started afresh as it asks for."""

    name, needs, reads, shuffle = f"Lance, {WORKERS} workers", ("lance",), "converted", "full"

    def prepare(self, source: Path, folder: Path) -> Path:
        import lance
        import pyarrow as pa

        with h5py.File(source, "r") as file:
            width = file["x"].shape[1]
        schema = pa.schema([("x", pa.list_(pa.float32(), width)), ("y", pa.int64())])
        batches = (
            pa.record_batch([pa.FixedSizeListArray.from_arrays(x.reshape(-1), width), y], schema=schema)
            for _, x, y in slabs(source)
        )
        lance.write_dataset(batches, folder / "rows.lance", schema=schema)
        return folder / "rows.lance"

    def open(self, path: Path, batch_rows: int) -> Any:
        rows = _LanceRows(str(path))
        how: dict[str, Any] = {"num_workers": WORKERS, "multiprocessing_context": "spawn", "persistent_workers": True}
        return DataLoader(rows, batch_rows, shuffle=True, collate_fn=_as_they_are, **how)


class _LanceRows:
    def __init__(self, path: str) -> None:
        import lance

        self.path, self.opened = path, None
        self.rows = lance.dataset(path).count_rows()

    def __len__(self) -> int:
        return self.rows

    def __getitems__(self, numbers: list[int]) -> Any:
        import lance
        import torch

        if self.opened is None:
            self.opened = lance.dataset(self.path)
        found = self.opened.take(numbers).combine_chunks()
        x = found["x"].combine_chunks().flatten().to_numpy().reshape(len(numbers), -1)
        return torch.from_numpy(x.copy()), torch.from_numpy(found["y"].to_numpy().copy())


def _as_they_are(batch: Any) -> Any:
    return batch


class WebDataset(ByImport):
    """Tar files of single rows, streamed through a buffer that is shuffled."""

    name, needs, reads = f"WebDataset, {WORKERS} workers", ("webdataset",), "converted"
    shuffle = "tar files, and a buffer of 10,000 rows"

    def prepare(self, source: Path, folder: Path) -> Path:
        import webdataset

        with webdataset.ShardWriter(str(folder / "%05d.tar"), maxcount=16 * CHUNK_ROWS, verbose=0) as out:
            for first, x, y in slabs(source):
                for row, label, number in zip(x, y, range(first, first + len(x)), strict=True):
                    out.write({"__key__": f"{number:08}", "x.npy": row, "y.npy": label})
        return folder

    def open(self, path: Path, batch_rows: int) -> Any:
        import webdataset

        files = sorted(map(str, path.glob("*.tar")))
        rows = (
            webdataset.WebDataset(files, shardshuffle=len(files), workersplitter=webdataset.split_by_worker)
            .shuffle(10_000)
            .decode()
            .to_tuple("x.npy", "y.npy")
            .batched(batch_rows)
        )
        return webdataset.WebLoader(rows, batch_size=None, num_workers=WORKERS)


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
