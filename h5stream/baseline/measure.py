"""Measurements of loaders on one file, and checks that h5stream gave every row once with h5py's bytes."""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import math
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from h5stream.baseline import NO_TENSORS, Measurement, Progress, status_nbytes
from h5stream.dataset.dataset import H5Dataset
from h5stream.engine.changes import tensor_of
from h5stream.loader.loader import H5StreamLoader
from h5stream.repacking.survey import row_sums as raw_sums
from h5stream.samples.lookup import Lookup
from h5stream.samples.ragged import STACKED
from h5stream.storage.decode.columns import columns_of
from h5stream.storage.decode.images import decode_image
from h5stream.storage.decode.small_floats import held_as, widened, widened_dtype
from h5stream.storage.decode.values import values_of
from h5stream.storage.layout.layout import FieldLayout, SampleLayout, SparseEntry, numbers_of
from h5stream.storage.layout.parts import DatasetPart, Target
from h5stream.storage.source.handles import open_file
from h5stream.structure import RAGGED, SparseRows, leaves, rows_of, tensors_of

_SLAB_NBYTES = 32 * 1024 * 1024

_Values: TypeAlias = np.ndarray | list[np.ndarray]
"""Rows of a field: an array, or a list of them if their shapes differ."""


def batches_of(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield batches, with those of several fields as tuples, which differ from lists of strings or ragged rows."""
    dataset = getattr(loader, "dataset", None)
    lists = isinstance(dataset, H5Dataset) and dataset.layout.shape.kind == "tuple"
    for batch in loader:
        yield tuple(batch) if lists else batch


def batch_nbytes(batch: object) -> int:
    """Return the bytes of a batch's tensors and strings."""
    texts = [leaf for leaf in leaves(batch) if isinstance(leaf, list) and leaf and isinstance(leaf[0], (str, bytes))]
    return sum(map(len, itertools.chain(*texts))) + sum(tensor.nbytes for tensor in tensors_of(batch))


def _run_python(seconds: float) -> float:
    """Run Python for `seconds` without releasing the GIL voluntarily; return the time it took."""
    began = time.perf_counter()
    while (taken := time.perf_counter() - began) < seconds:
        pass
    return taken


def measure_epoch(
    name: str,
    loader: Iterable[Any],
    *,
    seconds: float = math.inf,
    progress: Progress = lambda rows: None,
    busy_s: float = 0.0,
) -> Measurement:
    """Stream one epoch, or the part of it that comes within `seconds`, and return the measurement.

    The loop runs Python for `busy_s` seconds per batch.
    """
    with contextlib.suppress(OSError):  # ``proc_pid_clear_refs(5)``: writing 5 resets VmHWM, if allowed
        Path("/proc/self/clear_refs").write_text("5")
    before = status_nbytes(os.getpid(), "VmRSS")
    start = time.perf_counter()
    rows = batches = nbytes = 0
    first, stopped, busy = None, False, 0.0
    for batch in batches_of(loader):
        if first is None:
            first = time.perf_counter() - start
        rows += rows_of(batch) or 0
        nbytes += batch_nbytes(batch)
        batches += 1
        progress(rows)
        busy += _run_python(busy_s) if busy_s else 0.0
        if stopped := time.perf_counter() - start >= seconds:
            break
    taken = time.perf_counter() - start
    return Measurement(
        name=name,
        rows=rows,
        batches=batches,
        nbytes=nbytes,
        seconds=taken,
        first_batch_s=first,
        peak_nbytes=max(0, status_nbytes(os.getpid(), "VmHWM") - before),
        stopped=stopped,
        busy_s=busy,
    )


def check_epoch(
    loader: H5StreamLoader, *, seconds: float = math.inf, progress: Progress = lambda rows: None
) -> tuple[int, str, dict[str, str]]:
    """Stream an epoch again, or the part that comes in time, and compare a sum of each row's bytes with h5py's.

    Return the number of compared rows, the problem if there is one, and the reasons for fields that were not compared.
    """
    layout, total = loader.dataset.layout, loader.dataset.layout.rows
    entries, unchecked = [leaf for _, leaf in layout.leaves], not_checked(layout)
    left_out = {layout.fields[numbers_of(entries[place])[0]].name: why for place, why in unchecked.items()}
    # For long files only the pages of delivered rows are touched.
    seen = np.zeros(total, dtype=np.uint8)
    sums = np.zeros((len(entries), total), dtype=np.uint64)
    until = time.perf_counter() + seconds
    done, stopped, order = 0, False, iter(loader.batch_sampler)
    for batch in batches_of(loader):
        rows = next(order, None)
        if rows is None:
            return 0, "more batches came than the epoch has", left_out
        np.add.at(seen, rows, 1)
        for place, leaf in enumerate(leaves(batch)):
            if place not in unchecked:
                sums[place, rows] = row_sums(leaf)
        done += len(rows)
        progress(done)
        if stopped := time.perf_counter() >= until:
            break
    wrong = np.flatnonzero(seen > 1 if stopped else seen != 1)
    if len(wrong):
        return 0, f"{len(wrong)} rows did not come exactly once, the first is row {wrong[0]}", left_out
    if len(unchecked) == len(entries):
        return done, "", left_out
    return *_compare_with_h5py(layout, sums, seen.astype(bool), seconds, unchecked), left_out


def not_checked(layout: SampleLayout) -> dict[int, str]:
    """Return the reasons why some fields cannot be compared with h5py, by their places in a batch."""
    lookups, reasons = {one.dataset: one for one in layout.lookups}, dict[int, str]()
    filled = {target.field: n for n, parts in enumerate(layout.datasets) for target in parts[0].targets}
    for place, (_, entry) in enumerate(layout.leaves):
        number = numbers_of(entry)[0]
        field, dataset = layout.fields[number], filled.get(number)
        lookup = None if dataset is None else lookups.get(dataset)
        if dataset is None:
            reasons[place] = "comes from no dataset of rows"
        elif field.normalize is not None or field.packings:
            how = "normalized" if field.normalize is not None else "of floats with NaN for what is missing"
            reasons[place] = f"is {how}, h5py has its numbers as they are stored"
        elif any(part.objects is not None or part.along for part in layout.datasets[dataset]):
            reasons[place] = "is made of many objects, of which each is a row or several"
        elif lookup is not None and (lookup.draw is not None or lookup.spare is not None):
            reasons[place] = "takes other rows in each epoch"
        elif field.take.steps is not None:
            reasons[place] = "takes several rows for each sample"
    return reasons


def rows_alone(layout: SampleLayout) -> tuple[list[str], str]:
    """Return the paths and members that give each field row by row through h5py; or none, and the reason."""
    filled = {t.field: (n, parts, t) for n, parts in enumerate(layout.datasets) for t in parts[0].targets}
    names, unchecked, mains = list[str](), not_checked(layout), len(layout.aligned)
    for place, (_, entry) in enumerate(layout.leaves):
        n, parts, target = filled.get(entry, (mains, (), None)) if isinstance(entry, int) else (mains, (), None)
        field, elsewhere = layout.fields[numbers_of(entry)[0]].name, any(part.file != k for k, part in enumerate(parts))
        decoded = target is not None and layout.fields[target.field].images is not None
        if target is None or n >= mains or decoded or elsewhere or target.stacked or place in unchecked:
            return [], f"field {field!r} is more than a row of one dataset beside the others"
        if _has_no_tensors(layout.fields[target.field]):
            return [], f"field {field!r}: {NO_TENSORS}"
        names.append(":".join((parts[0].path, *target.member)))
    return names, ""


def _has_no_tensors(field: FieldLayout) -> bool:
    """Whether a field's values as h5py gives them are texts, or are of a kind that torch has not."""
    items = field.items if field.dtype.kind == "O" else field.dtype
    return items is None or items.kind not in "biufc"


def _compare_with_h5py(
    layout: SampleLayout, sums: NDArray[np.uint64], seen: NDArray[np.bool_], seconds: float, unchecked: Container[int]
) -> tuple[int, str]:
    compared, until = 0, time.perf_counter() + seconds
    places = [(k, entry) for k, (_, entry) in enumerate(layout.leaves) if k not in unchecked]
    wanted = {number for _, entry in places for number in numbers_of(entry)}
    for number, start in enumerate(layout.file_starts[:-1]):
        parts = [parts[number] for parts in layout.aligned]
        # Pieces of whole chunks of the field with the most bytes; single rows if they need more than is stored there.
        lead, row_nbytes = max(parts, key=lambda part: part.stored_row_nbytes), sum(p.stored_row_nbytes for p in parts)
        is_plain = not layout.lookups and not any(field.images for field in layout.fields)
        chunk_rows, row_nbytes = lead.chunk_rows if is_plain else 1, max(1, row_nbytes, layout.row_nbytes)
        step = max(1, _SLAB_NBYTES // row_nbytes // chunk_rows) * chunk_rows
        with contextlib.ExitStack() as opened:
            files = functools.cache(lambda number, to=opened: to.enter_context(open_file(layout.files[number].path)))
            for first in range(0, lead.rows, step):
                rows = slice(start + first, start + min(first + step, lead.rows))
                delivered = np.flatnonzero(seen[rows])
                columns = dict[int, _Values]()
                for part in parts if len(delivered) else ():
                    if targets := [target for target in part.targets if target.field in wanted]:
                        read = _read(files(part.file), part, first, rows.stop - start)[delivered]
                        columns |= {target.field: target.taken(read) for target in targets}
                for one in layout.lookups if len(delivered) else ():
                    if targets := [t for t in layout.datasets[one.dataset][0].targets if t.field in wanted]:
                        looked_up = list(_looked_up(layout, files, one, rows.start + delivered))
                        joined: _Values = looked_up if one.counts is not None else np.concatenate(looked_up)
                        columns |= {t.field: _taken(t, joined) for t in targets}
                for place, entry in places if len(delivered) else ():
                    if (row_sums(_as_batch(layout, entry, columns)) != sums[place, rows][delivered]).any():
                        path, name = layout.files[lead.file].path, layout.fields[numbers_of(entry)[0]].name
                        return compared, f"field {name!r}: rows from {rows.start} on differ from h5py's in {path!r}"
                compared += len(delivered)
                if time.perf_counter() >= until:
                    return compared, ""
    return compared, ""


def _taken(target: Target, values: _Values) -> _Values:
    return [target.taken(one) for one in values] if isinstance(values, list) else target.taken(values)


def _read(file: h5py.File, part: DatasetPart, first: int, stop: int) -> np.ndarray:
    """Read rows through h5py, without the padding of rows that are padded to one length."""
    read = columns_of(values_of(file[part.path], (first,), (stop - first,)), part.columns, len(part.shape) - 1)
    lengths = next((target.lengths for target in part.targets), None)
    if lengths is None:
        return read
    unpadded = np.empty(len(read), dtype=object)
    for k, length in enumerate(lengths[first:stop].tolist()):
        unpadded[k] = np.ascontiguousarray(read[k : k + 1]).reshape(-1).view(np.uint8)[:length]
    return unpadded


def _looked_up(
    layout: SampleLayout, files: Callable[[int], h5py.File], one: Lookup, samples: NDArray[np.int64]
) -> Iterator[np.ndarray]:
    """Yield the rows that each sample looks up; for values of variable length, their items."""
    parts = layout.datasets[one.dataset]
    starts = [part.row_start for part in parts]
    are_objects = any(layout.fields[target.field].dtype.kind == "O" for target in parts[0].targets)
    counts = itertools.repeat(1) if one.counts is None else one.counts[samples].tolist()

    def span(row: int, count: int) -> np.ndarray:
        part = parts[max(0, bisect.bisect_right(starts, row) - 1)]
        first, are_items = row - part.row_start, part.heap is not None and one.counts is not None and not are_objects
        read = _read(files(part.file), part, first, first + (1 if are_items else count))
        return read[0][:count] if are_items else read

    for row, count in zip(one.rows[samples].tolist(), counts, strict=False):
        if one.listed is None:
            yield span(row, count)
        else:
            listed = one.listed[row : row + count].tolist()
            yield np.concatenate([span(item, 1) for item in listed] or [span(0, 0)])


def _as_batch(layout: SampleLayout, entry: int | SparseEntry, columns_read: dict[int, _Values]) -> object:
    """Return the values that h5py read in the format of a batch."""
    field = layout.fields[numbers_of(entry)[0]]
    if isinstance(entry, SparseEntry):
        values, columns = columns_read[entry.values], columns_read[entry.columns]
        places = field.form.places if entry.is_dense else None
        if places is None:
            none, columns = torch.empty(0), _cast(columns, layout.fields[entry.columns])
            pairs = zip(_cast(values, field), columns, strict=True)
            return [SparseRows(torch.as_tensor(a), torch.as_tensor(b), none, entry.width) for a, b in pairs]
        dense = np.zeros((len(values), entry.width), dtype=widened_dtype(field.dtype))
        for row, row_values, where in zip(dense, values, columns, strict=True):
            np.add.at(row, where, widened(row_values))
        kept = np.flatnonzero(places >= 0)
        values = np.zeros((len(dense), field.form.wanted), dtype=field.dtype)
        values[:, places[kept]] = held_as(dense[:, kept], field.dtype)
        return _cast(values, field)
    values = columns_read[entry]
    if field.images is not None:
        stored = (np.frombuffer(_bytes(value, cut=False), dtype=np.uint8) for value in values)
        values = [decode_image(one, field.images.format) for one in stored]
    if isinstance(values, list) and (field.kind == "array" or (field.ragged and field.ragged.form == STACKED)):
        values = np.stack(values)
    return _cast(values, field)


def _cast(values: _Values, field: FieldLayout) -> Any:
    if isinstance(values, list):
        return [_cast(one, field) for one in values]
    if field.is_listed or values.dtype.kind not in "biufcmM":
        return values
    native = np.ascontiguousarray(values.astype(field.dtype))
    return native if field.cast is None else tensor_of(native).to(field.cast)


def row_sums(values: Any) -> NDArray[np.uint64]:
    """Return a 64-bit sum of each row's bytes, the same for a tensor, an array and a list."""
    if isinstance(values, RAGGED):
        values = [values.sample(k) for k in range(rows_of(values) or 0)]
    elif isinstance(values, torch.Tensor):
        if values.is_nested:
            values = list(values.unbind())
        else:  # as bytes, since NumPy lacks some of torch's types
            values = values.contiguous().view(len(values), -1).view(torch.uint8).numpy() if values.numel() else values
    if isinstance(values, list) or (isinstance(values, np.ndarray) and values.dtype.kind in "OS"):
        every = map(_bytes, values)
        return np.array([hash((raw, len(raw))) & 0xFFFFFFFFFFFFFFFF for raw in every], dtype=np.uint64)
    if not math.prod(values.shape):
        return np.zeros(len(values), dtype=np.uint64)
    array = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
    return raw_sums(array.reshape(len(array), -1).view(np.uint8))


def _bytes(value: object, *, cut: bool = True) -> bytes:
    """Return the bytes of one row from any source; for texts without trailing zeros."""
    if isinstance(value, SparseRows):
        return _bytes(value.values) + _bytes(value.columns)
    if isinstance(value, str | bytes):
        raw = value.encode() if isinstance(value, str) else value
        return raw.rstrip(b"\0") if cut else raw
    if isinstance(value, torch.Tensor):
        return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype.kind in "OS"):
        every = [_bytes(one) for one in value]
        return b"".join(b"%d:%b" % (len(one), one) for one in every)
    array = np.ascontiguousarray(value)
    return array.astype(array.dtype.newbyteorder("=")).tobytes()


def fresh_rates(paths: Sequence[str], fields: Sequence[str], *, rounds: int = 5, seconds: float = 3.0) -> list[float]:
    """Return each file's best rate in rows per second, including opening, with the files in turns."""
    best = [0.0] * len(paths)
    for number, path in list(enumerate(paths)) * rounds:
        start = time.perf_counter()
        with H5StreamLoader(path, shuffle=True, seed=0, fields=list(fields)) as loader:
            rows = measure_epoch(path, loader, seconds=seconds).rows
            best[number] = max(best[number], rows / (time.perf_counter() - start))
    return best


# --- the sample file: plain numbers, gzip and shuffle, chunks of 1 MiB, a label --------------------------


ROW_FLOATS = 256
CHUNK_ROWS = 1024
CLASSES = 10
_ROWS_AT_ONCE = 64 * CHUNK_ROWS


def sample_rows(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw rows of normal float32 with 11 significant bits."""
    return rng.standard_normal((count, ROW_FLOATS), dtype=np.float32).astype(np.float16).astype(np.float32)


def write_sample_file(
    path: Path | str,
    rows: int = 524_288,
    *,
    filters: Mapping[str, object] | None = None,
    chunks: tuple[int, int] | bool | None = (CHUNK_ROWS, ROW_FLOATS),
    progress: Callable[[int], None] = lambda rows: None,
) -> Path:
    """Write rows of 256 float32 with 11 significant bits to ``x``, and an int64 label to ``y``."""
    chosen: Mapping[str, object] = (
        {"compression": "gzip", "compression_opts": 4, "shuffle": True} if filters is None else filters
    )
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (rows, ROW_FLOATS), "f4", chunks=chunks, **chosen)
        y = file.create_dataset("y", (rows,), "i8", chunks=(min(rows, 8192),))
        for start in range(0, rows, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, rows)
            x[start:stop] = sample_rows(rng, stop - start)
            y[start:stop] = rng.integers(0, CLASSES, stop - start)
            progress(stop)
    return Path(path)
