"""Pipelines of filters, undone by steps in C that hold neither HDF5's lock nor the GIL.

Filters are undone in the reverse of the order in which they were applied, skipping those whose bit is set in the
chunk's filter mask. A byte shuffle that was applied first is *not* undone here: the engine fuses it with the scatter,
which saves a pass over memory. `compiled/pipeline.h` undoes the others; a filter that it does not know is a Python step
between them.

Source: HDF5 File Format Specification, "Data Storage - Filter Pipeline Message".
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import h5py
import numpy as np

from h5stream.compiled import _native as kernels
from h5stream.storage.decode.elements import element_nbytes
from h5stream.storage.decode.filters import (
    DEFLATE,
    KNOWN_NAMES,
    DecodeError,
    DecodeScratch,
    DecodingPlan,
    Filter,
    NotAskedError,
    StepsInC,
    check_packed,
    is_packing,
)
from h5stream.storage.decode.plugins import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The filters of a dataset, in the order of writing."""

    filters: tuple[Filter, ...] = ()  # empty for unfiltered data
    _cache: dict[tuple[int, int], DecodingPlan] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[functools.partial[Pipeline], tuple[()]]:
        # `__getstate__` would not do: dataclasses of Python 3.11.0 to 3.11.3 replace it.
        return functools.partial(Pipeline, filters=self.filters), ()

    def describe(self) -> str:
        """Return the filters' names in one text, such as ``shuffle + gzip-4``."""
        names = []
        for f in self.filters:
            name = KNOWN_NAMES.get(f.id) or f.name or f"filter {f.id}"
            names.append(f"{name}-{f.values[0]}" if f.id == DEFLATE and f.values else name)
        return " + ".join(names)

    def native(self, filter_mask: int, raw_nbytes: int) -> kernels.Pipeline | None:
        """Return the native pipeline that decodes a chunk; None if it needs Python steps or parameters are damaged.

        Elements stay shuffled if `decode` returns a shuffle width for them.
        """
        try:
            plan = self._plan(filter_mask, raw_nbytes)
        except DecodeError:  # `decode` raises it for each chunk
            return None
        first = plan.steps[0]
        return first.native if len(plan.steps) == 1 and isinstance(first, StepsInC) else None

    def decode(
        self, stored: Bytes, *, filter_mask: int, raw_nbytes: int, scratch: DecodeScratch, out: Bytes | None = None
    ) -> tuple[Bytes, int]:
        """Decode one chunk; return its bytes, and the element width of a shuffle that is still to be undone, or 0."""
        plan = self._plan(filter_mask, raw_nbytes)
        for step in plan.steps[:-1]:
            stored = step.undo(stored, scratch, None)
        return plan.steps[-1].undo(stored, scratch, out), plan.shuffled

    def _plan(self, filter_mask: int, raw_nbytes: int) -> DecodingPlan:
        """Return the steps for a filter mask, cached: files with small chunks have millions of chunks."""
        key = (filter_mask, raw_nbytes)
        plan = self._cache.get(key)
        if plan is None:
            plan = self._cache[key] = DecodingPlan.of(self.filters, filter_mask, raw_nbytes)
        return plan


def pipeline_of(creation: h5py.h5p.PropDCID) -> Pipeline:
    """Read the filter pipeline of an h5py dataset creation property list."""
    filters = []
    for i in range(creation.get_nfilters()):
        code, _flags, values, name = creation.get_filter(i)
        filters.append(Filter(id=code, values=tuple(map(int, values)), name=name.decode(errors="replace")))
    return Pipeline(filters=tuple(filters))


def check_stored(dataset: h5py.Dataset, start: tuple[int, ...] = (), count: tuple[int, ...] = ()) -> None:
    """Raise `OSError` if a chunk of a box is damaged in a way of which libhdf5 does not tell.

    Of a chunk that decodes to fewer bytes than it should have, libhdf5 gives what the memory held before; one that is
    shorter than its checksum crashes the process. Axes beyond those of `start` and `count` are read whole.
    """
    creation = dataset.id.get_create_plist()
    if creation.get_layout() != h5py.h5d.CHUNKED or not dataset.shape:
        return
    filters, scratch = pipeline_of(creation).filters, DecodeScratch()
    raw_nbytes = math.prod(dataset.chunks) * element_nbytes(dataset)
    for info in _chunks_in(dataset, start, (*count, *dataset.shape[len(count) :])):
        why = "" if info.size == raw_nbytes else f"it has no filter, and {raw_nbytes} bytes are promised"
        if filters:
            why = _untold_damage(dataset, info, filters, raw_nbytes, scratch)
        if why:
            raise OSError(f"chunk {info.chunk_offset} at byte {info.byte_offset} ({info.size} bytes) is corrupt: {why}")


def _chunks_in(dataset: h5py.Dataset, start: tuple[int, ...], count: tuple[int, ...]) -> Iterator[h5py.h5d.StoreInfo]:
    """Yield the written chunks of a box."""
    if count == dataset.shape:
        every: list[h5py.h5d.StoreInfo] = []
        dataset.id.chunk_iter(every.append)
        yield from every
        return
    start = (*start, *(0 for _ in count[len(start) :]))
    begins = (
        range(first // step * step, first + rows, step)
        for first, rows, step in zip(start, count, dataset.chunks, strict=True)
    )
    infos = map(dataset.id.get_chunk_info_by_coord, itertools.product(*begins))
    yield from (info for info in infos if info.byte_offset is not None)


def _is_at_edge(dataset: h5py.Dataset, info: h5py.h5d.StoreInfo) -> bool:
    """Return whether a chunk reaches beyond the data, so that it may be unfiltered (``H5Pset_chunk_opts``)."""
    ends = zip(info.chunk_offset, dataset.chunks, dataset.shape, strict=True)
    return any(first + step > rows for first, step, rows in ends)


def _untold_damage(
    dataset: h5py.Dataset,
    info: h5py.h5d.StoreInfo,
    filters: Sequence[Filter],
    raw_nbytes: int,
    scratch: DecodeScratch,
) -> str:
    """Return what is wrong with a filtered chunk, if libhdf5 would not tell; empty if it would, or nothing is."""
    try:
        # Its mask is of this call: libhdf5 lists wrong ones along an unlimited axis that is not the first.
        mask, stored = dataset.id.read_direct_chunk(info.chunk_offset)
        kept = [one for k, one in enumerate(filters) if not mask >> k & 1]
        if not mask and len(stored) == raw_nbytes and _is_at_edge(dataset, info):
            return ""
        packing = kept[:1] if kept and is_packing(kept[0]) else []
        outer = kept[len(packing) :]
        chunk: Bytes = np.frombuffer(stored, np.uint8)
        for step in DecodingPlan.of(outer, 0, raw_nbytes, is_whole=not packing).steps if outer or not packing else ():
            chunk = step.undo(chunk, scratch, None)
        for one in packing:
            check_packed(one, chunk, raw_nbytes)
    except NotAskedError as error:
        return str(error)
    except (DecodeError, OSError, RuntimeError):
        return ""  # which libhdf5 tells
    return ""
