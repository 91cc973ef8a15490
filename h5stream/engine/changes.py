"""What is done to a field's numbers on their way into a batch: a cast, a normalisation, or both."""

from __future__ import annotations

from typing import Any

import torch

from h5stream.samples.normalising import Normalisation

NARROW = (torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.bool)
"""Types whose every number a float32 holds; others are worked on as float64, and rounded at the end."""


class Change:
    """Casts numbers, and normalises them where that is asked for.

    # Guarantees: any thread may call; constants are made once for each device, and stay.
    """

    def __init__(self, dtype: torch.dtype, normalisation: Normalisation | None = None) -> None:
        self.dtype, self.normalisation = dtype, normalisation
        self._constants: dict[tuple[Any, torch.dtype], tuple[Any, Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Change, (self.dtype, self.normalisation)

    def on_host(self, raw: torch.Tensor) -> torch.Tensor:
        """Return the numbers changed; in place where their type stays, for a batch owns its memory."""
        if self.normalisation is None:
            return raw.to(self.dtype)
        out = raw if raw.dtype == self.dtype else torch.empty_like(raw, dtype=self.dtype)
        self.into(out, raw)
        return out

    def into(self, out: torch.Tensor, raw: torch.Tensor) -> None:
        """Write the numbers, changed; what it launches goes to the current stream."""
        asked = self.normalisation
        if asked is None:
            out.copy_(raw)
            return
        wide = raw.dtype not in NARROW or self.dtype == torch.float64
        dtype = torch.float64 if wide else torch.float32
        work = out if out.dtype == dtype else torch.empty_like(out, dtype=dtype)
        if work.data_ptr() != raw.data_ptr():
            work.copy_(raw)
        mean, std = self._constants_on(work)
        if asked.factor != 1:
            work.mul_(asked.factor)
        if asked.mean != 0:
            work.sub_(mean)
        if asked.std != 1:
            work.div_(std)
        if asked.nan is not None:
            work.nan_to_num_(nan=asked.nan, posinf=float("inf"), neginf=-float("inf"))
        if work is not out:
            out.copy_(work)

    def _constants_on(self, work: torch.Tensor) -> tuple[Any, Any]:
        """Give mean and deviation where the numbers are; single ones as they are."""
        assert self.normalisation is not None
        key = work.device, work.dtype
        if key not in self._constants:
            arrays = self.normalisation.arrays
            mean, std = (a.item() if a.ndim == 0 else torch.from_numpy(a).to(work) for a in arrays)
            self._constants[key] = mean, std
        return self._constants[key]
