"""The loader on a device: the same batches through every path, waits and all, on a fake and on the processor."""

from __future__ import annotations

import gc
import itertools

import h5py
import numpy as np
import pytest
import torch
from inner import device_is, pinned_copies

from h5stream import Field, H5StreamLoader
from h5stream.errors import CorruptChunkError, OptionError
from tests.device.fake_backend import FakeBackend

ROWS, BATCH = 1000, 64


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("device") / "d.h5"
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=rng.standard_normal((ROWS, 5), dtype="f4"), chunks=(37, 3), compression="gzip")
        file.create_dataset("y", data=np.arange(ROWS), chunks=(100,))
        file.create_dataset("b", data=rng.integers(0, 255, (ROWS, 3), dtype="u1"), chunks=(50, 3), shuffle=True)
        file.create_dataset("s", data=np.array([b"%03d" % k for k in range(ROWS)]))
    return path


FIELDS = {"x": "x", "y": "y", "b": Field("b", dtype=torch.float32)}


def batches_of(path, **options):
    loader = H5StreamLoader(path, BATCH, shuffle=True, fields=options.pop("fields", FIELDS), seed=3, **options)
    return [{key: v.clone() if isinstance(v, torch.Tensor) else v for key, v in batch.items()} for batch in loader]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            if isinstance(b[key], torch.Tensor):
                assert a[key].dtype == b[key].dtype
                assert torch.equal(a[key], b[key])
            else:
                assert a[key] == b[key]


class Seeded:
    """Hands out one fake device, and runs what is left when the epoch is over."""

    def __init__(self, seed):
        self.backend = FakeBackend(seed)

    def __call__(self, device):
        return self.backend


@pytest.mark.parametrize("seed", range(6))
def test_on_a_late_device_every_batch_is_right(path, monkeypatch, seed):
    """The consumer copies each batch on its own stream; what it saw is looked at when all has run."""
    expected = batches_of(path, window=150)
    fake = Seeded(seed)
    device_is(monkeypatch, fake.backend)
    loader = H5StreamLoader(path, BATCH, shuffle=True, fields=FIELDS, seed=3, window=150, device="cuda")
    seen, consumer = [], fake.backend.current_stream()
    for batch in loader:
        out = {key: torch.zeros_like(value) for key, value in batch.items()}
        for key, value in batch.items():
            fake.backend.launch(consumer, torch.Tensor.copy_, out[key], value)
        seen.append(out)
        del batch, value
    fake.backend.finish()
    assert_same(seen, expected)


def test_strings_come_along_beside_tensors_on_a_device(path, monkeypatch):
    device_is(monkeypatch, FakeBackend(0, is_late=False))
    fields = {"y": "y", "s": "s"}
    assert_same(batches_of(path, fields=fields, device="cuda"), batches_of(path, fields=fields))


def test_a_transform_runs_once_for_each_batch_on_a_device(path, monkeypatch):
    device_is(monkeypatch, FakeBackend(0, is_late=False))
    calls = itertools.count()
    loader = H5StreamLoader(path, BATCH, fields="y", device="cuda", batch_transform=lambda y: (next(calls), y * 2)[1])
    assert torch.cat(list(loader)).tolist() == [2 * k for k in range(ROWS)]
    assert next(calls) == len(loader)


def test_collate_fn_works_on_a_device(path, monkeypatch):
    device_is(monkeypatch, FakeBackend(0, is_late=False))
    loader = H5StreamLoader(path, BATCH, fields="y", device="cuda", collate_fn=len)
    assert next(iter(loader)) == BATCH


def test_nothing_is_allocated_a_batch_in_steady_state(path, monkeypatch):
    fake = Seeded(1)
    device_is(monkeypatch, fake.backend)
    loader = H5StreamLoader(path, BATCH, shuffle=True, fields=["x", "y"], device="cuda")
    counts = []
    for _ in range(3):
        for _batch in loader:
            pass
        counts.append((fake.backend.counts["allocate_pinned"], fake.backend.counts["copy_async"]))
    pinned, copies = zip(*counts, strict=True)
    assert pinned[0] == pinned[-1]
    assert copies == (len(loader), 2 * len(loader), 3 * len(loader))


def test_an_error_on_a_device_arrives_at_its_batch(path, monkeypatch, tmp_path):
    """The middle of the file is overwritten: what comes before is delivered, the batch that needs it fails."""
    broken = tmp_path / "broken.h5"
    broken.write_bytes(path.read_bytes())
    with h5py.File(broken) as file:
        info = file["x"].id.get_chunk_info(26)  # rows 481 to 517, columns 0 to 2
    with broken.open("r+b") as raw:
        raw.seek(info.byte_offset)
        raw.write(b"\xff" * info.size)
    device_is(monkeypatch, FakeBackend(0, is_late=False))
    seen = []
    stream = iter(H5StreamLoader(broken, BATCH, fields=["x", "y"], prefetch_factor=8, device="cuda"))
    with pytest.raises(CorruptChunkError, match="chunk"):
        seen.extend(y[0].item() for _, y in stream)
    assert seen == [0, 64, 128, 192, 256, 320, 384, 448][: len(seen)]
    assert len(seen) >= 6


def test_a_dropped_iterator_leaves_no_slot_behind(path, monkeypatch):
    fake = Seeded(2)
    device_is(monkeypatch, fake.backend)
    loader = H5StreamLoader(path, BATCH, fields="y", device="cuda")
    for _ in range(20):
        next(iter(loader))
        gc.collect()
    assert fake.backend.counts["allocate_pinned"] <= 2


# --- copy_into ----------------------------------------------------------------------------------------------


def test_copy_into_fills_the_same_tensors_batch_by_batch(path):
    loader = H5StreamLoader(path, BATCH, shuffle=True, fields=["x", "y"])
    static = (torch.empty(BATCH, 5), torch.empty(BATCH, dtype=torch.int64))
    rows, seen = [], []
    for count in loader.copy_into(static):
        rows.append(count)
        seen += static[1][:count].tolist()
    assert rows == [BATCH] * 15 + [40]
    assert sorted(seen) == list(range(ROWS))


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_cuda_a_cuda_device_is_a_clear_error(path):
    with pytest.raises(OptionError, match=r"device='cuda' needs CUDA, and there is none here"):
        H5StreamLoader(path, BATCH, fields="y", device="cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_pin_memory_without_cuda_has_nothing_to_do(path):
    assert not next(iter(H5StreamLoader(path, BATCH, fields="y", pin_memory=True))).is_pinned()


@pytest.mark.parametrize("options", [{"collate_fn": torch.utils.data.default_collate}, {"batch_transform": dict}, {}])
def test_pin_memory_pins_what_the_user_gets_also_behind_collate_fn_and_casts(path, monkeypatch, options):
    device_is(monkeypatch, FakeBackend(0))
    pinned = pinned_copies(monkeypatch)
    given = list(H5StreamLoader(path, BATCH, fields=FIELDS, pin_memory=True, **options))
    assert [id(batch) for batch in pinned] == [id(batch) for batch in given]
    assert all(batch["b"].dtype == torch.float32 for batch in pinned)
