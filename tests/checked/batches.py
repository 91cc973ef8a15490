"""The types of batches, for type checkers: `mypy` reads it with the package. Nothing runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import torch

from h5stream import Field, H5Dataset, H5StreamLoader


def count(batch: Any) -> int:
    """Stand for a function of whole batches."""
    return len(batch)


def lengths(samples: list[tuple[torch.Tensor, ...]]) -> tuple[int, ...]:
    """Stand for a function that collates samples."""
    return tuple(map(len, samples))


def fields_tell(path: Path) -> None:
    assert_type(H5StreamLoader(path, 64, shuffle=True, fields=["x", "y"], seed=0), H5StreamLoader[list[torch.Tensor]])
    assert_type(H5StreamLoader([path, path], fields=("x", "y")), H5StreamLoader[list[torch.Tensor]])
    assert_type(H5StreamLoader("a.h5", 64, fields="x", window="all", num_workers=2), H5StreamLoader[torch.Tensor])
    assert_type(H5StreamLoader(path, fields={"image": "x", "label": Field("y")}), H5StreamLoader[dict[str, Any]])


def functions_tell(path: Path) -> None:
    assert_type(H5StreamLoader(path, 64, fields=["x"], batch_transform=count), H5StreamLoader[int])
    collated = H5StreamLoader(path, 64, fields=["x", "y"], collate_fn=lengths, sample_workers=2)
    assert_type(collated, H5StreamLoader[tuple[int, ...]])


def others_are_open(path: Path) -> None:
    assert_type(H5StreamLoader(path, 64), H5StreamLoader[Any])
    assert_type(H5StreamLoader(path, 64, fields=["x", Field("text")]), H5StreamLoader[Any])
    assert_type(H5StreamLoader(path, None, fields=["x", "y"]), H5StreamLoader[Any])
    assert_type(H5StreamLoader(H5Dataset(path), 64, True), H5StreamLoader[Any])
    assert_type(H5StreamLoader.from_profile("profile.toml"), H5StreamLoader[Any])


def train(loader: H5StreamLoader) -> None:
    for x, y in loader:
        x.sub_(y)


def classify(loader: H5StreamLoader[list[torch.Tensor]]) -> None:
    for x, y in loader:
        assert_type(x.sub_(y), torch.Tensor)


def users(path: Path) -> None:
    train(H5StreamLoader(path, fields=["x", "y"]))
    classify(H5StreamLoader(path, fields=["x", "y"]))
    classify(H5StreamLoader(path, fields="x"))  # type: ignore[arg-type]
    with H5StreamLoader(path, fields="x") as images:
        for batch in images:
            assert_type(batch, torch.Tensor)
