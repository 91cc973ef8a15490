"""Samples that are no rows: sequences, windows of a recording, looked-up rows and boxes, beside the usual readers.

    python -m pytest bench/test_samples.py --benchmark-enable --benchmark-json=samples.json -s

Each case is held against (a) the reader as programs write it, under a `DataLoader` with a worker for each processor,
and (b) the limit: as many threads, which inflate each chunk once and copy as many bytes as the batches hold. Rounds of
ours and of the limit take turns; the usual reader is given two passes over a share of the samples.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import h5py
import imagecodecs
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from bench import cases
from h5stream import Boxes, Field, H5StreamLoader, Sequences
from h5stream.storage.layout.access import DIRECT
from h5stream.storage.open.opening import open_layout
from h5stream.storage.source.one_file import FileBytes

ROUNDS = 7
GZIP = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
OF_LIMIT, OF_USUAL_LARGE_CHUNKS, OF_USUAL = 0.7, 10.0, 1.0
STEPS, HORIZON, STRIDE, BOX = 16, 800, 200, 64


# --- the usual readers ----------------------------------------------------------------------------------------


class Reader(Dataset):
    """Opens its file in each worker, at the first sample, and reads a sample by its number."""

    def __init__(self, path: str) -> None:
        self.path, self.file = path, None
        with h5py.File(path) as file:
            self.samples = self.listed(file)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> object:
        if self.file is None:
            self.file = h5py.File(self.path)
        return self.read(self.samples[number])


class Demonstrations(Reader):
    """A stretch of a demonstration, its end repeated where it is over; the images and the actions."""

    def listed(self, file):
        return [(name, k) for name in file["data"] for k in range(len(file["data"][name]["actions"]))]

    def read(self, sample):
        name, first = sample
        found = {}
        for key in ("obs/image", "actions"):
            values = self.file[f"data/{name}/{key}"][first : first + STEPS]
            if len(values) < STEPS:
                values = np.concatenate([values, np.repeat(values[-1:], STEPS - len(values), axis=0)])
            found[key] = values
        return found


class Recording(Reader):
    """A stretch of channels x time, every so often."""

    def listed(self, file):
        return range(0, file["eeg"].shape[1] - HORIZON + 1, STRIDE)

    def read(self, first):
        return self.file["eeg"][:, first : first + HORIZON]


class Questions(Reader):
    """A question, and the features of the image that it is about."""

    def listed(self, file):
        return range(len(file["questions"]))

    def read(self, number):
        image = self.file["image_idxs"][number]
        return self.file["questions"][number], self.file["features"][image]


class Patches(Reader):
    """A box of a volume, anywhere; as many an epoch as there are of ours."""

    def listed(self, file):
        return range(400)

    def read(self, number):
        rng = np.random.default_rng(number)
        origin = rng.integers(0, 256 - BOX + 1, 3)
        where = tuple(slice(first, first + BOX) for first in origin.tolist())
        return self.file[f"{rng.integers(4)}/raw"][where]


# --- the files ------------------------------------------------------------------------------------------------


def write_demonstrations(file, stored):
    rng = np.random.default_rng(0)
    for k in range(30):
        rows = int(rng.integers(50, 500))
        base = rng.integers(0, 255, (1, 12, 12, 3)).repeat(7, 1).repeat(7, 2)
        images = np.clip(base + rng.integers(-3, 4, (rows, 84, 84, 3)), 0, 255).astype("u1")
        chunks = {"chunks": (8, 84, 84, 3), **stored} if stored else {}
        file.create_dataset(f"data/demo_{k}/obs/image", data=images, **chunks)
        file[f"data/demo_{k}/actions"] = rng.random((rows, 7), "f4")


def write_recording(file, stored):
    rng, step = np.random.default_rng(0), 100_000
    eeg = file.create_dataset("eeg", (32, 800_000), "f4", **({"chunks": (32, 2000), **stored} if stored else {}))
    for first in range(0, eeg.shape[1], step):
        eeg[:, first : first + step] = np.round(rng.standard_normal((32, step)) * 50)


def write_questions(file, stored):
    rng, images = np.random.default_rng(0), 600
    features = file.create_dataset(
        "features", (images, 100, 1024), "f4", **({"chunks": (1, 100, 1024), **stored} if stored else {})
    )
    for k in range(images):
        features[k] = np.maximum(0, rng.standard_normal((100, 1024), "f4")).astype("f2")
    file["questions"] = rng.integers(0, 1000, (10 * images, 20))
    file["image_idxs"] = rng.permutation(np.arange(images).repeat(10))


def write_volumes(file, stored):
    rng = np.random.default_rng(0)
    for k in range(4):
        volume = np.cumsum(rng.standard_normal((256, 256, 256), "f4"), axis=0).round(1)
        file.create_dataset(f"{k}/raw", data=volume, **({"chunks": (BOX, BOX, BOX), **stored} if stored else {}))


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is read, and how: `wanted` are the datasets whose chunks are needed."""

    write: Callable
    usual: type[Reader]
    batch: int
    fields: object
    samples: object
    wanted: tuple[str, ...]
    rows_a_chunk: int
    usual_samples: int


