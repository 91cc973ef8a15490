"""Where a loader is: which order each epoch has, which epoch comes next, and how far the newest iteration got."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, TypeVar

from h5stream.dataset import H5Dataset
from h5stream.engine.footprint import Footprint
from h5stream.errors import OptionError, StateError
from h5stream.order.blocks import Blocks
from h5stream.order.epoch import EpochOrder, Order, order_after
from h5stream.order.line import OrderSettings, Taken
from h5stream.order.users import CheckedOrder, GivenOrder, ListedOrder, Ranks
from h5stream.order.weights import DrawnBlocks, EpochDraws, drawn_blocks
from h5stream.ranks import DrawnSeed, current_ranks
from h5stream.sampler import OrderSampler, places_of, warn_of_weak_shuffle
from h5stream.settings import Settings
from h5stream.state import Place, brought_up_to_date, check_fingerprint, data_fingerprint, place_of, state_of
from h5stream.weighting import SizedBatches

_Made = TypeVar("_Made")

_LISTED_AT_ONCE = 4
"""Batches of a sampler that are read as one window; chunks that they share are decoded once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where an iteration begins; equal starts give equal batches."""

    place: Place  # the epoch, and what was taken of it before
    ranks: Ranks  # which part is ours


@dataclass(slots=True)
class Progress:
    """How far an iteration is.

    # Guarantees: written by the thread that iterates; any may read, and sees one batch more or less.
    """

    start: Start
    order: Order
    first_batch: int
    batch: int
    checksum: int = 0
    ended: bool = False

    def advance(self, left_out: Container[int]) -> None:
        """Count a batch that is given to the user, and those before it that were left out."""
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
    def place(self) -> Place:
        """The place behind the last batch that was given; the end of an epoch is the beginning of the next."""
        start = self.start.place
        if self.ended or self.batch == self.order.batches:
            return Place(epoch=start.epoch + 1)
        if self.untouched:
            return start
        before = start.taken[:-1] if self.first_batch else start.taken
        taken = (*before, (self.start.ranks.world_size, self.batch))
        return Place(epoch=start.epoch, taken=taken, checksum=self.checksum)


def _kept(known: dict[Any, Any], key: Any, make: Callable[[], _Made]) -> _Made:
    """Return what was made for the same before, this epoch and the next, or make it."""
    if key not in known:
        made = make()
        for old in list(known)[:-1]:
            del known[old]
        known[key] = made
    found: _Made = known[key]
    return found


class Cursor:
    """The place of a loader in its orders.

    # Guarantees: used by the thread that iterates.
    """

    def __init__(
        self,
        settings: Settings,
        dataset: H5Dataset,
        given: GivenOrder | None,
        footprint: Footprint,
        sized: SizedBatches | None,
        *,
        blocks: Blocks,
        draws: EpochDraws | None,
        followed: Any,
    ) -> None:
        self._asked, self._dataset, self._given, self._footprint = settings, dataset, given, footprint
        self._sized, self._draws = sized, draws
        self._followed, self._followed_epoch = followed, getattr(followed, "epoch", 0)
        self.blocks = self._measured(blocks)
        self._settings = OrderSettings(
            batch_size=settings.batch_rows or 1,
            window_rows=footprint.window_rows,
            first_window_rows=footprint.first_window_rows,
            shuffle=settings.shuffle,
            drop_last=settings.drop_last,
            seed=settings.seed,
            limit=None if sized is None else sized.limit,
        )
        self._orders: dict[tuple[OrderSettings, Taken], Any] = {}
        self._drawn: dict[tuple[int, int, int], Any] = {}
        self._next = Place(epoch=0)
        self._newest: Progress | None = None
        self._iterator: Callable[[], object] = lambda: None
        self._data: dict[str, int | str] | None = None

    @property
    def ranks(self) -> Ranks:
        """Which part is ours; unless it was given, `torch.distributed` is asked each time: its group may come later."""
        return self._asked.ranks or current_ranks()

    @property
    def seed(self) -> int:
        """The seed of all that is drawn; a `DrawnSeed` where chance chose it here, and no state did."""
        return self._ours.seed

    @property
    def _ours(self) -> OrderSettings:
        """What orders depend on. Of ranks that drew a seed each, rows would be lost and repeated."""
        if not isinstance(self._settings.seed, DrawnSeed) or self.ranks.world_size == 1:
            return self._settings
        return dataclasses.replace(self._settings, seed=DrawnSeed(0))

    @property
    def next_epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._next.epoch

    def __len__(self) -> int:
        """Batches of a whole epoch, the next one."""
        return self.order(self._next.epoch).batches if self._given is None else len(self._given.batched)

    def batches_of(self, progress: Progress) -> int:
        """Return the batches of the whole epoch that an iteration is of."""
        if self._asked.order is not None:
            return progress.order.batches or 0
        return len(self) if self._sized is None else self.order(progress.start.place.epoch).batches

    def check(self, budget_for: Callable[[int], int]) -> None:
        """Refuse what gives no order, and warn the caller's caller of one that mixes too little."""
        if self._given is not None:
            return
        self.order(0)
        if self._settings.shuffle and self._settings.batch_size < len(self._dataset):  # else one batch has all of them
            warn_of_weak_shuffle(
                self._dataset.layout,
                self.blocks if self._draws is None else self._blocks_of(0),
                window_rows=self._settings.window_rows,
                batch_rows=min(self._settings.batch_size, len(self._dataset)),
                budget_for=budget_for,
                ranks=self.ranks.world_size,
                stacklevel=5,
            )

    def _blocks_of(self, epoch: int) -> Blocks:
        """Return the blocks of an epoch: all alike, but where it draws its samples."""
        ours, draws, blocks = self._ours, self._draws, self.blocks
        window_rows = min(ours.first_window_rows, ours.window_rows)

        def draw() -> Blocks:  # refers to nothing that keeps it
            assert draws is not None
            return drawn_blocks(blocks, draws.places(ours.seed, epoch), shuffle=ours.shuffle, window_rows=window_rows)

        def made() -> Blocks:
            drawn: Any = self._dataset.drawn_blocks(ours.shuffle, seed=ours.seed, epoch=epoch)
            if draws is not None:
                drawn = DrawnBlocks(draws.count, draw) if self._sized is None else draw()
            return blocks if drawn is None else self._measured(drawn)

        return _kept(self._drawn, (ours.seed, epoch, window_rows), made)

    def _measured(self, blocks: Blocks) -> Blocks:
        return blocks if self._sized is None else self._sized.measured(blocks)

    # --- orders -------------------------------------------------------------------------------------------

    def order(self, epoch: int) -> EpochOrder | CheckedOrder:
        """Return the order of a whole epoch that no sampler decides."""
        ranks = self.ranks
        if self._asked.order is not None:
            return self._users_order(epoch, ranks)
        return self._own_order(self._blocks_of(epoch), self._settings_of(epoch, ranks), ())

    def _own_order(self, blocks: Blocks, settings: OrderSettings, taken: Taken) -> EpochOrder:
        """Return an order of the loader's own; those that have to be cut are kept."""
        if self._sized is None:
            return EpochOrder(blocks, settings, taken)
        return _kept(self._orders, (settings, taken), lambda: EpochOrder(blocks, settings, taken))

    def order_of(self, start: Start) -> tuple[EpochOrder | CheckedOrder | ListedOrder, int]:
        """Return the order of an iteration, and the batch to begin with."""
        place = start.place
        if self._asked.order is None and self._given is None:
            settings = self._settings_of(place.epoch, start.ranks)
            return order_after(self._blocks_of(place.epoch), settings, place.taken, self._own_order)
        first_batch = place.taken[0][1] if place.taken else 0
        if self._given is None:
            return self._users_order(place.epoch, start.ranks), first_batch
        order = ListedOrder(
            self._given.batches(),
            together=min(_LISTED_AT_ONCE, max(1, self._footprint.max_open_batches // 2)),
            total_rows=self._dataset.layout.samples,
            count=self._given.count,
            most_rows=self._given.said_rows or self._given.room,
            rows=self._given.rows,
            checksum=place.checksum,
            drawn=(self.seed, place.epoch),
        )
        return order, first_batch

    def _users_order(self, epoch: int, ranks: Ranks) -> CheckedOrder:
        """Return what the user's function makes, checked; it is kept, since it is asked for its length as well."""
        settings = self._settings_of(epoch, ranks)

        def make() -> CheckedOrder:
            assert self._asked.order is not None
            blocks, drawn = self._blocks_of(epoch), (settings.seed, epoch)
            order = self._asked.order(blocks, epoch, ranks)
            return CheckedOrder(order, blocks, settings.batch_size, self._footprint.window_rows, drawn)

        return _kept(self._orders, (settings, ()), make)

    def _settings_of(self, epoch: int, ranks: Ranks) -> OrderSettings:
        is_drawn = isinstance(self._settings.seed, DrawnSeed)
        draws_own = self._settings.shuffle and is_drawn and self._asked.generator is not None
        if draws_own and ranks.world_size > 1:
            raise OptionError(
                f"generator= draws another seed on each of {ranks.world_size} ranks; pass the same seed= on all of them"
            )
        return dataclasses.replace(self._ours, epoch=epoch, rank=ranks.rank, world_size=ranks.world_size)

    # --- as samplers of torch -----------------------------------------------------------------------------

    @property
    def sampler(self) -> Any:
        """The sampler that was given, or the loader's own."""
        return self._own_sampler() if self._given is None else self._given.source

    @property
    def batch_sampler(self) -> Any:
        """What gives the indices of each batch; None where samples come singly."""
        if self._asked.batch_rows is None and self._asked.batch_sampler is None:
            return None
        return self._own_sampler() if self._given is None else self._given.batched

    def _own_sampler(self) -> OrderSampler:
        places = places_of(self.blocks, self._dataset)
        return OrderSampler(self._order_of_places, self._next.epoch, self._settings.batch_size, places)

    def _order_of_places(self, epoch: int) -> Order:
        """Return the order of an epoch, of places in the dataset instead of the files' rows."""
        if self._asked.order is not None:
            return self._users_order(epoch, self.ranks).of_places()
        ours, blocks = self._settings_of(epoch, self.ranks), self._blocks_of(epoch)
        blocks = blocks.drawn if isinstance(blocks, DrawnBlocks) else blocks
        rows = None if self._draws is None else self._draws.places(ours.seed, epoch)
        return EpochOrder(dataclasses.replace(blocks, rows=rows), ours)

    # --- going on -----------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; one that goes on in that very epoch still does."""
        if self._newest is not None or epoch != self._next.epoch:
            self._next, self._newest = Place(epoch=epoch), None
        if self._given is not None:
            self._given.set_epoch(epoch)
        if self._followed is not None:
            self._followed.set_epoch(epoch)
            self._followed_epoch = epoch

    def next_start(self) -> Start:
        """Return the start of the next iteration.

        Trainers make an iterator only to see whether that can be done. One that is gone before it gave a batch
        did not use its epoch up, nor the place of a state.
        """
        if self._followed is not None and self._followed.epoch != self._followed_epoch:
            self._followed_epoch = self._followed.epoch
            self.set_epoch(self._followed_epoch)
        newest = self._newest
        if newest is not None and newest.untouched and self._iterator() is None:
            self._next = newest.start.place
        return Start(place=self._next, ranks=self.ranks)

    def move_to(self, progress: Progress, iterator: object) -> None:
        """Note that an iteration begins, and which object it is; the next one is of the next epoch."""
        self._next = Place(epoch=progress.start.place.epoch + 1)
        self._newest, self._iterator = progress, weakref.ref(iterator)

    def start_after(self, epoch: int) -> Start | None:
        """Return the start of the epoch after `epoch`; None where something else comes next, or it cannot be known."""
        if self._given is not None or self._next != Place(epoch=epoch + 1):
            return None
        return Start(place=self._next, ranks=self.ranks)

    @property
    def position(self) -> tuple[Place, Progress | None]:
        """Where the next iteration begins and the newest one is; set it to put back what a trial moved."""
        return self._next, self._newest

    @position.setter
    def position(self, position: tuple[Place, Progress | None]) -> None:
        self._next, self._newest = position

    # --- state --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return where the newest iteration is, or where the next will begin."""
        place = self._next if self._newest is None else self._newest.place
        return state_of(place, self.ranks.rank, self._fingerprint())

    def restore(self, state: Any, sized: Callable[[Footprint, OrderSettings], Footprint]) -> Footprint:
        """Go on where a state was saved; give what `sized` gives for the settings that hold from now on.

        Where anything is refused, all stays as it was.
        """
        place, rank, fingerprint = place_of(state)
        fingerprint = brought_up_to_date(state, place, fingerprint, self._fingerprint(), self._dataset.is_of_pattern)
        before = self._settings
        try:
            self._settings = self._taken_over(fingerprint)
            check_fingerprint(fingerprint, self._fingerprint())
            ranks = self.ranks
            if self._given is None and self._asked.order is None:
                self.order_of(Start(place=place, ranks=ranks))
            else:
                place = self._checked_users(place, rank, ranks)
            size = sized(self._footprint, self._settings)
        except BaseException:
            self._settings = before
            raise
        self._next, self._newest, self._footprint = place, None, size
        if self._given is not None:
            self._given.set_epoch(place.epoch)
        return size

    def _checked_users(self, place: Place, rank: int, ranks: Ranks) -> Place:
        """Refuse to go on with other ranks in an order of the user's, which cannot be cut anew."""
        if len(place.taken) > 1 or (place.taken and place.taken[0][0] != ranks.world_size):
            raise StateError(
                f"the state is of {place.taken[0][0]} ranks and there are now {ranks.world_size}: the rest of an epoch "
                "of a sampler, or of a function as draw=, cannot be divided anew. Resume with as many ranks as before"
            )
        # Another rank's sampler gives other indices, so its checksum says nothing here.
        return place if rank == ranks.rank else dataclasses.replace(place, checksum=0)

    def _fingerprint(self) -> dict[str, int | str]:
        if self._data is None:
            self._data = data_fingerprint(self._dataset, self.blocks)
        ours = self._ours
        settings: dict[str, int | str] = {
            "batch_size": ours.batch_size,
            "drop_last": int(ours.drop_last),
            "order": self._asked.order_text,
        }
        if ours.shuffle:
            settings |= {"window": ours.window_rows, "first_window": ours.first_window_rows}
        if self._asked.draws_by_seed:
            settings["seed"] = int(ours.seed)
        sized = {} if self._sized is None else self._sized.fingerprint
        drawn: dict[str, int | str] = {} if self._draws is None else {"samples_drawn": self._draws.fingerprint}
        return {**self._data, **settings, **sized, **drawn}

    def _taken_over(self, saved: dict[str, int | str]) -> OrderSettings:
        """Return the settings with those of a state that the user did not choose: free memory did, or chance."""
        chosen = {"first_window_rows": saved.get("first_window")}
        if self._asked.window == "auto":
            chosen["window_rows"] = saved.get("window")
        if isinstance(self._asked.seed, DrawnSeed):
            chosen["seed"] = saved.get("seed", 0)
        valid: dict[str, Any] = {name: value for name, value in chosen.items() if isinstance(value, int)}
        return dataclasses.replace(self._settings, **valid)
