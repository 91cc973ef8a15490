"""The arguments of `H5StreamLoader`, each checked once; errors name the argument, the rule, the value and a way out."""

from __future__ import annotations

import functools
import json
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler

from h5stream.base import limits
from h5stream.base.texts import check_ordered, checked_number
from h5stream.dataset.dataset import H5Dataset, of_copies, opened
from h5stream.engine.footprint import check_budget, check_window, default_budget
from h5stream.engine.reader import default_threads
from h5stream.errors import OptionError
from h5stream.loader.arguments import check_batch_transform, checked_ranks, current_ranks, drawn_seed, with_new_names
from h5stream.order.users import Balanced, OrderFactory, Ranks, SamplerOrder, Sized, Weighted, checked_drawn
from h5stream.samples.columns import SampleColumn
from h5stream.storage.layout.layout import FieldLayout, SampleLayout
from h5stream.workers.processes import checked_method

DEFAULT_BATCH_ROWS = 8192
"""Large enough to amortize the work per batch."""


_Number = int | float | np.integer | np.floating
_FUNCTIONS = ("collate_fn", "worker_init_fn", "batch_transform", "sample_transform")
_FLAGS = ("shuffle", "pin_memory", "drop_last", "persistent_workers", "in_order", "allow_external")
_LISTED = "an iterable of row numbers, or of lists of them"
_RULES: tuple[tuple[tuple[str, ...], Callable[[Any], object], str], ...] = (
    (_FUNCTIONS, lambda v: v is None or callable(v), "a callable or None"),
    (_FLAGS, lambda v: not isinstance(v, str), "True or False"),
    (("on_error",), lambda v: v in ("raise", "skip"), "'raise' or 'skip'"),
    (("keep",), lambda v: v in ("auto", "never"), "'auto' or 'never'"),
    (("generator",), lambda v: isinstance(v, torch.Generator | None), "a torch.Generator"),
    (("stage_to",), lambda v: isinstance(v, str | os.PathLike | None), "a folder"),
    (
        ("timeout",),
        lambda v: isinstance(v, _Number) and type(v) is not bool and 0 <= v <= threading.TIMEOUT_MAX,
        f"seconds, 0 or more, and at most {threading.TIMEOUT_MAX:.0f}",
    ),
    (("sampler", "batch_sampler"), lambda v: v is None or hasattr(v, "__iter__") or hasattr(v, "__getitem__"), _LISTED),
)
"""Arguments, a predicate for each, and its rule in words."""

_COUNTS = {
    "batch_size": (1, "a positive whole number of rows"),
    "num_workers": (0, "a non-negative number of reader threads"),
    "sample_workers": (0, "a number of processes, 0 for none"),
    "transform_workers": (0, "a number of processes"),
    "prefetch_factor": (1, "a positive number of batches"),
    "seed": (0, "a non-negative integer"),
}
"""The minimum of each number, and its rule in words."""


