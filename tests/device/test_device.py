"""The loader on a device that does everything as late as it may: each wait of ours, taken out, gives wrong bytes."""

import gc
import itertools

import h5py
import numpy as np
import pytest
import torch
from oracle.compare import differs, plain
from support.fake_backend import FakeBackend
from support.inner import device_is, pinned_copies, stream_all
from support.making import corrupt_chunk

from h5stream import Field, H5StreamLoader, SampleNumber
from h5stream.engine.slots import SlotFormat
from h5stream.errors import CorruptChunkError, DeviceMemoryError, OptionError

ROWS, BATCH = 1000, 64
ALL_SEEDS = range(25)
SEEDS = ALL_SEEDS[:9]
X = Field("x", normalize={"mean": [1.0, 2, 3, 4, 5], "std": 2.0})
FIELDS = {"x": X, "y": "y", "b": Field("b", dtype=torch.float32), "s": "s"}


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


def loader_of(path, **options):
    return H5StreamLoader(path, BATCH, **{"shuffle": True, "fields": FIELDS, "seed": 3, "window": 150, **options})


def seen_on(backend, path, monkeypatch, *, keep=False, **options):
    """Copy each batch on the consumer's own stream, later, and perhaps keep it; give all once everything has run."""
    device_is(monkeypatch, backend)
    seen, kept, consumer = [], [], backend.current_stream()
    for batch in loader_of(path, device="cuda", **options):
        out = dict(batch)
        for key, value in batch.items():
            if isinstance(value, torch.Tensor):
                out[key] = torch.zeros_like(value)
                backend.launch(consumer, torch.Tensor.copy_, out[key], value)
        seen.append(out)
        kept += [batch] * keep
        del batch, value
    backend.finish()
    return seen + kept


