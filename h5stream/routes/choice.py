"""Which way a loader's arguments ask for, and how much may be read together on it."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch

from h5stream.dataset import H5Dataset
from h5stream.device.backend import DeviceBackend, backend_for
from h5stream.device.cuda import is_cuda_available
from h5stream.device.window import KeptFeed, WindowFeed, check_fields, check_keeping
from h5stream.engine.assemble import Assembler
from h5stream.engine.budget import LimitedField, Sizing
from h5stream.engine.footprint import Footprint
from h5stream.engine.slots import SlotFormat
from h5stream.errors import OptionError
from h5stream.order.users import GivenOrder
from h5stream.order.weights import PlannedDraws
from h5stream.routes.device import DeviceRoute, DeviceWindowRoute
from h5stream.routes.host import HostRoute, LeasedTensors, MovedRoute, PinnedRoute
from h5stream.routes.route import Handover, Route
from h5stream.settings import DEFAULT_BATCH_ROWS, Settings
from h5stream.storage.layout import SampleLayout
from h5stream.weighting import SizedBatches
from h5stream.workers.samples import SampleFunctions

DEFAULT_PREFETCH = 2
"""Batches ahead on a device: one is copied while one is consumed; more only helps where steps vary."""


def backend_of(settings: Settings, layout: SampleLayout, samples: int) -> DeviceBackend[Any, Any] | None:
    """Return the backend of the device that batches go to; None for the host, where there is nothing to feed."""
    backend = _backend_of(settings, layout)
    if settings.keep == "device":
        if backend is None:
            raise OptionError(
                f"keep='device' keeps samples on the device that batches go to, and device={settings.device!r} names "
                "none; pass device='cuda', or keep='auto', which keeps them in this machine's memory"
            )
        check_keeping(layout, samples, backend)
    return backend


def _backend_of(settings: Settings, layout: SampleLayout) -> DeviceBackend[Any, Any] | None:
    asked, device = settings.window_device, settings.device
    if asked is None:
        return None if device is None or str(device) == "cpu" else backend_for(device)
    backend = backend_for(asked)
    if device is not None and torch.device(device) not in (backend.device, torch.device(backend.device.type)):
        raise OptionError(
            f"window_device={str(asked)!r} gives batches on that device, but device={str(device)!r} was asked for; "
            "name one"
        )
    check_fields(layout, "window_device=")
    return backend


def sizing_for(
    settings: Settings,
    dataset: H5Dataset,
    given: GivenOrder | None,
    sized: SizedBatches | None,
    backend: DeviceBackend[Any, Any] | None,
    draws: PlannedDraws | None = None,
) -> tuple[Sizing, GivenOrder | None]:
    """Return what the size of windows depends on, and the sampler's batches with the room that there is for each."""
    total = len(dataset) if draws is None else draws.count
    rows = given.said_rows if given is not None else min(settings.batch_rows or 1, total)
    budget, most_budget = settings.budget()
    limited = None
    if sized is not None and rows is not None:
        rows, most = sized.samples(rows, is_drawn=draws is not None)
        limit = sized.limit
        limited = LimitedField(number=sized.field, rows=limit.rows, samples=most, bucketed=limit.bucketed)
    sizing = Sizing(
        layout=settings.seeded(dataset.layout),
        selected=dataset.rows,
        draws=draws,
        batch_rows=rows or DEFAULT_BATCH_ROWS,
        memory_budget=budget,
        most_budget=most_budget,
        threads=settings.threads,
        threads_asked=settings.num_workers is not None,
        # Rows that lie scattered want a large window.
        shuffle=settings.shuffle or settings.order is not None or not dataset.is_in_file_order,
        device_nbytes=None if settings.window_device is None or backend is None else backend.total_nbytes(),
        whole_windows=settings.order is not None,
        limited=limited,
        keep=settings.keep == "auto",
        stays_on_device=settings.keep == "device",
        plain=settings.dataset.layout,
    )
    if given is None or rows is not None:
        return sizing, given
    sizing = sizing.with_room(settings.window)
    return sizing, replace(given, room=sizing.batch_rows)


def route_for(
    settings: Settings,
    layout: SampleLayout,
    footprint: Footprint,
    batch_rows: int,
    backend: DeviceBackend[Any, Any] | None,
) -> Route:
    """Make the route that a loader's arguments ask for."""
    handover = Handover(
        takes_apart=settings.takes_apart,
        gives_samples=settings.gives_samples,
        collate_fn=settings.collate_fn,
        transform=settings.batch_transform,
    )
    assembler = Assembler(layout, gives_lists=not settings.takes_apart)
    slot_format = SlotFormat.for_rows(layout.fields, max(footprint.slot_rows, batch_rows))
    elsewhere, rest = handover.split()
    ways: dict[str, Any] = {"slot_format": slot_format, "most_slots": footprint.max_open_batches}
    if settings.applies_functions:
        return _route_of_functions(settings, Assembler(layout), backend, ways)
    if backend is not None:
        ways |= {"backend": backend, "assembler": assembler, "on_side_stream": elsewhere, "handover": rest}
        if settings.gathers_on_device:
            feed = KeptFeed if settings.keep == "device" else WindowFeed
            return DeviceWindowRoute(batch_format=SlotFormat.for_rows(layout.fields, batch_rows), feed=feed, **ways)
        depth = DEFAULT_PREFETCH if settings.prefetch_factor is None else settings.prefetch_factor
        return DeviceRoute(depth=depth, reuse_buffers=settings.reuse_device_buffers, **ways)
    is_pinned = settings.pin_memory and is_cuda_available()
    to_tensors = LeasedTensors(assembler=assembler, slot_format=slot_format, apart=not is_pinned)
    return (PinnedRoute if is_pinned else HostRoute)(to_tensors=to_tensors, handover=handover, **ways)


def _route_of_functions(
    settings: Settings, assembler: Assembler, backend: DeviceBackend[Any, Any] | None, ways: dict[str, Any]
) -> Route:
    """Make the route of batches that functions of the user make, here or in workers."""
    is_transformed_there = settings.transform_workers is not None
    # A sample of several fields is a tuple, of which a collated batch is a list.
    if settings.sample_transform is None and not settings.takes_apart:
        assembler = Assembler(assembler.layout, gives_lists=True)
    functions = SampleFunctions(
        assembler=assembler,
        slot_format=ways["slot_format"],
        sample_transform=settings.sample_transform,
        collate_fn=settings.collate_fn,
        transform=settings.batch_transform if is_transformed_there else None,
        gives_samples=settings.gives_samples,
        repeats=settings.may_repeat,
    )
    ways |= {
        "to_tensors": operator.attrgetter("value") if settings.workers else functions.here,
        "handover": Handover(transform=None if is_transformed_there else settings.batch_transform),
        "functions": functions,
    }
    if backend is not None:
        return MovedRoute(device=backend.device, **ways)
    return (PinnedRoute if settings.pin_memory and is_cuda_available() else HostRoute)(**ways)
