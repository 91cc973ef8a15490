"""Which part limits a loader, named from its statistics: pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from h5stream.advice.knobs import LoaderKnobs
from h5stream.advice.suggestion import Turn
from h5stream.advice.waiting import NOT_WAITING
from h5stream.engine.statistics import LoaderStatistics
from h5stream.monitor.line import size
from h5stream.units import text_of_bytes

STORAGE, DECODE, SCATTER, COPY, H5PY = "storage", "decode", "scatter", "copy", "h5py"
PYTHON, PLANNING, START = "Python", "planning", "start of the epoch"
BATCH_TOO_SMALL, STEP = "batch too small", "step"

FAST_DECODE_BYTES_PER_S = 1.8e9
"""What a thread decodes of lz4 on the 2-core reference machine (docs/design.md): what a repacked file would do."""

TORN = 1.5
"""Bytes decoded for each byte used from which the order, not the filter, is what to change."""

IDLE = 0.6
"""Share of the readers' time without work over which no work of theirs can be the limit."""

SMALL_STEP_S = 2e-3
"""Seconds of a step under which launching it is most of it: some hundred kernels of 5 to 10 us each."""

ROWS_OF_A_CHUNK = 64
"""Rows of a chunk over which planning is shuffling rows, and under which it is looking up chunks."""

COPYING = 0.8
"""Share of the time with a copy on its way over which the bus is the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The part that all others wait for."""

    name: str
    """One of the names above: storage, decode, scatter, copy, h5py, Python, planning, start of the epoch, batch too
    small, step."""
    measured: str
    """Its rate or share, as measured."""
    turns: tuple[Turn, ...]
    """What to turn, the likeliest gain first."""

    def __str__(self) -> str:
        return f"{self.name}: {self.measured}"


Found = tuple[str, tuple[Turn, ...]]
"""What was measured of the readers' part that takes longest, and what to turn."""


def least_amplification(statistics: LoaderStatistics, rows_ahead: int) -> float:
    """Return the bytes decoded for each byte used at the least: as if all rows that may have been read ahead had been.

    Examples
    --------
    >>> least_amplification(LoaderStatistics(rows=100, delivered_bytes=400, decoded_bytes=1200), 200)
    1.0
    """
    taken = statistics.rows / (statistics.rows + rows_ahead) if rows_ahead else 1.0
    return (statistics.read_amplification or 0.0) * taken


def data_limit(statistics: LoaderStatistics, knobs: LoaderKnobs, *, cpus: int, rows_ahead: int = 0) -> Limit:
    """Name what limits the loader while it is waited for: alone, or in a loop that it kept waiting.

    At most `rows_ahead` rows had been read ahead, and were not taken, when a run was cut off.

    Examples
    --------
    >>> found = data_limit(
    ...     LoaderStatistics(batches=10, elapsed_s=4, wait_s=4, running_s=4, decode_s=3, read_s=0.5, decoded_bytes=1),
    ...     LoaderKnobs(num_workers=1), cpus=8)
    >>> found.name, found.turns[0].try_next, found.turns[0].speedup
    ('decode', '8', 8.0)
    """
    if statistics.copy_busy > COPYING:
        return _copy(statistics, knobs)
    if statistics.transform_s > statistics.wait_s:
        if knobs.batch_transform is None and knobs.collate_fn is None:
            return _batch_overhead(statistics, knobs)
        return _python(statistics, knobs)
    if statistics.idle > IDLE:
        first_s = statistics.first_batch_s or 0.0
        return _start(statistics, knobs) if 2 * first_s > statistics.wait_s else _batch_overhead(statistics, knobs)
    torn = least_amplification(statistics, rows_ahead)
    parts: dict[str, tuple[float, Callable[[float], Found]]] = {
        STORAGE: (statistics.read_s, lambda share: _storage(statistics, knobs, share)),
        DECODE: (statistics.decode_s, lambda share: _decode(statistics, knobs, cpus, share, torn)),
        SCATTER: (statistics.scatter_s, lambda share: _scatter(statistics, knobs, cpus)),
        H5PY: (statistics.h5py_s, lambda share: _h5py(statistics, knobs)),
        PLANNING: (statistics.plan_s, lambda share: _planning(statistics, knobs)),
    }
    name = max(parts, key=lambda part: parts[part][0])
    part_s, find = parts[name]
    share = part_s / max(1e-9, sum(seconds for seconds, _ in parts.values()))
    measured, turns = find(share)
    return Limit(name=name, measured=f"{measured}; {share:.0%} of the readers' work", turns=turns)


