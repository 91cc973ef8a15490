"""Everything that a machine with a GPU can tell about the feed, in under 9 minutes.

    python bench/gpu.py                      # writes bench/results/<gpu>.json and prints a short table last
    python bench/gpu.py --device cpu --quick # the same code on small files without a GPU, to see that it runs

Ratios are taken within this one run: copies against a plain pinned copy of the same bytes, steps that are fed
against steps whose data is on the device already. "Naive" is a stock DataLoader that reads a row at a time through
h5py; each of its workers makes a batch by itself, so that its first round is left out and whole rounds are counted.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hdf5plugin
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.machine import describe
from h5stream import H5Dataset, H5StreamLoader
from h5stream.base import limits
from h5stream.baseline import naive_loader
from h5stream.baseline.measure import write_sample_file
from h5stream.device.cuda import CudaBackend
from h5stream.device.feed import DeviceFeed, pinned_ring
from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.slots import SlotFormat, SlotRing
from h5stream.monitor import SystemMonitor

FIELDS = ["x", "y"]
FILTERS: dict[str, dict[str, Any] | None] = {
    "gzip4_shuffle": None,
    "lz4": dict(hdf5plugin.LZ4()),
    "lz4_shuffle": {"shuffle": True, **hdf5plugin.LZ4()},
    "unfiltered": {},
}
NAIVE_SHARE = 8
"""A naive loader's rate is measured with batches of an eighth of the rows, and told in whole ones: a worker takes half
a minute for 8,192 rows of gzip."""


class Bench:
    """One run: its device, files and findings."""

    def __init__(self, device: str, *, quick: bool, folder: Path) -> None:
        self.device = torch.device(device)
        self.cuda = self.device.type == "cuda"
        self.quick = quick
        self.rows = 16_384 if quick else 524_288
        self.batch = 1024 if quick else 8192
        self.seconds = 0.2 if quick else 3.0
        self.folder = folder
        self.found: dict[str, Any] = {}

    def sync(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def file(self, kind: str) -> str:
        path = self.folder / f"{kind}.h5"
        if not path.exists():
            write_sample_file(path, self.rows, filters=FILTERS[kind])
        return str(path)

    def loader(self, kind: str, **options: Any) -> H5StreamLoader:
        return H5StreamLoader(self.file(kind), self.batch, shuffle=True, fields=FIELDS, device=self.device, **options)

    def timed(self, action: Callable[[], Any]) -> float:
        self.sync()
        start = time.perf_counter()
        action()
        self.sync()
        return time.perf_counter() - start


def take(loader: Any, seconds: float, device: torch.device | None = None) -> tuple[int, float]:
    """Take batches until the time is over; at least one epoch's first; gives batches and seconds."""
    start, count = time.perf_counter(), 0
    while True:
        for batch in loader:
            if device is not None:
                batch = [part.to(device, non_blocking=True) for part in batch]
            count += 1
            elapsed = time.perf_counter() - start
            if elapsed > seconds:
                return count, elapsed


def copies(bench: Bench) -> dict[str, float]:
    """Host-to-device bandwidth, pinned and pageable, of one batch's bytes."""
    nbytes = bench.batch * 1032
    there = torch.empty(nbytes, dtype=torch.uint8, device=bench.device)
    figures = {}
    for name in ("pinned", "pageable"):
        here = torch.empty(nbytes, dtype=torch.uint8, pin_memory=bench.cuda and name == "pinned")
        repeat = 5 if bench.quick else 200

        def copy(here: torch.Tensor = here, repeat: int = repeat) -> None:
            for _ in range(repeat):
                there.copy_(here, non_blocking=True)

        copy()
        figures[f"{name}_gb_per_s"] = repeat * nbytes / bench.timed(copy) / 1e9
    return figures


def feed_share(bench: Bench) -> dict[str, float]:
    """The feed's bandwidth, as a share of a plain pinned copy of the same bytes: from the file, and by itself."""
    loader = bench.loader("unfiltered")
    take(loader, bench.seconds / 3)
    count, seconds = take(loader, bench.seconds)
    plain = bench.found["copies"]["pinned_gb_per_s"]
    found = {"feed_gb_per_s": count * bench.batch * 1032 / seconds / 1e9}
    found["share_of_pinned_copy"] = found["feed_gb_per_s"] / plain
    found["copy_busy"] = loader.stats().copy_busy
    loader.close()
    if bench.cuda:
        found["feed_alone_gb_per_s"] = _feed_alone(bench)
        found["feed_alone_share"] = found["feed_alone_gb_per_s"] / plain
    return found


