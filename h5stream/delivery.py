"""How filled slots reach the user: as they are, pinned, or on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from h5stream.device.backend import DeviceBackend, backend_for
from h5stream.device.cuda import is_cuda_available
from h5stream.device.feed import DeviceFeed
from h5stream.device.pinned_slots import PinnedRing, PinnedSlots
from h5stream.device.pinning import pinned_copy
from h5stream.device.window import WindowFeed, check_fields
from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.counters import clock
from h5stream.engine.footprint import WindowSize
from h5stream.engine.running import Running
from h5stream.engine.slots import Memory, SlotFormat, SlotRing, Slots
from h5stream.errors import OptionError
from h5stream.isolation.engine import MadeBatch
from h5stream.isolation.memory import SharedSlots
from h5stream.order.transfer import TransferOrder
from h5stream.structure import samples_of

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
    most_slots : int, optional
        Slots that are filled or waiting at a time, at most.
    pinned : bool
        Give batches in pinned memory.
    isolated : bool
        Whether slots come from another process, which then applies the transform.

    Attributes
    ----------
    transform_there : callable or None
        What the process that fills the slots is to do with each batch.
    """

    def __init__(
        self,
        assembler: Assembler,
        batch_format: SlotFormat,
        finish: Finish,
        *,
        most_slots: int | None = None,
        pinned: bool = False,
        isolated: bool = False,
    ) -> None:
        self._assembler, self.slot_format, self._most_slots = assembler, batch_format, most_slots
        self._pinned, self._isolated = pinned, isolated
        self.transform_there = finish.transform if isolated and self._may_go(finish) else None
        self._finish = finish if self.transform_there is None else replace(finish, transform=None)
        self.slots: Slots = SharedSlots() if isolated else self._new_slots()

    def _may_go(self, finish: Finish) -> bool:
        """Tell whether the transform is the first thing that is done to a batch."""
        return not finish.takes_apart and finish.collate_fn is None

    def _new_slots(self) -> Slots:
        if self._pinned:
            return PinnedSlots(backend_for("cuda"), self.slot_format.nbytes)
        return SlotRing(self.slot_format.nbytes, most_slots=self._most_slots)

    def pin(self) -> Callable[[Memory], object] | None:
        """Give what pins memory that another process fills; None where nothing copies from it by itself."""
        return None

    def renew(self) -> None:
        """Start with fresh slots, in a forked child."""
        self.slots = SharedSlots() if self._isolated else self._new_slots()

    def engine_order(self, order: Any, first_batch: int) -> tuple[Any, int]:
        """Give the order in which the engine fills slots, and the slot to begin with."""
        return order, first_batch

    def stream(self, run: Running, order: Any, first_batch: int) -> Stream:
        """Give the stream of an epoch from a batch on; `order` is the engine's."""
        finish = _PinnedLast(self._finish) if self._pinned else self._finish
        return _HostStream(run, self.slots, self._assembler, self.slot_format, finish, not self._pinned)


@dataclass(frozen=True, slots=True)
class _PinnedLast:
    """Pins what is not: what `collate_fn`, a cast or a transform made, and slots of another process.

    As DataLoader does, behind its `collate_fn`. Of tensors over pinned slots nothing is copied. torch knows nothing
    of copies from slots of another process, so its own pinned memory is what is given there.
    """

    _finish: Finish

    def __call__(self, value: Any, rows: int) -> Any:
        return pinned_copy(self._finish(value, rows))


