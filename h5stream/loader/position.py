"""The position of a loader: the order of each epoch, the next epoch, and the newest iteration; and its state.

A state is plain numbers and texts: a position, and a fingerprint of the data and settings that define its meaning.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from h5stream.dataset.dataset import H5Dataset
from h5stream.engine.sizing import LimitedField, Sizing
from h5stream.errors import OptionError, StateError
from h5stream.loader.arguments import DrawnSeed, current_ranks
from h5stream.loader.draws import SizedBatches, epoch_draws
from h5stream.loader.sampler import OrderSampler, check_same, places_of, warn_of_weak_shuffle
from h5stream.loader.settings import DEFAULT_BATCH_ROWS, Settings
from h5stream.order.blocks import Blocks, block_rows
from h5stream.order.epoch import EpochOrder, Order
from h5stream.order.line import OrderSettings, TakenBatches
from h5stream.order.users import CheckedOrder, ListedOrder, Ranks
from h5stream.order.weights import DrawnBlocks, EpochDraws, PlannedDraws, digest, drawn_blocks
from h5stream.samples.space import Space
from h5stream.storage.decode.small_floats import shown
from h5stream.storage.layout.layout import SampleLayout

_Made = TypeVar("_Made")

_ALONE = Ranks()

_LISTED_AT_ONCE = 4
"""Batches of a sampler that are read as one window; chunks that they share are decoded once."""

FORMAT = 4
"""Format of the state dict; later ones are refused. In 1 the blocks of the shuffle were always whole chunks; since 2
large chunks that need no decoding are cut; in 3 permutations differ; since 4 the matches of a pattern come in h5py's
order. Each gives another order."""
_SHUFFLED_SO = 3
"""The format since which rows in the same place are shuffled as now."""

_WAY = "Give the loader what it had then, or begin an epoch with set_epoch() instead of load_state_dict()"

_MOST_RANKS = 1 << 20
"""Limit on ranks, so that a damaged state costs no memory; nobody trains on more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPosition:
    """A position in an epoch, at which an iteration begins or has arrived; equal positions give equal batches."""

    epoch: int
    taken: TakenBatches = ()  # batches taken of the epoch; empty at its beginning
    checksum: int = 0  # of the sampler's indices for the batches taken; 0 without a sampler
    ranks: Ranks = _ALONE  # this process's rank, once an iteration begins here


@dataclass(slots=True)
class Progress:
    """The progress of an iteration.

    # Guarantees: written by the thread that iterates; any may read, and may be one batch off.
    """

    start: EpochPosition
    order: Order
    first_batch: int
    batch: int
    checksum: int = 0
    ended: bool = False

    def advance(self, left_out: Container[int]) -> None:
        """Count a batch that is given to the user, and the skipped batches before it."""
        passed = False
        while not passed:
            passed = self.batch not in left_out
            self.batch += 1
            if isinstance(self.order, ListedOrder):
                self.checksum = self.order.take_checksum(self.batch)

    @property
    def untouched(self) -> bool:
        """Whether no batch was given."""
        return self.batch == self.first_batch and not self.ended

    @property
    def place(self) -> EpochPosition:
        """The position after the last batch that was given; the end of an epoch is the beginning of the next."""
        start = self.start
        if self.ended or self.batch == self.order.batches:
            return EpochPosition(epoch=start.epoch + 1)
        if self.untouched:
            return start
        before = start.taken[:-1] if self.first_batch else start.taken
        taken = (*before, (start.ranks.world_size, self.batch))
        return EpochPosition(epoch=start.epoch, taken=taken, checksum=self.checksum)


def _kept(cache: dict[Any, Any], key: Any, make: Callable[[], _Made]) -> _Made:
    """Look up a value, creating it if needed; the cache keeps the two newest."""
    if key not in cache:
        value = make()
        for old in list(cache)[:-1]:
            del cache[old]
        cache[key] = value
    cached: _Made = cache[key]
    return cached


