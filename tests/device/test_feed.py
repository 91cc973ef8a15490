"""The feed on a device that does everything as late as it may; each wait, taken out, gives wrong bytes."""

from __future__ import annotations

import gc

import h5py
import numpy as np
import pytest
import torch
from inner import device_is

from h5stream import H5StreamLoader
from h5stream.device.cuda import CudaBackend
from h5stream.device.feed import DeviceFeed, pinned_ring
from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.slots import SlotFormat
from h5stream.storage.opening import open_layout
from tests.device.fake_backend import FakeBackend

BATCHES, ROWS = 12, 8
SEEDS = range(25)


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    path = tmp_path_factory.mktemp("feed") / "f.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros((4, 3), dtype="f4")
        file["y"] = np.zeros(4, dtype="u1")
        file["s"] = np.array([b"ab"] * 4)
    return open_layout(str(path), {"x": "x", "y": "y", "s": "s"})


@pytest.fixture(scope="module")
def cast_layout(layout):
    from dataclasses import replace

    x, y, s = layout.fields
    return replace(layout, fields=(x, replace(y, cast=torch.float32), s))


class Filled:
    """Fills slots in turn, as an engine that is always ahead would: the moment one is free it is overwritten."""

    def __init__(self, layout, ring, slot_format, batches=BATCHES, fail_at=None):
        self._layout, self._ring, self._format = layout, ring, slot_format
        self._batches, self._next, self._fail_at = batches, 0, fail_at

    def next_batch(self, timeout_s=0.0):
        if self._next == self._fail_at:
            raise ValueError(f"batch {self._next}")
        if self._next == self._batches:
            return None
        k, self._next = self._next, self._next + 1
        slot = self._ring.take()
        expected = batch_bytes(self._layout, self._format, k)
        slot.memory[: len(expected)] = expected
        return ReadyBatch(number=k, rows=ROWS, slot=slot, objects={}, missing=0)

    next_if_ready = next_batch


def batch_bytes(layout, slot_format, k):
    memory = np.zeros(slot_format.nbytes, dtype=np.uint8)
    for number, field in enumerate(layout.fields):
        values = np.full((ROWS, *field.row_shape), k + 1, dtype="f4" if field.kind == "bytes" else field.dtype)
        if field.kind == "bytes":
            values = np.array([b"%02d" % k] * ROWS)
        raw = np.frombuffer(values.tobytes(), dtype=np.uint8)
        memory[slot_format.offsets[number] :][: len(raw)] = raw
    return memory


def run_feed(layout, backend, *, depth=2, keep=False, room=ROWS, **options):
    """Feed all batches; the consumer copies each on its own stream, later. Give what it saw."""
    slot_format = SlotFormat.for_rows(layout.fields, room)
    ring = pinned_ring(backend, slot_format.nbytes)
    source = Filled(layout, ring, slot_format)
    feed = DeviceFeed(backend, source, Assembler(layout), slot_format, depth=depth, **options)
    consumer, seen, kept = backend.current_stream(), [], []
    while (given := feed.next_batch()) is not None:
        assert given.rows == ROWS
        batch = given.value
        del given
        out = {name: torch.zeros_like(batch[name]) for name in ("x", "y")}
        for name, tensor in out.items():
            backend.launch(consumer, torch.Tensor.copy_, tensor, batch[name])
        seen.append((out, batch["s"]))
        if keep:
            kept.append(batch)
        del batch
    feed.close()
    getattr(backend, "finish", torch.cuda.synchronize)()
    if keep:
        seen += [({name: batch[name] for name in ("x", "y")}, batch["s"]) for batch in kept]
    return seen, ring


