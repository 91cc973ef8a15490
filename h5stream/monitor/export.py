"""Sinks: samples into JSONL and CSV files and into TensorBoard."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from h5stream.errors import MissingExtraError, OptionError
from h5stream.monitor.sample import GpuSample, HostSample, ProcessSample, SystemSample
from h5stream.monitor.system import Sink


def sample_to_json(sample: SystemSample) -> str:
    """Return a sample as one line of JSON, named as in the classes; what is not known is ``null``.

    Examples
    --------
    >>> sample_from_json(sample_to_json(SystemSample(time_s=1.5))) == SystemSample(time_s=1.5)
    True
    """
    return json.dumps(asdict(sample))


def sample_from_json(line: str) -> SystemSample:
    """Return the sample that `sample_to_json` made the line from."""
    facts: dict[str, Any] = json.loads(line)
    facts["gpus"] = tuple(
        GpuSample(**{**gpu, "throttle_reasons": _as_tuple(gpu["throttle_reasons"])}) for gpu in facts["gpus"]
    )
    facts["host"] = HostSample(**facts["host"])
    facts["process"] = ProcessSample(**facts["process"]) if facts["process"] else None
    return SystemSample(**facts)


def _as_tuple(reasons: list[str] | None) -> tuple[str, ...] | None:
    return None if reasons is None else tuple(reasons)


def read_log(path: str | Path) -> list[SystemSample]:
    """Read the samples of a file that `JsonlLog` wrote.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    list of SystemSample
        Oldest first.
    """
    with Path(path).open(encoding="utf-8") as lines:
        return [sample_from_json(line) for line in lines]


class _FileLog:
    """A text file that is opened with the first sample and complete after every one.

    An existing file is replaced.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: IO[str] | None = None
        folder = self.path.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK) or self.path.is_dir():
            raise OptionError(f"cannot write {str(path)!r}: {str(folder)!r} must be a folder that takes files")

    def _opened(self) -> IO[str]:
        if self._file is None:
            # Kept open from sample to sample; `close` is its end.
            self._file = self.path.open("w", encoding="utf-8", newline="")
        return self._file

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class JsonlLog(_FileLog):
    """A sink that writes one JSON object a line; `read_log` reads it back.

    Parameters
    ----------
    path : path
        The file; an existing one is replaced.

    Raises
    ------
    OptionError
        If there is no folder to write it to.
    """

    def write(self, sample: SystemSample) -> None:
        """Write one line.

        Parameters
        ----------
        sample : SystemSample
            What was measured.
        """
        out = self._opened()
        out.write(sample_to_json(sample) + "\n")
        out.flush()


class CsvLog(_FileLog):
    """A sink that writes a table with one row a sample; what is not known is an empty cell.

    The first sample decides about the columns.

    Parameters
    ----------
    path : path
        The file; an existing one is replaced.

    Raises
    ------
    OptionError
        If there is no folder to write it to.
    """

    _table: csv.DictWriter[str] | None = None

    def write(self, sample: SystemSample) -> None:
        """Write one row, and the heading before the first.

        Parameters
        ----------
        sample : SystemSample
            What was measured.
        """
        row = dict(flatten(sample))
        out = self._opened()
        if self._table is None:
            self._table = csv.DictWriter(out, list(row), extrasaction="ignore")
            self._table.writeheader()
        self._table.writerow(row)
        out.flush()


def open_log(path: str | Path) -> Sink:
    """Choose how samples are written to a file by its ending: ``.csv``, or ``.jsonl`` and ``.json`` for lines of JSON.

    Parameters
    ----------
    path : path
        The file; it is written anew when the first sample comes.

    Returns
    -------
    Sink
        A `CsvLog` or a `JsonlLog`.

    Raises
    ------
    OptionError
        If the ending is another, or there is no folder to write to.
    """
    kinds: dict[str, type[CsvLog | JsonlLog]] = {".csv": CsvLog, ".jsonl": JsonlLog, ".json": JsonlLog}
    kind = kinds.get(Path(path).suffix.lower())
    if kind is None:
        raise OptionError(f"log file {str(path)!r}: must end in one of {', '.join(kinds)}")
    return kind(path)


