"""Where a layout costs more than it must: the reason, the number, and the way out. Silent where nothing is wrong."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from h5stream.advice.batch_cost import DatasetCost
from h5stream.advice.cost_in_words import count_text
from h5stream.advice.listing import DatasetEntry
from h5stream.errors import BudgetError
from h5stream.order.quality import is_weak
from h5stream.storage.layout import VIA_H5PY
from h5stream.units import text_of_bytes

TINY_CHUNK_NBYTES = 64 * 1024
"""Below this, finding, fetching and handing over a chunk costs more than undoing its filters (50 us at 1.3 GB/s)."""

HUGE_CHUNK_NBYTES = 16 * 1024 * 1024
"""Above this, a window of 1 GiB holds fewer than 64 chunks to shuffle with one another."""

MANY_CHUNKS = 256
"""Fewer chunks than this cost too little to be worth a word, however small they are."""

MANY_ACROSS = 8
"""A row in so many chunks costs a lookup and a copy in each."""

STRADDLING = 1.5
"""Fetches of each chunk an epoch, above which unlike chunk lengths are worth a word."""

SLOW_DECODE = 400e6
"""Bytes a second of one thread; gzip gives about 1.3e9, lz4 1.8e9, bzip2 well under 1e8."""

EVERY_EPOCH, ONCE = "every epoch", "first batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Something about the layout that costs more than it must."""

    key: str
    """A stable name of the rule."""
    fields: tuple[str, ...]
    """The datasets that it is about."""
    problem: str
    """What is wrong, with its number."""
    way_out: str
    """What to do about it."""
    costs: str = EVERY_EPOCH
    """``"every epoch"``, or ``"first batch"`` for datasets that are read once and kept in memory."""
    repack: bool = False
    """Whether ``h5stream repack`` removes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """A dataset with everything that the rules look at."""

    entry: DatasetEntry
    cost: DatasetCost
    rate: float | None
    block_rows: int
    batch_rows: int


_Finding = tuple[str, str, str, bool]


def layout_advice(
    entries: Sequence[DatasetEntry],
    costs: Sequence[DatasetCost],
    rates: Sequence[float | None],
    *,
    block_rows: int,
    batch_rows: int,
    blocks_per_window: int,
    blocks: int,
) -> tuple[Advice, ...]:
    """Look for what costs more than it must; what costs in every epoch comes first.

    Datasets are given as they are stored, with what an epoch takes of them and their decoded bytes a second.
    """
    stored = [
        _Stored(entry=e, cost=c, rate=r, block_rows=block_rows, batch_rows=batch_rows)
        for e, c, r in zip(entries, costs, rates, strict=True)
    ]
    found: dict[tuple[str, ...], list[tuple[_Stored, _Finding]]] = {}
    for one in stored:
        for finding in _findings(one):
            key, problem, way_out, _ = finding
            # What h5py has to read has a reason of its own in each dataset; elsewhere one example says it.
            apart = problem if key in ("variable_length", "through_h5py") else ""
            when = ONCE if one.cost.kept else EVERY_EPOCH
            found.setdefault((key, when, way_out, apart), []).append((one, finding))
    advice = [_together(members) for members in found.values()]
    advice += _few_blocks(stored, blocks_per_window, blocks)
    return tuple(sorted(advice, key=lambda a: a.costs != EVERY_EPOCH))


def _together(members: Sequence[tuple[_Stored, _Finding]]) -> Advice:
    """Make one advice of what a rule found in several datasets; the largest is the example."""
    largest, (key, problem, way_out, repack) = max(members, key=lambda member: member[0].entry.raw_nbytes)
    if len({finding[1] for _, finding in members}) > 1:
        problem = f"{largest.entry.path}, for one: {problem}"
    return Advice(
        key=key,
        fields=tuple(one.entry.path for one, _ in members),
        problem=problem,
        way_out=way_out,
        costs=ONCE if largest.cost.kept else EVERY_EPOCH,
        repack=repack,
    )


def _findings(one: _Stored) -> Iterator[_Finding]:
    entry = one.entry
    # Where h5py reads, chunks and filters are its business.
    if entry.variable_length and (entry.is_numbers_of_any_length or entry.clues.image):
        if entry.access == VIA_H5PY:
            yield (
                "through_h5py",
                f"read through h5py, under its lock and with one thread, because: {entry.reason}",
                "store the values one behind the other, and beside them where each begins: rows=Bounds(...) takes that",
                False,
            )
    elif entry.variable_length:
        yield (
            "variable_length",
            f"{entry.dtype} lies in the file's heap, where each value is looked up for itself, and a batch holds a "
            "list, not a tensor" + ("; h5py reads it, under its lock" if entry.access == VIA_H5PY else ""),
            "store strings with a fixed length, or as integer codes beside a table of names",
            False,
        )
    elif entry.access == VIA_H5PY and entry.layout != "compact":
        yield (
            "through_h5py",
            f"read through h5py, under its lock and with one thread, because: {entry.reason}",
            "store it as plain numbers in chunks of about 1 MiB with lz4",
            True,
        )
    else:
        yield from _of_chunk_sizes(one, entry)
        yield from _of_chunk_shapes(one, entry)


def _of_chunk_sizes(one: _Stored, entry: DatasetEntry) -> Iterator[_Finding]:
    size, way_out = text_of_bytes(entry.chunk_nbytes), "chunks of about 1 MiB"
    many_tiny = entry.chunks >= MANY_CHUNKS and entry.chunk_nbytes < TINY_CHUNK_NBYTES
    if many_tiny and entry.chunk_rows == 1:
        yield (
            "row_per_chunk",
            f"every row is a chunk of its own ({size}), so a batch takes {one.batch_rows * entry.chunks_across:,} "
            "separate chunks; what each costs beside its bytes outweighs them",
            way_out,
            True,
        )
    elif many_tiny:
        a_batch = one.cost.chunks * one.batch_rows / max(1, entry.rows or 0)
        yield (
            "tiny_chunks",
            f"{entry.chunks:,} chunks of {size}, {count_text(a_batch)} a batch; below "
            f"{text_of_bytes(TINY_CHUNK_NBYTES)} finding and fetching a chunk costs as much as decoding it",
            way_out,
            True,
        )
    if entry.chunk_nbytes > HUGE_CHUNK_NBYTES and entry.filters:
        yield (
            "huge_chunks",
            f"chunks of {size}: one thread decodes each, {entry.chunk_rows or 0:,} rows have to be in memory for any "
            "one of them, and few fit a window",
            way_out,
            True,
        )


def _of_chunk_shapes(one: _Stored, entry: DatasetEntry) -> Iterator[_Finding]:
    across, times = entry.chunks_across, one.cost.times_read
    # One row a chunk has been said already, and there is nothing to gain where a row alone fills chunks.
    if across >= MANY_ACROSS and entry.chunk_rows != 1 and entry.row_nbytes <= HUGE_CHUNK_NBYTES:
        yield (
            "split_rows",
            f"each row is cut into {across:,} chunks that lie side by side, so it is put together from {across:,} "
            "places",
            "chunks that hold whole rows",
            True,
        )
    if times > STRADDLING and entry.filters:
        yield (
            "straddling_chunks",
            f"its chunks of {entry.chunk_rows or 0:,} rows lie across the blocks of {one.block_rows:,} rows that are "
            f"shuffled, so each is decoded {times:.2f} times an epoch",
            "the same number of rows in the chunks of all fields, or whole multiples",
            True,
        )
    if one.rate is not None and one.rate < SLOW_DECODE and entry.chunk_nbytes >= TINY_CHUNK_NBYTES:
        yield (
            "slow_filter",
            f"{entry.filters} gives {text_of_bytes(one.rate)}/s a thread here (timed on its own chunks)",
            "lz4, which gives about 1.7 GiB/s, or gzip with shuffle, 1.2 GiB/s",
            True,
        )


def _few_blocks(stored: Sequence[_Stored], blocks_per_window: int, blocks: int) -> list[Advice]:
    if not is_weak(blocks_per_window, blocks):
        return []
    leading = max(stored, key=lambda one: one.entry.row_nbytes).entry
    chunk = leading.chunk_nbytes or leading.row_nbytes
    return [
        Advice(
            key="few_blocks",
            fields=(leading.path,),
            problem=f"a window holds {blocks_per_window:,} of {blocks:,} blocks (chunks of {text_of_bytes(chunk)}), so "
            "the rows of a batch come from few stretches of the file",
            way_out="a larger window= and memory_budget=, or smaller chunks",
            repack=leading.chunk_nbytes > HUGE_CHUNK_NBYTES,
        )
    ]


def budget_advice(error: BudgetError | None) -> tuple[Advice, ...]:
    """Say what memory would do, where the budget does not."""
    if error is None:
        return ()
    return (
        Advice(
            key="budget_too_small",
            fields=(),
            problem=f"the loader may take {text_of_bytes(error.budget)} here and would refuse: it needs "
            f"{text_of_bytes(error.needed)}",
            way_out=f"pass memory_budget={error.needed} or more, or a smaller batch_size",
        ),
    )


def repack_command(path: str, advice: Sequence[Advice], paths: Sequence[str], entries: Sequence[DatasetEntry]) -> str:
    """Return the command that writes a better layout, where some advice asks for it; else nothing."""
    if not any(one.repack for one in advice):
        return ""
    filtered = any(entry.filters for entry in entries if entry.path in paths)
    source = PurePath(path)
    target = source.with_name(f"{source.stem}.repacked{source.suffix}")
    compress = "lz4" if filtered else "none"
    return f"h5stream repack {shlex.quote(path)} {shlex.quote(str(target))} --chunk-bytes 1MiB --compress {compress}"
