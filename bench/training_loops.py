"""Epochs of loops that train: a stock DataLoader over h5py, one over an array in memory, and h5stream.

    python -m bench.training_loops --out bench/results/training-loops.json
    python -m bench.training_loops --device cuda --workers 16 --out bench/results/training-loops-gpu.json

Three models, eager: an MLP over rows, a small CNN over augmented images, a GRU over windows of a recording. Each run is
a process of its own with the same weights; the readers take turns, seed by seed, and each seed has a file of its own.
The DataLoaders over h5py, sample by sample and in whole sorted batches, are timed for one epoch, or for the part of it
that takes half a minute, of which the whole is computed. The first batches of each reader are compared with the file,
and of the others an epoch: each sample once, and the sum of all. Files are in the page cache. The share in steps is the
time that a loop spends in its own work (augmentation, forward, backward, optimizer), of all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from bench.child import warm, warm_memory
from bench.gallery_training import in_a_process, timed
from bench.machine import describe
from h5stream import H5StreamLoader, SampleNumber, Sequences
from h5stream.monitor import SystemMonitor

SEEDS, EPOCHS, CLASSES, SIDE, STEPS, STRIDE = 2, 4, 10, 64, 128, 32
PART_S = 30.0  # of a loader that is far from a whole epoch by then
STOCK, BATCHED, MEMORY = (
    "DataLoader over h5py",
    "DataLoader over h5py, sorted batches",
    "DataLoader over an array in memory",
)
READERS = (STOCK, BATCHED, MEMORY, "h5stream")


class Job(NamedTuple):
    """A file, the samples in it, and a model that trains on them."""

    what: str
    samples: int
    batch: int
    make: Callable[[h5py.File, np.random.Generator], None]
    window: int  # rows of a sample; 0 for single rows
    model: Callable[[], torch.nn.Module]
    seen: Callable[[torch.Tensor, torch.Generator], torch.Tensor]  # what the model sees of a batch


# --- what is trained -----------------------------------------------------------------------------------------


class LastStep(torch.nn.Module):
    """A GRU that gives its output after the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = torch.nn.GRU(16, 64, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of a batch's last step."""
        last: torch.Tensor = self.gru(x)[0][:, -1]
        return last


def mlp() -> torch.nn.Module:
    """Make an MLP of three layers over 256 features."""
    layers: list[torch.nn.Module] = []
    for _ in range(3):
        layers += [torch.nn.Linear(256, 256), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(256, CLASSES))


def cnn() -> torch.nn.Module:
    """Make a CNN of three convolutions."""
    layers: list[torch.nn.Module] = []
    for inner, outer in ((3, 32), (32, 64), (64, 128)):
        layers += [torch.nn.Conv2d(inner, outer, 3, stride=2, padding=1), torch.nn.BatchNorm2d(outer), torch.nn.ReLU()]
    return torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, CLASSES)
    )


def gru() -> torch.nn.Module:
    """Make a GRU over windows of 16 channels."""
    return torch.nn.Sequential(LastStep(), torch.nn.Linear(64, CLASSES))


