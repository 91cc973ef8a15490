"""Samples of a world model: ``python -m bench.world_model --json bench/results/world-model.json``.

The file is written as stable-worldmodel writes one, a frame of 224 x 224 a chunk, and converted by its own writer to
Lance, whose frames are JPEG. Its readers are held against h5stream, each in processes of its own and in turns: raw
frames, the same under gzip, and the JPEG of the Lance copy in HDF5, so that both decode the same bytes. A sample is 4
frames, 5 rows apart, and the 20 actions. They are compared with one another before anything is timed.

    pip install --no-deps stable-worldmodel
    pip install lancedb pylance loguru tqdm pillow hdf5plugin s3fs obstore
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench.child import run_child
from bench.machine import describe
from bench.object_server import Distance, store_of
from bench.object_store import options

FRAMES, SKIP, SIDE, BATCH, WORKERS = 4, 5, 224, 64, 2
LIMIT_S = 12.0
"""Seconds that each is timed for behind its first batch, or `MOST_EPOCHS`."""
MOST_EPOCHS = 10
STORED = ("raw", "gzip", "jpeg")


def episodes(seed: int, count: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield episodes: things that actions push about before a background, in light that changes, seen with noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIDE, :SIDE].astype(np.float32)
    for _ in range(count):
        length = int(rng.integers(60, 140))
        coarse = rng.uniform(60, 200, (8, 8, 3)).astype(np.float32)
        at = np.linspace(0, 6.99, SIDE).astype(np.float32)
        low, part = at.astype(int), (at % 1)[:, None, None]
        rows = coarse[low] * (1 - part) + coarse[low + 1] * part
        part = (at % 1)[None, :, None]
        behind = rows[:, low] * (1 - part) + rows[:, low + 1] * part
        colors, sizes = rng.uniform(0, 255, (4, 3)), rng.uniform(8, 30, 4)
        action = rng.normal(0, 2, (length, 2)).astype(np.float32)
        places = rng.uniform(40, SIDE - 40, (4, 2)) + np.cumsum(action, axis=0)[:, None] * rng.uniform(0.2, 1, (4, 1))
        pixels = np.empty((length, SIDE, SIDE, 3), np.uint8)
        for row, found in enumerate(places % SIDE):
            frame = behind * (1 + 0.1 * np.sin(row / 9))
            for (cy, cx), size, color in zip(found, sizes, colors, strict=True):
                frame[(y - cy) ** 2 + (x - cx) ** 2 < size**2] = color
            pixels[row] = np.clip(frame + rng.normal(0, 2.5, frame.shape), 0, 255)
        yield {"pixels": pixels, "action": action, "proprio": places[:, 0].astype(np.float32)}


def readers() -> Any:
    """Import the readers of stable-worldmodel without its simulators."""
    if "stable_worldmodel" not in sys.modules:
        found = importlib.util.find_spec("stable_worldmodel")
        if found is None:
            raise SystemExit("stable-worldmodel is not installed; see the head of bench/world_model.py")
        bare = types.ModuleType("stable_worldmodel")
        bare.__path__ = list(found.submodule_search_locations or ())
        sys.modules["stable_worldmodel"] = bare
    return importlib.import_module("stable_worldmodel.data")


def write(bucket: Path, seed: int, count: int) -> dict[str, float]:
    """Write the files, and return the seconds of each conversion."""
    theirs, seconds = readers(), {}
    with theirs.HDF5Writer(bucket / "raw.h5", mode="overwrite") as file:
        file.write_episodes(episodes(seed, count))
    with h5py.File(bucket / "raw.h5") as raw:
        began = time.perf_counter()
        begins, lengths = raw["ep_offset"][:], raw["ep_len"][:]
        with theirs.LanceWriter(bucket / "frames.lance", mode="overwrite") as table:
            table.write_episodes(
                {name: [*raw[name][first : first + rows]] for name in ("pixels", "action", "proprio")}
                for first, rows in zip(begins, lengths, strict=True)
            )
        seconds["lance"] = time.perf_counter() - began
        began = time.perf_counter()
        with h5py.File(bucket / "gzip.h5", "w") as packed:
            _copy_but_frames(raw, packed)
            made = packed.create_dataset(
                "pixels", raw["pixels"].shape, "u1", chunks=(1, SIDE, SIDE, 3), compression="gzip", compression_opts=4
            )
            for row, frame in enumerate(raw["pixels"]):
                made[row] = frame
        seconds["gzip"] = time.perf_counter() - began
        began = time.perf_counter()
        with h5py.File(bucket / "jpeg.h5", "w") as encoded:
            _copy_but_frames(raw, encoded)
            made = encoded.create_dataset("pixels", (len(raw["pixels"]),), h5py.vlen_dtype(np.uint8))
            for row, blob in enumerate(_blobs(bucket)):
                made[row] = np.frombuffer(blob, np.uint8)
        seconds["jpeg"] = time.perf_counter() - began
    return seconds


def _copy_but_frames(source: Any, target: Any) -> None:
    for name in source:
        if name != "pixels":
            target[name] = source[name][:]


def _blobs(bucket: Path) -> Iterator[bytes]:
    import lance

    table = lance.dataset(str(bucket / "frames.lance"))
    for batch in table.scanner(columns=["pixels"], scan_in_order=True).to_batches():
        yield from batch["pixels"].to_pylist()


# --- the readers, each in a process of its own --------------------------------------------------------------------


class Theirs:
    """A dataset of stable-worldmodel, opened in each worker at its first samples."""

    def __init__(self, kind: str, where: str, url: str) -> None:
        self.kind, self.where, self.url = kind, where, url
        self.opened: Any = None
        self.count = len(self.open())

    def open(self) -> Any:
        """Open the file, or the table."""
        how: dict[str, Any] = {"num_steps": FRAMES, "frameskip": SKIP, "keys_to_load": ["pixels", "action"]}
        if self.kind == "lance":
            given = {"aws_endpoint": self.url, "aws_skip_signature": "true", "allow_http": "true", "aws_region": "here"}
            more = {"connect_kwargs": {"storage_options": given}} if self.url else {}
            return readers().LanceDataset(f"{self.where}/frames.lance", **how, **more)
        more = {"storage_options": {"anon": True, "endpoint_url": self.url}} if self.url else {}
        return readers().HDF5Dataset(path=f"{self.where}/{self.kind}.h5", **how, **more)

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
        if self.opened is None:
            self.opened = self.open()
        together = getattr(self.opened, "__getitems__", None)
        return [self.opened[number] for number in numbers] if together is None else together(numbers)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([number])[0]


def ours(kind: str, where: str, url: str, *, shuffle: bool = True) -> Any:
    """Open a loader of h5stream, which keeps nothing, so that each epoch reads what it needs."""
    from h5stream import Field, H5StreamLoader, Lengths, Sequences

    fields = {
        "pixels": Field("pixels", take=range(0, FRAMES * SKIP, SKIP), decode="jpeg" if kind == "jpeg" else ""),
        "action": Field("action", take=range(FRAMES * SKIP)),
    }
    return H5StreamLoader(
        f"{where}/{kind}.h5",
        BATCH,
        shuffle,
        fields=fields,
        samples=Sequences(of=Lengths("ep_len")),
        keep="never",
        storage_options=options(url) if url else None,
    )


def loader_of(name: str, kind: str, where: str, url: str) -> Iterable[Any]:
    """Open what is measured: their dataset under a ``DataLoader``, or ours."""
    from torch.utils.data import DataLoader

    if name == "h5stream":
        return ours(kind, where, url)  # type: ignore[no-any-return]
    samples: Any = Theirs(kind, where, url)
    return DataLoader(
        samples, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True, multiprocessing_context="spawn"
    )


def one(name: str, kind: str, where: str, url: str) -> dict[str, Any]:
    """Time a reader from its first batch on, over several epochs."""
    readers()
    began, taken, first_s, now = time.perf_counter(), 0, 0.0, 0.0
    loader = loader_of(name, kind, where, url)
    for batch in itertools.chain.from_iterable(itertools.repeat(loader, MOST_EPOCHS)):
        now = time.perf_counter()
        if not first_s:
            first_s = now - began
            continue
        taken += len(batch["action"])
        if now - began - first_s > LIMIT_S:
            break
    return {"first_batch_s": first_s, "samples_per_s": taken / (now - began - first_s)}


def check(where: str) -> dict[str, Any]:
    """Compare samples with one another; say how many were equal."""
    import torch

    equal = 0
    for kind in STORED:
        samples = Theirs("lance" if kind == "jpeg" else kind, where, "")
        mine = ours(kind, where, "", shuffle=False).dataset
        assert len(samples) == len(mine), (kind, len(samples), len(mine))
        for number in np.random.default_rng(0).integers(0, len(mine), 24).tolist():
            wanted, found = samples[number], mine[number]
            frames = found["pixels"].permute(0, 3, 1, 2).int() - wanted["pixels"].int()
            # Two decoders of one JPEG may round otherwise.
            assert frames.abs().max() <= (3 if kind == "jpeg" else 0), (kind, number, frames.abs().max())
            assert torch.equal(found["action"].reshape(FRAMES, -1), wanted["action"]), (kind, number)
            equal += 1
    return {"equal": equal}


# --- what is measured ---------------------------------------------------------------------------------------------


def nbytes_of(path: Path) -> int:
    """Return the bytes of a file, or of a folder's."""
    return sum(p.stat().st_size for p in path.rglob("*")) if path.is_dir() else path.stat().st_size