def loop_limit(statistics: LoaderStatistics, knobs: LoaderKnobs, *, cpus: int) -> Limit:
    """Name what limits a training loop, from the statistics of its loader alone.

    While the loop waits, it is the data; otherwise its own step, or the batch if a step is over in no time.
    """
    if statistics.wait_share >= NOT_WAITING:
        return data_limit(statistics, knobs, cpus=cpus)
    own_s = statistics.elapsed_s - statistics.wait_s - statistics.transform_s
    step_s = own_s / max(1, statistics.batches)
    measured = f"{1e3 * step_s:.1f} ms a batch, {statistics.wait_share:.0%} of the time waiting for data"
    if step_s < SMALL_STEP_S:
        return Limit(name=BATCH_TOO_SMALL, measured=measured, turns=(larger_batch(knobs, None),))
    return Limit(name=STEP, measured=measured, turns=step_turns(knobs))


def step_turns(knobs: LoaderKnobs) -> tuple[Turn, ...]:
    """Return what to turn where the step is the limit."""
    return (
        Turn(
            knob="precision",
            present="as it is",
            try_next="bf16 autocast, or torch.compile",
            why="the loader has batches ready; only a faster step helps",
        ),
        larger_batch(knobs, None),
    )


def larger_batch(knobs: LoaderKnobs, speedup: float | None) -> Turn:
    """Give twice the batch as something to try; nothing here ever does it."""
    return Turn(
        knob="batch_size",
        present=_text(knobs.batch_size),
        try_next="n/a" if knobs.batch_size is None else str(2 * knobs.batch_size),
        why="more work for each launch and each hand-over; yours to decide, it changes training",
        speedup=speedup,
    )


def _more_workers(statistics: LoaderStatistics, knobs: LoaderKnobs, wanted: int, why: str) -> tuple[Turn, ...]:
    """Give more threads as something to try, unless the loader may have them already and starts fewer."""
    if wanted <= max(statistics.threads, knobs.num_workers or 0):
        return ()
    present, speedup = _text(knobs.num_workers), wanted / statistics.threads
    return (Turn(knob="num_workers", present=present, try_next=str(wanted), why=why, speedup=speedup),)


def _storage(statistics: LoaderStatistics, knobs: LoaderKnobs, share: float) -> Found:
    each = statistics.read_bytes / max(1, statistics.reads)
    staging = Turn(
        knob="staging",
        present="the files where they are",
        try_next="h5stream stage FILE, on a local disk or tmpfs",
        why="memory answers at once",
        speedup=_without(share),
    )
    more = _more_workers(statistics, knobs, 2 * statistics.threads, "reads that wait can wait together")
    return f"{size(statistics.read_bytes_per_s, '/s')} a thread in reads of {text_of_bytes(each)}", (*more, staging)


def _decode(statistics: LoaderStatistics, knobs: LoaderKnobs, cpus: int, share: float, torn: float) -> Found:
    rate = statistics.decode_bytes_per_s
    turns = list(_all_processors(statistics, knobs, cpus))
    if torn > TORN:
        order = Turn(
            knob="order",
            present=f"{torn:.1f} bytes decoded for each one used",
            try_next="shuffle=True without a sampler, or a larger window",
            why="each chunk is then decoded once",
            speedup=torn,
        )
        turns.insert(0, order)
    if rate is not None and rate < FAST_DECODE_BYTES_PER_S:
        turns.append(
            Turn(
                knob="filters",
                present=knobs.filters or "as written",
                try_next="repack with lz4",
                why=f"a thread decodes {size(FAST_DECODE_BYTES_PER_S, '/s')} of it",
                speedup=_without(share * (1 - rate / FAST_DECODE_BYTES_PER_S)),
            )
        )
    filters = knobs.filters or "its filters"
    return f"{size(rate, '/s')} a thread ({filters}, {statistics.threads} of them)", tuple(turns)


def _scatter(statistics: LoaderStatistics, knobs: LoaderKnobs, cpus: int) -> Found:
    rate = statistics.delivered_bytes / statistics.scatter_s if statistics.scatter_s else None
    repack = _chunks("as written", "repack with chunks of whole rows", "rows then move in one piece")
    return f"{size(rate, '/s')} a thread", (*_all_processors(statistics, knobs, cpus), repack)


def _h5py(statistics: LoaderStatistics, knobs: LoaderKnobs) -> Found:
    rate = statistics.h5py_bytes / statistics.h5py_s if statistics.h5py_s else None
    repack = Turn(
        knob="storage of the field",
        present=knobs.via_h5py or "read through h5py",
        try_next="repack it with an ordinary filter and type",
        why="threads do not help: h5py's lock lets one in at a time",
    )
    return f"{size(rate, '/s')} under its lock", (repack,)