@dataclass(slots=True)
class _HostStream:
    """Leases slots to the user."""

    _run: Running
    _slots: Slots
    _assembler: Assembler
    _format: SlotFormat
    _finish: Callable[[Any, int], Any]
    _apart: bool

    def next_batch(self, timeout_s: float) -> Any:
        batch = self._run.next_batch(timeout_s)
        if batch is None:
            return END
        began = clock()
        value = self._finish(self._value_of(batch), batch.rows)
        self._run.counters.finished(began)
        return value

    def _value_of(self, batch: ReadyBatch) -> Any:
        if isinstance(batch, MadeBatch):
            return batch.value
        leased = self._slots.lease(batch.slot)
        return self._assembler.batch(leased, self._format, batch.rows, batch.objects, apart=self._apart)

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
        most_slots: int | None = None,
        isolated: bool = False,
    ) -> None:
        self._backend, self._depth, self._reuse_buffers = backend, depth, reuse_buffers
        super().__init__(assembler, batch_format, finish, most_slots=most_slots, isolated=isolated)

    def _may_go(self, finish: Finish) -> bool:
        """Keep the transform: it gets batches on the device."""
        return False

    def pin(self) -> Callable[[Memory], object] | None:
        """Give the backend's way."""
        return self._backend.pin_in_place

    def _new_slots(self) -> Slots:
        return PinnedRing(self._backend, self.slot_format.nbytes, most_slots=self._most_slots)

    @property
    def _on_side_stream(self) -> Function | None:
        """The transform, unless samples must be collated first, which is the consumer's own work."""
        return None if self._finish.takes_apart or self._finish.collate_fn else self._finish.transform

    def stream(self, run: Running, order: Any, first_batch: int) -> Stream:
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
            tally=run.counters.tally(),
        )
        return _DeviceStream(feed, run, self._finish, done_already=self._on_side_stream is not None)


class WindowDelivery(DeviceDelivery):
    """Batches that a device gathers from a window in its own memory.

    Parameters
    ----------
    backend : DeviceBackend
        The device.
    size : WindowSize
        Rows of a slot, and how many slots there may be.
    """

    def __init__(
        self,
        assembler: Assembler,
        batch_format: SlotFormat,
        finish: Finish,
        backend: DeviceBackend[Any, Any],
        *,
        size: WindowSize,
        isolated: bool = False,
    ) -> None:
        self._together = max(1, min(4, size.max_open_batches // 3))
        self._batch_format = batch_format
        slot_format = SlotFormat.for_rows(assembler.layout.fields, size.slot_rows)
        super().__init__(
            assembler,
            slot_format,
            finish,
            backend,
            depth=1,
            reuse_buffers=False,
            most_slots=size.max_open_batches,
            isolated=isolated,
        )

    def engine_order(self, order: Any, first_batch: int) -> tuple[Any, int]:
        """Give the order in which slots of rows in file order are filled: from the window of the first batch on."""
        transfer = TransferOrder(order, slot_rows=self.slot_format.rows, together=self._together)
        return transfer, transfer.first_slot(first_batch)

    def stream(self, run: Running, order: Any, first_batch: int) -> Stream:
        """Give the stream of an epoch."""
        feed = WindowFeed(
            self._backend,
            run,
            self.slots,
            self._assembler,
            order,
            self.slot_format,
            self._batch_format,
            first_batch=first_batch,
            transform=self._on_side_stream,
            tally=run.counters.tally(),
        )
        return _DeviceStream(feed, run, self._finish, done_already=self._on_side_stream is not None)


class _DeviceStream:
    """Batches of a feed, finished."""

    def __init__(self, feed: DeviceFeed | WindowFeed, run: Running, finish: Finish, *, done_already: bool) -> None:
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
    size: WindowSize,
    isolated: bool = False,
) -> Delivery:
    """Make the delivery that a loader's arguments ask for."""
    if window_backend is not None:
        return WindowDelivery(assembler, batch_format, finish, window_backend, size=size, isolated=isolated)
    if device is not None:
        return DeviceDelivery(
            assembler,
            batch_format,
            finish,
            backend_for(device),
            depth=DEFAULT_PREFETCH if depth is None else depth,
            reuse_buffers=reuse_buffers,
            most_slots=size.max_open_batches,
            isolated=isolated,
        )
    return Delivery(
        assembler,
        batch_format,
        finish,
        most_slots=size.max_open_batches,
        pinned=pin_memory and is_cuda_available(),
        isolated=isolated,
    )


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
