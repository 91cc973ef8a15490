"""The position of a loader: the order of each epoch, the next epoch, and the newest iteration."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch.distributed

from h5stream.base import limits
from h5stream.dataset.dataset import H5Dataset
from h5stream.engine.footprint import default_budget
from h5stream.engine.reader import default_threads
from h5stream.engine.sizing import LimitedField, Sizing
from h5stream.errors import OptionError, StateError
from h5stream.loader.arguments import DrawnSeed
from h5stream.loader.draws import Followed, SizedBatches, epoch_draws, sampler_order
from h5stream.loader.settings import DEFAULT_BATCH_ROWS, Settings
from h5stream.loader.state import (
    FORMAT,
    EpochPosition,
    brought_up_to_date,
    check_same,
    data_fingerprint,
    place_of,
    settings_fingerprint,
)
from h5stream.order.blocks import Blocks
from h5stream.order.epoch import EpochOrder, OrderSettings, TakenBatches
from h5stream.order.users import CheckedOrder, ListedOrder, Ranks, SamplerOrder
from h5stream.order.weights import DrawnBlocks, EpochDraws, PlannedDraws, drawn_blocks
from h5stream.order.window import Order
from h5stream.storage.layout.layout import SampleLayout

_Key = TypeVar("_Key")
_Made = TypeVar("_Made")

_LISTED_AT_ONCE = 4
"""Batches of a sampler that are read as one window; chunks that they share are decoded once."""

_WAY = "Give the loader what it had then, or begin an epoch with set_epoch() instead of load_state_dict()"


def current_ranks() -> Ranks:
    """Return this process's rank in the default process group; a single rank if there is no group.

    The environment that `torchrun` sets is not read: without a process group, ranks do not train together.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return Ranks()
    return Ranks(rank=torch.distributed.get_rank(), world_size=torch.distributed.get_world_size())


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


