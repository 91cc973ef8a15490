"""`tune`: a measured search over threads, window and where the window lies, within the budget; the batch size stays."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from h5stream import allowance
from h5stream.advice.rules import above_zero
from h5stream.advice.suggestion import Suggestion
from h5stream.advice.trials import time_loop
from h5stream.advice.tune_device import is_faster, on_device_said
from h5stream.engine.statistics import LoaderStatistics
from h5stream.errors import BudgetError, DeviceMemoryError, OptionError
from h5stream.loader import H5StreamLoader
from h5stream.profiles import Profile

TRIAL_S = 1.5
"""Seconds of a trial after its first batch: some windows of an ordinary file."""

ROUNDS = 2
"""How often each setting runs, in turns; the better run counts, since a neighbour only ever slows one down."""

PAIRS = 3
"""How often the chosen setting and the default one run in turns at the end; a choice that loses is dropped."""

AS_FAST = 0.97
"""Share of the best rate from which fewer threads are as good: two runs differ by as much."""

NOISY = 0.15
"""Share by which runs of one setting may differ before the result is called uncertain."""

WORTH_MIXING = 0.90
"""Share of the best rate that a larger window may cost: it mixes better, and the epoch is not longer for long."""

LEAST_BLOCKS = 64
"""Blocks of the smallest window that is tried; what matters for learning is the number of blocks in it."""

READING = 0.5
"""Share of the readers' time spent reading from which more threads than processors are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One setting and what was measured with it.

    Attributes
    ----------
    knob : str
        What was varied: ``"default"``, ``"threads"``, ``"window"`` or ``"device"`` (where the window lies).
    threads, window_rows : int
        The setting.
    window_device : str
        The device that the window lies on; empty for the host.
    blocks : int
        Blocks in a window. Low (under some hundred): the shuffle mixes little.
    rows_per_s : float
        Rows a second; 0 where it was refused.
    first_batch_s : float or None
        Seconds to the first batch.
    refused : str
        Why it was not run; empty if it was.
    statistics : LoaderStatistics or None
        The loader's own.
    """

    knob: str
    threads: int
    window_rows: int
    blocks: int
    rows_per_s: float = 0.0
    first_batch_s: float | None = None
    refused: str = ""
    statistics: LoaderStatistics | None = None
    window_device: str = ""

    @property
    def setting(self) -> tuple[int, int, str]:
        """What tells it from others."""
        return self.threads, self.window_rows, self.window_device


Measure = Callable[[str, int, int | str], Attempt]
"""Runs a setting: what is varied, threads, window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning(Suggestion):
    """The settings that were fastest, and all that were tried.

    Attributes
    ----------
    default, best : Attempt
        The loader's own choice, and ours.
    attempts : tuple of Attempt
        The best run of each setting, in the order in which they were first tried.
    gain : float
        How many times faster `best` is than `default`, both measured again at the end.
    profile : Profile
        What to write with `h5stream.profiles.write_profile`.
    """

    default: Attempt
    best: Attempt
    attempts: tuple[Attempt, ...]
    gain: float
    profile: Profile


