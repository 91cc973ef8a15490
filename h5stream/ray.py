"""HDF5 files as a dataset of Ray Data: a task reads consecutive blocks of samples, each chunk once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from h5stream.base.texts import missing_extra
from h5stream.dataset.dataset import H5Dataset
from h5stream.dataset.statistics import read_through
from h5stream.engine.assemble import Assembler
from h5stream.errors import OptionError, UnsupportedFieldError
from h5stream.order.blocks import Stretch, stretches
from h5stream.storage.layout.layout import SampleLayout, SparseEntry
from h5stream.storage.layout.request import Fields, Source
from h5stream.storage.open.extents import SampleKind
from h5stream.structure import numbers_in, samples_of

if TYPE_CHECKING:
    import ray.data
    from ray.data import DataContext, ReadTask
    from ray.data.block import Block

__all__ = ["read_hdf5"]


def read_hdf5(
    source: Source | Dataset[Any] | Sequence[Dataset[Any]],
    fields: Fields = None,
    *,
    samples: SampleKind | None = None,
    rows: Any = None,
    allow_external: bool = False,
    **options: object,
) -> ray.data.Dataset:
    """Read samples as a dataset of Ray Data, whose tasks each read a range of the files.

    Files are opened here once, for their structure alone; tasks read the data, on machines that see the files by the
    same names. Each chunk is decoded by one task. Samples come each once, in an order that is Ray's.

    Parameters
    ----------
    source, fields, samples, rows, allow_external
        As for `H5Dataset`: files, patterns and addresses, or an `H5Dataset`, such as a part of a split.
    **options
        As for ``ray.data.read_datasource``: ``override_num_blocks``, ``concurrency``, ``num_cpus`` and others. A task
        reads with as many threads as it has processors.

    Returns
    -------
    ray.data.Dataset
        A column a field. Where each sample has a shape of its own, it holds arrays of unlike shapes. Strings are text,
        read as UTF-8, and a member of a compound has its name behind a colon.

    Raises
    ------
    H5StreamError
        As `H5Dataset` does.
    OptionError
        For sparse rows, for a type that NumPy does not have, and for ``storage_options=``: credentials do not travel.
    UnsupportedFieldError
        By the task that reads strings which are not UTF-8.
    MissingExtraError
        Without Ray.

    Examples
    --------
    >>> from h5stream.ray import read_hdf5
    >>> def largest(path):
    ...     return read_hdf5(path, ["x", "y"]).map_batches(lambda batch: {"most": batch["x"].max(axis=1)}).max("most")
    """
    try:
        import ray.data
    except ImportError:
        raise missing_extra("read_hdf5 makes a dataset of Ray Data", "ray") from None
    if "storage_options" in options:
        raise OptionError(
            "storage_options= stay in the process that they are given to, and Ray's tasks are others: credentials go "
            "by the environment, ray.init(runtime_env={'env_vars': {...}})"
        )
    dataset = H5Dataset(source, fields, samples=samples, rows=rows, allow_external=allow_external, numpy=True)
    if any(isinstance(entry, SparseEntry) and not entry.is_dense for entry in dataset.layout.entries):
        raise OptionError("sparse rows have no column of Ray's; ask for rows: Field(..., ragged='dense')")
    return ray.data.read_datasource(_datasource(dataset), **options)


def _datasource(dataset: H5Dataset) -> ray.data.Datasource:
    import ray
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

    layout, blocks = dataset.layout, dataset.blocks

    class HDF5Datasource(Datasource):  # type: ignore[misc]  # Ray has no types
        def estimate_inmemory_data_size(self) -> int:
            return blocks.total_rows * layout.row_nbytes

        def get_read_tasks(
            self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
        ) -> list[ReadTask]:
            shared, tasks = ray.put(layout), []
            for stretch in stretches(blocks, parallelism):
                rows = int(stretch[0][-1] - stretch[0][0])
                facts = BlockMetadata(num_rows=rows, size_bytes=rows * layout.row_nbytes, exec_stats=None)
                tasks.append(ReadTask(partial(_read, shared, stretch), facts, per_task_row_limit=per_task_row_limit))
            return tasks

    return HDF5Datasource()


def _read(shared: ray.ObjectRef[SampleLayout], stretch: Stretch) -> Iterator[Block]:
    """Read some blocks in a Ray task, and yield tables with one column per field."""
    import ray
    from ray.data.block import BlockAccessor

    layout: SampleLayout = ray.get(shared)
    layout = replace(layout, shape=replace(layout.shape, kind="dict"))
    threads = max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    assembler = Assembler(layout)
    for batch, slot_format in read_through(layout, stretch[1], stretch, threads):
        value = assembler.batch(batch.slot.memory, slot_format, batch.rows, batch.objects)
        columns = dict(pair for name, column in value.items() for pair in _columns(name, column, batch.rows))
        yield BlockAccessor.batch_to_block(columns)
        batch.slot.give_back()


def _columns(name: str, value: object, count: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and values of a field's columns, copied."""
    if isinstance(value, dict):
        for member, inner in value.items():
            yield from _columns(f"{name}:{member}", inner, count)
    elif isinstance(value, torch.Tensor) and not value.is_nested:
        yield name, numbers_in(value).copy()
    else:
        column = np.empty(count, dtype=object)
        for k, sample in enumerate(samples_of(value, count)):
            column[k] = numbers_in(sample).copy() if isinstance(sample, torch.Tensor) else _as_text(name, sample)
        yield name, column


def _as_text(name: str, value: object) -> object:
    """Return a string sample as text, or each string of a list of them."""
    if isinstance(value, list):
        return [_as_text(name, item) for item in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise UnsupportedFieldError(
            f"field {name!r} has strings that are not UTF-8, such as {value[:40]!r}, and a column of text takes no "
            "others; write them as arrays of bytes (uint8), which are read as they are",
            field=name,
        ) from None
