"""Choosing a backend, the CPU one, and what happens where memory cannot be pinned."""

import resource
import threading
import warnings

import forking
import pytest
import torch

from h5stream.device import pinning
from h5stream.device.backend import (
    CpuBackend,
    DeviceBackend,
    HostBuffer,
    PinningWarning,
    backend_for,
    release_cached_memory,
)
from h5stream.device.pinning import held_by_pinning
from h5stream.errors import OptionError


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_the_cpu_has_a_backend(device):
    backend = backend_for(device)
    assert isinstance(backend, CpuBackend)
    assert isinstance(backend, DeviceBackend)


@pytest.mark.parametrize("device", ["mps", "gpu", "cuda:x", ""])
def test_a_device_that_cannot_be_fed_is_named(device):
    with pytest.raises(OptionError, match=f"device='{device}' cannot be fed"):
        backend_for(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_cuda_without_cuda_says_so():
    with pytest.raises(OptionError, match="device='cuda:1' needs CUDA, and there is none here"):
        backend_for("cuda:1")


def test_the_cpu_backend_has_done_all_when_it_returns():
    backend = CpuBackend()
    stream = backend.side_stream()
    slot = backend.allocate_pinned(8).tensor.fill_(5)
    there, out = backend.allocate_device(8, stream), backend.allocate_device(8, stream)
    backend.copy_async(there, slot, stream)
    backend.launch(backend.current_stream(), torch.Tensor.copy_, out, there)
    event = backend.record_event(stream)
    backend.wait(backend.current_stream(), event)
    backend.hold(there, backend.current_stream())
    backend.synchronize(event)
    assert backend.done(event)
    slot.fill_(6)
    assert out.tolist() == [5] * 8


def test_a_host_buffer_is_bytes():
    buffer = CpuBackend().allocate_pinned(0)
    assert (buffer.tensor.dtype, buffer.tensor.shape, buffer.pinned) == (torch.uint8, (0,), False)
    with pytest.raises(OptionError, match="0 bytes or more, not -1"):
        CpuBackend().allocate_pinned(-1)


def test_the_pinned_allocator_takes_the_next_power_of_two():
    assert [held_by_pinning(n) for n in (0, 1, 2, 3, 4096, 4097)] == [0, 1, 2, 4, 4096, 8192]


def test_the_warning_names_reason_and_limit(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (65536, resource.RLIM_INFINITY))
    with pytest.warns(PinningWarning, match="not enough") as caught:
        pinning.warn_not_pinned(1 << 20, RuntimeError("not enough\nCompile with TORCH_USE_CUDA_DSA"))
    text = str(caught[0].message)
    assert "RLIMIT_MEMLOCK is 65536 bytes (soft), unlimited (hard)" in text
    assert "TORCH_USE_CUDA_DSA" not in text


def test_giving_back_cached_memory_starts_nothing_where_cuda_is_unused():
    code = (
        "import torch; from h5stream.device.backend import release_cached_memory; release_cached_memory(); "
        "raise SystemExit(torch.cuda.is_initialized())"
    )
    assert forking.run(code).returncode == 0
    release_cached_memory()


class PinsNothing:
    """`torch.empty` of a machine that refuses to lock memory."""

    def __init__(self, real):
        self.real = real
        self.asked = 0

    def __call__(self, *shape, pin_memory=False, **options):
        if pin_memory:
            self.asked += 1
            raise RuntimeError("CUDA error: out of memory")
        return self.real(*shape, **options)


def test_pinning_that_fails_falls_back_with_one_warning(recorded_cuda, monkeypatch):
    empty = PinsNothing(torch.empty)
    monkeypatch.setattr(torch, "empty", empty)
    backend = backend_for("cuda:1")
    with pytest.warns(PinningWarning) as caught:
        buffers = [backend.allocate_pinned(100) for _ in range(3)]
    assert len(caught) == 1
    assert empty.asked == 1
    assert "100 bytes of host memory could not be pinned (CUDA error: out of memory)" in str(caught[0].message)
    assert str(caught[0].filename) == __file__
    assert [(b.pinned, b.held_bytes, b.tensor.shape[0]) for b in buffers] == [(False, 100, 100)] * 3


def test_many_threads_whose_pinning_fails_make_one_warning(recorded_cuda, monkeypatch):
    monkeypatch.setattr(torch, "empty", PinsNothing(torch.empty))
    backend = backend_for("cuda:0")
    start, got = threading.Barrier(4), []

    def allocate():
        start.wait()
        got.append(backend.allocate_pinned(8))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=allocate) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len([w for w in caught if w.category is PinningWarning]) == 1
    assert all(isinstance(buffer, HostBuffer) and not buffer.pinned for buffer in got)
    assert len(got) == 4
