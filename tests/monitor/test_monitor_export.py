"""Files, TensorBoard and Prometheus: what is written can be read back, and nothing unknown becomes 0."""

from __future__ import annotations

import csv
import sys
from types import SimpleNamespace

import pytest

from h5stream.errors import MissingExtraError, OptionError
from h5stream.monitor import GpuSample, HostSample, ProcessSample, SystemSample
from h5stream.monitor.export import (
    CsvLog,
    JsonlLog,
    PrometheusCollector,
    TensorBoardLog,
    open_log,
    prometheus_text,
    read_log,
)

FULL = SystemSample(
    time_s=1.7e9,
    elapsed_s=2.0,
    interval_s=1.0,
    cost_cpu_s=0.002,
    gpus=(
        GpuSample(
            uuid="GPU-1",
            name="A",
            utilization_ratio=0.85,
            memory_used_bytes=5,
            memory_total_bytes=10,
            pcie_receive_bytes_per_s=1e9,
            power_w=300.0,
            temperature_c=61.0,
            sm_clock_hz=1.98e9,
            throttle_reasons=("sw_power_cap",),
        ),
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


def test_jsonl_gives_back_the_same_samples(tmp_path):
    write_all(JsonlLog(tmp_path / "log.jsonl"), FULL, EMPTY)
    assert read_log(tmp_path / "log.jsonl") == [FULL, EMPTY]


def test_csv_has_empty_cells_for_the_unknown_and_0_for_zero(tmp_path):
    write_all(CsvLog(tmp_path / "log.csv"), FULL, EMPTY)
    with (tmp_path / "log.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert first["gpu0_utilization_ratio"] == "0.85"
    assert first["gpu0_throttle_reasons"] == "sw_power_cap"
    assert first["gpu1_utilization_ratio"] == first["data_wait_ratio"] == ""
    assert first["disk_read_bytes_per_s"] == "0.0"
    assert second["gpu0_uuid"] == second["cpu_ratio"] == ""


def test_columns_that_come_later_are_left_out(tmp_path):
    write_all(CsvLog(tmp_path / "log.csv"), EMPTY, FULL)
    heading, *rows = (tmp_path / "log.csv").read_text().splitlines()
    assert "gpu0" not in heading
    assert len(rows) == 2


@pytest.mark.parametrize(("name", "kind"), [("a.csv", CsvLog), ("a.JSONL", JsonlLog), ("a.json", JsonlLog)])
def test_the_ending_decides_about_the_format(tmp_path, name, kind):
    assert type(open_log(tmp_path / name)) is kind


def test_an_unknown_ending_and_a_missing_folder_are_refused(tmp_path):
    with pytest.raises(OptionError, match=r"must end in one of .csv, .jsonl, .json"):
        open_log(tmp_path / "a.txt")
    with pytest.raises(OptionError, match="must be a folder"):
        open_log(tmp_path / "nowhere" / "a.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(OptionError, match="cannot write"):
        open_log(tmp_path / "folder.csv")


class TestTensorBoard:
    @pytest.fixture
    def writers(self, monkeypatch):
        """What a SummaryWriter is told, without TensorBoard."""
        made = []

        class Writer:
            def __init__(self, folder):
                self.folder, self.scalars, self.closed = folder, {}, False
                made.append(self)

            def add_scalar(self, tag, value, step, walltime):
                self.scalars[tag, step] = value, walltime

            def close(self):
                self.closed = True

        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
        return made

    def test_known_figures_become_scalars(self, writers, tmp_path):
        write_all(TensorBoardLog(tmp_path, prefix="gpu box"), FULL, EMPTY)
        (writer,) = writers
        assert writer.folder == str(tmp_path)
        assert writer.scalars["gpu box/gpu0_utilization_ratio", 0] == (0.85, 1.7e9)
        assert ("gpu box/gpu1_utilization_ratio", 0) not in writer.scalars
        assert ("gpu box/gpu0_uuid", 0) not in writer.scalars
        assert ("gpu box/elapsed_s", 1) in writer.scalars
        assert writer.closed

    def test_without_tensorboard_the_extra_is_named(self, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'h5stream\[tensorboard\]'"):
            TensorBoardLog(tmp_path)

    def test_the_real_one_takes_it(self, tmp_path):
        pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
        write_all(TensorBoardLog(tmp_path), FULL)
        assert [file.name.startswith("events.out") for file in tmp_path.iterdir()] == [True]


class TestPrometheus:
    def metrics(self, sample):
        from prometheus_client.parser import text_string_to_metric_families

        families = text_string_to_metric_families(prometheus_text(sample))
        return {(s.name, s.labels.get("gpu"), s.labels.get("reason")): s.value for f in families for s in f.samples}

    def test_the_text_parses_and_is_in_base_units(self):
        metrics = self.metrics(FULL)
        assert metrics["h5stream_gpu_utilization_ratio", "0", None] == 0.85
        assert metrics["h5stream_gpu_memory_used_bytes", "0", None] == 5
        assert metrics["h5stream_gpu_pcie_receive_bytes_per_second", "0", None] == 1e9
        assert metrics["h5stream_gpu_power_watts", "0", None] == 300
        assert metrics["h5stream_gpu_temperature_celsius", "0", None] == 61
        assert metrics["h5stream_gpu_sm_clock_hertz", "0", None] == 1.98e9
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
        registry.register(PrometheusCollector(lambda: next(samples)))
        assert b"h5stream_cpu_ratio 0.5" in prometheus_client.generate_latest(registry)
        assert prometheus_client.generate_latest(registry) == b""

    def test_without_the_client_the_extra_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'h5stream\[prometheus\]'"):
            prometheus_text(EMPTY)