class Settings(SimpleNamespace):
    """The arguments of a loader by name, with numbers as plain int or float, and `shuffle` never None."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Settings:
        """Check all arguments; ``old`` has those with old names."""
        settings = cls(**{"allow_external": None, **with_new_names(arguments, stacklevel=3)})
        arguments = vars(settings)
        for names, is_fit, rule in _RULES:
            for name in names:
                if not is_fit(arguments[name]):
                    raise OptionError(f"{name}= takes {rule}, not {arguments[name]!r}")
        check_batch_transform(settings.batch_transform)
        check_window(settings.window)
        checked_ranks(settings.rank, settings.world_size, listed=settings.is_listed)
        if (contradiction := settings._contradiction()) is not None:
            raise OptionError(contradiction)
        if settings.workers:
            checked_method(settings.multiprocessing_context)
        counts = {name: arguments[name] for name in _COUNTS if arguments[name] is not None}
        return settings.but(
            **{name: _count(name, value) for name, value in counts.items()},
            memory_budget=None if settings.memory_budget is None else check_budget(settings.memory_budget),
            # A plain number: a lock takes no other, and a clock added to a float32 loses its seconds.
            timeout=settings.timeout if isinstance(settings.timeout, int) else float(settings.timeout),
            draw=_checked_draw(settings.draw),
            shuffle=settings.is_drawn if settings.shuffle is None else bool(settings.shuffle),
        )

    def but(self, **changes: Any) -> Settings:
        """Return the same settings with some changes."""
        return Settings(**vars(self) | changes)

    def _contradiction(self) -> str | None:
        """Return the message for contradictory arguments, by DataLoader's rules and others; None if there are none."""
        others = self.shuffle or self.sampler is not None or self.drop_last
        shuffles = self.is_drawn if self.shuffle is None else self.shuffle
        if self.order is not None and (others or self.batch_sampler is not None):
            return "a function as draw= decides the order: leave out shuffle=, sampler=, batch_sampler= and drop_last="
        if self.sampler is not None and self.shuffle:
            return "sampler= decides the order, so shuffle= must be left out"
        if self.batch_sampler is not None and (others or self.batch_size not in (None, 1, DEFAULT_BATCH_ROWS)):
            return "batch_sampler= decides everything, so batch_size=, shuffle=, sampler=, drop_last= must be left out"
        if self.batch_size is None and self.drop_last:
            return "batch_size=None gives single samples, so drop_last= must be left out"
        if self.sized is not None and (self.is_listed or self.batch_size is None):
            return "draw=Sized(...) cuts batches itself: leave out sampler=, batch_sampler= and batch_size=None"
        if self.sized is not None and self.sized.bucket and not shuffles:
            return "draw=Sized(..., bucket=True) puts samples of like lengths together: pass shuffle=True with it"
        if self.sample_workers is not None and self.sample_transform is None and self.collate_fn is None:
            return "sample_workers= apply sample_transform= or collate_fn=: give one; num_workers= are the threads"
        if self.transform_workers is not None and self.batch_transform is None:
            return "transform_workers= are processes for batch_transform=; leave them out, or give both"
        if self.sample_workers is not None and self.transform_workers not in (None, self.sample_workers):
            both = f"sample_workers={self.sample_workers} and transform_workers={self.transform_workers}"
            return f"{both} are the same processes; leave one of them out"
        if self.workers and not hasattr(os, "memfd_create"):
            return "sample_workers= and transform_workers= need memfd_create, which only Linux has"
        return None

    # --- derived settings -------------------------------------------------------------------------------

    @property
    def order(self) -> OrderFactory | None:
        """The user's function that makes the orders of epochs, or None."""
        return self.draw if callable(self.draw) else None

    @property
    def sized(self) -> Sized | None:
        """How batches are cut by the lengths of samples, or None."""
        return self.draw if isinstance(self.draw, Sized) else None

    @property
    def drawn(self) -> Weighted | Balanced | int | None:
        """Which samples an epoch takes; None if each once, or if the user's function decides."""
        draw = self.draw.draw if isinstance(self.draw, Sized) else self.draw
        return None if callable(draw) else draw

    @property
    def is_drawn(self) -> bool:
        """Whether samples are drawn, and so shuffled unless the user refuses."""
        sources = (self.dataset, getattr(self.dataset, "dataset", None))  # a Mixture, or a Subset of one
        return self.drawn is not None or any(getattr(source, "shares", None) is not None for source in sources)

    @property
    def is_listed(self) -> bool:
        """Whether a sampler lists the rows of each batch."""
        return self.sampler is not None or self.batch_sampler is not None

    @property
    def applies_functions(self) -> bool:
        """Whether the user's functions are applied with random numbers that depend on the sample, in any process."""
        options = (self.sample_transform, self.sample_workers, self.transform_workers)
        return any(one is not None for one in options)

    @property
    def may_repeat(self) -> bool:
        """Whether a sample may come more than once in an epoch."""
        once = isinstance(self.drawn, Weighted | Balanced) and not self.drawn.replacement
        return self.is_listed or self.order is not None or (self.is_drawn and not once)

    @property
    def workers(self) -> int:
        """The number of processes that apply the functions."""
        return self.sample_workers or self.transform_workers or 0

    @property
    def batch_rows(self) -> int | None:
        """Rows of a batch; None if samples come singly, or a `batch_sampler` decides."""
        return None if self.batch_sampler is not None else self.batch_size

    @property
    def gives_samples(self) -> bool:
        """Whether each sample comes singly, without an axis of rows."""
        return self.batch_rows is None and not hasattr(self.sampler, "batch_size") and self.batch_sampler is None

    @property
    def takes_apart(self) -> bool:
        """Whether batches become lists of samples."""
        is_batched = self.batch_sampler is not None or self.batch_rows is not None
        return self.gives_samples or (is_batched and self.collate_fn is not None)

    @property
    def threads(self) -> int:
        """The number of reader threads, before memory limits it."""
        return default_threads(self.dataset.layout) if self.num_workers is None else self.num_workers

    @property
    def ranks(self) -> Ranks | None:
        """The rank that the user set; None leaves it to `torch.distributed`."""
        return checked_ranks(self.rank, self.world_size, listed=self.is_listed)

    @property
    def order_text(self) -> str:
        """The kind of order, for a state."""
        if self.is_listed:
            return "sampler"
        if self.order is not None:
            return qualified_name(self.order)
        return "shuffled" if self.shuffle else "file"

    def budget(self) -> tuple[int, int]:
        """Return the memory budget, and the limit up to which an automatic window may raise it."""
        if self.memory_budget is not None:
            return self.memory_budget, self.memory_budget
        total = limits.memory_total_bytes()
        return default_budget(total), max(default_budget(total), total // 2)

    def names_fields(self, layout: SampleLayout) -> str:
        """Return the fields to name, as code, if files were given without fields; empty if there is only one."""
        sources = self.dataset if isinstance(self.dataset, list | tuple) else [self.dataset]
        named = self.fields is not None or any(isinstance(one, torch.utils.data.Dataset) for one in sources)
        return "" if named or len(layout.shape.keys) < 2 else json.dumps(layout.shape.keys, ensure_ascii=False)

    @property
    def draws_by_seed(self) -> bool:
        """Whether anything depends on the seed; for settings that are `opened`."""
        layout = self.dataset.layout
        drawn = any(one.spare is not None or one.draw is not None for one in layout.lookups)
        return self.shuffle or self.is_drawn or self.applies_functions or layout.draws is not None or drawn

    def with_seed(self) -> Settings:
        """Return the settings with a seed: the user's, or one drawn here if a single rank needs one, or 0."""
        if self.seed is not None:
            return self
        alone = (self.ranks or current_ranks()).world_size == 1
        return self.but(seed=drawn_seed(self.generator, needed=alone and self.draws_by_seed))

    def sampler_order(self, dataset: H5Dataset) -> SamplerOrder | None:
        """Return the order that a sampler decides, in places of the dataset; None without a sampler."""
        if not self.is_listed:
            return None
        if dataset.layout.draws is not None:
            raise OptionError(
                "samples= has starts='random' and draws its samples anew for each epoch: leave out the sampler"
            )
        source = batched = self.sampler if self.batch_sampler is None else self.batch_sampler
        check_ordered("sampler= or batch_sampler=", source)
        if self.batch_rows is not None:
            batched = BatchSampler(source, self.batch_rows, bool(self.drop_last))
        is_single = self.batch_rows is None and self.batch_sampler is None
        return SamplerOrder(source=source, batched=batched, is_single=is_single, rows=dataset.rows)

    def seeded(self, layout: SampleLayout) -> SampleLayout:
        """Return a layout with an additional field of a seed per sample, if functions need one."""
        if not self.applies_functions:
            return layout
        seeds = FieldLayout(name="seeds", kind="array", dtype=np.dtype(np.int64), row_shape=(2,))
        columns = (*layout.columns, (len(layout.fields), SampleColumn(has_seeds=True)))
        return replace(layout, fields=(*layout.fields, seeds), columns=columns)

    # --- the data, and other processes ------------------------------------------------------------------

    def opened(self) -> Settings:
        """Return the settings with an open dataset, made from files or from datasets of torch."""
        of_files = {"samples": self.samples, "storage_options": self.storage_options}
        dataset = opened(self.dataset, self.fields, **of_files)
        if dataset is None:
            dataset = H5Dataset(self.dataset, self.fields, allow_external=bool(self.allow_external), **of_files)
        return self.but(dataset=dataset, fields=None, samples=None, storage_options=None, allow_external=None)

    def staged(self, owner: object) -> tuple[H5Dataset, Callable[[], Any]]:
        """Return the dataset, staged if requested, and a function that releases the copies, as `owner`'s end does."""
        dataset: H5Dataset = self.dataset
        if self.stage_to is None:
            return dataset, lambda: None
        from h5stream.staging import stage_layout  # imported here since few loaders stage

        layout, release = stage_layout(dataset.layout, self.stage_to)
        return of_copies(dataset, layout), weakref.finalize(owner, release)

    def travelling(self, seed: int) -> dict[str, Any]:
        """Return the arguments that make a loader of this seed in another process, for settings that are `opened`."""
        method = checked_method(self.multiprocessing_context) if self.workers else None
        return vars(self) | {"multiprocessing_context": method, "generator": None, "seed": seed}


def remade(kind: Any, arguments: dict[str, Any], epoch: int) -> Any:
    """Make a loader in another process, with the next epoch of the original."""
    loader = kind(**arguments)
    if epoch:
        loader.set_epoch(epoch)
    return loader


def qualified_name(function: Any) -> str:
    """Return the name by which a function can be imported again; for callable objects, that of their type."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _count(name: str, value: Any) -> int:
    least, rule = _COUNTS[name]
    names_fields = isinstance(value, list | tuple | dict) or (isinstance(value, str) and not value.isdigit())
    if name == "batch_size" and names_fields:
        raise OptionError(f"batch_size= takes {rule}, not {value!r:.200}; fields= is given by its name")
    return checked_number(f"{name}=", value, least, rule, is_seed=name == "seed")


def _checked_draw(draw: Any) -> Any:
    if isinstance(draw, Sized) or (callable(draw) and draw not in (Weighted, Balanced, Sized)):
        return draw
    return checked_drawn(draw, "draw=", "Weighted(...), Balanced(...), Sized(...), a function that makes orders")
