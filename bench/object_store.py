"""Samples out of a store that is far away: ``python -m bench.object_store --json bench/results/object-store.json``.

The store is a server of our own (`bench.object_server`): 60 MB/s a connection, so many MB/s in all, and so many
milliseconds until the first byte of each answer. Each case is held against the line alone, which is the same object
fetched by 32 requests of 2 MiB at a time, and against what people do instead, with two workers each: h5py over s3fs,
and copies in Lance, zarr, Parquet, tar files, MDS and LitData's chunks. Every loader runs in a process of its own. Ours
is timed over whole epochs, each behind another: its figures are the means of an epoch.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench.machine import describe
from bench.object_server import Distance, counts, store_of
from bench.peers.on_converted import stand_in_for_torchvision

LIMIT_S = 15.0
"""Seconds that a rival is given behind its first batch."""
LEAST_S = 2.0
"""Seconds that whole epochs of ours take together, at least."""
STEPS = 4
HOW: dict[str, Any] = {"num_workers": 2, "collate_fn": len}
BATCH = {"rows": 8192, "frames": 64, "sequences": 16, "objects": 256}
"""Case -> samples of a batch."""


def write(folder: Path) -> None:
    """Write the files: rows that compress, frames that do not, small objects."""
    rng, bucket = np.random.default_rng(0), folder / "bucket"
    bucket.mkdir()
    with h5py.File(bucket / "rows.h5", "w") as file:
        x = np.round(rng.normal(size=(196_608, 192)), 2).astype("f4")
        file.create_dataset("x", data=x, chunks=(1400, 192), compression="gzip", compression_opts=6, shuffle=True)
    with h5py.File(bucket / "frames.h5", "w") as file:
        frames = rng.integers(0, 255, (1500, 224, 224, 3), dtype="u1")
        file.create_dataset("x", data=frames, chunks=(1, 224, 224, 3))
        file["lengths"] = np.full(30, 50)
    with h5py.File(bucket / "objects.h5", "w") as file:
        for k in range(20_000):
            file[f"d/{k}"] = rng.random((3, 100), "f4")


def needed_nbytes(folder: Path, case: str) -> int:
    """Return the stored bytes that an epoch needs, each once; of sequences, which overlap, for each of them."""
    if case == "sequences":
        return 30 * (50 - STEPS + 1) * STEPS * 224 * 224 * 3
    name = case
    with h5py.File(folder / "bucket" / f"{name}.h5") as file:
        if case == "objects":
            return 20_000 * 1200
        return sum(file["x"].id.get_chunk_info(k).size for k in range(file["x"].id.get_num_chunks()))


def options(url: str) -> dict[str, Any]:
    """Return what opens the store."""
    return {"endpoint": url, "skip_signature": True, "region": "here", "client_options": {"allow_http": True}}


def line_alone(url: str, name: str, nbytes: int) -> float:
    """Return the MB/s of the line."""
    import obstore

    store = obstore.store.S3Store("bucket", **options(url))

    async def fetch() -> None:
        room = asyncio.Semaphore(32)

        async def one(begin: int) -> None:
            async with room:
                found = await obstore.get_async(store, name, options={"range": (begin, min(begin + (2 << 20), nbytes))})
                await found.bytes_async()

        await asyncio.gather(*(one(begin) for begin in range(0, nbytes, 2 << 20)))

    began = time.perf_counter()
    asyncio.run(fetch())
    return nbytes / (time.perf_counter() - began) / 1e6


# --- the loaders, each in a process of its own -------------------------------------------------------------------


def ours(url: str, case: str, folder: Path, budget: str | None = None, threads: int | None = None) -> dict[str, Any]:
    """Read an epoch, and then more for two seconds, which are timed."""
    from bench.memory import forget_peak, resident_nbytes, warmed
    from h5stream import H5Dataset, H5StreamLoader, Lengths, Objects, Sequences

    name = "frames" if case == "sequences" else case
    kinds: dict[str, Any] = {"sequences": Sequences(STEPS, of=Lengths("lengths")), "objects": Objects("d/*")}
    before = warmed(folder)
    forget_peak()
    counts(url)
    began = time.perf_counter()
    dataset = H5Dataset(
        f"s3://bucket/{name}.h5",
        "." if case == "objects" else "x",
        samples=kinds.get(case),
        storage_options=options(url),
    )
    opened_s, at_opening = time.perf_counter() - began, counts(url)
    how: dict[str, Any] = {"keep": "never", "memory_budget": budget, "num_workers": threads}
    with H5StreamLoader(dataset, BATCH[case], True, seed=0, **how) as loader:
        batches = iter(loader)
        first = next(batches)
        first_s = time.perf_counter() - began
        del first
        for batch in batches:
            del batch
        counts(url)
        began, samples, epochs = time.perf_counter(), 0, 0
        while (seconds := time.perf_counter() - began) < LEAST_S:
            samples, epochs = samples + sum(len(batch) for batch in loader), epochs + 1
        asked = counts(url)
    return {
        "opened_s": opened_s,
        "requests_to_open": at_opening["requests"],
        "nbytes_to_open": at_opening["nbytes"],
        "first_batch_s": first_s,
        "seconds": seconds,
        "epochs": epochs,
        "samples_per_s": samples / seconds,
        "requests": round(asked["requests"] / epochs),
        "nbytes": round(asked["nbytes"] / epochs),
        "grown_mib": (resident_nbytes("VmHWM") - before) / 2**20,
    }


class Samples:
    """What each rival reads: by its number, `count` rows from one on; opened in each worker at the first sample."""

    def __init__(self, url: str, case: str, folder: Path) -> None:
        self.url, self.case, self.folder = url, case, folder
        self.rows = {"rows": 196_608, "objects": 20_000}.get(case, 1500)
        self.count = STEPS if case == "sequences" else 1
        self.opened: Any = None

    def __len__(self) -> int:
        return self.rows - self.count

    def __getitem__(self, number: int) -> np.ndarray:
        if self.opened is None:
            self.opened = self.open()
        return self.read(number)

    def loader(self, batch: int) -> Any:
        """Return what gives batches, of which the length counts."""
        from torch.utils.data import DataLoader

        return DataLoader(self, batch, shuffle=True, multiprocessing_context="spawn", **HOW)

    def open(self) -> Any:
        """Open what is read."""
        raise NotImplementedError

    def read(self, number: int) -> np.ndarray:
        """Read a sample."""
        found: np.ndarray = self.opened[number : number + self.count]
        return found


class OverS3fs(Samples):
    """The file itself, by h5py."""

    def open(self) -> Any:
        """Open the file."""
        import s3fs

        there = s3fs.S3FileSystem(anon=True, endpoint_url=self.url)
        name = "frames" if self.case == "sequences" else self.case
        file = h5py.File(there.open(f"bucket/{name}.h5", "rb"))
        return file["d"] if self.case == "objects" else file["x"]

    def read(self, number: int) -> np.ndarray:
        """Read rows, or an object."""
        return self.opened[str(number)][:] if self.case == "objects" else super().read(number)


class Lance(Samples):
    """A copy in Lance, a row of bytes each."""

    @staticmethod
    def convert(name: str, values: Iterator[np.ndarray], bucket: Path) -> None:
        """Write the copy."""
        import lance
        import pyarrow as pa

        schema = pa.schema([("x", pa.binary())])
        batches = (
            pa.record_batch([pa.array([row.tobytes() for row in some], pa.binary())], schema=schema) for some in values
        )
        lance.write_dataset(batches, bucket / f"{name}.lance", schema=schema)

    def open(self) -> Any:
        """Open the copy."""
        import lance

        name = "frames" if self.case == "sequences" else self.case
        given = {"aws_endpoint": self.url, "aws_skip_signature": "true", "allow_http": "true", "aws_region": "here"}
        return lance.dataset(f"s3://bucket/{name}.lance", storage_options=given)

    def __getitems__(self, numbers: list[int]) -> list[bytes]:
        if self.opened is None:
            self.opened = self.open()
        wanted = [number + k for number in numbers for k in range(self.count)]
        return self.opened.take(wanted)["x"].to_pylist()  # type: ignore[no-any-return]


class Zarr(Samples):
    """A copy in zarr 3, of the same chunks, read by obstore."""

    @staticmethod
    def convert(name: str, values: Iterator[np.ndarray], bucket: Path) -> None:
        """Write the copy."""
        import zarr

        every = np.concatenate([*values])
        rows = {"rows": 1400, "frames": 1, "objects": 1}[name]
        kept = zarr.create_array(
            bucket / f"{name}.zarr", shape=every.shape, chunks=(rows, *every.shape[1:]), dtype=every.dtype,
            compressors="auto" if name == "rows" else None,
        )  # fmt: skip
        kept[:] = every

    def open(self) -> Any:
        """Open the copy."""
        import obstore
        import zarr

        name = "frames" if self.case == "sequences" else self.case
        store = obstore.store.S3Store("bucket", prefix=f"{name}.zarr", **options(self.url))
        return zarr.open_array(zarr.storage.ObjectStore(store, read_only=True), mode="r")


class Streamed(Samples):
    """A copy in Parquet, in two files, streamed in its order through a buffer that is shuffled: no random access."""

    start = "spawn"

    @staticmethod
    def convert(name: str, values: Iterator[np.ndarray], bucket: Path) -> None:
        """Write the copy."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = [row.tobytes() for some in values for row in some]
        for k in range(2):
            table = pa.table({"x": pa.array(rows[k::2], pa.binary())})
            pq.write_table(table, bucket / f"{name}-{k}.parquet", row_group_size=1000)

    def stream(self) -> Any:
        """Open the copy."""
        import datasets

        names = [f"s3://bucket/{self.case}-{k}.parquet" for k in range(2)]
        given = {"anon": True, "endpoint_url": self.url}
        found = datasets.load_dataset("parquet", data_files=names, split="train", streaming=True, storage_options=given)
        return found.shuffle(seed=0, buffer_size=1000)

    def loader(self, batch: int) -> Any:
        """Return what gives batches."""
        from torch.utils.data import DataLoader

        return DataLoader(self.stream(), batch, multiprocessing_context=self.start, **HOW)