class _AlwaysReady:
    """A source whose next slot is filled already."""

    def __init__(self, slots: SlotRing, rows: int) -> None:
        self.slots, self.rows = slots, rows

    def next_batch(self, timeout_s: float = 0.0) -> ReadyBatch | None:
        return ReadyBatch(number=0, rows=self.rows, slot=self.slots.take(), objects={}, missing=0)

    def next_if_ready(self) -> ReadyBatch | None:
        return self.next_batch()


def _feed_alone(bench: Bench) -> float:
    """Gigabytes a second of a feed that never waits for a reader."""
    layout = H5Dataset(bench.file("unfiltered"), FIELDS).layout
    slot_format = SlotFormat.for_rows(layout.fields, bench.batch)
    backend = CudaBackend(bench.device)
    slots = pinned_ring(backend, slot_format.nbytes)
    feed = DeviceFeed(backend, _AlwaysReady(slots, bench.batch), Assembler(layout), slot_format, depth=2)
    repeat = 10 if bench.quick else 500
    for _ in range(5):
        feed.next_batch()
    seconds = bench.timed(lambda: [feed.next_batch() is None for _ in range(repeat)])
    feed.close()
    return repeat * slot_format.nbytes / seconds / 1e9


def batches_per_s(bench: Bench) -> dict[str, dict[str, float]]:
    """Batches a second of the naive loader, and of ours."""
    figures: dict[str, dict[str, float]] = {}
    for kind in FILTERS:
        row = figures[kind] = {}
        for workers in (2, 8, 16):
            if workers <= max(2, limits.cpus()) and kind != "lz4_shuffle":
                row[f"naive_{workers}_workers"] = _naive_rate(bench, kind, workers)
        row["ours"] = _rate(bench, kind)
    return figures


def _rate(bench: Bench, kind: str, **options: Any) -> float:
    with bench.loader(kind, **options) as loader:
        take(loader, bench.seconds / 3)
        count, seconds = take(loader, bench.seconds)
        bench.sync()
        return count / seconds


def _naive_rate(bench: Bench, kind: str, workers: int) -> float:
    rows = bench.batch // NAIVE_SHARE
    batches = iter(_naive(bench, kind, workers, rows))
    for _ in range(workers):  # the first round: processes start, and nobody has read ahead
        next(batches)
    start, count, elapsed = time.perf_counter(), 0, 0.0
    for batch in batches:  # many fast workers may come to an epoch's end before the time is over
        for part in batch:
            part.to(bench.device, non_blocking=True)
        count, elapsed = count + 1, time.perf_counter() - start
        if elapsed >= bench.seconds and count >= workers:
            break
    return count * rows / bench.batch / elapsed


def _naive(bench: Bench, kind: str, workers: int, rows: int) -> Any:
    naive = naive_loader(bench.file(kind), FIELDS, rows, workers)
    naive.pin_memory = bench.cuda
    return naive


SCALED = {
    "kept": ("gzip4_shuffle", "auto"),
    "gzip": ("gzip4_shuffle", "never"),
    "lz4": ("lz4", "never"),
    "unfiltered": ("unfiltered", "auto"),
}
"""What is read with 1 to all threads: the file, and whether what was decoded stays in memory."""


def thread_scaling(bench: Bench) -> dict[str, dict[str, float]]:
    """Batches a second of rows in memory, of rows that are decoded, and of unfiltered ones, by number of readers."""
    figures: dict[str, dict[str, float]] = {}
    for name, (kind, keep) in SCALED.items():
        counts = (threads for threads in (1, 2, 4, 8, 16) if threads <= limits.cpus())
        figures[name] = {f"{n} readers": _rate(bench, kind, num_workers=n, keep=keep) for n in counts}
    return figures


