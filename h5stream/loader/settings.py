"""Every argument of `H5StreamLoader`, checked once; a refusal names argument, rule, value and way out."""

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
from h5stream.order.users import Balanced, GivenOrder, OrderFactory, Ranks, Sized, Weighted, checked_drawn
from h5stream.samples.columns import Column
from h5stream.storage.layout.layout import FieldLayout, SampleLayout
from h5stream.workers.processes import checked_method

DEFAULT_BATCH_ROWS = 8192
"""Large enough that nothing is done per row that could be done per batch."""


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
"""Arguments, what holds of each, and that in words."""

_COUNTS = {
    "batch_size": (1, "a positive whole number of rows"),
    "num_workers": (0, "a non-negative number of reader threads"),
    "sample_workers": (0, "a number of processes, 0 for none"),
    "transform_workers": (0, "a number of processes"),
    "prefetch_factor": (1, "a positive number of batches"),
    "seed": (0, "a non-negative integer"),
}
"""The least that each number may be, and that in words."""


class Settings(SimpleNamespace):
    """The arguments of a loader by name, as given, but for numbers, which are plain, and `shuffle`, never None."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """Check all arguments; ``old`` has those of old names."""
        settings = cls(**{"allow_external": None, **with_new_names(given, stacklevel=3)})
        given = vars(settings)
        for names, is_fit, rule in _RULES:
            for name in names:
                if not is_fit(given[name]):
                    raise OptionError(f"{name}= takes {rule}, not {given[name]!r}")
        check_batch_transform(settings.batch_transform)
        check_window(settings.window)
        checked_ranks(settings.rank, settings.world_size, listed=settings.is_listed)
        if (said := settings._contradiction()) is not None:
            raise OptionError(said)
        if settings.workers:
            checked_method(settings.multiprocessing_context)
        counts = {name: given[name] for name in _COUNTS if given[name] is not None}
        return settings.but(
            **{name: _count(name, value) for name, value in counts.items()},
            memory_budget=None if settings.memory_budget is None else check_budget(settings.memory_budget),
            # A plain number: a lock takes no other, and a clock added to a float32 loses its seconds.
            timeout=settings.timeout if isinstance(settings.timeout, int) else float(settings.timeout),
            draw=_checked_draw(settings.draw),
            shuffle=settings.is_drawn if settings.shuffle is None else bool(settings.shuffle),
        )

    def but(self, **changes: Any) -> Settings:
        """Return the same settings but for some."""
        return Settings(**vars(self) | changes)

    def _contradiction(self) -> str | None:
        """Say what contradicts itself, by the same rules as DataLoader, cuts batches twice, or has nothing to do."""
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

    # --- what follows from them -------------------------------------------------------------------------

    @property
    def order(self) -> OrderFactory | None:
        """What makes the orders of epochs, where that is a function of the user's."""
        return self.draw if callable(self.draw) else None

    @property
    def sized(self) -> Sized | None:
        """How batches are cut by the lengths of samples, if they are."""
        return self.draw if isinstance(self.draw, Sized) else None

    @property
    def drawn(self) -> Weighted | Balanced | int | None:
        """Which samples an epoch takes; None where it takes each once, or in an order of the user's."""
        draw = self.draw.draw if isinstance(self.draw, Sized) else self.draw
        return None if callable(draw) else draw

    @property
    def is_drawn(self) -> bool:
        """Whether samples come as often as they are drawn: shuffled, unless that is refused."""
        sources = (self.dataset, getattr(self.dataset, "dataset", None))  # a Mixture, or a Subset of one
        return self.drawn is not None or any(getattr(source, "shares", None) is not None for source in sources)

    @property
    def is_listed(self) -> bool:
        """Whether a sampler lists the rows of each batch."""
        return self.sampler is not None or self.batch_sampler is not None

    @property
    def applies_functions(self) -> bool:
        """Whether functions of the user are applied with random numbers that samples decide, wherever that is."""
        given = (self.sample_transform, self.sample_workers, self.transform_workers)
        return any(one is not None for one in given)

    @property
    def may_repeat(self) -> bool:
        """Whether a sample may come more than once in an epoch."""
        once = isinstance(self.drawn, Weighted | Balanced) and not self.drawn.replacement
        return self.is_listed or self.order is not None or (self.is_drawn and not once)

    @property
    def workers(self) -> int:
        """Processes that apply them."""
        return self.sample_workers or self.transform_workers or 0

    @property
    def batch_rows(self) -> int | None:
        """Rows of a batch; None where samples come singly, or a `batch_sampler` says."""
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
        """Reader threads, as far as they fit."""
        return default_threads(self.dataset.layout) if self.num_workers is None else self.num_workers

    @property
    def ranks(self) -> Ranks | None:
        """Which part of each epoch was asked for; None leaves it to `torch.distributed`."""
        return checked_ranks(self.rank, self.world_size, listed=self.is_listed)

    @property
    def order_text(self) -> str:
        """Which kind of order it is, as a state tells it."""
        if self.is_listed:
            return "sampler"
        if self.order is not None:
            return qualified_name(self.order)
        return "shuffled" if self.shuffle else "file"

    def budget(self) -> tuple[int, int]:
        """Return the bytes that a loader may take, and those that it may take where an automatic window needs more."""
        if self.memory_budget is not None:
            return self.memory_budget, self.memory_budget
        total = limits.memory_total_bytes()
        return default_budget(total), max(default_budget(total), total // 2)

    def names_fields(self, layout: SampleLayout) -> str:
        """Return the fields to name, as code, where files were given and no fields; nothing where there is but one."""
        given = self.dataset if isinstance(self.dataset, list | tuple) else [self.dataset]
        named = self.fields is not None or any(isinstance(one, torch.utils.data.Dataset) for one in given)
        return "" if named or len(layout.shape.keys) < 2 else json.dumps(layout.shape.keys, ensure_ascii=False)

    @property
    def draws_by_seed(self) -> bool:
        """Whether anything depends on the seed; of settings that are `opened`."""
        layout = self.dataset.layout
        drawn = any(one.spare is not None or one.draw is not None for one in layout.lookups)
        return self.shuffle or self.is_drawn or self.applies_functions or layout.draws is not None or drawn

    def with_seed(self) -> Settings:
        """Return the settings with a seed: as given, or drawn here, once, where one rank alone needs one; else 0."""
        if self.seed is not None:
            return self
        alone = (self.ranks or current_ranks()).world_size == 1
        return self.but(seed=drawn_seed(self.generator, needed=alone and self.draws_by_seed))

    def given_order(self, dataset: H5Dataset) -> GivenOrder | None:
        """Return the order that a sampler decides, by places in the dataset; None where there is none."""
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
        return GivenOrder(source=source, batched=batched, is_single=is_single, rows=dataset.rows)

    def seeded(self, layout: SampleLayout) -> SampleLayout:
        """Return a layout with a seed for each sample behind its fields, where functions need one."""
        if not self.applies_functions:
            return layout
        seeds = FieldLayout(name="seeds", kind="array", dtype=np.dtype(np.int64), row_shape=(2,))
        columns = (*layout.columns, (len(layout.fields), Column(has_seeds=True)))
        return replace(layout, fields=(*layout.fields, seeds), columns=columns)

    # --- the data, and other processes ------------------------------------------------------------------

    def opened(self) -> Settings:
        """Return the settings with the dataset open: of files, or `H5Dataset`, chosen from and joined as torch does."""
        of_files = {"samples": self.samples, "storage_options": self.storage_options}
        known = opened(self.dataset, self.fields, **of_files)
        if known is None:
            known = H5Dataset(self.dataset, self.fields, allow_external=bool(self.allow_external), **of_files)
        return self.but(dataset=known, fields=None, samples=None, storage_options=None, allow_external=None)

    def staged(self, owner: object) -> tuple[H5Dataset, Callable[[], Any]]:
        """Return the dataset, of staged copies if asked for, and what gives their lease back, as `owner`'s end does."""
        dataset: H5Dataset = self.dataset
        if self.stage_to is None:
            return dataset, lambda: None
        from h5stream.staging import stage_layout  # here, since few loaders stage

        layout, release = stage_layout(dataset.layout, self.stage_to)
        return of_copies(dataset, layout), weakref.finalize(owner, release)

    def travelling(self, seed: int) -> dict[str, Any]:
        """Return the arguments, of settings that are `opened`, that make a loader of this seed in another process."""
        method = checked_method(self.multiprocessing_context) if self.workers else None
        return vars(self) | {"multiprocessing_context": method, "generator": None, "seed": seed}


def remade(kind: Any, arguments: dict[str, Any], epoch: int) -> Any:
    """Make a loader in another process, whose next epoch is this one."""
    loader = kind(**arguments)
    if epoch:
        loader.set_epoch(epoch)
    return loader


def qualified_name(function: Any) -> str:
    """Return the name by which a function can be found again; of an object that is called, its type's."""
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
