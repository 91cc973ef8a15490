"""The settings of a loader as they are, read from whatever loader it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h5stream.storage.layout import DECODED, VIA_H5PY


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderKnobs:
    """What a loader is set to; None where it has no such setting.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> LoaderKnobs.of(DataLoader([1, 2, 3], batch_size=2)).batch_size
    2
    """

    batch_size: int | None = None
    """Rows of a batch."""
    num_workers: int | None = None
    """Reader threads, or worker processes of a stock `DataLoader`."""
    prefetch_factor: int | None = None
    """Batches ahead."""
    window_rows: int | None = None
    first_window_rows: int | None = None
    """Rows that are shuffled with one another, and those of an epoch's first window."""
    persistent_workers: bool | None = None
    pin_memory: bool | None = None
    """As in `DataLoader`."""
    batch_transform: str | None = None
    collate_fn: str | None = None
    """Names of the functions that run for each batch, or each sample."""
    filters: str = ""
    """How the field with the most bytes is compressed; empty if it is not, or if that is not known."""
    via_h5py: str = ""
    """Why a field is read through h5py; empty if none is."""

    @classmethod
    def of(cls, loader: Any) -> LoaderKnobs:
        """Read the settings of a loader; any object will do."""
        batch_size = _number(loader, "batch_size")
        ours = getattr(loader, "window_size", None)
        filters, via_h5py = _storage_of(loader)
        return cls(
            batch_size=_number(getattr(loader, "batch_sampler", None), "batch_size")
            if batch_size is None
            else batch_size,
            num_workers=_number(loader, "num_workers"),
            prefetch_factor=_number(loader, "prefetch_factor"),
            window_rows=_number(ours, "window_rows"),
            first_window_rows=_number(ours, "first_window_rows"),
            persistent_workers=getattr(loader, "persistent_workers", None),
            pin_memory=getattr(loader, "pin_memory", None),
            batch_transform=_name(getattr(loader, "batch_transform", None)),
            # A stock DataLoader always has one: torch's own is nothing that its user could leave out.
            collate_fn=_name(getattr(loader, "collate_fn", None), without=("default_collate", "default_convert")),
            filters=filters,
            via_h5py=via_h5py,
        )


def _number(owner: Any, name: str) -> int | None:
    value = getattr(owner, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _name(function: Any, without: tuple[str, ...] = ()) -> str | None:
    if function is None:
        return None
    name = str(getattr(function, "__name__", type(function).__name__))
    return None if name in without else name


def _storage_of(loader: Any) -> tuple[str, str]:
    layout = getattr(getattr(loader, "dataset", None), "layout", None)
    parts = [parts[0] for parts in getattr(layout, "datasets", ())]
    decoded = [part for part in parts if part.access == DECODED]
    widest = max(decoded, key=lambda part: part.stored_row_nbytes, default=None)
    slow = next((part for part in parts if part.access == VIA_H5PY), None)
    return (
        widest.pipeline.describe() if widest is not None else "",
        f"{slow.path}: {slow.reason}" if slow is not None else "",
    )
