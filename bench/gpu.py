"""Everything that a machine with a GPU can tell about the feed, in under 8 minutes.

    python bench/gpu.py                      # writes bench/results/<gpu>.json and prints a short table last
    python bench/gpu.py --device cpu --quick # the same code on small files without a GPU, to see that it runs

Ratios are taken within this one run: copies against a plain pinned copy of the same bytes, steps that are fed
against steps whose data is on the device already.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hdf5plugin
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from h5stream import H5StreamLoader, SystemMonitor, allowance
from h5stream.baseline.rivals import naive_loader
from h5stream.baseline.sample_file import write_sample_file
from h5stream.engine.kernels import warm_up
from tools.bench_machine import machine_facts

FIELDS = ["x", "y"]
FILTERS = {
    "gzip4_shuffle": None,
    "lz4": dict(hdf5plugin.LZ4()),
    "unfiltered": {},
}


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
        where = {} if options.get("window_device") else {"device": self.device}
        return H5StreamLoader(self.file(kind), self.batch, shuffle=True, fields=FIELDS, **where, **options)

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
    """The feed's bandwidth on unfiltered data, as a share of a plain pinned copy of the same bytes."""
    loader = bench.loader("unfiltered")
    take(loader, bench.seconds / 3)
    count, seconds = take(loader, bench.seconds)
    gb_per_s = count * bench.batch * 1032 / seconds / 1e9
    return {"feed_gb_per_s": gb_per_s, "share_of_pinned_copy": gb_per_s / bench.found["copies"]["pinned_gb_per_s"]}


def batches_per_s(bench: Bench) -> dict[str, dict[str, float]]:
    """Batches a second on each file: naive with workers, ours with the window on the host and on the device."""
    figures: dict[str, dict[str, float]] = {}
    for kind in FILTERS:
        row = figures[kind] = {}
        for workers in (2, 8, 16):
            if workers <= max(2, allowance.cpus()):
                naive = naive_loader(bench.file(kind), FIELDS, bench.batch, workers)
                naive.pin_memory = bench.cuda
                count, seconds = take(naive, bench.seconds, bench.device)
                row[f"naive_{workers}_workers"] = count / seconds
        for name, options in (("host_window", {}), ("device_window", {"window_device": bench.device})):
            loader = bench.loader(kind, **options)
            take(loader, bench.seconds / 3)
            count, seconds = take(loader, bench.seconds)
            row[name] = count / seconds
            loader.close()
    return figures


def thread_scaling(bench: Bench) -> dict[str, float]:
    """Batches a second from gzip with 1 to all threads."""
    figures = {}
    for threads in (1, 2, 4, 8, 12, 16):
        if threads <= allowance.cpus():
            loader = bench.loader("gzip4_shuffle", num_workers=threads)
            take(loader, bench.seconds / 3)
            count, seconds = take(loader, bench.seconds)
            figures[str(threads)] = count / seconds
            loader.close()
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
    for wanted in (5, 10, 20, 50):
        step = Step(bench, wanted)
        cached = [part.to(bench.device) for part in next(iter(bench.loader("gzip4_shuffle")))]
        steps = 5 if bench.quick else max(30, round(2000 / wanted))
        ideal = bench.timed(lambda step=step, cached=cached, steps=steps: [step(cached) for _ in range(steps)]) / steps
        row = figures[f"{wanted} ms"] = {"ceiling_ms": ideal * 1000}
        for name, feed in _feeds(bench, wanted):
            limit = steps if name != "naive" else min(steps, 6)
            row[f"{name}_ms"], gpu = _fed(bench, step, feed, limit)
            row[f"{name}_utilisation"] = row["ceiling_ms"] / row[f"{name}_ms"]
            if gpu is not None:
                row[f"{name}_nvml"] = gpu
    return figures


