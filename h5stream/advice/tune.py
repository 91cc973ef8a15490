"""`tune`: a measured search over threads and windows within the budget; the batch size stays.

The search proposes a setting, and a duel decides: the fastest run may only have had a quiet moment. So the setting
runs again in turns with the loader's own, and is recommended only if `compare` finds it faster beyond the differences
of runs of one setting. Keeping the loader's own setting is a valid result.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from h5stream.advice import Suggestion, above_zero
from h5stream.advice.diagnose import time_loop
from h5stream.base import limits
from h5stream.base.texts import counted
from h5stream.engine.footprint import WindowRows
from h5stream.engine.statistics import LoaderStatistics
from h5stream.errors import BudgetError, WeakShuffleWarning
from h5stream.loader.loader import H5StreamLoader
from h5stream.loader.settings import DataSource
from h5stream.monitor.export import BLUE, RED, bare, figure_of_matplotlib
from h5stream.order.blocks import longest_block
from h5stream.order.quality import FEW_BLOCKS, is_weak
from h5stream.profiles import Profile
from h5stream.storage.file.catalogue import real_path
from h5stream.storage.layout.request import Fields
from h5stream.storage.open.extents import SampleKind

TRIAL_S = 1.5  # seconds of a trial after its first batch: some windows of an ordinary file
ROUNDS = 2  # runs of each setting, in turns; the best counts, since other load only ever slows a run down
AS_FAST = 0.97  # share of the best rate above which fewer threads are as good: two runs differ by as much
NOISY = 0.15  # share by which runs of one setting may differ before the result counts as uncertain
WORTH_MIXING = 0.90  # share of the best rate above which a larger window is preferred, as it mixes better
READING = 0.5  # share of the readers' time spent reading above which more threads than processors are tried
FACTORS = (1 / 8, 1 / 4, 1 / 2, 2, 4)  # factors of the loader's own window to try

TURNS = 5  # runs of a proposed and the current setting, in turns: the fewest that rule out chance
LEAST_GAIN = 0.03  # minimum speedup of a setting, even if its runs hardly differ
# The most of the 25 pairs of runs that the slower setting may win (the rank-sum test of Mann and Whitney): of the 252
# orders that are equally likely for equal settings, only two have as few.
MOST_UPSETS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningRun:
    """A setting and its measurements."""

    knob: str  # what was varied: ``"default"``, ``"threads"`` or ``"window"``
    threads: int
    window_rows: int  # the setting
    blocks: int
    all_blocks: int = (
        0  # blocks, all_blocks: in a window, and of the data. A low number (under a hundred of many) mixes little
    )
    rows_per_s: float = 0.0  # rows per second; 0 if it was refused
    first_batch_s: float | None = None  # seconds to the first batch
    refused: str = ""  # why it was not run; empty if it was
    statistics: LoaderStatistics | None = None  # the loader's own
    left: int = 0  # the most runs that may follow

    @property
    def setting(self) -> tuple[int, int]:
        """The setting, which identifies runs of the same kind."""
        return self.threads, self.window_rows

    def __str__(self) -> str:
        return f"num_workers={self.threads}, window={counted(self.window_rows, 'row')}"


Measure = Callable[[str, int, WindowRows], TuningRun]  # runs a setting, given the varied knob, threads, and window


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning(Suggestion):
    """The fastest settings, and all that were tried.

    Attributes
    ----------
    default, best : TuningRun
        The loader's own setting, and the recommended one.
    attempts : tuple of TuningRun
        The best run of each setting, in the order in which they were first tried. Each has `knob` (what was varied:
        ``"default"``, ``"threads"`` or ``"window"``), `threads`, `window_rows`, `rows_per_s` (0 if it was refused),
        `first_batch_s` and `refused` (why it was not run, else empty).
    gain, spread : float
        The speedup of `best` over `default`, both measured again in turns, 1.0 if nothing was faster beyond the noise;
        and the share by which two runs of one setting differed.
    profile : Profile
        The profile that ``h5stream tune --out`` writes, for `H5StreamLoader.from_profile`.
    """

    default: TuningRun
    best: TuningRun
    attempts: tuple[TuningRun, ...]
    gain: float
    spread: float
    profile: Profile


def tune(
    source: DataSource,
    *,
    fields: Fields = None,
    samples: SampleKind | None = None,
    batch_size: int = 8192,
    memory_budget: int | None = None,
    device: torch.device | str | None = None,
    seconds: float = TRIAL_S,
    progress: Callable[[TuningRun], None] = lambda attempt: None,
) -> Tuning:
    """Measure shuffled epochs of a file with different numbers of threads and different windows.

    Batch size and memory budget stay as given, and for a given window so does the order of the rows. A larger window
    mixes better, so it is preferred if it costs less than a tenth of the speed.

    Parameters
    ----------
    source, fields, samples
        As for `H5StreamLoader`.
    batch_size : int, optional
        Rows of a batch.
    memory_budget : int, optional
        Bytes that the loader may take; settings that do not fit are left out.
    device : torch.device or str, optional
        The device that batches are brought to.
    seconds : float, optional
        Time of each trial; there are about thirty.
    progress : callable, optional
        Gets every attempt as soon as it is measured.

    Returns
    -------
    Tuning
        Every attempt with its rows per second, the best one, and its settings as a profile.

    Examples
    --------
    >>> import h5py, os, tempfile, numpy as np
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     x = f.create_dataset("x", data=np.zeros((20000, 4), "f4"), chunks=(100, 4), compression="gzip")
    >>> found = tune(path, batch_size=500, seconds=0.05)
    >>> found.best.rows_per_s > 0, found.profile.loader["batch_size"]
    (True, 500)
    """
    above_zero(seconds=seconds)
    options = {"fields": fields, "samples": samples, "memory_budget": memory_budget, "device": device}
    bench, cpus = Bench(source, batch_size, options, seconds, progress), limits.cpus()
    bench.left = 2 + ROUNDS * (1 + len(thread_counts(cpus)) + len(FACTORS)) + 4 * TURNS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakShuffleWarning)  # a caveat reports it once
        bench.measure("default", 0, "auto")  # only the first run has a cold page cache and cold kernels
        bench.runs.clear()
        default = best = bench.measure("default", 0, "auto")
        bench.left -= ROUNDS * (len(FACTORS) - len(window_sizes(default, rows=bench.rows, batch_size=batch_size)))
        fastest = search(bench.measure, default, cpus=cpus, rows=bench.rows, batch_size=batch_size)
        bench.left, gain, spreads, notes = 4 * TURNS, 1.0, [0.0], list[str]()
        # A larger window may have been proposed for its mixing only; its threads may still be an improvement.
        own_window = replace(fastest, window_rows=default.window_rows, blocks=default.blocks)
        for proposed in {one.setting: one for one in (fastest, own_window) if one.setting != default.setting}.values():
            settings = [(one.knob, *one.setting) for one in (proposed, default)]
            runs = in_turns(functools.partial(bench.measure, keep=False), settings, TURNS)
            proposed_rates, default_rates = ([run.rows_per_s for run in runs_of] for runs_of in runs)
            ratios = [new / max(1e-9, old) for new, old in zip(proposed_rates, default_rates, strict=True)]
            # The search's table may suggest otherwise.
            notes.append(
                f"{TURNS} runs each in turns decide, not the search's best runs: {proposed} ran at "
                f"{min(ratios):.2f} to {max(ratios):.2f} times the rate of {default}"
            )
            gain, spread = compare(proposed_rates, default_rates)
            spreads.append(spread)
            if gain > 1.0:
                best = proposed
                break
    return _tuning(bench, default, best, gain, max(spreads), notes)


def search(measure: Measure, default: TuningRun, *, cpus: int, rows: int, batch_size: int) -> TuningRun:
    """Vary the threads, then the window: each has little influence on the best value of the other."""

    def fast(tried: list[TuningRun], share: float) -> list[TuningRun]:
        least = share * max(map(_rate, tried))
        return [attempt for attempt in tried if attempt.rows_per_s >= least]

    window = default.window_rows
    counts = [n for n in thread_counts(cpus) if n != default.threads]
    # Compare the same number of runs of each: the best of more runs is better by chance.
    settings = [("default", default.threads, window), *(("threads", n, window) for n in counts)]
    tried = [max(runs, key=_rate) for runs in in_turns(measure, settings, ROUNDS)]
    widest = max(tried, key=lambda attempt: attempt.threads)
    while widest.statistics and widest.statistics.read_busy > READING and widest.threads < 8 * cpus:
        widest = measure("threads", 2 * widest.threads, window)
        tried.append(widest)
    chosen = min(fast(tried, AS_FAST), key=lambda attempt: attempt.threads)
    sizes = window_sizes(default, rows=rows, batch_size=batch_size)
    settings = [(chosen.knob, chosen.threads, window), *(("window", chosen.threads, size) for size in sizes)]
    windows = [max(runs, key=_rate) for runs in in_turns(measure, settings, ROUNDS)]
    return max(fast(windows, WORTH_MIXING), key=lambda attempt: attempt.window_rows)


def in_turns(measure: Measure, settings: Sequence[tuple[str, int, int]], times: int) -> list[list[TuningRun]]:
    """Run settings in turns, alternating their order, and return the runs of each."""
    runs: list[list[TuningRun]] = [[] for _ in settings]
    for turn in range(times):
        for setting, its in list(zip(settings, runs, strict=True))[:: 1 if turn % 2 else -1]:
            its.append(measure(*setting))
    return runs


def _rate(attempt: TuningRun) -> float:
    return attempt.rows_per_s


def thread_counts(cpus: int) -> tuple[int, ...]:
    """Return the numbers of threads to try: powers of two up to the processors, and the number of processors."""
    return tuple(sorted({1 << k for k in range(cpus.bit_length())} | {cpus}))


def window_sizes(default: TuningRun, *, rows: int, batch_size: int) -> tuple[int, ...]:
    """Return the windows to try besides the default: an eighth to four times it, in whole blocks."""
    block_rows = max(1, default.window_rows // max(1, default.blocks))
    least = max(FEW_BLOCKS * block_rows, 4 * batch_size)
    wanted = {min(rows, int(default.window_rows * factor)) for factor in FACTORS}
    return tuple(sorted(size for size in wanted if size >= least and size != default.window_rows))


def compare(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Compare the rates of two settings that ran in turns; return the speedup of the first, and the spread of runs.

    The speedup is 1.0 unless it exceeds the noise: the differences between runs of one setting, and chance.
    """
    upsets = sum(other >= one for one in first for other in second)
    gain, spread = median(first) / max(1e-9, median(second)), max(spread_of(first), spread_of(second))
    is_faster = gain > 1.0 + max(LEAST_GAIN, spread) and upsets <= MOST_UPSETS
    return (gain if is_faster else 1.0), spread


