"""The device window: the host window's bytes, slots that hold whole blocks, and what is held meanwhile."""

from __future__ import annotations

import gc
import zlib

import h5py
import hdf5plugin
import numpy as np
import pytest
import torch
from inner import device_is, feed_of, iterations_of, stream_all

import h5stream.routes.choice
from h5stream import H5StreamLoader
from h5stream.device.cpu import CpuBackend
from h5stream.device.pinned_slots import PinnedRing
from h5stream.device.window import AHEAD, WindowFeed
from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.landing import chunks
from h5stream.engine.slots import SlotFormat
from h5stream.errors import CorruptChunkError
from h5stream.order import transfer
from h5stream.order.blocks import make_blocks
from h5stream.order.epoch import EpochOrder
from h5stream.order.line import OrderSettings
from h5stream.order.regrouped import TransferOrder
from h5stream.storage.filters import Pipeline
from h5stream.storage.opening import open_layout
from tests.device.fake_backend import FakeBackend

ROWS, CHUNK, BATCH, WINDOW = 1000, 50, 64, 250
CHUNKS = ROWS // CHUNK
RNG = np.random.default_rng(0)
PAIR = np.dtype([("a", "<f4"), ("b", "<i4")])


@pytest.fixture(autouse=True)
def small_data_like_large(monkeypatch):
    """Let small files go the way of large ones: nothing kept or stacked, slots of few blocks."""
    stream_all(monkeypatch)
    monkeypatch.setattr(chunks, "SMALL_CHUNK_NBYTES", 0)
    monkeypatch.setattr(transfer, "TRANSFER_NBYTES", 1)


