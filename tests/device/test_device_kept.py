"""Samples that stay on the device: read once, and the batches of a loader that keeps none."""

from __future__ import annotations

import gc
import os

import h5py
import numpy as np
import pytest
import torch
from inner import device_is, feed_of, stream_all
from torch.utils.data import Subset

from h5stream import (
    Balanced,
    Boxes,
    Field,
    H5Dataset,
    H5StreamLoader,
    Lengths,
    Mixture,
    Objects,
    Sequences,
    Weighted,
)
from h5stream.device.cpu import CpuBackend
from h5stream.errors import CorruptChunkError, DeviceMemoryError, OptionError, SourceError
from tests.device.fake_backend import FakeBackend

ROWS, BATCH, WINDOW = 1000, 48, 150
SAMPLE_NBYTES = 5 * 4 + 8 + 3


@pytest.fixture(autouse=True)
def nothing_is_resident(monkeypatch):
    stream_all(monkeypatch)


@pytest.fixture
def path(tmp_path):
    """Fields whose chunks do not divide, neither their rows nor one another."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=rng.random((ROWS, 5), dtype="f4"), chunks=(37, 3), compression="gzip")
        file.create_dataset("y", data=np.arange(ROWS), chunks=(100,))
        file.create_dataset("b", data=rng.integers(0, 255, (ROWS, 3), "u1"), chunks=(50, 3), shuffle=True)
        file.create_dataset("s", data=np.array([b"%d" % k for k in range(ROWS)]))
        file.create_dataset("volume", data=rng.random((20, 24)), chunks=(8, 8), compression="gzip")
        file["few"] = np.repeat([2, 0, 1], [300, 300, 400])
        for k in range(30):
            file.create_dataset(f"objects/{k}", data=rng.random((2, 3)))
    return tmp_path / "a.h5"


FIELDS = {"x": "x", "y": "y", "b": Field("b", dtype=torch.float32)}


def make(dataset, **options):
    given = {"shuffle": True, "seed": 3, "window": WINDOW, "device": "cuda", "keep": "device", "num_workers": 2}
    if not isinstance(dataset, (H5Dataset, Subset, Mixture)):
        given["fields"] = FIELDS
    return H5StreamLoader(dataset, options.pop("batch_size", BATCH), **{**given, **options})


def tensors(batch):
    parts = list(batch.values()) if isinstance(batch, dict) else list(batch) if isinstance(batch, list) else [batch]
    return [(part.dtype, tuple(part.shape), part.cpu().numpy().tobytes()) for part in parts]


def epochs(loader, count=3):
    return [[tensors(batch) for batch in loader] for _ in range(count)]


ORDERS = {
    "shuffled": {},
    "an automatic window": {"window": "auto"},
    "one window": {"window": "all"},
    "in file order": {"shuffle": False},
    "whole batches": {"drop_last": True},
    "a rank of three": {"rank": 1, "world_size": 3},
    "by weights": {"draw": Weighted(np.arange(ROWS))},
    "balanced": {"draw": Balanced(np.arange(ROWS) % 3), "window": 300},
    "in this thread": {"num_workers": 0},
    "one sample at a time": {"batch_size": None},
    "one field": {"fields": "y"},
}


@pytest.mark.parametrize("order", ORDERS)
def test_batches_are_those_of_a_loader_that_keeps_none(path, monkeypatch, order):
    device_is(monkeypatch, CpuBackend())
    kept, fresh = make(path, **ORDERS[order]), make(path, keep="never", **ORDERS[order])
    assert epochs(kept) == epochs(fresh)


SAMPLES = {
    "rows of a subset": lambda path: H5Dataset(path, FIELDS, rows=range(7, ROWS, 3)),
    "rows in an order of the user's, some twice": lambda path: Subset(
        H5Dataset(path, FIELDS), [900, 5, 17, 5, 300] * 30
    ),
    "a split": lambda path: H5Dataset(path, FIELDS).split(0.3, seed=1)[0],
    "sequences": lambda path: H5Dataset(path, Field("x", steps=[0, 1, 4]), samples=Sequences(5, stride=2)),
    "boxes of a grid": lambda path: H5Dataset(path, "volume", samples=Boxes((5, 6), at="grid")),
    "objects": lambda path: H5Dataset(path, ".", samples=Objects("objects/*")),
}


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("kind", SAMPLES)
def test_samples_of_every_fixed_size_stay(path, monkeypatch, kind, shuffle):
    device_is(monkeypatch, CpuBackend())
    options = {"shuffle": shuffle, "window": "auto", "batch_size": 20}
    kept, fresh = (make(SAMPLES[kind](path), keep=keep, **options) for keep in ("device", "never"))
    assert epochs(kept) == epochs(fresh)
    assert kept.stats().read_bytes == 0


def test_sources_of_a_mixture_stay(path, monkeypatch):
    device_is(monkeypatch, CpuBackend())
    parts = {"a": H5Dataset(path, "y", rows=range(100)), "b": H5Dataset(path, "y", rows=range(100, 900))}
    mixture = Mixture(parts, weights={"a": 0.5, "b": 0.5})
    assert epochs(make(mixture)) == epochs(make(mixture, keep="never"))


@pytest.mark.parametrize("window", [WINDOW, "auto", "all"])
def test_a_window_of_the_device_has_its_order_too(path, window):
    options = {"device": None, "window_device": "cpu", "window": window}
    assert epochs(make(path, **options)) == epochs(make(path, keep="never", **options))


@pytest.mark.parametrize("seed", range(8))
def test_on_a_late_device_every_batch_is_right(path, monkeypatch, seed):
    device_is(monkeypatch, CpuBackend())
    expected = epochs(make(path, keep="never"), 2)
    fake = FakeBackend(seed)
    device_is(monkeypatch, fake)
    assert [tensors(batch) for batch in seen_late(make(path), fake, 2)] == [
        batch for epoch in expected for batch in epoch
    ]


def seen_late(loader, fake, count):
    """Give what a consumer sees that copies each batch on its own stream; looked at when all has run."""
    seen, consumer = [], fake.current_stream()
    for _ in range(count):
        for batch in loader:
            out = {key: torch.zeros_like(value) for key, value in batch.items()}
            for key, value in batch.items():
                fake.launch(consumer, torch.Tensor.copy_, out[key], value)
            seen.append(out)
            del batch, value
    fake.finish()
    return seen


@pytest.mark.parametrize("skip", [["wait"], ["done", "synchronize"]])
def test_without_its_waits_a_late_device_gives_wrong_batches(path, monkeypatch, skip):
    device_is(monkeypatch, CpuBackend())
    expected = epochs(make(path, keep="never"), 1)[0]
    found = []
    for seed in range(10):
        fake = FakeBackend(seed, skip=skip)
        device_is(monkeypatch, fake)
        found.append([tensors(batch) for batch in seen_late(make(path), fake, 1)])
    assert any(batches != expected for batches in found)


def test_all_is_read_once_and_later_epochs_read_decode_and_copy_nothing(path, monkeypatch):
    device_is(monkeypatch, CpuBackend())
    loader = make(path, window="all")
    list(loader)
    first = loader.stats()
    assert (first.rows, first.batches) == (ROWS, len(loader))
    assert first.decoded_bytes >= ROWS * SAMPLE_NBYTES  # of a chunk that two slots share, twice
    assert loader.held_nbytes == 0  # the slots that brought it
    for _ in range(2):
        stream = iter(loader)
        assert sum(len(batch["y"]) for batch in stream) == ROWS
        later = loader.stats()
        assert (later.read_bytes, later.decoded_bytes, later.chunks, feed_of(stream).totals.copies) == (0, 0, 0, 0)
        assert (later.memory_bytes, later.device_bytes) == (ROWS * SAMPLE_NBYTES, ROWS * SAMPLE_NBYTES)
    assert "30.3 KiB stay on the device" in str(later)


def test_iterators_at_the_same_time_share_what_is_there(path, monkeypatch):
    device_is(monkeypatch, CpuBackend())
    loader = make(path)
    first, second = iter(loader), iter(loader)  # of two epochs, of which each begins to read
    fresh = epochs(make(path, keep="never"), 2)
    found = [(tensors(a), tensors(b)) for a, b in zip(first, second, strict=True)]
    assert found == list(zip(*fresh, strict=True))
    assert feed_of(first).totals.copies > 0
    assert feed_of(second).totals.copies == 0


def test_the_devices_memory_goes_back_with_close(path, monkeypatch):
    fake = FakeBackend(1)
    device_is(monkeypatch, fake)
    loader = make(path, fields="y")
    assert sum(len(batch) for batch in loader) == ROWS
    gc.collect()
    assert fake.held_nbytes >= 8 * ROWS
    loader.close()
    gc.collect()
    assert fake.held_nbytes == 0
    assert sum(len(batch) for batch in loader) == ROWS  # begins anew


def test_a_changed_file_is_noticed_before_an_epoch_of_kept_samples(path, monkeypatch):
    device_is(monkeypatch, CpuBackend())
    loader = make(path)
    list(loader)
    os.utime(path, (1, 1))
    with pytest.raises(SourceError, match="changed"):
        list(loader)


def test_one_of_many_small_files_that_changed_is_noticed(tmp_path, monkeypatch):
    device_is(monkeypatch, CpuBackend())
    for k in range(40):
        with h5py.File(tmp_path / f"{k:02}.h5", "w") as file:
            file["x"] = np.full(3, k)
    loader = make(H5Dataset(str(tmp_path / "*.h5"), "x", samples=Objects("files")), window="auto")
    assert sorted(torch.cat(list(loader))[:, 0].tolist()) == list(range(40))
    os.utime(tmp_path / "07.h5", (1, 1))
    with pytest.raises(SourceError, match=r"07\.h5.*changed"):
        list(loader)


def test_a_corrupt_chunk_is_an_error_in_every_epoch(path, monkeypatch):
    device_is(monkeypatch, CpuBackend())
    with h5py.File(path) as file:
        info = file["x"].id.get_chunk_info(20)
    with path.open("r+b") as raw:
        raw.seek(info.byte_offset)
        raw.write(b"\xff" * info.size)
    loader = make(path)
    for _ in range(2):
        with pytest.raises(CorruptChunkError, match="chunk"):
            next(iter(loader))


def test_an_epoch_that_is_broken_off_leaves_the_samples_there(path, monkeypatch):
    device_is(monkeypatch, CpuBackend())
    loader, fresh = make(path), make(path, keep="never")
    for each in (loader, fresh):
        next(iter(each))
        gc.collect()
    assert epochs(loader, 2) == epochs(fresh, 2)
    assert loader.stats().read_bytes == 0


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [None, "cpu"])
def test_without_a_device_there_is_nowhere_to_keep_samples(path, device):
    with pytest.raises(OptionError, match=rf"keep='device' keeps samples on .*device={device!r}.*keep='auto'"):
        make(path, device=device)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fields": ["y", "s"]}, "holds tensors, and field 's' is a list of strings"),
        ({"fields": {"o": Field("y", rows=Lengths("few"), ragged="packed")}}, "holds tensors, and field 'y' is ragged"),
        (
            {"fields": "volume", "samples": Boxes((4, 4), at="random", per_epoch=9)},
            "the same in each epoch, .* leave keep=",
        ),
        ({"sampler": range(9), "shuffle": None, "seed": None}, "sampler= and batch_sampler= must be left out"),
        ({"draw": print, "shuffle": None, "seed": None}, "draw= takes no function"),
        ({"on_error": "skip"}, "on_error='skip' cannot leave rows out"),
        ({"sample_transform": dict}, "sample_transform= and transform_workers= must be left out"),
        (
            {"batch_transform": dict, "transform_workers": 1},
            "sample_transform= and transform_workers= must be left out",
        ),
    ],
)
def test_what_cannot_stay_on_a_device_is_refused(path, monkeypatch, options, words):
    device_is(monkeypatch, CpuBackend())
    with pytest.raises(OptionError, match=f"keep='device' .*{words}"):
        make(path, **options)


def test_samples_may_take_half_of_the_devices_free_memory(path, monkeypatch):
    fake = FakeBackend(0)
    device_is(monkeypatch, fake)
    needed = ROWS * (SAMPLE_NBYTES + 8)
    monkeypatch.setattr(fake, "free_nbytes", lambda: 2 * needed)
    make(path)
    monkeypatch.setattr(fake, "free_nbytes", lambda: 2 * needed - 1)
    with pytest.raises(DeviceMemoryError, match=f"takes {needed:,} bytes .*half of what is free.*keep="):
        make(path)


def test_memory_that_was_taken_meanwhile_is_an_error_of_the_first_batch(path, monkeypatch):
    fake = FakeBackend(0)
    device_is(monkeypatch, fake)
    loader = make(path)

    def none_left(nbytes, stream):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(fake, "allocate_device", none_left)
    with pytest.raises(DeviceMemoryError, match="all samples stay there"):
        next(iter(loader))


# --- on a GPU -------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("options", [{"device": "cuda"}, {"device": None, "window_device": "cuda"}])
def test_samples_that_stay_on_a_gpu_give_the_hosts_bytes(path, options):
    expected = epochs(make(path, device=None, keep="never"), 3)
    with make(path, **options) as loader:
        for epoch in expected:
            seen = []
            for batch in loader:
                torch.cuda._sleep(1_000_000)
                seen.append({key: value.clone() for key, value in batch.items()})
                del batch
            assert [tensors(batch) for batch in seen] == epoch
        held = torch.cuda.memory_allocated()
    gc.collect()
    assert held - torch.cuda.memory_allocated() >= ROWS * SAMPLE_NBYTES
    assert loader.stats().read_bytes == 0