class Step:
    """A training step of a known time: matrix products on the device, after looking at the batch."""

    def __init__(self, bench: Bench, wanted_ms: float) -> None:
        size = 64 if bench.quick else 4096
        dtype = torch.bfloat16 if bench.cuda else torch.float32
        self.a = torch.randn(size, size, device=bench.device, dtype=dtype) / size
        self.b, self.products = self.a.clone(), 1
        once = min(bench.timed(self._multiply) for _ in range(5))
        self.products = max(1, round(wanted_ms / 1000 / once))
        self.ms = 1000 * min(bench.timed(self._multiply) for _ in range(3))

    def _multiply(self) -> None:
        for _ in range(self.products):
            self.b = self.a @ self.b

    def __call__(self, batch: Any) -> torch.Tensor:
        total = batch[0].sum() + batch[1].sum()
        self._multiply()
        return total


def utilisation(bench: Bench) -> dict[str, dict[str, float]]:
    """Step time with data on the device already, over step time when fed; the first steps left out."""
    figures: dict[str, dict[str, float]] = {}
    with bench.loader("gzip4_shuffle") as loader:
        cached = [part.to(bench.device) for part in next(iter(loader))]
    for wanted in (5, 10, 20, 50):
        step = Step(bench, wanted)
        steps = 5 if bench.quick else max(30, round(2000 / wanted))
        ideal = bench.timed(lambda step=step, steps=steps: [step(cached) for _ in range(steps)]) / steps
        row = figures[f"{wanted} ms"] = {"ceiling_ms": ideal * 1000}
        for name, loader, skip, count in _feeds(bench, wanted, steps):
            with contextlib.closing(_endless(bench, loader)) as feed:
                found = _fed(bench, step, feed, skip, count)
            row |= {f"{name}_{what}": value for what, value in found.items()}
            row[f"{name}_utilisation"] = row["ceiling_ms"] / row[f"{name}_ms"]
            if isinstance(loader, H5StreamLoader):
                loader.close()  # before the next one forks workers
    return figures


def _feeds(bench: Bench, wanted: float, steps: int) -> Iterator[tuple[str, Any, int, int]]:
    """Give name, loader, steps to leave out, and steps to count."""
    for kind in ("gzip4_shuffle", "unfiltered"):
        yield f"ours_{kind}", bench.loader(kind, persistent_workers=True), 5, steps
    workers = min(8, max(2, limits.cpus()))
    rounds = 1 if bench.quick else 2
    yield "naive_unfiltered", _naive(bench, "unfiltered", workers, bench.batch), workers, rounds * workers
    if wanted == 20:
        yield "naive_gzip4_shuffle", _naive(bench, "gzip4_shuffle", workers, bench.batch), workers, workers


def _endless(bench: Bench, loader: Any) -> Generator[Any]:
    while True:
        for batch in loader:
            yield [part.to(bench.device, non_blocking=True) for part in batch]  # ours is there already


def _fed(bench: Bench, step: Step, feed: Iterator[Any], skip: int, steps: int) -> dict[str, float]:
    """Milliseconds a step; sampled: the GPU's utilisation, and the share of the processors that are used."""
    for batch in itertools.islice(feed, skip):
        step(batch)
    bench.sync()
    with SystemMonitor(interval_s=0.1) as monitor:
        seconds = bench.timed(lambda: [step(batch) for batch in itertools.islice(feed, steps)])
        samples = list(monitor.history)
    gpus = [gpu for sample in samples for gpu in sample.gpus[:1]]
    processes = [sample.process for sample in samples if sample.process is not None]
    sampled = {
        "nvml": [gpu.utilization_ratio for gpu in gpus],
        "sm_activity": [gpu.sm_activity_ratio for gpu in gpus],
        "cpu_share": [None if p.cpu_cores is None else p.cpu_cores / p.cpus_allowed for p in processes],
    }
    found = {"ms": seconds / steps * 1000}
    for name, values in sampled.items():
        if known := [value for value in values if value is not None]:
            found[name] = sum(known) / len(known)
    return found


