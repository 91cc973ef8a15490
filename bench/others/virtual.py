"""The same HDF5 file as virtual zarr (VirtualiZarr, icechunk, kerchunk), local and 20 ms away, in shuffled batches.

What people use to read HDF5 from a bucket without converting it; zarr decodes, by zarrs where that can read the store.
They read blocks of a chunk's rows, 64 of which are mixed, in threads; so do we, with our own shuffle.
"""

from __future__ import annotations

import contextlib
import json
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from bench.child import warm
from bench.object_server import Distance, store_of
from bench.object_store import options
from bench.others.common import apart, result
from bench.peers.block_shuffle import BlockShuffle
from bench.peers.source import write_source
from h5stream import H5StreamLoader

ROWS, BATCH, EPOCHS = 262_144, 8192, 4
THREADS = {"local": 2, "20 ms away": 32}
Reading = Callable[[Any, str], Any]


def _registry(url: str) -> Any:
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import HTTPStore, LocalStore

    if url.startswith("file://"):
        return ObjectStoreRegistry({"file://": LocalStore()})
    base = url.rsplit("/", 1)[0]
    return ObjectStoreRegistry({base: HTTPStore.from_url(base, client_options={"allow_http": True})})


def by_manifest(url: str) -> Any:
    """Open the group with VirtualiZarr alone, over obstore."""
    from virtualizarr.parsers import HDFParser

    return zarr.open_group(HDFParser()(url=url, registry=_registry(url)), mode="r", zarr_format=3)


def _virtual(url: str) -> Any:
    import virtualizarr
    from virtualizarr.parsers import HDFParser

    return virtualizarr.open_virtual_dataset(
        url=url, registry=_registry(url), parser=HDFParser(), loadable_variables=[]
    )


def by_icechunk(url: str) -> Any:
    """Open the group by virtual references in an icechunk repository."""
    import icechunk

    base = url.rsplit("/", 1)[0] + "/"
    is_local = base.startswith("file://")
    reached = icechunk.local_filesystem_store(base.removeprefix("file://")) if is_local else icechunk.http_store()
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(base, reached))
    repository = icechunk.Repository.create(
        icechunk.in_memory_storage(), config=config, authorize_virtual_chunk_access={base: None}
    )
    session = repository.writable_session("main")
    _virtual(url).vz.to_icechunk(session.store)
    session.commit("references")
    return zarr.open_group(repository.readonly_session("main").store, mode="r")


def by_kerchunk(url: str) -> Any:
    """Open the group by kerchunk's references, over fsspec."""
    from fsspec.implementations.reference import ReferenceFileSystem
    from zarr.storage import FsspecStore

    references = _virtual(url).vz.to_kerchunk(format="dict")
    protocol = url.partition("://")[0]
    is_async = protocol != "file"
    system = ReferenceFileSystem(
        references,
        remote_protocol=protocol,
        remote_options={"asynchronous": is_async},
        asynchronous=is_async,
        skip_instance_cache=True,
    )
    return zarr.open_group(FsspecStore(system, read_only=True), mode="r", zarr_format=2)


OPENED = {"VirtualiZarr over obstore": by_manifest, "icechunk": by_icechunk, "kerchunk over fsspec": by_kerchunk}


def timed(batches: Any, expected: int) -> dict[str, Any]:
    """Time epochs, one straight after the other; then check that each had each row."""
    rates, epochs = list[float](), list[list[Any]]()
    since = time.perf_counter()
    for _ in range(EPOCHS):
        epochs.append([np.asarray(y) for _, y in batches])
        now = time.perf_counter()
        rates.append(expected / (now - since))
        since = now
    for labels in epochs:
        if len(every := np.concatenate(labels)) != expected or len(np.unique(every)) != expected:
            raise ValueError("not each row once")
    return {"rates": rates}


def theirs(reader: str, url: str, place: str) -> dict[str, Any]:
    """Time a virtual group's epochs; the label is kept in memory."""
    warnings.simplefilter("ignore")
    logging.disable()
    if reader == "icechunk":
        import zarrs  # noqa: F401

        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    group = OPENED[reader](url)
    x, y = group["x"], np.asarray(group["y"][:])
    return timed(BlockShuffle(ROWS, BATCH, lambda a, b: (x[a:b], y[a:b]), THREADS[place]), ROWS)


def ours(url: str, store: Any, seed: int) -> dict[str, Any]:
    """Time our epochs, none of them from memory."""
    with H5StreamLoader(
        url, BATCH, shuffle=True, fields=["x", "y"], keep="never", seed=seed, storage_options=store
    ) as loader:
        return timed(loader, ROWS)


def same(url: str) -> dict[str, Any]:
    """Compare a part of each virtual group with what h5py reads."""
    import h5py

    warnings.simplefilter("ignore")
    with h5py.File(url.removeprefix("file://")) as file:
        x = file["x"][5000:9000]
    return {name: bool(np.array_equal(opened(url)["x"][5000:9000], x)) for name, opened in OPENED.items()}


@contextlib.contextmanager
def places(folder: Path) -> Iterator[dict[str, tuple[str, str, Any]]]:
    """Give for each place the address for theirs, that for ours and its options."""
    path = folder / "bucket" / "rows.h5"
    with store_of(folder, Distance(latency_ms=20.0)) as url:
        yield {
            "local": (f"file://{path}", str(path), None),
            "20 ms away": (f"{url}/bucket/rows.h5", "s3://bucket/rows.h5", options(url)),
        }


def measure(folder: Path, seed: int, _: Path) -> list[dict[str, Any]]:
    """Time each way to the rows, in both places."""
    path = folder / "bucket" / "rows.h5"
    path.parent.mkdir()
    write_source(path, ROWS, "gzip4_shuffle")
    warm(path)
    if not all((agreed := apart(same, f"file://{path}")).values()):
        raise ValueError(json.dumps(agreed))
    results = []
    with places(folder) as where:
        for place, (far, near, store) in where.items():
            found = {reader: apart(theirs, reader, far, place)["rates"] for reader in OPENED}
            found["h5stream"] = apart(ours, near, store, seed)["rates"]
            for reader, rates in found.items():
                results += [result(place, reader, "first epoch", rates[0], "rows/s")]
                results += [result(place, reader, "later epochs", statistics.median(rates[1:]), "rows/s")]
    return results
