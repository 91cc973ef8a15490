"""Routes: how a loader's batches reach the user, and the functions applied to them on the way."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from h5stream.device.cuda import CudaBackend, PinnedSlots, backend_for, is_cuda_available, pinned_copy
from h5stream.device.feed import DeviceFeed, pinned_ring
from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.run import Run
from h5stream.engine.slots import SlotFormat, SlotRing
from h5stream.loader.settings import Settings
from h5stream.samples.columns import SampleColumn
from h5stream.storage.layout.layout import FieldLayout, SampleLayout
from h5stream.structure import samples_of, with_tensors
from h5stream.workers.samples import SampleFunctions, not_none

Function = Callable[[Any], Any]

DEFAULT_PREFETCH = 2
"""Batches ahead on a device: one is copied while one is consumed; more only helps if the duration of steps varies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way of a loader's batches to the user; made once."""

    slot_format: SlotFormat  # the layout of a slot
    new_slots: Callable[[], SlotRing]  # makes the slots that threads of this process read into
    assembler: Assembler | None = None  # makes a batch of tensors over a slot, which is released with the last of them
    make: Callable[[ReadyBatch], Any] = operator.attrgetter("value")  # makes a batch if there is no `assembler`
    finish: Callable[[Any, int], Any] | None = None  # changes a batch of a number of rows, if there is anything to do
    functions: SampleFunctions | None = None  # what workers apply to filled slots, if there are any
    feed: Callable[[Run], DeviceFeed] | None = None  # copies an epoch's batches to a device, before `make`


def route_for(
    settings: Settings,
    layout: SampleLayout,
    slot_format: SlotFormat,
    most_slots: int,
    backend: CudaBackend | None,
) -> Route:
    """Make the route for a loader's arguments; `Iterations` makes that of plain batches on the host."""
    functions = settings.functions
    if functions.are_seeded:
        return _route_of_functions(settings, layout, slot_format, most_slots, backend)
    assembler = Assembler(layout, gives_lists=not settings.takes_apart)
    if backend is not None:
        return _device_route(settings, assembler, slot_format, most_slots, backend)
    # Tensors that are not pinned yet are pinned last, as DataLoader does after its `collate_fn`: results of this, of
    # casts and transforms, and slots of another process. Tensors over pinned slots are not copied.
    pinned = backend_for("cuda") if settings.reading.pin_memory and is_cuda_available() else None
    if pinned is not None:
        slots: Callable[[], SlotRing] = functools.partial(PinnedSlots, pinned, slot_format.nbytes)
    else:
        slots = functools.partial(SlotRing, slot_format.nbytes, most_slots=most_slots)
    copy = None if pinned is None else pinned_copy
    finish = _finishing(settings, functions.batch_transform, copy)
    return Route(slot_format=slot_format, new_slots=slots, assembler=assembler, finish=finish)


def _device_route(
    settings: Settings, assembler: Assembler, slot_format: SlotFormat, most_slots: int, backend: CudaBackend
) -> Route:
    functions = settings.functions
    is_first = not settings.takes_apart and functions.collate_fn is None  # then beside the consumer's work

    def feed(run: Run) -> DeviceFeed:
        return DeviceFeed(
            backend,
            run,
            assembler,
            slot_format,
            depth=DEFAULT_PREFETCH if functions.prefetch_factor is None else functions.prefetch_factor,
            transform=functions.batch_transform if is_first else None,
            tally=run.counters.tally(),
        )

    return Route(
        slot_format=slot_format,
        new_slots=functools.partial(pinned_ring, backend, slot_format.nbytes, most_slots),
        finish=_finishing(settings, None if is_first else functions.batch_transform),
        feed=feed,
    )


def _route_of_functions(
    settings: Settings, layout: SampleLayout, slot_format: SlotFormat, most_slots: int, backend: CudaBackend | None
) -> Route:
    """Make the route of batches that are results of the user's functions, here or in workers.

    They are not in slots, which could be copied in one piece: on its way to a device each tensor is pinned, and its
    copy is queued on the consumer's stream without waiting.
    """
    functions = settings.functions
    is_transformed_there = functions.transform_workers is not None
    applied = SampleFunctions(
        # A sample of several fields is a tuple, and a collated batch of them a list.
        assembler=Assembler(layout, gives_lists=functions.sample_transform is None and not settings.takes_apart),
        slot_format=slot_format,
        sample_transform=functions.sample_transform,
        collate_fn=functions.collate_fn,
        transform=functions.batch_transform if is_transformed_there else None,
        gives_samples=settings.sampling.gives_samples,
        repeats=settings.may_repeat,
    )
    is_pinned = is_cuda_available() and (settings.reading.pin_memory or backend is not None)
    pinned = pinned_copy if is_pinned else None

    transform = None if is_transformed_there else functions.batch_transform
    # Pinned last, or on the way to the device.
    behind: tuple[Function | None, ...] = (transform, pinned)
    if backend is not None:
        behind = (pinned, functools.partial(_moved, device=backend.device), transform)
    route = Route(
        slot_format=slot_format,
        new_slots=functools.partial(SlotRing, slot_format.nbytes, most_slots=most_slots),
        finish=_finishing(None, *behind),
        functions=applied,
    )
    return route if functions.workers else replace(route, make=applied.apply_here)


def with_seeds(layout: SampleLayout) -> SampleLayout:
    """Return a layout with an additional field of a seed per sample, for the user's functions."""
    seeds = FieldLayout(name="seeds", kind="array", dtype=np.dtype(np.int64), row_shape=(2,))
    columns = (*layout.columns, (len(layout.fields), SampleColumn(has_seeds=True)))
    return replace(layout, fields=(*layout.fields, seeds), columns=columns)


def _moved(value: object, device: torch.device) -> object:
    """Copy a structure of tensors to a device, without waiting."""
    return with_tensors(value, lambda tensor: tensor.to(device, non_blocking=True))


def _finishing(taking_apart: Settings | None, *functions: Function | None) -> Callable[[Any, int], Any] | None:
    """Return a function that takes a batch apart if asked to, and applies functions to it; None if there are none."""
    takes_apart = taking_apart is not None and taking_apart.takes_apart
    gives_samples = taking_apart is not None and taking_apart.sampling.gives_samples
    collate = None if taking_apart is None else taking_apart.functions.collate_fn
    applied = [one for one in (collate, *functions) if one is not None]
    if not takes_apart and not applied:
        return None

    def finish(value: Any, rows: int) -> Any:
        if takes_apart:
            value = samples_of(value, rows)
            value = value[0] if gives_samples else value
        for function in applied:
            value = function(value)
        return not_none(value) if applied else value

    return finish