class Cursor:
    """The position of a loader in its orders. # Guarantees: used by the thread that iterates."""

    def __init__(self, settings: Settings, dataset: H5Dataset, followed: Any) -> None:
        self._requested, self._dataset = settings, dataset
        self._followed, self._followed_epoch = followed, getattr(followed, "epoch", 0)
        blocks = dataset.blocks_for(settings.shuffle)
        draws = epoch_draws(settings, dataset, blocks)
        self._sized = None if settings.sized is None else SizedBatches(dataset, settings.sized)
        self._sampler_order = settings.sampler_order(dataset)
        self.sizing = self._sizing_for(draws)
        self.footprint = self.sizing.choose(settings.window)
        self._draws = None if draws is None else draws.make()  # only after the sizing has found room for it
        self._blocks = self._measured(blocks)
        self._settings = OrderSettings(
            batch_size=settings.batch_rows or 1,
            window_rows=self.footprint.window_rows,
            first_window_rows=self.footprint.first_window_rows,
            shuffle=settings.shuffle,
            drop_last=settings.drop_last,
            seed=settings.seed,
            limit=None if self._sized is None else self._sized.limit,
        )
        self._orders: dict[tuple[OrderSettings, TakenBatches], EpochOrder | CheckedOrder] = {}
        self._drawn: dict[tuple[int, int, int], Any] = {}
        self.position: tuple[EpochPosition, Progress | None] = EpochPosition(epoch=0), None
        """The start of the next iteration, and the progress of the newest; assigned to undo a trial iteration."""
        self._iterator: Callable[[], object] = lambda: None
        self._data: dict[str, int | str] | None = None

    def _sizing_for(self, draws: PlannedDraws | None) -> Sizing:
        """Return the inputs for sizing windows; without a known batch size, batches may use all of the budget."""
        settings, dataset, sampler_order = self._requested, self._dataset, self._sampler_order
        total = len(dataset) if draws is None else draws.count
        rows = sampler_order.batch_rows if sampler_order is not None else min(settings.batch_rows or 1, total)
        (budget, most_budget), limited = settings.budget(), None
        if self._sized is not None and rows is not None:
            rows, most = self._sized.samples(rows, is_drawn=draws is not None)
            limited = LimitedField(number=self._sized.field, samples=most, limit=self._sized.limit)
        sizing = Sizing(
            layout=settings.seeded(dataset.layout),
            selected=dataset.rows,
            draws=draws,
            batch_rows=rows or DEFAULT_BATCH_ROWS,
            memory_budget=budget,
            most_budget=most_budget,
            threads=settings.threads,
            threads_asked=settings.num_workers is not None,
            # Scattered rows need a large window.
            shuffle=settings.shuffle or settings.order is not None or not dataset.is_in_file_order,
            whole_windows=settings.order is not None,
            limited=limited,
            keep=settings.keep == "auto",
            plain=settings.dataset.layout,
        )
        return sizing if sampler_order is None or rows is not None else sizing.with_room(settings.window)

    @property
    def ranks(self) -> Ranks:
        """The rank whose part is read; by default that of `torch.distributed`, whose group may be created later."""
        return self._requested.ranks or current_ranks()

    @property
    def seed(self) -> int:
        """The seed of all draws; a `DrawnSeed` if it was drawn here and no state set it."""
        return self._order_settings.seed

    @property
    def _order_settings(self) -> OrderSettings:
        """The inputs of orders. Several ranks use seed 0: seeds drawn on each would lose and repeat rows."""
        if not isinstance(self._settings.seed, DrawnSeed) or self.ranks.world_size == 1:
            return self._settings
        return replace(self._settings, seed=DrawnSeed(0))

    def batches(self, epoch: int | None = None) -> int:
        """Return the batches of a whole epoch, by default of the next one."""
        if self._sampler_order is not None:
            return len(self._sampler_order.batched)
        return self.order(self.position[0].epoch if epoch is None else epoch).batches

    def check(self) -> None:
        """Raise if the settings give no order, and warn the caller's caller of one that mixes too little."""
        if self._sampler_order is not None:
            return
        order = self.order(0)
        # A batch of all rows needs no mixing.
        if isinstance(order, EpochOrder) and self._settings.batch_size < len(self._dataset):
            warn_of_weak_shuffle(self._dataset.layout, order, self.sizing.budget_for, stacklevel=5)

    def _blocks_of(self, epoch: int) -> Blocks:
        """Return the blocks of an epoch: the same for all epochs, unless samples are drawn."""
        settings, draws, blocks = self._order_settings, self._draws, self._blocks
        window_rows = min(settings.first_window_rows, settings.window_rows)

        def draw(draws: EpochDraws) -> Blocks:  # has no reference to the cursor
            return drawn_blocks(
                blocks,
                draws.places(settings.seed, epoch),
                shuffle=settings.shuffle,
                window_rows=window_rows,
            )

        def made() -> Any:
            if draws is not None:
                lazy = DrawnBlocks(draws.count, functools.partial(draw, draws))
                return lazy if self._sized is None else self._measured(draw(draws))
            if self._dataset.layout.draws is None:
                return blocks
            return self._measured(self._dataset.blocks_for(settings.shuffle, seed=settings.seed, epoch=epoch))

        epoch_blocks: Blocks = _kept(self._drawn, (settings.seed, epoch, window_rows), made)
        return epoch_blocks

    def _measured(self, blocks: Blocks) -> Blocks:
        return blocks if self._sized is None else self._sized.measured(blocks)

    # --- orders -------------------------------------------------------------------------------------------

    def order(self, epoch: int) -> EpochOrder | CheckedOrder:
        """Return the order of a whole epoch that no sampler decides."""
        order, _ = self.order_of(EpochPosition(epoch=epoch, ranks=self.ranks))
        assert not isinstance(order, ListedOrder)
        return order

    def order_of(self, place: EpochPosition) -> tuple[EpochOrder | CheckedOrder | ListedOrder, int]:
        """Return the order of an iteration that begins at a position, and its first batch."""
        settings = self._settings_of(place.epoch, place.ranks)
        before, first_batch = self._taken_before(place)
        if self._sampler_order is not None:
            order = ListedOrder(
                listed=self._sampler_order.batches(),
                together=min(_LISTED_AT_ONCE, max(1, self.footprint.max_open_batches // 2)),
                total_rows=self._dataset.layout.samples,
                batches=self._sampler_order.count,
                most_rows=self._sampler_order.batch_rows or self.sizing.batch_rows,
                rows=self._sampler_order.rows,
                checksum=place.checksum,
                drawn=(self.seed, place.epoch),
            )
            return order, first_batch

        def made() -> EpochOrder | CheckedOrder:
            blocks = self._blocks_of(place.epoch)
            if self._requested.order is None:
                return EpochOrder(blocks, settings, before)
            order, drawn = self._requested.order(blocks, place.epoch, place.ranks), (settings.seed, place.epoch)
            return CheckedOrder(order, blocks, settings.batch_size, self.footprint.window_rows, drawn)

        # Orders of a user's function, and orders to be cut, are also needed for their length.
        is_kept = self._requested.order is not None or self._sized is not None
        epoch_order = _kept(self._orders, (settings, before), made) if is_kept else made()
        if first_batch > epoch_order.batches:
            raise OptionError(f"{first_batch:,} batches were taken, but there are {epoch_order.batches:,}")
        return epoch_order, first_batch

    def _taken_before(self, place: EpochPosition) -> tuple[TakenBatches, int]:
        """Split the batches taken of an epoch into those of other numbers of ranks, and the current one's count."""
        before, first_batch = place.taken, 0
        if before and before[-1][0] == place.ranks.world_size:
            before, first_batch = before[:-1], before[-1][1]
        if before and (self._sampler_order is not None or self._requested.order is not None):
            raise StateError(
                f"the state is of {before[0][0]} ranks and there are now {place.ranks.world_size}: the rest of an "
                "epoch of a sampler, or of a function as draw=, cannot be divided anew. Resume with as many as before"
            )
        return before, first_batch

    def _settings_of(self, epoch: int, ranks: Ranks) -> OrderSettings:
        is_drawn = isinstance(self._settings.seed, DrawnSeed)
        draws_own = self._settings.shuffle and is_drawn and self._requested.generator is not None
        if draws_own and ranks.world_size > 1:
            raise OptionError(
                f"generator= draws another seed on each of {ranks.world_size} ranks; pass the same seed= on all of them"
            )
        return replace(self._order_settings, epoch=epoch, rank=ranks.rank, world_size=ranks.world_size)

    # --- as samplers of torch -----------------------------------------------------------------------------

    @property
    def sampler(self) -> Any:
        """The user's sampler, or the loader's own."""
        return self._own_sampler() if self._sampler_order is None else self._sampler_order.source

    @property
    def batch_sampler(self) -> Any:
        """The iterable of each batch's indices; None if samples come singly."""
        if self._requested.batch_rows is None and self._requested.batch_sampler is None:
            return None
        return self._own_sampler() if self._sampler_order is None else self._sampler_order.batched

    def _own_sampler(self) -> OrderSampler:
        places = places_of(self._blocks, self._dataset)
        return OrderSampler(self.position[0].epoch, self._settings.batch_size, places, self._order_of_places)

    def _order_of_places(self, epoch: int) -> Order:
        """Return the order of an epoch in places of the dataset instead of rows of the files."""
        order = self.order(epoch)
        if isinstance(order, CheckedOrder):
            return order.of_places()
        blocks = order.blocks.drawn if isinstance(order.blocks, DrawnBlocks) else order.blocks
        rows = None if self._draws is None else self._draws.places(order.settings.seed, epoch)
        return EpochOrder(replace(blocks, rows=rows), order.settings)

    # --- moving through epochs -----------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; a position within this epoch is kept."""
        place, newest = self.position
        if newest is not None or epoch != place.epoch:
            self.position = EpochPosition(epoch=epoch), None
        if self._sampler_order is not None:
            self._sampler_order.set_epoch(epoch)
        if self._followed is not None:
            self._followed.set_epoch(epoch)
            self._followed_epoch = epoch

    def next_start(self) -> EpochPosition:
        """Return the position at which the next iteration begins.

        Trainers make an iterator only to see whether that works. One that was dropped before it gave a batch uses up
        neither its epoch nor the position of a state.
        """
        if self._followed is not None and self._followed.epoch != self._followed_epoch:
            self._followed_epoch = self._followed.epoch
            self.set_epoch(self._followed_epoch)
        place, newest = self.position
        if newest is not None and newest.untouched and self._iterator() is None:
            place = newest.start
            self.position = place, newest
        return replace(place, ranks=self.ranks)

    def move_to(self, progress: Progress, iterator: object) -> None:
        """Record that an iteration begins, and its iterator; the next iteration is of the next epoch."""
        self.position = EpochPosition(epoch=progress.start.epoch + 1), progress
        self._iterator = weakref.ref(iterator)

    def start_after(self, epoch: int) -> EpochPosition | None:
        """Return the start of the epoch after `epoch`; None if another position comes next, or it is unknown."""
        is_next = self._sampler_order is None and self.position[0] == EpochPosition(epoch=epoch + 1)
        return EpochPosition(epoch=epoch + 1, ranks=self.ranks) if is_next else None

    # --- state --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the position of the newest iteration, or the start of the next, as a state dict."""
        place, newest = self.position
        place = place if newest is None else newest.place
        return {
            "format": FORMAT,
            "epoch": place.epoch,
            "taken": [list(pair) for pair in place.taken],
            "sampler_mark": place.checksum,
            "rank": self.ranks.rank,
            "fingerprint": self._fingerprint(),
        }

    def restore(self, state: Any) -> None:
        """Continue from a saved state; if it is refused, nothing changes."""
        place, rank, fingerprint = place_of(state)
        fingerprint = brought_up_to_date(state, place, fingerprint, self._fingerprint(), self._dataset.is_of_pattern)
        before = self._settings
        try:
            self._settings = self._taken_over(fingerprint)
            now = self._fingerprint()
            if fingerprint.get("order") != "shuffled" and not ("seed" in fingerprint and "seed" in now):
                # An older version saved the seed for a shuffle only, or one of the two draws nothing.
                fingerprint, now = ({n: one[n] for n in one if n != "seed"} for one in (fingerprint, now))
            check_same(fingerprint, now, "data or settings", _WAY)
            begun = replace(place, ranks=self.ranks)
            if self._sampler_order is None and self._requested.order is None:
                self.order_of(begun)
            self._taken_before(begun)
            self.footprint = self.sizing.taken_over(self.footprint, self._settings)
        except BaseException:
            self._settings = before
            raise
        # Another rank's sampler gives other indices, so its checksum is meaningless here.
        self.position = place if rank == begun.ranks.rank else replace(place, checksum=0), None
        if self._sampler_order is not None:
            self._sampler_order.set_epoch(place.epoch)

    def _fingerprint(self) -> dict[str, int | str]:
        if self._data is None:
            self._data = data_fingerprint(self._dataset, self._blocks)
        order = self._order_settings
        settings: dict[str, int | str] = {
            "batch_size": order.batch_size,
            "drop_last": int(order.drop_last),
        }
        settings["order"] = self._requested.order_text
        if order.shuffle:
            settings |= {"window": order.window_rows, "first_window": order.first_window_rows}
        if self._requested.draws_by_seed:
            settings["seed"] = int(order.seed)
        sized = {} if self._sized is None else self._sized.fingerprint
        drawn: dict[str, int | str] = {} if self._draws is None else {"samples_drawn": self._draws.fingerprint}
        return {**self._data, **settings, **sized, **drawn}

    def _taken_over(self, saved: dict[str, int | str]) -> OrderSettings:
        """Adopt from a state the settings that the user did not choose: those that memory or chance determined."""
        chosen = {"first_window_rows": saved.get("first_window")}
        if self._requested.window == "auto":
            chosen["window_rows"] = saved.get("window")
        if isinstance(self._requested.seed, DrawnSeed):
            chosen["seed"] = saved.get("seed", 0)
        valid: dict[str, Any] = {name: value for name, value in chosen.items() if isinstance(value, int)}
        return replace(self._settings, **valid)


# --- states, and the fingerprint in them ----------------------------------------------------------------


def place_of(state: Any) -> tuple[EpochPosition, int, dict[str, int | str]]:
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
        raise StateError(f"the state is damaged: {wrong or state['taken']!r:.200} are no counts")
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


def _fields_text(layout: SampleLayout) -> str:
    text = ", ".join(f"{f.name}:{shown(f.dtype)}{list(f.row_shape)}" for f in layout.fields)
    return text if len(text) <= 400 else f"{len(layout.fields)} fields, {digest(text.encode())}"


def _samples_text(layout: SampleLayout, space: Space) -> str:
    origins = f", from {digest(space.starts.fingerprint)}" if space.starts.fingerprint else ""
    if space.edges is None:
        pads = [field.pad for field in layout.fields]
        along = repr(([parts[0].along for parts in layout.datasets], space.draws, pads)).encode()
        hashed = digest(along, space.volumes.tobytes(), *(array.tobytes() for array in space.starts.arrays))
        return f"{space.samples} boxes, pad={space.pad}, {hashed}{origins}"
    steps = [(field.steps, field.at, field.pad) for field in layout.fields]
    listed = [] if space.columns == ("",) else [rows.tobytes() for rows in space.rows]
    hashed = digest(repr((steps, space.draws)).encode(), space.edges.tobytes(), *listed)
    return f"{space.samples} sequences, pad={space.pad}, {hashed}{origins}"


def _each(numbers: Any) -> int | str:
    """Return the common value of all numbers, or a digest of them."""
    distinct = list(numbers)
    return distinct[0] if len(set(distinct)) == 1 else digest(repr(distinct).encode())


def _chunk_bytes(layout: SampleLayout) -> Any:
    yield repr(layout.file_sizes + list(layout.file_starts)).encode()
    for parts in layout.datasets:
        for part in parts:
            yield f"{part.path}:{part.rows}:{part.dtype_text}".encode()
            if part.index is not None:
                yield from (part.index.numbers.data, part.index.offset.data, part.index.nbytes.data)
