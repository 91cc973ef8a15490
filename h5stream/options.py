"""Checking and reading the arguments of `H5StreamLoader`; each refusal names the rule and the way out."""

from __future__ import annotations

import itertools
import math
import operator
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from h5stream import allowance
from h5stream.dataset import H5Dataset, opened
from h5stream.engine.budget import check_budget, default_budget
from h5stream.errors import OptionError
from h5stream.staging.loading import stage_layout, with_mapped_files
from h5stream.storage.fields import Fields

DEFAULT_BATCH_ROWS = 8192
"""Large enough that nothing is done per row that could be done per batch."""


def as_dataset(given: Any, fields: Fields, allow_external: bool) -> H5Dataset:
    """Make the dataset that a loader streams: of files, or of `H5Dataset`, chosen from and joined as torch does."""
    known = opened(given, fields)
    return H5Dataset(given, fields, allow_external=allow_external) if known is None else known


def arguments_of(given: dict[str, Any], dataset: H5Dataset) -> dict[str, Any]:
    """Give the arguments that make a loader like this one in another process.

    Parameters
    ----------
    given : dict
        What the loader was made with, by name.
    dataset : H5Dataset
        What was made of its source: open h5py files do not travel, and a pattern could mean other files there.
    """
    arguments = {name: value for name, value in given.items() if name != "self"} | {"multiprocessing_context": None}
    return arguments | {"dataset": dataset, "fields": None}


def remade(kind: Any, arguments: dict[str, Any], seed: int, epoch: int) -> Any:
    """Make a loader in another process: of the same seed, also if it was drawn."""
    if arguments["generator"] is not None:
        arguments = arguments | {"generator": None, "seed": seed}
    loader = kind(**arguments)
    if epoch:
        loader.set_epoch(epoch)
    return loader


def as_staged(owner: object, dataset: H5Dataset, stage_to: Any) -> tuple[H5Dataset, Callable[[], Any]]:
    """Give the dataset over staged copies, and what gives their lease back: when called, or once `owner` is gone.

    Without `stage_to` it stays where it is; copies that were staged before are recognised in any case.
    """
    if stage_to is None:
        layout = with_mapped_files(dataset.layout)
        return (dataset if layout is dataset.layout else dataset.over(layout)), lambda: None
    if not isinstance(stage_to, str | os.PathLike):
        raise OptionError(f"stage_to= takes a folder, not {stage_to!r}")
    layout, release = stage_layout(dataset.layout, stage_to)
    return dataset.over(layout), weakref.finalize(owner, release)


def checked_workers(num_workers: int | None) -> int:
    """Give the number of reader threads."""
    if num_workers is None:
        return allowance.cpus()
    if (number := _integer(num_workers)) is None or number < 0:
        raise OptionError(f"num_workers= takes a non-negative number of reader threads, not {num_workers!r}")
    return number