def numbers(dtype, shape):
    bytes_ = RNG.integers(0, 120, (*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    return bytes_.view(dtype)[..., 0]


def made(path, data, *, chunks=None, **filters):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=data, chunks=chunks or (CHUNK, *data.shape[1:]), **filters)
    return str(path)


def epoch_of(path, *, fields="x", batch=BATCH, **options):
    options = {"shuffle": True, "seed": 3, "window": WINDOW, "num_workers": 0, **options}
    with H5StreamLoader(path, batch, fields=fields, **options) as loader:
        stream = iter(loader)
        batches = [
            [part.clone() for part in (batch if isinstance(batch, (tuple, list)) else (batch,))] for batch in stream
        ]
        totals = getattr(feed_of(stream), "totals", None)
        return batches, totals


def assert_same(found, expected):
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def check(path, **options):
    """Compare with the host window."""
    expected, _ = epoch_of(path, **options)
    found, _ = epoch_of(path, window_device="cpu", **options)
    assert_same(found, expected)


# --- what crosses ----------------------------------------------------------------------

LOSSLESS = {
    "gzip": {"compression": "gzip"},
    "lz4": dict(hdf5plugin.LZ4()),
    "gzip and fletcher32 behind it": {"compression": "gzip", "fletcher32": True},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("filters", LOSSLESS)
@pytest.mark.parametrize("dtype", ["i2", "f4", "f8", "c16"])
def test_every_chunk_of_a_shuffled_field_crosses(tmp_path, dtype, filters, workers):
    path = made(tmp_path / "a.h5", numbers(dtype, (ROWS, 6)), shuffle=True, **LOSSLESS[filters])
    check(path, num_workers=workers)


OTHERS = {
    "bytes have one plane": ("u1", {"shuffle": True, "compression": "gzip"}),
    "a foreign byte order": (">f4", {"shuffle": True, "compression": "gzip"}),
    "no shuffle": ("f4", {"compression": "gzip"}),
    "no shuffle, by a plugin": ("f4", dict(hdf5plugin.Zstd())),
    "bitshuffle is another thing": ("f4", dict(hdf5plugin.Bitshuffle())),
    "no filter": ("f4", {}),
    "a plugin that decodes into memory of its own": ("f4", {"shuffle": True, **hdf5plugin.Zstd()}),
    "nothing to decode": ("f4", {"shuffle": True}),
}


@pytest.mark.parametrize("why", OTHERS)
def test_other_fields_cross(tmp_path, why):
    dtype, filters = OTHERS[why]
    check(made(tmp_path / "a.h5", numbers(dtype, (ROWS, 6)), **filters))


def test_members_of_a_compound_cross_as_rows(tmp_path):
    path = made(tmp_path / "a.h5", numbers(PAIR, (ROWS, 3)), shuffle=True, compression="gzip")
    check(path, fields=["x:a", "x:b"])
    check(path, fields="x:a")


@pytest.mark.parametrize("shape", [(), (6,), (3, 2), (1,)])
def test_rows_of_every_shape_cross_in_byte_planes(tmp_path, shape):
    path = made(tmp_path / "a.h5", numbers("f4", (ROWS, *shape)), shuffle=True, compression="gzip")
    check(path)


def test_the_edge_chunk_is_stored_full_size_and_crosses_as_rows(tmp_path):
    path = made(tmp_path / "a.h5", numbers("f4", (ROWS - 20, 6)), shuffle=True, compression="gzip")
    check(path)


def test_chunks_wider_than_the_row_or_narrower_cross_as_rows(tmp_path):
    data = numbers("f4", (ROWS, 6))
    wide = tmp_path / "wide.h5"
    with h5py.File(wide, "w") as file:
        x = file.create_dataset(
            "x", (ROWS, 6), "f4", chunks=(CHUNK, 8), maxshape=(None, None), shuffle=True, compression="gzip"
        )
        x[:] = data
    check(str(wide))
    check(made(tmp_path / "narrow.h5", data, chunks=(CHUNK, 3), shuffle=True, compression="gzip"))


def test_columns_cross_as_rows(tmp_path):
    path = made(tmp_path / "a.h5", numbers("f4", (ROWS, 6)), shuffle=True, compression="gzip")
    check(path, fields=h5stream.Field("x", columns=slice(1, 4)))


def test_chunks_that_were_never_written_are_filled(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        x = file.create_dataset(
            "x", (ROWS, 6), "f4", chunks=(CHUNK, 6), shuffle=True, compression="gzip", fillvalue=7.5
        )
        x[200:300] = numbers("f4", (100, 6))
    check(str(path))


@pytest.mark.parametrize("chunk", [25, 75])
def test_a_field_with_other_chunks_crosses_beside_the_first(tmp_path, chunk):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=numbers("f8", (ROWS, 6)), chunks=(CHUNK, 6), shuffle=True, compression="gzip")
        file.create_dataset("y", data=numbers("i4", (ROWS,)), chunks=(chunk,), shuffle=True, compression="gzip")
    # 50 rows of x a block: a chunk of 25 rows of y is whole, one of 75 hardly ever is.
    check(str(path), fields=["x", "y"])


@pytest.mark.parametrize("rank", range(3))
def test_ranks_cut_blocks_and_lose_no_row(tmp_path, rank):
    path = made(tmp_path / "a.h5", numbers("f4", (ROWS, 6)), shuffle=True, compression="gzip")
    # 333 rows a rank: blocks at its ends are cut, and what lies behind a cut may straddle two slots.
    check(path, rank=rank, world_size=3)


@pytest.mark.parametrize("batch", [1, 20, 64, 150, 999])
@pytest.mark.parametrize("options", [{}, {"window": "all"}, {"shuffle": False}])
def test_slots_hold_whole_blocks_for_every_batch_size(tmp_path, batch, options):
    path = made(tmp_path / "a.h5", numbers("f4", (ROWS, 6)), shuffle=True, compression="gzip")
    check(path, batch=batch, **options)


def test_rows_that_are_left_out_at_the_end_cut_one_block(tmp_path):
    path = made(tmp_path / "a.h5", numbers("f4", (ROWS, 6)), shuffle=True, compression="gzip")
    check(path, drop_last=True)  # and what lies behind it may straddle two slots


def test_a_subset_takes_its_rows_of_each_chunk(tmp_path):
    path = made(tmp_path / "a.h5", numbers("f4", (ROWS, 6)), shuffle=True, compression="gzip")
    rows = np.delete(np.arange(ROWS), [0, 130, 131, 555])
    expected, _ = epoch_of(h5stream.H5Dataset(path, "x", rows=rows), fields=None)
    found, _ = epoch_of(h5stream.H5Dataset(path, "x", rows=rows), fields=None, window_device="cpu")
    assert_same(found, expected)


def written_chunk_by_chunk(path, data, chunk_of):
    """Write a file whose chunks are given as stored; ``chunk_of(k, raw)`` gives bytes and filter mask."""
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", data.shape, data.dtype, chunks=(CHUNK, 6), shuffle=True, compression="gzip")
        for k in range(CHUNKS):
            stored, mask = chunk_of(k, data[k * CHUNK : (k + 1) * CHUNK])
            x.id.write_direct_chunk((k * CHUNK, 0), stored, filter_mask=mask)
    return str(path)


def shuffled(raw):
    return raw.view(np.uint8).reshape(-1, raw.itemsize).T.tobytes()


def test_chunks_that_were_written_without_the_shuffle_are_not_taken_for_planes(tmp_path):
    data = numbers("f4", (ROWS, 6))

    def chunk(k, raw):
        plain = k % 3 == 0
        return zlib.compress(raw.tobytes() if plain else shuffled(raw)), 1 if plain else 0

    path = written_chunk_by_chunk(tmp_path / "a.h5", data, chunk)
    check(path)


def test_a_checksum_before_the_shuffle_leaves_no_whole_planes(tmp_path):
    path = tmp_path / "a.h5"
    data = numbers("f4", (ROWS, 6))
    with h5py.File(path, "w") as file:
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_chunk((CHUNK, 6))
        creation.set_fletcher32()
        creation.set_shuffle()
        creation.set_deflate(4)
        space = h5py.h5s.create_simple(data.shape)
        h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, creation).write(space, space, data)
    check(str(path))


# --- errors -------------------------------------------------------------------------------------------------


def with_one_chunk_of_another_length(path, more):
    def chunk(k, raw):
        whole = shuffled(raw)
        return zlib.compress((whole + whole)[: len(whole) + more] if k == 9 else whole), 0

    return written_chunk_by_chunk(path, numbers("f4", (ROWS, 6)), chunk)


def test_a_chunk_that_decodes_to_more_is_given_to_libhdf5_as_on_the_host(tmp_path):
    check(with_one_chunk_of_another_length(tmp_path / "a.h5", 24))


def test_a_chunk_that_decodes_to_less_is_the_same_error_as_on_the_host(tmp_path):
    path = with_one_chunk_of_another_length(tmp_path / "a.h5", -24)
    messages = []
    for options in ({}, {"window_device": "cpu"}):
        with pytest.raises(CorruptChunkError) as caught:
            epoch_of(path, shuffle=False, **options)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "chunk (450, 0)" in messages[0]


def test_windows_before_a_corrupt_chunk_are_given(tmp_path):
    data = numbers("f4", (ROWS, 6))
    path = written_chunk_by_chunk(
        tmp_path / "a.h5", data, lambda k, raw: (b"no zlib" if k == 13 else zlib.compress(shuffled(raw)), 0)
    )
    seen = []
    loader = H5StreamLoader(path, BATCH, fields="x", window=100, window_device="cpu", num_workers=0)
    with loader, pytest.raises(CorruptChunkError, match="650"):
        seen.extend(batch.clone() for batch in loader)
    given = torch.cat(seen).numpy()
    assert len(given) >= 5 * BATCH
    assert (given.view(np.uint8) == data[: len(given)].view(np.uint8)).all()


def test_a_chunk_that_h5py_reads_in_place_of_the_codec_is_not_taken_for_planes(tmp_path, monkeypatch):
    from h5stream.storage.codecs import DecodeError

    path = made(tmp_path / "a.h5", numbers("f4", (ROWS, 6)), shuffle=True, compression="gzip")
    expected, _ = epoch_of(path)
    calls, decode = [], Pipeline.decode

    def failing(self, *arguments, **options):
        calls.append(options)
        if len(calls) % 4 == 0:
            raise DecodeError("not this time")
        return decode(self, *arguments, **options)

    with H5StreamLoader(path, BATCH, shuffle=True, seed=3, fields="x", window=WINDOW, window_device="cpu") as loader:
        monkeypatch.setattr(Pipeline, "decode", failing)
        stream = iter(loader)
        found = [[batch.clone()] for batch in stream]
    assert_same(found, expected)


@pytest.mark.parametrize("budget", [36_000, 200_000, 10_000_000])
def test_slots_of_whole_blocks_take_no_more_memory_than_batches_would(tmp_path, monkeypatch, budget):
    monkeypatch.setattr(transfer, "TRANSFER_NBYTES", 24 * 200)
    monkeypatch.setattr("h5stream.engine.budget.TASK_NBYTES", 1)
    path = made(tmp_path / "a.h5", numbers("f4", (ROWS, 6)), shuffle=True, compression="gzip")
    sizes = []
    for options in ({}, {"window_device": "cpu"}):
        with H5StreamLoader(path, 20, fields="x", memory_budget=budget, num_workers=0, **options) as loader:
            engine, size = iterations_of(loader).engine, loader.window_size
            sizes.append((size.slot_rows, engine.slots.slot_nbytes * size.max_open_batches))
    assert sizes[0][0] == 20
    assert sizes[1][0] == (20 if budget == 36_000 else 200)
    assert sizes[1][1] <= sizes[0][1] <= budget


# --- on a device that is late -------------------------------------------------------------------------------


def seen_by_a_late_consumer(path, monkeypatch, backend, batch_transform=None):
    device_is(monkeypatch, backend)
    loader = H5StreamLoader(
        path,
        BATCH,
        shuffle=True,
        fields="x",
        seed=3,
        window=WINDOW,
        window_device="cuda",
        batch_transform=batch_transform,
    )
    seen, consumer = [], backend.current_stream()
    for batch in loader:
        out = torch.zeros_like(batch)
        backend.launch(consumer, torch.Tensor.copy_, out, batch)
        seen.append([out])
        del batch
        gc.collect(0)
    backend.finish()
    return seen, loader


@pytest.mark.parametrize("seed", range(12))
def test_planes_are_laid_out_in_order_however_late_the_device_is(tmp_path, monkeypatch, seed):
    path = made(tmp_path / "a.h5", numbers("f4", (ROWS, 6)), shuffle=True, compression="gzip")
    expected, _ = epoch_of(path)
    seen, _ = seen_by_a_late_consumer(path, monkeypatch, FakeBackend(seed))
    assert_same(seen, expected)


@pytest.mark.parametrize("wait", ["wait", "hold"])
def test_without_a_wait_some_batch_of_a_window_is_wrong(tmp_path, monkeypatch, wait):
    path = made(tmp_path / "a.h5", numbers("f4", (ROWS, 6)), shuffle=True, compression="gzip")
    expected, _ = epoch_of(path)
    wrong = 0
    for seed in range(25):
        seen, _ = seen_by_a_late_consumer(path, monkeypatch, FakeBackend(seed, skip=[wait]))
        wrong += any(not torch.equal(a[0], b[0]) for a, b in zip(seen, expected, strict=True))
    assert wrong > 0, f"{wait}: nobody noticed"


@pytest.mark.parametrize("skip", [(), ("hold",)])
def test_what_a_transform_makes_is_held_for_the_consumer(tmp_path, monkeypatch, skip):
    path = made(tmp_path / "a.h5", np.arange(6 * ROWS, dtype="i4").reshape(ROWS, 6), shuffle=True, compression="gzip")
    expected, _ = epoch_of(path)
    wrong = 0
    for seed in range(25):
        backend = FakeBackend(seed, skip=skip)

        def doubled(batch, backend=backend):
            made_there = backend.allocate_device(batch.nbytes, backend.side_stream()).view(batch.dtype)
            return torch.mul(batch, 2, out=made_there.view(batch.shape))

        seen, _ = seen_by_a_late_consumer(path, monkeypatch, backend, doubled)
        wrong += any(not torch.equal(a[0], 2 * b[0]) for a, b in zip(seen, expected, strict=True))
    assert wrong == 0 if not skip else wrong > 0


# --- what is held, and how long it took ---------------------------------------------------------------------


class Counting(PinnedRing):
    """Knows how many of its slots were out at most."""

    out = most = 0

    def take(self):
        self.out += 1
        self.most = max(self.most, self.out)
        return super().take()

    def give_back(self, slot):
        self.out -= 1
        super().give_back(slot)


class Rows:
    """Fills slots of a transfer order with row numbers, the moment one is asked for."""

    def __init__(self, order, ring):
        self.order, self.ring, self.next, self.windows = order, ring, 0, list(order.windows())

    def next_batch(self, timeout_s=0.0):
        if self.next == self.order.batches:
            return None
        number, self.next = self.next, self.next + 1
        slot = self.ring.take()
        rows = np.concatenate([w.rows[w.batch == number] for w in self.windows]).astype(np.int64)
        slot.memory[: rows.nbytes] = rows.view(np.uint8)
        return ReadyBatch(number=number, rows=len(rows), slot=slot, objects={}, missing=0)

    next_if_ready = next_batch


def fed_with_row_numbers(path, backend, window):
    layout = open_layout(path, "x")
    settings = OrderSettings(batch_size=10, window_rows=window, first_window_rows=window)
    order = TransferOrder(EpochOrder(make_blocks((0, ROWS), (10,)), settings), slot_rows=10, slots_at_once=1)
    slot_format = SlotFormat.for_rows(layout.fields, 10)
    ring = Counting(backend, slot_format.nbytes)
    feed = WindowFeed(backend, Rows(order, ring), Assembler(layout), order, slot_format, slot_format)
    consumer, seen = backend.current_stream(), []
    while (given := feed.next_batch()) is not None:
        out = torch.zeros(given[1], dtype=torch.int64)
        backend.launch(consumer, torch.Tensor.copy_, out, given[0])
        seen.append(out)
        del given
    backend.finish()
    return torch.cat(seen).tolist(), ring


@pytest.fixture
def row_numbers(tmp_path):
    return made(tmp_path / "a.h5", np.arange(ROWS), chunks=(10,))


@pytest.mark.parametrize("window", [100, ROWS])
@pytest.mark.parametrize("seed", range(4))
def test_a_window_takes_no_more_of_the_host_than_the_copies_under_way(row_numbers, seed, window):
    """Also where it is as large as the data: the slots go back while it fills."""
    seen, ring = fed_with_row_numbers(row_numbers, FakeBackend(seed), window)
    assert sorted(seen) == list(range(ROWS))
    assert ring.most <= 2 * AHEAD + 1
    assert ring.out == 0


def test_a_slot_that_went_back_before_its_copy_was_done_gives_wrong_rows(row_numbers):
    backends = [FakeBackend(seed, skip=["done", "synchronize"]) for seed in range(10)]
    assert any(sorted(fed_with_row_numbers(row_numbers, b, 100)[0]) != list(range(ROWS)) for b in backends)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("options", [{"device": "cuda"}, {"window_device": "cuda"}])
def test_the_time_of_the_copies_is_counted(tmp_path, monkeypatch, seed, options):
    path = made(tmp_path / "a.h5", numbers("f4", (ROWS, 6)), shuffle=True, compression="gzip")
    fake = FakeBackend(seed)
    device_is(monkeypatch, fake)
    with H5StreamLoader(path, BATCH, fields="x", **options) as loader:
        stream = iter(loader)
        copies = sum(1 for _ in stream) and feed_of(stream).totals.copies
        # Each piece of work counts a nanosecond on the fake: a copy is one, and the event behind it another.
        assert 1e9 * loader.stats().copy_s >= 2 * copies - 0.1
        assert "elapsed_ns" in fake.counts


@pytest.mark.parametrize("options", [{"device": "cuda"}, {"window_device": "cuda"}])
def test_copies_take_time_on_the_processor_too_and_none_without_a_device(tmp_path, monkeypatch, options):
    path = made(tmp_path / "a.h5", numbers("f4", (ROWS, 6)), shuffle=True, compression="gzip")
    device_is(monkeypatch, CpuBackend())
    for arguments, least in ((options, 1e-9), ({}, 0.0)):
        with H5StreamLoader(path, BATCH, fields="x", **arguments) as loader:
            list(loader)
            statistics = loader.stats()
            assert least <= statistics.copy_s <= statistics.elapsed_s * (least > 0)
            assert bool(statistics.copy_busy) == bool(least)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("options", [{"device": "cuda"}, {"device": "cuda", "reuse_device_buffers": True}, {}])
def test_a_consumer_that_is_late_on_a_gpu_gets_the_hosts_bytes(tmp_path, options):
    path = made(tmp_path / "a.h5", numbers("f4", (ROWS, 6)), shuffle=True, compression="gzip")
    expected, _ = epoch_of(path)
    options = options or {"window_device": "cuda"}
    loader = H5StreamLoader(path, BATCH, shuffle=True, seed=3, window=WINDOW, fields="x", **options)
    for _ in range(20):
        loader.set_epoch(0)
        seen = []
        for batch in loader:
            torch.cuda._sleep(1_000_000)
            seen.append([batch.clone()])
            del batch
        assert_same([[part.cpu() for part in parts] for parts in seen], expected)
    assert loader.stats().copy_s > 0
