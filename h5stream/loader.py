"""`H5StreamLoader`: takes the place of ``torch.utils.data.DataLoader``. Puts the rooms together."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import BatchSampler, Subset

from h5stream import allowance
from h5stream.dataset import H5Dataset, samples_of
from h5stream.engine.assemble import Assembler
from h5stream.engine.budget import check_budget, default_budget, keep_and_size
from h5stream.engine.carry import Carrier
from h5stream.engine.executor import ReadyBatch, Run
from h5stream.engine.kept import KeptDatasets
from h5stream.engine.slots import SlotFormat, SlotRing
from h5stream.errors import LoaderClosedError, OptionError
from h5stream.options import (
    DEFAULT_BATCH_ROWS,
    as_dataset,
    as_staged,
    check_callables,
    check_samplers,
    checked_rank,
    checked_seed,
    checked_timeout,
    checked_workers,
    given_order,
)
from h5stream.order.epoch import EpochOrder, Order, OrderSettings
from h5stream.order.listed import ListedOrder
from h5stream.order.regrouped import regrouped
from h5stream.sampler import ChunkBatchSampler
from h5stream.storage.fields import Fields, Source

_log = logging.getLogger("h5stream")

_LISTED_TOGETHER = 4
"""Batches of a sampler that are read as one window; chunks that they share are decoded once."""


class H5StreamLoader:
    """Streams shuffled batches from HDF5 files; every parameter of ``DataLoader`` keeps its name and place.

    Parameters
    ----------
    dataset : path, pattern, sequence of them, H5Dataset, or Subset of one
        The files, or a dataset over them. The loader's own order takes a Subset's rows as the file has them;
        a sampler's indices are places in the Subset.
    batch_size : int or None
        Rows of a batch. None gives single samples, as in DataLoader.
    shuffle : bool, optional
        True for the two-level shuffle, another one each epoch. Default False.
    sampler, batch_sampler : iterable, optional
        An order of somebody else's, as in DataLoader. Rows that lie apart cost a chunk each; the loader's own
        shuffle does not.
    num_workers : int, optional
        Reader threads. By default as many as the scheduler and the cgroup allow; 0 reads in the thread that
        asks for batches.
    collate_fn : callable, optional
        Gets a list of samples, as in DataLoader. They are taken apart one by one for it, which costs more than
        reading them; `transform` works on whole batches.
    pin_memory : bool
        Pinned host memory; without a CUDA device it has nothing to do, as in DataLoader.
    drop_last : bool
        Leave out the last batch if it is not full.
    timeout : float
        Seconds to wait for a batch; 0 waits as long as it takes. Has nothing to do with ``num_workers=0``.
    worker_init_fn : callable, optional
        Called with the thread's number in each reader thread before it reads.
    generator : torch.Generator, optional
        The seed is drawn from it once, unless `seed` is given.
    prefetch_factor : int, optional
        Batches that are held ready ahead on a device. Has nothing to do on the host, which reads a window ahead.
    persistent_workers : bool
        Read the next epoch's first window while this one's last batches are consumed.
    multiprocessing_context, pin_memory_device, in_order : optional
        Have nothing to do: readers are threads, and batches always come in order.
    fields : str, Field, sequence or mapping, optional
        What a sample is made of; see `H5Dataset`.
    seed : int, optional
        Of the shuffle; default 0, so that all ranks agree and runs repeat.
    window : int, "auto" or "all"
        Rows that are shuffled with one another. ``"auto"`` is ``max(4 batches, 1,024 blocks)`` within the
        budget; ``"all"`` is an exact global shuffle.
    memory_budget : int, optional
        Bytes that slots, windows and scratch may take together. Default 2 GiB, at most a quarter of what is free.
    transform : callable, optional
        Applied to each whole batch, in the thread that asks for it.
    rank, world_size : int
        Which part of each epoch is ours. Every rank has the same number of batches.
    allow_external : bool
        Whether links, external storage and virtual sources may lead out of the opened files.
    stage_to : path, optional
        Copy the files there first (`h5stream.stage`) and read the copies, leased until the loader is closed or
        gone. On unfiltered copies ``window="all"`` is cheap.

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

    def __init__(
        self,
        dataset: Source | H5Dataset | Subset[Any],
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
        fields: Fields = None,
        seed: int | None = None,
        window: int | str = "auto",
        memory_budget: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        rank: int = 0,
        world_size: int = 1,
        allow_external: bool = False,
        stage_to: str | os.PathLike[str] | None = None,
    ) -> None:
        self.dataset = as_dataset(dataset, fields, allow_external)
        self.shuffle = bool(shuffle)
        self.num_workers = checked_workers(num_workers)
        self.timeout = checked_timeout(timeout)
        self.collate_fn, self.transform = collate_fn, transform
        self.pin_memory, self.drop_last = pin_memory, drop_last
        self.worker_init_fn, self.multiprocessing_context = worker_init_fn, multiprocessing_context
        self.generator = generator
        self.prefetch_factor, self.persistent_workers = prefetch_factor, persistent_workers
        self.pin_memory_device, self.in_order = pin_memory_device, in_order
        self.seed = checked_seed(seed, generator)
        check_callables(collate_fn=collate_fn, worker_init_fn=worker_init_fn, transform=transform)
        check_samplers(batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.batch_size = None if batch_sampler is not None else batch_size
        self._given = given_order(dataset, self.batch_size, sampler, batch_sampler, drop_last)
        self.rank, self.world_size = checked_rank(rank, world_size, listed=self._given is not None)
        self._gives_samples = self.batch_size is None and (self._given is None or self._given.gives_samples)
        batched = self.batch_size is not None or batch_sampler is not None
        self._takes_apart = self._gives_samples or (batched and collate_fn is not None)
        slot_rows = min(batch_size or 1, len(self.dataset)) if self._given is None else self._given.most_rows
        self.memory_budget = check_budget(
            default_budget(allowance.memory_available_bytes()) if memory_budget is None else memory_budget
        )
        self.dataset, self._give_back = as_staged(self, self.dataset, stage_to)
        layout = self.dataset.layout
        self._carrier = Carrier(layout)
        self._kept, self.window_size = keep_and_size(
            self._carrier,
            rows=len(self.dataset),
            batch_size=slot_rows,
            window=window,
            memory_budget=self.memory_budget,
            threads=max(1, self.num_workers),
        )
        if self.window_size.notice:
            _log.info("%s", self.window_size.notice)
        self._assembler = Assembler(layout)
        self._format = SlotFormat.for_rows(layout.fields, slot_rows)
        self._ring = SlotRing(self._format.nbytes)
        self._blocks = self.dataset.blocks
        self._epoch = 0
        self._pid = os.getpid()
        self._ahead: tuple[int, Run, Callable[[], Any]] | None = None
        self._iterators: weakref.WeakSet[LoaderIterator] = weakref.WeakSet()
        if self._given is None:
            self._order(0)  # complains now, not in the first epoch

    def __len__(self) -> int:
        """Batches of an epoch; the same on every rank."""
        return self._order(0).batches if self._given is None else len(self._given)

    @property
    def sampler(self) -> Any:
        """The sampler that was given, or the loader's own order of batches."""
        if self._given is None:
            return self._own_sampler()
        return self._given.batch_sampler if self._given.sampler is None else self._given.sampler

    @property
    def batch_sampler(self) -> Any:
        """What gives the indices of each batch; None where samples come singly, as in DataLoader."""
        if self._given is not None and self._given.batch_sampler is not None:
            return self._given.batch_sampler
        if self.batch_size is None:
            return None
        if self._given is None:
            return self._own_sampler()
        return BatchSampler(self._given.sampler, self.batch_size, self.drop_last)

    def _own_sampler(self) -> ChunkBatchSampler:
        sampler = ChunkBatchSampler(
            self.dataset,
            self.batch_size or 1,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            seed=self.seed,
            rank=self.rank,
            world_size=self.world_size,
        )
        sampler._settings.update(
            window_rows=self.window_size.window_rows, first_window_rows=self.window_size.first_window_rows
        )
        sampler.set_epoch(self._epoch)
        return sampler

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration.

        Without it the first iteration is epoch 0 and each one adds one, so that every epoch is shuffled anew.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise OptionError(f"set_epoch takes a non-negative integer, not {epoch!r}")
        self._epoch = epoch
        if self._given is not None:
            self._given.set_epoch(epoch)

    def __iter__(self) -> LoaderIterator:
        """Start an epoch; any number of iterators may be in use at once."""
        self._renew_after_fork()
        epoch, self._epoch = self._epoch, self._epoch + 1
        iterator = LoaderIterator(self, self._take_ahead(epoch) or self._start(epoch), epoch)
        self._iterators.add(iterator)
        return iterator

    def close(self) -> None:
        """End all iterators and their threads, and let go of the slots and files."""
        for iterator in list(self._iterators):
            iterator.close()
        self._take_ahead(None)
        self._ring.trim()
        self._carrier.close()
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
        settings = OrderSettings(
            batch_size=self.batch_size or 1,
            window_rows=self.window_size.window_rows,
            first_window_rows=self.window_size.first_window_rows,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            seed=self.seed,
            epoch=epoch,
            rank=self.rank,
            world_size=self.world_size,
        )
        return EpochOrder(self._blocks, settings)

    def _start(self, epoch: int, taken: int = 0) -> Run:
        return Run(
            self._carrier,
            self._kept,
            self._order_of(epoch),
            self._ring,
            self._format,
            threads=self.num_workers,
            max_open_batches=self.window_size.max_open_batches - taken,
            on_thread_start=self.worker_init_fn,
        )

    def _order_of(self, epoch: int) -> Order:
        if self._given is None:
            return regrouped(self._order(epoch), self.window_size.together)
        return ListedOrder(
            self._given.batches(),
            together=min(_LISTED_TOGETHER, max(1, self.window_size.max_open_batches // 2)),
            total_rows=self.dataset.layout.rows,
            most_rows=self._given.most_rows,
            rows=self._given.rows,
        )

    def _read_ahead(self, epoch: int, taken: int) -> None:
        """Start the epoch after `epoch`, whose first window is read while `taken` batches are still to be consumed."""
        room = self.window_size.max_open_batches - taken
        first = self.window_size.together or self.window_size.first_window_rows // (self.batch_size or 1) + 2
        needed = min(first, room + taken)
        may = self._ahead is None and self._given is None and self._epoch == epoch + 1
        if may and self.num_workers and room >= needed:
            run = self._start(epoch + 1, taken)
            self._ahead = epoch + 1, run, weakref.finalize(self, run.stop).detach

    def _take_ahead(self, epoch: int | None) -> Run | None:
        """Give the run that was started for this epoch, or end the one that was started for another."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        ahead[2]()
        if ahead[0] != epoch:
            ahead[1].stop()
            return None
        ahead[1].allow(self.window_size.max_open_batches)
        return ahead[1]

    def _renew_after_fork(self) -> None:
        """In a forked child, make anew what the parent's threads may have held locked or be writing to."""
        if self._pid != os.getpid():
            self._pid, self._ahead = os.getpid(), None
            self._carrier = Carrier(self.dataset.layout)
            self._kept = KeptDatasets(self._carrier, self._kept.numbers)
            self._ring = SlotRing(self._format.nbytes)
            self._iterators = weakref.WeakSet()

    def _finish(self, batch: ReadyBatch) -> Any:
        """Turn a filled slot into what the user gets."""
        lease = self._ring.lease(batch.slot)
        value = self._assembler.batch(lease, self._format, batch.rows, batch.objects)
        if self._takes_apart:
            value = samples_of(value, batch.rows)
            value = value[0] if self._gives_samples else value
        if self.collate_fn is not None:
            value = self.collate_fn(value)
        return value if self.transform is None else self.transform(value)


class LoaderIterator:
    """One epoch of a loader; an iterator over its batches.

    # Guarantees: used by one thread at a time. Its threads end when it is exhausted, closed, dropped or fails.
    """

    def __init__(self, loader: H5StreamLoader, run: Run, epoch: int) -> None:
        self._loader, self._run, self._epoch = loader, run, epoch
        self._closed = False
        # Dropping the iterator (`break`, an exception) must end its threads; they refer to the run alone.
        self._finalizer = weakref.finalize(self, run.stop)

    def __iter__(self) -> LoaderIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        try:
            batch = self._run.next_batch(self._loader.timeout)
            if self._loader.persistent_workers and (taken := self._run.left_to_hand_over()) is not None:
                self._loader._read_ahead(self._epoch, taken)
            if batch is not None:
                return self._given_out(batch)
            self.close()
            raise StopIteration
        except (StopIteration, LoaderClosedError):
            raise
        except BaseException:
            self.close()
            raise

    def _given_out(self, batch: ReadyBatch) -> Any:
        try:
            return self._loader._finish(batch)
        except StopIteration as error:  # must not pass for the end of the epoch
            raise RuntimeError("transform or collate_fn raised StopIteration") from error

    def close(self) -> None:
        """End the epoch here; its threads are gone when this returns."""
        self._closed = True
        self._finalizer()