class TensorBoardLog:
    """A sink that writes every known figure as a scalar ``system/...``; needs the extra ``tensorboard``.

    Parameters
    ----------
    folder : path
        Where the event file goes, as for ``torch.utils.tensorboard.SummaryWriter``.
    prefix : str, default "system"
        Before the figures' names.

    Raises
    ------
    MissingExtraError
        If TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path, prefix: str = "system") -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                "TensorBoardLog needs tensorboard, which is absent: pip install 'h5stream[tensorboard]'"
            ) from error
        self._make_writer, self._folder, self._prefix = SummaryWriter, str(folder), prefix
        self._writer: Any = None
        self._step = 0

    def write(self, sample: SystemSample) -> None:
        """Write the figures that are known; steps count samples, and the time is the sample's.

        Parameters
        ----------
        sample : SystemSample
            What was measured.
        """
        if self._writer is None:
            self._writer = self._make_writer(self._folder)
        for name, value in flatten(sample):
            if isinstance(value, int | float) and name != "time_s":
                self._writer.add_scalar(f"{self._prefix}/{name}", value, self._step, sample.time_s)
        self._step += 1

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()


# --- The figures of a sample by name: one table for files, TensorBoard and Prometheus -------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number that a sample may have."""

    name: str
    """Its name outside, ending in its unit."""
    path: str
    """Where `value_at` finds it."""
    help: str
    """What it is, in one line."""


def _figure(path: str, help_text: str, name: str = "") -> Figure:
    return Figure(
        name=name or path.removeprefix("gpu.").removeprefix("host.").replace(".", "_"), path=path, help=help_text
    )


GPU_FIGURES = (
    _figure("gpu.utilization_ratio", "Share of the time in which some kernel ran."),
    _figure("gpu.sm_activity_ratio", "Share of the multiprocessors that were busy."),
    _figure("gpu.memory_used_bytes", "Device memory taken."),
    _figure("gpu.memory_total_bytes", "Device memory there is."),
    _figure("gpu.pcie_receive_bytes_per_s", "Bytes a second that came over PCIe."),
    _figure("gpu.power_w", "Power drawn."),
    _figure("gpu.power_limit_w", "Power that may be drawn."),
    _figure("gpu.temperature_c", "Temperature of the die."),
    _figure("gpu.sm_clock_hz", "Clock of the multiprocessors."),
    _figure("gpu.memory_clock_hz", "Clock of the device memory."),
)

SYSTEM_FIGURES = (
    _figure("host.cpu_ratio", "Share of the machine's processors that was busy."),
    _figure("host.ram_used_bytes", "Memory taken, within the cgroup's limit where there is one."),
    _figure("host.ram_total_bytes", "Memory there is, within the cgroup's limit where there is one."),
    _figure("host.disk_read_bytes_per_s", "Bytes a second read from the machine's disks."),
    _figure("process.processes", "Processes that are watched: one and its children."),
    _figure("process.cpu_cores", "Processors that the watched processes kept busy."),
    _figure("process.memory_bytes", "Resident memory of the watched process."),
    _figure("process.children_memory_bytes", "Resident memory of its children."),
    _figure("process.disk_read_bytes_per_s", "Bytes a second fetched from storage for the watched processes."),
    _figure("data_wait_ratio", "Share of the time that the training loop waited for a batch."),
    _figure("cost_ratio", "Share of one processor that the monitor itself takes.", "monitor_cost_ratio"),
)


def value_at(path: str, sample: SystemSample, gpu: int = 0) -> float | None:
    """Return the value at a path such as ``host.cpu_ratio`` or, of one device, ``gpu.power_w``; None if there is none.

    Examples
    --------
    >>> value_at("gpu.power_w", SystemSample(time_s=0.0)), value_at("elapsed_s", SystemSample(time_s=0.0))
    (None, 0.0)
    """
    owner, _, name = path.rpartition(".")
    found = sample.gpu(gpu) if owner == "gpu" else getattr(sample, owner) if owner else sample
    value: float | None = None if found is None else getattr(found, name)
    return value


