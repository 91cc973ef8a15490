"""`H5StreamLoader`: takes the place of ``torch.utils.data.DataLoader``. Puts the rooms together."""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from h5stream import sharing
from h5stream.delivery import Finish, delivery_for, device_of, window_backend_for
from h5stream.engine.assemble import Assembler
from h5stream.engine.carry import Carrier
from h5stream.engine.counters import RunCounters
from h5stream.engine.kept import KeptDatasets
from h5stream.engine.slots import SlotFormat
from h5stream.engine.statistics import LoaderStatistics
from h5stream.engines import engine_for
from h5stream.epochs import Epochs
from h5stream.isolation.guard import opened_by_child
from h5stream.isolation.setup import checked_isolation
from h5stream.iterator import LoaderIterator
from h5stream.mixing import warn_of_weak_shuffle
from h5stream.options import (
    DEFAULT_BATCH_ROWS,
    arguments_of,
    as_dataset,
    as_staged,
    check_callables,
    check_samplers,
    checked_budget,
    checked_epoch,
    checked_on_error,
    checked_seed,
    checked_timeout,
    checked_workers,
    given_order,
    refuse_rebuilding,
    remade,
)
from h5stream.order.epoch import EpochOrder, OrderSettings
from h5stream.orders import Orders
from h5stream.profiles import arguments_from
from h5stream.ranks import checked_ranks
from h5stream.sizing import Sizing
from h5stream.storage.fields import Fields, Source
from h5stream.structure import copy_batch


