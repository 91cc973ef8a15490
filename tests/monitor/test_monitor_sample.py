"""The samples themselves: documented, frozen, complete in every export; and their text forms."""

import csv
import dataclasses
import re
import sys
from unittest import mock

import pytest

from h5stream.errors import MissingExtraError, OptionError
from h5stream.monitor import (
    FIGURES,
    GpuSample,
    HostSample,
    ProcessSample,
    Spread,
    SystemSample,
    export,
    format_line,
    summarize,
)

NOT_FIGURES = {"time_s", "elapsed_s", "interval_s", "cost_cpu_s", "cost_wall_s", "pid", "cpus_allowed"}


def test_every_number_of_a_sample_is_a_figure():
    def numbers(kind, prefix=""):
        hints = {field.name: str(field.type) for field in dataclasses.fields(kind)}
        return {prefix + n for n, hint in hints.items() if re.match("int|float", hint) and n not in NOT_FIGURES}

    every = numbers(SystemSample) | numbers(GpuSample, "gpu.")
    every |= numbers(HostSample, "host.") | numbers(ProcessSample, "process.")
    assert {figure.path for figure in FIGURES if figure.text} - {"cost_ratio"} == every


GIB = 2**30


@pytest.mark.parametrize(
    ("gpu", "start"),
    [
        ({"utilization_ratio": 0.85, "memory_used_bytes": int(12.3 * GIB), "memory_total_bytes": 24 * GIB},
         "GPU: 85% | VRAM:12.3/24.0GB(51.2%) | "),
        ({"utilization_ratio": 0.0, "memory_used_bytes": 0, "memory_total_bytes": 24 * GIB},
         "GPU: 0% | VRAM:0.0/24.0GB(0.0%) | "),
        ({"unavailable": "lost"}, "GPU: n/a | VRAM:n/a | "),
    ],
)  # fmt: skip
def test_the_line_shows_na_for_the_unknown_and_0_only_for_zero(gpu, start):
    sample = SystemSample(time_s=0, gpus=(GpuSample(uuid="", name="", **gpu),), host=HostSample(cpu_ratio=0.0))
    assert format_line(sample) == start + "CPU: 0.0% | RAM:n/a"


def test_a_summary_leaves_out_what_is_not_known():
    def one(ratio, reasons):
        gpu = GpuSample(uuid="GPU-1", name="A", utilization_ratio=ratio, memory_total_bytes=8, throttle_reasons=reasons)
        return SystemSample(time_s=0, interval_s=2.0, cost_cpu_s=0.02, gpus=(gpu,))

    capped = [one(0.4, ("sw_power_cap",)), one(0.3, ("sw_power_cap", "hw_slowdown"))]
    summary = summarize([one(0.2, ("gpu_idle",)), one(None, None), *capped])
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
        "CPU n/a | process 1.50 cores | RAM peak n/a | disk n/a",
        "data wait 50.0% | 1 sample in 1.0 s | the monitor took 0.00% of one processor",
    ]
    assert str(summarize([])).startswith("GPU: n/a (no samples)")
    assert str(summarize([SystemSample(time_s=0, gpu_reason="no driver")])).startswith("GPU: n/a (no driver)")


def test_memory_of_the_process_counts_its_children():
    found = [{"memory_bytes": 10, "children_memory_bytes": 5}, {"memory_bytes": 20}, {}]
    summary = summarize([SystemSample(time_s=0, process=ProcessSample(pid=1, **memory)) for memory in found])
    assert summary.process_memory_bytes == Spread(mean=17.5, low=15, high=20, count=2)


# --- files, TensorBoard and Prometheus ---------------------------------------------------------------


KNOWN = {"utilization_ratio": 0.85, "memory_used_bytes": 5, "memory_total_bytes": 10, "sm_clock_hz": 1.98e9}
KNOWN |= {"pcie_receive_bytes_per_s": 1e9, "power_w": 300.0, "temperature_c": 61.0}
FULL = SystemSample(
    time_s=1.7e9,
    elapsed_s=2.0,
    interval_s=1.0,
    cost_cpu_s=0.002,
    gpus=(
        GpuSample(uuid="GPU-1", name="A", throttle_reasons=("sw_power_cap",), **KNOWN),
        GpuSample(uuid="GPU-2", name="B", unavailable="lost"),
    ),
    host=HostSample(cpu_ratio=0.5, ram_used_bytes=1, ram_total_bytes=2, disk_read_bytes_per_s=0.0),
    process=ProcessSample(pid=1, processes=3, cpu_cores=1.5),
)
EMPTY = SystemSample(time_s=1.7e9, gpu_reason="no driver")


def write_all(sink, *samples):
    for sample in samples:
        sink.write(sample)
    sink.close()


def test_jsonl_gives_back_the_same_samples_as_soon_as_they_are_written(tmp_path):
    sink = export.JsonlLog(tmp_path / "log.jsonl")
    sink.write(FULL)
    assert export.read_log(tmp_path / "log.jsonl") == [FULL]
    write_all(sink, EMPTY)
    assert export.read_log(tmp_path / "log.jsonl") == [FULL, EMPTY]


