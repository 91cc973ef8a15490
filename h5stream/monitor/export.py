"""Sinks: samples into JSONL and CSV files and into TensorBoard; and samples for Prometheus."""

from __future__ import annotations

import csv
import functools
import importlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from h5stream.errors import MissingExtraError, OptionError
from h5stream.monitor import sample as samples
from h5stream.monitor.sample import FIGURES, SystemSample, figure_name, value_at

if TYPE_CHECKING:
    from h5stream.monitor.system import Sink

# What is exported: of each GPU, and of the system.
_OF_GPU, _OF_SYSTEM = ([f for f in FIGURES if f.text and f.path.startswith("gpu.") is gpu] for gpu in (True, False))


def of_extra(module: str, needs: str, extra: str) -> Any:
    """Import what an extra brings, or say what needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{needs}, which is not installed: pip install 'h5stream[{extra}]'") from error


def flatten(sample: SystemSample) -> Iterator[tuple[str, float | str | None]]:
    """Return every figure of a sample with its name; those of a GPU begin with ``gpu0_``, ``gpu1_`` ..."""
    yield from ((name, value_at(name, sample)) for name in ("time_s", "elapsed_s", "interval_s"))
    yield from ((figure_name(one.path), value_at(one.path, sample)) for one in _OF_SYSTEM)
    for position, gpu in enumerate(sample.gpus):
        yield f"gpu{position}_uuid", gpu.uuid
        yield from ((f"gpu{position}_{figure_name(one.path)}", value_at(one.path, sample, position)) for one in _OF_GPU)
        reasons = gpu.throttle_reasons
        yield f"gpu{position}_throttle_reasons", None if reasons is None else "+".join(reasons)


def sample_to_json(sample: SystemSample) -> str:
    """Return a sample as one line of JSON, named as in the classes; what is not known is ``null``."""
    return json.dumps(asdict(sample))


def sample_from_json(line: str) -> SystemSample:
    """Return the sample that `sample_to_json` made the line from."""
    facts: dict[str, Any] = json.loads(line)
    for gpu in facts["gpus"]:
        gpu["throttle_reasons"] = None if gpu["throttle_reasons"] is None else tuple(gpu["throttle_reasons"])
    facts["gpus"] = tuple(samples.GpuSample(**gpu) for gpu in facts["gpus"])
    facts["host"] = samples.HostSample(**facts["host"])
    facts["process"] = samples.ProcessSample(**facts["process"]) if facts["process"] else None
    return SystemSample(**facts)


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


class _Log:
    """A sink whose output is opened with the first sample; lines of JSON, unless a kind of it writes otherwise."""

    _out: Any = None

    def __init__(self, opened: Callable[[], Any]) -> None:
        self._open = opened

    def write(self, sample: SystemSample) -> None:
        """Write a sample."""
        if self._out is None:
            self._out = self._open()
        self._put(self._out, sample)

    def close(self) -> None:
        """Close what is written to."""
        if self._out is not None:
            self._out.close()

    def _put(self, out: Any, sample: SystemSample) -> None:
        out.write(sample_to_json(sample) + "\n")


class JsonlLog(_Log):
    """A sink that writes one JSON object a line, complete as soon as it is written; `read_log` reads it back.

    Parameters
    ----------
    path : path
        The file; an existing one is replaced.

    Raises
    ------
    OptionError
        If there is no folder to write it to.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        folder = self.path.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK) or self.path.is_dir():
            raise OptionError(f"cannot write {str(path)!r}: {str(folder)!r} must be a folder that takes files")
        super().__init__(functools.partial(self.path.open, "w", 1, encoding="utf-8", newline=""))


class CsvLog(JsonlLog):
    """A sink that writes a table with one row a sample; what is not known is an empty cell.

    The first sample decides about the columns.
    """

    _table: csv.DictWriter[str] | None = None

    def _put(self, out: Any, sample: SystemSample) -> None:
        row = dict(flatten(sample))
        if self._table is None:
            self._table = csv.DictWriter(out, list(row), extrasaction="ignore")
            self._table.writeheader()
        self._table.writerow(row)


_LOGS = {".csv": CsvLog, ".jsonl": JsonlLog, ".json": JsonlLog}


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
    kind = _LOGS.get(Path(path).suffix.lower())
    if kind is None:
        raise OptionError(f"log file {str(path)!r}: must end in one of {', '.join(_LOGS)}")
    return kind(path)


class TensorBoardLog(_Log):
    """A sink that writes every known figure as a scalar ``system/...``; needs the extra ``tensorboard``.

    Steps count samples, and the time is the sample's.

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
        made = of_extra("torch.utils.tensorboard", "TensorBoardLog needs tensorboard", "tensorboard")
        super().__init__(functools.partial(made.SummaryWriter, str(folder)))
        self._prefix, self._step = prefix, 0

    def _put(self, out: Any, sample: SystemSample) -> None:
        for name, value in flatten(sample):
            if isinstance(value, int | float) and name != "time_s":
                out.add_scalar(f"{self._prefix}/{name}", value, self._step, sample.time_s)
        self._step += 1


# --- Samples in Prometheus' text format: base units, ratios from 0 to 1, nothing where nothing is known.
#
# Source: "Metric and label naming" of the Prometheus documentation, which writes units out.


_UNITS = {"_per_s": "_per_second", "_w": "_watts", "_c": "_celsius", "_hz": "_hertz"}
_CLIENT = "Prometheus text needs prometheus-client"


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
        self._family = of_extra("prometheus_client.core", _CLIENT, "prometheus").GaugeMetricFamily

    def describe(self) -> list[Any]:
        """Name no metrics in advance, so that registering takes no sample."""
        return []

    def collect(self) -> Iterator[Any]:
        """Return one gauge for each figure that is known."""
        sample = self._newest()
        gpus = [(str(position), gpu) for position, gpu in enumerate(sample.gpus)]
        for one in _OF_SYSTEM:
            yield from self._gauge(figure_name(one.path), one.text, (), [((), value_at(one.path, sample))])
        for one in _OF_GPU:
            values = [((number, gpu.uuid, gpu.name), value_at(one.path, sample, int(number))) for number, gpu in gpus]
            yield from self._gauge(f"gpu_{figure_name(one.path)}", one.text, ("gpu", "uuid", "name"), values)
        reasons = [((number, gpu.uuid, reason), 1) for number, gpu in gpus for reason in gpu.throttle_reasons or ()]
        text = "1 for each reason that holds the clocks back."
        yield from self._gauge("gpu_throttled", text, ("gpu", "uuid", "reason"), reasons)

    def _gauge(
        self, name: str, text: str, labels: Sequence[str], values: Sequence[tuple[Sequence[str], float | None]]
    ) -> Iterator[Any]:
        unit = next((unit for unit in _UNITS if name.endswith(unit)), "")
        gauge = self._family(f"h5stream_{name.removesuffix(unit)}{_UNITS.get(unit, '')}", text, labels=labels)
        for label, value in values:
            if value is not None:
                gauge.add_metric(label, value)
        if gauge.samples:
            yield gauge


def prometheus_text(sample: SystemSample) -> str:
    """Return one sample in the text format, for the node exporter's textfile collector or a page of one's own."""
    client = of_extra("prometheus_client", _CLIENT, "prometheus")
    registry = client.CollectorRegistry()
    registry.register(PrometheusCollector(lambda: sample))
    text: bytes = client.generate_latest(registry)
    return text.decode()