def _feeds(bench: Bench, wanted: float) -> Iterator[tuple[str, Iterator[Any]]]:
    for kind in ("gzip4_shuffle", "unfiltered"):
        yield f"ours_{kind}", _endless(bench.loader(kind))
    if wanted == 20:
        workers = min(8, max(2, allowance.cpus()))
        naive = naive_loader(bench.file("gzip4_shuffle"), FIELDS, bench.batch, workers)
        naive.pin_memory = bench.cuda
        yield "naive", ([part.to(bench.device, non_blocking=True) for part in batch] for batch in _endless(naive))


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _fed(bench: Bench, step: Step, feed: Iterator[Any], steps: int) -> tuple[float, float | None]:
    for batch in itertools.islice(feed, min(5, steps)):
        step(batch)
    with SystemMonitor(interval_s=0.1) as monitor:
        seconds = bench.timed(lambda: [step(batch) for batch in itertools.islice(feed, steps)])
        gpus = [sample.gpus[0].utilisation for sample in monitor.history if sample.gpus]
    known = [value for value in gpus if value is not None]
    return seconds / steps * 1000, sum(known) / len(known) if known else None


def steady_state(bench: Bench) -> dict[str, float]:
    """Pinned and resident memory after each of several epochs: both must be flat."""
    loader = bench.loader("gzip4_shuffle")
    held, resident = [], []
    for _ in range(3 if bench.quick else 6):
        for _batch in loader:
            pass
        slots = loader._epochs.delivery.slots
        held.append(getattr(slots, "really_held_nbytes", slots.held_nbytes))
        resident.append(_resident_bytes())
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "held_bytes_after_second_epoch": held[1],
        "held_bytes_after_last_epoch": held[-1],
        "resident_growth_bytes": resident[-1] - resident[1],
        "cpu_seconds_so_far": cpu.ru_utime + cpu.ru_stime,
    }


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def delayed_consumers(bench: Bench) -> dict[str, float]:
    """Batches whose consumer is late on the device, by checksum: a wait that is missing shows here."""
    wanted = 20 if bench.quick else 3000
    loader = bench.loader("unfiltered", reuse_device_buffers=True)
    plain = H5StreamLoader(bench.file("unfiltered"), bench.batch, shuffle=True, fields=FIELDS, seed=loader.seed)
    sums, wrong, count, epoch = [], 0, 0, -1
    while count < wanted:
        epoch += 1
        loader.set_epoch(epoch)
        plain.set_epoch(epoch)
        expected = [int(y.sum()) for _, y in plain]
        for _x, y in loader:
            if bench.cuda:
                torch.cuda._sleep(200_000 * (1 + count % 7))
            sums.append(y.sum())
            count += 1
        wrong += sum(int(a) != b for a, b in zip(sums, expected, strict=True))
        sums.clear()
    return {"batches": count, "wrong": wrong}


SECTIONS = (copies, feed_share, batches_per_s, thread_scaling, utilisation, steady_state, delayed_consumers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small files and few repetitions")
    parser.add_argument("--out", type=Path, help="results file; by default bench/results/<gpu>.json")
    parser.add_argument("--only", help="names of sections, with commas between them")
    arguments = parser.parse_args()
    warm_up()
    chosen = arguments.only.split(",") if arguments.only else [section.__name__ for section in SECTIONS]
    with tempfile.TemporaryDirectory(prefix="h5stream-gpu-") as folder:
        bench = Bench(arguments.device, quick=arguments.quick, folder=Path(folder))
        for section in SECTIONS:
            if section.__name__ in chosen or section is copies:
                start = time.perf_counter()
                bench.found[section.__name__] = section(bench)
                print(f"{section.__name__}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        gpu = torch.cuda.get_device_name(bench.device) if bench.cuda else "no GPU"
        report = {"machine": machine_facts() | {"gpu": gpu}, "quick": arguments.quick, **bench.found}
    out = arguments.out or Path(__file__).parent / "results" / f"{gpu.lower().replace(' ', '-')}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    return 1 if report.get("delayed_consumers", {}).get("wrong") else 0


if __name__ == "__main__":
    sys.exit(main())
