"""Rewriting one file: what becomes of each dataset (pure), decoded by the engine's threads, written by one.

# Guarantees: the caller's thread writes and verifies; the engine's threads read and decode; a pool compresses.
When `rewrite` returns or raises, all of them have ended.
"""

from __future__ import annotations

import collections
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream import allowance
from h5stream.engine.reader import RowReader
from h5stream.engine.run import Run
from h5stream.engine.slots import Slot, SlotFormat, SlotRing
from h5stream.errors import FieldLengthError, H5StreamError, StagedFileDamagedError
from h5stream.order.permutation import permutation
from h5stream.order.users import ListedOrder
from h5stream.repacking.encode import Compression, Encoder, encoder_for
from h5stream.repacking.raw import RawDataset, difference, resolve_datasets, survey
from h5stream.repacking.recipe import Recipe
from h5stream.repacking.writer import NewShape, Rebuild, rebuilding
from h5stream.storage.handles import open_file
from h5stream.storage.source import FileIdentity
from h5stream.units import text_of_bytes

TOGETHER_NBYTES = 16 * 1024 * 1024
"""Decoded bytes that are read together, at least: enough for every thread to have a share."""

MOST_TOGETHER_NBYTES = 128 * 1024 * 1024
"""... and at most, where old and new chunks do not line up."""

MEMORY_SHARE = 4
"""A shuffle may hold one part in this many of the available memory; the source is read once for each time that
the rows do not fit."""

WORTH_SAYING = 1.1
"""Growth of the file from which it is said that its compression is undone."""

Order = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackProgress:
    """How far one `repack` has come."""

    step: str
    """``"writing"`` or ``"verifying"``."""
    bytes_done: int
    """Decoded bytes written and verified so far."""
    bytes_total: int
    """Decoded bytes to be written and verified."""
    dataset: str
    """The dataset that is being written or verified."""


