"""The arguments of `H5StreamLoader`, each checked once; errors name the argument, the rule, the value and a way out."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from h5stream.base.texts import checked_number
from h5stream.dataset.dataset import H5Dataset, opened
from h5stream.engine.footprint import WindowRows, check_budget, check_window
from h5stream.errors import OptionError
from h5stream.loader.arguments import check_batch_transform
from h5stream.order.users import Balanced, OrderFactory, Ranks, Sized, Weighted, checked_drawn
from h5stream.samples.packing import joint_type, sources_of
from h5stream.storage.layout.layout import FieldLayout, SampleLayout
from h5stream.storage.layout.request import Fields, Source
from h5stream.storage.open.extents import SampleKind
from h5stream.workers.processes import checked_method

MOST_READERS = 1024
"""Reader threads, at most: no machine feeds more."""

DEFAULT_BATCH_ROWS = 8192
"""Large enough to amortize the work per batch."""

DataSource = Source | Dataset[Any] | Sequence[Dataset[Any]]
"""The first argument of a loader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataArguments:
    """The arguments that say what is opened."""

    dataset: DataSource
    fields: Fields
    samples: SampleKind | None
    storage_options: object
    stage_to: str | os.PathLike[str] | None

    def opened(self) -> H5Dataset:
        """Return an open dataset, made from files or from datasets of torch."""
        dataset = opened(self.dataset, self.fields, samples=self.samples, storage_options=self.storage_options)
        if dataset is not None:
            return dataset
        return H5Dataset(
            self.dataset,
            self.fields,
            samples=self.samples,
            storage_options=self.storage_options,
        )

    def hints(self, layout: SampleLayout) -> list[str]:
        """Return hints: name the fields of files, if there are several, and cast those that no model's layers take."""
        hints = []
        sources = self.dataset if isinstance(self.dataset, list | tuple) else [self.dataset]
        named = self.fields is not None or any(isinstance(one, Dataset) for one in sources)
        if not named and len(layout.shape.keys) > 1:
            hints.append(
                "without fields= a batch is a dict by name; to unpack it, as in `for x, y in loader`: "
                f"fields={json.dumps(layout.shape.keys, ensure_ascii=False)}"
            )
        for one, name in cast_for_layers(layout):
            why = f"by its {sources_of(one.packings)}" if one.packings else "as it is stored"
            more = ", missing=..." * bool(one.packings)
            hints.append(
                f"field {one.name!r} is {name}, {why}, and layers of models take float32: "
                f"Field({one.name!r}{more}, dtype='float32') casts its batches"
            )
        return hints


