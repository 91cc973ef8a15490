"""Epochs in progress: starting them, possibly ahead of time, counting and ending them, and the user's iterator."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, NoReturn, Self

from h5stream.device.cuda import CudaBackend
from h5stream.engine.assemble import Assembler
from h5stream.engine.counters import clock
from h5stream.engine.reader import RowReader
from h5stream.engine.run import STOP_S, Engine, Run, check_process
from h5stream.engine.slots import SlotFormat, SlotRing
from h5stream.errors import LoaderClosedError
from h5stream.loader.options import Batch
from h5stream.loader.position import Cursor, Progress
from h5stream.loader.route import Route, route_for
from h5stream.loader.settings import DataLoaderAttributes, Settings
from h5stream.loader.state import EpochPosition
from h5stream.order.epoch import EpochOrder
from h5stream.order.window import Order
from h5stream.storage.layout.layout import SampleLayout
from h5stream.storage.source.stores import NOTHING, StoreUsage
from h5stream.workers.processes import checked_method

HELD_BATCHES = 2
"""Batches that a loop holds while it requests the next; they need slots besides those of open batches."""


class Iterations:
    """The iterations of a loader: one after the other, possibly with the next one started ahead.

    # Guarantees: used by the thread that iterates, but for `drop_ahead`, `trim` and `close`, which any thread may
    call, even inside the garbage collector: they share `_ahead` alone, whose `pop` needs no lock. What was begun
    ahead and is never taken ends with this object.
    """

    def __init__(self, settings: Settings, layout: SampleLayout, cursor: Cursor, backend: CudaBackend | None) -> None:
        self.cursor = cursor
        slot_format = SlotFormat.for_rows(layout.fields, cursor.sizing.most_rows)
        most_slots, functions = cursor.footprint.max_open_batches, settings.functions
        changes = backend is not None or functions.are_seeded or functions.batch_transform is not None
        if changes or functions.collate_fn is not None or settings.takes_apart or settings.reading.pin_memory:
            self.route = route_for(settings, layout, slot_format, most_slots, backend)
        else:
            slots = functools.partial(SlotRing, slot_format.nbytes, most_slots=most_slots)
            assembler = Assembler(layout, gives_lists=True)
            self.route = Route(slot_format=slot_format, new_slots=slots, assembler=assembler)
        self.engine = _engine_for(settings, layout, self.route, cursor)
        self._pid = os.getpid()
        self._ahead: dict[
            int, tuple[Run, Progress, weakref.finalize[[], Iterations]]
        ] = {}  # by epoch, with what ends it; at most one
        self._expected: EpochPosition | None = None
        self._follows = True
        # Stores charge for requests, so there are none for an epoch that may never begin.
        self._may_be_last = layout.is_far and not settings.reading.persistent_workers
        # Python objects are not in slots, so reading ahead would hold more of them than the budget counts.
        self._reads_windows_ahead = not layout.is_far
        for field in layout.fields:
            if field.kind == "object" or field.is_listed or field.is_of_values:
                self._reads_windows_ahead = False

    def begin(self, loader: DataLoaderAttributes) -> LoaderIterator[Any]:
        """Begin the next iteration of the loader: the one that was started ahead for it, or a new one."""
        start = self.cursor.next_start()
        # If epochs do not follow one another, as with `set_epoch(0)` each time, reading ahead is wasted work.
        self._follows = self._expected in (None, start)
        self._expected = EpochPosition(epoch=start.epoch + 1, ranks=start.ranks)
        most = self.cursor.footprint.max_open_batches
        with self._dropping_lost():
            ahead = self._ahead.pop(start.epoch, None) if self._follows else None
            if ahead is not None and ahead[1].start == start:
                run, progress, stop = ahead
                stop.detach()
                run.allow(most)
            else:
                if ahead is not None:
                    ahead[-1]()
                self.drop_ahead()
                run, progress = self._begun(start, most)
            iterator: LoaderIterator[Any] = LoaderIterator(loader, self, run, progress)
        self.cursor.move_to(progress, iterator)
        return iterator

    @contextlib.contextmanager
    def _dropping_lost(self) -> Iterator[None]:
        """End runs that Ctrl-C or an error left without an owner."""
        try:
            yield
        except BaseException:
            self.drop_ahead()
            self.engine.stop_lost()
            raise

    def _begun(self, start: EpochPosition, max_open_batches: int) -> tuple[Run, Progress]:
        order, first_batch = self.cursor.order_of(start)
        # Orders of the user's code are read as they come.
        filled: Order = (
            order.as_filled(self.cursor.footprint.batches_at_once) if isinstance(order, EpochOrder) else order
        )
        run = self.engine.begin(
            filled, first_batch, max_open_batches=max_open_batches, world_size=start.ranks.world_size
        )
        return run, Progress(start=start, order=order, first_batch=first_batch, batch=first_batch)

    def read_ahead(self, epoch: int, taken: int | None) -> bool:
        """Read ahead in the next epoch while `taken` batches of `epoch` are consumed; return whether to call again.

        The first window is planned as soon as all of `epoch` is planned; `taken` is None while some of it is read.
        For Python objects, and from stores, which charge for requests, only one window is read; from stores only if the
        user has begun a second epoch before, or says that more than one follows.
        """
        if (epoch == 0 and self._may_be_last) or not self._follows or not self.engine.reads_ahead:
            return False
        if taken is None and (self._ahead or not self.engine.reader.plans_ahead):
            return True
        size = self.cursor.footprint
        needed = min(size.first_batches, size.max_open_batches)
        has_room = taken is not None and taken + needed <= size.max_open_batches
        if not self._ahead and (has_room or taken is None):
            if (start := self.cursor.start_after(epoch)) is None:
                return False
            # Errors are raised when the iteration begins.
            with contextlib.suppress(Exception), self._dropping_lost():
                run, progress = self._begun(start, needed if has_room else 0)
                self._ahead[start.epoch] = run, progress, weakref.finalize(self, run.stop)
        elif has_room:
            for run, _, _ in tuple(self._ahead.values()):
                if self._reads_windows_ahead:
                    run.allow(max(needed, size.max_open_batches - HELD_BATCHES), taken or 0)
                elif run.waits:
                    run.allow(needed)
                if run.has_planned_all:
                    return False
        return True

    def asked_ahead(self) -> StoreUsage:
        """Return the store requests that reading ahead has made so far."""
        runs = [run for run, _, _ in tuple(self._ahead.values())]
        return next((run.counters.of_stores[0] for run in runs), NOTHING)

    def drop_ahead(self, epoch: int | None = None) -> None:
        """End the run that was started ahead for an epoch, or for any epoch."""
        for number in list(self._ahead) if epoch is None else [epoch]:
            if (ahead := self._ahead.pop(number, None)) is not None:
                ahead[-1]()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state, with the window sizes of the state."""
        self.cursor.restore(state)
        self.engine.reader.change_kept(dict(self.cursor.footprint.kept_rows))
        self.drop_ahead()
        self._expected = None

    def renew_after_fork(self) -> bool:
        """Replace the locks and runs of the parent if this is a forked child; return whether it is."""
        if self._pid == os.getpid():
            return False
        self._pid, self._ahead = os.getpid(), {}
        self.engine.renew()
        return True

    def trim(self) -> None:
        """End the run that was started ahead, and release free slots, which then include those that it filled."""
        self.drop_ahead()
        self.engine.trim()

    def close(self) -> None:
        """End the run that was started ahead, and release slots, files and processes."""
        self.drop_ahead()
        self.engine.close()


