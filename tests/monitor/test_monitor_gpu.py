"""On a real GPU the values agree with nvidia-smi."""

import csv
import shutil
import subprocess

import pytest
import torch

from h5stream.monitor import SystemMonitor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no nvidia-smi: no NVIDIA driver here"),
]

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

QUERY = "uuid,name,memory.total,memory.used,power.draw,enforced.power.limit,temperature.gpu,clocks.mem"


def nvidia_smi():
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    return {row[0]: dict(zip(QUERY.split(","), row, strict=True)) for row in rows}


def number(text):
    return None if "N/A" in text or "Not Supported" in text else float(text)


def test_values_agree_with_nvidia_smi():
    sample = SystemMonitor().sample()
    theirs = nvidia_smi()
    assert sample.gpus, sample.gpu_reason
    for gpu in sample.gpus:
        if gpu.uuid not in theirs:
            continue  # A MIG instance; nvidia-smi lists cards.
        expected = theirs[gpu.uuid]
        assert gpu.name == expected["name"]
        assert gpu.memory_total_bytes / 2**20 == pytest.approx(number(expected["memory.total"]), abs=1)
        assert gpu.memory_used_bytes / 2**20 == pytest.approx(number(expected["memory.used"]), abs=64)
        assert gpu.power_limit_w == pytest.approx(number(expected["enforced.power.limit"]), abs=0.01)
        assert gpu.power_w == pytest.approx(number(expected["power.draw"]), rel=0.3)
        assert gpu.temperature_c == pytest.approx(number(expected["temperature.gpu"]), abs=3)
        assert gpu.memory_clock_hz == pytest.approx(1e6 * number(expected["clocks.mem"]), rel=0.01)
        assert 0 <= gpu.utilization_ratio <= 1


@needs_cuda
def test_cudas_order_is_followed_once_cuda_has_started():
    torch.cuda.init()
    uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
    assert [gpu.uuid.partition("-")[2] for gpu in SystemMonitor().sample().gpus] == uuids


@needs_cuda
def test_memory_that_torch_takes_is_seen():
    monitor = SystemMonitor()
    torch.zeros(1, device="cuda")
    before = monitor.sample().gpus[0].memory_used_bytes
    held = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
    assert monitor.sample().gpus[0].memory_used_bytes - before >= 0.9 * held.numel()
