"""The CUDA backend: which device it touches (by a recording `torch.cuda`), and on a GPU what it does."""

import ast
import subprocess
import sys
from pathlib import Path

import forking
import pytest
import torch
from toy_feed import feed_in_place, feed_owned, is_right

import h5stream
from h5stream.device.backend import CudaBackend, DeviceBackend, backend_for
from h5stream.errors import OptionError

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


@pytest.fixture
def host_only_empty(monkeypatch, recorded_cuda):
    """`torch.empty` that gives host memory and records the device that was current, and the one asked for."""
    real = torch.empty

    def empty(*shape, device=None, pin_memory=False, **options):
        if pin_memory or device is not None:
            index = recorded_cuda.current if device is None else device.index
            recorded_cuda.touch("pin" if pin_memory else "allocate", index)
        return real(*shape, **options)

    monkeypatch.setattr(torch, "empty", empty)


@pytest.mark.usefixtures("host_only_empty")
def test_cuda_1_touches_no_other_device(recorded_cuda):
    backend = CudaBackend("cuda:1")
    side = backend.side_stream()
    slot = backend.allocate_pinned(8)
    there = backend.allocate_device(8, side)
    backend.copy_async(there, slot.tensor, side)
    event = backend.record_event(side)
    backend.wait(side, event)
    backend.launch(side, torch.Tensor.zero_, there)
    backend.synchronize(event)
    assert backend.done(event)
    assert backend.current_stream().index == 1
    assert set(recorded_cuda.touched) == {1}
    assert {"pin", "allocate", "leave stream", "Event", "record", "synchronize"} <= set(recorded_cuda.calls)
    assert recorded_cuda.current == 0, "the thread's current device is put back"


@pytest.mark.usefixtures("host_only_empty")
def test_pinned_memory_says_what_is_really_held(recorded_cuda):
    buffer = CudaBackend("cuda:0").allocate_pinned(1000)
    assert (buffer.pinned, buffer.held_bytes, buffer.tensor.shape[0]) == (True, 1024, 1000)
    assert recorded_cuda.calls == ["pin"]


def test_cuda_without_an_index_is_the_current_device_at_that_moment(recorded_cuda):
    recorded_cuda.current = 1
    backend = backend_for("cuda")
    recorded_cuda.current = 0
    assert backend.device == torch.device("cuda", 1)
    assert isinstance(backend, DeviceBackend)


def test_the_side_stream_is_one(recorded_cuda):
    backend = CudaBackend("cuda:1")
    assert backend.side_stream() is backend.side_stream()


def test_a_waiting_thread_sleeps_instead_of_spinning(recorded_cuda):
    backend = CudaBackend("cuda:1")
    assert backend.record_event(backend.side_stream()).options == {"blocking": True, "enable_timing": False}


def test_the_time_between_two_timed_events_is_in_nanoseconds(recorded_cuda):
    backend = CudaBackend("cuda:1")
    began, ended = (backend.record_event(backend.side_stream(), timed=True) for _ in range(2))
    assert began.options == {"blocking": True, "enable_timing": True}
    assert backend.elapsed_ns(began, ended) == 250_000
    assert set(recorded_cuda.touched) == {1}


def test_memory_that_torch_only_holds_ready_is_free(recorded_cuda):
    held = {"mem_get_info": (100, 1000), "memory_reserved": 70, "memory_allocated": 30}
    for name, value in held.items():
        setattr(recorded_cuda, name, lambda device, value=value: value if device.index == 1 else None)
    assert (CudaBackend("cuda:1").free_nbytes(), CudaBackend("cuda:1").total_nbytes()) == (140, 1000)


def test_a_device_that_does_not_exist_is_named_with_how_many_there_are(recorded_cuda):
    with pytest.raises(OptionError, match=r"device='cuda:2' does not exist: this process sees 2 CUDA"):
        CudaBackend("cuda:2")


def test_torch_cuda_is_used_in_device_alone():
    package = Path(h5stream.__file__).parent
    strays = []
    for path in package.rglob("*.py"):
        if path.is_relative_to(package / "device"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            imported = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch")
            if (
                (isinstance(node, ast.Attribute) and node.attr == "cuda" and _is_torch(node.value))
                or (imported and any("cuda" in f"{node.module}.{alias.name}" for alias in node.names))
                or (isinstance(node, ast.Import) and any(a.name.startswith("torch.cuda") for a in node.names))
            ):
                strays.append(f"{path}:{node.lineno}")
    assert strays == []


def _is_torch(node):
    return isinstance(node, ast.Name) and node.id == "torch"


def test_importing_the_backends_starts_no_cuda():
    code = "import h5stream.device.backend, torch; raise SystemExit(torch.cuda.is_initialized())"
    assert forking.run(code).returncode == 0


class TestOnAGpu:
    pytestmark = gpu

    @pytest.mark.parametrize("feed", [feed_in_place, feed_owned])
    def test_the_feed_gives_right_bytes(self, feed):
        backend = CudaBackend()
        seen = feed(backend)
        torch.cuda.synchronize()
        assert is_right(seen)

    def test_a_slow_copy_stream_is_waited_for(self):
        backend = CudaBackend()
        side, consumer = backend.side_stream(), backend.current_stream()
        slot = backend.allocate_pinned(1 << 20)
        assert slot.pinned
        assert slot.tensor.is_pinned()
        slot.tensor.fill_(3)
        there = backend.allocate_device(1 << 20, side)
        backend.launch(side, lambda: torch.cuda._sleep(50_000_000))
        backend.copy_async(there, slot.tensor, side)
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
        backend.copy_async(there, slot.tensor, side)
        ended = backend.record_event(side, timed=True)
        backend.synchronize(ended)
        assert 0 < backend.elapsed_ns(began, ended) < 1e9

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
    def test_cuda_1_makes_no_context_on_gpu_0(self):
        code = (
            "import torch; from h5stream.device.backend import CudaBackend; b = CudaBackend('cuda:1'); "
            "s = b.side_stream(); h = b.allocate_pinned(8); d = b.allocate_device(8, s); "
            "b.copy_async(d, h.tensor, s); b.synchronize(b.record_event(s)); "
            "raise SystemExit(torch._C._cuda_hasPrimaryContext(0))"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
