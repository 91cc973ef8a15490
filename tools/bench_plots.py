"""Results files as pictures. Each function draws one figure and gives it; saving is the caller's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tools.bench_tables import OURS, ranking
from tools.learning_tables import (
    DIVERGED,
    PLACEBO,
    YARDSTICK,
    excess,
    excess_loss,
    groups,
    orders_of,
    subset_groups,
)
from tools.learning_tables import OURS as OURS_WINDOW

OURS_COLOUR, PLAIN, CONVERTED, MEMORY = "#d1495b", "#2e4057", "#66a182", "#b0b0b0"
_COLOURS = {"plain HDF5": PLAIN, "converted": CONVERTED, "memory": MEMORY}


def peers_figure(report: dict[str, Any], kind: str) -> Figure:
    """Draw rows a second of every peer on one file, the fastest on top, on a logarithmic scale."""
    found = [one for one in ranking(report, kind) if "error" not in one][::-1]
    figure = Figure(figsize=(8.5, 0.32 * len(found) + 1.4), layout="constrained")
    axes = figure.subplots()
    colours = [OURS_COLOUR if one["peer"].startswith(OURS) else _COLOURS[one["reads"]] for one in found]
    bars = axes.barh([one["peer"] for one in found], [one["rows_per_s"] for one in found], color=colours)
    axes.bar_label(bars, [f" {one['rows_per_s']:,}" for one in found], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(right=max(one["rows_per_s"] for one in found) * 6)
    axes.set_xlabel(f"shuffled rows a second, {report['row_nbytes']:,} bytes each, batches of {report['batch_rows']:,}")
    figure.suptitle(f"{kind}: red is h5stream, blue reads the same file, green its own format, grey memory", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", labelsize=8)
    return figure


FORMATS = {
    "naive DataLoader, 2 workers": "HDF5: DataLoader, a row at a time",
    "tuned h5py, 2 workers": "HDF5: DataLoader, batched reads",
    "WebDataset, 2 workers": "WebDataset",
    "Lance, 2 workers": "Lance",
    "litdata, 2 workers": "LitData",
    "MosaicML streaming (MDS), 2 workers": "MosaicML MDS",
    "Hugging Face datasets (Arrow), 2 workers": "Arrow (datasets)",
    "zarr with zarrs, block shuffle": "zarr 3 + zarrs",
    "NumPy memmap, __getitems__": "NumPy memmap, uncompressed",
    "h5stream, keep='never'": "HDF5: h5stream, decoding",
    OURS: "HDF5: h5stream, kept in memory",
}
"""What the README's picture shows of the peers, and what a reader calls them."""


