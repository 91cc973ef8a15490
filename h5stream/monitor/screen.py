"""The monitor on a terminal: what is now, its course, mean and most, drawn with rich."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from h5stream.errors import MissingExtraError, OptionError
from h5stream.monitor.export import value_at
from h5stream.monitor.sample import NA, GpuSample, SystemSample, amount, percent, scaled, size

_BARS = "▁▂▃▄▅▆▇█"
_MIN_COURSE = 10  # columns
_OTHER_COLUMNS = 72  # what the table needs beside the course


def sparkline(values: Sequence[float | None], width: int, top: float | None = None) -> str:
    """Return the last `width` values, oldest first, as a row of bars; a blank where there is no value.

    A full bar is `top`, by default the greatest of those shown.

    Examples
    --------
    >>> sparkline([0.0, 0.5, None, 1.0], width=4, top=1.0)
    '▁▅ █'
    """
    shown = list(values)[-width:] if width > 0 else []
    full = top or max((value for value in shown if value is not None), default=0.0)
    return "".join(" " if value is None else _bar(value / full if full else 0.0) for value in shown)


def _bar(ratio: float) -> str:
    return _BARS[round(min(1.0, max(0.0, ratio)) * (len(_BARS) - 1))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    label: str
    path: str
    show: Callable[[float | None], str]
    colour: str
    top: float | None = None
    now: str | None = None


def render_screen(
    samples: Sequence[SystemSample], width: int, *, title: str, note: str | None = None, with_process: bool = True
) -> Panel:
    """Return the whole screen for the samples so far, oldest first, at least one.

    A note stands below, for instance what is uncertain about the GPUs' order.
    """
    last = samples[-1]
    parts: list[RenderableType] = []
    for position, gpu in enumerate(last.gpus):
        heading = f"GPU {position}  {gpu.name}"
        parts.append(_table(samples, width, heading, _gpu_rows(gpu), _gpu_state(gpu), position))
    if not last.gpus:
        parts.append(Text.assemble(("GPU  ", "bold"), ("n/a", "dim"), f"  {last.gpu_reason or ''}\n"))
    parts.append(_table(samples, width, "Machine", _host_rows(last)))
    if with_process:
        parts.append(_table(samples, width, "Process", _process_rows(last), _process_state(last)))
    parts.append(Text(_footer(samples), style="dim"))
    if note:
        parts.append(Text(note, style="yellow"))
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim", width=width)


def _table(
    samples: Sequence[SystemSample], width: int, heading: str, rows: Sequence[_Row], state: str = "", gpu: int = 0
) -> RenderableType:
    course = max(_MIN_COURSE, width - _OTHER_COLUMNS)
    table = Table(box=None, padding=(0, 1), show_header=False, pad_edge=False)
    table.add_column(width=11, style="bold")
    table.add_column(width=21, justify="right", no_wrap=True)
    table.add_column(width=course, no_wrap=True)
    table.add_column(width=12, style="dim", no_wrap=True)
    table.add_column(width=12, style="dim", no_wrap=True)
    for row in rows:
        values = [value_at(row.path, sample, gpu) for sample in samples]
        now = row.now or row.show(values[-1])
        mean, most = _extremes(values, row.show)
        line = Text(sparkline(values, course, row.top), style=row.colour)
        table.add_row(row.label, Text(now, style="dim" if now == NA else ""), line, mean, most)
    text = Text(heading, style="bold underline")
    if state:
        text.append(f"   {state}", style="not bold not underline dim")
    return Group(text, table, Text())


def _extremes(values: Sequence[float | None], show: Callable[[float | None], str]) -> tuple[str, str]:
    known = [value for value in values if value is not None]
    if not known:
        return "", ""
    return f"ø {show(sum(known) / len(known))}", f"↑ {show(max(known))}"


def _gpu_rows(gpu: GpuSample) -> list[_Row]:
    vram = amount(gpu.memory_used_bytes, gpu.memory_total_bytes)
    return [
        _Row(label="Utilisation", path="gpu.utilization_ratio", show=percent, colour="green", top=1.0),
        _Row(label="SM activity", path="gpu.sm_activity_ratio", show=percent, colour="green", top=1.0),
        _Row(label="VRAM", path="gpu.memory_ratio", show=percent, colour="blue", top=1.0, now=vram),
        _Row(label="PCIe in", path="gpu.pcie_receive_bytes_per_s", show=_rate, colour="magenta"),
        _Row(label="Power", path="gpu.power_w", show=_watts, colour="yellow", top=gpu.power_limit_w),
    ]


def _gpu_state(gpu: GpuSample) -> str:
    if gpu.unavailable is not None:
        return gpu.unavailable
    degrees = NA if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C"
    reasons = [reason for reason in gpu.throttle_reasons or () if reason != "gpu_idle"]
    held = NA if gpu.throttle_reasons is None else ", ".join(reasons) or "nothing"
    return f"{degrees}   SM clock {scaled(gpu.sm_clock_hz, 'Hz')}   held back by: {held}"


def _host_rows(last: SystemSample) -> list[_Row]:
    ram = amount(last.host.ram_used_bytes, last.host.ram_total_bytes)
    return [
        _Row(label="CPU", path="host.cpu_ratio", show=percent, colour="green", top=1.0),
        _Row(label="RAM", path="host.ram_ratio", show=percent, colour="blue", top=1.0, now=ram),
        _Row(label="Disk read", path="host.disk_read_bytes_per_s", show=_rate, colour="magenta"),
    ]


def _process_rows(last: SystemSample) -> list[_Row]:
    allowed = last.process.cpus_allowed if last.process else None
    return [
        _Row(label="CPU", path="process.cpu_cores", show=_cores, colour="green", top=allowed),
        _Row(label="Memory", path="process.memory_together_bytes", show=size, colour="blue"),
        _Row(label="Disk read", path="process.disk_read_bytes_per_s", show=_rate, colour="magenta"),
        _Row(label="Data wait", path="data_wait_ratio", show=percent, colour="red", top=1.0),
    ]


def _process_state(last: SystemSample) -> str:
    if last.process is None:
        return "has ended"
    children = last.process.processes - 1
    return f"{children} {'child' if children == 1 else 'children'}   {last.process.cpus_allowed} CPUs allowed"


def _footer(samples: Sequence[SystemSample]) -> str:
    costs = [sample.cost_ratio for sample in samples if sample.cost_ratio is not None]
    cost = percent(sum(costs) / len(costs), 2) if costs else NA
    last = samples[-1]
    return f"{last.elapsed_s:.0f} s, {len(samples)} samples; the monitor takes {cost} of one processor"


def _rate(value: float | None) -> str:
    return size(value, "/s")


def _watts(value: float | None) -> str:
    return scaled(value, "W")


def _cores(value: float | None) -> str:
    return NA if value is None else f"{value:.2f} cores"


# --- The course of the samples as a picture; matplotlib comes with the extra ``plot`` -------------


# Okabe and Ito's colours, which stay apart for colour-blind readers and in print.
GREEN, SKY, RED, ORANGE, PINK, BLUE = "#009E73", "#56B4E9", "#D55E00", "#E69F00", "#CC79A7", "#0072B2"
_STYLES = ("-", "--", ":", "-.")  # one for each GPU
# Each panel: the axis, its height, what a value is multiplied by, and the curves: label, colour, where values are.
_PANELS: tuple[tuple[str, float, float, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "busy (%)",
        3,
        100,
        (
            ("GPU", GREEN, "gpu.utilization_ratio"),
            ("SM", SKY, "gpu.sm_activity_ratio"),
            ("CPU (machine)", RED, "host.cpu_ratio"),
            ("CPU (process)", ORANGE, "process.cpu_ratio"),
        ),
    ),
    ("memory (%)", 2, 100, (("VRAM", GREEN, "gpu.memory_ratio"), ("RAM", RED, "host.ram_ratio"))),
    ("data wait (%)", 1.3, 100, (("data wait", PINK, "data_wait_ratio"),)),
    (
        "read (GB/s)",
        1.3,
        1e-9,
        (("PCIe in", BLUE, "gpu.pcie_receive_bytes_per_s"), ("disk", ORANGE, "host.disk_read_bytes_per_s")),
    ),
)


def save_plot(samples: Sequence[SystemSample], path: str | Path) -> None:
    """Draw GPU, SM, CPU, VRAM, RAM, data wait and read rates over time into an image file; samples are oldest first."""
    figure_class = figure_of_matplotlib()
    if not samples:
        raise OptionError("there are no samples to plot: the monitor ran for less than a tenth of a second")
    figure = figure_class(figsize=(10, 8.5), dpi=120, layout="constrained")
    axes = figure.subplots(len(_PANELS), 1, sharex=True, height_ratios=[height for _, height, _, _ in _PANELS])
    gpus = max(1, *(len(sample.gpus) for sample in samples))
    for axis, (label, _, factor, curves) in zip(axes, _PANELS, strict=True):
        for name, colour, where in curves:
            for gpu in range(gpus if where.startswith("gpu.") else 1):
                numbered = f"{name} {gpu}" if gpus > 1 and where.startswith("gpu.") else name
                values = [value_at(where, sample, gpu) for sample in samples]
                _curve(axis, samples, numbered, colour, _STYLES[gpu % len(_STYLES)], values, factor)
        _finish(axis, samples, label)
    axes[-1].set_xlabel("seconds since the monitor began")
    figure.suptitle(_title(samples), fontsize=11, x=0.01, ha="left")
    figure.savefig(path)


def check_plot_path(path: str | Path) -> None:
    """Say now, by raising, what `save_plot` would stumble over at the end of an hour."""
    formats = figure_of_matplotlib()().canvas.get_supported_filetypes()
    ending = Path(path).suffix.removeprefix(".").lower()
    if ending not in formats:
        raise OptionError(f"plot {str(path)!r}: must end in one of .{', .'.join(sorted(formats))}")
    if not Path(path).parent.is_dir():
        raise OptionError(f"plot {str(path)!r}: there is no folder {str(Path(path).parent)!r}")


def figure_of_matplotlib() -> Any:
    """Give matplotlib's figure, which needs no window system; `MissingExtraError` where it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "a plot needs matplotlib, which is not installed: pip install 'h5stream[plot]'"
        ) from error
    return Figure


