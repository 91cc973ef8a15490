"""How filled slots reach the user: as they are, pinned, or on a device; and the iterator over them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from h5stream.dataset import samples_of
from h5stream.device.backend import DeviceBackend, backend_for
from h5stream.device.cuda import is_cuda_available
from h5stream.device.feed import DeviceFeed
from h5stream.device.pinned_slots import PinnedRing, PinnedSlots
from h5stream.device.window import WindowFeed, check_fields
from h5stream.engine.assemble import Assembler
from h5stream.engine.counters import clock
from h5stream.engine.executor import Run
from h5stream.engine.slots import SlotFormat, SlotRing, Slots
from h5stream.errors import LoaderClosedError, OptionError
from h5stream.order.transfer import TransferOrder

Function = Callable[[Any], Any]

DEFAULT_PREFETCH = 2
"""Batches ahead on a device: one is copied while one is consumed; more only helps where steps vary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """What is done to a batch once its tensors are there.

    Attributes
    ----------
    takes_apart : bool
        Make a list of samples of it, for `collate_fn` or because samples were asked for.
    gives_samples : bool
        Give the one sample of a batch of one.
    collate_fn, transform : callable or None
        The user's functions.
    """

    takes_apart: bool
    gives_samples: bool
    collate_fn: Function | None
    transform: Function | None

    def __call__(self, value: Any, rows: int) -> Any:
        """Finish a batch."""
        if self.takes_apart:
            value = samples_of(value, rows)
            value = value[0] if self.gives_samples else value
        if self.collate_fn is not None:
            value = self.collate_fn(value)
        return value if self.transform is None else self.transform(value)


class Stream(Protocol):
    """Gives finished batches of one epoch, in order. Used by one thread."""

    def next_batch(self, timeout_s: float) -> Any:
        """Wait for the next; `END` after the last."""

    def close(self) -> None:
        """Let go of what is under way; the run is stopped by whoever started it."""


END = object()


class Delivery:
    """Where a loader's batches go: one kind a loader, made once.

    Parameters
    ----------
    assembler : Assembler
        Makes tensors of slots.
    batch_format : SlotFormat
        How a batch is packed.
    finish : Finish
        What is done to each batch.
    """

    def __init__(self, assembler: Assembler, batch_format: SlotFormat, finish: Finish, *, pinned: bool = False) -> None:
        self._assembler, self.slot_format, self._finish = assembler, batch_format, finish
        self._pinned = pinned
        self.slots: Slots = self._new_slots()

    def _new_slots(self) -> Slots:
        if self._pinned:
            return PinnedSlots(backend_for("cuda"), self.slot_format.nbytes)
        return SlotRing(self.slot_format.nbytes)

    def renew(self) -> None:
        """Start with fresh slots, in a forked child."""
        self.slots = self._new_slots()

    def engine_order(self, order: Any, first_batch: int) -> tuple[Any, int]:
        """Give the order in which the engine fills slots, and the slot to begin with."""
        return order, first_batch

    def stream(self, run: Run, order: Any, first_batch: int) -> Stream:
        """Give the stream of an epoch from a batch on; `order` is the engine's."""
        return _HostStream(run, self.slots, self._assembler, self.slot_format, self._finish)


@dataclass(slots=True)
class _HostStream:
    """Leases slots to the user."""

    _run: Run
    _slots: Slots
    _assembler: Assembler
    _format: SlotFormat
    _finish: Finish

    def next_batch(self, timeout_s: float) -> Any:
        batch = self._run.next_batch(timeout_s)
        if batch is None:
            return END
        began = clock()
        packed = self._slots.lease(batch.slot)
        value = self._finish(self._assembler.batch(packed, self._format, batch.rows, batch.objects), batch.rows)
        self._run.counters.finished(began)
        return value

    def close(self) -> None:
        pass