def checked_budget(memory_budget: int | str | None) -> tuple[int, int]:
    """Give the bytes that a loader may take, and those that it may take where an automatic window needs more.

    The latter are more only where nobody chose a budget: half of the machine's memory.
    """
    total = allowance.memory_total_bytes()
    if memory_budget is None:
        budget = check_budget(default_budget(total))
        return budget, max(budget, total // 2)
    return (budget := check_budget(memory_budget)), budget


def checked_epoch(epoch: int) -> int:
    """Give the number of an epoch."""
    if (number := _integer(epoch)) is None or number < 0:
        raise OptionError(f"set_epoch takes a non-negative integer, not {epoch!r}")
    return number


def checked_timeout(timeout: float) -> float:
    """Give the timeout in seconds."""
    number = isinstance(timeout, (int, float, np.integer, np.floating)) and not isinstance(timeout, bool)
    if not number or not 0 <= timeout < math.inf:
        raise OptionError(f"timeout= takes seconds, 0 or more, not {timeout!r}")
    return timeout


def check_callables(**given: Any) -> None:
    """Refuse what will be called and cannot be."""
    for name, value in given.items():
        if value is not None and not callable(value):
            raise OptionError(f"{name}= takes a callable or None, not {value!r}")


def checked_seed(seed: int | None, generator: torch.Generator | None) -> int:
    """Give the seed, drawn from the generator if only that was given."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise OptionError(f"generator= takes a torch.Generator, not {generator!r}")
    if seed is None:
        return 0 if generator is None else int(torch.randint(0, 2**62, (), generator=generator).item())
    if (number := _integer(seed)) is None or number < 0:
        raise OptionError(f"seed= takes a non-negative integer, not {seed!r}")
    return number


def _integer(value: Any) -> int | None:
    """Give a whole number of whatever type, NumPy's as well; None for what is none, and for a bool."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def checked_on_error(on_error: Any, window_device: Any) -> str:
    """Check what is to happen with corrupt chunks."""
    if on_error not in ("raise", "skip"):
        raise OptionError(f"on_error= takes 'raise' or 'skip', not {on_error!r}")
    if on_error == "skip" and window_device is not None:
        raise OptionError("window_device= gathers whole windows, so on_error='skip' cannot leave rows out; drop one")
    return str(on_error)


def check_samplers(batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: bool) -> int | None:
    """Refuse what contradicts itself, by the same rules as DataLoader; give the rows of a batch as a plain number."""
    rows = None if batch_size is None else _integer(batch_size)
    if batch_size is not None and (rows is None or rows < 1):
        raise OptionError(f"batch_size= takes a positive number of rows, not {batch_size!r}")
    if sampler is not None and shuffle:
        raise OptionError("sampler= decides the order, so shuffle= must be left out")
    if batch_sampler is not None and (
        shuffle or sampler is not None or drop_last or batch_size not in (None, 1, DEFAULT_BATCH_ROWS)
    ):
        raise OptionError(
            "batch_sampler= decides everything, so batch_size=, shuffle=, sampler= and drop_last= must be left out"
        )
    if batch_size is None and drop_last:
        raise OptionError("batch_size=None gives single samples, so drop_last= must be left out")
    return rows


def refuse_rebuilding() -> None:
    """Refuse to be taken apart by Accelerate, whose answer would be a stock DataLoader of our dataset and order.

    Called by a property that `skip_first_batches` reads, on the way to a loader without our readers, device or
    transform. That it is the one who reads shows in its frame alone.
    """
    if sys._getframe(2).f_code.co_name == "skip_first_batches":
        raise OptionError(
            "skip_first_batches would read the rest of this epoch through a stock DataLoader, without reader threads, "
            "device= and transform=. An H5StreamLoader goes on by itself: loader.load_state_dict(state), with the "
            "state that loader.state_dict() gave at the checkpoint; under transformers.Trainer with "
            "TrainingArguments(ignore_data_skip=True)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOrder:
    """An order of somebody else's.

    Attributes
    ----------
    sampler, batch_sampler : iterable
        As for DataLoader; one of them is None.
    batch_size : int or None
        Rows of a batch that a sampler's indices are gathered into; None takes them as they come.
    drop_last : bool
        Leave out the last batch if it is not full.
    rows : ndarray of int64 or None
        The file's row for each index, where that is not the index itself.
    room : int
        Rows that a slot holds where nobody says how many rows a batch has; as many as the memory budget has room for.
    """

    sampler: Any
    batch_sampler: Any
    batch_size: int | None
    drop_last: bool
    rows: Any = None
    room: int = 0

    @property
    def gives_samples(self) -> bool:
        """Whether each index gives one sample, without an axis of rows."""
        return self.batch_sampler is None and self.batch_size is None and not hasattr(self.sampler, "batch_size")

    @property
    def said_rows(self) -> int | None:
        """Rows of a batch, at most: as asked for, or as the sampler says by its attribute; None where nobody does."""
        if self.batch_sampler is None and (self.batch_size is not None or self.gives_samples):
            return self.batch_size or 1
        source = self.sampler if self.batch_sampler is None else self.batch_sampler
        if isinstance(source, (list, tuple)):
            return max((1, *(len(batch) for batch in source)))
        said = getattr(source, "batch_size", None)
        return said if isinstance(said, int) and said > 0 else None

    @property
    def most_rows(self) -> int:
        """Rows that a slot must hold."""
        return self.said_rows or self.room

    def __len__(self) -> int:
        if self.batch_sampler is not None or self.batch_size is None:
            return len(self.sampler if self.batch_sampler is None else self.batch_sampler)
        count = len(self.sampler)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    @property
    def count(self) -> int | None:
        """Batches of an epoch, where the sampler can tell."""
        try:
            return len(self)
        except TypeError:
            return None

    def batches(self) -> Iterator[Any]:
        """Give the indices of each batch."""
        if self.batch_sampler is not None:
            return iter(self.batch_sampler)
        if self.batch_size is None:
            return ([index] if np.ndim(index) == 0 else index for index in self.sampler)
        return _batched(iter(self.sampler), self.batch_size, self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Tell the sampler, if it wants to know."""
        for sampler in (self.sampler, self.batch_sampler):
            move = getattr(sampler, "set_epoch", None)
            if move is not None:
                move(epoch)


def _batched(indices: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[int]]:
    while batch := list(itertools.islice(indices, size)):
        if len(batch) == size or not drop_last:
            yield batch


def given_order(
    dataset: H5Dataset, batch_size: int | None, sampler: Any, batch_sampler: Any, drop_last: bool
) -> GivenOrder | None:
    """Give the order that a sampler decides; None where there is none.

    A sampler's indices are places in the dataset, as in a Subset of torch.
    """
    if sampler is None and batch_sampler is None:
        return None
    return GivenOrder(
        sampler=sampler,
        batch_sampler=batch_sampler,
        batch_size=batch_size,
        drop_last=drop_last,
        rows=dataset.rows,
    )
