"""Python for each sample in processes: against the pure function, and against a stock DataLoader with as many workers.

    python -m pytest bench/test_augmentation.py --benchmark-enable --benchmark-json=augmentation.json -s

In turns within each round, medians over the rounds: the pure function in as many processes at the same time as there
are workers, which is what the machine gives (samples in memory, results dropped, nothing read, seeded or collated); an
epoch of ours; one of a stock DataLoader over the reader that authors write (h5py, a row at a time), and one over
`H5Dataset`. Beside the times the processor time that a sample takes: in the function alone, in the workers, in the
parent.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
import warnings
from concurrent.futures import ProcessPoolExecutor

import h5py
import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from bench import cases
from bench.augmentations import AuthorsReader, OurSamples, PureFunction, audio_crop, augmented, cutout
from h5stream import H5StreamLoader

ROUNDS = 5
GZIP = {"compression": "gzip", "compression_opts": 4}
KINDS = {
    "image 64": (augmented, (64, 64, 3), 2000, 64),
    "image 224": (augmented, (224, 224, 3), 400, 20),
    "audio": (audio_crop, (48_000,), 500, 25),
    "cutout 64": (cutout, (64, 64, 3), 3000, 100),
}
OF_PURE, OF_STOCK, OF_AUTHORS_GZIP = 0.9, 1.0, 3.0


def write(path, shape: tuple[int, ...], count: int, stored: dict) -> None:
    rng = np.random.default_rng(0)
    kind = "u1" if len(shape) == 3 else "f4"
    in_chunk = max(1, (1 << 20) // (int(np.prod(shape)) * np.dtype(kind).itemsize))
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (count, *shape), kind, chunks=(in_chunk, *shape), **stored)
        for low in range(0, count, 100):
            steps = rng.integers(-2, 3, (min(100, count - low), *shape), dtype="i2")
            x[low : low + 100] = (np.cumsum(steps, axis=1) + 128).astype(kind)
        file["label"] = np.arange(count)


def epoch_of(loader) -> None:
    for _ in loader:
        pass


def seconds_of_processes(pids: list[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


class Pure:
    """The function in `count` processes that begin together, each with samples of its own."""

    def __init__(self, function, samples: list, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.size, self.count = len(samples), count
        given = PureFunction(function, [(x.numpy(), int(label)) for x, label in samples])
        self.pool = ProcessPoolExecutor(count, context, PureFunction.begin, (given, context.Barrier(count)))

    def rate_and_seconds(self) -> tuple[float, float]:
        """Give samples a second of all, and the processor time that one takes."""
        took = [future.result() for future in [self.pool.submit(PureFunction.timed) for _ in range(self.count)]]
        rate = sum(self.size / wall for wall, _ in took)
        return rate, statistics.mean(processor for _, processor in took) / self.size


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("kind", "stored"),
    [*((kind, {}) for kind in KINDS), ("image 64", GZIP), ("image 224", GZIP)],
    ids=lambda given: given if isinstance(given, str) else "gzip" if given else "none",
)
def test_an_epoch_of_augmented_samples(benchmark, bench_folder, kind, stored, workers):
    function, shape, count, batch_size = KINDS[kind]
    path = bench_folder / f"augmented-{kind.replace(' ', '-')}-{'gzip' if stored else 'none'}.h5"
    if not path.exists():
        write(path, shape, count, stored)
    torch.set_num_threads(1)
    given = {"fields": ["x", "label"], "shuffle": True, "num_workers": cases.THREADS, "memory_budget": "512MiB"}
    with H5StreamLoader(path, min(count, 100 if "224" in kind else 600), fields=["x", "label"]) as loader:
        x, label = next(iter(loader))
    pure = Pure(function, list(zip(x, label, strict=True)), workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = H5StreamLoader(path, batch_size, **given, sample_transform=function, sample_workers=workers)
    few = count // (8 if stored else 2)  # of what is slow
    stock = {
        # Of all samples, as an epoch draws them: a few neighbours would lie in libhdf5's cache.
        name: DataLoader(
            reader,
            batch_size,
            sampler=RandomSampler(reader, num_samples=few),
            num_workers=workers,
            persistent_workers=True,
        )
        for name, reader in (
            ("authors", AuthorsReader(str(path), function, count)),
            ("h5dataset", OurSamples(str(path), function, count)),
        )
    }
    pure.rate_and_seconds()
    for loader in (ours, *stock.values()):
        epoch_of(loader)
    epoch_of(ours)
    pids = ours._iterations.engine.pids
    rates: dict[str, list[float]] = {name: [] for name in ("pure", "ours", *stock)}
    processor_s: dict[str, list[float]] = {name: [] for name in ("pure", "workers", "parent")}
    for _ in range(ROUNDS):
        rate, seconds = pure.rate_and_seconds()
        rates["pure"].append(rate)
        processor_s["pure"].append(seconds)
        here, there = time.process_time(), seconds_of_processes(pids)
        rates["ours"].append(count / cases.seconds_of(lambda: epoch_of(ours)))
        processor_s["parent"].append((time.process_time() - here) / count)
        processor_s["workers"].append((seconds_of_processes(pids) - there) / count)
        for name, loader in stock.items():
            rates[name].append(few / cases.seconds_of(lambda loader=loader: epoch_of(loader)))
    benchmark.pedantic(epoch_of, (ours,), rounds=1)
    ours.close()
    pure.pool.shutdown()
    of = {
        name: statistics.median(mine / theirs for mine, theirs in zip(rates["ours"], rates[name], strict=True))
        for name in ("pure", *stock)
    }
    taken = {f"{name}_us": 1e6 * statistics.median(found) for name, found in processor_s.items()}
    benchmark.group = "augmentation"
    benchmark.extra_info.update(
        case=kind,
        stored="gzip" if stored else "none",
        workers=workers,
        samples_per_s={name: statistics.median(found) for name, found in rates.items()},
        of_pure=of["pure"],
        of_authors=of["authors"],
        of_stock=of["h5dataset"],
        processor_us_a_sample=taken,
    )
    print(
        f"\n{kind}, {'gzip' if stored else 'none'}, {workers} workers: {of['pure']:.2f} of pure in {workers}, "
        f"{of['authors']:.2f} of the authors' reader, {of['h5dataset']:.2f} of stock over H5Dataset; processor time of "
        + ", ".join(f"{name} {value:.0f}" for name, value in taken.items()),
        {name: round(statistics.median(found)) for name, found in rates.items()},
    )
    assert of["h5dataset"] >= OF_STOCK and of["authors"] >= (OF_AUTHORS_GZIP if stored else OF_STOCK)  # noqa: PT018
    assert of["pure"] >= OF_PURE