def _curve(
    axis: Any,
    samples: Sequence[SystemSample],
    label: str,
    colour: str,
    style: str,
    values: Sequence[float | None],
    factor: float,
) -> None:
    known = any(value is not None for value in values)
    axis.plot(
        [sample.elapsed_s for sample in samples],
        [math.nan if value is None else value * factor for value in values],
        style,
        color=colour if known else "0.75",
        # What has no value keeps its place in the legend, so that it is not looked for in vain.
        label=label if known else f"{label}: n/a",
        linewidth=1.6,
        marker="o" if len(samples) < 3 else None,
    )


def _finish(axis: Any, samples: Sequence[SystemSample], label: str) -> None:
    """Label a panel whose curves are drawn."""
    axis.set_ylabel(label)
    bare(axis)
    if all(line.get_label().endswith(": n/a") for line in axis.lines):
        axis.text(0.5, 0.5, "n/a", transform=axis.transAxes, ha="center", va="center", color="0.6")
    axis.set_ylim(0, 102 if "%" in label else None)
    first_s, last_s = samples[0].elapsed_s, samples[-1].elapsed_s
    axis.set_xlim(first_s, max(last_s, first_s + 1e-3))
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def bare(axis: Any) -> None:
    """Leave of a panel's frame what helps to read values."""
    axis.grid(axis="y", color="0.9")
    axis.spines[["top", "right"]].set_visible(False)


def _title(samples: Sequence[SystemSample]) -> str:
    last = samples[-1]
    counts = Counter(gpu.name for gpu in last.gpus)
    names = [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]
    devices = ", ".join(names) or f"no GPU ({last.gpu_reason})"
    seconds = sum(sample.interval_s for sample in samples)
    return f"{devices}\n{len(samples)} samples in {seconds:.0f} s"
