"""The arithmetic of a batch's cost, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from h5stream.advice.batch_cost import DatasetCost, cached_share
from h5stream.advice.listing import DatasetEntry
from h5stream.order.epoch import EpochOrder
from h5stream.units import text_of_bytes

NAMED = 3
"""Datasets that a sentence names before it counts."""

KINDS_EXPLAINED = 4
"""Kinds of datasets that get a sentence."""

# Below this an amplification is edge chunks and rounding, and not worth a sentence.
_NOTABLE = 1.05


def count_text(number: float) -> str:
    """Return a number as people read it: small ones with what follows the point.

    Examples
    --------
    >>> count_text(1024), count_text(8), count_text(1.5), count_text(0.004)
    ('1,024', '8', '1.5', '0.004')
    """
    if number >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.1f}".removesuffix(".0") if number >= 1 else f"{number:.2g}"


def counted(count: int, thing: str, things: str = "") -> str:
    """Count things.

    Examples
    --------
    >>> counted(1, "row"), counted(1024, "row")
    ('1 row', '1,024 rows')
    """
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def shape_text(shape: Sequence[int]) -> str:
    """Write a shape, such as ``3 x 1,024``."""
    return " x ".join(f"{n:,}" for n in shape)


def names_text(names: Sequence[str]) -> str:
    """Name some datasets and count the others.

    Examples
    --------
    >>> names_text(["a", "b"]), names_text(list("abcdef"))
    ('a, b', 'a, b, c and 3 more')
    """
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"


def naive_in_words(entries: Sequence[DatasetEntry]) -> tuple[str, ...]:
    """Say what one row at a time costs; datasets that are stored alike share a sentence."""
    lines = [f"{names_text(n)}: {text}" for text, n in _alike((e.path, _naive(e)) for e in entries)]
    if len(lines) > KINDS_EXPLAINED:
        lines[KINDS_EXPLAINED:] = [f"and likewise for {len(lines) - KINDS_EXPLAINED:,} more kinds of datasets"]
    if any(cached_share(entry) for entry in entries):
        lines.append(
            'that is with the dataset kept open: file["x"][i] opens it anew, with an empty cache, for each row'
        )
    return tuple(lines)


def _alike(sentences: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    by_text: dict[str, list[str]] = {}
    for name, text in sentences:
        if text:
            by_text.setdefault(text, []).append(name)
    return list(by_text.items())


def _naive(entry: DatasetEntry) -> str:
    if not entry.chunks:
        return "not chunked, so a row is read by itself"
    across, chunk, row = entry.chunks_across, text_of_bytes(entry.chunk_nbytes), text_of_bytes(entry.row_nbytes)
    if not entry.filters and entry.chunk_nbytes > entry.cache_nbytes:
        return "chunks without a filter and larger than h5py's cache, so a row is read by itself"
    verb = "decoded" if entry.filters else "read"
    pieces = f"a chunk of {chunk} is" if across == 1 else f"{across:,} chunks of {chunk} are"
    times = across * entry.chunk_nbytes / max(1, entry.row_nbytes)
    more = f", {count_text(times)} times as much" if times > _NOTABLE else ""
    return f"{pieces} {verb} for one row of {row}{more}; {_cache(entry)}"


def _cache(entry: DatasetEntry) -> str:
    share, cache = cached_share(entry), text_of_bytes(entry.cache_nbytes)
    if share == 1:
        held = "it, so it" if entry.chunks == 1 else f"all {entry.chunks:,} of them, so each"
        return f"but h5py's chunk cache ({cache}) holds {held} is fetched once in each worker"
    if share == 0:
        return f"none fits h5py's chunk cache ({cache})"
    return f"h5py's chunk cache ({cache}) spares that for {share:.1%} of the rows, as it holds so many of the chunks"


def ours_in_words(
    entries: Sequence[DatasetEntry], costs: Sequence[DatasetCost], order: EpochOrder, *, leading: str
) -> tuple[str, ...]:
    """Say what h5stream does instead, and what of it is not ideal."""
    block_rows = int(order.blocks.edges[1])
    lines = []
    chunks, batches = sum(cost.chunks for cost in costs if not cost.kept), counted(order.batches, "batch", "batches")
    if chunks:
        lines.append(
            "each chunk is fetched once for all its rows that a window holds: "
            f"{count_text(chunks)} fetched / {batches} = {count_text(chunks / order.batches)} a batch"
        )
    kept = [cost.path for cost in costs if cost.kept]
    if kept:
        lines.append(f"{names_text(kept)}: small, so read once and kept in memory; later epochs read nothing of it")
    both = list(zip(entries, costs, strict=True))
    for describe in (_straddling(block_rows, leading), _beyond):
        found = _alike((entry.path, describe(entry, cost)) for entry, cost in both)
        lines += [f"{names_text(names)}: {text}" for text, names in found]
    return (*lines, *_gaps(costs))


def _straddling(block_rows: int, leading: str) -> Callable[[DatasetEntry, DatasetCost], str]:
    def describe(entry: DatasetEntry, cost: DatasetCost) -> str:
        if cost.kept or cost.times_read < _NOTABLE:
            return ""
        return (
            f"chunks of {entry.chunk_rows or 0:,} rows lie across blocks of {block_rows:,} (the chunks of {leading}), "
            f"so each is fetched {cost.times_read:.2f} times an epoch"
        )

    return describe


def _beyond(entry: DatasetEntry, cost: DatasetCost) -> str:
    """Say where chunks hold more than the data: whole chunks are stored and decoded."""
    whole = entry.chunks * entry.chunk_nbytes
    if not cost.decoded_nbytes or whole < _NOTABLE * entry.raw_nbytes:
        return ""
    return f"chunks reach beyond the data, so {whole / max(1, entry.raw_nbytes):.2f} times as much is decoded"


def _gaps(costs: Sequence[DatasetCost]) -> Iterator[str]:
    read, gaps = sum(cost.read_nbytes for cost in costs), sum(cost.gap_nbytes for cost in costs)
    if gaps > (_NOTABLE - 1) * read:
        share = f"{gaps / read:.0%}"
        yield f"{share} of the bytes read lie between small chunks; reading on is cheaper than another system call"
