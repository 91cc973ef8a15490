"""Train from plain HDF5 files at the speed of the hardware, without converting them.

Importing does nothing but define names: no GPU is probed, no environment is read, no logging is set up. The
names are looked up when they are first used, so that `h5stream monitor` need not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from h5stream._version import __version__

if TYPE_CHECKING:
    from h5stream import errors
    from h5stream.advice.diagnose import diagnose
    from h5stream.advice.tune import tune
    from h5stream.dataset.collating import collate
    from h5stream.dataset.dataset import H5Dataset
    from h5stream.dataset.mixture import Mixture
    from h5stream.errors import H5StreamError
    from h5stream.loader.loader import H5StreamLoader
    from h5stream.loader.sampler import ChunkBatchSampler
    from h5stream.order.users import Balanced, Sized, Weighted
    from h5stream.repacking.repack import repack
    from h5stream.samples.boxes import Boxes
    from h5stream.samples.columns import Padding, SampleNumber, SourceNumber, Values
    from h5stream.samples.kinds import Objects, Rows, Sequences
    from h5stream.samples.ragged import Crop, Ragged
    from h5stream.samples.segments import Between, Bounds, Ends, Ids, Lengths
    from h5stream.samples.table import Table
    from h5stream.staging import stage, staged
    from h5stream.storage.layout.field_options import Take
    from h5stream.storage.layout.fields import Field


_HOMES = {
    "h5stream.advice.diagnose": ("diagnose",),
    "h5stream.advice.tune": ("tune",),
    "h5stream.dataset.collating": ("collate",),
    "h5stream.dataset.dataset": ("H5Dataset",),
    "h5stream.errors": ("H5StreamError",),
    "h5stream.loader.loader": ("H5StreamLoader",),
    "h5stream.dataset.mixture": ("Mixture",),
    "h5stream.order.users": ("Balanced", "Sized", "Weighted"),
    "h5stream.repacking.repack": ("repack",),
    "h5stream.loader.sampler": ("ChunkBatchSampler",),
    "h5stream.samples.boxes": ("Boxes",),
    "h5stream.samples.columns": ("Padding", "SampleNumber", "SourceNumber", "Values"),
    "h5stream.samples.kinds": ("Objects", "Rows", "Sequences"),
    "h5stream.samples.ragged": ("Crop", "Ragged"),
    "h5stream.samples.segments": ("Between", "Bounds", "Ends", "Ids", "Lengths"),
    "h5stream.samples.table": ("Table",),
    "h5stream.staging": ("stage", "staged"),
    "h5stream.storage.layout.field_options": ("Take",),
    "h5stream.storage.layout.fields": ("Field",),
}

__all__ = [
    "Balanced",
    "Between",
    "Bounds",
    "Boxes",
    "ChunkBatchSampler",
    "Crop",
    "Ends",
    "Field",
    "H5Dataset",
    "H5StreamError",
    "H5StreamLoader",
    "Ids",
    "Lengths",
    "Mixture",
    "Objects",
    "Padding",
    "Ragged",
    "Rows",
    "SampleNumber",
    "Sequences",
    "Sized",
    "SourceNumber",
    "Table",
    "Take",
    "Values",
    "Weighted",
    "__version__",
    "collate",
    "diagnose",
    "errors",
    "repack",
    "stage",
    "staged",
    "tune",
]


if not TYPE_CHECKING:  # so that a type checker reports names that do not exist

    def __getattr__(name: str) -> object:
        if name in ("advice", "errors", "monitor", "order", "results", "samples", "staging", "training"):
            return importlib.import_module(f"h5stream.{name}")
        for home in (home for home, names in _HOMES.items() if name in names):
            value = globals()[name] = getattr(importlib.import_module(home), name)
            return value
        rooms = () if name.startswith("_") else ("monitor", "order", "results", "training")
        home = next((room for room in rooms if hasattr(importlib.import_module(f"h5stream.{room}"), name)), "")
        way_out = f": it is h5stream.{home}.{name}" if home else ""
        raise AttributeError(f"module 'h5stream' has no attribute {name!r}{way_out}")


def __dir__() -> list[str]:
    return sorted(__all__)