class DeviceDelivery(Delivery):
    """Batches on a device, `depth` of them ahead.

    Parameters
    ----------
    backend : DeviceBackend
        The device.
    depth : int
        Batches ahead.
    reuse_buffers : bool
        Write into the same device buffers in turn.
    """

    def __init__(
        self,
        assembler: Assembler,
        batch_format: SlotFormat,
        finish: Finish,
        backend: DeviceBackend[Any, Any],
        *,
        depth: int,
        reuse_buffers: bool,
    ) -> None:
        self._backend, self._depth, self._reuse_buffers = backend, depth, reuse_buffers
        super().__init__(assembler, batch_format, finish)

    def _new_slots(self) -> Slots:
        return PinnedRing(self._backend, self.slot_format.nbytes)

    @property
    def _on_side_stream(self) -> Function | None:
        """The transform, unless samples must be collated first, which is the consumer's own work."""
        return None if self._finish.takes_apart or self._finish.collate_fn else self._finish.transform

    def stream(self, run: Run, order: Any, first_batch: int) -> Stream:
        """Give the stream of an epoch."""
        feed = DeviceFeed(
            self._backend,
            run,
            self.slots,
            self._assembler,
            self.slot_format,
            depth=self._depth,
            reuse_buffers=self._reuse_buffers,
            transform=self._on_side_stream,
        )
        return _DeviceStream(feed, run, self._finish, done_already=self._on_side_stream is not None)


class WindowDelivery(DeviceDelivery):
    """Batches that a device gathers from a window in its own memory."""

    def __init__(
        self,
        assembler: Assembler,
        batch_format: SlotFormat,
        finish: Finish,
        backend: DeviceBackend[Any, Any],
        *,
        together: int,
    ) -> None:
        self._together = together
        super().__init__(assembler, batch_format, finish, backend, depth=1, reuse_buffers=False)

    def engine_order(self, order: Any, first_batch: int) -> tuple[Any, int]:
        """Give the order in which slots of rows in file order are filled: from the window of the first batch on."""
        transfer = TransferOrder(order, slot_rows=self.slot_format.rows, together=self._together)
        return transfer, transfer.first_slot(first_batch)

    def stream(self, run: Run, order: Any, first_batch: int) -> Stream:
        """Give the stream of an epoch."""
        feed = WindowFeed(
            self._backend,
            run,
            self.slots,
            self._assembler,
            order,
            self.slot_format,
            self.slot_format,
            first_batch=first_batch,
            transform=self._on_side_stream,
        )
        return _DeviceStream(feed, run, self._finish, done_already=self._on_side_stream is not None)


class _DeviceStream:
    """Batches of a feed, finished."""

    def __init__(self, feed: DeviceFeed | WindowFeed, run: Run, finish: Finish, *, done_already: bool) -> None:
        self._feed, self._run, self._finish, self._done_already = feed, run, finish, done_already

    def next_batch(self, timeout_s: float) -> Any:
        given = self._feed.next_batch(timeout_s)
        if given is None:
            return END
        value, rows = given
        began = clock()
        value = value if self._done_already else self._finish(value, rows)
        self._run.counters.finished(began)
        return value

    def close(self) -> None:
        self._feed.close()


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

    def __init__(self, loader: Owner, run: Run, stream: Stream, epoch: int, count: Count) -> None:
        self._loader, self._run, self._stream, self._epoch = loader, run, stream, epoch
        self._count = count
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


def device_of(device: Any) -> torch.device | None:
    """Give the device that batches go to; None for the host, where there is nothing to feed."""
    if device is None or str(device) == "cpu":
        return None
    return backend_for(device).device


def delivery_for(
    assembler: Assembler,
    batch_format: SlotFormat,
    finish: Finish,
    *,
    device: torch.device | None,
    window_backend: DeviceBackend[Any, Any] | None,
    pin_memory: bool,
    depth: int | None,
    reuse_buffers: bool,
    together: int,
) -> Delivery:
    """Make the delivery that a loader's arguments ask for."""
    if window_backend is not None:
        return WindowDelivery(assembler, batch_format, finish, window_backend, together=together)
    if device is not None:
        return DeviceDelivery(
            assembler,
            batch_format,
            finish,
            backend_for(device),
            depth=DEFAULT_PREFETCH if depth is None else depth,
            reuse_buffers=reuse_buffers,
        )
    return Delivery(assembler, batch_format, finish, pinned=pin_memory and is_cuda_available())


def window_backend_for(
    window_device: Any, device: Any, assembler: Assembler, *, listed: bool
) -> DeviceBackend[Any, Any] | None:
    """Give the backend of a device window; None where none is asked for.

    Raises
    ------
    OptionError
        If a sampler decides the order, batches are to go elsewhere, or a field is no tensor.
    """
    if window_device is None:
        return None
    if listed:
        raise OptionError("window_device= shuffles on the device, so sampler= and batch_sampler= must be left out")
    backend = backend_for(window_device)
    if device is not None and torch.device(device) not in (backend.device, torch.device(backend.device.type)):
        raise OptionError(
            f"window_device={str(window_device)!r} gives batches on that device, but device={str(device)!r} was asked "
            "for; name one"
        )
    check_fields(assembler)
    return backend
