"""Advice about training, whatever loads the data: batch size, GPU memory, learning rate, accumulation, precision.

`track` shows how a training loop goes. Each other function returns a `Suggestion` and changes nothing. Most is
arithmetic; `activations` and `batch_search` measure, and are started by the user on purpose. Advice about the loader
stands in `h5stream.advice`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from h5stream.advice.track import track
    from h5stream.training.activations import ActivationMemory, measure_activations
    from h5stream.training.batch_search import BatchSearch, find_batch_size
    from h5stream.training.presets import GpuPreset, preset_for

__all__ = [
    "ActivationMemory",
    "BatchSearch",
    "GpuPreset",
    "find_batch_size",
    "measure_activations",
    "preset_for",
    "track",
]


def __getattr__(name: str) -> Any:
    homes = [
        f"{__name__}.{file}" for file in ("presets", "activations", "batch_search")
    ]  # all but the first need torch
    for home in (*homes, "h5stream.advice.track") if name in __all__ else ():
        if hasattr(module := importlib.import_module(home), name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
