"""Statistics of fields: one pass over the files by the loader's engine, kept in the user's cache folder."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from h5stream.base import limits
from h5stream.base.executors import Job, check_executor, run_jobs
from h5stream.base.texts import check_ordered, did_you_mean, names_in
from h5stream.dataset.moments import Moments, ValueCounts
from h5stream.engine.assemble import objects_of, strings_to_lists, tensor_of, unpacking_of
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.footprint import Sizing, check_budget, default_budget
from h5stream.engine.ragged import RaggedRows, rows_of_values
from h5stream.engine.reader import RowReader
from h5stream.engine.run import Engine
from h5stream.engine.slots import SlotFormat, SlotRing
from h5stream.engine.unpacking import Unpacking
from h5stream.errors import FieldNotFoundError, OptionError
from h5stream.order.blocks import Blocks, Stretch, blocks_in, shuffled_blocks, stretches
from h5stream.order.epoch import EpochOrder
from h5stream.order.line import OrderSettings
from h5stream.order.places import Places
from h5stream.samples.ragged import ARRAYS, DENSE, changed
from h5stream.storage.decode.small_floats import widened, widened_dtype
from h5stream.storage.file.catalogue import Catalogue
from h5stream.storage.layout.layout import FieldLayout, SampleLayout, numbers_of
from h5stream.storage.source.local import FileIdentity
from h5stream.storage.source.remote import ObjectIdentity
from h5stream.structure import numbers_in

BATCH_NBYTES = 8 << 20
"""Bytes of a batch: the fewer batches, the less Python between them."""

BATCHES = 4
"""Batches of a window: few, so that the same memory is used again and again."""

PARTS = 4
"""Sums that batches are added to in turn, by threads, and merged: as many everywhere, so that they are the same."""

JOB_NBYTES = 1 << 29
"""Bytes of samples that one pass goes over, at least: they take a hundred times as long as to begin it."""

MOST_JOBS = 64
"""Passes, at most; as many with an executor as without, so that the sums are the same."""

STATISTICS = "statistics"
"""What catalogues of statistics are of."""

KeptAxes = Sequence[tuple[int, tuple[int, ...]]]
"""Numbers of fields, each with the axes along which results are apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldStatistics:
    """What is known of all values of a field: as the file has them, before ``dtype=`` and normalization.

    With ``missing=`` they are the numbers that come of it: what is missing counts as NaN.

    With `axis` given, numbers are arrays with a value for each index of these axes; else they are single numbers.

    Attributes
    ----------
    name : str
        The field.
    samples : int
        Samples that were read.
    count, nan, inf : int or ndarray of int64
        Finite values, and those that are not; NaN and infinity have no share in what follows.
    mean, std : float or ndarray of float64
        Their mean, and the root of their mean squared distance from it, divided by `count`; NaN where there are none.
    min, max : int, float or ndarray
        The least and the largest; NaN where there are none.
    counts : dict or None
        How often each value comes, where there are up to 100 of them; of all samples together.
    shape : tuple of int
        That of `mean` with the axes of a sample kept, so that it fits one: (3, 1, 1) for ``axis=0`` of (3, 64, 64).

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
    count: Any
    nan: Any
    inf: Any
    mean: Any
    std: Any
    min: Any
    max: Any
    counts: dict[Any, int] | None
    shape: tuple[int, ...]

    def normalize(self) -> dict[str, Any]:
        """Return what `Field` takes to bring this field to a mean of 0 and a standard deviation of 1.

        Returns
        -------
        dict
            ``mean`` and ``std``; where nothing varies, or nothing is known, the deviation is 1, and the mean as it is,
            or 0.

        Raises
        ------
        OptionError
            Of text.
        """
        if self.counts and isinstance(next(iter(self.counts)), str | bytes):
            raise OptionError(f"{self.name!r} is text, which has no mean; normalize() is for numbers")
        mean, std = (np.array(each, dtype=np.float64) for each in (self.mean, self.std))
        mean, std = np.where(np.isfinite(mean), mean, 0.0), np.where(np.isfinite(std) & (std > 0), std, 1.0)
        return {"mean": mean.reshape(self.shape), "std": std.reshape(self.shape)}

    def normalise(self) -> dict[str, Any]:
        """Return what `normalize` does, under its name of 0.3.

        Returns
        -------
        dict
            ``mean`` and ``std``.
        """
        said = "FieldStatistics.normalise() will be removed in 0.4: write normalize()"
        warnings.warn(said, DeprecationWarning, stacklevel=2)
        return self.normalize()

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, lists and texts.

        Returns
        -------
        dict
            By attribute; None for what is not known, and `counts` as pairs of a value and how often it comes.
        """
        counts = None if self.counts is None else [[_plain(value), often] for value, often in self.counts.items()]
        found = {name: _plain(value) for name, value in dataclasses.asdict(self).items()}
        return found | {"counts": counts, "shape": list(self.shape)}


