"""Which order each epoch of a loader has, which epoch comes next, and how far the newest iteration is."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler

from h5stream.dataset import H5Dataset
from h5stream.engine.footprint import WindowSize
from h5stream.errors import OptionError, StateError
from h5stream.options import GivenOrder
from h5stream.order.epoch import EpochOrder, Order, OrderSettings
from h5stream.order.listed import ListedOrder
from h5stream.order.regrouped import regrouped
from h5stream.order.rest import Taken, order_after
from h5stream.ranks import Ranks, current_ranks
from h5stream.sampler import ChunkBatchSampler
from h5stream.state import Place, brought_up_to_date, check_fingerprint, data_fingerprint, place_of, state_of

_LISTED_TOGETHER = 4
"""Batches of a sampler that are read as one window; chunks that they share are decoded once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where an iteration begins; equal starts give equal batches.

    Attributes
    ----------
    place : Place
        The epoch, and what was taken of it before.
    ranks : Ranks
        Which part is ours.
    """

    place: Place
    ranks: Ranks


@dataclass(slots=True)
class Progress:
    """How far an iteration is.

    # Guarantees: written by the thread that iterates; anyone may read, and sees one batch more or less.
    """

    start: Start
    order: Order
    first_batch: int
    batch: int
    mark: int = 0
    ended: bool = False

    def advance(self, left_out: Container[int]) -> None:
        """Count a batch that is given to the user, and those before it that were left out."""
        passed = False
        while not passed:
            passed = self.batch not in left_out
            self.batch += 1
            if isinstance(self.order, ListedOrder):
                self.mark = self.order.take_mark(self.batch)

    @property
    def given(self) -> tuple[int, int | None]:
        """Batches of the epoch that were given, and how many it has; None where that is not known."""
        return self.batch, self.order.batches

    @property
    def untouched(self) -> bool:
        """Whether no batch was given."""
        return self.batch == self.first_batch and not self.ended

    @property
    def place(self) -> Place:
        """The place behind the last batch that was given; the end of an epoch is the beginning of the next."""
        epoch, ranks = self.start.place.epoch, self.start.ranks
        if self.ended or self.batch == self.order.batches:
            return Place(epoch=epoch + 1)
        if self.untouched:
            return self.start.place
        return Place(epoch=epoch, taken=(*self._before, (ranks.world_size, self.batch)), mark=self.mark)

    @property
    def _before(self) -> Taken:
        taken = self.start.place.taken
        return taken[:-1] if self.first_batch else taken


class Orders:
    """The orders of a loader's epochs.

    # Guarantees: used by the thread that iterates.

    Parameters
    ----------
    dataset : H5Dataset
        The rows.
    given : GivenOrder or None
        An order of somebody else's.
    ranks : Ranks or None
        Which part is ours; None asks `torch.distributed` whenever an epoch begins, since loaders are often made
        before the process group is.
    settings : OrderSettings
        Of every epoch; its epoch and ranks are filled in.
    size : WindowSize
        How much is read together.
    batch_size : int or None
        As the user gave it; None gives single samples.
    fixed : frozenset of str
        Which of ``seed`` and ``window`` the user gave: what was not may be taken over from a state.
    """

    def __init__(
        self,
        dataset: H5Dataset,
        given: GivenOrder | None,
        ranks: Ranks | None,
        settings: OrderSettings,
        size: WindowSize,
        *,
        batch_size: int | None,
        fixed: frozenset[str],
    ) -> None:
        self._batch_size = batch_size
        self._dataset, self._given, self._ranks, self._settings = dataset, given, ranks, settings
        self.blocks, self._fixed, self._size = dataset.blocks_for(settings.shuffle), fixed, size
        self._together = min(_LISTED_TOGETHER, max(1, size.max_open_batches // 2))
        self._next = Place(epoch=0)
        self._running: Progress | None = None
        self._iterator: Callable[[], object] = lambda: None
        self._data: dict[str, int | str] | None = None
        self._seed_is_drawn = "seed" not in fixed

    @property
    def ranks(self) -> Ranks:
        """Which part is ours now."""
        return self._ranks or current_ranks()

    @property
    def seed(self) -> int:
        """The seed of the shuffle."""
        return self._settings.seed

    @property
    def next_epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._next.epoch

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self.order(self._next.epoch).batches if self._given is None else len(self._given)

    def order(self, epoch: int) -> EpochOrder:
        """Give the loader's own order of a whole epoch."""
        return EpochOrder(self.blocks, self._settings_of(epoch, self.ranks))

    def order_of(self, start: Start) -> tuple[Order, int]:
        """Give the order of an iteration, and the batch to begin with."""
        place = start.place
        if self._given is None:
            ours, first_batch = order_after(self.blocks, self._settings_of(place.epoch, start.ranks), place.taken)
            return regrouped(ours, self._size.together), first_batch
        first_batch = place.taken[0][1] if place.taken else 0
        order = ListedOrder(
            self._given.batches(),
            together=self._together,
            total_rows=self._dataset.layout.rows,
            count=self._given.count,
            most_rows=self._given.most_rows,
            rows=self._given.rows,
            mark=place.mark,
        )
        return order, first_batch

    def own_sampler(self) -> ChunkBatchSampler:
        """Give the loader's own order as a sampler."""
        sampler = ChunkBatchSampler(self._dataset, self._settings.batch_size, shuffle=self._settings.shuffle)
        ours = self._settings_of(0, self.ranks)
        sampler._settings.update({name: getattr(ours, name) for name in sampler._settings})
        sampler.drop_last = ours.drop_last
        sampler.set_epoch(self._next.epoch)
        return sampler

    @property
    def sampler(self) -> Any:
        """The sampler that was given, or the loader's own."""
        if self._given is None:
            return self.own_sampler()
        return self._given.batch_sampler if self._given.sampler is None else self._given.sampler

    @property
    def batch_sampler(self) -> Any:
        """What gives the indices of each batch; None where samples come singly."""
        if self._given is not None and self._given.batch_sampler is not None:
            return self._given.batch_sampler
        if self._batch_size is None:
            return None
        if self._given is None:
            return self.own_sampler()
        return BatchSampler(self._given.sampler, self._batch_size, self._settings.drop_last)

    def _settings_of(self, epoch: int, ranks: Ranks) -> OrderSettings:
        if ranks.world_size > 1 and self._settings.shuffle and self._seed_is_drawn:
            raise OptionError(
                f"generator= draws a seed of its own on each of {ranks.world_size} ranks, and with unlike seeds rows "
                "would be lost and repeated; pass the same seed= on all of them"
            )
        return dataclasses.replace(self._settings, epoch=epoch, rank=ranks.rank, world_size=ranks.world_size)

    # --- going on -----------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; one that goes on in that very epoch still does."""
        if self._running is not None or epoch != self._next.epoch:
            self._next, self._running = Place(epoch=epoch), None
        if self._given is not None:
            self._given.set_epoch(epoch)

    def next_start(self) -> Start:
        """Give the start of the next iteration.

        Trainers make an iterator only to see whether that can be done. One that is gone before it gave a batch
        did not use its epoch up, nor the place of a state.
        """
        running = self._running
        if running is not None and running.untouched and self._iterator() is None:
            self._next = running.start.place
        return Start(place=self._next, ranks=self.ranks)

    def begin(self, start: Start, order: Order, first_batch: int) -> Progress:
        """Note that an iteration begins; the next one is of the next epoch."""
        self._next = Place(epoch=start.place.epoch + 1)
        self._running = Progress(start=start, order=order, first_batch=first_batch, batch=first_batch)
        return self._running

    def watch(self, iterator: object) -> None:
        """Learn which iterator the newest iteration is."""
        self._iterator = weakref.ref(iterator)

    def start_after(self, epoch: int) -> Start | None:
        """Give the start of the epoch after `epoch`; None where something else comes next, or nobody can know."""
        if self._given is not None or self._next != Place(epoch=epoch + 1):
            return None
        return Start(place=self._next, ranks=self.ranks)

    @property
    def position(self) -> tuple[Place, Progress | None]:
        """Where the next iteration begins and the newest one is; set it to put back what a trial moved."""
        return self._next, self._running

    @position.setter
    def position(self, position: tuple[Place, Progress | None]) -> None:
        self._next, self._running = position

    # --- state --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Give where the newest iteration is, or where the next will begin."""
        place = self._next if self._running is None else self._running.place
        return state_of(place, self.ranks.rank, self._fingerprint())

    def restore(self, state: Any, sized: Callable[[OrderSettings], WindowSize]) -> tuple[OrderSettings, WindowSize]:
        """Go on where a state was saved; give the settings that hold from now on, and what `sized` gives for them.

        Where anything is refused, all stays as it was.

        Raises
        ------
        StateError
            If the state is none, or of other data or settings.
        OptionError
            If the rest of the epoch cannot be cut for this number of ranks.
        BudgetError
            From `sized`, if windows as the state has them do not fit.
        """
        place, rank, fingerprint = place_of(state)
        fingerprint = brought_up_to_date(state, place, fingerprint, self._fingerprint())
        before = self._settings, self._seed_is_drawn
        try:
            self._settings = self._taken_over(fingerprint)
            self._seed_is_drawn = False  # it is the state's, on every rank
            check_fingerprint(fingerprint, self._fingerprint())
            ranks = self.ranks
            if self._given is None:
                self.order_of(Start(place=place, ranks=ranks))
            else:
                place = self._checked_listed(place, rank, ranks)
            size = sized(self._settings)
        except BaseException:
            self._settings, self._seed_is_drawn = before
            raise
        self._next, self._running, self._size = place, None, size
        if self._given is not None:
            self._given.set_epoch(place.epoch)
        return self._settings, size

    def _checked_listed(self, place: Place, rank: int, ranks: Ranks) -> Place:
        if len(place.taken) > 1 or (place.taken and place.taken[0][0] != ranks.world_size):
            raise StateError(
                f"the state is of {place.taken[0][0]} ranks and there are {ranks.world_size}: what a sampler has left "
                "cannot be cut anew. Resume with as many ranks, or without sampler= and batch_sampler="
            )
        # Another rank's sampler gives other indices, so its checksum says nothing here.
        return place if rank == ranks.rank else dataclasses.replace(place, mark=0)

    def _fingerprint(self) -> dict[str, int | str]:
        if self._data is None:
            self._data = data_fingerprint(self._dataset, self.blocks)
        ours = self._settings
        settings: dict[str, int | str] = {"batch_size": ours.batch_size, "drop_last": int(ours.drop_last)}
        if self._given is not None:
            return {**self._data, **settings, "order": "sampler"}
        settings["order"] = "shuffled" if ours.shuffle else "file"
        if ours.shuffle:
            settings |= {"seed": ours.seed, "window": ours.window_rows, "first_window": ours.first_window_rows}
        return {**self._data, **settings}

    def _taken_over(self, saved: dict[str, int | str]) -> OrderSettings:
        """Give the settings with those of a state that the user did not choose: free memory did, or chance."""
        chosen = {"first_window_rows": saved.get("first_window")}
        if "window" not in self._fixed:
            chosen["window_rows"] = saved.get("window")
        if "seed" not in self._fixed:
            chosen["seed"] = saved.get("seed")
        valid: dict[str, Any] = {name: value for name, value in chosen.items() if isinstance(value, int)}
        return dataclasses.replace(self._settings, **valid)