class Cursor:
    """The position of a loader in its orders. # Guarantees: used by the thread that iterates."""

    def __init__(self, settings: Settings, dataset: H5Dataset, layout: SampleLayout, followed: Followed | None) -> None:
        sampling = settings.sampling
        self.settings, self.dataset = settings, dataset
        self._followed = followed
        blocks = dataset.blocks_for(settings.shuffle)
        draws = epoch_draws(settings, dataset, blocks) if settings.is_drawn else None
        self._sized = None if sampling.sized is None else SizedBatches(dataset, sampling.sized)
        self.sampler_order: SamplerOrder | None = sampler_order(settings, dataset) if sampling.is_listed else None
        self.sizing = self._sizing_for(layout, draws)
        self.footprint = self.sizing.choose(sampling.window)
        self.draws = None if draws is None else draws.make()  # only after the sizing has found room for it
        self.blocks = blocks if self._sized is None else self._sized.measured(blocks)
        self._chosen = OrderSettings(
            batch_size=sampling.batch_rows or 1,
            window_rows=self.footprint.window_rows,
            first_window_rows=self.footprint.first_window_rows,
            shuffle=settings.shuffle,
            drop_last=sampling.drop_last,
            seed=settings.seed,
            limit=None if self._sized is None else self._sized.limit,
        )
        # Those that are expensive to make, by what they depend on.
        self._kept_blocks: dict[tuple[int, int, int], Blocks] = {}
        self._kept_orders: dict[tuple[OrderSettings, TakenBatches], EpochOrder | CheckedOrder] = {}
        self.position: tuple[EpochPosition, Progress | None] = EpochPosition(epoch=0), None
        """The start of the next iteration, and the progress of the newest; assigned to undo a trial iteration."""
        self._iterator: Callable[[], object] = lambda: None
        self._data: dict[str, int | str] | None = None

    def _sizing_for(self, layout: SampleLayout, draws: PlannedDraws | None) -> Sizing:
        """Return the inputs for sizing windows; without a known batch size, batches may use all of the budget."""
        settings, dataset, listed = self.settings, self.dataset, self.sampler_order
        sampling, reading = settings.sampling, settings.reading
        total = len(dataset) if draws is None else draws.count
        rows = listed.batch_rows if listed is not None else min(sampling.batch_rows or 1, total)
        if isinstance(reading.memory_budget, int):
            budget = most_budget = reading.memory_budget
        else:  # an automatic window may raise the default
            memory_nbytes = limits.memory_total_bytes()
            budget = default_budget(memory_nbytes)
            most_budget = max(budget, memory_nbytes // 2)
        limited = None
        if self._sized is not None and rows is not None:
            rows, most = self._sized.samples(rows, is_drawn=draws is not None)
            limited = LimitedField(number=self._sized.field, samples=most, limit=self._sized.limit)
        sizing = Sizing(
            layout=layout,
            selected=dataset.rows,
            draws=draws,
            batch_rows=rows or DEFAULT_BATCH_ROWS,
            memory_budget=budget,
            most_budget=most_budget,
            threads=default_threads(settings.dataset.layout) if reading.num_workers is None else reading.num_workers,
            threads_asked=reading.num_workers is not None,
            # Scattered rows need a large window.
            shuffle=settings.shuffle or sampling.factory is not None or not dataset.is_in_file_order,
            whole_windows=sampling.factory is not None,
            limited=limited,
            keep=reading.keep == "auto",
            plain=settings.dataset.layout,
        )
        return sizing if listed is None or rows is not None else sizing.with_room(sampling.window)

    @property
    def ranks(self) -> Ranks:
        """The rank whose part is read; by default that of `torch.distributed`, whose group may be created later."""
        return self.settings.sampling.ranks or current_ranks()

    @property
    def order_settings(self) -> OrderSettings:
        """The inputs of orders. Several ranks use seed 0: seeds drawn on each would lose and repeat rows."""
        if not isinstance(self._chosen.seed, DrawnSeed) or self.ranks.world_size == 1:
            return self._chosen
        return replace(self._chosen, seed=DrawnSeed(0))

    @property
    def seed(self) -> int:
        """The seed of all draws; a `DrawnSeed` if it was drawn here and no state set it."""
        return self.order_settings.seed

    def batches(self, epoch: int | None = None) -> int:
        """Return the batches of a whole epoch, by default of the next one."""
        if self.sampler_order is not None:
            return len(self.sampler_order.batched)
        return self.order(self.position[0].epoch if epoch is None else epoch).batches

    # --- orders -------------------------------------------------------------------------------------------

    def order(self, epoch: int) -> EpochOrder | CheckedOrder:
        """Return the order of a whole epoch that no sampler decides."""
        return self._order_of(EpochPosition(epoch=epoch, ranks=self.ranks), (), 0)

    def order_of(self, place: EpochPosition) -> tuple[EpochOrder | CheckedOrder | ListedOrder, int]:
        """Return the order of an iteration that begins at a position, and its first batch."""
        before, first_batch = self._taken_before(place) if place.taken else ((), 0)
        listed = self.sampler_order
        if listed is None:
            return self._order_of(place, before, first_batch), first_batch
        self._check_seed(place.ranks)
        order = ListedOrder(
            listed=listed.batches(),
            together=min(_LISTED_AT_ONCE, max(1, self.footprint.max_open_batches // 2)),
            total_rows=self.dataset.layout.samples,
            batches=listed.count,
            most_rows=listed.batch_rows or self.sizing.batch_rows,
            rows=listed.rows,
            checksum=place.checksum,
            drawn=(self.seed, place.epoch),
        )
        return order, first_batch

    def _order_of(self, place: EpochPosition, before: TakenBatches, first_batch: int) -> EpochOrder | CheckedOrder:
        """Return the order of an epoch, or what the ranks `before` left of it, from samples in blocks."""
        ranks, chosen = place.ranks, self.order_settings
        if ranks.world_size > 1:
            self._check_seed(ranks)
        settings = replace(chosen, epoch=place.epoch, rank=ranks.rank, world_size=ranks.world_size)
        is_redrawn = self.draws is not None or self.dataset.layout.draws is not None
        blocks = self._blocks_of(place.epoch) if is_redrawn else self.blocks
        factory = self.settings.sampling.factory

        def made() -> EpochOrder | CheckedOrder:
            if factory is None:
                return EpochOrder(blocks, settings, before)
            order, drawn = factory(blocks, place.epoch, ranks), (settings.seed, place.epoch)
            return CheckedOrder(order, blocks, settings.batch_size, self.footprint.window_rows, drawn)

        if factory is None and self._sized is None:
            order: EpochOrder | CheckedOrder = EpochOrder(blocks, settings, before)
        else:  # these are also needed for their length
            order = _kept(self._kept_orders, (settings, before), made)
        if first_batch > order.batches:
            raise OptionError(f"{first_batch:,} batches were taken, but there are {order.batches:,}")
        return order

    def _blocks_of(self, epoch: int) -> Blocks:
        """Return the blocks of an epoch whose samples are drawn."""
        settings, draws, blocks = self.order_settings, self.draws, self.blocks
        window_rows = min(settings.first_window_rows, settings.window_rows)

        def draw(draws: EpochDraws) -> Blocks:  # has no reference to the cursor
            return drawn_blocks(
                blocks,
                draws.places(settings.seed, epoch),
                shuffle=settings.shuffle,
                window_rows=window_rows,
            )

        def made() -> Any:
            if draws is not None and self._sized is None:
                return DrawnBlocks(draws.count, partial(draw, draws))
            if draws is not None:
                drawn = draw(draws)
            else:
                drawn = self.dataset.blocks_for(settings.shuffle, seed=settings.seed, epoch=epoch)
            return drawn if self._sized is None else self._sized.measured(drawn)

        return _kept(self._kept_blocks, (settings.seed, epoch, window_rows), made)

    def _taken_before(self, place: EpochPosition) -> tuple[TakenBatches, int]:
        """Split the batches taken of an epoch into those of other numbers of ranks, and the current one's count."""
        before, first_batch = place.taken, 0
        if before[-1][0] == place.ranks.world_size:
            before, first_batch = before[:-1], before[-1][1]
        if before and (self.sampler_order is not None or self.settings.sampling.factory is not None):
            raise StateError(
                f"the state is of {before[0][0]} ranks and there are now {place.ranks.world_size}: the rest of an "
                "epoch of a sampler, or of a function as draw=, cannot be divided anew. Resume with as many as before"
            )
        return before, first_batch

    def _check_seed(self, ranks: Ranks) -> None:
        """Raise if each of several ranks would draw another seed."""
        draws_own = self._chosen.shuffle and isinstance(self._chosen.seed, DrawnSeed)
        if draws_own and self.settings.sampling.generator is not None and ranks.world_size > 1:
            raise OptionError(
                f"generator= draws another seed on each of {ranks.world_size} ranks; pass the same seed= on all of them"
            )

    # --- moving through epochs -----------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; a position within this epoch is kept."""
        place, newest = self.position
        if newest is not None or epoch != place.epoch:
            self.position = EpochPosition(epoch=epoch), None
        if self.sampler_order is not None:
            self.sampler_order.set_epoch(epoch)
        if self._followed is not None:
            self._followed.set_epoch(epoch)

    def next_start(self) -> EpochPosition:
        """Return the position at which the next iteration begins.

        Trainers make an iterator only to see whether that works. One that was dropped before it gave a batch uses up
        neither its epoch nor the position of a state.
        """
        if self._followed is not None and self._followed.sampler.epoch != self._followed.epoch:
            self.set_epoch(self._followed.sampler.epoch)
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
        is_next = self.sampler_order is None and self.position[0] == EpochPosition(epoch=epoch + 1)
        return EpochPosition(epoch=epoch + 1, ranks=self.ranks) if is_next else None

    # --- state --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, object]:
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

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; if it is refused, nothing changes."""
        place, rank, fingerprint = place_of(state)
        fingerprint = brought_up_to_date(state, place, fingerprint, self._fingerprint(), self.dataset.is_of_pattern)
        before, sampling = self._chosen, self.settings.sampling
        try:
            self._chosen = self._taken_over(fingerprint)
            now = self._fingerprint()
            if fingerprint.get("order") != "shuffled" and not ("seed" in fingerprint and "seed" in now):
                # An older version saved the seed for a shuffle only, or one of the two draws nothing.
                fingerprint, now = ({n: one[n] for n in one if n != "seed"} for one in (fingerprint, now))
            check_same(fingerprint, now, "data or settings", _WAY)
            begun = replace(place, ranks=self.ranks)
            if self.sampler_order is None and sampling.factory is None:
                self.order_of(begun)
            elif begun.taken:
                self._taken_before(begun)
            self.footprint = self.sizing.taken_over(self.footprint, self._chosen)
        except BaseException:
            self._chosen = before
            raise
        # Another rank's sampler gives other indices, so its checksum is meaningless here.
        self.position = place if rank == begun.ranks.rank else replace(place, checksum=0), None
        if self.sampler_order is not None:
            self.sampler_order.set_epoch(place.epoch)

    def _fingerprint(self) -> dict[str, int | str]:
        if self._data is None:
            self._data = data_fingerprint(self.dataset, self.blocks)
        sized = {} if self._sized is None else self._sized.fingerprint
        drawn: dict[str, int | str] = {} if self.draws is None else {"samples_drawn": self.draws.fingerprint}
        return {**self._data, **settings_fingerprint(self.settings, self.order_settings), **sized, **drawn}

    def _taken_over(self, saved: dict[str, int | str]) -> OrderSettings:
        """Adopt from a state the settings that the user did not choose: those that memory or chance determined."""
        chosen = {"first_window_rows": saved.get("first_window")}
        if self.settings.sampling.window == "auto":
            chosen["window_rows"] = saved.get("window")
        if isinstance(self.settings.seed, DrawnSeed):
            chosen["seed"] = saved.get("seed", 0)
        valid: dict[str, Any] = {name: value for name, value in chosen.items() if isinstance(value, int)}
        return replace(self._chosen, **valid)


def _kept(cache: dict[_Key, _Made], key: _Key, make: Callable[[], _Made]) -> _Made:
    """Look up a value, creating it if needed; the cache keeps the two newest."""
    if key not in cache:
        value = make()
        for old in list(cache)[:-1]:
            del cache[old]
        cache[key] = value
    return cache[key]
