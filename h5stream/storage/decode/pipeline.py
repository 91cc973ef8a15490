"""Pipelines of filters, undone by steps in C that hold neither HDF5's lock nor the GIL.

Filters are undone in the reverse of the order in which they were applied, skipping those whose bit is set in the
chunk's filter mask. A byte shuffle that was applied first is *not* undone here: the engine fuses it with the scatter,
which saves a pass over memory. `compiled/pipeline.h` undoes the others; a filter that it does not know is a Python step
between them.

Source: HDF5 File Format Specification, "Data Storage - Filter Pipeline Message".
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import h5py
import numpy as np

from h5stream.compiled import _native as kernels
from h5stream.storage.decode.filters import (
    DEFLATE,
    FLETCHER32,
    GAVE,
    KNOWN_NAMES,
    SHUFFLE,
    TAKES_MORE,
    UNDO,
    DecodeError,
    Decoder,
    Filter,
    decoding_error,
    element_nbytes_of,
    function_of,
    most_nbytes,
)
from h5stream.storage.decode.plugins import Bytes


@dataclass(slots=True, eq=False)
class DecodeScratch:
    """Buffers that one thread reuses for all chunks.

    # Guarantees: belongs to one thread. A result of `Pipeline.decode` is valid until its next call.
    """

    native: kernels.Scratch = field(default_factory=kernels.Scratch)
    _buffers: dict[str, Bytes] = field(default_factory=dict)

    def buffer(self, role: str, nbytes: int) -> Bytes:
        """Return a buffer of `nbytes`, valid until the next call for this role."""
        buffer = self._buffers.get(role)
        if buffer is None or buffer.nbytes < nbytes:
            buffer = self._buffers[role] = np.empty(nbytes, dtype=np.uint8)
        return buffer[:nbytes]


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


class DecodingPlan(NamedTuple):
    """The steps that decode the chunks of a dataset that have one filter mask."""

    steps: tuple[StepsInC | StepInPython, ...]
    shuffled: int  # element bytes of a shuffle that was applied first, and is left to the scatter; or 0

    @staticmethod
    def of(filters: Sequence[Filter], filter_mask: int, raw_nbytes: int) -> DecodingPlan:
        """Plan Python steps, and runs of C steps between them; raise `DecodeError` if a filter cannot be undone."""
        # The filters in the order in which they are undone, each with the bytes that it must produce for those after
        # it, or -1 if these take any number.
        undone, shuffled, exact = list[tuple[Filter, int]](), 0, raw_nbytes
        for i, one in enumerate(filters):
            if filter_mask >> i & 1:
                continue
            is_first = one.id == SHUFFLE and not undone and not shuffled
            if is_first and raw_nbytes % (width := element_nbytes_of(one.values)) == 0:
                shuffled = width
                continue
            undone.insert(0, (one, exact))
            exact = exact + 4 * (one.id == FLETCHER32) if exact >= 0 and one.id in (SHUFFLE, FLETCHER32) else -1
        left_shuffled = shuffled if shuffled > 1 else 0
        steps, run = list[StepsInC | StepInPython](), list[tuple[Filter, int]]()
        for k, (one, exact) in enumerate(undone):
            if function_of(one.id) is not None:
                run.append((one, exact))
                continue
            if one.id not in UNDO:
                raise DecodeError(f"filter {one.id} ({one.word}) is not available")
            if run:
                steps.append(StepsInC.of(run, raw_nbytes, left_shuffled))
                run = []
            steps.append(StepInPython(one, exact, raw_nbytes, role=f"step {k % 2}"))
        if run or not undone:
            steps.append(StepsInC.of(run, raw_nbytes, left_shuffled))
        return DecodingPlan(tuple(steps), left_shuffled)


class StepInPython(NamedTuple):
    """A filter that Python undoes."""

    filter: Filter
    exact: int  # bytes that it must produce, or -1 for any number
    raw_nbytes: int
    role: str  # of its buffer

    def undo(self, data: Bytes, scratch: DecodeScratch, out: Bytes | None) -> Bytes:
        """Undo the filter for one chunk."""
        name, most = self.filter.word, most_nbytes(self.raw_nbytes)
        if data.nbytes > most:
            raise decoding_error((), TAKES_MORE, data.nbytes, self.raw_nbytes)
        if out is None:
            out = scratch.buffer(self.role, most if self.exact < 0 else self.exact)
        try:
            undone = UNDO[self.filter.id](self.filter.values, data, out)
        except (RuntimeError, ValueError, TypeError) as error:  # imagecodecs' errors are RuntimeErrors
            raise DecodeError(f"{name}: {error}") from error
        if self.exact >= 0 and undone.nbytes != self.exact:
            raise decoding_error((self.filter,), GAVE, undone.nbytes, self.exact)
        return undone


class StepsInC(NamedTuple):
    """Consecutive filters that one call undoes without the GIL."""

    filters: tuple[Filter, ...]
    native: kernels.Pipeline

    @staticmethod
    def of(steps: Sequence[tuple[Filter, int]], raw_nbytes: int, shuffled: int) -> StepsInC:
        """Return the steps of filters, each with the bytes that it must produce or -1, before a shuffle that stays."""
        rows, values = np.zeros((len(steps), 7), dtype=np.int64), list[int]()
        for row, (one, exact) in zip(rows, steps, strict=True):
            is_plugin, decoder = function_of(one.id) or (False, Decoder(0))
            row[:] = (one.id, is_plugin, exact, *decoder, len(one.values))
            values += one.values
        parameters = np.array(values, dtype=np.uint32)
        native = kernels.Pipeline(rows, parameters, raw_nbytes, most_nbytes(raw_nbytes), shuffled)
        return StepsInC(tuple(map(operator.itemgetter(0), steps)), native)

    def undo(self, data: Bytes, scratch: DecodeScratch, out: Bytes | None) -> Bytes:
        """Undo the filters for one chunk."""
        undone = self.native.decode(data, out, scratch.native)
        if isinstance(undone, tuple):
            step, reason, first, second = undone
            raise decoding_error(self.filters[step : step + 1] if step >= 0 else (), reason, first, second)
        return np.frombuffer(undone, np.uint8) if isinstance(undone, memoryview) else undone


def pipeline_of(creation: h5py.h5p.PropDCID) -> Pipeline:
    """Read the filter pipeline of an h5py dataset creation property list."""
    filters = []
    for i in range(creation.get_nfilters()):
        code, _flags, values, name = creation.get_filter(i)
        filters.append(Filter(id=code, values=tuple(map(int, values)), name=name.decode(errors="replace")))
    return Pipeline(filters=tuple(filters))