def steady_state(bench: Bench) -> dict[str, float]:
    """Host memory after each of several epochs: it must be flat."""
    held, resident, pinned = [], [], []
    with bench.loader("gzip4_shuffle") as loader:
        for _ in range(3 if bench.quick else 6):
            for _batch in loader:
                pass
            held.append(loader.held_nbytes)
            resident.append(_resident_bytes())
            pinned.append(torch.cuda.host_memory_stats()["num_host_alloc"] if bench.cuda else 0)
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "held_bytes_after_second_epoch": held[1],
        "held_bytes_after_last_epoch": held[-1],
        "resident_growth_bytes": resident[-1] - resident[1],
        "pinned_allocations_after_second_epoch": pinned[-1] - pinned[1],
        "cpu_seconds_so_far": cpu.ru_utime + cpu.ru_stime,
    }


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def delayed_consumers(bench: Bench) -> dict[str, float]:
    """Batches whose consumer is late on the device, by checksums of all their bytes: a missing wait shows here."""
    wanted = 32 if bench.quick else 640  # of each kind
    found: dict[str, float] = {"batches": 0, "wrong": 0}
    for kind in ("unfiltered", "gzip4_shuffle"):
        with bench.loader(kind, window=bench.rows // 4) as loader:
            batches, wrong = _delayed(bench, loader, wanted)
        found["batches"] += batches
        found["wrong"] += wrong
    return found


def _delayed(bench: Bench, loader: H5StreamLoader, wanted: int) -> tuple[int, int]:
    host = H5StreamLoader(
        loader.dataset, bench.batch, shuffle=True, seed=loader.seed, window=loader.window_size.window_rows
    )
    count = wrong = epoch = 0
    with host:
        while count < wanted:
            loader.set_epoch(epoch)
            host.set_epoch(epoch)
            expected = [_checksum(batch).tolist() for batch in host]
            sums = []
            for batch in loader:
                if bench.cuda:
                    torch.cuda._sleep(200_000 * (1 + count % 7))
                sums.append(_checksum(batch))
                del batch  # its memory may be reused from here on, with the sum still to be taken
                count += 1
            wrong += sum(a.tolist() != b for a, b in zip(sums, expected, strict=True))
            epoch += 1
    return count, wrong


def _checksum(batch: Any) -> torch.Tensor:
    """Sum all words of a batch, and the first rows' on their own, so that rows that changed places show."""
    x, y = batch[0].view(torch.int32), batch[1]
    return torch.stack([x.sum(), x[: len(x) // 3].sum(), y.sum(), y[: len(y) // 3].sum()])


SECTIONS = (copies, feed_share, thread_scaling, utilisation, steady_state, delayed_consumers, batches_per_s)
"""The longest last, so that a time limit takes no other with it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small files and few repetitions")
    parser.add_argument("--out", type=Path, help="results file; by default bench/results/<gpu>.json")
    parser.add_argument("--only", help="names of sections, with commas between them")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        torch.set_num_threads(1)  # a team of torch's threads waits for processors that the readers use
    chosen = arguments.only.split(",") if arguments.only else [section.__name__ for section in SECTIONS]
    began, took = time.perf_counter(), {}
    with tempfile.TemporaryDirectory(prefix="h5stream-gpu-") as folder:
        bench = Bench(arguments.device, quick=arguments.quick, folder=Path(folder))
        gpu = torch.cuda.get_device_name(bench.device) if bench.cuda else "no GPU"
        out = arguments.out or Path(__file__).parent / "results" / f"{gpu.lower().replace(' ', '-')}.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        for section in SECTIONS:
            if section.__name__ in chosen or section is copies:
                start = time.perf_counter()
                bench.found[section.__name__] = section(bench)
                took[section.__name__] = round(time.perf_counter() - start, 1)
                print(f"{section.__name__}: {took[section.__name__]} s", file=sys.stderr, flush=True)
                report = describe() | {"quick": arguments.quick, "results": bench.found}
                report["machine"]["gpu"] = gpu
                report["seconds"] = took | {"in all": round(time.perf_counter() - began, 1)}
                out.write_text(json.dumps(report, indent=1) + "\n")  # after each, so that a time limit loses one only
    print(json.dumps(report, indent=1))
    return 1 if bench.found.get("delayed_consumers", {}).get("wrong") else 0


if __name__ == "__main__":
    sys.exit(main())