def augmented(images: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Crop each image at a place of its own, flip every other one, and scale its pixels to -1 to 1."""
    count = len(images)
    moved = functional.pad(images.permute(0, 3, 1, 2).float().div_(127.5).sub_(1), (4, 4, 4, 4))
    rows, columns = torch.randint(0, 9, (2, count, 1), generator=random) + torch.arange(SIDE)
    flipped = torch.rand(count, 1, generator=random) < 0.5
    columns = torch.where(flipped, columns.flip(1), columns)
    places = [one.to(images.device) for one in (torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None])]
    return moved.permute(0, 2, 3, 1)[places[0], places[1], places[2]].permute(0, 3, 1, 2)


def as_they_are(x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    """Return a batch as it was read."""
    return x


# --- what is in the files --------------------------------------------------------------------------------------


def rows_of_floats(file: h5py.File, rng: np.random.Generator) -> None:
    """Write rows of 256 float32 in chunks of 1 MiB."""
    x = rng.standard_normal((JOBS["MLP"].samples, 256), "f4").astype("f2").astype("f4")
    file.create_dataset("x", data=x, chunks=(1024, 256), compression="gzip", shuffle=True)


def images(file: h5py.File, rng: np.random.Generator) -> None:
    """Write images of smooth colours with noise, 16 in a chunk."""
    count = JOBS["CNN"].samples
    smooth = rng.integers(0, 200, (count, 8, 8, 3), "u1").repeat(8, axis=1).repeat(8, axis=2)
    smooth += rng.integers(0, 8, smooth.shape, "u1")
    file.create_dataset("x", data=smooth, chunks=(16, SIDE, SIDE, 3), compression="gzip")


def recording(file: h5py.File, rng: np.random.Generator) -> None:
    """Write a recording of 16 channels in chunks of 4,096 steps."""
    steps = (JOBS["GRU"].samples - 1) * STRIDE + STEPS
    x = rng.standard_normal((steps, 16), "f4").cumsum(axis=0).astype("f2").astype("f4") / 100
    file.create_dataset("x", data=x, chunks=(4096, 16), compression="gzip", shuffle=True)


JOBS = {
    "MLP": Job("rows of 1 KiB, gzip", 262_144, 8192, rows_of_floats, 0, mlp, as_they_are),
    "CNN": Job("images of 64 x 64, gzip, cropped and flipped", 16_384, 256, images, 0, cnn, augmented),
    "GRU": Job("windows of 128 steps, gzip", 31_232, 256, recording, STEPS, gru, as_they_are),
}


# --- who reads them --------------------------------------------------------------------------------------------


class Stock(Dataset[tuple[np.ndarray, int]]):
    """Samples read one by one through h5py, opened in each worker."""

    def __init__(self, path: Path, job: Job) -> None:
        self.path, self.job = path, job
        self.file: h5py.File | None = None

    def __len__(self) -> int:
        return self.job.samples

    def __getitem__(self, k: int) -> tuple[np.ndarray, int]:
        """Read a sample."""
        if self.file is None:
            self.file = h5py.File(self.path)
        x = self.file["x"]
        return (x[k * STRIDE : k * STRIDE + STEPS] if self.job.window else x[k]), k


class Batched(Stock):
    """Whole batches read at once, at places in ascending order, as h5py takes them."""

    def __getitems__(self, numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Read the samples of a batch: rows by one selection, windows one after the other."""
        numbers = sorted(numbers)
        if self.job.window:
            return torch.from_numpy(np.stack([self[k][0] for k in numbers])), torch.tensor(numbers)
        self[numbers[0]]
        assert self.file is not None
        return torch.from_numpy(self.file["x"][numbers]), torch.tensor(numbers)


class InMemory(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples of an array, whole batches at once."""

    def __init__(self, path: Path, job: Job) -> None:
        self.job = job
        with h5py.File(path) as file:
            x = file["x"][:]
        if job.window:
            x = np.lib.stride_tricks.sliding_window_view(x, STEPS, axis=0)[::STRIDE].transpose(0, 2, 1)
        self.x = x

    def __len__(self) -> int:
        return self.job.samples

    def __getitems__(self, numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy the samples of a batch."""
        return torch.from_numpy(self.x[numbers]), torch.tensor(numbers)


def opened(reader: str, path: Path, job: Job, seed: int, workers: int, device: str) -> Any:
    """Open a reader's loader of samples and their numbers."""
    if reader == "h5stream":
        samples = Sequences(STEPS, stride=STRIDE) if job.window else None
        options: dict[str, Any] = {"device": device} if device != "cpu" else {}
        fields = ["x", SampleNumber()]
        return H5StreamLoader(path, job.batch, shuffle=True, fields=fields, samples=samples, seed=seed, **options)
    random = torch.Generator().manual_seed(seed)
    pinned = device != "cpu"
    more: dict[str, Any] = {"shuffle": True, "generator": random, "pin_memory": pinned}
    if reader == STOCK:
        return DataLoader(Stock(path, job), job.batch, num_workers=workers, **more)
    more["collate_fn"] = _as_it_is
    if reader == BATCHED:
        return DataLoader(Batched(path, job), job.batch, num_workers=workers, **more)
    return DataLoader(InMemory(path, job), job.batch, **more)


def _as_it_is(batch: Any) -> Any:
    return batch


# --- how they are timed ------------------------------------------------------------------------------------------


class Training:
    """A model and its optimizer, and one step of them."""

    def __init__(self, job: Job, seed: int, device: str) -> None:
        torch.manual_seed(0)
        self.job, self.device = job, device
        self.model = job.model().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.random = torch.Generator().manual_seed(seed)

    def step(self, x: torch.Tensor, numbers: torch.Tensor) -> None:
        """Train on one batch; classes are made up from the numbers of its samples."""
        x, numbers = (part.to(self.device, non_blocking=True) for part in (x, numbers))
        loss = functional.cross_entropy(self.model(self.job.seen(x, self.random)), numbers % CLASSES)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def wait(self) -> None:
        """Wait until all steps are done."""
        if self.device != "cpu":
            torch.cuda.synchronize()


def check(batches: Iterator[Any], path: Path, job: Job) -> None:
    """Read an epoch, each sample once, and compare the sum of them all with that of the file."""
    seen, total = np.zeros(job.samples, int), 0.0
    for x, numbers in batches:
        seen[numbers.cpu().numpy()] += 1
        total += x.double().sum().item()
    with h5py.File(path) as file:
        x = file["x"][:].astype("f8")
    if job.window:
        x = np.lib.stride_tricks.sliding_window_view(x, STEPS, axis=0)[::STRIDE]
    if (seen != 1).any() or not np.isclose(total, x.sum(), rtol=1e-6, atol=1e-2):
        raise ValueError(f"{path.name}: not the samples of the file")


def check_first(batches: list[Any], path: Path, job: Job) -> None:
    """Compare batches with the samples of their numbers."""
    rows = STRIDE if job.window else 1
    with h5py.File(path) as file:
        for x, numbers in batches:
            for sample, k in zip(x[::16].cpu().numpy(), numbers[::16].tolist(), strict=True):
                if (
                    sample != file["x"][k * rows : k * rows + (STEPS if job.window else 1)].reshape(sample.shape)
                ).any():
                    raise ValueError(f"{path.name}: not sample {k} of the file")


def run(name: str, path: Path, reader: str, seed: int, workers: int, device: str, pipe: Any) -> None:
    """Train for some epochs; send the seconds of each, those in steps, and what share of it was done."""
    job = JOBS[name]
    warm_memory()
    training = Training(job, seed, device)
    since = time.perf_counter()
    loader = opened(reader, path, job, seed, workers, device)
    opened_s = time.perf_counter() - since
    is_slow, first = reader in (STOCK, BATCHED), list[Any]()
    epochs: list[dict[str, float]] = []
    with SystemMonitor(interval_s=0.1) as monitor:
        for _ in range(1 if is_slow else EPOCHS):
            waits: list[float] = []
            since, done = time.perf_counter(), 0
            for x, numbers in timed(loader, waits):
                training.step(x, numbers)
                done += len(numbers)
                if len(first) < 2:
                    first.append((x, numbers))
                if is_slow and time.perf_counter() - since > PART_S and done // job.batch % workers == 0:
                    break  # workers fill as many batches beside one another
            training.wait()
            seconds = time.perf_counter() - since
            part = done / (job.samples // job.batch * job.batch if done % job.batch == 0 else job.samples)
            epochs.append(
                {"seconds": seconds / min(1, part), "in_steps": 1 - sum(waits) / seconds, "part": min(1, part)}
            )
        gpus = [one.utilization_ratio for one in monitor.summary().gpus] if device != "cpu" else []
    epochs[0]["seconds"] += opened_s
    report: dict[str, Any] = {"epochs": epochs, "gpu": [one.mean for one in gpus if one is not None]}
    check_first(first, path, job)
    if not is_slow:
        check(iter(loader), path, job)
    since = time.perf_counter()
    for _ in range(steps := min(20, job.samples // job.batch)):
        training.step(x, numbers)
    training.wait()
    report["steps_alone_s"] = (time.perf_counter() - since) / steps * (job.samples / job.batch)
    pipe.send(report)


def measure(name: str, workers: int, device: str) -> list[dict[str, Any]]:
    """Train with each reader in turns, on a file of its own for each seed."""
    job, turns = JOBS[name], {reader: list[dict[str, Any]]() for reader in READERS}
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.h5"
            with h5py.File(path, "w") as file:
                job.make(file, np.random.default_rng(seed))
            warm(path)
            for reader, reports in turns.items():
                reports.append(in_a_process(run, name, path, reader, seed, workers, device))
    alone = statistics.median(one["steps_alone_s"] for reports in turns.values() for one in reports)
    return [result(name, reader, reports, alone) for reader, reports in turns.items()]


def result(name: str, reader: str, reports: list[dict[str, Any]], alone_s: float) -> dict[str, Any]:
    """Sum up a reader's runs: its first epochs, and the median of the later ones of each seed."""
    later = [one["epochs"][1:] or one["epochs"] for one in reports]
    seeds = [statistics.median(epoch["seconds"] for epoch in epochs) for epochs in later]
    shares = [statistics.median(epoch["in_steps"] for epoch in epochs) for epochs in later]
    found = {
        "model": name,
        "samples": JOBS[name].what,
        "count": JOBS[name].samples,
        "batch": JOBS[name].batch,
        "reader": reader,
        "steps_alone_s": round(alone_s, 3),
        "first_epoch_s": [round(one["epochs"][0]["seconds"], 3) for one in reports],
        "epoch_s": [round(seconds, 3) for seconds in seeds],
        "in_steps": [round(share, 4) for share in shares],
        "part": [round(one["epochs"][0]["part"], 4) for one in reports],
    }
    if all(one["gpu"] for one in reports):
        found["gpu"] = [round(one["gpu"][0], 3) for one in reports]
    return found


def main() -> None:
    """Measure the models that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2, help="of the stock DataLoader")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    results = []
    for name in asked.only:
        for one in measure(name, asked.workers, asked.device):
            results.append(one)
            print({key: one[key] for key in ("model", "reader", "first_epoch_s", "epoch_s", "in_steps")}, flush=True)
    report = {**describe(), "seeds": SEEDS, "epochs": EPOCHS, "device": asked.device, "workers": asked.workers}
    asked.out.write_text(json.dumps(report | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