def test_csv_has_empty_cells_for_the_unknown_and_0_for_zero(tmp_path):
    write_all(export.CsvLog(tmp_path / "log.csv"), FULL, EMPTY)
    with (tmp_path / "log.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert first["gpu0_utilization_ratio"] == "0.85"
    assert first["gpu0_throttle_reasons"] == "sw_power_cap"
    assert first["gpu1_utilization_ratio"] == first["data_wait_ratio"] == ""
    assert first["disk_read_bytes_per_s"] == "0.0"
    assert second["gpu0_uuid"] == second["cpu_ratio"] == ""
    write_all(export.CsvLog(tmp_path / "other.csv"), EMPTY, FULL)
    heading, *rows = (tmp_path / "other.csv").read_text().splitlines()
    assert ("gpu0" in heading, len(rows)) == (False, 2), "columns that come later are left out"


def test_the_ending_decides_about_the_format_and_what_cannot_be_written_is_refused(tmp_path):
    for name, kind in (("a.csv", export.CsvLog), ("a.JSONL", export.JsonlLog), ("a.json", export.JsonlLog)):
        sink = export.open_log(tmp_path / name)
        assert type(sink) is kind
        write_all(sink)
        assert not (tmp_path / name).exists(), "nothing was written to it"
    (tmp_path / "folder.csv").mkdir()
    wrong = {"a.txt": r"must end in one of .csv, .jsonl, .json", "nowhere/a.csv": "must be a folder"}
    for name, said in {**wrong, "folder.csv": "cannot write"}.items():
        with pytest.raises(OptionError, match=said):
            export.open_log(tmp_path / name)


class TestTensorBoard:
    def test_known_figures_become_scalars(self, monkeypatch, tmp_path):
        module = mock.Mock()
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
        write_all(export.TensorBoardLog(tmp_path, prefix="gpu box"), FULL, EMPTY)
        module.SummaryWriter.assert_called_once_with(str(tmp_path))
        writer = module.SummaryWriter.return_value
        told = {call.args[::2]: call.args[1::2] for call in writer.add_scalar.call_args_list}
        assert told["gpu box/gpu0_utilization_ratio", 0] == (0.85, 1.7e9)
        assert ("gpu box/gpu1_utilization_ratio", 0) not in told
        assert ("gpu box/gpu0_uuid", 0) not in told
        assert ("gpu box/elapsed_s", 1) in told
        writer.close.assert_called_once_with()

    def test_without_tensorboard_the_extra_is_named(self, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
        with pytest.raises(MissingExtraError, match=r"pip install tensorboard, or"):
            export.TensorBoardLog(tmp_path)

    def test_the_real_one_takes_it(self, tmp_path):
        pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
        write_all(export.TensorBoardLog(tmp_path), FULL)
        assert [file.name.startswith("events.out") for file in tmp_path.iterdir()] == [True]


class TestPrometheus:
    def metrics(self, sample):
        from prometheus_client.parser import text_string_to_metric_families

        families = text_string_to_metric_families(export.prometheus_text(sample))
        return {(s.name, s.labels.get("gpu"), s.labels.get("reason")): s.value for f in families for s in f.samples}

    def test_the_text_parses_and_is_in_base_units(self):
        metrics = self.metrics(FULL)
        of_gpu = {"utilization_ratio": 0.85, "memory_used_bytes": 5, "pcie_receive_bytes_per_second": 1e9}
        of_gpu |= {"power_watts": 300, "temperature_celsius": 61, "sm_clock_hertz": 1.98e9}
        assert {name: metrics[f"h5stream_gpu_{name}", "0", None] for name in of_gpu} == of_gpu
        assert metrics["h5stream_gpu_throttled", "0", "sw_power_cap"] == 1
        assert metrics["h5stream_cpu_ratio", None, None] == 0.5
        assert metrics["h5stream_disk_read_bytes_per_second", None, None] == 0.0
        assert metrics["h5stream_process_cpu_cores", None, None] == 1.5
        assert metrics["h5stream_monitor_cost_ratio", None, None] == 0.002

    def test_what_is_not_known_is_left_out(self):
        metrics = self.metrics(FULL)
        assert not [key for key in metrics if key[1] == "1"], "the lost card"
        assert ("h5stream_data_wait_ratio", None, None) not in metrics
        assert self.metrics(EMPTY) == {}

    def test_a_registry_asks_for_the_newest_sample_at_each_scrape(self):
        import prometheus_client

        samples = iter([FULL, EMPTY])
        registry = prometheus_client.CollectorRegistry()
        registry.register(export.PrometheusCollector(lambda: next(samples)))
        assert b"h5stream_cpu_ratio 0.5" in prometheus_client.generate_latest(registry)
        assert prometheus_client.generate_latest(registry) == b""

    def test_without_the_client_the_extra_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        with pytest.raises(MissingExtraError, match=r"pip install prometheus-client, or"):
            export.prometheus_text(EMPTY)