class WebDataset(Streamed):
    """A copy in tar files, streamed by curl through a buffer that is shuffled."""

    start = "fork"

    @staticmethod
    def convert(name: str, values: Iterator[np.ndarray], bucket: Path) -> None:
        """Write the copy."""
        import webdataset

        with webdataset.ShardWriter(f"{bucket}/{name}-%05d.tar", maxsize=16 << 20, verbose=0) as out:
            for number, row in enumerate(row for some in values for row in some):
                out.write({"__key__": f"{number:08}", "x.bin": row.tobytes()})

    def stream(self) -> Any:
        """Open the copy."""
        import webdataset

        names = sorted(path.name for path in (self.folder / "bucket").glob(f"{self.case}-*.tar"))
        tars = [f"pipe:curl -s {self.url}/bucket/{name}" for name in names]
        found = webdataset.WebDataset(tars, shardshuffle=len(tars), workersplitter=webdataset.split_by_worker)
        return found.shuffle(1000).to_tuple("x.bin")


class Mosaic(Streamed):
    """A copy in MDS, whose shards are copied to the disk as they are needed."""

    start = "fork"

    @staticmethod
    def convert(name: str, values: Iterator[np.ndarray], bucket: Path) -> None:
        """Write the copy."""
        stand_in_for_torchvision()
        from streaming import MDSWriter

        with MDSWriter(out=f"{bucket}/{name}.mds", columns={"x": "bytes"}, size_limit=16 << 20) as out:
            for row in (row for some in values for row in some):
                out.write({"x": row.tobytes()})

    def stream(self) -> Any:
        """Open the copy."""
        stand_in_for_torchvision()
        import streaming

        os.environ |= {"S3_ENDPOINT_URL": self.url, **ANYBODY}
        streaming.base.util.clean_stale_shared_memory()
        where, local = f"s3://bucket/{self.case}.mds", tempfile.mkdtemp(dir=self.folder)
        return streaming.StreamingDataset(
            remote=where, local=local, shuffle=True, batch_size=16, num_canonical_nodes=1, shuffle_block_size=1 << 18
        )