def formats_figure(report: dict[str, Any]) -> Figure:
    """Draw rows a second out of each format, with what it takes to convert to it, on a logarithmic scale."""
    found = {one["peer"]: one for one in report["results"] if one["file"] == "gzip4_shuffle" and "error" not in one}
    ranked = sorted((found[peer] for peer in FORMATS if peer in found), key=lambda one: -one["rows_per_s"])
    figure = Figure(figsize=(8, 0.32 * len(ranked) + 0.7), layout="constrained", facecolor="white")
    axes = figure.subplots()
    colours = [OURS_COLOUR if one["peer"].startswith(OURS) else _COLOURS[one["reads"]] for one in ranked]
    rates = [one["rows_per_s"] for one in ranked]
    bars = axes.barh([FORMATS[one["peer"]] for one in ranked], rates, color=colours)
    converted = [f", converted in {one['convert_s']:.0f} s" if one["convert_s"] else "" for one in ranked]
    axes.bar_label(bars, [f" {rate:,}{said}" for rate, said in zip(rates, converted, strict=True)], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(left=100, right=max(rates) * 300)  # room for what is written beside bars, which the axis leaves out
    decades = 10.0 ** np.arange(2, math.ceil(math.log10(max(rates))) + 1)
    axes.set_xticks(decades)
    axes.minorticks_off()
    axes.spines["bottom"].set_bounds(decades[0], decades[-1])
    cores = report["machine"]["cpus"]
    axes.set_xlabel(f"shuffled rows per second, {report['row_nbytes']:,} bytes each, {cores} processors", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", labelsize=9)
    return figure


def sweep_figure(sweep: dict[str, Any]) -> Figure:
    """Draw ours over naive (bars) and over tuned (dots) for every cell; at the line ours would be no faster."""
    axes_names = list(dict.fromkeys(one["axis"] for one in sweep["results"]))
    figure = Figure(figsize=(12, 6.5), layout="constrained")
    panels = figure.subplots(2, -(-len(axes_names) // 2), sharey=True, squeeze=False).flat
    for axis, panel in zip(axes_names, panels, strict=False):  # the shorter first: panels go on behind it
        found = [one for one in sweep["results"] if one["axis"] == axis and "error" not in one]
        times = [one["ours"] / max(1, one["naive"]) for one in found]
        panel.bar(range(len(found)), times, color=[OURS_COLOUR if t < 1 else PLAIN for t in times])
        tuned = [(k, one["ours"] / max(1, one["tuned"])) for k, one in enumerate(found) if "tuned" in one]
        panel.plot([k for k, _ in tuned], [t for _, t in tuned], "o", color=CONVERTED, markersize=5)
        panel.set_xticks(range(len(found)), [str(one["value"]) for one in found], rotation=60, ha="right", fontsize=7)
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_yscale("log")
        panel.set_title(axis, fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in list(panels):  # what is left of the grid
        panel.set_axis_off()
    figure.supylabel("ours / other, rows a second", fontsize=9)
    figure.suptitle("bars: over the naive loader (red where ours is slower); dots: over the tuned one", fontsize=9)
    return figure


def growth_figure(growth: dict[str, Any]) -> Figure:
    """Draw what the number of rows costs: seconds of the first batches, and memory."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    panels = figure.subplots(1, 3)
    shown = (("first_batch_s", "first batch of a process, s"), ("again_s", "first batch of the next epoch, s"),
             ("peak_mb", "memory, MiB"))  # fmt: skip
    for panel, (figure_name, title) in zip(panels, shown, strict=True):
        for file in dict.fromkeys(one["file"] for one in growth["results"]):
            found = [one for one in growth["results"] if one["file"] == file and "error" not in one]
            panel.plot(
                [one["rows"] for one in found],
                [one[figure_name] * (1e6 / (1 << 20) if figure_name == "peak_mb" else 1) for one in found],
                "o-",
                markersize=4,
                label=file,
            )
        panel.set_xscale("log")
        panel.set_ylim(bottom=0)
        panel.set_xlabel("rows", fontsize=9)
        panel.set_title(title, fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def learning_figure(report: dict[str, Any]) -> Figure:
    """Draw the loss of each order as a multiple of the full shuffle's: every case a dot, one panel a sorting."""
    found = groups(report)
    sortings = list(dict.fromkeys(key[1] for key in found))
    orders = [order for order in orders_of(found) if order != YARDSTICK]
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    panels = figure.subplots(1, len(sortings), sharey=True, squeeze=False)[0]
    for panel, sorting in zip(panels, sortings, strict=True):
        for place, order in enumerate(orders):
            for key, cases in found.items():
                if key[1] == sorting and order in cases:
                    ratio = min(2 * DIVERGED, sum(cases[order]["loss"]) / sum(cases[YARDSTICK]["loss"]))
                    small = key[2] == "small"
                    panel.plot(place + (-0.12 if small else 0.12), ratio, "o" if small else "s", alpha=0.7,
                               color=PLAIN if small else OURS_COLOUR, markersize=5)  # fmt: skip
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_xticks(range(len(orders)), orders, rotation=50, ha="right", fontsize=8)
        panel.set_yscale("log")
        panel.set_title(f"file sorted by {sorting}" if sorting != "random" else "file in random order", fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test loss / full shuffle's", fontsize=9)
    figure.suptitle(
        "blue circles: many small chunks; red squares: few large chunks; at 200: training diverged", fontsize=9
    )
    return figure


def subset_figure(report: dict[str, Any]) -> Figure:
    """Draw what orders cost where an automatic window is smaller than the file, in per cent, with intervals."""
    found = subset_groups(report)
    figure = Figure(figsize=(9, 0.34 * len(found) + 1.4), layout="constrained")
    axes = figure.subplots()
    shown = {PLACEBO: (MEMORY, "v"), OURS_WINDOW: (OURS_COLOUR, "o"), "64 blocks": (PLAIN, "s")}
    for number, (order, (colour, marker)) in enumerate(shown.items()):
        for place, orders in enumerate(found.values()):
            mean, margin = excess(orders, order)
            axes.errorbar(mean, place + 0.22 * (number - 1), xerr=margin, color=colour, fmt=marker, markersize=4,
                          capsize=2, label=order if place == 0 else None)  # fmt: skip
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(found)), [", ".join(key) for key in found], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(
        "test loss above the full shuffle's, per cent, with the 95 % interval of pairs of seeds", fontsize=9
    )
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def score_figure(report: dict[str, Any]) -> Figure:
    """Draw the loss found over the score that was foretold."""
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.subplots()
    for (name, colour), marker in zip(
        {"label": OURS_COLOUR, "session": CONVERTED, "random": MEMORY}.items(), "osv", strict=True
    ):
        points = [point for point in excess_loss(report) if point[0] == name]
        axes.plot([p[1] for p in points], [p[2] for p in points], marker, color=colour, alpha=0.7,
                  label=f"sorted by {name}" if name != "random" else "random", markersize=5)  # fmt: skip
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("score of order.quality.forecast")
    axes.set_ylabel("test loss / full shuffle's")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def training_figure(report: dict[str, Any]) -> Figure:
    """Draw the loss of programs trained with their own reader and with ours: by steps above, by seconds below."""
    found = report["results"]
    figure = Figure(figsize=(12, 5), layout="constrained")
    for column, one in enumerate(found):
        for side, colour in (("theirs", PLAIN), ("ours", OURS_COLOUR)):
            losses = one[side]["losses"]
            steps = min(map(len, losses))
            width = max(1, steps // 40)
            every = [_smooth(run[:steps], width) for run in losses]
            for row in (0, 1):
                panel = figure.add_subplot(2, len(found), row * len(found) + column + 1) if side == "theirs" else None
                panel = figure.axes[2 * column + row] if panel is None else panel
                scale = one[side]["epoch_s"] * report["epochs"] / steps if row else 1
                for run in every:
                    x = [(k + width / 2) * scale for k in range(len(run))]
                    panel.plot(x, run, color=colour, linewidth=0.9, alpha=0.7)
                panel.set_yscale("log")
                panel.set_xlabel("seconds" if row else "steps", fontsize=8)
                panel.tick_params(labelsize=7)
                panel.spines[["top", "right"]].set_visible(False)
        figure.axes[2 * column].set_title(f"{one['program']} ({one['samples']})", fontsize=9)
    figure.axes[0].set_ylabel("loss", fontsize=8)
    figure.axes[1].set_ylabel("loss", fontsize=8)
    figure.suptitle(
        f"blue: their reader with 2 workers, red: h5stream with 2 threads; {report['seeds']} seeds, "
        f"{report['epochs']} epochs",
        fontsize=9,
    )
    return figure


def _smooth(values: list[float], width: int) -> list[float]:
    """Give the mean of each stretch of so many neighbours."""
    return [sum(values[k : k + width]) / width for k in range(len(values) - width + 1)]
