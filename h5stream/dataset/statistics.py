"""Statistics of fields: one pass over the files by the loader's engine, kept in the user's cache folder."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from h5stream.base import limits
from h5stream.base.executors import Job, check_executor, run_jobs
from h5stream.base.hints import SAMPLES, hint
from h5stream.base.texts import check_ordered, counted, did_you_mean, names_in
from h5stream.dataset.moments import Moments, ValueCounts
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.changes import Unpacking, tensor_of, unpacking_of
from h5stream.engine.footprint import check_budget, default_budget
from h5stream.engine.kinds.ragged import RaggedRows, rows_of_values
from h5stream.engine.kinds.values import objects_of, strings_to_lists
from h5stream.engine.reader import RowReader
from h5stream.engine.run import Engine
from h5stream.engine.sizing import Sizing
from h5stream.engine.slots import SlotFormat, SlotRing
from h5stream.errors import FieldNotFoundError, OptionError
from h5stream.order.blocks import Blocks, Stretch, blocks_in, shuffled_blocks, stretches
from h5stream.order.epoch import EpochOrder, OrderSettings
from h5stream.order.places import Places
from h5stream.samples.ragged import ARRAYS, DENSE, changed
from h5stream.storage.decode.images import format_of
from h5stream.storage.decode.small_floats import widened, widened_dtype
from h5stream.storage.file.catalogue import Catalogue
from h5stream.storage.layout.layout import FieldLayout, SampleLayout, numbers_of
from h5stream.storage.source.one_file import FileIdentity
from h5stream.storage.source.remote import ObjectIdentity
from h5stream.structure import numbers_in

BATCH_NBYTES = 8 << 20
"""Bytes of a batch: large ones need less Python."""

BATCHES = 4
"""Batches of a window: few, so that memory is reused."""

PARTS = 4
"""Partial sums, filled in turn by threads and then merged: the same number everywhere, for the same result."""

JOB_NBYTES = 1 << 29
"""Minimum bytes of samples per pass: reading them takes a hundred times as long as starting the pass."""

MOST_JOBS = 64
"""Maximum number of passes, with or without an executor, for the same sums."""

STATISTICS = "statistics"
"""The kind of catalogues that hold statistics."""

Axes = int | np.integer | Sequence[int | np.integer]
"""The argument ``axis=`` for one field."""

KeptAxes = Sequence[tuple[int, tuple[int, ...]]]
"""Field numbers, each with the axes along which results are separate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldStatistics:
    """Statistics of all values of a field: as stored, before ``dtype=`` and normalization.

    With ``missing=`` they are of the resulting numbers, and missing values count as NaN.

    With `axis`, numbers are arrays with a value for each index of these axes; otherwise they are single numbers.

    Attributes
    ----------
    name : str
        The field.
    samples : int
        Samples that were read.
    count, nan, inf : int or ndarray of int64
        Numbers of finite values, of NaN and of infinite values; the statistics below are of finite values only.
    mean, std : float or ndarray of float64
        The mean and the standard deviation, with `count` as divisor; NaN if there are no values.
    min, max : int, float or ndarray
        The least and the largest value; NaN if there are none.
    counts : dict or None
        The number of occurrences of each value, in all samples, if there are up to 100 distinct values.
    shape : tuple of int
        The shape of `mean` that broadcasts with a sample: (3, 1, 1) for ``axis=0`` of (3, 64, 64).

    Examples
    --------
    >>> import h5py, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["x"], f["y"] = np.array([[1.0, 5], [3, 5]]), [0, 1]
    >>> from h5stream import Field, H5Dataset
    >>> known = H5Dataset(path, ["x", "y"]).statistics(axis={"x": -1})
    >>> known["x"].mean, known["x"].std, known["y"].counts
    (array([2., 5.]), array([1., 0.]), {0: 1, 1: 1})
    >>> H5Dataset(path, Field("x", normalize=known["x"].normalize()))[:]
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """

    name: str
    samples: int
    count: int | NDArray[np.int64]
    nan: int | NDArray[np.int64]
    inf: int | NDArray[np.int64]
    mean: float | NDArray[np.float64]
    std: float | NDArray[np.float64]
    min: float | NDArray[np.float64]
    max: float | NDArray[np.float64]
    counts: dict[Any, int] | None
    shape: tuple[int, ...]

    def normalize(self) -> dict[str, Any]:
        """Return ``normalize=`` of a `Field` that brings this field to a mean of 0 and a standard deviation of 1.

        Returns
        -------
        dict
            ``mean`` and ``std``; without variation, or without values, the deviation is 1, and the mean as it is, or 0.

        Raises
        ------
        OptionError
            If the field is text.
        """
        if self.counts and isinstance(next(iter(self.counts)), str | bytes):
            raise OptionError(f"{self.name!r} is text, which has no mean; normalize() is for numbers")
        mean, std = (np.array(value, dtype=np.float64) for value in (self.mean, self.std))
        mean, std = np.where(np.isfinite(mean), mean, 0.0), np.where(np.isfinite(std) & (std > 0), std, 1.0)
        return {"mean": mean.reshape(self.shape), "std": std.reshape(self.shape)}

    def to_dict(self) -> dict[str, object]:
        """Return the attributes as plain numbers, lists and texts.

        Returns
        -------
        dict
            By attribute name; None for unknown values, and `counts` as pairs of a value and its count.
        """
        counts = None if self.counts is None else [[_plain(value), often] for value, often in self.counts.items()]
        entries = {name: _plain(value) for name, value in dataclasses.asdict(self).items()}
        return entries | {"counts": counts, "shape": list(self.shape)}