class LitData(Streamed):
    """A copy in chunks of LitData's, which are copied to the disk as they are needed."""

    @staticmethod
    def convert(name: str, values: Iterator[np.ndarray], bucket: Path) -> None:
        """Write the copy."""
        from litdata.streaming.cache import Cache

        cache = Cache(f"{bucket}/{name}.lit", chunk_bytes=16 << 20)
        for number, row in enumerate(row for some in values for row in some):
            cache[number] = {"x": row.tobytes()}
        cache.done()
        cache.merge()

    def loader(self, batch: int) -> Any:
        """Return what gives batches."""
        import litdata

        litdata.streaming.downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # which it has no option for
        given = {"endpoint_url": self.url, "region_name": "here"}
        os.environ |= ANYBODY
        found = litdata.StreamingDataset(
            f"s3://bucket/{self.case}.lit",
            shuffle=True,
            storage_options=given,
            cache_dir=tempfile.mkdtemp(dir=self.folder),
        )
        return litdata.StreamingDataLoader(found, batch_size=batch, **HOW)


ANYBODY = {
    "AWS_ACCESS_KEY_ID": "anybody",
    "AWS_SECRET_ACCESS_KEY": "anybody",
    "AWS_DEFAULT_REGION": "here",
}

RIVALS: dict[str, type[Samples]] = {
    "h5py + s3fs": OverS3fs,
    "Lance": Lance,
    "zarr + obstore": Zarr,
    "datasets (streamed)": Streamed,
    "WebDataset (streamed)": WebDataset,
    "MDS (streamed)": Mosaic,
    "LitData (streamed)": LitData,
}


