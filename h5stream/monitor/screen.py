"""The monitor on a terminal: what is now, its course, mean and most, drawn with rich."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from h5stream.errors import OptionError
from h5stream.monitor.export import of_extra
from h5stream.monitor.sample import (
    NA,
    GpuSample,
    ProcessSample,
    Spread,
    SystemSample,
    amount,
    percent,
    scaled,
    size,
    value_at,
)
from h5stream.units import counted

_BARS = "▁▂▃▄▅▆▇█"
_MIN_COURSE = 10  # columns
_OTHER_COLUMNS = 72  # what the table needs beside the course

Shown = Callable[[float | None], str]
_rate: Shown = functools.partial(size, per="/s")


class _Row(NamedTuple):
    label: str
    path: str  # where the value stands
    show: Shown
    colour: str
    top: float | str | None = None  # of a full bar: a value, or where it stands; None for the greatest shown
    amount: tuple[str, str] | None = None  # where used and total stand, which are shown in place of the value


_GPU = (
    _Row("Utilisation", "gpu.utilization_ratio", percent, "green", 1.0),
    _Row("SM activity", "gpu.sm_activity_ratio", percent, "green", 1.0),
    _Row("VRAM", "gpu.memory_ratio", percent, "blue", 1.0, ("gpu.memory_used_bytes", "gpu.memory_total_bytes")),
    _Row("PCIe in", "gpu.pcie_receive_bytes_per_s", _rate, "magenta"),
    _Row("Power", "gpu.power_w", functools.partial(scaled, unit="W"), "yellow", "gpu.power_limit_w"),
)
_HOST = (
    _Row("CPU", "host.cpu_ratio", percent, "green", 1.0),
    _Row("RAM", "host.ram_ratio", percent, "blue", 1.0, ("host.ram_used_bytes", "host.ram_total_bytes")),
    _Row("Disk read", "host.disk_read_bytes_per_s", _rate, "magenta"),
)
_PROCESS = (
    _Row(
        "CPU",
        "process.cpu_cores",
        lambda value: NA if value is None else f"{value:.2f} cores",
        "green",
        "process.cpus_allowed",
    ),
    _Row("Memory", "process.memory_together_bytes", size, "blue"),
    _Row("Disk read", "process.disk_read_bytes_per_s", _rate, "magenta"),
    _Row("Data wait", "data_wait_ratio", percent, "red", 1.0),
)


def sparkline(values: Sequence[float | None], width: int, top: float | None = None) -> str:
    """Return the last values as a row of bars, blank where there is none; a full bar is `top`, or the greatest."""
    shown = list(values)[-width:] if width > 0 else []
    full = top or max((value for value in shown if value is not None), default=0.0) or 1.0
    steps = len(_BARS) - 1
    return "".join(" " if one is None else _BARS[round(steps * min(1.0, max(0.0, one / full)))] for one in shown)


def render_screen(
    samples: Sequence[SystemSample], width: int, *, title: str, note: str | None = None, with_process: bool = True
) -> Panel:
    """Return the whole screen for at least one sample, oldest first, with a note below."""
    last = samples[-1]
    parts: list[RenderableType] = []
    for position, gpu in enumerate(last.gpus):
        parts.append(_table(samples, width, f"GPU {position}  {gpu.name}", _GPU, _gpu_state(gpu), position))
    if not last.gpus:
        parts.append(Text.assemble(("GPU  ", "bold"), ("n/a", "dim"), f"  {last.gpu_reason or ''}\n"))
    parts.append(_table(samples, width, "Machine", _HOST))
    if with_process:
        parts.append(_table(samples, width, "Process", _PROCESS, _process_state(last.process)))
    cost = Spread.of(sample.cost_ratio for sample in samples)
    taken = f"the monitor takes {percent(cost.mean if cost else None, 2)} of one processor"
    parts.append(Text(f"{last.elapsed_s:.0f} s, {len(samples)} samples; {taken}", style="dim"))
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
    for wide, style in ((course, ""), (12, "dim"), (12, "dim")):
        table.add_column(width=wide, style=style, no_wrap=True)
    for row in rows:
        values = [value_at(row.path, sample, gpu) for sample in samples]
        spread = Spread.of(values)
        top = value_at(row.top, samples[-1], gpu) if isinstance(row.top, str) else row.top
        of = [value_at(path, samples[-1], gpu) for path in row.amount or ()]
        now = amount(*of) if of else row.show(values[-1])
        line = Text(sparkline(values, course, top), style=row.colour)
        ends = (f"ø {row.show(spread.mean)}", f"↑ {row.show(spread.high)}") if spread else ("", "")
        table.add_row(row.label, Text(now, style="dim" if now == NA else ""), line, *ends)
    text = Text(heading, style="bold underline")
    if state:
        text.append(f"   {state}", style="not bold not underline dim")
    return Group(text, table, Text())


def _gpu_state(gpu: GpuSample) -> str:
    if gpu.unavailable is not None:
        return gpu.unavailable
    degrees = NA if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C"
    reasons = [reason for reason in gpu.throttle_reasons or () if reason != "gpu_idle"]
    held = NA if gpu.throttle_reasons is None else ", ".join(reasons) or "nothing"
    return f"{degrees}   SM clock {scaled(gpu.sm_clock_hz, 'Hz')}   held back by: {held}"


def _process_state(process: ProcessSample | None) -> str:
    if process is None:
        return "has ended"
    return f"{counted(process.processes - 1, 'child', 'children')}   {process.cpus_allowed} CPUs allowed"


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
    seconds = [sample.elapsed_s for sample in samples]
    for axis, (label, _, factor, curves) in zip(axes, _PANELS, strict=True):
        for name, colour, where in curves:
            several = gpus > 1 and where.startswith("gpu.")
            for gpu in range(gpus if several else 1):
                values = [value_at(where, sample, gpu) for sample in samples]
                known = any(value is not None for value in values)
                named = f"{name} {gpu}" if several else name
                axis.plot(
                    seconds,
                    [math.nan if value is None else value * factor for value in values],
                    _STYLES[gpu % len(_STYLES)],
                    color=colour if known else "0.75",
                    # What has no value keeps its place in the legend, so that it is not looked for in vain.
                    label=named if known else f"{named}: n/a",
                    linewidth=1.6,
                    marker="o" if len(samples) < 3 else None,
                )
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
    taken = f"{len(samples)} samples in {sum(sample.interval_s for sample in samples):.0f} s"
    figure.suptitle(f"{devices}\n{taken}", fontsize=11, x=0.01, ha="left")
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
    """Return matplotlib's figure, which needs no window system; `MissingExtraError` where it is not installed."""
    return of_extra("matplotlib.figure", "a plot needs matplotlib", "plot").Figure


def bare(axis: Any) -> None:
    """Leave of a panel's frame what helps to read values."""
    axis.grid(axis="y", color="0.9")
    axis.spines[["top", "right"]].set_visible(False)
