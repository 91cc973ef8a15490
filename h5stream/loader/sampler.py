"""`ChunkBatchSampler`: the chunk-aware order for a stock DataLoader over an `H5Dataset`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from h5stream.base.hints import warn
from h5stream.base.texts import checked_number, counted
from h5stream.dataset.dataset import H5Dataset
from h5stream.engine.footprint import WindowRows, size_order
from h5stream.engine.sizing import shape_of
from h5stream.errors import OptionError, StateError, WeakShuffleWarning
from h5stream.loader.arguments import DrawnSeed, drawn_seed
from h5stream.loader.draws import places_of
from h5stream.loader.position import Cursor, current_ranks
from h5stream.loader.state import check_same
from h5stream.order.epoch import EpochOrder, OrderSettings
from h5stream.order.places import VERSION
from h5stream.order.quality import FEW_BLOCKS, Quality, distinct, forecast, is_weak
from h5stream.order.users import CheckedOrder
from h5stream.order.weights import DrawnBlocks
from h5stream.order.window import Order
from h5stream.storage.layout.layout import SampleLayout


class OrderSampler(Sampler[list[int]]):
    """A batch sampler of torch that yields the rows of each batch, epoch after epoch."""

    def __init__(
        self,
        epoch: int,
        batch_size: int,
        places: NDArray[np.int64] | None,
        order_of: Callable[[int], Order] | None = None,
    ) -> None:
        self.epoch, self.batch_size, self._places, self._order_of = epoch, batch_size, places, order_of
        self._first_batch = 0
        self._newest: tuple[int, int] | None = None  # epoch and batches given of the newest iteration

    def _order(self, epoch: int) -> Order:
        if self._order_of is None:
            raise NotImplementedError("a sampler has a function that makes orders, or makes them itself")
        return self._order_of(epoch)

    def __len__(self) -> int:
        return self._order(self.epoch).batches or 0

    def __iter__(self) -> Iterator[list[int]]:
        epoch, first_batch = self.epoch, self._first_batch
        order = self._order(epoch)
        self.epoch, self._first_batch = epoch + 1, 0
        for number, rows in enumerate(_listed(order, first_batch, self._places), first_batch + 1):
            self._newest = (epoch, number)
            yield rows


def sampler_of(cursor: Cursor) -> object:
    """Return the sampler of a loader: the user's, or one of the loader's own orders."""
    if cursor.sampler_order is not None:
        return cursor.sampler_order.source
    places = places_of(cursor.blocks, cursor.dataset)

    def order_of_places(epoch: int) -> Order:
        """Return the order of an epoch in places of the dataset instead of rows of the files."""
        order = cursor.order(epoch)
        if isinstance(order, CheckedOrder):
            return order.of_places()
        blocks = order.blocks.drawn if isinstance(order.blocks, DrawnBlocks) else order.blocks
        rows = None if cursor.draws is None else cursor.draws.places(order.settings.seed, epoch)
        return EpochOrder(replace(blocks, rows=rows), order.settings)

    return OrderSampler(cursor.position[0].epoch, cursor.order_settings.batch_size, places, order_of_places)


def batch_sampler_of(cursor: Cursor) -> object:
    """Return the iterable of each batch's indices; None if samples come singly."""
    sampling = cursor.settings.sampling
    if sampling.batch_rows is None and sampling.batch_sampler is None:
        return None
    return sampler_of(cursor) if cursor.sampler_order is None else cursor.sampler_order.batched


