"""Checking and reading the arguments of `H5StreamLoader`; each refusal names the rule and the way out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Subset

from h5stream import allowance
from h5stream.dataset import H5Dataset
from h5stream.errors import OptionError
from h5stream.storage.fields import Fields


def as_dataset(given: Any, fields: Fields, allow_external: bool) -> H5Dataset:
    """Make the dataset that a loader streams: of a path, an `H5Dataset`, or a `Subset` of one."""
    if isinstance(given, Subset):
        inner = as_dataset(given.dataset, fields, allow_external)
        return inner.subset(given.indices)
    if isinstance(given, H5Dataset):
        if fields is not None:
            raise OptionError("fields= belongs to the H5Dataset that was given; name them there")
        return given
    if isinstance(given, torch.utils.data.Dataset):
        raise OptionError(
            f"H5StreamLoader reads HDF5 files and cannot see into a {type(given).__name__}; give it the path, an "
            "H5Dataset or a Subset of one, and put what __getitem__ does into transform="
        )
    return H5Dataset(given, fields, allow_external=allow_external)


def checked_workers(num_workers: int | None) -> int:
    """Give the number of reader threads."""
    if num_workers is None:
        return allowance.cpus()
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        raise OptionError(f"num_workers= takes a non-negative number of reader threads, not {num_workers!r}")
    return num_workers


def checked_timeout(timeout: float) -> float:
    """Give the timeout in seconds."""
    if timeout < 0:
        raise OptionError(f"timeout= takes seconds, 0 or more, not {timeout!r}")
    return timeout


def checked_seed(seed: int | None, generator: torch.Generator | None) -> int:
    """Give the seed, drawn from the generator if only that was given."""
    if seed is None:
        return 0 if generator is None else int(torch.randint(0, 2**62, (), generator=generator).item())
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise OptionError(f"seed= takes a non-negative integer, not {seed!r}")
    return seed


def check_samplers(batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: bool) -> None:
    """Refuse what contradicts itself, by the same rules as DataLoader."""
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise OptionError(f"batch_size= takes a positive number of rows, not {batch_size!r}")
    if sampler is not None and shuffle:
        raise OptionError("sampler= decides the order, so shuffle= must be left out")
    if batch_sampler is not None and (shuffle or sampler is not None or drop_last):
        raise OptionError("batch_sampler= decides everything, so shuffle=, sampler= and drop_last= must be left out")
    if batch_size is None and drop_last:
        raise OptionError("batch_size=None gives single samples, so drop_last= must be left out")


def slot_rows_for(batch_size: int | None, batch_sampler: Any) -> int:
    """Give the rows that a slot must hold."""
    if batch_sampler is not None:
        return int(getattr(batch_sampler, "batch_size", None) or 8192)
    return batch_size or 1


def batched(indices: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[int]]:
    """Cut a stream of indices into batches."""
    while batch := list(itertools.islice(indices, size)):
        if len(batch) == size or not drop_last:
            yield batch


def selected_rows(rows: Any, batch: Any) -> Any:
    """Give the file's rows for indices into a selection."""
    numbers = torch.as_tensor(batch).numpy()
    return rows[numbers]
