"""Sinks for samples: JSONL and CSV files, TensorBoard, Prometheus, the screen of a terminal, a plot."""

from __future__ import annotations

import csv
import functools
import importlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TextIO, TypeVar

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from h5stream.base.texts import NA, counted, missing_extra, or_na, percent
from h5stream.errors import OptionError
from h5stream.monitor import (
    FIGURES,
    GpuSample,
    HostSample,
    ProcessSample,
    Spread,
    SystemSample,
    amount,
    figure_name,
    held_back_by,
    value_at,
)

if TYPE_CHECKING:
    from types import ModuleType

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from prometheus_client import Metric
    from torch.utils.tensorboard import SummaryWriter

    from h5stream.monitor.system import Sink

# The exported figures: those of each GPU, and of the system.
_OF_GPU, _OF_SYSTEM = ([f for f in FIGURES if f.text and f.path.startswith("gpu.") is gpu] for gpu in (True, False))


def of_extra(module: str, needs: str, extra: str) -> ModuleType:
    """Import a module of an extra, or raise an error that names the feature that needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra(needs, extra) from error


def flatten(sample: SystemSample) -> Iterator[tuple[str, float | str | None]]:
    """Yield every figure of a sample with its name; names of GPU figures begin with ``gpu0_``, ``gpu1_`` ..."""
    yield from ((name, value_at(name, sample)) for name in ("time_s", "elapsed_s", "interval_s"))
    yield from ((figure_name(one.path), value_at(one.path, sample)) for one in _OF_SYSTEM)
    for position, gpu in enumerate(sample.gpus):
        yield f"gpu{position}_uuid", gpu.uuid
        yield from ((f"gpu{position}_{figure_name(one.path)}", value_at(one.path, sample, position)) for one in _OF_GPU)
        reasons = gpu.throttle_reasons
        yield f"gpu{position}_throttle_reasons", None if reasons is None else "+".join(reasons)


def sample_to_json(sample: SystemSample) -> str:
    """Return a sample as one line of JSON, with the attributes' names; unknown values are ``null``."""
    return json.dumps(asdict(sample))


def sample_from_json(line: str) -> SystemSample:
    """Return the sample of a line that `sample_to_json` made."""
    facts: dict[str, Any] = json.loads(line)
    for gpu in facts["gpus"]:
        gpu["throttle_reasons"] = None if gpu["throttle_reasons"] is None else tuple(gpu["throttle_reasons"])
    facts["gpus"] = tuple(GpuSample(**gpu) for gpu in facts["gpus"])
    facts["host"] = HostSample(**facts["host"])
    facts["process"] = ProcessSample(**facts["process"]) if facts["process"] else None
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


class _Output(Protocol):
    """A destination that samples are written to."""

    def close(self) -> object:
        """Complete it."""


OutputT = TypeVar("OutputT", bound=_Output)


class _Log(Generic[OutputT]):
    """A sink that opens its output with the first sample."""

    _out: OutputT | None = None

    def __init__(self, opened: Callable[[], OutputT]) -> None:
        self._open = opened

    def write(self, sample: SystemSample) -> None:
        """Write a sample."""
        if self._out is None:
            self._out = self._open()
        self._put(self._out, sample)

    def close(self) -> None:
        """Close the output."""
        if self._out is not None:
            self._out.close()

    def _put(self, out: OutputT, sample: SystemSample) -> None:
        raise NotImplementedError


