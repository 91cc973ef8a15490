"""Facts about any loader: its settings, its statistics, its length, and whether its batches hold fields or rows."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import NamedTuple

from torch.utils.data import default_collate

from h5stream.base.texts import whole_number
from h5stream.dataset.collating import collate
from h5stream.dataset.dataset import H5Dataset
from h5stream.engine.statistics import LoaderStatistics
from h5stream.loader.loader import H5StreamLoader
from h5stream.storage.layout.access import DECODED, VIA_H5PY


class ReaderRoom(NamedTuple):
    """The memory of an `H5StreamLoader` for reader threads."""

    memory_budget: int  # in bytes
    most_threads: int  # that it has room for
    thread_nbytes: int  # scratch of a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderKnobs:
    """The settings of a loader; None if it has no such setting."""

    batch_size: int | None = None
    num_workers: int | None = None  # reader threads, or worker processes of a stock `DataLoader`
    prefetch_factor: int | None = None  # batches ahead
    window_rows: int | None = None  # rows that are shuffled together
    first_window_rows: int | None = None  # rows of an epoch's first window
    pin_memory: bool | None = None  # as in `DataLoader`
    batch_transform: str | None = None  # the name of the function that runs for each batch
    collate_fn: str | None = None  # the name of the function that runs for each sample
    filters: str = ""  # compression of the field with the most bytes; empty if it has none, or it is unknown
    via_h5py: str = ""  # why a field is read through h5py; empty if none is
    has_narrow_chunks: bool = False  # whether a row of a field lies in several chunks
    epoch_batches: int | None = None  # batches of an epoch
    room: ReaderRoom | None = None
    unit: str = "row"  # the name of one entry of a batch

    @classmethod
    def of(cls, loader: object) -> LoaderKnobs:
        """Read the settings of a loader, which may be any object."""
        window, sampler = getattr(loader, "window_size", None), getattr(loader, "batch_sampler", None)
        batch_size = whole_number(getattr(loader, "batch_size", None))
        if batch_size is None:
            batch_size = whole_number(getattr(sampler, "batch_size", None))
        layout = getattr(getattr(loader, "dataset", None), "layout", None)
        size = loader.window_size if isinstance(loader, H5StreamLoader) else None
        parts = [parts[0] for parts in getattr(layout, "datasets", ())]
        decoded = [part for part in parts if part.access == DECODED]
        widest = max(decoded, key=lambda part: part.stored_row_nbytes, default=None)

        def named(function: object) -> str | None:
            name: str = getattr(function, "__name__", type(function).__name__)
            # A stock DataLoader always has a collate_fn; torch's own is not the user's to leave out.
            return None if function is None or name in ("default_collate", "default_convert") else name

        return cls(
            batch_size=batch_size,
            num_workers=whole_number(getattr(loader, "num_workers", None)),
            prefetch_factor=whole_number(getattr(loader, "prefetch_factor", None)),
            window_rows=whole_number(getattr(window, "window_rows", None)),
            first_window_rows=whole_number(getattr(window, "first_window_rows", None)),
            pin_memory=getattr(loader, "pin_memory", None),
            filters=widest.pipeline.describe() if widest is not None else "",
            via_h5py=next((f"{part.path}: {part.reason}" for part in parts if part.access == VIA_H5PY), ""),
            has_narrow_chunks=any(len(part.pieces) > 1 for part in parts),
            batch_transform=named(getattr(loader, "batch_transform", None)),
            collate_fn=named(getattr(loader, "collate_fn", None)),
            epoch_batches=length_of(loader),
            room=None if size is None else ReaderRoom(size.memory_budget, size.most_threads, size.thread_nbytes),
            unit=unit_of(loader),
        )


def statistics_of(loader: object) -> LoaderStatistics | None:
    """Return the loader's own statistics; None if it keeps none."""
    stats = getattr(loader, "stats", None)
    statistics = stats() if callable(stats) else None
    return statistics if isinstance(statistics, LoaderStatistics) else None


def length_of(loader: object) -> int | None:
    """Return the batches of an epoch; None if the loader has no length."""
    count = operator.length_hint(loader, -1)  # of an iterable, or a DataLoader over one, `len` raises
    return None if count < 0 else count


def lists_of_fields(loader: object) -> bool | None:
    """Return whether a batch that is a list holds fields, and not a value for each row; None if that is not known."""
    if isinstance(loader, H5StreamLoader):
        return loader._settings.gives_lists_of_fields
    dataset, function = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    if isinstance(dataset, H5Dataset) and function in (collate, default_collate):
        return dataset.layout.shape.kind == "tuple"
    return None


def unit_of(loader: object) -> str:
    """Return the name of one entry of a batch: a sample if the dataset was opened with `samples`, else a row."""
    dataset = getattr(loader, "dataset", None)
    requests = dataset._requests if isinstance(dataset, H5Dataset) else ()
    return "row" if all(samples is None for _, samples in requests) else "sample"
