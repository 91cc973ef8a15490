"""The iterator over one epoch of a loader."""

from __future__ import annotations

import weakref
from collections.abc import Container
from typing import Any, Protocol

from h5stream.delivery import END, Stream
from h5stream.engine.running import Running
from h5stream.errors import LoaderClosedError


class Owner(Protocol):
    """What an iterator needs of its loader."""

    timeout: float
    persistent_workers: bool

    def __len__(self) -> int:
        """Batches of an epoch."""

    def read_ahead(self, epoch: int, taken: int) -> None:
        """Start the epoch after `epoch`, if there is room beside `taken` batches."""


class Count(Protocol):
    """Counts what an iterator gives."""

    ended: bool

    def advance(self, left_out: Container[int]) -> None:
        """Count a batch, and those before it that were left out."""


class LoaderIterator:
    """One epoch of a loader; an iterator over its batches.

    # Guarantees: used by one thread at a time. Its threads end when it is exhausted, closed, dropped or fails.
    """

    def __init__(self, loader: Owner, run: Running, stream: Stream, epoch: int, count: Count) -> None:
        self._loader, self._run, self._stream, self._epoch = loader, run, stream, epoch
        self._count = count
        self._closed = False
        # Dropping the iterator (`break`, an exception) must end its threads; they refer to the run alone.
        self._finalizer = weakref.finalize(self, run.stop)

    def __iter__(self) -> LoaderIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def is_closed(self) -> bool:
        """Whether nothing more comes of it."""
        return self._closed

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        try:
            value = self._next()
            if self._loader.persistent_workers and (taken := self._run.left_to_hand_over()) is not None:
                self._loader.read_ahead(self._epoch, taken)
            if value is not END:
                self._count.advance(self._run.left_out)
                return value
            self._count.ended = True
            self.close()
            raise StopIteration
        except (StopIteration, LoaderClosedError):
            raise
        except BaseException:
            self.close()
            raise

    def _next(self) -> Any:
        try:
            return self._stream.next_batch(self._loader.timeout)
        except StopIteration as error:  # must not pass for the end of the epoch
            raise RuntimeError("transform or collate_fn raised StopIteration") from error

    def close(self) -> None:
        """End the epoch here; its threads are gone when this returns."""
        self._closed = True
        self._stream.close()
        self._finalizer()
