"""Train from plain HDF5 files at the speed of the hardware, without converting them.

Importing does nothing but define names: no GPU is probed, no environment is read, no logging is set up. The
names are looked up when they are first used, so that `h5stream monitor` need not wait for torch.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from h5stream._version import __version__

if TYPE_CHECKING:
    from h5stream import errors
    from h5stream.advice.diagnose import Diagnosis, diagnose
    from h5stream.advice.track import EpochSummary, track
    from h5stream.advice.tune import Tuning, tune
    from h5stream.dataset import H5Dataset, collate
    from h5stream.engine.statistics import LoaderStatistics
    from h5stream.errors import H5StreamError
    from h5stream.field_statistics import FieldStatistics
    from h5stream.loader import H5StreamLoader
    from h5stream.mixture import Mixture
    from h5stream.monitor import SystemMonitor
    from h5stream.order.draw import Balanced, Sized, Weighted
    from h5stream.repacking.repack import RepackResult, repack
    from h5stream.sampler import ChunkBatchSampler
    from h5stream.samples.boxes import Boxes
    from h5stream.samples.columns import Padding, SampleNumber, SourceNumber, Values
    from h5stream.samples.objects import Objects, Rows
    from h5stream.samples.segments import Bounds, Ends, Ids, Lengths
    from h5stream.samples.sequences import Sequences
    from h5stream.samples.stretches import Between, Crop
    from h5stream.samples.table import Table
    from h5stream.staging import StagedFiles, stage, staged
    from h5stream.storage.fields import Field
    from h5stream.structure import Packed, Padded, SparseRows
    from h5stream.training.activations import ActivationMemory, measure_activations
    from h5stream.training.batch_search import BatchSearch, find_batch_size
    from h5stream.training.presets import GpuPreset, preset_for

_MOVED = {"Blocks", "Order", "Ranks", "Window"}
"""Names that were here, and are in `h5stream.order` since 0.3."""

_HOMES = {
    "ActivationMemory": "h5stream.training.activations",
    "Balanced": "h5stream.order.draw",
    "BatchSearch": "h5stream.training.batch_search",
    "Between": "h5stream.samples.stretches",
    "Bounds": "h5stream.samples.segments",
    "Boxes": "h5stream.samples.boxes",
    "ChunkBatchSampler": "h5stream.sampler",
    "Crop": "h5stream.samples.stretches",
    "Diagnosis": "h5stream.advice.diagnose",
    "Ends": "h5stream.samples.segments",
    "EpochSummary": "h5stream.advice.track",
    "Field": "h5stream.storage.fields",
    "FieldStatistics": "h5stream.field_statistics",
    "GpuPreset": "h5stream.training.presets",
    "H5Dataset": "h5stream.dataset",
    "H5StreamError": "h5stream.errors",
    "H5StreamLoader": "h5stream.loader",
    "Ids": "h5stream.samples.segments",
    "Lengths": "h5stream.samples.segments",
    "LoaderStatistics": "h5stream.engine.statistics",
    "Mixture": "h5stream.mixture",
    "Objects": "h5stream.samples.objects",
    "Packed": "h5stream.structure",
    "Padded": "h5stream.structure",
    "Padding": "h5stream.samples.columns",
    "RepackResult": "h5stream.repacking.repack",
    "Rows": "h5stream.samples.objects",
    "SampleNumber": "h5stream.samples.columns",
    "Sequences": "h5stream.samples.sequences",
    "Sized": "h5stream.order.draw",
    "SourceNumber": "h5stream.samples.columns",
    "SparseRows": "h5stream.structure",
    "StagedFiles": "h5stream.staging",
    "SystemMonitor": "h5stream.monitor",
    "Table": "h5stream.samples.table",
    "Tuning": "h5stream.advice.tune",
    "Values": "h5stream.samples.columns",
    "Weighted": "h5stream.order.draw",
    "collate": "h5stream.dataset",
    "diagnose": "h5stream.advice.diagnose",
    "find_batch_size": "h5stream.training.batch_search",
    "measure_activations": "h5stream.training.activations",
    "preset_for": "h5stream.training.presets",
    "repack": "h5stream.repacking.repack",
    "stage": "h5stream.staging",
    "staged": "h5stream.staging",
    "track": "h5stream.advice.track",
    "tune": "h5stream.advice.tune",
}

__all__ = [
    "ActivationMemory",
    "Balanced",
    "BatchSearch",
    "Between",
    "Bounds",
    "Boxes",
    "ChunkBatchSampler",
    "Crop",
    "Diagnosis",
    "Ends",
    "EpochSummary",
    "Field",
    "FieldStatistics",
    "GpuPreset",
    "H5Dataset",
    "H5StreamError",
    "H5StreamLoader",
    "Ids",
    "Lengths",
    "LoaderStatistics",
    "Mixture",
    "Objects",
    "Packed",
    "Padded",
    "Padding",
    "RepackResult",
    "Rows",
    "SampleNumber",
    "Sequences",
    "Sized",
    "SourceNumber",
    "SparseRows",
    "StagedFiles",
    "SystemMonitor",
    "Table",
    "Tuning",
    "Values",
    "Weighted",
    "__version__",
    "collate",
    "diagnose",
    "errors",
    "find_batch_size",
    "measure_activations",
    "preset_for",
    "repack",
    "stage",
    "staged",
    "track",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("h5stream.errors")
    if name in _MOVED:
        warnings.warn(f"h5stream.{name} goes in 0.4: write h5stream.order.{name}", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module("h5stream.order"), name)
    if name not in _HOMES:
        raise AttributeError(f"module 'h5stream' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