class LoaderIterator(Generic[Batch]):
    """One epoch of a loader; an iterator over its batches.

    # Guarantees: any number of threads may share it: they take turns, each batch is given once, and each of them
    sees the end. `close` may be called by any thread at any time. Its threads, and those that read ahead behind it,
    end when it is closed, dropped or fails; at its end only what was read ahead stays.
    """

    def __init__(self, loader: DataLoaderAttributes, iterations: Iterations, run: Run, progress: Progress) -> None:
        self._loader, self._iterations = loader, iterations  # the loader's timeout may change
        self._run, self._progress, self._route = run, progress, iterations.route
        self._feed = None if self._route.feed is None else self._route.feed(run)
        self._epoch = progress.start.epoch
        self.counters = run.counters.begin()
        self._pid = os.getpid()
        self._turns = threading.RLock()
        self._over, self._closed, self._may_read_ahead = False, False, True
        self._cut_short = functools.partial(iterations.drop_ahead, self._epoch + 1)
        # Dropping the iterator (`break`, an exception) must end its threads, so nothing here may refer to it.
        self._finalizer = weakref.finalize(self, _stop, run.stop, self._cut_short)
        run.take()

    def __reduce__(self) -> NoReturn:
        raise NotImplementedError(
            "an epoch that is under way stays in its process; pickle the loader, not its iterator"
        )

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        """Return the number of batches from its first one on; fewer than an epoch has if it began with a resume."""
        batches = self._progress.order.batches
        if batches is None:
            batches = self._iterations.cursor.batches(self._epoch)
        return batches - self._progress.first_batch

    @property
    def is_closed(self) -> bool:
        """Whether it yields no further batches: it was closed, or has ended."""
        return self._closed or self._over

    def __next__(self) -> Batch:
        check_process(self._pid)  # first: a thread that stayed in the parent may hold the turn for ever
        with self._turns:
            if self._over:
                raise StopIteration
            try:
                return self._next()
            except BaseException:
                self._over = self._over or not self._closed
                self._finalizer()
                if self._feed is not None:
                    self._feed.close()
                raise

    def _next(self) -> Batch:
        if self._closed:
            raise self._closed_early()
        route = self._route
        try:
            batch = (self._feed or self._run).next_batch(self._loader.timeout)
            if batch is not None:
                began = clock()
                value: Batch
                if route.assembler is None:
                    value = route.make(batch)
                else:
                    slot = batch.slot
                    value = route.assembler.batch(
                        slot.lease(), route.slot_format, batch.rows, batch.objects, within=slot.tensor
                    )
                if route.finish is not None:
                    value = route.finish(value, batch.rows)
                self.counters.finished(began)
        except StopIteration as error:  # must not pass for the end of the epoch
            raise RuntimeError("batch_transform or collate_fn raised StopIteration") from error
        except LoaderClosedError:
            if self._closed:  # by another thread, while this one waited
                raise self._closed_early() from None
            raise
        if self._may_read_ahead and self._run.has_planned_all:
            self._may_read_ahead = self._iterations.read_ahead(self._epoch, self._run.left_to_hand_over())
        if batch is None:
            self._over = self._progress.ended = True
            self._run.stop()
            self._finalizer.detach()  # what was read ahead is for the epoch that follows
            raise StopIteration
        self._progress.advance(self._run.left_out)
        return value

    def _closed_early(self) -> Exception:
        """Return the error for an epoch that was closed early, or `StopIteration` if all batches had been given."""
        taken, batches = self._progress.batch, self._progress.order.batches
        if taken == batches:
            return StopIteration()
        return LoaderClosedError(
            f"the loader was closed after {taken:,} {'batches' if batches is None else f'of {batches:,} batches'} of "
            "this epoch. To end an epoch early leave the loop with break, and call close() behind it; "
            "iter(loader) begins another"
        )

    def close(self) -> None:
        """End the epoch here; its threads are gone when this returns, and later requests for a batch raise."""
        self._closed = True
        self._finalizer()
        if os.getpid() == self._pid and self._turns.acquire(timeout=STOP_S):  # a waiting thread was woken
            try:
                self._cut_short()  # it may have begun to read ahead meanwhile
                if self._feed is not None:
                    self._feed.close()  # waits for the copies in progress
            finally:
                self._turns.release()