def flatten(sample: SystemSample) -> Iterator[tuple[str, float | str | None]]:
    """Return every figure of a sample with its name; those of a GPU begin with ``gpu0_``, ``gpu1_`` ...

    Examples
    --------
    >>> dict(flatten(SystemSample(time_s=0.0)))["cpu_ratio"] is None
    True
    """
    yield from (("time_s", sample.time_s), ("elapsed_s", sample.elapsed_s), ("interval_s", sample.interval_s))
    yield from ((figure.name, value_at(figure.path, sample)) for figure in SYSTEM_FIGURES)
    for position, gpu in enumerate(sample.gpus):
        yield f"gpu{position}_uuid", gpu.uuid
        yield from ((f"gpu{position}_{figure.name}", value_at(figure.path, sample, position)) for figure in GPU_FIGURES)
        reasons = gpu.throttle_reasons
        yield f"gpu{position}_throttle_reasons", None if reasons is None else "+".join(reasons)


# --- Samples in Prometheus' text format: base units, ratios from 0 to 1, nothing where nothing is known.
#
# Source: "Metric and label naming" of the Prometheus documentation.


# Prometheus writes units out.
_UNITS = {"_per_s": "_per_second", "_w": "_watts", "_c": "_celsius", "_hz": "_hertz"}


def _client() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError as error:
        raise MissingExtraError(
            "Prometheus text needs prometheus-client, which is absent: pip install 'h5stream[prometheus]'"
        ) from error
    return prometheus_client


class PrometheusCollector:
    """Gives the newest sample, most often ``monitor.sample``, to a Prometheus registry whenever that is scraped.

    Examples
    --------
    Beside the metrics that a training script exports already::

        prometheus_client.REGISTRY.register(PrometheusCollector(monitor.sample))
        prometheus_client.start_http_server(9100)
    """

    def __init__(self, newest: Callable[[], SystemSample]) -> None:
        self._newest = newest
        self._family = _client().core.GaugeMetricFamily

    def describe(self) -> list[Any]:
        """Name no metrics in advance, so that registering takes no sample."""
        return []

    def collect(self) -> Iterator[Any]:
        """Return one gauge for each figure that is known."""
        sample = self._newest()
        for figure in SYSTEM_FIGURES:
            value = value_at(figure.path, sample)
            if value is not None:
                yield self._family(_metric("h5stream_" + figure.name), figure.help, value=value)
        for figure in GPU_FIGURES:
            known = [(str(i), gpu, value_at(figure.path, sample, i)) for i, gpu in enumerate(sample.gpus)]
            gauge = self._family(_metric("h5stream_gpu_" + figure.name), figure.help, labels=["gpu", "uuid", "name"])
            for position, gpu, value in known:
                if value is not None:
                    gauge.add_metric([position, gpu.uuid, gpu.name], value)
            if gauge.samples:
                yield gauge
        yield from self._throttling(sample)

    def _throttling(self, sample: SystemSample) -> Iterator[Any]:
        gauge = self._family(
            "h5stream_gpu_throttled", "1 for each reason that holds the clocks back.", labels=["gpu", "uuid", "reason"]
        )
        for position, gpu in enumerate(sample.gpus):
            for reason in gpu.throttle_reasons or ():
                gauge.add_metric([str(position), gpu.uuid, reason], 1)
        if gauge.samples:
            yield gauge


def prometheus_text(sample: SystemSample) -> str:
    """Return one sample in the text format, for the node exporter's textfile collector or a page of one's own."""
    client = _client()
    registry = client.CollectorRegistry()
    registry.register(PrometheusCollector(lambda: sample))
    text: bytes = client.generate_latest(registry)
    return text.decode()


def _metric(name: str) -> str:
    for short, full in _UNITS.items():
        if name.endswith(short):
            return name.removesuffix(short) + full
    return name