def tune(
    source: Any,
    *,
    fields: Any = None,
    batch_size: int = 8192,
    memory_budget: int | None = None,
    device: Any = None,
    seconds: float = TRIAL_S,
    progress: Callable[[Attempt], None] = lambda attempt: None,
) -> Tuning:
    """Measure shuffled epochs of a file with other numbers of threads and other windows.

    Batch size and memory budget stay what they are, and for a given window the order of the rows does too.
    Another window is another shuffle, so that a larger one is preferred while it costs under a tenth. With a
    device, the chosen window is at last laid onto it, and stays there if that is faster beyond what runs differ by.

    Parameters
    ----------
    source, fields
        As for `H5StreamLoader`.
    batch_size : int, optional
        Rows of a batch.
    memory_budget : int, optional
        Bytes; what does not fit is left out.
    device : torch.device or str, optional
        Where batches are wanted.
    seconds : float, optional
        Time of each trial; there are about twenty.
    progress : callable, optional
        Gets every attempt as soon as it is measured.

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
    bench = _Bench(source, fields, batch_size, memory_budget, device, seconds, progress)
    bench.measure("default", 0, "auto")  # the page cache and the kernels are cold for the first only
    bench.best.clear()
    bench.rates.clear()
    default = bench.measure("default", 0, "auto")
    best = search(bench.measure, default, cpus=allowance.cpus(), rows=bench.rows, batch_size=batch_size)
    gain = _gain(bench, default, best)
    if gain < 1.0 and best.window_rows <= default.window_rows:
        best, gain = default, 1.0
    default, best = (bench.best[one.setting] for one in (default, best))
    said = ""
    if device is not None:
        there = bench.measure_on_device(best)
        ratios = _ratios(bench, there, best) if not there.refused else []
        said = on_device_said(there.window_device, there.refused, ratios)
        if is_faster(ratios, bench.spread):
            best = there
            gain = statistics.median(_ratios(bench, best, default))
    return _tuning(bench, default, best, gain, said)


def search(measure: Measure, default: Attempt, *, cpus: int, rows: int, batch_size: int) -> Attempt:
    """Vary the threads, then the window: each changes what the other finds little.

    Parameters
    ----------
    measure : callable
        Runs a setting.
    default : Attempt
        Where to begin.
    cpus, rows, batch_size : int
        Processors allowed; rows of an epoch and of a batch.
    """
    window = default.window_rows
    counts = [n for n in thread_counts(cpus) if n != default.threads]
    tried = _in_turns(measure, [("default", default.threads, window), *(("threads", n, window) for n in counts)])
    widest = max(tried, key=lambda attempt: attempt.threads)
    while _reads_most(widest) and widest.threads < 8 * cpus:
        widest = measure("threads", 2 * widest.threads, window)
        tried.append(widest)
    fast = _fastest(tried)
    chosen = min((a for a in tried if a.rows_per_s >= AS_FAST * fast), key=lambda attempt: attempt.threads)
    sizes = window_sizes(default, rows=rows, batch_size=batch_size)
    windows = _in_turns(
        measure, [(chosen.knob, chosen.threads, window), *(("window", chosen.threads, size) for size in sizes)]
    )
    fast = _fastest(windows)
    return max((a for a in windows if a.rows_per_s >= WORTH_MIXING * fast), key=lambda attempt: attempt.window_rows)


def _in_turns(measure: Measure, settings: list[tuple[str, int, int]]) -> list[Attempt]:
    # Compared are as many runs of each: the best of more runs is better without being faster.
    rounds = [[measure(*setting) for setting in settings] for _ in range(ROUNDS)]
    return [max(runs, key=lambda attempt: attempt.rows_per_s) for runs in zip(*rounds, strict=True)]


def thread_counts(cpus: int) -> tuple[int, ...]:
    """Give the numbers of threads to try: powers of two up to the processors, and those.

    Examples
    --------
    >>> thread_counts(6)
    (1, 2, 4, 6)
    """
    return tuple(sorted({1 << k for k in range(cpus.bit_length()) if 1 << k <= cpus} | {cpus}))


def window_sizes(default: Attempt, *, rows: int, batch_size: int) -> tuple[int, ...]:
    """Give the windows to try beside the default one: an eighth to four times it, in whole blocks.

    Examples
    --------
    >>> one = Attempt(knob="default", threads=1, window_rows=102400, blocks=1024)
    >>> window_sizes(one, rows=1000000, batch_size=8192)
    (51200, 204800, 409600)
    """
    block_rows = max(1, default.window_rows // max(1, default.blocks))
    least = max(LEAST_BLOCKS * block_rows, 4 * batch_size)
    wanted = {min(rows, int(default.window_rows * factor)) for factor in (1 / 8, 1 / 4, 1 / 2, 2, 4)}
    return tuple(sorted(size for size in wanted if size >= least and size != default.window_rows))


def _reads_most(attempt: Attempt) -> bool:
    return attempt.statistics is not None and attempt.statistics.read_busy > READING


def _fastest(attempts: list[Attempt]) -> float:
    return max(attempt.rows_per_s for attempt in attempts)


class _Bench:
    """Runs settings on one file."""

    def __init__(
        self,
        source: Any,
        fields: Any,
        batch_size: int,
        memory_budget: int | None,
        device: Any,
        seconds: float,
        progress: Callable[[Attempt], None],
    ) -> None:
        self.device = device
        self.source, self.fields, self.batch_size, self.seconds = source, fields, batch_size, seconds
        self.memory_budget, self.rows, self.row_nbytes = memory_budget, 0, 0
        self.best: dict[tuple[int, int, str], Attempt] = {}
        self.rates: dict[tuple[int, int, str], list[float]] = {}
        self._progress = progress

    def measure(self, knob: str, threads: int, window: int | str) -> Attempt:
        """Run one setting; 0 threads stands for the loader's own choice."""
        try:
            attempt = self.run(knob, threads, window)
        except BudgetError as error:
            attempt = Attempt(
                knob=knob, threads=threads, window_rows=int(window), blocks=0, refused=f"needs {error.needed:,} bytes"
            )
        return self._noted(attempt)

    def measure_on_device(self, chosen: Attempt) -> Attempt:
        """Run a setting with its window on the device."""
        try:
            attempt = self.run("device", chosen.threads, chosen.window_rows, str(self.device))
        except (BudgetError, DeviceMemoryError, OptionError) as error:  # no room there, or fields that are no tensors
            refused = str(error).split(";")[0]
            attempt = replace(chosen, knob="device", rows_per_s=0.0, refused=refused, window_device=str(self.device))
        return self._noted(attempt)

    def _noted(self, attempt: Attempt) -> Attempt:
        self._progress(attempt)
        self.rates.setdefault(attempt.setting, []).append(attempt.rows_per_s)
        known = self.best.get(attempt.setting)
        if known is None or attempt.rows_per_s > known.rows_per_s:
            self.best[attempt.setting] = attempt
        return attempt

    @property
    def spread(self) -> float:
        """How far apart two runs of one setting were, as a share of the better one; the median of the settings."""
        shares = [1 - min(rates) / max(rates) for rates in self.rates.values() if len(rates) > 1 and max(rates)]
        return statistics.median(shares) if shares else 0.0

    def run(self, knob: str, threads: int, window: int | str, window_device: str = "") -> Attempt:
        """Run a setting and note nothing."""
        with H5StreamLoader(
            self.source,
            self.batch_size,
            shuffle=True,
            num_workers=threads or None,
            fields=self.fields,
            window=window,
            memory_budget=self.memory_budget,
            device=self.device,
            window_device=window_device or None,
        ) as loader:
            self.memory_budget, self.rows = loader.memory_budget, len(loader.dataset)
            self.row_nbytes = loader.dataset.layout.row_nbytes
            trial = time_loop(loader, None, self.seconds)
            return Attempt(
                knob=knob,
                threads=loader.num_workers,
                window_rows=loader.window_size.window_rows,
                blocks=-(-loader.window_size.window_rows // loader.dataset.layout.block_rows[0]),
                rows_per_s=trial.rows_per_s,
                first_batch_s=trial.first_s,
                statistics=trial.statistics,
                window_device=window_device,
            )


def _gain(bench: _Bench, default: Attempt, best: Attempt) -> float:
    """Measure both again, in turns: the search itself has favoured whatever ran in a quiet moment."""
    return 1.0 if best.setting == default.setting else statistics.median(_ratios(bench, best, default))


def _ratios(bench: _Bench, ours: Attempt, theirs: Attempt) -> list[float]:
    pairs = [[bench.run("again", *one.setting).rows_per_s for one in (ours, theirs)] for _ in range(PAIRS)]
    return [mine / max(1e-9, other) for mine, other in pairs]


def _tuning(bench: _Bench, default: Attempt, best: Attempt, gain: float, said: str) -> Tuning:
    fields = bench.fields if isinstance(bench.fields, str) or bench.fields is None else tuple(bench.fields)
    assert bench.memory_budget is not None
    return Tuning(
        title="Tuning",
        answer=f"num_workers={best.threads}, window={best.window_rows:,} rows"
        + (f", window_device={best.window_device!r}" if best.window_device else "")
        + f"; {gain:.2f} times the default's rate",
        arithmetic=tuple(_line(attempt) for attempt in bench.best.values()),
        caveats=_caveats(default, best, bench.spread, said),
        default=default,
        best=best,
        attempts=tuple(bench.best.values()),
        gain=gain,
        profile=Profile(
            dataset=str(Path(bench.source).resolve()) if isinstance(bench.source, (str, Path)) else "",
            fields=fields,
            loader={
                "batch_size": bench.batch_size,
                "num_workers": best.threads,
                "window": best.window_rows,
                "memory_budget": bench.memory_budget,
            }
            | ({"window_device": best.window_device} if best.window_device else {}),
            measured={
                "rows_per_s": round(best.rows_per_s, 1),
                "gain": round(gain, 3),
                "row_bytes": bench.row_nbytes,
                "rows": bench.rows,
                "cpus": allowance.cpus(),
            },
        ),
    )


def _line(attempt: Attempt) -> str:
    where = f" on {attempt.window_device}" if attempt.window_device else ""
    text = f"{attempt.knob}: {attempt.threads} thread(s), window {attempt.window_rows:,} rows{where}"
    return f"{text}: {attempt.refused or f'{attempt.rows_per_s:,.0f} rows/s'}"


def _caveats(default: Attempt, best: Attempt, spread: float, said: str) -> tuple[str, ...]:
    caveats = [said] if said else []
    if spread > NOISY:
        caveats.append(
            f"two runs of one setting differ by {spread:.0%}: something else uses this machine; tune again when it "
            "is quiet"
        )
    caveats += ["prefetch_factor has no effect on the host, where a window is read ahead: not searched"]
    if (ran := best.statistics) is not None:
        work_s = ran.read_s + ran.decode_s + ran.scatter_s + ran.h5py_s + ran.plan_s
        share = ran.read_s / work_s if work_s else 0.0
        caveats.append(f"staging: reading is {share:.0%} of the readers' work, the most that it could save")
    if best.window_rows < default.window_rows:
        caveats.append(
            f"the window is smaller than the default's: {best.blocks:,} blocks are mixed instead of "
            f"{default.blocks:,}; pass window= to keep it"
        )
    return tuple(caveats)
