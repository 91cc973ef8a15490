"""The monitor on a terminal, drawn with rich: what is now, its course, mean and most; and as a picture."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from h5stream.errors import OptionError
from h5stream.monitor.export import of_extra
from h5stream.monitor.sample import (
    FIGURES,
    GpuSample,
    Spread,
    SystemSample,
    amount,
    held_back_by,
    value_at,
)
from h5stream.units import NA, counted, percent, told

_BARS = "▁▂▃▄▅▆▇█"
_MIN_COURSE = 10  # columns
_OTHER_COLUMNS = 72  # what the table needs beside the course


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
    parts.append(Text(f"{last.elapsed_s:.0f} s, {len(samples)} samples; {taken}", style="dim"))
    if note:
        parts.append(Text(note, style="yellow"))
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim", width=width)


def _table(
    samples: Sequence[SystemSample], width: int, of: str, heading: str, state: str = "", gpu: int = 0
) -> RenderableType:
    """Return the figures whose paths begin with one of these words, below a heading."""
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
    clock = told(None if gpu.sm_clock_hz is None else gpu.sm_clock_hz / 1e6, "{:.0f} MHz")
    reasons = held_back_by(gpu)
    held = NA if reasons is None else ", ".join(reasons) or "nothing"
    return f"{told(gpu.temperature_c, '{:.0f} °C')}   SM clock {clock}   held back by: {held}"


# --- The course of the samples as a picture; matplotlib comes with the extra ``plot`` -------------


# Okabe and Ito's colours, which stay apart for colour-blind readers and in print.
GREEN, SKY, RED, ORANGE, PINK, BLUE = "#009E73", "#56B4E9", "#D55E00", "#E69F00", "#CC79A7", "#0072B2"
_STYLES = ("-", "--", ":", "-.")  # one for each GPU
# Each panel: the axis, its height, what a value is multiplied by, and the curves: label, colour, where values are.
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
    """Draw GPU, SM, CPU, VRAM, RAM, data wait and read rates over time into an image file; samples are oldest first."""
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
            known, named = any(value is not None for value in values), f"{name} {gpu}" if gpus > 1 else name
            axes[panel].plot(
                seconds,
                [math.nan if value is None else value * _PANELS[panel][2] for value in values],
                _STYLES[gpu % len(_STYLES)],
                color=colour if known else "0.75",
                # What has no value keeps its place in the legend, so that it is not looked for in vain.
                label=named if known else f"{named}: n/a",
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
    taken = f"{len(samples)} samples in {sum(sample.interval_s for sample in samples):.0f} s"
    figure.suptitle(f"{devices}\n{taken}", fontsize=11, x=0.01, ha="left")
    figure.savefig(path)


def check_plot_path(path: str | Path) -> None:
    """Say now, by raising, what `save_plot` would stumble over at the end of an hour."""
    formats = figure_of_matplotlib()().canvas.get_supported_filetypes()
    ending = Path(path).suffix.removeprefix(".").lower()
    if ending not in formats:
        raise OptionError(f"plot {str(path)!r}: must end in one of .{', .'.join(sorted(formats))}")


def figure_of_matplotlib() -> Any:
    """Return matplotlib's figure, which needs no window system; `MissingExtraError` where it is not installed."""
    return of_extra("matplotlib.figure", "a plot needs matplotlib", "plot").Figure


def bare(axis: Any) -> None:
    """Leave of a panel's frame what helps to read values."""
    axis.grid(axis="y", color="0.9")
    axis.spines[["top", "right"]].set_visible(False)