def statistics_of(
    layout: SampleLayout,
    rows: NDArray[np.int64] | None,
    names: Iterable[str] | None,
    axis: Axes | Mapping[str, Axes | None] | None,
    executor: Executor | None,
) -> dict[str, FieldStatistics]:
    """Return the statistics of some fields, from the cache or a pass over the files; see `H5Dataset.statistics`."""
    check_executor(executor)
    chosen = _chosen(layout, names)
    axes = _axes(layout, chosen, axis)
    numbers = [number for of_field in chosen.values() for number in of_field]
    layout = _as_stored(layout.only(numbers))
    file = layout.files[0]  # whose catalogue keeps them; all other files are part of the key
    is_watched = all(one.is_watched for one in layout.files)
    beside = file if is_watched and isinstance(file, (FileIdentity, ObjectIdentity)) else None
    kept = Catalogue(beside, STATISTICS, f"{', '.join(chosen)[:80]}, {_digest((layout, rows, axes))}")
    if kept.is_kept:
        try:
            return {name: _from_text(text) for name, text in zip(chosen, kept.names(STATISTICS), strict=True)}
        except (ValueError, KeyError, TypeError):
            kept.forget()
    blocks = shuffled_blocks(layout, rows)
    kept_axes = [(numbers.index(first), axes[name]) for name, (first, *_) in chosen.items()]
    all_sums = _merged(run_jobs(_jobs(layout, rows, blocks, kept_axes), executor))
    results = {name: sums.result(name, blocks.total_rows) for name, sums in zip(chosen, all_sums, strict=True)}
    images = {name: sums.image for name, sums in zip(chosen, all_sums, strict=True) if sums.image}
    for name, image in images.items():
        way_out = f"fields=Field({name!r}, decode={image!r}) has those of the pixels"
        hint(
            f"statistics: field {name!r} has images, and these are statistics of their encoded bytes; {way_out}",
            SAMPLES,
        )
    if not images:  # or the next call would not say it
        kept.put(STATISTICS, [_to_text(one) for one in results.values()])
        kept.save(blocks.total_rows, 0)
    return results


# --- which fields ---------------------------------------------------------------------------------------------