class ChunkBatchSampler(OrderSampler):
    """Batches of row numbers, shuffled so that neighbours on disk are read together.

    Blocks of rows are permuted and cut into windows; rows are permuted inside each window. Every row comes once per
    epoch, and the order depends only on the arguments.

    Parameters
    ----------
    dataset : H5Dataset
        The rows and their chunks.
    batch_size : int
        Rows of a batch.
    shuffle : bool
        False gives the rows in file order.
    drop_last : bool
        Leave out samples that do not fill a batch on every rank.
    seed : int, optional
        The seed of the order, 0 or more; the same seed gives another order for other files. By default it is drawn once
        from torch's default generator; with several ranks it is 0.
    window : int, "auto" or "all"
        Number of rows that are shuffled together; ``"all"`` is an exact global shuffle.
    rank, world_size : int
        Which part of the epoch this sampler gives, and of how many. Every rank has the same number of batches. Unlike
        the loader, the sampler does not ask `torch.distributed`, since Accelerate and Lightning shard the batch sampler
        of a DataLoader themselves.

    Raises
    ------
    OptionError
        If the dataset is not an `H5Dataset`, or an argument breaks a rule.

    Examples
    --------
    >>> import h5py, tempfile, os, numpy as np
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["x"] = np.arange(10)
    >>> sampler = ChunkBatchSampler(H5Dataset(path), 4)
    >>> len(sampler), sorted(row for batch in sampler for row in batch)
    (3, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """

    def __init__(
        self,
        dataset: H5Dataset,
        batch_size: int = 8192,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int | None = None,
        window: WindowRows = "auto",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not isinstance(dataset, H5Dataset):
            raise OptionError(f"ChunkBatchSampler needs an H5Dataset, whose chunks it knows, not {type(dataset)}")
        if dataset.shares is not None:
            raise OptionError("ChunkBatchSampler gives each sample once, and a Mixture has shares; use H5StreamLoader")
        batch_size = checked_number("batch_size=", batch_size, 1, "a positive whole number of rows")
        blocks = dataset.blocks_for(shuffle)
        super().__init__(0, batch_size, places_of(blocks, dataset))
        self.dataset, self.drop_last = dataset, drop_last
        self._blocks = replace(blocks, rows=None)  # an order of places in the dataset instead of rows
        shape = replace(shape_of(dataset.layout), rows=len(dataset))
        scattered = shuffle or not dataset.is_in_file_order
        window_rows, first_rows = size_order(shape, batch_size=batch_size, window=window, shuffle=scattered)
        self._chose_window = shuffle and window != "auto"
        if seed is None:
            seed = drawn_seed(needed=shuffle and max(world_size, current_ranks().world_size) == 1)
        self._settings = OrderSettings(
            batch_size=batch_size,
            window_rows=window_rows,
            first_window_rows=first_rows,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=seed,
            rank=rank,
            world_size=world_size,
        )
        warn_of_weak_shuffle(dataset.layout, self._order(0))  # raises now, not in the first epoch

    def _order(self, epoch: int) -> EpochOrder:
        blocks, settings = self._blocks, replace(self._order_settings, epoch=epoch)
        if self.dataset.layout.draws is not None:
            blocks = replace(self.dataset.blocks_for(settings.shuffle, seed=0, epoch=epoch), rows=None)
        return EpochOrder(blocks, settings)

    @property
    def _order_settings(self) -> OrderSettings:
        # Several ranks would draw different seeds; trainers that shard batches give each rank a sampler.
        is_alone = max(self._settings.world_size, current_ranks().world_size) == 1
        is_drawn = isinstance(self._settings.seed, DrawnSeed)
        return replace(self._settings, seed=DrawnSeed(0)) if is_drawn and not is_alone else self._settings

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; without it the first is 0, and each adds one.

        A position within this epoch, set by `load_state_dict`, is kept.

        Parameters
        ----------
        epoch : int
            Its number; another number gives another order.
        """
        self._first_batch = self._first_batch if epoch == self.epoch else 0
        self.epoch = epoch
        self._newest = None

    def mixing(self) -> Quality:
        """Estimate how well this order mixes neighbouring rows, compared to a full shuffle; reads nothing.

        Returns
        -------
        Quality
            Distinct blocks in a batch and in a window, and a score: 1 is as good as a full shuffle.

        Examples
        --------
        >>> import h5py, tempfile, os, numpy as np
        >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
        >>> with h5py.File(path, "w") as f:
        ...     x = f.create_dataset("x", data=np.arange(1000), chunks=(100,), compression="gzip")
        >>> ChunkBatchSampler(H5Dataset(path), 50, window="all").mixing().score
        1.0
        """
        return forecast(self._order(self.epoch))

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the newest iteration, or the start of the next; for torchdata's StatefulDataLoader.

        It counts the batches that were taken from the sampler. A stock DataLoader with workers takes them ahead of
        you, ``num_workers * prefetch_factor`` of them, and keeps no account: save the state of torchdata's
        StatefulDataLoader there, which does.

        Returns
        -------
        dict
            Epoch, batches and what the order depends on: numbers, texts and lists only, for JSON or ``torch.save``.

        Examples
        --------
        >>> import h5py, tempfile, os, numpy as np
        >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
        >>> with h5py.File(path, "w") as f:
        ...     f["x"] = np.arange(10)
        >>> sampler = ChunkBatchSampler(H5Dataset(path), 4, shuffle=False)
        >>> batches = iter(sampler)
        >>> next(batches)
        [0, 1, 2, 3]
        >>> state = sampler.state_dict()
        >>> sampler.load_state_dict(state)
        >>> list(sampler)
        [[4, 5, 6, 7], [8, 9]]
        """
        epoch, batch = (self.epoch, self._first_batch) if self._newest is None else self._newest
        if batch == self._order(epoch).batches:
            epoch, batch = epoch + 1, 0
        return {"epoch": epoch, "batch": batch, "order": self._description()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a saved state, without replay.

        Parameters
        ----------
        state_dict : dict
            What `state_dict` gave, of a sampler over the same rows with the same settings.

        Raises
        ------
        StateError
            If the state is none, or of other rows or settings.
        """
        description = self._description()
        state = state_dict if isinstance(state_dict, dict) else {}
        epoch, batch, saved = (state.get(name) for name in ("epoch", "batch", "order"))
        if type(epoch) is not int or type(batch) is not int or min(epoch, batch) < 0 or not isinstance(saved, dict):
            raise StateError(f"load_state_dict takes what state_dict() gave, not {state_dict!r:.200}")
        adopted = [] if self._chose_window else ["window_rows", "first_window_rows"]  # from the state
        adopted += ["seed"] * isinstance(self._settings.seed, DrawnSeed)
        taken = {
            name: saved[name] for name in adopted if type(saved.get(name)) is int and saved[name] >= (name != "seed")
        }
        if batch == 0:  # nothing was taken, so another permutation loses and repeats no row
            saved = saved | {"permutation": description["permutation"]}
        way = "An older h5stream may have shuffled otherwise: finish the epoch with it, or begin one with set_epoch()"
        check_same({name: saved.get(name) for name in description}, description | taken, "rows or settings", way)
        self._settings = replace(self._settings, **taken)
        self.epoch, self._first_batch, self._newest = epoch, batch, None

    def _description(self) -> dict[str, Any]:
        settings = {
            name: value for name, value in asdict(self._order_settings).items() if name not in ("rank", "epoch")
        }
        permutation = VERSION if self._settings.shuffle else 0
        blocks = {"rows": self._blocks.total_rows, "blocks": self._blocks.count, "permutation": permutation}
        return blocks | settings | {"seed": int(settings["seed"])}


def _listed(order: Order, first_batch: int, places: NDArray[np.int64] | None) -> Iterator[list[int]]:
    """Yield the rows of batch after batch; with `places`, the places of these rows."""
    pending: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for window in order.windows(first_batch):
        rows = window.rows if places is None else places[window.rows]
        by_batch = window.batch.argsort(kind="stable")
        edges = np.flatnonzero(np.diff(window.batch[by_batch])) + 1
        for part in np.split(by_batch, edges) if len(by_batch) else []:
            pending.setdefault(int(window.batch[part[0]]), []).append((window.within[part], rows[part]))
        for number in sorted(pending):
            within, listed = (np.concatenate(arrays) for arrays in zip(*pending[number], strict=True))
            if len(within) < order.batch_size_of(number):
                break
            del pending[number]
            yield listed[np.argsort(within)].tolist()


# --- warnings of weak shuffles; see `order.quality.is_weak` ------------------------------------------------


_LARGE_CHUNK_NBYTES = 4 * 1024 * 1024
"""From this size on, smaller chunks would give enough blocks; repack writes chunks of 1 MiB."""


def warn_of_weak_shuffle(
    layout: SampleLayout, order: EpochOrder, budget_for: Callable[[int], int] | None = None
) -> None:
    """Warn if windows of a shuffle hold too few blocks; `budget_for` returns the budget of a window, or 0."""
    settings = order.settings
    if not settings.shuffle:
        return
    total, total_rows = order.blocks.count, order.blocks.total_rows
    window_rows, drawn = (settings.world_size * rows for rows in (settings.window_rows, settings.batch_size))
    window_blocks = min(total, max(1, round(window_rows * total / total_rows)))
    if window_rows >= total_rows or not is_weak(window_blocks, total):
        return
    block_rows = int(np.diff(order.blocks.edges).max())
    lead, rows = layout.leading[0], min(FEW_BLOCKS * block_rows, total_rows)
    needed = 0 if budget_for is None else budget_for(rows)
    with_budget = f" with memory_budget={needed}" if needed else ""
    wanted = f"{rows} or more" if rows < total_rows else "'all'"
    way = f"The way out: window={wanted}{with_budget} (it is {counted(settings.window_rows, 'row')})"
    if lead.pipeline.filters and lead.chunk_nbytes >= _LARGE_CHUNK_NBYTES:
        old = layout.files[0].path
        new = os.path.splitext(os.path.basename(old))[0] + ".repacked.h5"
        copy = f"a copy with smaller chunks (h5stream repack {shlex.quote(old)} {shlex.quote(new)} --chunk-bytes 1MiB)"
        way = f"{way.replace('The way', 'Ways', 1)}, or {copy}"
    warn(
        f"the shuffle is weak: a window holds {window_blocks:,} of the {counted(total, 'block')} of this data "
        f"(a block is {counted(block_rows, 'row')} that lie together, by the chunks of {lead.path!r}), "
        f"so the {drawn:,} rows of a batch come from about {distinct(window_blocks, drawn):,.0f} of them, "
        f"where a full shuffle has {distinct(total, drawn):,.0f}. In a file that is sorted, by class or by recording, "
        "a batch then sees few kinds of rows, and training suffers. "
        f"{way}. If the file's rows are in random order already, nothing is wrong: "
        'import warnings, h5stream; warnings.simplefilter("ignore", h5stream.errors.WeakShuffleWarning)',
        WeakShuffleWarning,
    )
