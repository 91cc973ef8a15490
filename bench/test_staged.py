"""What staging and repacking gain: one file from disk, page cache, tmpfs, and repacked; and an exact global shuffle.

    python -m pytest bench/test_staged.py --benchmark-enable --benchmark-json=staged.json -s

Rounds of all contenders take turns, so that a neighbour slows all alike; each contender's rate is the median of
its rounds, and a ratio is the median of the rounds' own ratios. "From disk" means that the file's pages were
dropped (``posix_fadvise``) before the round; how many stayed is noted, because the kernel may keep some.
"""

from __future__ import annotations

import os
import shutil
import statistics
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench import cases
from h5stream import H5StreamLoader, repack, stage
from h5stream.base.filesystem import resident_bytes
from h5stream.baseline import naive_loader
from h5stream.staging import remove_staged

ROUNDS = int(os.environ.get("H5STREAM_BENCH_ROUNDS", "7"))
SMALL_BUDGET = 128 * 1024 * 1024
"""Bytes: a quarter of the file, so that an exact global shuffle has to read a few batches at a time."""


@dataclass(slots=True, kw_only=True)
class Contender:
    """One way to stream the rows, and what it took in each round."""

    name: str
    run: Callable[[], int]
    before: Callable[[], object] = lambda: None
    rates: list[float] = field(default_factory=list)

    def round(self) -> None:
        self.before()
        rows: list[int] = []
        seconds = cases.seconds_of(lambda: rows.append(self.run()))
        self.rates.append(rows[0] / seconds)


@pytest.fixture
def ram():
    folder = Path("/dev/shm") / f"h5stream-bench-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no tmpfs at /dev/shm: {error}")
    yield folder
    remove_staged(folder, force=True)
    shutil.rmtree(folder)


def drop_pages(path: str) -> None:
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def epoch(path: str, **options: object) -> Callable[[], int]:
    """A loader that is opened for each round, as a training run does."""

    def run() -> int:
        with H5StreamLoader(
            path, cases.BATCH, shuffle=True, fields=list(cases.FIELDS), keep="never", **options
        ) as loader:
            return cases.stream(loader)

    return run


def opened(path: str, **options: object) -> Callable[[], int]:
    """A loader that stays open, and is warm."""
    loader = H5StreamLoader(path, cases.BATCH, shuffle=True, fields=list(cases.FIELDS), keep="never", **options)
    return lambda: cases.stream(loader)


def take_turns(contenders: list[Contender], rounds: int = ROUNDS) -> dict[str, list[float]]:
    for each in contenders:
        each.round()  # warm, and not counted
        each.rates.clear()
    for _ in range(rounds):
        for each in contenders:
            each.round()
    return {each.name: each.rates for each in contenders}


def ratio(rates: dict[str, list[float]], one: str, other: str) -> float:
    return statistics.median(a / b for a, b in zip(rates[one], rates[other], strict=True))


def noted(benchmark: object, group: str, rates: dict[str, list[float]], **facts: object) -> None:
    median = {name: round(statistics.median(each)) for name, each in rates.items()}
    best = {name: round(max(each)) for name, each in rates.items()}
    benchmark.group = group
    benchmark.extra_info.update(rows_per_s=median, best_rows_per_s=best, **facts)
    width = max(map(len, median))
    lines = [f"  {name:<{width}}  {median[name]:>12,} rows/s   best {best[name]:>12,}" for name in median]
    print("\n" + "\n".join([f"{group}: {facts}", *lines]))


@pytest.mark.parametrize("place", ["disk", "page cache", "tmpfs"])
def test_naive(benchmark, bench_file, ram, place):
    path = bench_file("gzip4_shuffle")
    if place == "tmpfs":
        path = str(stage(path, to=ram, lease=False).paths[0])
    naive = Contender(
        name=f"naive, {place}",
        run=lambda: cases.stream(naive_loader(path, cases.FIELDS, cases.BATCH, 2), 2),
        before=lambda: drop_pages(path) if place == "disk" else None,
    )
    benchmark.pedantic(naive.round, rounds=1, iterations=1)
    noted(benchmark, "naive", {naive.name: naive.rates})


def test_ours_from_disk_cache_tmpfs_and_repacked(benchmark, bench_file, ram):
    path = bench_file("gzip4_shuffle")
    staged = str(stage(path, to=ram, lease=False).paths[0])
    packed = {}
    for compress in ("none", "lz4"):
        packed[compress] = str(ram / f"{compress}.h5")
        repack(path, packed[compress], compress=compress)
    plain = str(stage(path, to=ram / "plain", repack={}, lease=False).paths[0])
    left: list[int] = []

    def drop() -> None:
        drop_pages(path)
        left.append(resident_bytes(Path(path)) or 0)

    contenders = [
        Contender(name="ours, disk", run=epoch(path), before=drop),
        Contender(name="ours, page cache", run=epoch(path)),
        Contender(name="ours, tmpfs", run=epoch(staged)),
        Contender(name="ours, repacked lz4, tmpfs", run=epoch(packed["lz4"])),
        Contender(name="ours, repacked none, tmpfs", run=epoch(packed["none"])),
        Contender(name="ours, stage --repack", run=epoch(plain)),
    ]
    rates = benchmark.pedantic(take_turns, args=(contenders,), rounds=1, iterations=1)
    noted(
        benchmark,
        "ours",
        rates,
        share_in_cache_after_dropping=round(max(left) / os.path.getsize(path), 3),
        staged_repacked_over_page_cache=round(ratio(rates, "ours, stage --repack", "ours, page cache"), 2),
    )


def test_exact_global_shuffle_of_the_staged_file(benchmark, bench_file, ram):
    path = bench_file("unfiltered")
    spec, staged = cases.FILES["unfiltered"], str(stage(path, to=ram, lease=False).paths[0])
    contenders = [
        Contender(name="window shuffle, staged", run=opened(staged)),
        Contender(name="global shuffle, staged", run=opened(staged, window="all")),
        Contender(name="window shuffle, staged, 128 MiB", run=opened(staged, memory_budget=SMALL_BUDGET)),
        Contender(name="global shuffle, staged, 128 MiB", run=opened(staged, window="all", memory_budget=SMALL_BUDGET)),
        Contender(name="window shuffle, page cache", run=opened(path)),
        Contender(name="RAM array, stock DataLoader", run=cases.in_ram(path, spec)),
    ]
    rates = benchmark.pedantic(take_turns, args=(contenders,), rounds=1, iterations=1)
    noted(
        benchmark,
        "global shuffle",
        rates,
        over_window=round(ratio(rates, "global shuffle, staged", "window shuffle, staged"), 2),
        over_window_128_mib=round(
            ratio(rates, "global shuffle, staged, 128 MiB", "window shuffle, staged, 128 MiB"), 2
        ),
        over_ram=round(ratio(rates, "global shuffle, staged", "RAM array, stock DataLoader"), 2),
        over_ram_128_mib=round(ratio(rates, "global shuffle, staged, 128 MiB", "RAM array, stock DataLoader"), 2),
    )