def _chosen(layout: SampleLayout, names: Iterable[str] | None) -> dict[str, list[int]]:
    """Return the numbers of the chosen fields by name; by default of all fields that have statistics."""
    every = {name: [*numbers_of(leaf)] for name, leaf in layout.leaves}
    unfit = {}
    for name, (number, *_) in every.items():
        if layout.fields[number].shapes is not None:
            unfit[name] = f"each sample of field {name!r} has a shape of its own"
        elif layout.fields[number].dtype.kind == "c":
            unfit[name] = f"field {name!r} is of complex numbers, which have no order"
    fit = [name for name in every if name not in unfit]
    wanted = fit if names is None else [names] if isinstance(names, str) else [*names_in("statistics: fields=", names)]
    for name in wanted:
        if name not in every:
            raise FieldNotFoundError(
                f"statistics: the data set has no field {name!r}; it has {', '.join(map(repr, every))}."
                f"{did_you_mean(str(name), list(every))}",
                field=str(name),
            )
        if name in unfit:
            raise OptionError(f"statistics: {unfit[name]}; leave it out")
    return {name: every[name] for name in wanted}


def _axes(
    layout: SampleLayout, chosen: Mapping[str, list[int]], axis: Axes | Mapping[str, Axes | None] | None
) -> dict[str, tuple[int, ...]]:
    """Return the axes of a sample that are kept for each field; raise for axes that do not exist."""
    requested = axis if isinstance(axis, Mapping) else dict.fromkeys(chosen, axis)
    if unknown := set(requested) - set(chosen):
        raise OptionError(f"statistics: axis= names {min(unknown)!r}, and fields are {', '.join(chosen)}")
    axes = {
        name: _checked_axes(name, layout.fields[of_field[0]], requested.get(name)) for name, of_field in chosen.items()
    }
    is_for_all = axis is not None and not isinstance(axis, Mapping) and not (isinstance(axis, Sequence) and not axis)
    if is_for_all and len(chosen) == 1 and not any(axes.values()):
        raise OptionError(f"statistics: samples of field {min(axes)!r} are single values and have no axis {axis!r}")
    return axes


def _checked_axes(name: str, field: FieldLayout, requested: Axes | None) -> tuple[int, ...]:
    check_ordered("statistics: axis=", requested)
    axes = () if requested is None else tuple(requested) if isinstance(requested, Sequence) else (requested,)
    if not all(isinstance(entry, (int, np.integer)) and not isinstance(entry, bool) for entry in axes):
        raise OptionError(f"statistics: axis= is a number, several, or a dict of them by field, not {requested!r}")
    if field.is_listed:
        return tuple(map(int, axes)) if field.images is not None else ()
    dense = field.ragged is not None and field.ragged.form == DENSE
    many = (field.kind == "ragged" or field.is_of_values) and not dense
    shape = (field.ragged.wanted,) if dense and field.ragged is not None else field.row_shape
    dims = len(shape) + many
    if dims == 0 or not axes:
        return ()  # labels, beside the field that is meant
    kept = sorted({int(entry) + dims * bool(entry < 0) for entry in axes})
    if kept[0] < 0 or kept[-1] >= dims or (many and kept[0] == 0):
        has = counted(dims, "axis", "axes")
        has += ", of which the first has another length in each" if many else f", of {shape}"
        way_out = "a dict names the axis of some fields, axis={NAME: -1}"
        raise OptionError(f"statistics: axis={requested!r}, and a sample of field {name!r} has {has}; {way_out}")
    return tuple(entry - dims for entry in kept)


def _as_stored(layout: SampleLayout) -> SampleLayout:
    """Return the same fields without cast and normalization, and ragged ones without padding."""
    fields = []
    for field in layout.fields:
        form = field.ragged.form if field.ragged and field.ragged.form in (DENSE, ARRAYS) else "packed"
        fields.append(
            replace(field, cast=None, normalize=None, ragged=field.ragged and changed(field.ragged, form=form))
        )
    return replace(layout, fields=tuple(fields))


