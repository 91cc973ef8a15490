"""The samples themselves: documented, frozen, complete in every export; and their text forms."""

from __future__ import annotations

import pytest

from h5stream.monitor import GpuSample, HostSample, ProcessSample, Spread, SystemSample, format_line, summarize
from h5stream.monitor.export import flatten
from h5stream.monitor.sample import scaled


def test_a_sample_flattens_with_none_for_what_is_not_known():
    sample = SystemSample(time_s=1.0, gpus=(GpuSample(uuid="GPU-1", name="A", throttle_reasons=("a", "b")),))
    flat = dict(flatten(sample))
    assert flat["process_cpu_cores"] is None
    assert flat["gpu0_utilization_ratio"] is None
    assert flat["gpu0_throttle_reasons"] == "a+b"
    assert dict(flatten(SystemSample(time_s=0, gpus=(GpuSample(uuid="", name=""),))))["gpu0_throttle_reasons"] is None


@pytest.mark.parametrize(
    ("sample", "ratio"),
    [
        (GpuSample(uuid="", name="", memory_used_bytes=0, memory_total_bytes=4).memory_ratio, 0.0),
        (GpuSample(uuid="", name="", memory_used_bytes=1).memory_ratio, None),
        (HostSample(ram_used_bytes=1, ram_total_bytes=4).ram_ratio, 0.25),
        (HostSample(ram_total_bytes=4).ram_ratio, None),
        (ProcessSample(pid=1, cpu_cores=1.0, cpus_allowed=4).cpu_ratio, 0.25),
        (SystemSample(time_s=0).cost_ratio, None),
    ],
)
def test_ratios_are_from_0_to_1_or_unknown(sample, ratio):
    assert sample == ratio


def test_a_position_that_does_not_exist_is_no_gpu():
    sample = SystemSample(time_s=0, gpus=(GpuSample(uuid="GPU-1", name="A"),))
    assert sample.gpu().uuid == "GPU-1"
    assert sample.gpu(1) is sample.gpu(-1) is None


GIB = 2**30


@pytest.mark.parametrize(
    ("gpu", "start"),
    [
        ({"utilization_ratio": 0.85, "memory_used_bytes": int(12.3 * GIB), "memory_total_bytes": 24 * GIB},
         "GPU: 85% | VRAM:12.3/24.0GiB(51.2%) | "),
        ({"utilization_ratio": 0.0, "memory_used_bytes": 0, "memory_total_bytes": 24 * GIB},
         "GPU: 0% | VRAM:0.0/24.0GiB(0.0%) | "),
        ({"utilization_ratio": 1.0}, "GPU: 100% | VRAM:n/a | "),
        ({"memory_used_bytes": GIB, "memory_total_bytes": 2 * GIB}, "GPU: n/a | VRAM:1.0/2.0GiB(50.0%) | "),
        ({"unavailable": "lost"}, "GPU: n/a | VRAM:n/a | "),
    ],
)  # fmt: skip
def test_the_line_shows_na_for_the_unknown_and_0_only_for_zero(gpu, start):
    sample = SystemSample(time_s=0, gpus=(GpuSample(uuid="", name="", **gpu),), host=HostSample(cpu_ratio=0.0))
    assert format_line(sample) == start + "CPU: 0.0% | RAM:n/a"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (999.7, "1 kB"), (1.5e9, "1.5 GB"), (2.5e15, "2.5e+03 TB"), (None, "n/a")],
)
def test_numbers_have_a_decimal_prefix(value, text):
    assert scaled(value, "B") == text


def test_a_summary_leaves_out_what_is_not_known():
    def one(ratio, reasons):
        gpu = GpuSample(uuid="GPU-1", name="A", utilization_ratio=ratio, memory_total_bytes=8, throttle_reasons=reasons)
        return SystemSample(time_s=0, interval_s=2.0, cost_cpu_s=0.02, gpus=(gpu,))

    samples = [
        one(0.2, ("gpu_idle",)),
        one(None, None),
        one(0.4, ("sw_power_cap",)),
        one(0.3, ("sw_power_cap", "hw_slowdown")),
    ]
    summary = summarize(samples)
    (gpu,) = summary.gpus
    assert gpu.utilization_ratio == Spread(mean=pytest.approx(0.3), low=0.2, high=0.4, count=3)
    assert gpu.power_w is None
    assert gpu.memory_total_bytes == 8
    assert gpu.throttled_ratio == pytest.approx(2 / 3)
    assert gpu.throttle_reasons == ("sw_power_cap", "hw_slowdown")
    assert summary.duration_s == 8.0
    assert summary.cost_ratio.mean == pytest.approx(0.01)
    assert summary.process_memory_bytes is summary.data_wait_ratio is None


def test_the_summary_reads_as_text():
    gpu = GpuSample(
        uuid="GPU-1", name="A", utilization_ratio=0.25, throttle_reasons=("hw_slowdown",), unavailable="lost"
    )
    process = ProcessSample(pid=1, cpu_cores=1.5, memory_bytes=10, children_memory_bytes=5)
    text = str(summarize([SystemSample(time_s=0, interval_s=1.0, gpus=(gpu,), process=process, data_wait_ratio=0.5)]))
    assert text.splitlines() == [
        "A: GPU 25.0% | SM n/a | VRAM peak n/a | PCIe in n/a | n/a | held back 100.0% of the time: hw_slowdown | lost",
        "CPU n/a | process 1.5 cores | RAM peak n/a | disk n/a",
        "data wait 50.0% | 1 samples in 1.0 s | the monitor took 0.00% of one processor",
    ]
    assert str(summarize([])).startswith("GPU: n/a (no samples)")
    assert str(summarize([SystemSample(time_s=0, gpu_reason="no driver")])).startswith("GPU: n/a (no driver)")


def test_memory_of_the_process_counts_its_children():
    def one(**memory):
        return SystemSample(time_s=0, process=ProcessSample(pid=1, **memory))

    summary = summarize([one(memory_bytes=10, children_memory_bytes=5), one(memory_bytes=20), one()])
    assert summary.process_memory_bytes == Spread(mean=17.5, low=15, high=20, count=2)
