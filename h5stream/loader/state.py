"""States: a position in an epoch as plain numbers and texts, and a fingerprint of the data and settings it is over."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from h5stream.dataset.dataset import H5Dataset
from h5stream.errors import StateError
from h5stream.loader.settings import Settings
from h5stream.order.blocks import Blocks, block_rows
from h5stream.order.epoch import OrderSettings, TakenBatches
from h5stream.order.users import Ranks
from h5stream.order.weights import digest
from h5stream.samples.space import Space
from h5stream.storage.decode.small_floats import shown
from h5stream.storage.layout.layout import SampleLayout

_ALONE = Ranks()

FORMAT = 4
"""Format of the state dict; later ones are refused. In 1 the blocks of the shuffle were always whole chunks; since 2
large chunks that need no decoding are cut; in 3 permutations differ; since 4 the matches of a pattern come in h5py's
order. Each gives another order."""
_SHUFFLED_SO = 3
"""The format since which rows in the same place are shuffled as now."""

_MOST_RANKS = 1 << 20
"""Limit on ranks, so that a damaged state costs no memory; nobody trains on more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPosition:
    """A position in an epoch, at which an iteration begins or has arrived; equal positions give equal batches."""

    epoch: int
    taken: TakenBatches = ()  # batches taken of the epoch; empty at its beginning
    checksum: int = 0  # of the sampler's indices for the batches taken; 0 without a sampler
    ranks: Ranks = _ALONE  # this process's rank, once an iteration begins here


def place_of(state: object) -> tuple[EpochPosition, int, dict[str, int | str]]:
    """Parse a state dict: the position, the rank that wrote it, and the fingerprint; see `brought_up_to_date`."""
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
        raise StateError(f"the state is damaged: invalid counts: {wrong or state['taken']!r:.200}")
    return EpochPosition(epoch=numbers[0], taken=taken, checksum=numbers[1]), numbers[2], fingerprint


def brought_up_to_date(
    state: dict[str, Any],
    place: EpochPosition,
    saved: dict[str, int | str],
    now: dict[str, int | str],
    by_pattern: bool,
) -> dict[str, int | str]:
    """Return the fingerprint of an older state as it would be written now, if it names the same rows."""
    if state["format"] == FORMAT:
        return saved
    listed = {name: now[name] for name in ("chunks", "block_rows", "samples") if by_pattern and name in now}
    is_reordered = saved != now == saved | listed
    if not place.taken:
        saved = saved | listed
    if str(now.get("samples")).startswith(f"{saved.get('samples')}, from "):  # an older state lacks this part
        saved = saved | {"samples": now["samples"]}
    cut = ("block_rows", "chunks")  # the same chunks, cut differently
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


def data_fingerprint(dataset: H5Dataset, blocks: Blocks) -> dict[str, int | str]:
    """Return a description of the data that an order is over, independent of paths: a staged or moved copy is equal.

    It covers the sizes of files, and the place and stored size of every chunk, but not bytes changed in place.
    """
    layout, rows = dataset.layout, blocks.rows if dataset.layout.draws is None else dataset.chosen
    return {
        "rows": len(dataset),
        "selection": "all" if rows is None else digest(rows if rows.flags.c_contiguous else rows.tobytes()),
        "files": len(layout.file_sizes),
        "file_bytes": sum(layout.file_sizes),
        "fields": _fields_text(layout),
        **({} if layout.space is None else {"samples": _samples_text(layout, layout.space)}),
        "block_rows": _each(block_rows(layout)),
        "chunks": digest(*_chunk_bytes(layout)),
    }


def settings_fingerprint(settings: Settings, order: OrderSettings) -> dict[str, int | str]:
    """Return a description of the settings that an order depends on."""
    sampling = settings.sampling
    if sampling.is_listed:
        order_text = "sampler"
    elif sampling.factory is not None:
        order_text = qualified_name(sampling.factory)
    else:
        order_text = "shuffled" if settings.shuffle else "file"
    fingerprint: dict[str, int | str] = {
        "batch_size": order.batch_size,
        "drop_last": int(order.drop_last),
        "order": order_text,
    }
    if order.shuffle:
        fingerprint |= {"window": order.window_rows, "first_window": order.first_window_rows}
    if settings.draws_by_seed:
        fingerprint["seed"] = int(order.seed)
    return fingerprint


