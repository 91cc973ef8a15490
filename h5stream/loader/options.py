"""The types of a loader's batches, and of its arguments by name; for type checkers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import torch

from h5stream.engine.footprint import WindowRows
from h5stream.order.users import Balanced, OrderFactory, Sized, Weighted
from h5stream.storage.open.extents import SampleKind

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Batch = TypeVar("Batch", default=Any, covariant=True)
else:  # defaults are new in Python 3.13
    from typing import TypeVar

    Batch = TypeVar("Batch", covariant=True)


class ReadingOptions(TypedDict, total=False):
    """The arguments by name alone that say how samples are read, kept and delivered."""

    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    device: torch.device | str | None
    memory_budget: int | str | None
    storage_options: object
    stage_to: str | os.PathLike[str] | None
    on_error: Literal["raise", "skip"]
    keep: Literal["auto", "never"]


class PlainOptions(ReadingOptions, total=False):
    """The arguments that take a name only and do not change the type of a batch: how samples are read, and which."""

    samples: SampleKind | None
    seed: int | None
    window: WindowRows
    rank: int | None
    world_size: int | None
    draw: Weighted | Balanced | Sized | int | OrderFactory | None


class PlainArguments(PlainOptions, total=False):
    """All arguments that do not change the type of a batch, by name: `PlainOptions`, and those of DataLoader."""

    shuffle: bool | None
    sampler: Iterable[object] | None
    batch_sampler: Iterable[object] | None
    num_workers: int | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: object
    generator: torch.Generator | None


class FunctionOptions(PlainArguments, total=False):
    """The arguments of a loader whose last function decides on the type of a batch."""

    sample_transform: Callable[[Any], object] | None
    sample_workers: int | None
    transform_workers: int | None
