"""The curve of `h5stream tune` as a picture; matplotlib comes with the extra ``plot``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from h5stream.advice.tune import Attempt, Tuning
from h5stream.monitor.plot import BLUE, RED, bare, figure_of_matplotlib

_CURVE, _BEST, _DEFAULT = BLUE, RED, "#999999"


def save_tune_plot(tuning: Tuning, path: str | Path) -> None:
    """Draw rows a second over threads and over windows into an image file; needs matplotlib."""
    figure = figure_of_matplotlib()(figsize=(10, 4.2), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    ran = [attempt for attempt in tuning.attempts if not attempt.refused]
    threads = [a for a in ran if a.knob in ("default", "threads")]
    windows = [a for a in ran if a.threads == tuning.best.threads and not a.window_device]
    _panel(left, tuning, sorted(threads, key=lambda a: a.threads), lambda a: a.threads, "reader threads")
    left.set_title(f"window of {tuning.default.window_rows:,} rows", fontsize=10)
    _panel(right, tuning, sorted(windows, key=lambda a: a.window_rows), lambda a: a.window_rows, "window (rows)")
    right.set_title(f"{tuning.best.threads} thread(s)", fontsize=10)
    left.set_ylabel("million rows/s")
    left.set_ylim(0, 1.15 * max(a.rows_per_s for a in ran) / 1e6)
    # Either mark may stand in one panel only; the legend has both.
    marks = {name: mark for axis in (left, right) for mark, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    left.legend(marks.values(), marks.keys(), loc="lower right", frameon=False, fontsize=9)
    name = Path(tuning.profile.dataset).name
    batch = tuning.profile.loader["batch_size"]
    figure.suptitle(f"{name}, batches of {batch:,} rows: {tuning.answer}", fontsize=11, x=0.01, ha="left")
    figure.savefig(path)


def _panel(axis: Any, tuning: Tuning, attempts: Sequence[Attempt], place: Any, label: str) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xlabel(label)
    bare(axis)
    places = [place(a) for a in attempts]
    axis.plot(places, [a.rows_per_s / 1e6 for a in attempts], "o-", color=_CURVE, linewidth=1.6)
    axis.set_xticks(places, [_short(value) for value in places])
    axis.minorticks_off()
    for marked, colour, marker, name in (
        (tuning.default, _DEFAULT, "s", "default"),
        (tuning.best, _BEST, "*", "chosen"),
    ):
        if marked in attempts:
            axis.plot(
                [place(marked)],
                [marked.rows_per_s / 1e6],
                marker,
                color=colour,
                markersize=13 if marker == "*" else 9,
                label=name,
                linestyle="none",
                zorder=3,
            )


def _short(value: int) -> str:
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return str(value)
