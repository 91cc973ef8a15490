"""`H5StreamLoader`: takes the place of ``torch.utils.data.DataLoader``. Puts the rooms together."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Subset

from h5stream import allowance
from h5stream.dataset import H5Dataset, samples_of
from h5stream.engine.assemble import Assembler
from h5stream.engine.budget import DEFAULT_BUDGET, check_budget, size_window
from h5stream.engine.carry import Carrier
from h5stream.engine.counters import RunCounters, clock
from h5stream.engine.executor import ReadyBatch, Run
from h5stream.engine.kept import KeptDatasets, datasets_to_keep
from h5stream.engine.slots import SlotFormat, SlotRing
from h5stream.engine.statistics import LoaderStatistics
from h5stream.errors import LoaderClosedError, OptionError
from h5stream.options import (
    as_dataset,
    batched,
    check_samplers,
    checked_seed,
    checked_timeout,
    checked_workers,
    selected_rows,
    slot_rows_for,
)
from h5stream.order.epoch import EpochOrder, Order, OrderSettings
from h5stream.order.listed import ListedOrder
from h5stream.profiles import arguments_from
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
        The files, or a dataset over them.
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
        Seconds to wait for a batch; 0 waits as long as it takes.
    worker_init_fn : callable, optional
        Called with the thread's number in each reader thread before it reads.
    multiprocessing_context : optional
        Has nothing to do: readers are threads.
    generator : torch.Generator, optional
        The seed is drawn from it once, unless `seed` is given.
    prefetch_factor : int, optional
        Batches that are held ready ahead on a device. Has nothing to do on the host, where a window is read
        ahead.
    persistent_workers : bool
        Read the next epoch's first window while this one's last batches are consumed.
    pin_memory_device : str
        Has nothing to do; deprecated in DataLoader too.
    in_order : bool
        Has nothing to do: batches always come in order, which costs nothing here.
    fields : str, Field, sequence or mapping, optional
        What a sample is made of; see `H5Dataset`.
    seed : int, optional
        Of the shuffle; default 0, so that all ranks agree and runs repeat.
    window : int, "auto" or "all"
        Rows that are shuffled with one another. ``"auto"`` is ``max(4 batches, 1,024 blocks)`` within the
        budget; ``"all"`` is an exact global shuffle.
    memory_budget : int, optional
        Bytes that slots, windows and scratch may take together. Default 2 GiB, or a quarter of the memory
        that is available if that is less.
    transform : callable, optional
        Applied to each whole batch, in the thread that asks for it.
    rank, world_size : int
        Which part of each epoch is ours. Every rank has the same number of batches.
    allow_external : bool
        Whether links, external storage and virtual sources may lead out of the opened files.

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
        batch_size: int | None = 8192,
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
        self.rank, self.world_size = rank, world_size
        self._user_sampler, self._user_batch_sampler = sampler, batch_sampler
        check_samplers(batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.batch_size = None if batch_sampler is not None else batch_size
        slot_rows = slot_rows_for(batch_size, batch_sampler)
        self.memory_budget = check_budget(
            min(DEFAULT_BUDGET, allowance.memory_available_bytes() // 4) if memory_budget is None else memory_budget
        )
        layout = self.dataset.layout
        self._carrier = Carrier(layout)
        self._kept = KeptDatasets(self._carrier, datasets_to_keep(layout, self.memory_budget))
        self.window_size = size_window(
            layout,
            rows=len(self.dataset),
            batch_size=slot_rows,
            window=window,
            memory_budget=self.memory_budget,
            threads=max(1, self.num_workers),
            kept_nbytes=self._kept.nbytes,
        )
        if self.window_size.notice:
            _log.info("%s", self.window_size.notice)
        self._assembler = Assembler(layout)
        self._format = SlotFormat.for_rows(layout.fields, slot_rows)
        self._ring = SlotRing(self._format.nbytes)
        self._blocks = self.dataset.blocks
        self._epoch = 0
        self._ahead: tuple[int, Run] | None = None
        self._counters: RunCounters | None = None
        self._iterators: weakref.WeakSet[LoaderIterator] = weakref.WeakSet()
        if sampler is None and batch_sampler is None:
            self._order(0)  # complains now, not in the first epoch

    # --- what DataLoader has ----------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of an epoch; the same on every rank."""
        if self._user_batch_sampler is not None:
            return len(self._user_batch_sampler)  # type: ignore[arg-type]
        if self._user_sampler is not None:
            count = len(self._user_sampler)  # type: ignore[arg-type]
            size = self.batch_size or 1
            return count // size if self.drop_last else -(-count // size)
        return self._order(0).batches

    @property
    def sampler(self) -> Any:
        """The sampler that was given, or the loader's own order of batches."""
        return self._user_sampler if self._user_sampler is not None else self.batch_sampler

    @property
    def batch_sampler(self) -> Any:
        """The batch sampler that was given, or one that gives the loader's own order."""
        if self._user_batch_sampler is not None:
            return self._user_batch_sampler
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
        for sampler in (self._user_sampler, self._user_batch_sampler):
            move = getattr(sampler, "set_epoch", None)
            if move is not None:
                move(epoch)

    def __iter__(self) -> LoaderIterator:
        """Start an epoch; any number of iterators may be in use at once."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] != epoch:
            ahead[1].stop()
            ahead = None
        run = ahead[1] if ahead is not None else self._start(epoch)
        self._counters = run.counters.begin()
        iterator = LoaderIterator(self, run, epoch)
        self._iterators.add(iterator)
        return iterator

    def stats(self) -> LoaderStatistics:
        """Give what was done since the newest iteration began; `LoaderStatistics` says what high and low mean."""
        return LoaderStatistics() if self._counters is None else self._counters.snapshot()

    @classmethod
    def from_profile(cls, profile: str | Path, dataset: Any = None, **arguments: Any) -> H5StreamLoader:
        """Make a loader with the settings that `h5stream tune` wrote; what is given here goes before them."""
        return cls(**arguments_from(profile, dataset, arguments))

    def close(self) -> None:
        """End all iterators and their threads, and let go of the slots and files."""
        for iterator in list(self._iterators):
            iterator.close()
        if self._ahead is not None:
            self._ahead[1].stop()
            self._ahead = None
        self._ring.trim()
        self._carrier.close()

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

    # --- putting the rooms together ---------------------------------------------------------------------

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

    def _start(self, epoch: int) -> Run:
        return Run(
            self._carrier,
            self._kept,
            self._order_of(epoch),
            self._ring,
            self._format,
            threads=self.num_workers,
            max_open_batches=self.window_size.max_open_batches,
            on_thread_start=self.worker_init_fn,
        )

    def _order_of(self, epoch: int) -> Order:
        batches = self._user_batches()
        if batches is None:
            return self._order(epoch)
        selected = self._blocks.rows
        if selected is not None:
            batches = (selected_rows(selected, batch) for batch in batches)
        return ListedOrder(batches, together=_LISTED_TOGETHER, total_rows=self.dataset.layout.rows)

    def _user_batches(self) -> Iterator[Any] | None:
        if self._user_batch_sampler is not None:
            return iter(self._user_batch_sampler)
        if self._user_sampler is None:
            return None
        if self.batch_size is None:
            return ([index] if isinstance(index, int) else list(index) for index in self._user_sampler)
        return batched(iter(self._user_sampler), self.batch_size, self.drop_last)

    def _read_ahead(self, epoch: int) -> None:
        """Start the epoch after `epoch`, whose first window is read while the present one is consumed."""
        may = self.persistent_workers and self._ahead is None and self._epoch == epoch + 1
        if may and self.num_workers and self._user_sampler is None and self._user_batch_sampler is None:
            self._ahead = (epoch + 1, self._start(epoch + 1))

    def _finish(self, batch: ReadyBatch) -> Any:
        """Turn a filled slot into what the user gets."""
        lease = self._ring.lease(batch.slot)
        value = self._assembler.batch(lease, self._format, batch.rows, batch.objects)
        if self.collate_fn is not None and self.batch_size is not None:
            value = self.collate_fn(samples_of(value, batch.rows))
        elif self.batch_size is None and self._user_batch_sampler is None and batch.rows == 1:
            value = samples_of(value, 1)[0]
            value = value if self.collate_fn is None else self.collate_fn(value)
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
            if batch is None:
                self.close()
                raise StopIteration
            if self._loader.persistent_workers and self._run.all_read:
                self._loader._read_ahead(self._epoch)
            began = clock()
            value = self._loader._finish(batch)
            self._run.counters.finished(began)
            return value
        except (StopIteration, LoaderClosedError):
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the epoch here; its threads are gone when this returns."""
        self._closed = True
        self._finalizer()