def _stop(stop: Callable[[], object], cut_short: Callable[[], object]) -> None:
    stop()
    cut_short()


def _engine_for(settings: Settings, layout: SampleLayout, route: Route, cursor: Cursor) -> Engine:
    """Make the engine that fills a loader's slots: threads of this process, and workers if requested."""
    footprint = cursor.footprint
    reading, functions = settings.reading, settings.functions
    kept_rows = None if reading.keep == "never" else dict(footprint.kept_rows)
    reader, slot_format = RowReader(layout, kept_rows, footprint.kept), route.slot_format
    skips_corrupt = reading.on_error == "skip"
    if route.functions is None or not functions.workers:
        return Engine(
            reader,
            slot_format,
            route.new_slots,
            threads=footprint.threads,
            on_thread_start=functions.worker_init_fn,
            skip_corrupt=skips_corrupt,
        )
    from h5stream.workers.sample_engine import SampleEngine  # imported here since most loaders have none

    return SampleEngine(
        reader,
        slot_format,
        route.functions,
        count=functions.workers,
        method=checked_method(functions.multiprocessing_context),
        prefetch_factor=functions.prefetch_factor,
        on_start=functions.worker_init_fn,
        seed=cursor.seed,
        option=f"{'transform' if functions.sample_workers is None else 'sample'}_workers={functions.workers}",
        spare_nbytes=max(0, footprint.memory_budget - footprint.needed_nbytes),
        threads=footprint.threads,
        skip_corrupt=skips_corrupt,
    )