def qualified_name(function: Any) -> str:
    """Return the name by which a function can be imported again; for callable objects, that of their type."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _fields_text(layout: SampleLayout) -> str:
    text = ", ".join(f"{f.name}:{shown(f.dtype)}{list(f.row_shape)}" for f in layout.fields)
    return text if len(text) <= 400 else f"{len(layout.fields)} fields, {digest(text.encode())}"


def _samples_text(layout: SampleLayout, space: Space) -> str:
    origins = f", from {digest(space.starts.fingerprint)}" if space.starts.fingerprint else ""
    if space.edges is None:
        pads = [field.take.pad for field in layout.fields]
        along = repr(([parts[0].along for parts in layout.datasets], space.draws, pads)).encode()
        hashed = digest(along, space.volumes.tobytes(), *(array.tobytes() for array in space.starts.arrays))
        return f"{space.samples} boxes, pad={space.pad}, {hashed}{origins}"
    steps = [(field.take.steps, field.take.at, field.take.pad) for field in layout.fields]
    listed = [] if space.columns == ("",) else [rows.tobytes() for rows in space.rows]
    hashed = digest(repr((steps, space.draws)).encode(), space.edges.tobytes(), *listed)
    return f"{space.samples} sequences, pad={space.pad}, {hashed}{origins}"


def _each(numbers: Iterable[int]) -> int | str:
    """Return the common value of all numbers, or a digest of them."""
    distinct = list(numbers)
    return distinct[0] if len(set(distinct)) == 1 else digest(repr(distinct).encode())


def _chunk_bytes(layout: SampleLayout) -> Iterator[bytes | memoryview]:
    yield repr(layout.file_sizes + list(layout.file_starts)).encode()
    for parts in layout.datasets:
        for part in parts:
            yield f"{part.path}:{part.rows}:{part.dtype_text}".encode()
            if part.index is not None:
                yield from (part.index.numbers.data, part.index.offset.data, part.index.nbytes.data)


# --- comparing a state with the present --------------------------------------------------------------------


def check_same(saved: Mapping[str, object], now: Mapping[str, object], of: str, way: str) -> None:
    """Raise `StateError` if a state is of other data or settings, naming the changes."""
    changed = tuple(name for name in {**now, **saved} if saved.get(name) != now.get(name))
    if changed:
        # If the order differs, the settings that follow from it are not reported.
        reported = [name for name in changed if "order" not in changed or name not in _OF_ORDER] or changed
        changes = ", ".join(_change_text(name, saved.get(name), now.get(name)) for name in reported)
        raise StateError(f"the state is of other {of}: {changes}. {way}", changed=changed)


_OF_ORDER = {"window", "first_window", "seed"}
_DIGEST = r"(, )?(from )?\b[0-9a-f]{16}\b"
# Descriptions of entries whose values are digests, or missing.
_MEANT = {
    "chunks": "the stored chunks of the fields",
    "selection": "the chosen rows",
    "block_rows": "the numbers of rows in a chunk",
    "samples_drawn": "what draw= takes",
    "samples": "what samples= makes of the rows",
}


def _change_text(name: str, before: object, now: object) -> str:
    """Return a description of a change in the user's terms, without digests."""
    if name == "order" and {before, now} == {"shuffled", "file"}:
        return f"shuffle was {before == 'shuffled'} and is now {now == 'shuffled'}"
    if name == "drop_last":
        before, now = bool(before), bool(now)
    texts = [str(x) if isinstance(x, int) else re.sub(_DIGEST, "", str(x)) for x in (before, now)]
    if None in (before, now) or "" in texts or texts[0] == texts[1]:
        return f"{_MEANT.get(name, name)} differ{'' if name in ('chunks', 'selection', 'block_rows') else 's'}"
    shown = _MEANT[name] if name == "samples_drawn" else name
    return f"{shown} was {texts[0]:.200} and is now {texts[1]}"
