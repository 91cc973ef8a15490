"""Arguments of the loader: names of earlier versions, functions for another argument, and seeds drawn at random."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from h5stream.base.hints import SAMPLES, hint
from h5stream.errors import OptionError
from h5stream.storage.layout.layout import FieldLayout
from h5stream.workers.samples import parts_of_library

_TRANSFORMS = (
    "write sample_transform=FUNCTION for single samples, or batch_transform=FUNCTION, which gets whole batches"
)
_DRAW = {
    "order": "FUNCTION; shuffle=True shuffles",
    "max_batch_rows": "Sized(rows, field)",
    "bucket": "Sized(rows, field, bucket=True)",
    "weights": "Weighted(weights)",
    "balance": "Balanced(field, shares)",
    "samples_per_epoch": "NUMBER, or count=NUMBER in Weighted(...) or Balanced(...)",
    "replacement": "Weighted(..., replacement=...) or Balanced(...)",
}
_OF_DATASETS = ("allow_external", "cache", "cache_size", "rows")
WAY_OUTS = {
    **dict.fromkeys(("transform", "transforms", "augment", "augmentation", "augmentations"), _TRANSFORMS),
    **dict.fromkeys(("key", "keys", "columns", "datasets"), 'write fields=, such as fields=["x", "y"]'),
    **{name: f"write draw={draw}" for name, draw in _DRAW.items()},
    **{name: f"it belongs to the dataset, H5StreamLoader(H5Dataset(..., {name}=...), ...)" for name in _OF_DATASETS},
    "collate": "write collate_fn=",
    "buffer_size": "write window=, the number of rows that are shuffled with one another",
    **dict.fromkeys(("num_parallel_calls", "num_threads"), "write num_workers="),
    "split": "split the dataset, train, held_out = H5Dataset(FILE).split(0.8, 0.2), and give each part to a loader",
    "normalize": "write fields=Field(NAME, normalize=...)",
    "dtype": "write fields=Field(NAME, dtype=...)",
    "numpy": "a loader gives tensors, and x.numpy() copies nothing; H5Dataset(..., numpy=True) has samples as arrays",
    "isolation": "transform_workers=1 applies batch_transform= in another process",
    "window_device": "write device=...",
    "reuse_device_buffers": "leave it out; each batch owns its memory",
}
"""What to write in place of arguments of earlier versions and of other libraries."""

OLD = frozenset({"transform", *_DRAW, "allow_external", "isolation", "window_device", "reuse_device_buffers"})
"""Arguments, and attributes, of earlier versions."""
_OF_SAMPLES = ("torchvision.transforms", "albumentations")
_OF_BATCHES = ("MixUp", "CutMix")
"""Transforms of torchvision that are made for batches."""


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