def _planning(statistics: LoaderStatistics, knobs: LoaderKnobs) -> Found:
    rows = statistics.rows / max(1, statistics.chunks)
    smaller_window = Turn(
        knob="window",
        present=_text(knobs.window_rows),
        try_next="n/a" if knobs.window_rows is None else str(max(1, knobs.window_rows // 4)),
        why="fewer rows are sorted at a time, in cache; it mixes less, `h5stream tune` measures it",
    )
    larger_chunks = _chunks(f"{rows:.0f} rows each", "repack with larger chunks", "fewer places to look up")
    measured = f"{1e9 * statistics.plan_s / max(1, statistics.rows):.0f} ns a row"
    return measured, (smaller_window if rows > ROWS_OF_A_CHUNK else larger_chunks,)


def _chunks(present: str, try_next: str, why: str) -> Turn:
    return Turn(knob="chunks", present=present, try_next=try_next, why=why)


def _all_processors(statistics: LoaderStatistics, knobs: LoaderKnobs, cpus: int) -> tuple[Turn, ...]:
    return _more_workers(statistics, knobs, cpus, f"{cpus} processors are allowed")


def _python(statistics: LoaderStatistics, knobs: LoaderKnobs) -> Limit:
    spent_s = statistics.transform_s + statistics.wait_s
    gain = spent_s / max(statistics.wait_s, 1e-9)
    turns = []
    if knobs.collate_fn is not None:
        turns.append(
            Turn(
                knob="collate_fn",
                present=knobs.collate_fn,
                try_next="leave it out; batch_transform= gets whole batches",
                why="samples are taken apart one by one for it",
                speedup=gain,
            )
        )
    if knobs.batch_transform is not None:
        turns.append(
            Turn(
                knob="batch_transform",
                present=knobs.batch_transform,
                try_next="work on whole tensors, or on the GPU inside the step",
                why="it runs in the thread that asks for the batch",
                speedup=gain,
            )
        )
    each_s = statistics.transform_s / max(1, statistics.batches)
    return Limit(
        name=PYTHON,
        measured=f"{1e3 * each_s:.1f} ms a batch in batch_transform and collate_fn; "
        f"{statistics.transform_s / spent_s:.0%} of the time to a batch",
        turns=tuple(turns),
    )


def _copy(statistics: LoaderStatistics, knobs: LoaderKnobs) -> Limit:
    rate = statistics.delivered_bytes / statistics.copy_s if statistics.copy_s else None
    return Limit(
        name=COPY,
        measured=f"{size(rate, '/s')}; under way {statistics.copy_busy:.0%} of the time",
        turns=(
            Turn(
                knob="pin_memory",
                present=_text(knobs.pin_memory),
                try_next="True, and casts on the GPU rather than before the copy",
                why="pinned memory is copied at the bus's rate, and fewer bytes sooner",
            ),
        ),
    )


def _start(statistics: LoaderStatistics, knobs: LoaderKnobs) -> Limit:
    first_s = statistics.first_batch_s or 0.0
    share = first_s / max(statistics.elapsed_s, 1e-9)
    return Limit(
        name=START,
        measured=f"{1e3 * first_s:.0f} ms until first batches, {share:.0%} of the time",
        turns=_sooner(knobs, _without(share)),
    )


def _sooner(knobs: LoaderKnobs, speedup: float) -> tuple[Turn, ...]:
    """Return what brings an epoch's first batch sooner, of that only what is not so already."""
    turns = []
    first_rows = knobs.window_rows if knobs.first_window_rows is None else knobs.first_window_rows
    fewer = max(knobs.batch_size or 1, (first_rows or 0) // 4)
    if first_rows is not None and fewer < first_rows:
        turns.append(
            Turn(
                knob="window",
                present=f"{_text(knobs.window_rows)}, the first {first_rows}",
                try_next=str(fewer),
                why="batches come when the first window is read; fewer rows mix less",
                speedup=speedup,
            )
        )
    if knobs.num_workers == 0:
        turns.append(
            Turn(
                knob="num_workers",
                present="0",
                try_next="1 or more",
                why="an epoch's first window is then read during the epoch before",
                speedup=speedup,
            )
        )
    return tuple(turns) or (
        Turn(
            knob="epochs",
            present="each starts anew",
            try_next="several of one loader, without sampler=",
            why="the first window of the next one is then read during the one before",
            speedup=speedup,
        ),
    )


def _batch_overhead(statistics: LoaderStatistics, knobs: LoaderKnobs) -> Limit:
    each_s = (statistics.wait_s + statistics.transform_s) / max(1, statistics.batches)
    rows = statistics.rows / max(1, statistics.batches)
    return Limit(
        name=BATCH_TOO_SMALL,
        measured=f"{1e6 * each_s:.0f} us to hand over a batch of {rows:,.0f} rows; the readers idle "
        f"{statistics.idle:.0%} of the time",
        turns=(larger_batch(knobs, 2.0),),
    )


def _without(share: float) -> float:
    """How many times faster it gets if that share of the work is gone."""
    return 1.0 / max(1.0 - share, 0.01)


def _text(value: object) -> str:
    return "n/a" if value is None else str(value)