class JsonlLog(_Log[TextIO]):
    """A sink that writes one JSON object per line, complete as soon as it is written; `read_log` reads it back.

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

    def _put(self, out: TextIO, sample: SystemSample) -> None:
        out.write(sample_to_json(sample) + "\n")


class CsvLog(JsonlLog):
    """A sink that writes a table with one row per sample; cells of unknown values are empty.

    The first sample determines the columns.
    """

    _table: csv.DictWriter[str] | None = None

    def _put(self, out: TextIO, sample: SystemSample) -> None:
        row = dict(flatten(sample))
        if self._table is None:
            self._table = csv.DictWriter(out, list(row), extrasaction="ignore")
            self._table.writeheader()
        self._table.writerow(row)


_LOGS = {".csv": CsvLog, ".jsonl": JsonlLog, ".json": JsonlLog}


def open_log(path: str | Path) -> Sink:
    """Open a log of samples in the format of the file name: ``.csv``, or ``.jsonl`` and ``.json`` for lines of JSON.

    Parameters
    ----------
    path : path
        The file; the first sample replaces an existing one.

    Returns
    -------
    Sink
        A `CsvLog` or a `JsonlLog`.

    Raises
    ------
    OptionError
        If the file name has another ending, or there is no folder to write to.
    """
    kind = _LOGS.get(Path(path).suffix.lower())
    if kind is None:
        raise OptionError(f"log file {str(path)!r}: must end in one of {', '.join(_LOGS)}")
    return kind(path)


class TensorBoardLog(_Log["SummaryWriter"]):
    """A sink that writes every known figure as a scalar ``system/...``; needs the extra ``tensorboard``.

    Steps count samples, and the time is the sample's.

    Parameters
    ----------
    folder : path
        The folder of the event file, as for ``torch.utils.tensorboard.SummaryWriter``.
    prefix : str, default "system"
        The prefix of the figures' names.

    Raises
    ------
    MissingExtraError
        If TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path, prefix: str = "system") -> None:
        made = of_extra("torch.utils.tensorboard", "TensorBoardLog needs tensorboard", "tensorboard")
        super().__init__(functools.partial(made.SummaryWriter, str(folder)))
        self._prefix, self._step = prefix, 0

    def _put(self, out: SummaryWriter, sample: SystemSample) -> None:
        for name, value in flatten(sample):
            if isinstance(value, int | float) and name != "time_s":
                out.add_scalar(f"{self._prefix}/{name}", value, self._step, sample.time_s)
        self._step += 1


# --- Samples in Prometheus' text format: base units, ratios from 0 to 1, without unknown values.
#
# Source: "Metric and label naming" of the Prometheus documentation, which writes units out.


_UNITS = {"_per_s": "_per_second", "_w": "_watts", "_c": "_celsius", "_hz": "_hertz"}
_CLIENT = "Prometheus text needs prometheus-client"


class PrometheusCollector:
    """Provides the newest sample, usually ``monitor.sample``, to a Prometheus registry whenever it is scraped.

    Examples
    --------
    Beside the metrics that a training script exports already::

        prometheus_client.REGISTRY.register(PrometheusCollector(monitor.sample))
        prometheus_client.start_http_server(9100)
    """

    def __init__(self, newest: Callable[[], SystemSample]) -> None:
        self._newest = newest
        self._family = of_extra("prometheus_client.core", _CLIENT, "prometheus").GaugeMetricFamily

    def describe(self) -> list[Metric]:
        """Describe no metrics in advance, so that registering takes no sample."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield one gauge for each known figure."""
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
    ) -> Iterator[Metric]:
        unit = next((unit for unit in _UNITS if name.endswith(unit)), "")
        gauge = self._family(f"h5stream_{name.removesuffix(unit)}{_UNITS.get(unit, '')}", text, labels=labels)
        for label, value in values:
            if value is not None:
                gauge.add_metric(label, value)
        if gauge.samples:
            yield gauge


def prometheus_text(sample: SystemSample) -> str:
    """Return a sample in the text format, for the node exporter's textfile collector or a page of your own."""
    client = of_extra("prometheus_client", _CLIENT, "prometheus")
    registry = client.CollectorRegistry()
    registry.register(PrometheusCollector(lambda: sample))
    text: bytes = client.generate_latest(registry)
    return text.decode()


# --- The screen, drawn with rich: current values, their history, mean and maximum. --------------------------------


_BARS = "▁▂▃▄▅▆▇█"
_MIN_COURSE = 10  # columns
_OTHER_COLUMNS = 72  # the width of the table without the history


