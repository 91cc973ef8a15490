"""Which part limits a loader, named from its settings and statistics: pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h5stream.advice.suggestion import NOT_WAITING, Turn
from h5stream.engine.statistics import LoaderStatistics
from h5stream.storage.layout import DECODED, VIA_H5PY
from h5stream.units import NA, text_of_bytes, whole_number

STORAGE, DECODE, SCATTER, COPY, H5PY = "storage", "decode", "scatter", "copy", "h5py"
PYTHON, PLANNING, START = "Python", "planning", "start of the epoch"
BATCH_TOO_SMALL, STEP = "batch too small", "step"

# What a thread decodes of lz4 on the 2-core reference machine (docs/history.md): what a repacked file would do.
FAST_DECODE_BYTES_PER_S = 1.8e9
TORN = 1.5  # bytes decoded for each byte used from which the order, not the filter, is what to change
IDLE = 0.6  # share of the readers' time without work over which no work of theirs can be the limit
SMALL_STEP_S = 2e-3  # seconds of a step under which launching it is most of it: some hundred kernels of 5 to 10 us
ROWS_OF_A_CHUNK = 64  # rows of a chunk over which planning is shuffling rows, and under which looking up chunks
COPYING = 0.8  # share of the time with a copy on its way over which the bus is the limit


@dataclass(frozen=True, slots=True)
class Limit:
    """The part that all others wait for."""

    name: str  # one of the names above
    measured: str  # its rate or share, as measured
    turns: tuple[Turn, ...]  # what to turn, the likeliest gain first

    def __str__(self) -> str:
        return f"{self.name}: {self.measured}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderKnobs:
    """What a loader is set to; None where it has no such setting."""

    batch_size: int | None = None
    num_workers: int | None = None  # reader threads, or worker processes of a stock `DataLoader`
    prefetch_factor: int | None = None  # batches ahead
    window_rows: int | None = None  # rows that are shuffled with one another
    first_window_rows: int | None = None  # those of an epoch's first window
    pin_memory: bool | None = None  # as in `DataLoader`
    batch_transform: str | None = None  # the name of the function that runs for each batch
    collate_fn: str | None = None  # the name of the function that runs for each sample
    filters: str = ""  # how the field with the most bytes is compressed; empty if it is not, or if that is not known
    via_h5py: str = ""  # why a field is read through h5py; empty if none is

    @classmethod
    def of(cls, loader: Any) -> LoaderKnobs:
        """Read the settings of a loader; any object will do."""
        batch_size, window = whole_number(getattr(loader, "batch_size", None)), getattr(loader, "window_size", None)
        if batch_size is None:
            batch_size = whole_number(getattr(getattr(loader, "batch_sampler", None), "batch_size", None))
        layout = getattr(getattr(loader, "dataset", None), "layout", None)
        parts = [parts[0] for parts in getattr(layout, "datasets", ())]
        decoded = [part for part in parts if part.access == DECODED]
        widest = max(decoded, key=lambda part: part.stored_row_nbytes, default=None)
        names = {
            key: getattr(function, "__name__", type(function).__name__)
            for key in ("batch_transform", "collate_fn")
            if (function := getattr(loader, key, None)) is not None
        }
        # A stock DataLoader always has a collate_fn: torch's own is nothing that its user could leave out.
        if names.get("collate_fn") in ("default_collate", "default_convert"):
            del names["collate_fn"]
        return cls(
            batch_size=batch_size,
            num_workers=whole_number(getattr(loader, "num_workers", None)),
            prefetch_factor=whole_number(getattr(loader, "prefetch_factor", None)),
            window_rows=whole_number(getattr(window, "window_rows", None)),
            first_window_rows=whole_number(getattr(window, "first_window_rows", None)),
            pin_memory=getattr(loader, "pin_memory", None),
            filters=widest.pipeline.describe() if widest is not None else "",
            via_h5py=next((f"{part.path}: {part.reason}" for part in parts if part.access == VIA_H5PY), ""),
            **names,
        )


def least_amplification(statistics: LoaderStatistics, rows_ahead: int) -> float:
    """Return the bytes decoded for each byte used at the least: as if all rows that may be read ahead had been."""
    taken = statistics.rows / (statistics.rows + rows_ahead) if rows_ahead else 1.0
    return (statistics.read_amplification or 0.0) * taken


def data_limit(statistics: LoaderStatistics, knobs: LoaderKnobs, *, cpus: int, rows_ahead: int = 0) -> Limit:
    """Name what limits a loader that is waited for, of which at most `rows_ahead` rows were read and not taken."""
    if statistics.copy_busy > COPYING:
        rate = _rate(statistics.delivered_bytes, statistics.copy_s)
        turn = _turn("pin_memory", knobs.pin_memory)
        return Limit(COPY, f"{rate}; under way {statistics.copy_busy:.0%} of the time", (turn,))
    if statistics.transform_s > statistics.wait_s:
        has_functions = knobs.batch_transform is not None or knobs.collate_fn is not None
        return _python(statistics, knobs) if has_functions else _batch_overhead(statistics, knobs)
    if statistics.idle > IDLE:
        starts = 2 * (statistics.first_batch_s or 0.0) > statistics.wait_s
        return _start(statistics, knobs) if starts else _batch_overhead(statistics, knobs)
    return _readers(statistics, knobs, cpus, least_amplification(statistics, rows_ahead))


def loop_limit(statistics: LoaderStatistics, knobs: LoaderKnobs, *, cpus: int) -> Limit:
    """Name what limits a training loop: the data while it waits, else its step, or its batch."""
    if statistics.wait_share >= NOT_WAITING:
        return data_limit(statistics, knobs, cpus=cpus)
    own_s = statistics.elapsed_s - statistics.wait_s - statistics.transform_s
    step_s = own_s / max(1, statistics.batches)
    measured = f"{1e3 * step_s:.1f} ms a batch, {statistics.wait_share:.0%} of the time waiting for data"
    if step_s < SMALL_STEP_S:
        return Limit(BATCH_TOO_SMALL, measured, (larger_batch(knobs, None),))
    return Limit(STEP, measured, step_turns(knobs))


def step_turns(knobs: LoaderKnobs) -> tuple[Turn, ...]:
    """Return what to turn where the step is the limit."""
    return (_turn("precision", "as it is"), larger_batch(knobs, None))


def larger_batch(knobs: LoaderKnobs, speedup: float | None) -> Turn:
    """Return twice the batch as something to try; nothing here ever does it."""
    twice = None if knobs.batch_size is None else 2 * knobs.batch_size
    return _turn("batch_size", knobs.batch_size, speedup, twice)


# What is tried of each knob, where the numbers do not say it, and why.
_TURNS = {
    "precision": ("bf16 autocast, or torch.compile", "the loader has batches ready; only a faster step helps"),
    "batch_size": ("", "more work for each launch and each hand-over; yours to decide, it changes training"),
    "staging": ("h5stream stage FILE, on a local disk or tmpfs", "memory answers at once"),
    "order": ("shuffle=True without a sampler, or a larger window", "each chunk is then decoded once"),
    "filters": ("repack with lz4", f"a thread decodes {text_of_bytes(FAST_DECODE_BYTES_PER_S, '/s')} of it"),
    "storage of the field": (
        "repack it with an ordinary filter and type",
        "threads do not help: h5py's lock lets one in at a time",
    ),
    "collate_fn": ("leave it out; batch_transform= gets whole batches", "samples are taken apart one by one for it"),
    "batch_transform": (
        "work on whole tensors, or on the GPU inside the step",
        "it runs in the thread that asks for the batch",
    ),
    "pin_memory": (
        "True, and casts on the GPU rather than before the copy",
        "pinned memory is copied at the bus's rate, and fewer bytes sooner",
    ),
    "epochs": (
        "several of one loader, without sampler=",
        "the first window of the next one is then read during the one before",
    ),
}


def _turn(knob: str, present: object, speedup: float | None = None, try_next: object = "", why: str = "") -> Turn:
    to_try, reason = _TURNS.get(knob, ("", ""))
    said, tried = (NA if value is None else str(value) for value in (present, try_next))
    return Turn(knob, said, tried or to_try, why or reason, speedup)


def _rate(nbytes: int, seconds: float) -> str:
    return text_of_bytes(nbytes / seconds if seconds else None, "/s")


def _without(share: float) -> float:
    """Return how many times faster it gets if that share of the work is gone."""
    return 1.0 / max(1.0 - share, 0.01)


def _readers(statistics: LoaderStatistics, knobs: LoaderKnobs, cpus: int, torn: float) -> Limit:
    """Name the part of the readers' work that takes longest, with its rate; `torn` bytes are decoded for one used."""
    took = {
        STORAGE: statistics.read_s,
        DECODE: statistics.decode_s,
        SCATTER: statistics.scatter_s,
        H5PY: statistics.h5py_s,
        PLANNING: statistics.plan_s,
    }
    name = max(took, key=lambda part: took[part])
    share, threads, turns = took[name] / max(1e-9, sum(took.values())), statistics.threads, list[Turn]()
    if name == DECODE and torn > TORN:
        turns.append(_turn("order", f"{torn:.1f} bytes decoded for each one used", torn))
    # Unless the loader may have more threads already, and starts fewer.
    wanted = {STORAGE: 2 * threads, DECODE: cpus, SCATTER: cpus}.get(name, 0)
    if wanted > max(threads, knobs.num_workers or 0):
        why = "reads that wait can wait together" if name == STORAGE else f"{cpus} processors are allowed"
        turns.append(_turn("num_workers", knobs.num_workers, wanted / threads, wanted, why))
    if name == STORAGE:
        each = text_of_bytes(statistics.read_bytes / max(1, statistics.reads))
        rate = f"{text_of_bytes(statistics.read_bytes_per_s, '/s')} a thread in reads of {each}"
        turns.append(_turn("staging", "the files where they are", _without(share)))
    elif name == DECODE:
        decoded = statistics.decode_bytes_per_s
        rate = f"{text_of_bytes(decoded, '/s')} a thread ({knobs.filters or 'its filters'}, {threads} of them)"
        if decoded is not None and decoded < FAST_DECODE_BYTES_PER_S:
            gain = _without(share * (1 - decoded / FAST_DECODE_BYTES_PER_S))
            turns.append(_turn("filters", knobs.filters or "as written", gain))
    elif name == SCATTER:
        rate = f"{_rate(statistics.delivered_bytes, statistics.scatter_s)} a thread"
        turns.append(Turn("chunks", "as written", "repack with chunks of whole rows", "rows then move in one piece"))
    elif name == H5PY:
        rate = f"{_rate(statistics.h5py_bytes, statistics.h5py_s)} under its lock"
        turns.append(_turn("storage of the field", knobs.via_h5py or "read through h5py"))
    else:
        rate = f"{1e9 * statistics.plan_s / max(1, statistics.rows):.0f} ns a row"
        turns.append(_less_planning(statistics.rows / max(1, statistics.chunks), knobs.window_rows))
    return Limit(name, f"{rate}; {share:.0%} of the readers' work", tuple(turns))


