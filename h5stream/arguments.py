"""Arguments that are given under an old name, and functions that are given to the wrong argument."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from h5stream.errors import OptionError

RENAMED = {"transform": "batch_transform"}
"""The old name of each argument that was renamed, and its new one. Signatures keep the old one, None by default."""

_OF_SAMPLES = ("torchvision.transforms", "albumentations")
_OF_BATCHES = ("MixUp", "CutMix")
"""What torchvision makes for batches."""


def with_new_names(given: Mapping[str, Any], stacklevel: int) -> dict[str, Any]:
    """Return arguments under their new names, with a warning for each old one that was used.

    Examples
    --------
    >>> with_new_names({"transform": None, "batch_transform": len, "seed": 1}, stacklevel=2)
    {'batch_transform': <built-in function len>, 'seed': 1}
    """
    found = {name: value for name, value in given.items() if name not in RENAMED}
    for old in RENAMED.keys() & given.keys():
        new, value = RENAMED[old], given[old]
        if value is None:
            continue
        if found.get(new) is not None:
            raise OptionError(f"{old}= is the old name of {new}=, and both were given; leave out {old}=")
        warnings.warn(f"{old}= is called {new}= now", DeprecationWarning, stacklevel=stacklevel + 1)
        found[new] = value
    if found.pop("isolation", None) is not None:
        warnings.warn(
            "isolation= has no effect any more and goes in 0.4: threads read, and transform_workers=1 has "
            "batch_transform= applied in another process",
            DeprecationWarning,
            stacklevel=stacklevel + 1,
        )
    return found


def check_batch_transform(function: Any) -> None:
    """Refuse what is made for one sample: torchvision and albumentations would draw once for a whole batch."""
    wrong = _of_samples(function)
    if wrong is None:
        return
    name = type(function).__name__
    within = "" if wrong is function else f", which has a {type(wrong).__name__} of {_library(wrong)}"
    raise OptionError(
        f"batch_transform= gets whole batches, and {name}{within or f' of {_library(wrong)}'} is made for single "
        "samples: it would change all of a batch in the same way. Write sample_transform=FUNCTION, sample_workers=8 "
        "instead, where FUNCTION gets a sample and applies it to the image. What is meant for whole batches, such as "
        "Normalize, can be called by a function of your own"
    )


def _library(transform: Any) -> str:
    modules = (base.__module__ for base in type(transform).__mro__)
    return next((module.split(".")[0] for module in modules if module.startswith(_OF_SAMPLES)), "")


def _of_samples(function: Any) -> Any:
    """Return the first transform of single samples in a pipeline; None where there is none."""
    if isinstance(function, nn.Sequential):
        parts: Any = list(function)
    else:
        parts = getattr(function, "transforms", None)
    if isinstance(parts, Iterable) and not isinstance(parts, (str, bytes)):
        return next((found for part in parts if (found := _of_samples(part)) is not None), None)
    names = {base.__name__ for base in type(function).__mro__}
    return function if _library(function) and names.isdisjoint(_OF_BATCHES) else None
