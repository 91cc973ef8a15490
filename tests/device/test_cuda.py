"""The CUDA backend: which device it touches (by a recording `torch.cuda`), what happens where memory cannot be pinned,
and on a GPU what it does.
"""

import contextlib
import inspect
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from support import forking
from support.fake_backend import FakeBackend

from h5stream.device import cuda as cuda_module
from h5stream.device.cuda import CudaBackend, PinningWarning, backend_for, release_cached_memory
from h5stream.device.facts import DeviceMemory, device_memory, synchronize
from h5stream.errors import OptionError

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


class RecordedCuda:
    """Two GPUs that record, for each call that could touch a device, the device that was current."""

    def __init__(self):
        self.current = 0
        self.touched = []
        self.calls = []

    def is_available(self):
        return True

    def device_count(self):
        return 2

    def current_device(self):
        return self.current

    @contextlib.contextmanager
    def device(self, device):
        """Like `torch.cuda.device`: what it does on leaving makes no context."""
        before, self.current = self.current, torch.device(device).index
        yield
        self.current = before

    @contextlib.contextmanager
    def stream(self, stream):
        """Like `torch.cuda.stream`: on leaving it sets the device that was current, which makes a context."""
        before, self.current = self.current, stream.index
        self.touch("enter stream", stream.index)
        yield
        self.current = before
        self.touch("leave stream", before)

    def current_stream(self, device):
        return SimpleNamespace(index=torch.device(device).index)

    def Stream(self, device):
        index = torch.device(device).index
        return SimpleNamespace(index=index, wait_event=lambda event: self.touch("wait_event", index))

    def Event(self, **options):
        self.touch("Event", self.current)
        return _Event(self, options)

    def touch(self, call, index):
        self.calls.append(call)
        self.touched.append(index)


class _Event:
    def __init__(self, cuda, options):
        self.cuda, self.options, self.stream = cuda, options, None

    def record(self, stream):
        self.stream = stream
        self.cuda.touch("record", self.cuda.current)

    def query(self):
        return True

    def elapsed_time(self, ended):
        self.cuda.touch("elapsed_time", self.cuda.current)
        return 0.25

    def synchronize(self):
        self.cuda.touch("synchronize", self.stream.index)


@pytest.fixture
def recorded_cuda(monkeypatch):
    fake = RecordedCuda()
    monkeypatch.setattr(cuda_module, "cuda", fake)
    return fake


def test_cuda_1_touches_no_other_device(recorded_cuda, monkeypatch):
    real = torch.empty

    def empty(*shape, device=None, pin_memory=False, **options):
        if pin_memory or device is not None:
            index = recorded_cuda.current if device is None else device.index
            recorded_cuda.touch("pin" if pin_memory else "allocate", index)
        return real(*shape, **options)  # host memory, whatever was asked for

    monkeypatch.setattr(torch, "empty", empty)
    backend = CudaBackend("cuda:1")
    side = backend.side_stream()
    slot = backend.allocate_pinned(8)
    there = backend.allocate_device(8, side)
    backend.copy_async(there, slot, side)
    event = backend.record_event(side)
    backend.wait(side, event)
    backend.launch(side, torch.Tensor.zero_, there)
    backend.synchronize(event)
    assert backend.done(event)
    assert backend.current_stream().index == 1
    assert set(recorded_cuda.touched) == {1}
    assert {"pin", "allocate", "leave stream", "Event", "record", "synchronize"} <= set(recorded_cuda.calls)
    assert recorded_cuda.current == 0, "the thread's current device is put back"


def test_cuda_without_an_index_is_the_current_device_at_that_moment(recorded_cuda):
    recorded_cuda.current = 1
    backend = backend_for("cuda")
    recorded_cuda.current = 0
    assert backend.device == torch.device("cuda", 1)


def test_the_time_between_two_timed_events_is_in_nanoseconds(recorded_cuda):
    backend = CudaBackend("cuda:1")
    began, ended = (backend.record_event(backend.side_stream(), timed=True) for _ in range(2))
    assert began.options == {"blocking": True, "enable_timing": True}
    assert backend.elapsed_ns(began, ended) == 250_000
    assert set(recorded_cuda.touched) == {1}


@pytest.mark.parametrize("device", ["mps", "gpu", "cuda:x", ""])
def test_a_device_that_cannot_be_fed_is_named(device):
    with pytest.raises(OptionError, match=f"device='{device}' cannot be fed"):
        backend_for(device)


