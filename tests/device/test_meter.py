"""Memory and waiting on the device: asked of torch, and never by starting CUDA."""

import subprocess
import sys
from types import SimpleNamespace

import forking
import pytest
import torch

from h5stream.device.facts import DeviceMemory, device_memory, synchronize


def test_where_cuda_was_not_started_there_is_nothing_and_it_is_not_started():
    code = (
        "from h5stream.device.facts import device_memory, synchronize; import torch;"
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


def test_torch_is_asked_about_the_current_device(monkeypatch):
    waited = []
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 1,
        memory_allocated=lambda device: 100 + device,
        max_memory_allocated=lambda device: 200 + device,
        synchronize=lambda: waited.append(1),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert device_memory() == DeviceMemory(device=1, allocated_bytes=101, peak_bytes=201)
    assert synchronize() is True
    assert waited == [1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_tensor_on_the_device_shows():
    before = device_memory() or DeviceMemory(device=0, allocated_bytes=0, peak_bytes=0)
    held = torch.zeros(1 << 20, device="cuda")
    assert synchronize() is True
    found = device_memory()
    assert found.allocated_bytes >= before.allocated_bytes + held.nbytes
    assert found.peak_bytes >= found.allocated_bytes
