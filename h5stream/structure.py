"""Batches have the user's structure; these functions work on whatever it is."""

from __future__ import annotations

from typing import Any

import torch

from h5stream.errors import OptionError


def copy_batch(batch: Any, static: Any) -> int:
    """Copy a batch into tensors of the same structure, and give its rows.

    Raises
    ------
    OptionError
        If the structures differ, or a tensor has too few rows, another row shape or another dtype.
    """
    if isinstance(batch, torch.Tensor):
        fits = isinstance(static, torch.Tensor) and static.dtype == batch.dtype and static.ndim == batch.ndim
        if not fits or static.shape[1:] != batch.shape[1:] or len(static) < len(batch):
            what = (
                f"{static.dtype} {tuple(static.shape)}" if isinstance(static, torch.Tensor) else type(static).__name__
            )
            raise OptionError(
                f"copy_into needs a {batch.dtype} tensor of at least {len(batch)} rows of {tuple(batch.shape[1:])}, "
                f"not {what}"
            )
        static[: len(batch)].copy_(batch, non_blocking=True)
        return len(batch)
    if isinstance(batch, dict) and isinstance(static, dict) and batch.keys() == static.keys():
        return min(copy_batch(batch[key], static[key]) for key in batch)
    if isinstance(batch, tuple) and isinstance(static, (tuple, list)) and len(batch) == len(static):
        return min(copy_batch(a, b) for a, b in zip(batch, static, strict=True))
    raise OptionError(
        f"copy_into needs tensors in the structure of a batch, {type(batch).__name__}, not {type(static)}"
    )
