"""Objects as samples: a million datasets in one group, traces with gzip and without, a file a sample.

    python -m pytest bench/test_objects.py --benchmark-enable --benchmark-json=objects.json -s

By default few objects; `H5STREAM_BENCH_OBJECTS=full` takes 1,000,000 datasets, 50,000 traces and 20,000 files (8 GB,
which take some minutes to write; `H5STREAM_BENCH_FOLDER` keeps them), and holds them to what is promised. Epochs are
held against (a) the reader as programs write it, under a `DataLoader` with a worker for each processor, and (b) the
limit: the same bytes read by as many threads in the order of the file, neighbours at once, inflated and copied.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import threading
import time

import h5py
import imagecodecs
import numpy as np
import pytest
from torch.utils.data import DataLoader, Subset

from bench import cases
from bench.test_samples import Reader
from h5stream import Field, H5Dataset, H5StreamLoader, Objects, Sequences
from h5stream.compiled import _native as native
from h5stream.storage.layout.access import DIRECT

FULL = os.environ.get("H5STREAM_BENCH_OBJECTS") == "full"
SMALL, TRACES, FILES = (1_000_000, 50_000, 20_000) if FULL else (20_000, 1_000, 200)
TRACES = int(os.environ.get("H5STREAM_BENCH_TRACES", TRACES))
ROUNDS, READ_NBYTES, BUDGET = 5, 1 << 20, 256 << 20
GZIP = {"compression": "gzip", "compression_opts": 4, "shuffle": True}


pytestmark = pytest.mark.timeout(3600)  # a million datasets take minutes to write


class Keyed(Reader):
    """A dataset by its name."""

    def listed(self, file):
        return [f"data/{name}" for name in file["data"]]

    def read(self, name):
        return self.file[name][()]


class OneEach(Reader):
    """A file a sample, opened each time; `path` is the first of them."""

    def __init__(self, path):
        folder = os.path.dirname(path)
        self.file, self.samples = folder, [os.path.join(folder, name) for name in sorted(os.listdir(folder))]

    def read(self, path):
        with h5py.File(path) as file:
            return file["x"][()]


@pytest.fixture
def objects_file(bench_folder, monkeypatch, tmp_path):
    """Give a file of so many datasets in one group, warm in the page cache; catalogues go to a folder of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def file_of(count: int, shape: tuple[int, ...], stored: dict) -> str:
        path = bench_folder / f"objects-{count}-{'x'.join(map(str, shape))}-{'gzip' if stored else 'none'}.h5"
        if not path.exists():
            rng = np.random.default_rng(0)
            with h5py.File(path.with_suffix(".partial"), "w") as file:
                group, values = file.create_group("data"), np.round(rng.standard_normal((64, *shape)) * 50).astype("f4")
                for k in range(count):
                    group.create_dataset(
                        f"trace_{k}", data=values[k % 64], **({"chunks": shape, **stored} if stored else {})
                    )
            os.replace(path.with_suffix(".partial"), path)
        os.utime(path, (1e9, 1e9))
        with path.open("rb") as stream:
            while stream.read(1 << 24):
                pass
        return str(path)

    return file_of


def copy_each(source, starts, nbytes, target, at):
    """Copy stretches of so many bytes to rows of the target, around its end; give the row that comes next."""
    rows, segments = target.size // nbytes, np.array([[0, 0, nbytes]])
    within, batch = (at + np.arange(len(starts))) % rows, np.zeros(len(starts), np.int64)
    where = np.array([target.ctypes.data])
    native.scatter(source.ctypes.data, 1, segments, starts, batch, within, where, 0, nbytes)
    return (at + len(starts)) % rows