def sparkline(values: Sequence[float | None], width: int, top: float | None = None) -> str:
    """Return the last values as a row of bars, blank for missing ones; a full bar is `top`, or the greatest value."""
    shown = list(values)[-width:] if width > 0 else []
    full = top or max((value for value in shown if value is not None), default=0.0) or 1.0
    steps = len(_BARS) - 1
    return "".join(" " if one is None else _BARS[round(steps * min(1.0, max(0.0, one / full)))] for one in shown)


def render_screen(
    samples: Sequence[SystemSample], width: int, *, title: str, note: str | None = None, with_process: bool = True
) -> Panel:
    """Return the whole screen for at least one sample, oldest first, with a note below."""
    last, table = samples[-1], functools.partial(_table, samples, width)
    parts = [table("gpu", f"GPU {k}  {gpu.name}", _gpu_state(gpu), k) for k, gpu in enumerate(last.gpus)]
    if not last.gpus:
        parts.append(Text.assemble(("GPU  ", "bold"), ("n/a", "dim"), f"  {last.gpu_reason or ''}\n"))
    parts.append(table("host", "Machine"))
    if with_process:
        state, process = "has ended", last.process
        if process is not None:
            state = f"{counted(process.processes - 1, 'child', 'children')}   {process.cpus_allowed} CPUs allowed"
        parts.append(table("process data_wait_ratio", "Process", state))
    cost = Spread.of(sample.cost_ratio for sample in samples)
    taken = f"the monitor takes {percent(cost.mean if cost else None, 2)} of one processor"
    parts.append(Text(f"{last.elapsed_s:.0f} s, {counted(len(samples), 'sample')}; {taken}", style="dim"))
    if note:
        parts.append(Text(note, style="yellow"))
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim", width=width)


def _table(
    samples: Sequence[SystemSample], width: int, of: str, heading: str, state: str = "", gpu: int = 0
) -> RenderableType:
    """Return the figures whose paths begin with one of the words in `of`, below a heading."""
    course = max(_MIN_COURSE, width - _OTHER_COLUMNS)
    table = Table(box=None, padding=(0, 1), show_header=False, pad_edge=False)
    table.add_column(width=11, style="bold")
    table.add_column(width=21, justify="right", no_wrap=True)
    for wide, style in ((course, ""), (12, "dim"), (12, "dim")):
        table.add_column(width=wide, style=style, no_wrap=True)
    for one in FIGURES:
        if not one.label or one.path.split(".")[0] not in of.split():
            continue
        values = [value_at(one.path, sample, gpu) for sample in samples]
        spread = Spread.of(values)
        top = value_at(one.top, samples[-1], gpu) if isinstance(one.top, str) else one.top
        now = amount(samples[-1], one.amount, gpu) if one.amount else one.show(values[-1])
        line = Text(sparkline(values, course, top), style=one.colour)
        ends = (f"ø {one.show(spread.mean)}", f"↑ {one.show(spread.high)}") if spread else ("", "")
        table.add_row(one.label, Text(now, style="dim" if now == NA else ""), line, *ends)
    text = Text(heading, style="bold underline")
    if state:
        text.append(f"   {state}", style="not bold not underline dim")
    return Group(text, table, Text())


def _gpu_state(gpu: GpuSample) -> str:
    if gpu.unavailable is not None:
        return gpu.unavailable
    clock = or_na(None if gpu.sm_clock_hz is None else gpu.sm_clock_hz / 1e6, "{:.0f} MHz")
    reasons = held_back_by(gpu)
    reasons_text = NA if reasons is None else ", ".join(reasons) or "nothing"
    return f"{or_na(gpu.temperature_c, '{:.0f} °C')}   SM clock {clock}   held back by: {reasons_text}"


# --- A plot of the samples; matplotlib comes with the extra ``plot`` ------------------------------


