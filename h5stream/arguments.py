"""Arguments that are given under an old name, and functions that are given to the wrong argument."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

from torch import nn

from h5stream.errors import OptionError
from h5stream.order.draw import Balanced, Sized, Weighted
from h5stream.storage.nearest import did_you_mean


class OldNames(TypedDict, total=False):
    """The arguments of old names, and their types."""

    transform: Callable[[Any], Any] | None
    order: Any
    max_batch_rows: int | Mapping[str, int] | None
    bucket: bool | str | None
    weights: Any
    balance: Any
    samples_per_epoch: int | None
    replacement: bool | None
    isolation: Any
    allow_external: bool | None
    window_device: Any
    reuse_device_buffers: bool | None


OLD: dict[str, tuple[str | None, str]] = {
    "transform": ("batch_transform", "write batch_transform=FUNCTION"),
    "order": ("draw", "write draw=FUNCTION"),
    "max_batch_rows": ("draw", "write draw=Sized(rows, field)"),
    "bucket": ("draw", "write draw=Sized(rows, field, bucket=True)"),
    "weights": ("draw", "write draw=Weighted(weights)"),
    "balance": ("draw", "write draw=Balanced(field, shares)"),
    "samples_per_epoch": ("draw", "write draw=NUMBER, or count=NUMBER in Weighted(...) or Balanced(...)"),
    "replacement": ("draw", "write draw=Weighted(..., replacement=...) or Balanced(..., replacement=...)"),
    "window_device": (None, "write device=...; windows lie in this machine's memory"),
    "reuse_device_buffers": (None, "it has no effect any more; each batch owns its memory for as long as it is kept"),
    "isolation": (None, "it has no effect any more; transform_workers=1 has batch_transform= applied elsewhere"),
    "allow_external": (None, "write H5Dataset(..., allow_external=True)"),
}
"""Each argument of an old name, the one that took its place, and what to write."""

_OF_DATASETS = ("cache", "cache_size", "rows", "numpy")
_OF_SAMPLES = ("torchvision.transforms", "albumentations")
_OF_BATCHES = ("MixUp", "CutMix")
"""What torchvision makes for batches."""


def with_new_names(given: Mapping[str, Any], stacklevel: int) -> dict[str, Any]:
    """Return arguments under their new names, with a warning for each old one that was used.

    What a signature has no name for, ``**old``, may be among them as ``"old"``.
    """
    others = given.get("old", {})
    for name in others.keys() - OLD.keys():
        if name in _OF_DATASETS:
            raise TypeError(f"{name}= belongs to the dataset: H5StreamLoader(H5Dataset(..., {name}=...), ...)")
        raise TypeError(f"there is no argument {name}=.{did_you_mean(name, given)}")
    found = {name: value for name, value in given.items() if name not in (*OLD, "old")}
    used = {old: value for old, value in {**given, **others}.items() if old in OLD and value is not None}
    for old in used:
        new, written = OLD[old]
        if new is not None and found.get(new) is not None:
            raise OptionError(f"{old}= is an old name of {new}=, and both were given; leave out {old}=")
        warnings.warn(f"{old}= will be removed in 0.4: {written}", DeprecationWarning, stacklevel=stacklevel + 1)
    if found.get("keep") == "device":
        text = "keep='device' will be removed in 0.4: write keep='auto', which keeps samples in this machine's memory"
        warnings.warn(text, DeprecationWarning, stacklevel=stacklevel + 1)
        found["keep"] = "auto"
    if "window_device" in used and found.get("device") is None:  # batches came there, and still do
        found["device"] = used["window_device"]
    if "transform" in used:
        found["batch_transform"] = used["transform"]
    if "allow_external" in used:  # the files are opened with it as before
        found["allow_external"] = used["allow_external"]
    if (draw := _draw_of(used)) is not None:
        found["draw"] = draw
    return found


def _draw_of(old: Mapping[str, Any]) -> Any:
    """Return what ``draw=`` takes for its old names."""
    order = old.get("order")
    drawn = _sized_of(old, _drawn_of(old))
    if order is None:
        return drawn
    if not callable(order) or drawn is not None:
        raise OptionError(
            f"order= takes a function, which decides alone how often samples come and in which batches, not {order!r}"
            + (" with other arguments that say so" if callable(order) else "")
        )
    return order


def _drawn_of(old: Mapping[str, Any]) -> Weighted | Balanced | int | None:
    weights, balance, count = (old.get(name) for name in ("weights", "balance", "samples_per_epoch"))
    if weights is not None and balance is not None:
        raise OptionError("weights= and balance= both say how often each sample comes; leave out one of them")
    how = {"count": count, "replacement": old.get("replacement", True)}
    if isinstance(balance, Mapping):
        if len(balance) != 1:
            raise OptionError(
                f"balance= takes the shares of one field, such as {{'y': {{0: 1, 1: 2}}}}, not {balance!r}"
            )
        return Balanced(*next(iter(balance.items())), **how)
    if balance is not None:
        return Balanced(balance, **how)
    return count if weights is None and "replacement" not in old else Weighted(weights, **how)


def _sized_of(old: Mapping[str, Any], drawn: Any) -> Any:
    rows, bucket = old.get("max_batch_rows"), old.get("bucket", False)
    if rows is None and bucket is False:
        return drawn
    field = bucket if isinstance(bucket, str) else None
    if isinstance(rows, Mapping) and len(rows) == 1:
        named, rows = next(iter(rows.items()))
        if field not in (None, named):
            raise OptionError(f"max_batch_rows= names {named!r} and bucket= names {field!r}; name one field in both")
        field = named
    return Sized(rows, field, True if isinstance(bucket, str) else bucket, drawn)


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