def limit(path: str):
    """As many threads, which read all objects in the order of the file, inflate them and copy them to memory."""
    dataset = H5Dataset(path, {"x": "."}, samples=Objects("data/*"))
    part = dataset.layout.datasets[0][0]
    order = np.argsort(part.index.offset, kind="stable")
    offsets, sizes, whole = part.index.offset[order], part.index.nbytes[order], part.chunk_nbytes
    targets = [np.zeros(64 << 20, dtype=np.uint8) for _ in range(cases.THREADS)]
    edges = np.linspace(0, len(order), cases.THREADS + 1).astype(int)

    def work(number: int) -> None:
        target, buffer, at, out = (
            targets[number],
            np.empty(READ_NBYTES + (1 << 20), np.uint8),
            0,
            np.empty(whole, np.uint8),
        )
        descriptor, low = os.open(path, os.O_RDONLY), int(edges[number])
        one = np.zeros(1, np.int64)
        while low < edges[number + 1]:
            first = int(offsets[low])
            high = min(max(low + 1, int(np.searchsorted(offsets, first + READ_NBYTES))), int(edges[number + 1]))
            nbytes = int(offsets[high - 1] + sizes[high - 1]) - first
            os.preadv(descriptor, [buffer[:nbytes]], first)
            if part.access == DIRECT:
                at = copy_each(buffer, offsets[low:high] - first, whole, target, at)
            else:
                for k in range(low, high):
                    start = int(offsets[k]) - first
                    imagecodecs.deflate_decode(buffer[start : start + int(sizes[k])], out=out)
                    at = copy_each(out, one, whole, target, at)
            low = high
        os.close(descriptor)

    def run() -> None:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(cases.THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def rate_of_usual(dataset, batch: int, samples: int) -> float:
    """Give the samples a second of the usual reader, the start of its workers left out."""
    chosen = np.random.default_rng(0).permutation(len(dataset))[: samples + 2 * batch]
    iterator = iter(DataLoader(Subset(dataset, chosen.tolist()), batch, num_workers=cases.THREADS))
    next(iterator)
    began = time.perf_counter()
    seen = sum(len(each) for each in iterator)
    return seen / (time.perf_counter() - began)


def test_a_catalogue_is_made_once(benchmark, objects_file):
    path = objects_file(SMALL, (300,), {})

    def opened() -> None:
        H5Dataset(path, ".", samples=Objects("data/*"))

    first, second = cases.seconds_of(opened), min(cases.seconds_of(opened) for _ in range(3))
    benchmark.pedantic(opened, rounds=1)
    benchmark.group = "objects"
    benchmark.extra_info.update(case="catalogue", samples=SMALL, first_s=first, second_s=second)
    print(f"\n{SMALL:,} objects: opened in {first:.2f} s, and in {second:.2f} s the next time")
    assert first < 20
    assert second < 1


@pytest.mark.parametrize(
    ("count", "shape", "stored", "batch", "least", "least_usual"),
    [
        pytest.param(SMALL, (300,), {}, 256, 0.5, 20, id="small"),
        pytest.param(TRACES, (3, 6000), {}, 64, 0.6, 1, id="traces-none"),
        pytest.param(TRACES, (3, 6000), GZIP, 64, 0.85, 1, id="traces-gzip"),
    ],
)
def test_an_epoch_of_objects(benchmark, objects_file, request, count, shape, stored, batch, least, least_usual):
    path = objects_file(count, shape, stored)
    given = {"fields": {"x": "."}, "samples": Objects("data/*"), "memory_budget": BUDGET}
    with H5StreamLoader(path, batch, shuffle=True, **given) as loader:

        def ours() -> None:
            for _ in loader:
                pass

        bare = limit(path)
        bare()
        ours()
        pairs = [(cases.seconds_of(ours), cases.seconds_of(bare)) for _ in range(ROUNDS)]
        benchmark.pedantic(ours, rounds=1)
    usual = max(rate_of_usual(Keyed(path), batch, 4 * batch) for _ in range(2))
    seconds = statistics.median(mine for mine, _ in pairs)
    of_limit = statistics.median(theirs / mine for mine, theirs in pairs)
    benchmark.group = "objects"
    benchmark.extra_info.update(
        case=request.node.callspec.id,
        samples=count,
        samples_per_s=count / seconds,
        gb_per_s=count * np.prod(shape) * 4 / seconds / 1e9,
        of_limit=of_limit,
        usual_samples_per_s=usual,
        of_usual=count / seconds / usual,
    )
    print(
        f"\n{request.node.callspec.id}: {count:,} samples, {count / seconds:,.0f}/s, {of_limit:.2f} of the limit, "
        f"{count / seconds / usual:.1f} times the usual reader"
    )
    if FULL:
        assert of_limit >= least
        assert count / seconds / usual >= least_usual


def limit_of_files(paths: list[str]):
    """As many threads, each of which opens one file after the other, reads its sample and closes it."""
    with h5py.File(paths[0]) as file:
        offset, nbytes = file["x"].id.get_offset(), file["x"].nbytes
    target = np.zeros((cases.THREADS, 64 << 20), np.uint8)

    def work(number: int) -> None:
        for k, path in enumerate(paths[number :: cases.THREADS]):
            at = k * nbytes % (target.shape[1] - nbytes)
            descriptor = os.open(path, os.O_RDONLY)
            os.preadv(descriptor, [target[number, at : at + nbytes]], offset)
            os.close(descriptor)

    def run() -> None:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(cases.THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def test_a_file_a_sample(benchmark, bench_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = bench_folder / f"files-{FILES}"
    if not folder.exists():
        folder.mkdir()
        for k in range(FILES):
            with h5py.File(folder / f"{k:05d}.h5", "w") as file:
                file["x"] = np.full((64, 64), k, "f4")
    bare = limit_of_files(sorted(str(path) for path in folder.iterdir()))
    bare()
    given = {"fields": {"x": "x"}, "samples": Objects("files")}
    first, second = (cases.seconds_of(lambda: H5Dataset(f"{folder}/*.h5", **given)) for _ in range(2))
    with H5StreamLoader(f"{folder}/*.h5", 64, shuffle=True, memory_budget=BUDGET, **given) as loader:
        most = 0

        def ours() -> None:
            nonlocal most
            for number, _ in enumerate(loader):
                if number % 16 == 0:
                    most = max(most, len(os.listdir("/proc/self/fd")))

        ours()
        pairs = [(cases.seconds_of(ours), cases.seconds_of(bare)) for _ in range(ROUNDS)]
        benchmark.pedantic(ours, rounds=1)
    usual = rate_of_usual(OneEach(str(folder / "00000.h5")), 64, 1024)
    seconds = statistics.median(mine for mine, _ in pairs)
    of_limit = statistics.median(theirs / mine for mine, theirs in pairs)
    benchmark.group = "objects"
    benchmark.extra_info.update(
        case="files", samples=FILES, samples_per_s=FILES / seconds, of_usual=FILES / seconds / usual,
        usual_samples_per_s=usual, first_s=first, second_s=second, of_limit=of_limit, descriptors=most,
    )  # fmt: skip
    print(
        f"\n{FILES:,} files: opened in {first:.2f} s, and in {second:.2f} s the next time, {FILES / seconds:,.0f} "
        f"samples/s, {of_limit:.2f} of the limit, {FILES / seconds / usual:.1f} times the usual reader, {most} "
        "descriptors at most"
    )
    assert most < 1024
    if FULL:
        assert first < 10
        assert second < 1.5
        assert of_limit >= 0.5
        assert FILES / seconds / usual >= 10


PARTS_OF_EPISODES = (("observations", (17,)), ("actions", (6,)), ("rewards", ()), ("terminations", ()))
PARTS_OF_EPISODES += (("truncations", ()), ("infos/qpos", (9,)), ("infos/qvel", (9,)))


@pytest.mark.parametrize("episodes", [40, 400, 2000])
@pytest.mark.parametrize("fields", [1, 4, 7])
@pytest.mark.parametrize("samples", [Objects("episode_*"), Sequences(4, of="episode_*")], ids=["objects", "sequences"])
def test_episodes_of_which_each_has_chunks_of_its_own(
    benchmark, request, bench_folder, monkeypatch, tmp_path, samples, fields, episodes
):
    """Episodes of unlike lengths in h5py's guessed chunks, as Minari writes them; no catalogue is there."""
    chosen, path = PARTS_OF_EPISODES[:fields], bench_folder / f"episodes-{fields}-{episodes}.h5"
    if not path.exists():
        rng = np.random.default_rng(0)
        with h5py.File(path.with_suffix(".partial"), "w") as file:
            for k, rows in enumerate(rng.integers(50, 1000, episodes).tolist()):
                for name, shape in chosen:
                    options = {"maxshape": (None, *shape), "chunks": True}
                    file.create_dataset(f"episode_{k}/{name}", data=rng.random((rows, *shape), "f4"), **options)
        os.replace(path.with_suffix(".partial"), path)
    ragged = {"ragged": "list"} if isinstance(samples, Objects) else {}
    named = {name: Field(name, **ragged) for name, _ in chosen}
    tries = itertools.count()

    def opened():
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(next(tries))))
        return H5Dataset(path, named, samples=samples)

    seconds, processor = [], []
    for _ in range(3):
        began = time.process_time()
        seconds.append(cases.seconds_of(opened))
        processor.append(time.process_time() - began)
    with H5StreamLoader(opened(), 16 if ragged else 256, shuffle=True, seed=0, memory_budget=BUDGET) as loader:
        first = cases.seconds_of(lambda: next(iter(loader)))
        epochs = [cases.seconds_of(lambda: [None for _ in loader]) for _ in range(3)]
    benchmark.pedantic(opened, rounds=1)
    benchmark.group = "episodes"
    each, name = min(processor) / episodes, request.node.callspec.id
    benchmark.extra_info.update(
        case=name, fields=fields, episodes=episodes, opened_s=min(seconds), each_processor_ms=each * 1e3,
        first_batch_s=first, first_epoch_s=epochs[0], epoch_s=min(epochs),
    )  # fmt: skip
    print(f"\n{name}: {each * 1e3:.2f} ms of a processor each, first batch {first:.2f} s, epoch {min(epochs):.2f} s")
    if episodes >= 400:
        assert each < 1e-3


MEMORY = f"""
import sys
from h5stream import H5Dataset, H5StreamLoader, Objects
def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) << 10
dataset = H5Dataset(sys.argv[1], {{"x": "."}}, samples=Objects("data/*"))
before = peak = anonymous()
with H5StreamLoader(dataset, 256, shuffle=True, memory_budget={BUDGET}) as loader:
    for _ in range(2):
        for number, _ in enumerate(loader):
            if number % 8 == 0:
                peak = max(peak, anonymous())
print(peak - before)
"""


def test_the_budget_holds(benchmark, objects_file):
    path = objects_file(SMALL, (300,), {})
    found = []
    benchmark.pedantic(
        lambda: found.append(subprocess.run([sys.executable, "-c", MEMORY, path], check=True, capture_output=True)),
        rounds=1,
    )
    grown = int(found[0].stdout)
    benchmark.group = "objects"
    benchmark.extra_info.update(case="memory", samples=SMALL, grown_nbytes=grown, budget_nbytes=BUDGET)
    print(f"\n{SMALL:,} objects: two epochs grew the process by {grown / 2**20:,.0f} MiB of {BUDGET >> 20}")
    assert grown <= BUDGET
