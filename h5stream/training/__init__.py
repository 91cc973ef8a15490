"""Advice about training, whatever loads the data: batch size, GPU memory, learning rate, accumulation, precision.

`track` shows how a training loop goes. Each other function returns a `Suggestion` and changes nothing. Most is
arithmetic; what is in `measured` measures, and is started by the user on purpose. Advice about the loader
stands in `h5stream.advice`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from h5stream.advice.track import track
    from h5stream.training.measured import ActivationMemory, BatchSearch, find_batch_size, measure_activations
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


if not TYPE_CHECKING:  # so that a type checker finds names that are not there

    def __getattr__(name: str) -> Any:
        homes = ("training.presets", "training.measured", "advice.track")  # all but the first need torch
        for home in homes if name in __all__ else ():
            if hasattr(module := importlib.import_module(f"h5stream.{home}"), name):
                return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