def cast_for_layers(layout: SampleLayout) -> Iterator[tuple[FieldLayout, str]]:
    """Yield the fields, and their types, that no model's layers take as they are, and that are no labels."""
    for one in layout.fields:
        is_plain = one.kind == "array" and one.images is None and one.labels.categories is None
        is_plain &= one.cast is None and one.normalize is None and math.prod(one.row_shape) > 1
        name = joint_type(one.packings) if one.packings else one.dtype.name
        if is_plain and name in ("float64", "int16", "uint16"):
            yield one, name


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingArguments:
    """The arguments that decide which samples an epoch takes, in which order and in which batches."""

    batch_size: int | None
    shuffle: bool | None  # None until it is checked
    sampler: Iterable[object] | None
    batch_sampler: Iterable[object] | None
    drop_last: bool
    generator: torch.Generator | None
    seed: int | None
    window: WindowRows
    draw: Weighted | Balanced | Sized | int | OrderFactory | None
    rank: int | None
    world_size: int | None
    # The parts of `draw`: the user's function that makes orders; how batches are cut by the lengths of samples; and
    # which samples an epoch takes, None if each once or if the function decides.
    factory: OrderFactory | None = field(init=False)
    sized: Sized | None = field(init=False)
    drawn: Weighted | Balanced | int | None = field(init=False)
    ranks: Ranks | None = field(init=False)  # that the user set; None leaves them to `torch.distributed`

    def __post_init__(self) -> None:
        drawn = self.draw.draw if isinstance(self.draw, Sized) else self.draw
        object.__setattr__(self, "factory", self.draw if callable(self.draw) else None)
        object.__setattr__(self, "sized", self.draw if isinstance(self.draw, Sized) else None)
        object.__setattr__(self, "drawn", None if callable(drawn) else drawn)
        ranks = None
        if self.rank is not None and self.world_size is not None:
            ranks = Ranks(rank=self.rank, world_size=self.world_size)
        object.__setattr__(self, "ranks", ranks)

    @property
    def is_listed(self) -> bool:
        """Whether a sampler lists the rows of each batch."""
        return self.sampler is not None or self.batch_sampler is not None

    @property
    def batch_rows(self) -> int | None:
        """Rows of a batch; None if samples come singly, or a `batch_sampler` decides."""
        return None if self.batch_sampler is not None else self.batch_size

    @property
    def gives_samples(self) -> bool:
        """Whether each sample comes singly, without an axis of rows."""
        return self.batch_size is None and not hasattr(self.sampler, "batch_size") and self.batch_sampler is None


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionArguments:
    """The user's functions, and the processes that apply them."""

    collate_fn: Callable[[list[Any]], object] | None
    batch_transform: Callable[[Any], object] | None
    sample_transform: Callable[[Any], object] | None
    worker_init_fn: Callable[[int], None] | None
    sample_workers: int | None
    transform_workers: int | None
    prefetch_factor: int | None
    multiprocessing_context: object
    workers: int = field(init=False)  # processes that apply the functions
    are_seeded: bool = field(init=False)  # whether they get random numbers that depend on the sample, in any process

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", self.sample_workers or self.transform_workers or 0)
        has_workers = self.sample_workers is not None or self.transform_workers is not None
        object.__setattr__(self, "are_seeded", self.sample_transform is not None or has_workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingArguments:
    """The arguments that decide how samples are read, kept and delivered."""

    num_workers: int | None
    memory_budget: int | str | None  # an int, in bytes, once it is checked
    keep: Literal["auto", "never"]
    on_error: Literal["raise", "skip"]
    timeout: float
    device: torch.device | str | None
    pin_memory: bool
    pin_memory_device: str
    persistent_workers: bool
    in_order: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a loader: its open dataset, and its arguments, checked."""

    dataset: H5Dataset
    stage_to: str | os.PathLike[str] | None
    shuffle: bool
    seed: int
    sampling: SamplingArguments
    functions: FunctionArguments
    reading: ReadingArguments

    @property
    def is_drawn(self) -> bool:
        """Whether `draw=` or a `Mixture` decides how often each sample comes in an epoch."""
        return self.sampling.drawn is not None or self.dataset.shares is not None

    @property
    def may_repeat(self) -> bool:
        """Whether a sample may come more than once in an epoch."""
        sampling = self.sampling
        once = isinstance(sampling.drawn, Weighted | Balanced) and not sampling.drawn.replacement
        return sampling.is_listed or sampling.factory is not None or (self.is_drawn and not once)

    @property
    def takes_apart(self) -> bool:
        """Whether batches become lists of samples."""
        is_batched = self.sampling.batch_sampler is not None or self.sampling.batch_rows is not None
        return self.sampling.gives_samples or (is_batched and self.functions.collate_fn is not None)

    @property
    def gives_lists_of_fields(self) -> bool | None:
        """Whether a batch that is a list holds fields, and not a value for each row; None if the user made it."""
        functions = self.functions
        is_users = functions.sample_transform is not None or functions.batch_transform is not None
        return None if is_users or self.takes_apart else self.dataset.layout.shape.kind == "tuple"

    @property
    def draws_by_seed(self) -> bool:
        """Whether anything depends on the seed."""
        layout = self.dataset.layout
        drawn = any(one.spare is not None or one.draw is not None for one in layout.lookups)
        return self.shuffle or self.is_drawn or self.functions.are_seeded or layout.draws is not None or drawn

    def travelling(self, seed: int) -> dict[str, object]:
        """Return the arguments that make a loader of this seed in another process."""
        arguments: dict[str, object] = {"dataset": self.dataset, "stage_to": self.stage_to}
        for group in (self.sampling, self.functions, self.reading):
            arguments |= {one.name: getattr(group, one.name) for one in fields(group) if one.init}
        method = checked_method(self.functions.multiprocessing_context) if self.functions.workers else None
        return arguments | {"multiprocessing_context": method, "generator": None, "seed": seed}


class DataLoaderAttributes:
    """The arguments that a loader has as attributes, as a stock DataLoader has them."""

    def __init__(self, settings: Settings) -> None:
        sampling, functions, reading = settings.sampling, settings.functions, settings.reading
        self.batch_size = sampling.batch_rows
        self.shuffle = settings.shuffle
        self.drop_last = sampling.drop_last
        self.generator = sampling.generator
        self.collate_fn = functions.collate_fn
        self.batch_transform = functions.batch_transform
        self.worker_init_fn = functions.worker_init_fn
        self.multiprocessing_context = functions.multiprocessing_context
        self.prefetch_factor = functions.prefetch_factor
        self.timeout = reading.timeout
        self.pin_memory = reading.pin_memory
        self.pin_memory_device = reading.pin_memory_device
        self.persistent_workers = reading.persistent_workers
        self.in_order = reading.in_order


def remade(kind: Callable[..., Any], arguments: dict[str, object], epoch: int) -> object:
    """Make a loader in another process, with the next epoch of the original."""
    loader = kind(**arguments)
    if epoch:
        loader.set_epoch(epoch)
    return loader


# --- checks -------------------------------------------------------------------------------------------------


def checked(
    data: DataArguments, sampling: SamplingArguments, functions: FunctionArguments, reading: ReadingArguments
) -> tuple[SamplingArguments, FunctionArguments, ReadingArguments]:
    """Check all arguments, and return them with numbers as plain int or float and `shuffle` as a bool."""
    _check_types(data, sampling, functions, reading)
    if functions.batch_transform is not None:
        check_batch_transform(functions.batch_transform)
    check_window(sampling.window)
    ranks = _checked_ranks(sampling.rank, sampling.world_size, listed=sampling.is_listed)
    is_drawn = sampling.drawn is not None
    for source in (data.dataset, getattr(data.dataset, "dataset", None)):  # a Mixture, or a Subset of one
        is_drawn = is_drawn or getattr(source, "shares", None) is not None
    shuffle = is_drawn if sampling.shuffle is None else bool(sampling.shuffle)
    if (contradiction := _contradiction(sampling, functions, shuffle)) is not None:
        raise OptionError(contradiction)
    if functions.workers:
        checked_method(functions.multiprocessing_context)
    batch_size = _count("batch_size", sampling.batch_size, 1, "a positive whole number of rows")
    num_workers = _count("num_workers", reading.num_workers, 0, "a non-negative number of reader threads")
    if num_workers is not None and num_workers > MOST_READERS:
        raise OptionError(f"num_workers= takes at most {MOST_READERS:,} reader threads, not {num_workers:,}")
    functions = replace(
        functions,
        sample_workers=_count("sample_workers", functions.sample_workers, 0, "a number of processes, 0 for none"),
        transform_workers=_count("transform_workers", functions.transform_workers, 0, "a number of processes"),
        prefetch_factor=_count("prefetch_factor", functions.prefetch_factor, 1, "a positive number of batches"),
    )
    seed = _count("seed", sampling.seed, 0, "a non-negative integer")
    reading = replace(
        reading,
        num_workers=num_workers,
        memory_budget=None if reading.memory_budget is None else check_budget(reading.memory_budget),
        # A plain number: a lock takes no other, and a clock added to a float32 loses its seconds.
        timeout=reading.timeout if isinstance(reading.timeout, int) else float(reading.timeout),
    )
    sampling = replace(
        sampling,
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        draw=_checked_draw(sampling.draw),
        rank=None if ranks is None else ranks.rank,
        world_size=None if ranks is None else ranks.world_size,
    )
    return sampling, functions, reading


def _check_types(
    data: DataArguments, sampling: SamplingArguments, functions: FunctionArguments, reading: ReadingArguments
) -> None:
    """Raise for an argument whose type, or text, cannot be what it means."""
    for name in ("collate_fn", "worker_init_fn", "batch_transform", "sample_transform"):
        function = getattr(functions, name)
        if function is not None and not callable(function):
            raise _refused(name, "a callable or None", function)
    flags = {
        "shuffle": sampling.shuffle,
        "pin_memory": reading.pin_memory,
        "drop_last": sampling.drop_last,
        "persistent_workers": reading.persistent_workers,
        "in_order": reading.in_order,
    }
    for name, flag in flags.items():
        if isinstance(flag, str):
            raise _refused(name, "True or False", flag)
    if reading.on_error not in ("raise", "skip"):
        raise _refused("on_error", "'raise' or 'skip'", reading.on_error)
    if reading.keep not in ("auto", "never"):
        raise _refused("keep", "'auto', which keeps samples in this machine's memory, or 'never'", reading.keep)
    if not isinstance(sampling.generator, torch.Generator | None):
        raise _refused("generator", "a torch.Generator", sampling.generator)
    if not isinstance(data.stage_to, str | os.PathLike | None):
        raise _refused("stage_to", "a folder", data.stage_to)
    most, is_number = threading.TIMEOUT_MAX, isinstance(reading.timeout, int | float | np.integer | np.floating)
    if not is_number or type(reading.timeout) is bool or not 0 <= reading.timeout <= most:
        raise _refused("timeout", f"seconds, 0 or more, and at most {most:.0f}", reading.timeout)
    for name, rows in (("sampler", sampling.sampler), ("batch_sampler", sampling.batch_sampler)):
        if rows is not None and not hasattr(rows, "__iter__") and not hasattr(rows, "__getitem__"):
            raise _refused(name, "an iterable of row numbers, or of lists of them", rows)


def _refused(name: str, rule: str, value: object) -> OptionError:
    return OptionError(f"{name}= takes {rule}, not {value!r}")


def _contradiction(sampling: SamplingArguments, functions: FunctionArguments, shuffle: bool) -> str | None:
    """Return the message for contradictory arguments, by DataLoader's rules and others; None if there are none."""
    others = sampling.shuffle or sampling.sampler is not None or sampling.drop_last
    if sampling.factory is not None and (others or sampling.batch_sampler is not None):
        return "a function as draw= decides the order: leave out shuffle=, sampler=, batch_sampler= and drop_last="
    if sampling.sampler is not None and sampling.shuffle:
        return "sampler= decides the order, so shuffle= must be left out"
    if sampling.batch_sampler is not None and (others or sampling.batch_size not in (None, 1, DEFAULT_BATCH_ROWS)):
        return "batch_sampler= decides everything, so batch_size=, shuffle=, sampler=, drop_last= must be left out"
    if sampling.batch_size is None and sampling.drop_last:
        return "batch_size=None gives single samples, so drop_last= must be left out"
    if sampling.sized is not None and (sampling.is_listed or sampling.batch_size is None):
        return "draw=Sized(...) cuts batches itself: leave out sampler=, batch_sampler= and batch_size=None"
    if sampling.sized is not None and sampling.sized.bucket and not shuffle:
        return "draw=Sized(..., bucket=True) puts samples of like lengths together: pass shuffle=True with it"
    if functions.sample_workers is not None and functions.sample_transform is None and functions.collate_fn is None:
        return "sample_workers= apply sample_transform= or collate_fn=: give one; num_workers= are the threads"
    if functions.transform_workers is not None and functions.batch_transform is None:
        return "transform_workers= are processes for batch_transform=; leave them out, or give both"
    if functions.sample_workers is not None and functions.transform_workers not in (None, functions.sample_workers):
        both = f"sample_workers={functions.sample_workers} and transform_workers={functions.transform_workers}"
        return f"{both} are the same processes; leave one of them out"
    if functions.workers and not hasattr(os, "memfd_create"):
        return "sample_workers= and transform_workers= need memfd_create, which only Linux has"
    return None


def _count(name: str, value: object, least: int, rule: str) -> int | None:
    """Return a number as a plain int, or raise; None stays None."""
    if value is None:
        return None
    names_fields = isinstance(value, list | tuple | dict) or (isinstance(value, str) and not value.isdigit())
    if name == "batch_size" and names_fields:
        raise OptionError(f"batch_size= takes {rule}, not {value!r:.200}; fields= is given by its name")
    return checked_number(f"{name}=", value, least, rule, is_seed=name == "seed")


def _checked_draw(draw: Any) -> Any:
    if draw is None or isinstance(draw, Sized) or (callable(draw) and draw not in (Weighted, Balanced, Sized)):
        return draw
    return checked_drawn(draw, "draw=", "Weighted(...), Balanced(...), Sized(...), a function that makes orders")


def _checked_ranks(rank: int | None, world_size: int | None, *, listed: bool) -> Ranks | None:
    """Validate rank and world size; None leaves them to `torch.distributed`.

    `listed` is whether a sampler decides the order, which is not divided here.
    """
    rank = None if rank is None else checked_number("rank=", rank, 0, "an integer of at least 0")
    if world_size is not None:
        world_size = checked_number("world_size=", world_size, 1, "an integer of at least 1")
    if listed and (world_size or 1) > 1:
        raise OptionError(
            f"a sampler decides each rank's rows: world_size={world_size} must be left out; shard in the sampler"
        )
    if rank is None or world_size is None:
        if rank is None and world_size is None:
            return None
        raise OptionError(
            f"rank= and world_size= belong together, not rank={rank} with world_size={world_size}; give both or neither"
        )
    if rank >= world_size:
        raise OptionError(f"rank must be below world_size={world_size}, not {rank}")
    return Ranks(rank=rank, world_size=world_size)
