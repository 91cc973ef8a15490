"""Results files as pictures. Each function draws one figure and gives it; saving is the caller's."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from tools.bench_tables import OURS, ranking
from tools.learning_tables import DIVERGED, YARDSTICK, excess_loss, groups

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


def sweep_figure(sweep: dict[str, Any]) -> Figure:
    """Draw ours over naive for every cell, one panel an axis; the line at 1 is where ours would be no faster."""
    axes_names = list(dict.fromkeys(one["axis"] for one in sweep["results"]))
    figure = Figure(figsize=(11, 6), layout="constrained")
    panels = figure.subplots(2, -(-len(axes_names) // 2), sharey=True, squeeze=False).flat
    for panel, axis in zip(panels, axes_names, strict=False):
        found = [one for one in sweep["results"] if one["axis"] == axis and "error" not in one]
        times = [one["ours"] / max(1, one["naive"]) for one in found]
        panel.bar(range(len(found)), times, color=[OURS_COLOUR if t < 1 else PLAIN for t in times])
        panel.set_xticks(range(len(found)), [str(one["value"]) for one in found], rotation=60, fontsize=7)
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_yscale("log")
        panel.set_title(axis, fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    figure.supylabel("ours / naive, rows a second", fontsize=9)
    return figure


def learning_figure(report: dict[str, Any]) -> Figure:
    """Draw the loss of each order as a multiple of the full shuffle's: every case a dot, one panel a sorting."""
    found = groups(report)
    sortings = list(dict.fromkeys(key[1] for key in found))
    orders = [order for order in next(iter(found.values())) if order != YARDSTICK]
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    panels = figure.subplots(1, len(sortings), sharey=True, squeeze=False)[0]
    for panel, sorting in zip(panels, sortings, strict=True):
        for place, order in enumerate(orders):
            for key, cases in found.items():
                if key[1] == sorting:
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
    axes.set_xlabel("score of order.quality")
    axes.set_ylabel("test loss / full shuffle's")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
