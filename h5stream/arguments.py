"""Arguments that are given under an old name, and functions that are given to the wrong argument."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypedDict, get_type_hints

from torch import nn

from h5stream.errors import OptionError
from h5stream.order.draw import Balanced, Sized, Weighted
from h5stream.storage.nearest import did_you_mean


class OldNames(TypedDict, total=False):
    """Each argument of an old name, the one that took its place, and what to write."""

    transform: Annotated[Callable[[Any], Any] | None, "batch_transform", "write batch_transform=FUNCTION"]
    order: Annotated[Any, "draw", "write draw=FUNCTION"]
    max_batch_rows: Annotated[int | Mapping[str, int] | None, "draw", "write draw=Sized(rows, field)"]
    bucket: Annotated[bool | str | None, "draw", "write draw=Sized(rows, field, bucket=True)"]
    weights: Annotated[Any, "draw", "write draw=Weighted(weights)"]
    balance: Annotated[Any, "draw", "write draw=Balanced(field, shares)"]
    samples_per_epoch: Annotated[
        int | None, "draw", "write draw=NUMBER, or count=NUMBER in Weighted(...) or Balanced(...)"
    ]
    replacement: Annotated[bool | None, "draw", "write draw=Weighted(..., replacement=...) or Balanced(...)"]
    isolation: Annotated[Any, None, "it has no effect any more; transform_workers=1 applies batch_transform= elsewhere"]
    allow_external: Annotated[bool | None, "allow_external", "write H5Dataset(..., allow_external=True)"]
    window_device: Annotated[Any, "device", "write device=...; windows lie in this machine's memory"]
    reuse_device_buffers: Annotated[bool | None, None, "it has no effect any more; each batch owns its memory"]


OLD = {name: hint.__metadata__ for name, hint in get_type_hints(OldNames, include_extras=True).items()}

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
    new_ones = {name: value for name, value in given.items() if name not in (*OLD, "old")}
    used = {old: value for old, value in {**given, **others}.items() if old in OLD and value is not None}
    found = dict(new_ones)
    for old, value in used.items():
        new, written = OLD[old]
        if new is not None and new_ones.get(new) is None:
            found[new] = value
        elif new not in (None, "device"):
            raise OptionError(f"{old}= is an old name of {new}=, and both were given; leave out {old}=")
        warnings.warn(f"{old}= will be removed in 0.4: {written}", DeprecationWarning, stacklevel=stacklevel + 1)
    if found.get("draw") is not new_ones.get("draw"):
        found["draw"] = _draw_of(used)
    if found.get("keep") == "device":
        text = "keep='device' will be removed in 0.4: write keep='auto', which keeps samples in this machine's memory"
        warnings.warn(text, DeprecationWarning, stacklevel=stacklevel + 1)
        found["keep"] = "auto"
    return found


def _draw_of(old: Mapping[str, Any]) -> Any:
    """Return what ``draw=`` takes for its old names, one or several of them."""
    order, rows, bucket = old.get("order"), old.get("max_batch_rows"), old.get("bucket", False)
    drawn = _drawn_of(old)
    if rows is not None or bucket is not False:
        field = bucket if isinstance(bucket, str) else None
        if isinstance(rows, Mapping) and len(rows) == 1:
            ((named, rows),) = rows.items()
            if field not in (None, named):
                raise OptionError(f"max_batch_rows= names {named!r} and bucket= {field!r}; name one field in both")
            field = named
        drawn = Sized(rows, field, True if isinstance(bucket, str) else bucket, drawn)
    if order is None:
        return drawn
    if not callable(order) or drawn is not None:
        raise OptionError(
            f"order= takes a function, which decides alone how often samples come and in which batches, not {order!r}"
            + (" with other arguments that say so" if callable(order) else "")
        )
    return order


def _drawn_of(old: Mapping[str, Any]) -> Any:
    weights, balance, count = (old.get(name) for name in ("weights", "balance", "samples_per_epoch"))
    if weights is not None and balance is not None:
        raise OptionError("weights= and balance= both say how often each sample comes; leave out one of them")
    how = {"count": count, "replacement": old.get("replacement", True)}
    if balance is None:
        return count if weights is None and "replacement" not in old else Weighted(weights, **how)
    if not isinstance(balance, Mapping):
        return Balanced(balance, **how)
    if len(balance) != 1:
        raise OptionError(f"balance= takes the shares of one field, such as {{'y': {{0: 1, 1: 2}}}}, not {balance!r}")
    return Balanced(*next(iter(balance.items())), **how)


def check_batch_transform(function: Any) -> None:
    """Refuse what is made for one sample: torchvision and albumentations would draw once for a whole batch."""
    if (wrong := _of_samples(function)) is None:
        return
    made = f"{type(wrong).__name__} of {_library(wrong)}"
    within = "" if wrong is function else f"{type(function).__name__}, which has a "
    raise OptionError(
        f"batch_transform= gets whole batches, and {within}{made} is made for single "
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