def are_same(found, expected):
    """Tell whether batches have the same values of the same types."""
    return not differs(plain(found), plain(expected))


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(k, marks=pytest.mark.slow) for k in ALL_SEEDS[len(SEEDS) :])])
def test_on_a_late_device_every_batch_is_right_and_stays_so_where_it_is_kept(path, monkeypatch, seed):
    expected, backend, keep = list(loader_of(path)), FakeBackend(seed), seed % 3 == 0
    assert are_same(seen_on(backend, path, monkeypatch, keep=keep), expected * (1 + keep))


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_packed_numbers_of_several_files_are_right_on_a_late_device(tmp_path, monkeypatch, seed):
    paths = [tmp_path / f"{k}.nc" for k in range(3)]
    for k, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file["t"] = np.random.default_rng(k).integers(0, 9, (ROWS // 4, 5), "u2")
            for name, value in (("scale_factor", 0.5 + k), ("add_offset", 3.0 * k), ("_FillValue", np.uint16(k))):
                file["t"].attrs[name] = value
    packed = {"missing": "netcdf"}
    fields = {
        "t": Field("t", **packed),
        "n": Field("t", **packed, normalize={"mean": 1, "nan": 0}),
        "y": SampleNumber(),
    }
    expected, backend = list(loader_of(paths, fields=fields)), FakeBackend(seed)
    assert are_same(seen_on(backend, paths, monkeypatch, keep=seed == 3, fields=fields), expected * (1 + (seed == 3)))
    assert expected[0]["t"].isnan().any()


@pytest.mark.parametrize("size", [BATCH, 8])
def test_raw_bytes_cross_and_of_a_slot_with_much_more_room_those_of_its_batch_alone(path, monkeypatch, size):
    backend, named = FakeBackend(0, is_late=False), [[*range(k, k + size)] for k in range(0, 12 * size, size)]
    device_is(monkeypatch, backend)
    order = {"batch_sampler": named} if size == 8 else {"batch_size": size, "sampler": range(12 * size)}
    loader = H5StreamLoader(path, fields=FIELDS, device="cuda", **order)
    assert [batch["y"].tolist() for batch in loader] == named
    assert backend.counts["nbytes"] == 12 * SlotFormat.for_rows(loader.dataset.layout.fields, size).nbytes


# Each wait of the feed, by the call that makes it.
WAITS = {
    "host slot given back before its copy is done (done, synchronize)": ("done", "synchronize"),
    "consumer's stream does not wait for the copy": ("wait",),
    "device memory freed while the consumer still uses it": ("hold",),
}


@pytest.mark.parametrize("name", WAITS)
def test_without_a_wait_some_batch_is_wrong(path, monkeypatch, name):
    stream_all(monkeypatch)
    expected = list(loader_of(path))
    for seed in ALL_SEEDS:
        backend = FakeBackend(seed, skip=WAITS[name])
        if not are_same(seen_on(backend, path, monkeypatch), expected):
            return
    pytest.fail(f"{name}: nobody noticed")


@pytest.mark.parametrize("skip", [(), ("hold",)])
def test_what_a_transform_makes_is_held_for_the_consumer(path, monkeypatch, skip):
    expected, wrong = [{"y": batch["y"] * 2} for batch in loader_of(path, fields={"y": "y"})], 0
    calls = itertools.count()
    for seed in SEEDS:
        backend = FakeBackend(seed, skip=skip)

        def doubled(batch, backend=backend):
            next(calls)
            y = batch["y"]
            made_there = backend.allocate_device(y.nbytes, backend.side_stream()).view(y.dtype)
            return {"y": torch.mul(y, 2, out=made_there.view(y.shape))}

        found = seen_on(backend, path, monkeypatch, fields={"y": "y"}, batch_transform=doubled)
        wrong += not are_same(found, expected)
    assert wrong == 0 if not skip else wrong > 0
    assert next(calls) == len(SEEDS) * len(expected)


def test_collate_fn_works_on_a_device(path, monkeypatch):
    device_is(monkeypatch, FakeBackend(0, is_late=False))
    assert next(iter(loader_of(path, fields="y", device="cuda", collate_fn=len))) == BATCH


def test_nothing_is_allocated_a_batch_in_steady_state_and_the_time_of_copies_is_counted(path, monkeypatch):
    fake, counts = FakeBackend(1), []
    device_is(monkeypatch, fake)
    with loader_of(path, fields=["x", "y"], device="cuda") as loader:
        for _ in range(3):
            for _batch in loader:
                pass
            counts.append((fake.counts["allocate_pinned"], fake.counts["copy_async"], fake.counts["elapsed_ns"]))
        # Each piece of work counts a nanosecond on the fake: a copy is one, and the event behind it another.
        assert 1e9 * loader.stats().copy_s >= 2 * len(loader) - 0.1
    pinned, copies, timed = zip(*counts, strict=True)
    assert pinned[0] == pinned[-1]
    assert copies == timed == (len(loader), 2 * len(loader), 3 * len(loader))
    with loader_of(path) as loader:
        list(loader)
        assert loader.stats().copy_s == loader.stats().copy_busy == 0


def test_an_error_on_a_device_arrives_at_its_batch(path, monkeypatch, tmp_path):
    """The middle of the file is overwritten: what comes before is delivered, the batch that needs it fails."""
    broken = tmp_path / "broken.h5"
    broken.write_bytes(path.read_bytes())
    corrupt_chunk(broken, 26)  # rows 481 to 517, columns 0 to 2
    device_is(monkeypatch, FakeBackend(0, is_late=False))
    seen = []
    stream = iter(H5StreamLoader(broken, BATCH, fields=["x", "y"], prefetch_factor=8, device="cuda"))
    with pytest.raises(CorruptChunkError, match="chunk"):
        seen.extend(y[0].item() for _, y in stream)
    assert seen == [0, 64, 128, 192, 256, 320, 384, 448][: len(seen)]
    assert len(seen) >= 6


def test_a_dropped_iterator_leaves_no_slot_behind(path, monkeypatch):
    fake = FakeBackend(2)
    device_is(monkeypatch, fake)
    loader = H5StreamLoader(path, BATCH, fields="y", device="cuda")
    for _ in range(20):
        next(iter(loader))
        gc.collect()
    assert fake.counts["allocate_pinned"] <= 2


def test_no_room_on_the_device_names_the_knob(path, monkeypatch):
    class Full(FakeBackend):
        def allocate_device(self, nbytes, stream):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 MiB")

    device_is(monkeypatch, Full())
    with pytest.raises(DeviceMemoryError, match="prefetch_factor=6"):
        next(iter(loader_of(path, device="cuda", prefetch_factor=6)))


def test_copy_into_fills_the_same_tensors_batch_by_batch(path):
    loader = H5StreamLoader(path, BATCH, shuffle=True, fields=["x", "y"])
    static = (torch.empty(BATCH, 5), torch.empty(BATCH, dtype=torch.int64))
    rows, seen = [], []
    for count in loader.copy_into(static):
        rows.append(count)
        seen += static[1][:count].tolist()
    assert rows == [BATCH] * 15 + [40]
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_consumer_that_is_late_on_a_gpu_gets_the_hosts_bytes(path):
    expected, kept = list(loader_of(path)), []
    loader = loader_of(path, device="cuda")
    for _ in range(20):
        loader.set_epoch(0)
        seen = []
        for batch in loader:
            torch.cuda._sleep(1_000_000)
            seen.append({key: value.clone() if torch.is_tensor(value) else value for key, value in batch.items()})
            kept += [batch] * (len(kept) < len(expected))
            del batch
        for found in (seen, kept):
            found = [{k: v.cpu() if torch.is_tensor(v) else v for k, v in batch.items()} for batch in found]
            assert are_same(found, expected)
    assert loader.stats().copy_s > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_cuda_a_cuda_device_is_a_clear_error_and_pin_memory_has_nothing_to_do(path):
    with pytest.raises(OptionError, match=r"device='cuda' needs CUDA, and there is none here"):
        H5StreamLoader(path, BATCH, fields="y", device="cuda")
    assert not next(iter(H5StreamLoader(path, BATCH, fields="y", pin_memory=True))).is_pinned()


@pytest.mark.parametrize("options", [{"collate_fn": torch.utils.data.default_collate}, {"batch_transform": dict}, {}])
def test_pin_memory_pins_what_the_user_gets_also_behind_collate_fn_and_casts(path, monkeypatch, options):
    device_is(monkeypatch, FakeBackend(0))
    pinned = pinned_copies(monkeypatch)
    given = list(H5StreamLoader(path, BATCH, fields=FIELDS, pin_memory=True, **options))
    assert [id(batch) for batch in pinned] == [id(batch) for batch in given]
    assert all(batch["b"].dtype == torch.float32 for batch in pinned)
