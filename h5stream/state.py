"""A loader's state: where it is, and a fingerprint of what that means; plain numbers and text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from h5stream.dataset import H5Dataset
from h5stream.errors import StateError
from h5stream.order.blocks import Blocks
from h5stream.order.chunks import block_rows
from h5stream.order.line import Taken
from h5stream.samples.space import Space
from h5stream.storage.layout import SampleLayout

FORMAT = 4
"""Of the state dict; a later one that cannot be read is refused by name. In 1 the blocks of the shuffle were whole
chunks always; since 2 large chunks that nothing has to be decoded of are cut, in 3 permutations are others, and since 4
what a pattern matches comes as h5py lists it: each gives another order."""
_SHUFFLED_SO = 3
"""The format since which rows that lie as they did are shuffled as they are now."""

_MOST_RANKS = 1 << 20
"""Nobody trains on more, and a damaged state must not cost memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a loader is."""

    epoch: int  # the epoch
    taken: Taken = ()  # what was taken of it; empty at its beginning
    checksum: int = 0  # checksum of the indices that a sampler gave for the batches taken; 0 where no sampler decides


def state_of(place: Place, rank: int, fingerprint: dict[str, int | str]) -> dict[str, Any]:
    """Write a place as a state dict."""
    return {
        "format": FORMAT,
        "epoch": place.epoch,
        "taken": [list(pair) for pair in place.taken],
        "sampler_mark": place.checksum,
        "rank": rank,
        "fingerprint": fingerprint,
    }


def place_of(state: Any) -> tuple[Place, int, dict[str, int | str]]:
    """Read a state dict: the place, the rank that wrote it, and the fingerprint; see `brought_up_to_date`."""
    if not isinstance(state, dict) or "format" not in state:
        raise StateError(f"load_state_dict takes what state_dict() gave, not {state!r:.200}")
    if state["format"] not in range(1, FORMAT + 1):
        raise StateError(f"the state has format {state['format']!r:.99}; this version of h5stream reads 1 to {FORMAT}")
    try:
        numbers = [state["epoch"], state["sampler_mark"], state["rank"]]
        taken = tuple((ranks, batches) for ranks, batches in state["taken"])
        fingerprint = dict(state["fingerprint"])
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"the state is damaged: {error!r}") from error
    wrong = [n for n in (*numbers, *(n for pair in taken for n in pair)) if type(n) is not int or not 0 <= n < 1 << 63]
    if wrong or any(not 1 <= ranks <= _MOST_RANKS for ranks, _ in taken):
        raise StateError(f"the state is damaged: {wrong or state['taken']!r:.200} are no counts")
    return Place(epoch=numbers[0], taken=taken, checksum=numbers[1]), numbers[2], fingerprint


def brought_up_to_date(
    state: dict[str, Any], place: Place, saved: dict[str, int | str], now: dict[str, int | str], by_pattern: bool
) -> dict[str, int | str]:
    """Return the fingerprint of an older state as it would be written now, if it names the same rows.

    With `by_pattern` a pattern says which groups or objects there are.
    """
    if state["format"] == FORMAT:
        return saved
    listed = {name: now[name] for name in ("chunks", "block_rows", "samples") if by_pattern and name in now}
    is_reordered = saved != now == saved | listed
    if not place.taken:
        saved = saved | listed
    if str(now.get("samples")).startswith(f"{saved.get('samples')}, from "):  # which an older state does not say
        saved = saved | {"samples": now["samples"]}
    cut = ("block_rows", "chunks")  # the same chunks, cut otherwise
    if [saved.get(n) == now[n] for n in cut] == [False, True]:
        windows = ("window", "first_window") if saved.get("order") == "shuffled" else ()
        saved = saved | {name: now[name] for name in ("block_rows", *windows)}
    # At the beginning of an epoch, or in the order of the file, nothing is lost or repeated.
    is_shuffled_anew = saved == now and saved["order"] == "shuffled" and state["format"] < _SHUFFLED_SO
    if place.taken and (is_shuffled_anew or is_reordered):
        what = "order of groups and objects" if is_reordered else "shuffle"
        raise StateError(
            f"the state was saved in the middle of epoch {place.epoch} by an older h5stream, whose {what} was another "
            f"(state format {state['format']}, now {FORMAT}), so the rest of that epoch would come in another order. "
            "Finish the epoch with the older version, or begin an epoch with set_epoch() instead of load_state_dict()",
            changed=("format",),
        )
    return saved


def check_fingerprint(saved: dict[str, int | str], now: dict[str, int | str]) -> None:
    """Refuse a state of other data or settings, and say what changed."""
    if saved.get("order") != "shuffled" and not ("seed" in saved and "seed" in now):
        # An older version said the seed of a shuffle alone, or one of both draws nothing.
        saved, now = ({name: one[name] for name in one if name != "seed"} for one in (saved, now))
    changed = tuple(name for name in {**now, **saved} if saved.get(name) != now.get(name))
    if changed:
        listed = ", ".join(
            f"{n} was {saved.get(n, 'absent')!s:.200} and is now {now.get(n, 'absent')}" for n in changed
        )
        raise StateError(
            f"the state is of other data or settings: {listed}. Give the loader what it had then, or begin an epoch "
            "with set_epoch() instead of load_state_dict()",
            changed=changed,
        )


def data_fingerprint(dataset: H5Dataset, blocks: Blocks) -> dict[str, int | str]:
    """Describe the data that an order is over, wherever the files lie.

    Not the paths, inodes and times, so that a staged or moved copy is the same data; but the files' sizes and the
    place and stored size of every chunk, which data that were written anew hardly share once compressed. Bytes
    that were changed in place are not noticed.
    """
    layout, rows = dataset.layout, blocks.rows if dataset.layout.draws is None else dataset.chosen
    return {
        "rows": len(dataset),
        "selection": "all" if rows is None else _digest(rows if rows.flags.c_contiguous else rows.tobytes()),
        "files": len(layout.file_sizes),
        "file_bytes": sum(layout.file_sizes),
        "fields": _fields_text(layout),
        **({} if layout.space is None else {"samples": _samples_text(layout, layout.space)}),
        "block_rows": _each(block_rows(layout)),
        "chunks": _digest(*_chunk_bytes(layout)),
    }


def _fields_text(layout: SampleLayout) -> str:
    text = ", ".join(f"{f.name}:{f.dtype}{list(f.row_shape)}" for f in layout.fields)
    return text if len(text) <= 400 else f"{len(layout.fields)} fields, {_digest(text.encode())}"


def _samples_text(layout: SampleLayout, space: Space) -> str:
    said = f", from {_digest(space.starts.said)}" if space.starts.said else ""
    if space.edges is None:
        pads = [field.pad for field in layout.fields]
        along = repr(([parts[0].along for parts in layout.datasets], space.draws, pads)).encode()
        digest = _digest(along, space.volumes.tobytes(), *(each.tobytes() for each in space.starts.arrays))
        return f"{space.samples} boxes, pad={space.pad}, {digest}{said}"
    steps = [(field.steps, field.at, field.pad) for field in layout.fields]
    listed = [] if space.columns == ("",) else [rows.tobytes() for rows in space.rows]
    digest = _digest(repr((steps, space.draws)).encode(), space.edges.tobytes(), *listed)
    return f"{space.samples} sequences, pad={space.pad}, {digest}{said}"


def _each(numbers: Any) -> int | str:
    """Return the one number that all are, or a digest of them."""
    distinct = list(numbers)
    return distinct[0] if len(set(distinct)) == 1 else _digest(repr(distinct).encode())


def _chunk_bytes(layout: SampleLayout) -> Any:
    yield repr(layout.file_sizes + list(layout.file_starts)).encode()
    for parts in layout.datasets:
        for part in parts:
            yield f"{part.path}:{part.rows}:{part.dtype_text}".encode()
            if part.index is not None:
                yield from (part.index.numbers.data, part.index.offset.data, part.index.nbytes.data)


def _digest(*parts: Any) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
