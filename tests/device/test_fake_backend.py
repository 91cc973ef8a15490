"""The device that is late: what the tests of the feed, which take its waits out one by one, do not show of it."""

import inspect

from fake_backend import FakeBackend

from h5stream.device.cuda import CudaBackend


def test_it_has_what_a_cuda_device_has():
    """And takes the same arguments: what the feed asks of one it may ask of the other."""
    asked = [name for name in vars(CudaBackend) if not name.startswith("_") and name != "device"]
    for name in asked:
        theirs, ours = (inspect.signature(getattr(kind, name)) for kind in (CudaBackend, FakeBackend))
        assert list(ours.parameters) == list(theirs.parameters), name
    assert "copy_async" in asked