# --- the pass -------------------------------------------------------------------------------------------------


def _jobs(layout: SampleLayout, rows: Places | None, blocks: Blocks, axes: KeptAxes) -> list[Job]:
    """Cut the blocks of all files into passes over about equal numbers of samples."""
    parts = stretches(blocks, max(1, min(MOST_JOBS, blocks.total_rows * layout.row_nbytes // JOB_NBYTES)))
    jobs = []
    for edges, chosen in parts:
        file = layout.files[layout.files_of(edges[:1] if chosen is None else chosen[:1])[0]].each()[0]
        jobs.append((file.path, _summed, (layout, rows if len(parts) == 1 else chosen, (edges, chosen), axes)))
    return jobs


def _merged(passes: Iterable[list[_FieldSums]]) -> list[_FieldSums]:
    """Add up the sums of several passes, in their order."""
    total, *others = passes
    for other in others:
        for sums, addition in zip(total, other, strict=True):
            sums.merge(addition)
    return total


def _summed(layout: SampleLayout, rows: Places | None, stretch: Stretch, axes: KeptAxes) -> list[_FieldSums]:
    """Add up all values of the fields in one pass: batches go to a few threads in turn, whose sums are merged."""
    parts = [[(n, _FieldSums(layout.fields[n], kept)) for n, kept in axes] for _ in range(PARTS)]
    unpackings = {n: unpacking_of(layout.fields[n]) for n, _ in axes}
    pending: collections.deque[Future[None]] = collections.deque()

    def look(part: list[tuple[int, _FieldSums]], batch: ReadyBatch, slot_format: SlotFormat) -> None:
        for number, sums in part:
            values = _values_of(batch, slot_format, number, layout.fields[number])
            sums.add(_unpacked(values, unpackings[number], batch, slot_format, number, layout.fields))
        batch.slot.give_back()

    with ThreadPoolExecutor(min(PARTS, limits.cpus()), "h5stream-statistics") as threads:
        for k, (batch, slot_format) in enumerate(read_through(layout, rows, stretch)):
            if len(pending) == PARTS:
                pending.popleft().result()  # the one that the same part had
            pending.append(threads.submit(look, parts[k % PARTS], batch, slot_format))
        for one in pending:
            one.result()
    return _merged([sums for _, sums in part] for part in parts)


def read_through(
    layout: SampleLayout, rows: Places | None, stretch: Stretch, threads: int | None = None
) -> Iterator[tuple[ReadyBatch, SlotFormat]]:
    """Yield samples, block by block, in file order; the consumer gives the slot of each batch back."""
    blocks = blocks_in(stretch)
    budget = check_budget(default_budget(limits.memory_total_bytes()))
    batch_rows = max(1, min(blocks.total_rows, BATCH_NBYTES // max(1, layout.row_nbytes)))
    size = Sizing(
        layout=layout,
        selected=rows,
        batch_rows=batch_rows,
        memory_budget=budget,
        most_budget=max(budget, limits.memory_total_bytes() // 2),
        threads=threads or limits.cpus(),
        threads_asked=threads is not None,
        shuffle=False,
    ).choose(min(blocks.total_rows, BATCHES * batch_rows))
    settings = OrderSettings(
        batch_size=batch_rows, window_rows=size.window_rows, first_window_rows=size.first_window_rows, shuffle=False
    )
    slot_format = SlotFormat.for_rows(layout.fields, batch_rows)
    slots = functools.partial(SlotRing, slot_format.nbytes, most_slots=size.max_open_batches)
    order = EpochOrder(blocks, settings).as_filled(size.batches_at_once)
    # Which ends the pass, also one that Ctrl-C cuts short as it begins.
    with contextlib.closing(
        Engine(RowReader(layout, {}, size.kept), slot_format, slots, threads=size.threads)
    ) as engine:
        run = engine.begin(order, 0, max_open_batches=size.max_open_batches)
        while (batch := run.next_batch()) is not None:
            yield batch, slot_format


def _values_of(batch: ReadyBatch, slot_format: SlotFormat, number: int, field: FieldLayout) -> Any:
    """Return a field's values in a batch: an array, or a list if they are not numbers or differ in shape."""
    if field.kind == "object" and not (field.ragged and field.is_of_values and field.ragged.form != ARRAYS):
        return objects_of(batch.objects[number], field)
    if field.kind in ("object", "ragged"):
        rows = rows_of_values(batch.objects[number], field) if field.is_of_values else batch.objects[number]
        assert isinstance(rows, RaggedRows)
        shape = (field.form.wanted,) if field.form.form == DENSE else field.row_shape
        laid = rows.arrange()
        if field.is_listed:
            return laid
        values = laid.view(field.dtype)
        return values.reshape(values.size // max(1, math.prod(shape)), *shape)
    start = slot_format.offsets[number]
    values = batch.slot.memory[start : start + batch.rows * field.row_nbytes].view(field.dtype)
    shaped = values.reshape(batch.rows, *field.row_shape)
    return strings_to_lists(shaped, cut_at_nul=field.cut_at_nul) if field.kind == "bytes" else shaped


def _unpacked(
    values: Any,
    unpacking: Unpacking | None,
    batch: ReadyBatch,
    slot_format: SlotFormat,
    number: int,
    fields: Sequence[FieldLayout],
) -> Any:
    """Return the decoded floats of a field with ``missing=``, or else its values."""
    if unpacking is None:
        return widened(values)
    which, by = None, fields[number].packed_by
    if by is not None:
        which = torch.from_numpy(_values_of(batch, slot_format, by, fields[by]))
        if fields[number].kind == "ragged":
            which = which.repeat_interleave(torch.from_numpy(np.diff(batch.objects[number].of.offsets)))
    raw = tensor_of(values)
    out = torch.empty(raw.shape, dtype=unpacking.dtype)
    unpacking.into(out, raw, which)
    return out.numpy()


class _FieldSums:
    """The running statistics of a field."""

    def __init__(self, field: FieldLayout, axes: tuple[int, ...]) -> None:
        self._name, self._axes = field.name, axes
        self._moments: Moments | None = None  # None until there is a value
        self._kept: tuple[int, ...] = ()  # the lengths of the axes
        self.image: str | None = None  # the format of the first value, empty if it is no encoded image
        is_few = (
            field.kind in ("bytes", "object")
            or field.is_listed
            or widened_dtype(field.dtype).kind in "biu"
            or not field.row_shape
        )
        self._counts = ValueCounts() if is_few and (field.kind != "ragged" or field.is_listed) else None

    def add(self, values: np.ndarray | list[object]) -> None:
        """Add values: an array, or a list if they are not numbers or differ in shape."""
        if not isinstance(values, list):
            self._add_array(values)
            return
        every = [*_flat(values)]
        if self._counts is not None:
            self._counts.add([value for value in every if isinstance(value, (bytes, str))])
        for value in every:
            if isinstance(value, torch.Tensor):
                self._add_array(numbers_in(value)[None])

    def _add_array(self, values: np.ndarray) -> None:
        if not values.size:
            return
        if self.image is None:
            is_text = values.dtype == np.uint8 and values.ndim < 3  # pixels have more axes
            self.image = format_of(values.reshape(-1)[:16].tobytes()) if is_text else ""
        if self._counts is not None:
            self._counts.add(values)
        # Axes of pictures are as the user counts them: their number is only known here.
        self._axes = tuple(axis - (values.ndim - 1) * (axis >= 0) for axis in self._axes)
        moved = np.moveaxis(values, self._axes, range(-len(self._axes), 0)) if self._axes else values
        kept = moved.shape[moved.ndim - len(self._axes) :]
        self._moments_of(values.dtype, kept).add(moved.reshape(-1, math.prod(kept)))

    def _moments_of(self, dtype: np.dtype, kept: tuple[int, ...]) -> Moments:
        """Return the moments for values of this shape; raise if an earlier shape differs."""
        if self._moments is None:
            self._moments, self._kept = Moments(dtype, math.prod(kept)), kept
        if kept != self._kept:
            raise OptionError(
                f"statistics: field {self._name!r} has samples of {self._kept} and of {kept} along axis={self._axes}; "
                "leave axis= out for it"
            )
        return self._moments

    def merge(self, other: _FieldSums) -> None:
        """Add the values of another instance."""
        if self._counts is not None and other._counts is not None:
            self._counts.merge(other._counts)
        if self._moments is None:
            self.image = other.image
            self._moments, self._kept, self._axes = other._moments, other._kept, other._axes
        elif other._moments is not None:
            self._moments_of(np.dtype(bool), other._kept).merge(other._moments)

    def result(self, name: str, samples: int) -> FieldStatistics:
        """Return the final statistics."""
        counts = None if self._counts is None else self._counts.counts
        few = None if counts is None else dict(sorted(counts.items(), key=_by_value))
        moments = self._moments or Moments(np.dtype(np.float64), 1)
        every = {name: getattr(moments, name) for name in ("count", "nan", "inf", "mean", "std")}
        for extreme, value in (("min", moments.least), ("max", moments.most)):
            extremes = np.full(1, np.nan) if value is None else value
            every[extreme] = (
                extremes if moments.is_whole else np.where(moments.count > 0, extremes.astype(np.float64), np.nan)
            )
        shaped = {key: value.reshape(self._kept) if self._kept else value[0].item() for key, value in every.items()}
        lengths = dict(zip(self._axes, self._kept, strict=False))
        shape = tuple(lengths.get(axis, 1) for axis in range(min(lengths, default=0), 0))
        return FieldStatistics(name=name, samples=samples, counts=few, shape=shape, **shaped)


def _flat(values: list[object]) -> Iterator[object]:
    """Yield the items of nested lists."""
    for value in values:
        if isinstance(value, list):
            yield from _flat(value)
        else:
            yield value


def _by_value(item: tuple[Any, int]) -> Any:
    value = item[0]
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


# --- what is kept ---------------------------------------------------------------------------------------------


def _to_text(statistics: FieldStatistics) -> str:
    counts = None if statistics.counts is None else [*statistics.counts.items()]
    return json.dumps(dataclasses.asdict(statistics) | {"counts": counts}, default=_coded)


def _from_text(text: str) -> FieldStatistics:
    every = json.loads(text, object_hook=_decoded)
    counts = None if every["counts"] is None else dict(every["counts"])
    return FieldStatistics(**every | {"counts": counts, "shape": tuple(every["shape"])})


def _coded(value: bytes | np.ndarray | np.generic) -> dict[str, object]:
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    return {"array": value.tolist(), "dtype": value.dtype.str}


def _decoded(value: dict[str, Any]) -> object:
    if "array" in value:
        return np.array(value["array"], dtype=value["dtype"])
    return value["bytes"].encode("latin-1") if "bytes" in value else value


def _plain(value: object) -> object:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _digest(value: object) -> str:
    """Return a digest of a layout, arrays and options."""
    return hashlib.sha256(json.dumps(value, default=_jsonable).encode()).hexdigest()[:24]


def _jsonable(value: object) -> object:
    """Return a value that JSON can encode: a dataclass by its fields without derived ones, an array by a digest."""
    if dataclasses.is_dataclass(value):
        shown = (field.name for field in dataclasses.fields(value) if field.repr)
        return [type(value).__qualname__, *(getattr(value, name) for name in shown)]
    if not isinstance(value, np.ndarray):
        return dict(value) if isinstance(value, Mapping) else repr(value)
    if value.dtype.kind == "O":
        return value.tolist()
    content = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    return [str(value.dtype), value.shape, hashlib.sha256(content).hexdigest()]