def spread_of(runs: Sequence[float]) -> float:
    """Return the typical share by which two runs of one setting differ: the median over all pairs."""
    pairs = [1 - min(a, b) / max(a, b) for a, b in itertools.combinations(runs, 2) if max(a, b) > 0]
    return median(pairs) if pairs else 0.0


class Bench:
    """Runs settings on one file, and records all runs of the search."""

    def __init__(
        self,
        source: DataSource,
        batch_size: int,
        options: dict[str, Any],
        seconds: float,
        progress: Callable[[TuningRun], None],
    ) -> None:
        self.source, self.batch_size, self.options = source, batch_size, options
        self._seconds, self._progress = seconds, progress
        self.left = self.rows = self.row_nbytes = 0
        self.runs: dict[tuple[int, int], list[TuningRun]] = {}

    def measure(self, knob: str, threads: int, window: WindowRows, keep: bool = True) -> TuningRun:
        """Run a setting; 0 threads stand for the loader's own choice."""
        try:
            attempt = self.run(knob, threads, window)
        except BudgetError as error:
            refused = f"needs {counted(error.needed, 'byte')}"
            attempt = TuningRun(knob=knob, threads=threads, window_rows=int(window), blocks=0, refused=refused)
        if keep:
            self.runs.setdefault(attempt.setting, []).append(attempt)
        self.left = max(0, self.left - 1)
        self._progress(replace(attempt, left=self.left))
        return attempt

    def run(self, knob: str, threads: int, window: WindowRows) -> TuningRun:
        """Run a setting that fits into memory."""
        options = self.options | {"num_workers": threads or None, "window": window}
        with H5StreamLoader(self.source, self.batch_size, shuffle=True, seed=0, **options) as loader:
            layout, rows = loader.dataset.layout, loader.window_size.window_rows
            self.options["memory_budget"] = loader.memory_budget
            self.rows, self.row_nbytes = len(loader.dataset), layout.row_nbytes
            trial, block_rows = time_loop(loader, None, self._seconds), longest_block(layout)
            return TuningRun(
                knob=knob,
                threads=loader.num_workers,
                window_rows=rows,
                blocks=-(-rows // block_rows),
                all_blocks=-(-self.rows // block_rows),
                rows_per_s=trial.rows_per_s,
                first_batch_s=trial.first_s,
                statistics=trial.statistics,
            )


def _tuning(bench: Bench, default: TuningRun, best: TuningRun, gain: float, spread: float, notes: list[str]) -> Tuning:
    every = {setting: max(runs, key=_rate) for setting, runs in bench.runs.items()}
    default, best = (every.get(one.setting, one) for one in (default, best))
    answer = f"{best}: {gain:.2f} times the rate of the loader's own setting"
    if best.setting == default.setting:
        answer = f"no setting is faster than the loader's own beyond the noise; keep {best}"
    names = bench.options["fields"]
    if isinstance(names, (list, tuple)):
        names = tuple(names) if all(isinstance(name, str) for name in names) else None
    spreads = [spread_of([run.rows_per_s for run in runs]) for runs in bench.runs.values() if len(runs) > 1]
    spread = max(spread, median(spreads or [0.0]))
    settings = {"shuffle": True, "batch_size": bench.batch_size, "memory_budget": bench.options["memory_budget"]}
    rates = {"rows_per_s": round(best.rows_per_s, 1), "gain": round(gain, 3), "spread": round(spread, 3)}
    return Tuning(
        title="Tuning",
        answer=answer,
        arithmetic=tuple(
            f"{one.knob}: {counted(one.threads, 'thread')}, window {counted(one.window_rows, 'row')}: "
            + (one.refused or f"{one.rows_per_s:,.0f} rows/s")
            for one in every.values()
        ),
        caveats=(*notes, *_caveats(default, best, spread)),
        default=default,
        best=best,
        attempts=tuple(every.values()),
        gain=gain,
        spread=spread,
        profile=Profile(
            dataset=real_path(str(bench.source)) if isinstance(bench.source, (str, Path)) else "",
            fields=names if isinstance(names, (str, tuple)) else None,  # anything but names is up to the program
            loader=settings | {"num_workers": best.threads, "window": best.window_rows},
            measured=rates | {"row_bytes": bench.row_nbytes, "rows": bench.rows, "cpus": limits.cpus()},
        ),
    )


def _caveats(default: TuningRun, best: TuningRun, spread: float) -> Iterator[str]:
    if spread:
        note = f"two runs of one setting differed by {spread:.0%} here; what is faster by less is not recommended"
        yield note + ("; tune again when the machine is quiet" if spread > NOISY else "")
    yield "prefetch_factor has no effect on the host, where a window is read ahead: not searched"
    if (ran := best.statistics) is not None:
        work_s = ran.read_s + ran.decode_s + ran.scatter_s + ran.h5py_s + ran.plan_s
        share = ran.read_s / work_s if work_s else 0.0
        yield f"staging: reading is {share:.0%} of the readers' work, the most that it could save"
    if best.window_rows < default.window_rows:
        mixed = f"{counted(best.blocks, 'block')} are mixed instead of {default.blocks:,}"
        yield f"the window is smaller than the default's: {mixed}; pass window= to keep it"
    if is_weak(best.blocks, best.all_blocks):
        window_text = f"{best.blocks:,} of {best.all_blocks:,} blocks"
        yield f"the shuffle is weak: a window holds {window_text}; see `h5stream inspect`"


def save_tune_plot(tuning: Tuning, path: str | Path) -> None:
    """Plot rows per second over threads and over windows into an image file; needs matplotlib."""
    figure = figure_of_matplotlib()(figsize=(10, 4.2), dpi=120, layout="constrained")
    axes, default, best = figure.subplots(1, 2, sharey=True), tuning.default, tuning.best
    ran = [attempt for attempt in tuning.attempts if not attempt.refused]
    panels = (
        ("reader threads", f"window of {counted(default.window_rows, 'row')}", [a for a in ran if a.knob != "window"]),
        ("window (rows)", counted(best.threads, "thread"), [a for a in ran if a.threads == best.threads]),
    )
    for place, (axis, (label, title, shown)) in enumerate(zip(axes, panels, strict=True)):
        axis.set_xscale("log", base=2)
        axis.set_xlabel(label)
        axis.set_title(title, fontsize=10)
        bare(axis)
        places, rates = zip(*sorted((one.setting[place], one.rows_per_s / 1e6) for one in shown), strict=True)
        axis.plot(places, rates, "o-", color=BLUE, linewidth=1.6)
        scales = ((1_000_000, "M"), (1_000, "k"), (1, ""))
        axis.set_xticks(places, [next(f"{n / by:.3g}{unit}" for by, unit in scales if n >= by) for n in places])
        axis.minorticks_off()
        for one, name, marker, colour, size in (
            (default, "default", "s", "#999999", 9),
            (best, "chosen", "*", RED, 13),
        ):
            if one in shown:
                at = one.setting[place], one.rows_per_s / 1e6
                axis.scatter(*at, s=size**2, c=colour, marker=marker, label=name, zorder=3)
        axis.legend(loc="lower right", frameon=False, fontsize=9)
    axes[0].set_ylabel("million rows/s")
    axes[0].set_ylim(0, 1.15 * max(a.rows_per_s for a in ran) / 1e6)
    name, batch = Path(tuning.profile.dataset).name, tuning.profile.loader["batch_size"]
    figure.suptitle(f"{name}, batches of {counted(int(batch), 'row')}: {tuning.answer}", fontsize=11, x=0.01, ha="left")
    figure.savefig(path)
