"""The iterator over one epoch of a loader."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Container
from typing import Any, NoReturn, Protocol

from h5stream.delivery import END, Stream
from h5stream.engine.executor import check_process
from h5stream.engine.running import STOP_S, Running
from h5stream.errors import LoaderClosedError


class Owner(Protocol):
    """What an iterator needs of its loader."""

    timeout: float

    def __len__(self) -> int:
        """Batches of an epoch."""

    def read_ahead(self, epoch: int, taken: int) -> None:
        """Start the epoch after `epoch`, if there is room beside `taken` batches."""


class Count(Protocol):
    """Counts what an iterator gives."""

    ended: bool

    def advance(self, left_out: Container[int]) -> None:
        """Count a batch, and those before it that were left out."""

    @property
    def given(self) -> tuple[int, int | None]:
        """Batches of the epoch that were given, and how many it has; None where that is not known."""


class LoaderIterator:
    """One epoch of a loader; an iterator over its batches.

    # Guarantees: any number of threads may share it: they take turns, each batch is given once, and each of them
    sees the end. `close` may be called by any thread at any time. Its threads, and those that read ahead behind it,
    end when it is closed, dropped or fails; at its end only what was read ahead stays.

    Parameters
    ----------
    loader : Owner
        Where the epoch after it is begun.
    run, stream : Running, Stream
        What reads, and what makes batches of that.
    epoch : int
        Its epoch.
    count : Count
        Counts what is given.
    cut_short : callable
        Called if the iterator ends before its epoch does; must not refer to it.
    """

    def __init__(
        self,
        loader: Owner,
        run: Running,
        stream: Stream,
        epoch: int,
        count: Count,
        cut_short: Callable[[], object] = lambda: None,
    ) -> None:
        self._loader, self._run, self._stream, self._epoch = loader, run, stream, epoch
        self._count = count
        self._pid, self._cut_short = os.getpid(), cut_short
        self._turns = threading.RLock()
        self._over = self._closed = False
        # Dropping the iterator (`break`, an exception) must end its threads; they refer to the run alone.
        self._finalizer = weakref.finalize(self, _stop, run.stop, cut_short)

    def __reduce__(self) -> NoReturn:
        raise NotImplementedError(
            "an epoch that is under way stays in its process; pickle the loader, not its iterator"
        )

    def __iter__(self) -> LoaderIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def is_closed(self) -> bool:
        """Whether nothing more comes of it: it was closed, or has ended."""
        return self._closed or self._over

    def __next__(self) -> Any:
        check_process(self._pid)  # first: a thread that stayed in the parent may hold the turn for ever
        with self._turns:
            if self._over:
                raise StopIteration
            try:
                return self._next()
            except BaseException:
                self._over = self._over or not self._closed
                self._finalizer()
                self._stream.close()
                raise

    def _next(self) -> Any:
        if self._closed:
            raise self._closed_early()
        try:
            value = self._stream.next_batch(self._loader.timeout)
        except StopIteration as error:  # must not pass for the end of the epoch
            raise RuntimeError("transform or collate_fn raised StopIteration") from error
        except LoaderClosedError:
            if self._closed:  # by another thread, while this one waited
                raise self._closed_early() from None
            raise
        if (taken := self._run.left_to_hand_over()) is not None:
            self._loader.read_ahead(self._epoch, taken)
        if value is END:
            self._over = self._count.ended = True
            self._run.stop()
            self._finalizer.detach()  # what was read ahead is for the epoch that follows
            raise StopIteration
        self._count.advance(self._run.left_out)
        return value

    def _closed_early(self) -> Exception:
        """Say that the epoch was closed before its end; where every batch had been given, that was the end."""
        given, batches = self._count.given
        if given == batches:
            return StopIteration()
        return LoaderClosedError(
            f"the loader was closed after {given:,} {'batches' if batches is None else f'of {batches:,} batches'} of "
            "this epoch. To end an epoch early leave the loop with break, and call close() behind it; "
            "iter(loader) begins another"
        )

    def close(self) -> None:
        """End the epoch here; its threads are gone when this returns. Who asks for a batch then is told so."""
        self._closed = True
        self._finalizer()
        if os.getpid() == self._pid and self._turns.acquire(timeout=STOP_S):  # one that waited was woken
            try:
                self._cut_short()  # it may have begun to read ahead meanwhile
                self._stream.close()
            finally:
                self._turns.release()


def _stop(stop: Callable[[], object], cut_short: Callable[[], object]) -> None:
    stop()
    cut_short()