def is_right(seen):
    return all(
        bool((out["x"] == k % BATCHES + 1).all())
        and bool((out["y"] == k % BATCHES + 1).all())
        and strings == [b"%02d" % (k % BATCHES)] * ROWS
        for k, (out, strings) in enumerate(seen)
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_batch_in_a_slot_with_much_more_room_crosses_without_it(layout, seed):
    backend = FakeBackend(seed)
    seen, _ = run_feed(layout, backend, room=1000, keep=True)
    assert is_right(seen)
    assert backend.counts["nbytes"] == BATCHES * SlotFormat.for_rows(layout.fields, ROWS).nbytes


@pytest.mark.parametrize("seed", SEEDS)
def test_every_batch_is_right_however_late_the_device_is(layout, seed):
    seen, _ = run_feed(layout, FakeBackend(seed))
    assert len(seen) == BATCHES
    assert is_right(seen)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_every_batch_is_right_on_a_gpu(cast_layout):
    seen, _ = run_feed(cast_layout, CudaBackend(), keep=True)
    assert is_right(seen)


@pytest.mark.parametrize("seed", range(5))
def test_normalisation_runs_on_the_device_after_the_raw_bytes_crossed(layout, seed):
    from dataclasses import replace

    from h5stream.samples.normalising import Normalisation

    x, y, s = layout.fields
    fields = (
        replace(x, normalise=Normalisation(mean=(1.0, 2.0, 3.0), std=2.0)),
        replace(y, normalise=Normalisation(factor=0.5)),
        s,
    )
    layout = replace(layout, fields=fields)
    backend = FakeBackend(seed)
    seen, _ = run_feed(layout, backend)
    for k, (out, _) in enumerate(seen):
        assert torch.equal(out["x"], (torch.full((ROWS, 3), k + 1.0) - torch.tensor([1.0, 2, 3])) / 2)
        assert torch.equal(out["y"], torch.full((ROWS,), (k + 1) / 2))
    assert backend.counts["nbytes"] == BATCHES * SlotFormat.for_rows(layout.fields, ROWS).nbytes


@pytest.mark.parametrize("seed", SEEDS)
def test_casts_run_on_the_device_after_the_raw_bytes_crossed(cast_layout, seed):
    backend = FakeBackend(seed)
    seen, _ = run_feed(cast_layout, backend)
    assert is_right(seen)
    assert seen[0][0]["y"].dtype == torch.float32
    assert backend.counts["nbytes"] == BATCHES * SlotFormat.for_rows(cast_layout.fields, ROWS).nbytes


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_batches_that_are_kept_stay_right(layout, seed):
    seen, _ = run_feed(layout, FakeBackend(seed), keep=True)
    assert len(seen) == 2 * BATCHES
    assert is_right(seen)


# Each wait of the feed, by the call that makes it.
WAITS = {
    "host slot given back before its copy is done (done, synchronize)": ("done", "synchronize"),
    "consumer's stream does not wait for the copy": ("wait",),
    "device memory freed while the consumer still uses it": ("hold",),
}


@pytest.mark.parametrize("name", WAITS)
def test_without_a_wait_some_batch_is_wrong(layout, name):
    wrong = 0
    for seed in SEEDS:
        seen, _ = run_feed(layout, FakeBackend(seed, skip=WAITS[name]))
        wrong += not is_right(seen)
    assert wrong > 0, f"{name}: nobody noticed"


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_a_transform_runs_on_the_side_stream_before_the_consumer_sees_the_batch(layout, seed):
    def double(batch):
        return {"x": batch["x"] * 2, "y": batch["y"] * 2, "s": batch["s"]}

    seen, _ = run_feed(layout, FakeBackend(seed), transform=double)
    assert all(bool((out["x"] == 2 * (k + 1)).all()) for k, (out, _) in enumerate(seen))


def test_an_error_arrives_at_its_batch_and_not_at_one_ahead_of_it(layout):
    backend = FakeBackend(is_late=False)
    slot_format = SlotFormat.for_rows(layout.fields, ROWS)
    ring = pinned_ring(backend, slot_format.nbytes)
    source = Filled(layout, ring, slot_format, fail_at=3)
    feed = DeviceFeed(backend, source, Assembler(layout), slot_format, depth=8)
    assert [feed.next_batch().value["x"][0, 0].item() for _ in range(3)] == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="batch 3"):
        feed.next_batch()


