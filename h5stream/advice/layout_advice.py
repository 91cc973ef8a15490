"""Where a layout costs more than it must: the reason, the number, and the way out. Silent where nothing is wrong."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from h5stream.advice.listing import DatasetEntry
from h5stream.errors import BudgetError
from h5stream.order.quality import is_weak
from h5stream.storage.layout import VIA_H5PY
from h5stream.units import count_text, text_of_bytes

if TYPE_CHECKING:
    from h5stream.advice.cost import DatasetCost

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

    key: str  # a stable name of the rule
    fields: tuple[str, ...]  # the datasets that it is about
    problem: str  # what is wrong, with its number
    way_out: str
    costs: str = EVERY_EPOCH
    """``"every epoch"``, or ``"first batch"`` for datasets that are read once and kept in memory."""
    repack: bool = False  # whether ``h5stream repack`` removes it


@dataclass(frozen=True, slots=True)
class _Stored:
    """A dataset with everything that the rules look at."""

    entry: DatasetEntry
    cost: DatasetCost
    rate: float | None
    block_rows: int
    batch_rows: int

    @property
    def is_values(self) -> bool:
        """Whether rows are sequences or images of any length."""
        return self.entry.variable_length and bool(self.entry.is_numbers_of_any_length or self.entry.clues.image)

    @property
    def is_chunks(self) -> bool:
        """Whether chunks and filters are ours to undo; where h5py reads, they are its business."""
        through_h5py = self.entry.access == VIA_H5PY and self.entry.layout != "compact"
        return not self.entry.variable_length and not through_h5py

    @property
    def has_tiny_chunks(self) -> bool:
        """Whether chunks are many and small."""
        return self.is_chunks and self.entry.chunks >= MANY_CHUNKS and self.entry.chunk_nbytes < TINY_CHUNK_NBYTES

    @property
    def is_slow(self) -> bool:
        """Whether undoing its filters was measured to be slow."""
        return self.rate is not None and self.rate < SLOW_DECODE and self.entry.chunk_nbytes >= TINY_CHUNK_NBYTES

    @property
    def words(self) -> dict[str, Any]:
        """What the rules' sentences say of it."""
        entry, chunks = self.entry, self.cost.chunks
        return {
            "entry": entry,
            "chunk": text_of_bytes(entry.chunk_nbytes),
            "rows": entry.chunk_rows or 0,
            "across": entry.chunks_across,
            "separate": self.batch_rows * entry.chunks_across,
            "a_batch": count_text(chunks * self.batch_rows / max(1, entry.rows or 0)),
            "times": self.cost.times_read,
            "blocks": self.block_rows,
            "rate": text_of_bytes(self.rate or 0),
            "through": "; h5py reads it, under its lock" if entry.access == VIA_H5PY else "",
            "tiny": text_of_bytes(TINY_CHUNK_NBYTES),
        }


@dataclass(frozen=True, slots=True)
class _Rule:
    key: str
    applies: Callable[[_Stored], bool]
    problem: str  # with the words of `_Stored`
    way_out: str
    repack: bool = True


_H5PY = "read through h5py, under its lock and with one thread, because: {entry.reason}"
_SIZE = "chunks of about 1 MiB"

RULES = (
    _Rule(
        "through_h5py",
        lambda one: one.is_values and one.entry.access == VIA_H5PY,
        _H5PY,
        "store the values one behind the other, and beside them where each begins: rows=Bounds(...) takes that",
        repack=False,
    ),
    _Rule(
        "variable_length",
        lambda one: one.entry.variable_length and not one.is_values,
        "{entry.dtype} lies in the file's heap, where each value is looked up for itself, and a batch holds a list, "
        "not a tensor{through}",
        "store strings with a fixed length, or as integer codes beside a table of names",
        repack=False,
    ),
    _Rule(
        "through_h5py",
        lambda one: not one.entry.variable_length and not one.is_chunks,
        _H5PY,
        "store it as plain numbers in chunks of about 1 MiB with lz4",
    ),
    _Rule(
        "row_per_chunk",
        lambda one: one.has_tiny_chunks and one.entry.chunk_rows == 1,
        "every row is a chunk of its own ({chunk}), so a batch takes {separate:,} separate chunks; what each costs "
        "beside its bytes outweighs them",
        _SIZE,
    ),
    _Rule(
        "tiny_chunks",
        lambda one: one.has_tiny_chunks and one.entry.chunk_rows != 1,
        "{entry.chunks:,} chunks of {chunk}, {a_batch} a batch; below {tiny} finding and fetching a chunk costs as "
        "much as decoding it",
        _SIZE,
    ),
    _Rule(
        "huge_chunks",
        lambda one: one.is_chunks and one.entry.chunk_nbytes > HUGE_CHUNK_NBYTES and bool(one.entry.filters),
        "chunks of {chunk}: one thread decodes each, {rows:,} rows have to be in memory for any one of them, and few "
        "fit a window",
        _SIZE,
    ),
    _Rule(
        "split_rows",
        # One row a chunk has been said already, and there is nothing to gain where a row alone fills chunks.
        lambda one: (
            one.is_chunks
            and one.entry.chunks_across >= MANY_ACROSS
            and one.entry.chunk_rows != 1
            and one.entry.row_nbytes <= HUGE_CHUNK_NBYTES
        ),
        "each row is cut into {across:,} chunks that lie side by side, so it is put together from {across:,} places",
        "chunks that hold whole rows",
    ),
    _Rule(
        "straddling_chunks",
        lambda one: one.is_chunks and one.cost.times_read > STRADDLING and bool(one.entry.filters),
        "its chunks of {rows:,} rows lie across the blocks of {blocks:,} rows that are shuffled, so each is decoded "
        "{times:.2f} times an epoch",
        "the same number of rows in the chunks of all fields, or whole multiples",
    ),
    _Rule(
        "slow_filter",
        lambda one: one.is_chunks and one.is_slow,
        "{entry.filters} gives {rate}/s a thread here (timed on its own chunks)",
        "lz4, which gives about 1.7 GiB/s, or gzip with shuffle, 1.2 GiB/s",
    ),
)


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
    stored = [_Stored(e, c, r, block_rows, batch_rows) for e, c, r in zip(entries, costs, rates, strict=True)]
    advice = [one for rule in RULES for one in _found(rule, [one for one in stored if rule.applies(one)])]
    advice += _few_blocks(stored, blocks_per_window, blocks)
    return tuple(sorted(advice, key=lambda a: a.costs != EVERY_EPOCH))


def _found(rule: _Rule, stored: Sequence[_Stored]) -> Iterator[Advice]:
    """Return what a rule found; the largest dataset is the example of others."""
    together: dict[tuple[bool, str], list[_Stored]] = {}
    for one in stored:
        # What h5py has to read has a reason of its own in each dataset; elsewhere one example says it.
        apart = "" if one.is_chunks else rule.problem.format(**one.words)
        together.setdefault((one.cost.kept, apart), []).append(one)
    for members in together.values():
        largest = max(members, key=lambda one: one.entry.raw_nbytes)
        problem = rule.problem.format(**largest.words)
        if any(rule.problem.format(**one.words) != problem for one in members):
            problem = f"{largest.entry.path}, for one: {problem}"
        yield Advice(
            key=rule.key,
            fields=tuple(one.entry.path for one in members),
            problem=problem,
            way_out=rule.way_out,
            costs=ONCE if largest.cost.kept else EVERY_EPOCH,
            repack=rule.repack,
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