def statistics_of(
    layout: SampleLayout, rows: NDArray[np.int64] | None, names: Any, axis: Any, executor: Executor | None
) -> dict[str, FieldStatistics]:
    """Return the statistics of some fields, kept ones or of a pass over the files; see `H5Dataset.statistics`."""
    check_executor(executor)
    chosen = _chosen(layout, names)
    axes = _axes(layout, chosen, axis)
    numbers = [number for some in chosen.values() for number in some]
    layout = _as_stored(layout.only(numbers))
    file = layout.files[0]  # beside whose catalogues they are kept; the others are part of what they are known by
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
    watched = _merged(run_jobs(_jobs(layout, rows, blocks, kept_axes), executor))
    found = {name: each.found(name, blocks.total_rows) for name, each in zip(chosen, watched, strict=True)}
    kept.put(STATISTICS, [_to_text(one) for one in found.values()])
    kept.save(blocks.total_rows, 0)
    return found


# --- which fields ---------------------------------------------------------------------------------------------


def _chosen(layout: SampleLayout, names: Any) -> dict[str, list[int]]:
    """Return the numbers of the fields that are meant, by name; by default those of which anything can be said."""
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
                f"statistics: the data set has no field {name!r}; it has {', '.join(map(repr, every))}"
                f"{did_you_mean(str(name), list(every))}",
                field=str(name),
            )
        if name in unfit:
            raise OptionError(f"statistics: {unfit[name]}; leave it out")
    return {name: every[name] for name in wanted}


def _axes(layout: SampleLayout, chosen: Mapping[str, list[int]], axis: Any) -> dict[str, tuple[int, ...]]:
    """Return the axes of a sample that are kept, for each field; refuse those that it has not."""
    given = axis if isinstance(axis, Mapping) else dict.fromkeys(chosen, axis)
    if unknown := set(given) - set(chosen):
        raise OptionError(f"statistics: axis= names {min(unknown)!r}, and fields are {', '.join(chosen)}")
    found = {name: _checked_axes(name, layout.fields[some[0]], given.get(name)) for name, some in chosen.items()}
    if axis is not None and np.size(axis) and given is not axis and len(chosen) == 1 and not any(found.values()):
        raise OptionError(f"statistics: samples of field {min(found)!r} are single values and have no axis {axis!r}")
    return found


def _checked_axes(name: str, field: FieldLayout, given: Any) -> tuple[int, ...]:
    check_ordered("statistics: axis=", given)
    axes = () if given is None else tuple(given) if isinstance(given, Sequence) else (given,)
    if not all(isinstance(each, (int, np.integer)) and not isinstance(each, bool) for each in axes):
        raise OptionError(f"statistics: axis= is a number, several, or a dict of them by field, not {given!r}")
    if field.is_listed:
        return axes if field.images is not None else ()
    dense = field.ragged is not None and field.ragged.form == DENSE
    many = (field.kind == "ragged" or field.is_of_values) and not dense
    shape = (field.ragged.wanted,) if dense and field.ragged is not None else field.row_shape
    dims = len(shape) + many
    if dims == 0 or not axes:
        return ()  # labels, beside the field that is meant
    kept = sorted({int(each) + dims * (each < 0) for each in axes})
    if kept[0] < 0 or kept[-1] >= dims or (many and kept[0] == 0):
        has = f"{dims} axes{', of which the first has another length in each' if many else f', of {shape}'}"
        raise OptionError(f"statistics: axis={given!r}, and a sample of field {name!r} has {has}")
    return tuple(each - dims for each in kept)


def _as_stored(layout: SampleLayout) -> SampleLayout:
    """Return the same fields without what is done to them, and ragged ones without padding."""
    fields = []
    for field in layout.fields:
        form = field.ragged.form if field.ragged and field.ragged.form in (DENSE, ARRAYS) else "packed"
        fields.append(
            replace(field, cast=None, normalize=None, ragged=field.ragged and changed(field.ragged, form=form))
        )
    return replace(layout, fields=tuple(fields))


# --- the pass -------------------------------------------------------------------------------------------------


