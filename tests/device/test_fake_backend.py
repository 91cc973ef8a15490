"""The device that is late: what the tests of the feed, which take its waits out one by one, do not show of it."""

import gc
import inspect

from fake_backend import POISON, FakeBackend

from h5stream.device.cuda import CudaBackend


def test_it_has_what_a_cuda_device_has():
    """And takes the same arguments: what the feed asks of one it may ask of the other."""
    asked = [name for name in vars(CudaBackend) if not name.startswith("_") and name != "device"]
    for name in asked:
        theirs, ours = (inspect.signature(getattr(kind, name)) for kind in (CudaBackend, FakeBackend))
        assert list(ours.parameters) == list(theirs.parameters), name
    assert "copy_async" in asked


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