CASES = {
    "sequences": Case(
        write=write_demonstrations,
        usual=Demonstrations,
        batch=64,
        fields={"image": "obs/image", "actions": "actions"},
        samples=Sequences(STEPS, of="data/*", pad="edge", pad_rows=(0, STEPS - 1)),
        wanted=tuple(f"data/demo_{k}/obs/image" for k in range(30)),
        rows_a_chunk=8,
        usual_samples=512,
    ),
    "recording": Case(
        write=write_recording,
        usual=Recording,
        batch=64,
        fields="eeg",
        samples=Sequences(HORIZON, stride=STRIDE, axis=1),
        wanted=("eeg",),
        rows_a_chunk=2000,
        usual_samples=1024,
    ),
    "lookups": Case(
        write=write_questions,
        usual=Questions,
        batch=64,
        fields=["questions", Field("features", lookup="image_idxs")],
        samples=None,
        wanted=("features",),
        rows_a_chunk=1,
        usual_samples=512,
    ),
    "boxes": Case(
        write=write_volumes,
        usual=Patches,
        batch=4,
        fields="raw",
        samples=Boxes((BOX, BOX, BOX), per_epoch=400, of="*"),
        wanted=tuple(f"{k}/raw" for k in range(4)),
        rows_a_chunk=BOX,
        usual_samples=40,
    ),
}


@pytest.fixture(scope="module")
def samples_file(bench_folder):
    def file_of(name: str, stored: dict) -> str:
        path = bench_folder / f"samples-{name}-{'gzip' if stored else 'none'}.h5"
        if not path.exists():
            with h5py.File(path, "w") as file:
                CASES[name].write(file, stored)
        with path.open("rb") as stream:
            while stream.read(1 << 24):
                pass
        return str(path)

    return file_of


# --- contenders -----------------------------------------------------------------------------------------------


def nbytes_of(batch: object) -> int:
    if torch.is_tensor(batch):
        return batch.nbytes
    return sum(map(nbytes_of, batch.values() if isinstance(batch, dict) else batch))