def _less_planning(chunk_rows: float, window_rows: int | None) -> Turn:
    if chunk_rows <= ROWS_OF_A_CHUNK:
        return Turn("chunks", f"{chunk_rows:.0f} rows each", "repack with larger chunks", "fewer places to look up")
    why = "fewer rows are sorted at a time, in cache; it mixes less, `h5stream tune` measures it"
    return _turn("window", window_rows, None, None if window_rows is None else max(1, window_rows // 4), why)


def _python(statistics: LoaderStatistics, knobs: LoaderKnobs) -> Limit:
    spent_s = statistics.transform_s + statistics.wait_s
    gain = spent_s / max(statistics.wait_s, 1e-9)
    functions = {"collate_fn": knobs.collate_fn, "batch_transform": knobs.batch_transform}
    measured = (
        f"{1e3 * statistics.transform_s / max(1, statistics.batches):.1f} ms a batch in batch_transform and "
        f"collate_fn; {statistics.transform_s / spent_s:.0%} of the time to a batch"
    )
    return Limit(PYTHON, measured, tuple(_turn(knob, name, gain) for knob, name in functions.items() if name))


def _start(statistics: LoaderStatistics, knobs: LoaderKnobs) -> Limit:
    """Name the start of the epoch, and what brings the first batch sooner, of that only what is not so already."""
    first_s, turns = statistics.first_batch_s or 0.0, []
    share = first_s / max(statistics.elapsed_s, 1e-9)
    speedup = _without(share)
    first_rows = knobs.window_rows if knobs.first_window_rows is None else knobs.first_window_rows
    fewer = max(knobs.batch_size or 1, (first_rows or 0) // 4)
    if first_rows is not None and fewer < first_rows:
        present = f"{NA if knobs.window_rows is None else knobs.window_rows}, the first {first_rows}"
        why = "batches come when the first window is read; fewer rows mix less"
        turns.append(_turn("window", present, speedup, fewer, why))
    if knobs.num_workers == 0:
        why = "an epoch's first window is then read during the epoch before"
        turns.append(_turn("num_workers", 0, speedup, "1 or more", why))
    measured = f"{1e3 * first_s:.0f} ms until first batches, {share:.0%} of the time"
    return Limit(START, measured, tuple(turns) or (_turn("epochs", "each starts anew", speedup),))


def _batch_overhead(statistics: LoaderStatistics, knobs: LoaderKnobs) -> Limit:
    spent_s, batches = statistics.wait_s + statistics.transform_s, max(1, statistics.batches)
    measured = (
        f"{1e6 * spent_s / batches:.0f} us to hand over a batch of {statistics.rows / batches:,.0f} rows; the readers "
        f"idle {statistics.idle:.0%} of the time"
    )
    return Limit(BATCH_TOO_SMALL, measured, (larger_batch(knobs, 2.0),))