def _jobs(layout: SampleLayout, rows: Places | None, blocks: Blocks, axes: KeptAxes) -> list[Job]:
    """Cut the blocks of all files into passes over about as many samples each."""
    parts = stretches(blocks, max(1, min(MOST_JOBS, blocks.total_rows * layout.row_nbytes // JOB_NBYTES)))
    jobs = []
    for edges, chosen in parts:
        file = layout.files[layout.files_of(edges[:1] if chosen is None else chosen[:1])[0]].each()[0]
        jobs.append((file.path, _watched, (layout, rows if len(parts) == 1 else chosen, (edges, chosen), axes)))
    return jobs


def _merged(passes: Iterable[list[_Watched]]) -> list[_Watched]:
    """Add up what several passes saw, in their order."""
    found, *others = passes
    for other in others:
        for each, more in zip(found, other, strict=True):
            each.merge(more)
    return found


def _watched(layout: SampleLayout, rows: Places | None, stretch: Stretch, axes: KeptAxes) -> list[_Watched]:
    """Let all values of fields, given by number, go by: each batch in the next of a few threads; sums are merged."""
    parts = [[(n, _Watched(layout.fields[n], kept)) for n, kept in axes] for _ in range(PARTS)]
    unpackings = {n: unpacking_of(layout.fields[n]) for n, _ in axes}
    looking: collections.deque[Future[None]] = collections.deque()

    def look(part: list[tuple[int, _Watched]], batch: ReadyBatch, slot_format: SlotFormat) -> None:
        for number, each in part:
            values = _values_of(batch, slot_format, number, layout.fields[number])
            each.add(_unpacked(values, unpackings[number], batch, slot_format, number, layout.fields))
        batch.slot.give_back()

    with ThreadPoolExecutor(min(PARTS, limits.cpus()), "h5stream-statistics") as threads:
        for k, (batch, slot_format) in enumerate(read_through(layout, rows, stretch)):
            if len(looking) == PARTS:
                looking.popleft().result()  # the one that the same part had
            looking.append(threads.submit(look, parts[k % PARTS], batch, slot_format))
        for one in looking:
            one.result()
    return _merged([each for _, each in part] for part in parts)


def read_through(
    layout: SampleLayout, rows: Places | None, stretch: Stretch, threads: int | None = None
) -> Iterator[tuple[ReadyBatch, SlotFormat]]:
    """Read samples, block by block, in the order in which they lie; whoever gets a batch gives its slot back."""
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
    engine = Engine(RowReader(layout, {}, size.kept), slot_format, slots, threads=size.threads)
    order = EpochOrder(blocks, settings).as_filled(size.batches_at_once)
    run = engine.begin(order, 0, max_open_batches=size.max_open_batches)
    try:
        while (batch := run.next_batch()) is not None:
            yield batch, slot_format
    finally:
        run.stop()
        engine.close()


def _values_of(batch: ReadyBatch, slot_format: SlotFormat, number: int, field: FieldLayout) -> Any:
    """Return a field's values in a batch: an array, or a list of what is no number or of unlike shape."""
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
    values = batch.slot.memory[start : start + batch.rows * field.row_nbytes]
    shaped = values.view(field.dtype).reshape(batch.rows, *field.row_shape) if field.row_nbytes else values[:0]
    return strings_to_lists(shaped, cut_at_nul=field.cut_at_nul) if field.kind == "bytes" else shaped


def _unpacked(
    values: Any,
    unpacking: Unpacking | None,
    batch: ReadyBatch,
    slot_format: SlotFormat,
    number: int,
    fields: Sequence[FieldLayout],
) -> Any:
    """Return the floats that stored numbers of a field mean, where it has missing=; else its values as they are."""
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


class _Watched:
    """A field whose values go by."""

    def __init__(self, field: FieldLayout, axes: tuple[int, ...]) -> None:
        self._name, self._axes = field.name, axes
        self._moments: Moments | None = None  # once there was a value
        self._kept: tuple[int, ...] = ()  # how long the axes are
        is_few = (
            field.kind in ("bytes", "object")
            or field.is_listed
            or widened_dtype(field.dtype).kind in "biu"
            or not field.row_shape
        )
        self._counts = ValueCounts() if is_few and (field.kind != "ragged" or field.is_listed) else None

    def add(self, values: Any) -> None:
        """Look at an array, or at a list of what is no number or of unlike shape."""
        if not isinstance(values, list):
            self._add_array(values)
            return
        every = [*_flat(values)]
        if self._counts is not None:
            self._counts.add([value for value in every if isinstance(value, (bytes, str))])
        for value in every:
            if isinstance(value, torch.Tensor):
                self._add_array(numbers_in(value)[None])

    def _add_array(self, values: NDArray[Any]) -> None:
        if not values.size:
            return
        if self._counts is not None:
            self._counts.add(values)
        # Of pictures the axes are as the user counts them: their number is known only here.
        self._axes = tuple(axis - (values.ndim - 1) * (axis >= 0) for axis in self._axes)
        moved = np.moveaxis(values, self._axes, range(-len(self._axes), 0)) if self._axes else values
        kept = moved.shape[moved.ndim - len(self._axes) :]
        self._moments_of(values.dtype, kept).add(moved.reshape(-1, math.prod(kept)))

    def _moments_of(self, dtype: np.dtype[Any], kept: tuple[int, ...]) -> Moments:
        """Return the moments that values of this shape are added to; of another shape than before they are refused."""
        if self._moments is None:
            self._moments, self._kept = Moments(dtype, math.prod(kept)), kept
        if kept != self._kept:
            raise OptionError(
                f"statistics: field {self._name!r} has samples of {self._kept} and of {kept} along axis={self._axes}; "
                "leave axis= out for it"
            )
        return self._moments

    def merge(self, other: _Watched) -> None:
        """Add what another one saw."""
        if self._counts is not None and other._counts is not None:
            self._counts.merge(other._counts)
        if self._moments is None:
            self._moments, self._kept, self._axes = other._moments, other._kept, other._axes
        elif other._moments is not None:
            self._moments_of(np.dtype(bool), other._kept).merge(other._moments)

    def found(self, name: str, samples: int) -> FieldStatistics:
        """Return what was seen."""
        counts = None if self._counts is None else self._counts.counts
        few = None if counts is None else dict(sorted(counts.items(), key=_by_value))
        known = self._moments or Moments(np.dtype(np.float64), 1)
        every = {name: getattr(known, name) for name in ("count", "nan", "inf", "mean", "std")}
        for extreme, value in (("min", known.least), ("max", known.most)):
            seen = np.full(1, np.nan) if value is None else value
            every[extreme] = seen if known.is_whole else np.where(known.count > 0, seen.astype(np.float64), np.nan)
        shaped = {key: value.reshape(self._kept) if self._kept else value[0].item() for key, value in every.items()}
        lengths = dict(zip(self._axes, self._kept, strict=False))
        shape = tuple(lengths.get(axis, 1) for axis in range(min(lengths, default=0), 0))
        return FieldStatistics(name=name, samples=samples, counts=few, shape=shape, **shaped)


def _flat(values: list[Any]) -> Iterator[Any]:
    """Yield what lists hold, however deep."""
    for value in values:
        if isinstance(value, list):
            yield from _flat(value)
        else:
            yield value


def _by_value(item: tuple[Any, int]) -> Any:
    value = item[0]
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


# --- what is kept ---------------------------------------------------------------------------------------------


def _to_text(found: FieldStatistics) -> str:
    counts = None if found.counts is None else [*found.counts.items()]
    return json.dumps(dataclasses.asdict(found) | {"counts": counts}, default=_coded)


def _from_text(text: str) -> FieldStatistics:
    every = json.loads(text, object_hook=_decoded)
    counts = None if every["counts"] is None else dict(every["counts"])
    return FieldStatistics(**every | {"counts": counts, "shape": tuple(every["shape"])})


def _coded(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    return {"array": value.tolist(), "dtype": value.dtype.str}


def _decoded(value: dict[str, Any]) -> Any:
    if "array" in value:
        return np.array(value["array"], dtype=value["dtype"])
    return value["bytes"].encode("latin-1") if "bytes" in value else value


def _plain(value: Any) -> Any:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _digest(value: Any) -> str:
    """Return a digest of a value of ours: of all that it is made of."""
    return hashlib.sha256(json.dumps(value, default=_told).encode()).hexdigest()[:24]


def _told(value: Any) -> Any:
    """Return what JSON can write of a value that it cannot: of a dataclass, but for what is worked out on the way."""
    if dataclasses.is_dataclass(value):
        shown = (field.name for field in dataclasses.fields(value) if field.repr)
        return [type(value).__qualname__, *(getattr(value, name) for name in shown)]
    if not isinstance(value, np.ndarray):
        return dict(value) if isinstance(value, Mapping) else repr(value)
    if value.dtype.kind == "O":
        return value.tolist()
    content = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    return [str(value.dtype), value.shape, hashlib.sha256(content).hexdigest()]
