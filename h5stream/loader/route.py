"""Routes: how a loader's batches reach the user, and the functions applied to them on the way."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from h5stream.device.cuda import CudaBackend, PinnedSlots, backend_for, is_cuda_available, pinned_copy
from h5stream.device.feed import DeviceFeed, pinned_ring
from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.footprint import Footprint
from h5stream.engine.run import Run
from h5stream.engine.slots import SlotFormat, SlotRing
from h5stream.loader.settings import Settings
from h5stream.storage.layout.layout import SampleLayout
from h5stream.structure import samples_of, with_tensors
from h5stream.workers.samples import SampleFunctions

Function = Callable[[Any], Any]

_VALUE = operator.attrgetter("value")

DEFAULT_PREFETCH = 2
"""Batches ahead on a device: one is copied while one is consumed; more only helps if the duration of steps varies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way of a loader's batches to the user; made once."""

    slot_format: SlotFormat  # the layout of a slot
    new_slots: Callable[[], SlotRing]  # makes the slots that threads of this process read into
    finish: Function  # makes the user's batch from a `ReadyBatch`
    functions: SampleFunctions | None = None  # what workers apply to filled slots, if there are any
    feed: Callable[[Run], DeviceFeed] | None = None  # copies an epoch's batches to a device, before `finish`


def route_for(
    settings: Settings, layout: SampleLayout, footprint: Footprint, batch_rows: int, backend: CudaBackend | None
) -> Route:
    """Make the route for a loader's arguments: batches on the host, or on a device."""
    slot_format = SlotFormat.for_rows(layout.fields, batch_rows)
    if settings.applies_functions:
        return _route_of_functions(settings, layout, slot_format, footprint.max_open_batches, backend)
    assembler = Assembler(layout, gives_lists=not settings.takes_apart)
    if backend is not None:
        return _device_route(settings, assembler, slot_format, footprint.max_open_batches, backend)
    # Tensors that are not pinned yet are pinned last, as DataLoader does after its `collate_fn`: results of this, of
    # casts and transforms, and slots of another process. Tensors over pinned slots are not copied.
    pinned = backend_for("cuda") if settings.pin_memory and is_cuda_available() else None

    def leased(batch: ReadyBatch) -> Any:
        """Make tensors over a slot, which is released with the last of them."""
        return assembler.batch(batch.slot.lease(), slot_format, batch.rows, batch.objects, within=batch.slot.tensor)

    if pinned is not None:
        slots: Callable[[], SlotRing] = functools.partial(PinnedSlots, pinned, slot_format.nbytes)
    else:
        slots = functools.partial(SlotRing, slot_format.nbytes, most_slots=footprint.max_open_batches)
    finish = _finishing(leased, settings, settings.batch_transform, None if pinned is None else pinned_copy)
    return Route(slot_format=slot_format, new_slots=slots, finish=finish)


def _device_route(
    settings: Settings, assembler: Assembler, slot_format: SlotFormat, most_slots: int, backend: CudaBackend
) -> Route:
    is_first = not settings.takes_apart and settings.collate_fn is None  # then beside the consumer's work

    def feed(run: Run) -> DeviceFeed:
        return DeviceFeed(
            backend,
            run,
            assembler,
            slot_format,
            depth=DEFAULT_PREFETCH if settings.prefetch_factor is None else settings.prefetch_factor,
            transform=settings.batch_transform if is_first else None,
            tally=run.counters.tally(),
        )

    return Route(
        slot_format=slot_format,
        new_slots=functools.partial(pinned_ring, backend, slot_format.nbytes, most_slots),
        finish=_finishing(_VALUE, settings, None if is_first else settings.batch_transform),
        feed=feed,
    )


def _route_of_functions(
    settings: Settings, layout: SampleLayout, slot_format: SlotFormat, most_slots: int, backend: CudaBackend | None
) -> Route:
    """Make the route of batches that are results of the user's functions, here or in workers.

    They are not in slots, which could be copied in one piece: on its way to a device each tensor is pinned, and its
    copy is queued on the consumer's stream without waiting.
    """
    is_transformed_there = settings.transform_workers is not None
    functions = SampleFunctions(
        # A sample of several fields is a tuple, and a collated batch of them a list.
        assembler=Assembler(layout, gives_lists=settings.sample_transform is None and not settings.takes_apart),
        slot_format=slot_format,
        sample_transform=settings.sample_transform,
        collate_fn=settings.collate_fn,
        transform=settings.batch_transform if is_transformed_there else None,
        gives_samples=settings.gives_samples,
        repeats=settings.may_repeat,
    )
    pinned = pinned_copy if is_cuda_available() and (settings.pin_memory or backend is not None) else None

    transform = None if is_transformed_there else settings.batch_transform
    # Pinned last, or on the way to the device.
    behind: tuple[Function | None, ...] = (transform, pinned)
    if backend is not None:
        behind = (pinned, functools.partial(_moved, device=backend.device), transform)
    return Route(
        slot_format=slot_format,
        new_slots=functools.partial(SlotRing, slot_format.nbytes, most_slots=most_slots),
        finish=_finishing(_VALUE if settings.workers else functions.apply_here, None, *behind),
        functions=functions,
    )


def _moved(value: Any, device: torch.device) -> Any:
    """Copy a structure of tensors to a device, without waiting."""
    return with_tensors(value, lambda tensor: tensor.to(device, non_blocking=True))


def _finishing(make: Function, taking_apart: Settings | None, *functions: Function | None) -> Function:
    """Return a function that makes the user's batch: tensors, or samples, with the user's functions applied."""
    takes_apart = taking_apart is not None and taking_apart.takes_apart
    gives_samples = taking_apart is not None and taking_apart.gives_samples
    collate = None if taking_apart is None else taking_apart.collate_fn
    applied = [one for one in (collate, *functions) if one is not None]

    def finish(batch: ReadyBatch) -> Any:
        value = make(batch)
        if takes_apart:
            value = samples_of(value, batch.rows)
            value = value[0] if gives_samples else value
        for function in applied:
            value = function(value)
        return value

    return finish