# Okabe and Ito's colours, which are distinct for colour-blind readers and in print.
GREEN, SKY, RED, ORANGE, PINK, BLUE = "#009E73", "#56B4E9", "#D55E00", "#E69F00", "#CC79A7", "#0072B2"
_STYLES = ("-", "--", ":", "-.")  # one for each GPU
# Each panel: the axis label, its height, and the factor of values. Each curve: panel, label, colour, path of values.
_PANELS = (
    ("busy (%)", 3.0, 100.0),
    ("memory (%)", 2.0, 100.0),
    ("data wait (%)", 1.3, 100.0),
    ("read (GB/s)", 1.3, 1e-9),
)
_CURVES = (
    (0, "GPU", GREEN, "gpu.utilization_ratio"),
    (0, "SM", SKY, "gpu.sm_activity_ratio"),
    (0, "CPU (machine)", RED, "host.cpu_ratio"),
    (0, "CPU (process)", ORANGE, "process.cpu_ratio"),
    (1, "VRAM", GREEN, "gpu.memory_ratio"),
    (1, "RAM", RED, "host.ram_ratio"),
    (2, "data wait", PINK, "data_wait_ratio"),
    (3, "PCIe in", BLUE, "gpu.pcie_receive_bytes_per_s"),
    (3, "disk", ORANGE, "host.disk_read_bytes_per_s"),
)


def save_plot(samples: Sequence[SystemSample], path: str | Path) -> None:
    """Plot GPU, SM, CPU, VRAM, RAM, data wait and read rates over time into an image file; samples are oldest first."""
    figure_class = figure_of_matplotlib()
    if not samples:
        raise OptionError("there are no samples to plot: the monitor ran for less than a tenth of a second")
    figure = figure_class(figsize=(10, 8.5), dpi=120, layout="constrained")
    axes = figure.subplots(len(_PANELS), 1, sharex=True, height_ratios=[height for _, height, _ in _PANELS])
    seconds = [sample.elapsed_s for sample in samples]
    for panel, name, colour, where in _CURVES:
        gpus = max(1, *(len(sample.gpus) for sample in samples)) if where.startswith("gpu.") else 1
        for gpu in range(gpus):
            values = [value_at(where, sample, gpu) for sample in samples]
            has_values, named = any(value is not None for value in values), f"{name} {gpu}" if gpus > 1 else name
            axes[panel].plot(
                seconds,
                [math.nan if value is None else value * _PANELS[panel][2] for value in values],
                _STYLES[gpu % len(_STYLES)],
                color=colour if has_values else "0.75",
                # Curves without values stay in the legend, so that users do not search for them.
                label=named if has_values else f"{named}: n/a",
                linewidth=1.6,
                marker="o" if len(samples) < 3 else None,
            )
    for axis, (label, _, _) in zip(axes, _PANELS, strict=True):
        axis.set_ylabel(label)
        bare(axis)
        if all(line.get_label().endswith(": n/a") for line in axis.lines):
            axis.text(0.5, 0.5, "n/a", transform=axis.transAxes, ha="center", va="center", color="0.6")
        axis.set_ylim(0, 102 if "%" in label else None)
        axis.set_xlim(seconds[0], max(seconds[-1], seconds[0] + 1e-3))
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    axes[-1].set_xlabel("seconds since the monitor began")
    counts = Counter(gpu.name for gpu in samples[-1].gpus)
    names = [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]
    devices = ", ".join(names) or f"no GPU ({samples[-1].gpu_reason})"
    taken = f"{counted(len(samples), 'sample')} in {sum(sample.interval_s for sample in samples):.0f} s"
    figure.suptitle(f"{devices}\n{taken}", fontsize=11, x=0.01, ha="left")
    figure.savefig(path)


def check_plot_path(path: str | Path) -> None:
    """Raise errors that `save_plot` would only raise at the end of a run."""
    formats = figure_of_matplotlib()().canvas.get_supported_filetypes()
    ending = Path(path).suffix.removeprefix(".").lower()
    if ending not in formats:
        raise OptionError(f"plot {str(path)!r}: must end in one of .{', .'.join(sorted(formats))}")


def figure_of_matplotlib() -> type[Figure]:
    """Return matplotlib's figure class, which needs no window system; raise `MissingExtraError` without matplotlib."""
    figure: type[Figure] = of_extra("matplotlib.figure", "a plot needs matplotlib", "plot").Figure
    return figure


def bare(axis: Axes) -> None:
    """Remove the parts of a panel's frame that do not help to read values."""
    axis.grid(axis="y", color="0.9")
    axis.spines[["top", "right"]].set_visible(False)
