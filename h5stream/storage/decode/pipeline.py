"""Pipelines of filters, undone by steps in C that hold neither HDF5's lock nor the GIL.

Filters are undone in the reverse of the order in which they were applied, skipping those whose bit is set in the
chunk's filter mask. A byte shuffle that was applied first is *not* undone here: the engine fuses it with the scatter,
which saves a pass over memory. `compiled/pipeline.h` undoes the others; a filter that it does not know is a Python step
between them.

Source: HDF5 File Format Specification, "Data Storage - Filter Pipeline Message".
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import h5py

from h5stream.compiled import _native as kernels
from h5stream.storage.decode.filters import (
    DEFLATE,
    KNOWN_NAMES,
    DecodeError,
    DecodeScratch,
    DecodingPlan,
    Filter,
    StepsInC,
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
