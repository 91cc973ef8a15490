"""The course of the samples as a picture; matplotlib comes with the extra ``plot``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from h5stream.errors import MissingExtraError, OptionError
from h5stream.monitor.figures import value_at
from h5stream.monitor.sample import SystemSample

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