def test_a_device_that_does_not_exist_is_named_with_how_many_there_are(recorded_cuda):
    with pytest.raises(OptionError, match=r"device='cuda:2' does not exist: this process sees 2 CUDA"):
        CudaBackend("cuda:2")


def test_pinning_that_fails_falls_back_with_one_warning_that_names_the_limit(recorded_cuda, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (65536, resource.RLIM_INFINITY))
    real, asked = torch.empty, []

    def empty(*shape, pin_memory=False, **options):
        if pin_memory:
            asked.append(shape)
            raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA")
        return real(*shape, **options)

    monkeypatch.setattr(torch, "empty", empty)
    backend = backend_for("cuda:1")
    with pytest.warns(PinningWarning) as caught:
        buffers = [backend.allocate_pinned(100) for _ in range(3)]
    assert len(caught) == len(asked) == 1
    assert "100 bytes of host memory could not be pinned (CUDA error: out of memory)" in str(caught[0].message)
    assert "RLIMIT_MEMLOCK is 65536 bytes (soft), unlimited (hard)" in str(caught[0].message)
    assert "TORCH_USE_CUDA_DSA" not in str(caught[0].message)
    assert str(caught[0].filename) == __file__
    assert [(b.is_pinned(), b.dtype, b.shape) for b in buffers] == [(False, torch.uint8, (100,))] * 3


def test_the_fake_backend_has_what_a_cuda_device_has():
    """And takes the same arguments: what the feed asks of one it may ask of the other."""
    asked = [name for name in vars(CudaBackend) if not name.startswith("_") and name != "device"]
    for name in asked:
        theirs, ours = (inspect.signature(getattr(kind, name)) for kind in (CudaBackend, FakeBackend))
        assert list(ours.parameters) == list(theirs.parameters), name
    assert "copy_async" in asked


class TestOnAGpu:
    pytestmark = gpu

    def test_a_slow_copy_stream_is_waited_for(self):
        backend = CudaBackend()
        side, consumer = backend.side_stream(), backend.current_stream()
        slot = backend.allocate_pinned(1 << 20)
        assert slot.is_pinned()
        slot.fill_(3)
        there = backend.allocate_device(1 << 20, side)
        backend.launch(side, lambda: torch.cuda._sleep(50_000_000))
        backend.copy_async(there, slot, side)
        copied = backend.record_event(side)
        backend.wait(consumer, copied)
        backend.hold(there, consumer)
        assert (there == 3).all().item()
        assert backend.done(copied)

    def test_a_copy_has_a_time(self):
        backend = CudaBackend()
        side = backend.side_stream()
        slot, there = backend.allocate_pinned(1 << 24), backend.allocate_device(1 << 24, side)
        began = backend.record_event(side, timed=True)
        backend.copy_async(there, slot, side)
        ended = backend.record_event(side, timed=True)
        backend.synchronize(ended)
        assert 0 < backend.elapsed_ns(began, ended) < 1e9

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
    def test_cuda_1_makes_no_context_on_gpu_0(self):
        code = (
            "import torch; from h5stream.device.cuda import CudaBackend; b = CudaBackend('cuda:1'); "
            "s = b.side_stream(); h = b.allocate_pinned(8); d = b.allocate_device(8, s); "
            "b.copy_async(d, h, s); b.synchronize(b.record_event(s)); "
            "raise SystemExit(torch._C._cuda_hasPrimaryContext(0))"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- memory and waiting, asked of torch and never by starting CUDA -----------------------------------------------


def test_where_cuda_was_not_started_there_is_nothing_and_it_is_not_started():
    code = (
        "from h5stream.device.facts import device_memory, synchronize; import torch;"
        "from h5stream.device.cuda import release_cached_memory; release_cached_memory();"
        "assert device_memory() is None and synchronize() is False;"
        "assert not torch.cuda.is_initialized()"
    )
    assert forking.run(code).returncode == 0


def test_where_torch_is_not_imported_it_stays_so():
    code = (
        "from h5stream.device.facts import device_memory, synchronize; import sys;"
        "assert device_memory() is None and synchronize() is False;"
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_tensor_on_the_device_shows():
    before = device_memory() or DeviceMemory(device=0, allocated_bytes=0, peak_bytes=0)
    held = torch.zeros(1 << 20, device="cuda")
    assert synchronize() is True
    found = device_memory()
    assert found.allocated_bytes >= before.allocated_bytes + held.nbytes
    assert found.peak_bytes >= found.allocated_bytes
    release_cached_memory()
