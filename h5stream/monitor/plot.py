"""The course of the samples as a picture; matplotlib comes with the extra ``plot``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from h5stream.errors import MissingExtraError, OptionError
from h5stream.monitor.sample import SystemSample

# Okabe and Ito's colours, which stay apart for colour-blind readers and in print.
_COLOURS = {
    "GPU": "#009E73",
    "SM": "#56B4E9",
    "CPU": "#D55E00",
    "process": "#E69F00",
    "VRAM": "#009E73",
    "RAM": "#D55E00",
    "data wait": "#CC79A7",
    "PCIe in": "#0072B2",
    "disk": "#E69F00",
}
_STYLES = ("-", "--", ":", "-.")  # one for each GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    kind: str
    label: str
    style: str
    values: list[float]

    @property
    def known(self) -> bool:
        return any(math.isfinite(value) for value in self.values)


def save_plot(samples: Sequence[SystemSample], path: str | Path) -> None:
    """Draw GPU, SM, CPU, VRAM, RAM, data wait and read rates over time into an image file.

    Parameters
    ----------
    samples : sequence of SystemSample
        Oldest first, at least one.
    path : path
        The image; its ending decides the format.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    OptionError
        If there are no samples.
    """
    figure_class = _figure_class()
    if not samples:
        raise OptionError("there are no samples to plot: the monitor ran for less than a tenth of a second")
    figure = figure_class(figsize=(10, 8.5), dpi=120, layout="constrained")
    axes = figure.subplots(4, 1, sharex=True, height_ratios=[3, 2, 1.3, 1.3])
    times = [sample.elapsed_s for sample in samples]
    _panel(axes[0], times, _busy(samples), "busy (%)", samples, percent=True)
    _panel(axes[1], times, _memory(samples), "memory (%)", samples, percent=True)
    _panel(axes[2], times, _waits(samples), "data wait (%)", samples, percent=True)
    _panel(axes[3], times, _reads(samples), "read (GB/s)", samples, percent=False)
    axes[3].set_xlabel("seconds since the monitor began")
    figure.suptitle(_title(samples), fontsize=11, x=0.01, ha="left")
    figure.savefig(path)


def check_plot_path(path: str | Path) -> None:
    """Say now, by raising, what `save_plot` would stumble over at the end of an hour.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    OptionError
        If there is no such folder, or the ending is no format that matplotlib writes.
    """
    formats = _figure_class()().canvas.get_supported_filetypes()
    ending = Path(path).suffix.removeprefix(".").lower()
    if ending not in formats:
        raise OptionError(f"plot {str(path)!r}: must end in one of .{', .'.join(sorted(formats))}")
    if not Path(path).parent.is_dir():
        raise OptionError(f"plot {str(path)!r}: there is no folder {str(Path(path).parent)!r}")


def _figure_class() -> Any:
    """Give matplotlib's figure, which needs no window system."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "a plot needs matplotlib, which is not installed: pip install 'h5stream[plot]'"
        ) from error
    return Figure


def _busy(samples: Sequence[SystemSample]) -> list[_Curve]:
    return [
        *_per_gpu(samples, "GPU", lambda gpu: gpu.utilization_ratio, 100),
        *_per_gpu(samples, "SM", lambda gpu: gpu.sm_activity_ratio, 100),
        _curve(samples, "CPU", "CPU (machine)", lambda s: s.host.cpu_ratio, 100),
        _curve(samples, "process", "CPU (process)", lambda s: s.process.cpu_ratio if s.process else None, 100),
    ]


def _memory(samples: Sequence[SystemSample]) -> list[_Curve]:
    ram = _curve(samples, "RAM", "RAM", lambda s: s.host.ram_ratio, 100)
    return [*_per_gpu(samples, "VRAM", lambda gpu: gpu.memory_ratio, 100), ram]


def _waits(samples: Sequence[SystemSample]) -> list[_Curve]:
    return [_curve(samples, "data wait", "data wait", lambda s: s.data_wait_ratio, 100)]


def _reads(samples: Sequence[SystemSample]) -> list[_Curve]:
    disk = _curve(samples, "disk", "disk", lambda s: s.host.disk_read_bytes_per_s, 1e-9)
    return [*_per_gpu(samples, "PCIe in", lambda gpu: gpu.pcie_receive_bytes_per_s, 1e-9), disk]


def _curve(
    samples: Sequence[SystemSample],
    kind: str,
    label: str,
    get: Callable[[SystemSample], float | None],
    factor: float,
    style: str = "-",
) -> _Curve:
    raw = [get(sample) for sample in samples]
    values = [math.nan if value is None else value * factor for value in raw]
    return _Curve(kind=kind, label=label, style=style, values=values)


def _per_gpu(
    samples: Sequence[SystemSample], kind: str, get: Callable[[Any], float | None], factor: float
) -> list[_Curve]:
    count = max(len(sample.gpus) for sample in samples)

    def at(position: int) -> Callable[[SystemSample], float | None]:
        return lambda sample: get(gpu) if (gpu := sample.gpu(position)) else None

    return [
        _curve(samples, kind, f"{kind} {i}" if count > 1 else kind, at(i), factor, _STYLES[i % len(_STYLES)])
        for i in range(max(count, 1))
    ]


def _panel(
    axis: Any,
    times: Sequence[float],
    curves: Sequence[_Curve],
    label: str,
    samples: Sequence[SystemSample],
    *,
    percent: bool,
) -> None:
    axis.set_ylabel(label)
    axis.grid(axis="y", color="0.9")
    axis.spines[["top", "right"]].set_visible(False)
    marker = "o" if len(times) < 3 else None
    for curve in curves:
        # What has no value keeps its place in the legend, so that it is not looked for in vain.
        shown = curve.label if curve.known else f"{curve.label}: n/a"
        axis.plot(
            times,
            curve.values,
            curve.style,
            color=_COLOURS[curve.kind] if curve.known else "0.75",
            label=shown,
            linewidth=1.6,
            marker=marker,
        )
    if not any(curve.known for curve in curves):
        axis.text(0.5, 0.5, "n/a", transform=axis.transAxes, ha="center", va="center", color="0.6")
    axis.set_ylim(0, 102 if percent else None)
    axis.set_xlim(times[0], max(times[-1], times[0] + 1e-3))
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def _title(samples: Sequence[SystemSample]) -> str:
    last = samples[-1]
    counts = Counter(gpu.name for gpu in last.gpus)
    names = [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]
    devices = ", ".join(names) or f"no GPU ({last.gpu_reason})"
    seconds = sum(sample.interval_s for sample in samples)
    return f"{devices}\n{len(samples)} samples in {seconds:.0f} s"