def _child(arguments: list[str]) -> dict[str, Any]:
    outcome = run_child(["bench.world_model", "--child", *arguments], 600)
    return outcome.result if not outcome.error else {"failed": outcome.error[:200]}


def measure(bucket: Path, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure each reader on each way of storing, where the files lie and at each distance, in turns."""
    cases = [(name, kind) for kind in ("raw", "gzip") for name in ("stable-worldmodel, HDF5", "h5stream")]
    cases += [("stable-worldmodel, Lance", "lance"), ("h5stream", "jpeg")]
    for latency in [None, *given.latency_ms]:
        found: dict[tuple[str, str], list[dict[str, Any]]] = {case: [] for case in cases}
        for _ in range(given.rounds):
            for name, kind in cases:
                if latency is None:
                    found[name, kind].append(_child([name, kind, str(bucket), ""]))
                    continue
                with store_of(bucket.parent, Distance(latency_ms=latency, total_mb_s=given.total_mb_s)) as url:
                    found[name, kind].append(_child([name, kind, "s3://bucket", url]))
        where = "local" if latency is None else f"{latency:g} ms"
        for (name, kind), several in found.items():
            row: dict[str, Any] = {"where": where, "stored": kind, "reader": name}
            if failed := next((each["failed"] for each in several if "failed" in each), ""):
                yield {**row, "failed": failed}
                continue
            yield row | {key: statistics.median(each[key] for each in several) for key in several[0]}


def measure_file(seed: int, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Write a file and its copies, compare their samples, and measure them."""
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        bucket = Path(place) / "bucket"
        bucket.mkdir()
        seconds = write(bucket, seed, given.episodes)
        checked = _child(["check", str(bucket)])
        if "failed" in checked:
            raise SystemExit(f"samples differ: {checked['failed']}")
        for row in measure(bucket, given):
            name = "frames.lance" if row["stored"] == "lance" else f"{row['stored']}.h5"
            copied = {"mb": nbytes_of(bucket / name) / 1e6, "convert_s": seconds.get(row["stored"], 0.0)}
            yield {"seed": seed, **row, **copied}


def main() -> None:
    """Measure, print a line for each, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--folder", type=Path, help="where the files are written")
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1], help="of each a file is made")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--latency-ms", nargs="*", type=float, default=[20], help="distances of the store")
    parser.add_argument("--total-mb-s", type=float, default=100, help="what the line brings in all")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(check(given.child[1]) if given.child[0] == "check" else one(*given.child)))
        return
    results = []
    for row in (row for seed in given.seeds for row in measure_file(seed, given)):
        results.append(row)
        said = {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}
        print(" ".join(f"{name}={value}" for name, value in said.items()), flush=True)
    if given.json:
        about = {"stable-worldmodel": importlib.metadata.version("stable-worldmodel"), "total_mb_s": given.total_mb_s}
        given.json.write_text(json.dumps({**describe(), **about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
