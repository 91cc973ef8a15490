"""Arguments of the loader that few pass: old names, functions for another argument, and seeds drawn at random."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, TypedDict, get_type_hints

import torch
from torch import nn

from h5stream.base.hints import SAMPLES, hint
from h5stream.base.texts import did_you_mean
from h5stream.errors import OptionError
from h5stream.order.users import Balanced, Sized, Weighted
from h5stream.storage.layout.layout import FieldLayout
from h5stream.workers.samples import parts_of_library


class OldNames(TypedDict, total=False):
    """Old argument names: the type of each, its new name, and what to write instead."""

    transform: Annotated[
        Callable[[Any], object] | None,
        "batch_transform",
        "write batch_transform=FUNCTION, which gets whole batches, or sample_transform=FUNCTION for single samples",
    ]
    order: Annotated[object, "draw", "write draw=FUNCTION"]
    max_batch_rows: Annotated[int | Mapping[str, int] | None, "draw", "write draw=Sized(rows, field)"]
    bucket: Annotated[bool | str | None, "draw", "write draw=Sized(rows, field, bucket=True)"]
    weights: Annotated[object, "draw", "write draw=Weighted(weights)"]
    balance: Annotated[object, "draw", "write draw=Balanced(field, shares)"]
    samples_per_epoch: Annotated[
        int | None, "draw", "write draw=NUMBER, or count=NUMBER in Weighted(...) or Balanced(...)"
    ]
    replacement: Annotated[bool | None, "draw", "write draw=Weighted(..., replacement=...) or Balanced(...)"]
    isolation: Annotated[
        object, None, "it has no effect any more; transform_workers=1 applies batch_transform= elsewhere"
    ]
    allow_external: Annotated[bool | None, "allow_external", "write H5Dataset(..., allow_external=True)"]
    window_device: Annotated[object, "device", "write device=...; windows lie in this machine's memory"]
    reuse_device_buffers: Annotated[bool | None, None, "it has no effect any more; each batch owns its memory"]


OLD = {name: hint.__metadata__ for name, hint in get_type_hints(OldNames, include_extras=True).items()}

_OF_DATASETS = ("cache", "cache_size", "rows")
_TRANSFORMS = (
    "write sample_transform=FUNCTION for single samples, or batch_transform=FUNCTION, which gets whole batches"
)
_ELSEWHERE = {
    **dict.fromkeys(("transforms", "augment", "augmentation", "augmentations"), _TRANSFORMS),
    **dict.fromkeys(("key", "keys", "columns", "datasets"), 'write fields=, such as fields=["x", "y"]'),
    "collate": "write collate_fn=",
    "split": "split the dataset, train, held_out = H5Dataset(FILE).split(0.8, 0.2), and give each part to a loader",
    "normalize": "write fields=Field(NAME, normalize=...)",
    "dtype": "write fields=Field(NAME, dtype=...)",
}
"""Arguments of other libraries, and what to write instead."""
_OF_SAMPLES = ("torchvision.transforms", "albumentations")
_OF_BATCHES = ("MixUp", "CutMix")
"""Transforms of torchvision that are made for batches."""


def with_new_names(arguments: Mapping[str, Any], stacklevel: int, names: Iterable[str] = ()) -> dict[str, Any]:
    """Return arguments under their new names, with a warning for each old one that was used.

    The entry ``"old"`` may hold a signature's ``**old``, the arguments without a parameter; `names` are those that have
    one.
    """
    others = arguments.get("old", {})
    for name in others.keys() - OLD.keys():
        if name == "numpy":
            raise TypeError("numpy= belongs to H5Dataset; a loader gives tensors, and x.numpy() copies nothing")
        if name in _ELSEWHERE:
            raise TypeError(f"there is no argument {name}=: {_ELSEWHERE[name]}")
        if name in _OF_DATASETS:
            raise TypeError(f"{name}= belongs to the dataset: H5StreamLoader(H5Dataset(..., {name}=...), ...)")
        raise TypeError(f"there is no argument {name}=.{did_you_mean(name, names)}")
    new_ones = {name: value for name, value in arguments.items() if name not in (*OLD, "old")}
    used = {old: value for old, value in {**arguments, **others}.items() if old in OLD and value is not None}
    renamed = dict(new_ones)
    for old, value in used.items():
        new, written = OLD[old]
        if new is not None and new_ones.get(new) is None:
            renamed[new] = value
        elif new not in (None, "device"):
            raise OptionError(f"{old}= is an old name of {new}=, and both were given; leave out {old}=")
        warnings.warn(f"{old}= will be removed in 0.4: {written}", DeprecationWarning, stacklevel=stacklevel + 1)
    if renamed.get("draw") is not new_ones.get("draw"):
        renamed["draw"] = _draw_of(used)
    if renamed.get("keep") == "device":
        text = "keep='device' will be removed in 0.4: write keep='auto', which keeps samples in this machine's memory"
        warnings.warn(text, DeprecationWarning, stacklevel=stacklevel + 1)
        renamed["keep"] = "auto"
    return renamed


def _draw_of(old: Mapping[str, Any]) -> Any:
    """Return the ``draw=`` that its old names stand for, one or several of them."""
    order, weights, balance, rows = (old.get(name) for name in ("order", "weights", "balance", "max_batch_rows"))
    how = {"count": old.get("samples_per_epoch"), "replacement": old.get("replacement", True)}
    if weights is not None and balance is not None:
        raise OptionError("weights= and balance= both say how often each sample comes; leave out one of them")
    if isinstance(balance, Mapping):
        if len(balance) != 1:
            raise OptionError(f"balance= takes the shares of one field, such as {{'y': {{0: 1}}}}, not {balance!r}")
        draw: Any = Balanced(*next(iter(balance.items())), **how)
    elif balance is not None:
        draw = Balanced(balance, **how)
    else:
        draw = how["count"] if weights is None and "replacement" not in old else Weighted(weights, **how)
    if rows is not None or old.get("bucket", False) is not False:
        bucket: Any = old.get("bucket", False)
        bucket, field = (True, bucket) if isinstance(bucket, str) else (bucket, None)
        if isinstance(rows, Mapping) and len(rows) == 1:
            ((named, rows),) = rows.items()
            if field not in (None, named):
                raise OptionError(f"max_batch_rows= names {named!r} and bucket= {field!r}; name one field in both")
            field = named
        draw = Sized(rows, field, bucket, draw)
    if order is not None and (draw is not None or not callable(order)):
        raise OptionError(
            "order= takes a function, which decides alone how often samples come and in which batches, not "
            f"{order!r} with {', '.join(old)}"
        )
    return draw if order is None else order


def check_batch_transform(function: object) -> None:
    """Raise for transforms of single samples: torchvision's and albumentations' would draw once per batch."""
    for part in _parts_of(function):
        bases = type(part).__mro__
        library = next((base.__module__.split(".")[0] for base in bases if base.__module__.startswith(_OF_SAMPLES)), "")
        if library and not any(base.__name__ in _OF_BATCHES for base in bases):
            within = "" if part is function else f"{type(function).__name__}, which has a "
            raise OptionError(
                f"batch_transform= gets whole batches, and {within}{type(part).__name__} of {library} is made for "
                "single samples: it would change all of a batch in the same way. Write sample_transform=FUNCTION, "
                "sample_workers=8 instead, where FUNCTION gets a sample and applies it to the image. What is meant for "
                "whole batches, such as Normalize, can be called by a function of your own"
            )


CHANNELS = (1, 3, 4)
"""Lengths of an axis that is taken for colours."""


def hint_of_channels(function: object, fields: Iterable[FieldLayout]) -> None:
    """Hint at images with channels last if a transform of torchvision, which needs them first, gets them."""
    for field in fields:
        height, *_, channels = field.row_shape[-3:] if len(field.row_shape) > 2 else (1, 1)
        is_last = channels in CHANNELS and height not in CHANNELS
        if function is None or not (is_last or (field.images is not None and field.kind == "object")):
            continue
        parts = parts_of_library(function, "torchvision.transforms")
        if parts:
            name, shape = type(parts[0]).__name__, "x".join(map(str, field.row_shape)) or "height x width x channels"
            hint(
                f"sample_transform= reaches {name} of torchvision, which takes images as (channels, height, width); "
                f"field {field.name!r} has its channels last ({shape}): it would change the wrong axes. Call it with "
                "image.permute(2, 0, 1)",
                SAMPLES,
            )
        return


def _parts_of(function: object) -> Iterator[object]:
    """Yield the transforms of a pipeline, or the function itself."""
    parts = list(function) if isinstance(function, nn.Sequential) else getattr(function, "transforms", None)
    if isinstance(parts, Iterable) and not isinstance(parts, (str, bytes)):
        for part in parts:
            yield from _parts_of(part)
    else:
        yield function


class DrawnSeed(int):
    """A seed drawn at random: a state's seed overrides it, and several ranks, which would draw several, use 0."""


def drawn_seed(generator: torch.Generator | None = None, *, needed: bool = True) -> DrawnSeed:
    """Draw a seed from a generator, by default torch's own, as `DataLoader` does; 0 if none is needed."""
    if not needed:
        return DrawnSeed(0)
    return DrawnSeed(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())