def limit(path: str, wanted: tuple[str, ...], batches_nbytes: int, batch_nbytes: int) -> Callable[[], None]:
    """As many threads, which read each chunk once, inflate it, and copy as many bytes as all batches hold."""
    layouts = [open_layout(path, name) for name in wanted]
    source = FileBytes(layouts[0].files[0])
    parts = [layout.datasets[0][0] for layout in layouts]
    chunks = [(part, k) for part in parts for k in range(len(part.index.offset))]
    most = max(part.chunk_nbytes for part in parts)
    decoded_nbytes = sum(part.chunk_nbytes for part, _ in chunks)
    # What a chunk's share of the batches is, copied while the chunk is in the cache.
    copies = batches_nbytes / decoded_nbytes
    targets = [np.zeros(max(4 * batch_nbytes, 8 << 20), dtype=np.uint8) for _ in range(cases.THREADS)]

    def work(first: int) -> None:
        stored, out, target = np.empty(most, np.uint8), np.empty(most, np.uint8), targets[first]
        at, owed = 0, 0.0
        for k in range(first, len(chunks), cases.THREADS):
            part, chunk = chunks[k]
            count, whole = int(part.index.nbytes[chunk]), part.chunk_nbytes
            source.read_into(int(part.index.offset[chunk]), stored[:count].data)
            data = stored[:count]
            if part.access != DIRECT:
                imagecodecs.deflate_decode(stored[:count], out=out[:whole])
                data = out[:whole]
            owed += copies * whole
            while owed > 0:
                some = min(len(data), int(owed) + 1, len(target) - at)
                target[at : at + some] = data[:some]
                at, owed = (at + some) % len(target), owed - some

    def run() -> None:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(cases.THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def seconds_of_usual(case: Case, path: str) -> tuple[float, int]:
    """Time the usual reader on some samples, the start of its workers left out; seconds, and how many."""
    dataset = case.usual(path)
    chosen = np.random.default_rng(0).permutation(len(dataset))[: case.usual_samples + case.batch]
    loader = DataLoader(Subset(dataset, chosen.tolist()), case.batch, num_workers=cases.THREADS)
    iterator = iter(loader)
    next(iterator)
    began = time.perf_counter()
    for _ in iterator:
        pass
    return time.perf_counter() - began, case.usual_samples


@pytest.mark.parametrize("stored", [GZIP, {}], ids=["gzip", "none"])
@pytest.mark.parametrize("name", CASES)
def test_an_epoch_of_samples(benchmark, samples_file, name, stored):
    case, path = CASES[name], samples_file(name, stored)
    with H5StreamLoader(
        path, case.batch, shuffle=True, fields=case.fields, samples=case.samples, keep="never"
    ) as loader:
        samples, total, one = len(loader.dataset), 0, 0
        for batch in loader:
            total += nbytes_of(batch)
            one = max(one, nbytes_of(batch))

        def ours() -> None:
            for _ in loader:
                pass

        least = limit(path, case.wanted, total, one)
        least()
        ours()
        pairs = [(cases.seconds_of(ours), cases.seconds_of(least)) for _ in range(ROUNDS)]
        benchmark.pedantic(ours, rounds=1)
        decoded = loader.stats().read_amplification
    usual_s, usual_samples = min(seconds_of_usual(case, path) for _ in range(2))
    ours_s = statistics.median(pair[0] for pair in pairs)
    of_limit = statistics.median(theirs / mine for mine, theirs in pairs)
    of_usual = samples / ours_s / (usual_samples / usual_s)
    benchmark.group = "samples"
    benchmark.extra_info.update(
        case=name,
        stored="gzip" if stored else "none",
        samples=samples,
        samples_per_s=samples / ours_s,
        gb_per_s=total / ours_s / 1e9,
        of_limit=of_limit,
        usual_samples_per_s=usual_samples / usual_s,
        of_usual=of_usual,
        amplification=decoded,
    )
    print(
        f"\n{name}, {'gzip' if stored else 'none'}: {samples / ours_s:,.0f} samples/s, {of_limit:.2f} of the limit, "
        f"{of_usual:.1f} times the usual reader, decoded {decoded:.2f} times"
    )
    # Rows of a contiguous volume lie apart, so what lies between those of a box is read along: four times the box.
    if (name, bool(stored)) != ("boxes", False):
        assert of_limit >= OF_LIMIT
    assert of_usual >= (OF_USUAL_LARGE_CHUNKS if stored and case.rows_a_chunk >= 8 else OF_USUAL)