def _values(name: str, bucket: Path) -> Iterator[np.ndarray]:
    with h5py.File(bucket / f"{name}.h5") as file:
        if name == "objects":
            yield np.stack([file[f"d/{k}"][:] for k in range(20_000)])
        else:
            for first in range(0, len(file["x"]), 14_000):
                yield file["x"][first : first + 14_000]


def rival(name: str, url: str, case: str, folder: Path) -> dict[str, Any]:
    """Read shuffled batches for some seconds."""
    batch = min(16, BATCH[case])  # more would take minutes
    samples: Any = RIVALS[name](url, case, folder)
    is_streamed = isinstance(samples, Streamed)
    loader = samples.loader(batch)
    counts(url)
    began, taken, first_s = time.perf_counter(), 0, 0.0
    for found in loader:
        now = time.perf_counter()
        if not first_s:
            first_s, after_first = now - began, now
            continue
        taken += found // (samples.count if name == "Lance" else 1)
        if now - after_first > LIMIT_S:
            break
    seconds = max(1e-9, now - after_first)
    if is_streamed:  # whose first batch waits for what the others are made of
        taken, seconds = taken + batch, seconds + first_s
    return {"first_batch_s": first_s, "samples_per_s": taken / seconds, "seconds": seconds}


def _apart(loader: str, url: str, case: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.object_store", "--one", loader, url, case, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if ended.returncode:
        return {"failed": (ended.stderr.strip().splitlines() or ["?"])[-1][:200]}
    return json.loads(ended.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def measure(folder: Path, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure each case at each distance."""
    loaders = ["h5stream", "h5stream, 256 MiB", *(f"h5stream, {count} threads" for count in given.threads)]
    for latency in given.latency_ms:
        distance = Distance(latency_ms=latency, total_mb_s=given.total_mb_s)
        for case in given.cases:
            with store_of(folder, distance) as url:
                name = f"{'frames' if case == 'sequences' else case}.h5"
                line = line_alone(url, name, (folder / "bucket" / name).stat().st_size)
                for loader in loaders:
                    found = _apart(loader, url, case, folder)
                    row = {"case": case, "latency_ms": latency, "line_mb_s": line, "loader": loader, **found}
                    if "seconds" in found:
                        row["of_line"] = found["nbytes"] * found["epochs"] / found["seconds"] / 1e6 / line
                        row["nbytes_of_needed"] = found["nbytes"] / needed_nbytes(folder, case)
                        row["round_trips_to_open"] = found["opened_s"] * 1e3 / latency
                    yield row
                for one in given.rivals if latency in given.rivals_ms else ():
                    if "streamed" in one and case == "sequences":  # which are not in its order
                        continue
                    yield {"case": case, "latency_ms": latency, "loader": one, **_apart(one, url, case, folder)}


def main() -> None:
    """Measure, print a line for each, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--folder", type=Path, help="where the files are written")
    parser.add_argument("--cases", nargs="+", choices=BATCH, default=[*BATCH])
    parser.add_argument("--rivals", nargs="*", choices=RIVALS, default=[*RIVALS])
    parser.add_argument("--latency-ms", nargs="+", type=float, default=[2, 20, 100], help="distances")
    parser.add_argument("--rivals-ms", nargs="+", type=float, default=[20], help="those that rivals are measured at")
    # Less than one of two processors can receive and decode.
    parser.add_argument("--total-mb-s", type=float, default=100, help="what the line brings in all")
    parser.add_argument("--threads", nargs="*", type=int, default=[], help="numbers of readers, beside the default")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        loader, url, case, there = given.one
        count = loader.partition(", ")[2].removesuffix(" threads")
        how = {"budget": "256MiB"} if "MiB" in count else {"threads": int(count)} if count else {}
        run = functools.partial(ours, **how) if loader.startswith("h5stream") else functools.partial(rival, loader)
        print(json.dumps(run(url, case, Path(there))))
        return
    results = []
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        write(Path(place))
        for name in ("rows", "frames", "objects"):
            for one in given.rivals:
                if convert := getattr(RIVALS[one], "convert", None):
                    convert(name, _values(name, Path(place) / "bucket"), Path(place) / "bucket")
        for row in measure(Path(place), given):
            results.append(row)
            said = {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}
            print(" ".join(f"{name}={value}" for name, value in said.items()), flush=True)
    if given.json:
        given.json.write_text(
            json.dumps({**describe(), "total_mb_s": given.total_mb_s, "results": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