RepackProgressCallback = Callable[[RepackProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackResult:
    """What one `repack` did."""

    source: Path
    """What was rewritten."""
    target: Path
    """The new file."""
    bytes_before: int
    """Size of the source."""
    bytes_after: int
    """Size of the new file."""
    rewritten: tuple[str, ...]
    """Datasets that lie in new chunks."""
    copied: tuple[tuple[str, str], ...]
    """Datasets that were copied as they are, and why."""
    shuffled: tuple[str, ...]
    """Datasets whose rows were permuted."""
    samples: tuple[str, ...]
    """Of the rewritten datasets the one with the most bytes, and all that are as long: a loader's likely fields."""
    notices: tuple[str, ...]
    """What could not be kept, or should be known."""
    seconds: float = field(compare=False)
    """How long it took, verification included."""

    def named(self, target: Path) -> RepackResult:
        """Put the new file's own name into the result.

        Parameters
        ----------
        target : Path
            The name.

        Returns
        -------
        RepackResult
            The result with it.
        """
        return replace(self, target=target)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePlan:
    """What becomes of each dataset of a file."""

    source: str
    """The file."""
    recipe: Recipe
    """How."""
    datasets: tuple[RawDataset, ...]
    """All of them."""
    rewritten: frozenset[int]
    """Addresses of those that get new chunks."""
    shuffled: frozenset[int]
    """Addresses of those whose rows are permuted."""
    sample_rows: int
    """Length of a shuffled dataset; 0 without a shuffle."""
    notices: tuple[str, ...]
    """What should be known."""


def plan_rewrite(source: str, recipe: Recipe) -> RewritePlan:
    """Look at a file, and decide what becomes of each of its datasets.

    It is an error if a field is not there, or it is not clear which rows a shuffle is about.
    """
    datasets = survey(source)
    chosen = {each.address for each in datasets}
    if recipe.fields is not None:
        chosen = set(resolve_datasets(source, recipe.fields))
    rows = 0 if recipe.shuffle_rows is None else _sample_rows(source, recipe, datasets)
    shuffled = frozenset(each.address for each in datasets if rows and each.rows == rows)
    plan = RewritePlan(
        source=source,
        recipe=recipe,
        datasets=datasets,
        # What can be rewritten must be, where its rows move: chunk by chunk is the only way that fits memory.
        rewritten=frozenset(each.address for each in datasets if each.layout and each.address in chosen | shuffled),
        shuffled=shuffled,
        sample_rows=rows,
        notices=_pointers(datasets, rows),
    )
    return replace(plan, notices=(*plan.notices, *_undone(plan)))


def _sample_rows(source: str, recipe: Recipe, datasets: tuple[RawDataset, ...]) -> int:
    asked = set(resolve_datasets(source, recipe.fields))
    lengths = {each.rows for each in datasets if each.address in asked}
    if len(lengths) != 1 or 0 in lengths:
        raise FieldLengthError(
            f"{source!r}: shuffle_rows= needs fields of one length, and these have {sorted(lengths)} rows; name the "
            "samples with fields=[...]",
            file=source,
        )
    return lengths.pop()


def _pointers(datasets: tuple[RawDataset, ...], rows: int) -> tuple[str, ...]:
    """Name what looks like row pointers of a sparse matrix: the rows that they point to do not move."""
    names = [each.path for each in datasets if rows and each.rows == rows + 1]
    if not names:
        return ()
    return (f"{', '.join(names)} has one row more than the samples (row pointers?) and was not shuffled",)


def _undone(plan: RewritePlan) -> Iterator[str]:
    """Say that what is compressed will not be, before it is written: the default is made for reading, not for size."""
    if plan.recipe.compress != "none" or plan.recipe.contiguous:
        return
    filters: dict[str, None] = {}
    for each in plan.datasets:
        part = each.layout.datasets[0][0] if each.layout is not None and each.address in plan.rewritten else None
        if part is not None and part.pipeline.filters and each.stored_nbytes < each.nbytes and not each.is_sparse:
            filters[part.pipeline.describe()] = None
    now, then = os.path.getsize(plan.source), estimate_nbytes(plan)
    if filters and then > WORTH_SAYING * now:
        yield (
            f"{', '.join(filters)} is undone and not replaced: {text_of_bytes(now)} become about "
            f"{text_of_bytes(then)}; "
            'compress="lz4" (--compress lz4) keeps it compressed, and quick to read'
        )


def estimate_nbytes(plan: RewritePlan) -> int:
    """Give about how many bytes the new file will take."""
    size = os.path.getsize(plan.source)
    change = sum(
        each.nbytes - each.stored_nbytes
        for each in plan.datasets
        if each.address in plan.rewritten and not each.is_sparse and plan.recipe.compress == "none"
    )
    return size + max(0, change)


def rewrite(plan: RewritePlan, target: Path, progress: RepackProgressCallback | None = None) -> RepackResult:
    """Write the new file over `target`, which exists, and verify it against the source, which must not change."""
    begin, identity = time.monotonic(), FileIdentity.of(plan.source)
    seed = plan.recipe.shuffle_rows
    order = None if seed is None else permutation(plan.sample_rows, seed).astype(np.int64)
    tell = _Teller(plan, progress)
    shapes = {each.address: _new_shape(plan, each) for each in plan.datasets if each.address in plan.rewritten}
    with rebuilding(plan.source, str(target), shapes) as rebuild:
        for dataset in plan.datasets:
            moved = order if dataset.address in plan.shuffled else None
            if dataset.address in plan.rewritten:
                _write(rebuild, dataset, shapes[dataset.address], moved, plan, tell)
            elif moved is not None:
                rebuild.permute_rows(dataset, moved)
        places = {each.address: rebuild.place_of(each) for each in plan.datasets}
    # Not through `open_hdf5`: an error in here is about one dataset, and `_verify` says which.
    with open_file(plan.source) as old, open_file(str(target)) as new:
        for dataset in plan.datasets:
            if place := places[dataset.address]:  # what could not be kept is among the notices
                moved = order if dataset.address in plan.shuffled else None
                rebuild.notices += _verify(plan, target, dataset, (old, new), place, moved, tell)
    identity.check_unchanged()
    return _result(plan, target, rebuild, time.monotonic() - begin)


def _result(plan: RewritePlan, target: Path, rebuild: Rebuild, seconds: float) -> RepackResult:
    named = {each.address: each.path for each in plan.datasets}
    return RepackResult(
        source=Path(plan.source),
        target=target,
        bytes_before=os.path.getsize(plan.source),
        bytes_after=target.stat().st_size,
        rewritten=tuple(path for address, path in named.items() if address in plan.rewritten),
        copied=tuple(
            (each.path, each.reason or "not among fields=")
            for each in plan.datasets
            if each.address not in plan.rewritten
        ),
        shuffled=tuple(path for address, path in named.items() if address in plan.shuffled),
        samples=_samples([each for each in plan.datasets if each.address in plan.rewritten]),
        notices=(*plan.notices, *rebuild.notices),
        seconds=seconds,
    )


def _samples(rewritten: list[RawDataset]) -> tuple[str, ...]:
    if not rewritten:
        return ()
    rows = max(rewritten, key=lambda each: each.nbytes).rows
    return tuple(each.path for each in rewritten if each.rows == rows)


class _Teller:
    """Adds up what was written and verified, and says so."""

    def __init__(self, plan: RewritePlan, progress: RepackProgressCallback | None) -> None:
        written = sum(each.nbytes for each in plan.datasets if each.address in plan.rewritten)
        self._total = written + sum(each.nbytes for each in plan.datasets)
        self._done, self._progress = 0, progress

    def __call__(self, step: str, dataset: RawDataset, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(
                RepackProgress(step=step, bytes_done=self._done, bytes_total=self._total, dataset=dataset.path)
            )


def _new_shape(plan: RewritePlan, dataset: RawDataset) -> NewShape:
    if plan.recipe.contiguous:
        return NewShape(chunk_rows=None)
    rows = max(1, min(dataset.rows, plan.recipe.chunk_nbytes // dataset.row_nbytes))
    return NewShape(chunk_rows=rows, filters=_encoder(plan, dataset).filters)


def _encoder(plan: RewritePlan, dataset: RawDataset) -> Encoder:
    return encoder_for(Compression(plan.recipe.compress), dataset.element_nbytes)


def _write(
    rebuild: Rebuild, dataset: RawDataset, shape: NewShape, order: Order | None, plan: RewritePlan, tell: _Teller
) -> None:
    """Decode a dataset's rows in their new order, compress them chunk by chunk, and store them."""
    chunk_rows = shape.chunk_rows or max(1, min(dataset.rows, plan.recipe.chunk_nbytes // dataset.row_nbytes))
    encoder, nothing = (
        _encoder(plan, dataset),
        np.tile(dataset.fill, chunk_rows * dataset.row_nbytes // len(dataset.fill)),
    )

    def encoded(chunk: NDArray[np.uint8], rows: int) -> tuple[NDArray[np.uint8], int] | None:
        used = rows * dataset.row_nbytes
        if dataset.is_sparse and np.array_equal(chunk[:used], nothing[:used]):
            return None  # never written in the source either
        chunk[used:] = nothing[used:]
        return encoder.encode(chunk)

    for number, rows, slot, chunk in _decoded(dataset, chunk_rows, order, encoded):
        if shape.chunk_rows is None:
            rebuild.write_rows(dataset, number * chunk_rows, slot.memory[: rows * dataset.row_nbytes])
        elif chunk is not None:
            rebuild.write_chunk(dataset, number * chunk_rows, *chunk)
        tell("writing", dataset, rows * dataset.row_nbytes)


_Encoded = tuple[NDArray[np.uint8], int] | None


def _decoded(
    dataset: RawDataset, chunk_rows: int, order: Order | None, encoded: Callable[[NDArray[np.uint8], int], _Encoded]
) -> Iterator[tuple[int, int, Slot, _Encoded]]:
    """Return the new chunks in their order: number, rows, the slot that holds them, and what to store."""
    assert dataset.layout is not None
    threads, together = allowance.cpus(), _chunks_together(dataset, chunk_rows, order)
    carrier, slot_format = RowReader(dataset.layout), SlotFormat.for_rows(dataset.layout.fields, chunk_rows)
    ring, nbytes = SlotRing(slot_format.nbytes), chunk_rows * dataset.row_nbytes
    starts = range(0, dataset.rows, chunk_rows)
    rows_of = (_rows(dataset, start, chunk_rows, order) for start in starts)
    run = Run(
        carrier,
        ListedOrder(rows_of, together=together, total_rows=dataset.rows, count=len(starts)),
        ring,
        slot_format,
        threads=threads,
        # A shuffle fills its memory with one window; else the next one is decoded while this one is written.
        max_open_batches=together if order is not None else 2 * together,
    )
    waiting: collections.deque[tuple[int, int, Slot, Future[_Encoded]]] = collections.deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="h5stream-encode") as pool:
        try:
            while (batch := run.next_batch()) is not None:
                future = pool.submit(encoded, batch.slot.memory[:nbytes], batch.rows)
                waiting.append((batch.number, batch.rows, batch.slot, future))
                if len(waiting) > 2 * threads:
                    yield from _next(waiting, ring)
            while waiting:
                yield from _next(waiting, ring)
        finally:
            run.stop()
            pool.shutdown(cancel_futures=True)
            carrier.close()


def _next(
    waiting: collections.deque[tuple[int, int, Slot, Future[_Encoded]]], ring: SlotRing
) -> Iterator[tuple[int, int, Slot, _Encoded]]:
    number, rows, slot, future = waiting.popleft()
    yield number, rows, slot, future.result()
    ring.give_back(slot)


def _rows(dataset: RawDataset, start: int, count: int, order: Order | None) -> Order:
    stop = min(start + count, dataset.rows)
    return np.arange(start, stop, dtype=np.int64) if order is None else order[start:stop]


def _chunks_together(dataset: RawDataset, chunk_rows: int, order: Order | None) -> int:
    """Choose how many new chunks are decoded as one window, so that old chunks are rarely decoded twice."""
    chunk_nbytes = chunk_rows * dataset.row_nbytes
    if order is not None:
        return max(1, allowance.memory_available_bytes() // MEMORY_SHARE // chunk_nbytes)
    assert dataset.layout is not None
    old_rows = dataset.layout.datasets[0][0].chunk_rows
    aligned = math.lcm(old_rows, chunk_rows)
    at_least = -(-TOGETHER_NBYTES // dataset.row_nbytes)
    if aligned * dataset.row_nbytes <= MOST_TOGETHER_NBYTES:
        rows = -(-at_least // aligned) * aligned
    else:  # at most one old chunk in four is decoded twice
        rows = max(at_least, min(4 * old_rows, MOST_TOGETHER_NBYTES // dataset.row_nbytes))
    return max(1, -(-rows // chunk_rows))


def _verify(
    plan: RewritePlan,
    target: Path,
    dataset: RawDataset,
    files: tuple[Any, Any],
    place: str,
    order: Order | None,
    tell: _Teller,
) -> list[str]:
    try:
        both = files[0][dataset.path], files[1][place]
        problem = difference(*both, dataset, order, lambda nbytes: tell("verifying", dataset, nbytes))
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        if dataset.address in plan.rewritten or isinstance(error, H5StreamError):
            raise
        # Libhdf5 copies stored chunks without decoding them, also those of filters that are not there.
        return [f"{dataset.path} was copied as it is and not compared: {error}"]
    if problem:
        raise StagedFileDamagedError(
            f"what was written to {target} is not what {plan.source} holds: {problem}. The new file was not kept; "
            "memory or storage at fault is likely, or else this is a defect of h5stream",
            file=plan.source,
        )
    return []
