"""The adversarial backend earns its name: without one of its waits a feed gives wrong bytes."""

import gc
import inspect

import pytest
import torch
from fake_backend import POISON, FakeBackend
from toy_feed import BATCHES, feed_in_place, feed_owned, is_right

from h5stream.device.cuda import CudaBackend

SEEDS = range(40)


def wrong_seeds(feed, *, skip=(), **flags):
    return [seed for seed in SEEDS if not is_right(feed(FakeBackend(seed, skip=skip), **flags))]


def test_it_has_what_a_cuda_device_has():
    """And takes the same arguments: what the feed asks of one it may ask of the other."""
    asked = [name for name in vars(CudaBackend) if not name.startswith("_") and name != "device"]
    for name in asked:
        theirs, ours = (inspect.signature(getattr(kind, name)) for kind in (CudaBackend, FakeBackend))
        assert list(ours.parameters) == list(theirs.parameters), name
    assert "copy_async" in asked


@pytest.mark.parametrize("feed", [feed_in_place, feed_owned])
def test_with_all_waits_every_seed_gives_right_bytes(feed):
    assert wrong_seeds(feed) == []
    assert is_right(feed(FakeBackend(is_late=False)))


def test_polling_an_event_serves_as_well_as_waiting_for_it():
    assert wrong_seeds(feed_in_place, poll=True) == []


@pytest.mark.parametrize("wait", ["wait_to_refill", "wait_to_consume", "wait_to_overwrite"])
def test_each_wait_taken_out_of_the_feed_gives_wrong_bytes_under_some_seed(wait):
    assert wrong_seeds(feed_in_place, **{wait: False})


@pytest.mark.parametrize(
    ("feed", "skip", "flags"),
    [
        (feed_in_place, "wait", {}),
        (feed_in_place, "synchronize", {}),
        (feed_in_place, "done", {"poll": True}),
        (feed_owned, "hold", {}),
    ],
)
def test_each_wait_taken_out_of_the_backend_gives_wrong_bytes_under_some_seed(feed, skip, flags):
    assert wrong_seeds(feed, skip=[skip], **flags)


def test_owned_memory_needs_its_hold():
    assert wrong_seeds(feed_owned, hold=False)


def test_a_copy_reads_the_slot_when_it_runs_and_not_when_it_is_queued():
    def byte_after_overwriting_early(seed):
        backend = FakeBackend(seed)
        side = backend.side_stream()
        slot, there = backend.allocate_pinned(1), backend.allocate_device(1, side)
        slot.fill_(1)
        backend.copy_async(there, slot, side)
        slot.fill_(2)
        backend.finish()
        return there.item()

    assert {byte_after_overwriting_early(seed) for seed in SEEDS} >= {2}


def test_streams_run_in_both_orders_unless_an_event_orders_them():
    def order(seed, wait):
        backend, ran = FakeBackend(seed), []
        backend.launch(backend.side_stream(), lambda: ran.append("side"))
        event = backend.record_event(backend.side_stream())
        if wait:
            backend.wait(backend.current_stream(), event)
        backend.launch(backend.current_stream(), lambda: ran.append("consumer"))
        backend.finish()
        return tuple(ran)

    assert {order(seed, wait=False) for seed in SEEDS} == {("side", "consumer"), ("consumer", "side")}
    assert {order(seed, wait=True) for seed in SEEDS} == {("side", "consumer")}


def test_work_of_one_stream_runs_in_order_under_every_seed():
    for seed in SEEDS:
        backend, ran = FakeBackend(seed), []
        for k in range(10):
            backend.launch(backend.side_stream(), lambda k=k, ran=ran: ran.append(k))
        backend.finish()
        assert ran == list(range(10))


def test_synchronize_runs_what_the_event_needs_through_other_streams():
    for seed in SEEDS:
        backend, ran = FakeBackend(seed), []
        backend.launch(backend.side_stream(), lambda ran=ran: ran.append("side"))
        backend.wait(backend.current_stream(), backend.record_event(backend.side_stream()))
        backend.launch(backend.current_stream(), lambda ran=ran: ran.append("consumer"))
        event = backend.record_event(backend.current_stream())
        backend.synchronize(event)
        assert ran == ["side", "consumer"]
        assert backend.done(event)


def test_fresh_and_dropped_memory_is_poison():
    backend = FakeBackend()
    slot = backend.allocate_pinned(4)
    assert slot.tolist() == [POISON] * 4
    assert backend.allocate_device(4, backend.side_stream()).tolist() == [POISON] * 4
    there = backend.allocate_device(4, backend.side_stream())
    slot.fill_(1)
    backend.copy_async(there, slot, backend.side_stream())
    del slot
    gc.collect()
    backend.finish()
    # Which of the two came first is the seed's; the bytes are whole in both cases.
    assert there.tolist() in ([POISON] * 4, [1] * 4)


def test_a_view_keeps_its_memory():
    backend = FakeBackend()
    field = backend.allocate_pinned(64).fill_(3)[16:32].view(torch.float32)
    gc.collect()
    backend.finish()
    assert field.view(torch.uint8).tolist() == [3] * 16


def test_kernels_work_on_fields_of_packed_memory():
    for seed in SEEDS:
        backend = FakeBackend(seed)
        side = backend.side_stream()
        raw, out = backend.allocate_device(16, side), backend.allocate_device(32, side)
        slot = backend.allocate_pinned(16)
        slot.view(torch.int16).copy_(torch.arange(8, dtype=torch.int16))
        backend.copy_async(raw, slot, side)
        cast = out.view(torch.float32)
        backend.launch(side, torch.Tensor.copy_, cast[2:], raw[4:].view(torch.int16))
        backend.synchronize(backend.record_event(side))
        assert cast[2:].tolist() == [2, 3, 4, 5, 6, 7]


def test_it_counts_the_copies():
    backend = FakeBackend()
    feed_in_place(backend)
    assert backend.counts["copy_async"] == BATCHES