def test_dropping_the_feed_waits_for_its_copies_and_gives_the_slots_back(layout):
    backend = FakeBackend(5)
    slot_format = SlotFormat.for_rows(layout.fields, ROWS)
    ring = pinned_ring(backend, slot_format.nbytes)
    feed = DeviceFeed(backend, Filled(layout, ring, slot_format), Assembler(layout), slot_format, depth=4)
    feed.next_batch()
    del feed
    gc.collect()
    assert ring.free_slots * ring.slot_nbytes == ring.held_nbytes


def test_no_room_on_the_device_names_the_knob(layout):
    from h5stream.errors import DeviceMemoryError

    class Full(FakeBackend):
        def allocate_device(self, nbytes, stream):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 MiB")

    slot_format = SlotFormat.for_rows(layout.fields, ROWS)
    ring = pinned_ring(Full(), slot_format.nbytes)
    feed = DeviceFeed(Full(), Filled(layout, ring, slot_format), Assembler(layout), slot_format, depth=6)
    with pytest.raises(DeviceMemoryError, match="prefetch_factor=6"):
        feed.next_batch()


# --- through a loader -----------------------------------------------------------------------------------------

OPTIONS = {"shuffle": True, "fields": "x", "seed": 3, "window": 100}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("loader") / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "x", data=np.arange(6000, dtype="i4").reshape(-1, 6), chunks=(50, 6), shuffle=True, compression="gzip"
        )
    return path


@pytest.mark.parametrize("skip", [(), ("hold",)])
def test_what_a_transform_makes_is_held_for_the_consumer(path, monkeypatch, skip):
    expected, wrong = list(H5StreamLoader(path, 64, **OPTIONS)), 0
    for seed in SEEDS:
        backend = FakeBackend(seed, skip=skip)

        def doubled(batch, backend=backend):
            made_there = backend.allocate_device(batch.nbytes, backend.side_stream()).view(batch.dtype)
            return torch.mul(batch, 2, out=made_there.view(batch.shape))

        device_is(monkeypatch, backend)
        seen = []
        for batch in H5StreamLoader(path, 64, device="cuda", batch_transform=doubled, **OPTIONS):
            seen.append(torch.zeros_like(batch))
            backend.launch(backend.current_stream(), torch.Tensor.copy_, seen[-1], batch)
            del batch
            gc.collect(0)
        backend.finish()
        wrong += any(not torch.equal(a, 2 * b) for a, b in zip(seen, expected, strict=True))
    assert wrong == 0 if not skip else wrong > 0


@pytest.mark.parametrize("seed", range(6))
def test_the_time_of_the_copies_is_counted(path, monkeypatch, seed):
    fake = FakeBackend(seed)
    device_is(monkeypatch, fake)
    with H5StreamLoader(path, 64, device="cuda", **OPTIONS) as loader:
        for _ in loader:
            pass
        # Each piece of work counts a nanosecond on the fake: a copy is one, and the event behind it another.
        assert 1e9 * loader.stats().copy_s >= 2 * fake.counts["copy_async"] - 0.1
        assert fake.counts["elapsed_ns"] == fake.counts["copy_async"] == len(loader)
    with H5StreamLoader(path, 64, **OPTIONS) as loader:
        list(loader)
        assert loader.stats().copy_s == loader.stats().copy_busy == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_consumer_that_is_late_on_a_gpu_gets_the_hosts_bytes(path):
    expected = list(H5StreamLoader(path, 64, **OPTIONS))
    loader = H5StreamLoader(path, 64, device="cuda", **OPTIONS)
    for _ in range(20):
        loader.set_epoch(0)
        seen = []
        for batch in loader:
            torch.cuda._sleep(1_000_000)
            seen.append(batch.clone())
            del batch
        assert all(torch.equal(a.cpu(), b) for a, b in zip(seen, expected, strict=True))
    assert loader.stats().copy_s > 0