class H5StreamLoader:
    """Streams shuffled batches from HDF5 files; every parameter of ``DataLoader`` keeps its name and place.

    Parameters
    ----------
    dataset : path, pattern, open h5py object, H5Dataset, or sequence of them
        The files, or datasets over them; see `H5Dataset`. Several in a list or a ``ConcatDataset`` are read as one. A
        ``Subset`` gives its rows in its own order with ``shuffle=False``, and as often as it names them; a sampler's
        indices are places in it.
    batch_size : int or None
        Rows of a batch. None gives single samples, as in DataLoader.
    shuffle : bool, optional
        True for the two-level shuffle, another one each epoch. Default False.
    sampler, batch_sampler : iterable, optional
        An order of your own, as in DataLoader. Rows that lie apart cost a chunk each; the loader's own
        shuffle does not.
    num_workers : int, optional
        Reader threads. By default as many as the machine allows and scratch fits; 0 reads in the asking thread.
    collate_fn : callable, optional
        Gets a list of samples, as in DataLoader. They are taken apart one by one for it, which costs more than
        reading them; `transform` works on whole batches.
    pin_memory : bool
        Pinned host batches, for copies of your own. It has no effect without a CUDA device, as in
        DataLoader, and with `device`, whose slots are always pinned.
    drop_last : bool
        Leave out the last batch if it is not full.
    timeout : float
        Seconds to wait for a batch; 0 waits as long as it takes. Has no effect with ``num_workers=0``.
    worker_init_fn : callable, optional
        Called with the thread's number in each reader thread before it reads.
    generator : torch.Generator, optional
        The seed is drawn from it once, unless `seed` is given, which many ranks need: each would draw its own.
    prefetch_factor : int, optional
        Batches that are held ready on `device`. Has no effect on the host, where a window is read ahead.
    persistent_workers : bool
        Has no effect: readers are threads, and the next epoch's first window is read while this one's last batches
        are consumed. It is held until that epoch begins, the loader is closed or gone.
    multiprocessing_context, pin_memory_device, in_order : optional
        Have no effect: readers are threads, and batches always come in order.
    device : torch.device or str, optional
        Where batches are wanted. On a GPU every batch crosses in one copy, beside the training step,
        `prefetch_factor` (default 2) batches ahead; casts and `transform` run there, on a side stream.
    reuse_device_buffers : bool
        Write batches into the same device memory in turn: a batch is then valid only until the next one is
        asked for. By default each owns its memory for as long as it is kept.
    window_device : torch.device or str, optional
        Keep the window on this device and gather batches there: the processor only reads and decodes, and
        `window` may be tens of gigabytes. Same order and bytes as on the host. Fields must be tensors.
    fields : str, Field, sequence or mapping, optional
        What a sample is made of; see `H5Dataset`. A batch of a sequence of fields is a list, as DataLoader's is.
    seed : int, optional
        Of the shuffle; default 0, so that all ranks agree and runs repeat. Loaders over two files do *not* give the
        same order for the same seed where rows, chunks or windows differ: never zip them; give both one list as
        `batch_sampler`.
    window : int, "auto" or "all"
        Rows that are shuffled with one another. ``"auto"`` is the most of 4 batches, 1,024 blocks and 256 MiB within
        the budget; ``"all"`` is an exact global shuffle.
    memory_budget : int or str, optional
        Bytes that slots, windows, plans and scratch may take together, as a number or a text such as ``"4GiB"``.
        Default 2 GiB, at most a quarter of the machine's, which loaders that were given none share.
    transform : callable, optional
        Applied to each whole batch, in the thread that asks for it. The batch is its own to change: in place
        (``x.sub_(mean).div_(std)``) is several times as fast as new memory for each large result.
    rank, world_size : int, optional
        Which part of each epoch is ours; every rank has the same number of batches. By default those of the
        `torch.distributed` process group, if there is one when an epoch begins.
    allow_external : bool
        Whether links, external storage and virtual sources may lead out of the opened files.
    stage_to : path, optional
        Copy the files there first (`h5stream.stage`) and read the copies, leased until the loader is closed or
        gone. On unfiltered copies ``window="all"`` is cheap.
    on_error : "raise" or "skip"
        What a corrupt chunk does: fail the batch that needs it, or leave its rows out, with one warning an epoch and
        a count in `stats`. A batch of which nothing is left is left out too; with several ranks, it fails.
    isolation : "thread" or "process"
        Where is read: here, or in one spawned process that fills memory both map, for transforms that hold the GIL.
        Batches and order are the same. `transform` runs there too, unless `device`, `collate_fn` or single samples
        need it here; functions that run there must be picklable. Needs Linux.

    Raises
    ------
    H5StreamError
        See `h5stream.errors`; wrong arguments are refused at once, not in the first epoch.

    Examples
    --------
    >>> import h5py, tempfile, os, numpy as np
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["x"] = np.arange(20, dtype="f4").reshape(10, 2)
    ...     f["y"] = np.arange(10)
    >>> loader = H5StreamLoader(path, batch_size=4, shuffle=True, fields=["x", "y"])
    >>> [len(y) for x, y in loader]
    [4, 4, 2]
    """

    _made = False

    def __init__(
        self,
        dataset: Source | Dataset[Any] | Sequence[Dataset[Any]],
        batch_size: int | None = DEFAULT_BATCH_ROWS,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        device: torch.device | str | None = None,
        reuse_device_buffers: bool = False,
        window_device: torch.device | str | None = None,
        fields: Fields = None,
        seed: int | None = None,
        window: int | str = "auto",
        memory_budget: int | str | None = None,
        transform: Callable[[Any], Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        allow_external: bool = False,
        stage_to: str | os.PathLike[str] | None = None,
        on_error: str = "raise",
        isolation: str = "thread",
    ) -> None:
        given = dict(locals())
        isolated = checked_isolation(isolation)
        if isolated:
            dataset, fields = opened_by_child(dataset, fields, allow_external)
        self.dataset = as_dataset(dataset, fields, allow_external)
        self._arguments = arguments_of(given, self.dataset)
        self.shuffle = bool(shuffle)
        self.num_workers, self.timeout = checked_workers(num_workers), checked_timeout(timeout)
        self.collate_fn, self.transform, self.pin_memory, self.drop_last = collate_fn, transform, pin_memory, drop_last
        self.worker_init_fn, self.multiprocessing_context = worker_init_fn, multiprocessing_context
        self.generator = generator
        self.prefetch_factor, self.persistent_workers = prefetch_factor, persistent_workers
        self.pin_memory_device, self.in_order = pin_memory_device, in_order
        self.seed = checked_seed(seed, generator)
        check_callables(collate_fn=collate_fn, worker_init_fn=worker_init_fn, transform=transform)
        batch_size = check_samplers(batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.batch_size = None if batch_sampler is not None else batch_size
        self._given = given_order(self.dataset, self.batch_size, sampler, batch_sampler, drop_last)
        ranks = checked_ranks(rank, world_size, listed=self._given is not None)
        gives_samples = self.batch_size is None and (self._given is None or self._given.gives_samples)
        batched = self.batch_size is not None or batch_sampler is not None
        takes_apart = gives_samples or (batched and collate_fn is not None)
        slot_rows = min(batch_size or 1, len(self.dataset)) if self._given is None else self._given.said_rows
        self.memory_budget, most_budget = checked_budget(memory_budget)
        self.dataset, self._give_back = as_staged(self, self.dataset, stage_to)
        layout = self.dataset.layout
        carrier, assembler = Carrier(layout), Assembler(layout, gives_lists=not takes_apart)
        window_backend = window_backend_for(window_device, device, assembler, listed=self._given is not None)
        self._sizing = Sizing(
            layout=layout,
            selected=self.dataset.rows,
            batch_rows=slot_rows or DEFAULT_BATCH_ROWS,
            memory_budget=self.memory_budget,
            most_budget=most_budget,
            threads=self.num_workers,
            threads_asked=num_workers is not None,
            shuffle=self.shuffle or not self.dataset.is_in_file_order,  # rows that lie scattered want a large window
            backend=window_backend,
        )
        if self._given is not None and self._given.said_rows is None:
            self._sizing = self._sizing.with_room(window)
            self._given = replace(self._given, room=self._sizing.batch_rows)
        kept, self.window_size, self.memory_budget = self._sizing.choose(window)
        self.num_workers = self.window_size.threads
        self._kept = KeptDatasets(carrier, kept)
        self.device = device_of(device) if window_backend is None else window_backend.device
        delivery = delivery_for(
            assembler,
            SlotFormat.for_rows(layout.fields, self._sizing.batch_rows),
            Finish(takes_apart=takes_apart, gives_samples=gives_samples, collate_fn=collate_fn, transform=transform),
            device=self.device,
            window_backend=window_backend,
            pin_memory=pin_memory,
            depth=prefetch_factor,
            reuse_buffers=reuse_device_buffers,
            size=self.window_size,
            isolated=isolated,
        )
        self._orders = Orders(
            self.dataset,
            self._given,
            ranks,
            OrderSettings(
                batch_size=self.batch_size or 1,
                window_rows=self.window_size.window_rows,
                first_window_rows=self.window_size.first_window_rows,
                shuffle=self.shuffle,
                drop_last=drop_last,
                seed=self.seed,
            ),
            self.window_size,
            batch_size=self.batch_size,
            fixed=frozenset(["window"] * (window != "auto") + ["seed"] * (seed is not None or generator is None)),
        )
        engine = engine_for(
            carrier,
            self._kept,
            delivery,
            self._orders.blocks,
            isolated=isolated,
            threads=self.num_workers,
            on_thread_start=worker_init_fn,
            skip_corrupt=checked_on_error(on_error, window_device) == "skip",
        )
        self._epochs = Epochs(engine, delivery, self.window_size, self._orders.order_of)
        self._counters: RunCounters | None = None
        self._iterators: weakref.WeakSet[LoaderIterator] = weakref.WeakSet()
        self._sharing = sharing.DEFAULT.joined(self) if memory_budget is None else None
        if self._given is None:
            self._check_order(window, slot_rows or 1)  # complains now, not in the first epoch
        self._made = True

    def __setattr__(self, name: str, value: Any) -> None:
        # DataLoader refuses some; here all is worked out once, so that nothing else would be heard of again.
        if self._made and name in _FIXED:
            raise ValueError(
                f"{name} attribute should not be set after {type(self).__name__} is initialized; make another loader, "
                "which costs as much as opening the files"
            )
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the arguments: the copy opens the files itself, and begins with the epoch that is next here.

        An iterator that is under way stays behind, and so does what a state brought back within an epoch.
        """
        return remade, (type(self), self._arguments, self.seed, self._orders.next_epoch)

    def __len__(self) -> int:
        """Batches of an epoch; the same on every rank."""
        return len(self._orders)

    @property
    def rank(self) -> int:
        """Which part of each epoch is ours."""
        return self._orders.ranks.rank

    @property
    def world_size(self) -> int:
        """How many parts there are."""
        return self._orders.ranks.world_size

    @property
    def sampler(self) -> Any:
        """The sampler that was given, or the loader's own order of batches."""
        return self._orders.sampler

    @property
    def batch_sampler(self) -> Any:
        """What gives the indices of each batch; None where samples come singly, as in DataLoader."""
        refuse_rebuilding()
        return self._orders.batch_sampler

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration.

        Without it the first iteration is epoch 0 and each one adds one, so that every epoch is shuffled anew.

        Parameters
        ----------
        epoch : int
            Its number, 0 or more.

        Raises
        ------
        OptionError
            If it is no such number.
        """
        self._orders.set_epoch(checked_epoch(epoch))

    def state_dict(self) -> dict[str, Any]:
        """Say where the newest iteration is: a few numbers and a fingerprint of the data and settings.

        What counts is the batches that were given to you, not those that are held ready. A state at the end of
        an epoch is the beginning of the next. All ranks' states are alike, so one of them is enough.

        Returns
        -------
        dict
            Numbers, texts and lists only, for JSON or ``torch.save``.
        """
        return self._orders.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a state was saved: the next iteration begins with the batch after it, without replay.

        With another number of ranks, what all ranks had left is cut anew, and each row still comes once. The data
        may lie at another path; data or settings that differ are refused.

        Parameters
        ----------
        state_dict : dict
            What `state_dict` gave, on this rank or another.

        Raises
        ------
        StateError
            If the state does not fit; the message says what changed, and so does its `changed`.
        OptionError
            If what is left cannot be cut for this number of ranks.

        Examples
        --------
        >>> import h5py, tempfile, os, numpy as np
        >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
        >>> with h5py.File(path, "w") as f:
        ...     f["x"] = np.arange(10)
        >>> loader = H5StreamLoader(path, batch_size=4)
        >>> next(iter(loader))
        tensor([0, 1, 2, 3])
        >>> later = H5StreamLoader(path, batch_size=4)
        >>> later.load_state_dict(loader.state_dict())
        >>> list(later)
        [tensor([4, 5, 6, 7]), tensor([8, 9])]
        """
        sized = functools.partial(self._sizing.taken_over, self.window_size, self._kept.numbers)
        settings, size = self._orders.restore(state_dict, sized)
        vars(self).update(window_size=size, seed=settings.seed)
        self._epochs.resize(size)

    def __iter__(self) -> LoaderIterator:
        """Start an epoch; any number of iterators may be in use at once."""
        if self._epochs.renew_after_fork():
            self._iterators = weakref.WeakSet()
        if self._sharing is not None:
            self._sharing.make_room(self, self.window_size.needed_nbytes, self.memory_budget)
        start = self._orders.next_start()
        begun = self._epochs.begin(start)
        count = self._orders.begin(start, begun.order, begun.first_batch)
        self._counters = begun.run.counters.begin()
        epoch = start.place.epoch
        cut_short = functools.partial(self._epochs.drop_ahead, epoch + 1)
        iterator = LoaderIterator(self, begun.run, self._epochs.stream(begun), epoch, count, cut_short)
        self._iterators.add(iterator)
        self._orders.watch(iterator)
        return iterator

    def copy_into(self, static: Any) -> Iterator[int]:
        """Stream an epoch into tensors that stay where they are, as a captured CUDA graph needs them.

        Each batch is copied on the current stream, so that a graph that is replayed there next sees it.

        Parameters
        ----------
        static : Tensor, or list, tuple or dict of tensors
            The structure of a batch, with at least `batch_size` rows in each tensor.

        Yields
        ------
        int
            The rows that were copied; fewer than `batch_size` only in a last batch that is not full.
        """
        for batch in self:
            yield copy_batch(batch, static)

    def stats(self) -> LoaderStatistics:
        """Say what was done since the newest iteration began.

        Returns
        -------
        LoaderStatistics
            Counts, bytes and seconds, and what high and low mean; all 0 before the first iteration.
        """
        return LoaderStatistics() if self._counters is None else self._counters.snapshot()

    @classmethod
    def from_profile(cls, profile: str | Path, dataset: Any = None, **arguments: Any) -> H5StreamLoader:
        """Make a loader with the settings that `h5stream tune` wrote; what is given here goes before them.

        It shuffles, as `tune` did, unless the profile says otherwise, or ``shuffle=False`` or a sampler is given here.

        Parameters
        ----------
        profile : path
            The TOML file.
        dataset : path, H5Dataset, or sequence of them, optional
            The data; by default the file that was tuned for.
        **arguments
            Further arguments of `H5StreamLoader`.

        Returns
        -------
        H5StreamLoader
            The loader.

        Raises
        ------
        OptionError
            If the file is not there, is no profile, or sets what a profile does not set.
        """
        return cls(**arguments_from(profile, dataset, arguments))

    @property
    def is_idle(self) -> bool:
        """Whether no epoch is under way."""
        return all(iterator.is_closed for iterator in self._iterators)

    @property
    def held_nbytes(self) -> int:
        """Bytes of the slots that this loader has, filled or free; without those that were given back."""
        return self._epochs.delivery.slots.held_nbytes

    def trim(self) -> None:
        """Let go of the memory of slots that are not in use; the next epoch takes what it needs anew.

        That goes for what was read ahead, too: until the next epoch begins, it is in use by no batch of yours.
        """
        self._epochs.trim()

    def close(self) -> None:
        """End all iterators and their threads, and let go of the slots and files."""
        for iterator in list(self._iterators):
            iterator.close()
        self._epochs.close()
        self._give_back()

    def __enter__(self) -> H5StreamLoader:
        """Close the loader when the block ends."""
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"H5StreamLoader({self.dataset!r}, batch_size={self.batch_size}, shuffle={self.shuffle}, "
            f"window_rows={self.window_size.window_rows:,}, num_workers={self.num_workers})"
        )

    def _order(self, epoch: int) -> EpochOrder:
        return self._orders.order(epoch)

    def _check_order(self, window: int | str, batch_rows: int) -> None:
        """Refuse what gives no order, and warn of one that mixes too little."""
        self._order(0)
        if self.shuffle:
            warn_of_weak_shuffle(
                self.dataset.layout,
                self._orders.blocks,
                window=window,
                window_rows=self.window_size.window_rows,
                batch_rows=batch_rows,
                memory_budget=self.memory_budget if self._sizing.backend is None else None,
                ranks=self.world_size,
                stacklevel=4,
            )

    def read_ahead(self, epoch: int, taken: int) -> None:
        """Start the epoch after `epoch` while its last batches are to be consumed; iterators call this.

        Parameters
        ----------
        epoch : int
            The epoch that is under way.
        taken : int
            How many of its batches are to be consumed before the next one begins.
        """
        if (start := self._orders.start_after(epoch)) is not None:
            self._epochs.read_ahead(start, taken)


_FIXED = frozenset(inspect.signature(H5StreamLoader.__init__).parameters) - {"self", "timeout"}
"""What cannot be changed once a loader is made: all arguments but `timeout`, which is looked at for each batch."""
