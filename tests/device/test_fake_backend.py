"""The device that is late: what the tests of the feed, which take its waits out one by one, do not show of it."""

import gc
import inspect

from fake_backend import POISON, FakeBackend

from h5stream.device.cuda import CudaBackend

SEEDS = range(40)


def test_it_has_what_a_cuda_device_has():
    """And takes the same arguments: what the feed asks of one it may ask of the other."""
    asked = [name for name in vars(CudaBackend) if not name.startswith("_") and name != "device"]
    for name in asked:
        theirs, ours = (inspect.signature(getattr(kind, name)) for kind in (CudaBackend, FakeBackend))
        assert list(ours.parameters) == list(theirs.parameters), name
    assert "copy_async" in asked


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
