"""How a run of output places becomes batches: of one size, or at edges that are listed. Immutable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h5stream.order.places import Places, new_array, pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCut:
    """A run of `rows` output places cut into exactly `batches` batches.

    Every batch is full but the last. Where the run would fill only ``batches - 1`` of them (another rank has
    one row more), the last full batch gives its last row away, so that all ranks count alike.
    """

    rows: int
    batch_size: int
    batches: int

    @property
    def _last_start(self) -> int:
        return min((self.batches - 1) * self.batch_size, self.rows - 1)

    def start_of(self, batch: int) -> int:
        """Return the first output place of a batch."""
        return self._last_start if batch == self.batches - 1 else min(batch * self.batch_size, self.rows)

    def size_of(self, batch: int) -> int:
        """Return the rows of a batch."""
        stop = self.rows if batch == self.batches - 1 else self.start_of(batch + 1)
        return stop - self.start_of(batch)

    def batch_of(self, output: int) -> int:
        """Return the batch of one output place."""
        last = self.batches - 1
        return last if output >= self._last_start else output // min(self.batch_size, self.rows)

    def locate(self, output: Places) -> tuple[Places, Places]:
        """Give batch and place in it for output places."""
        size = min(self.batch_size, self.rows)  # which may be more than the numbers' type can hold
        batch, within = (new_array(len(output), output.dtype) for _ in range(2))
        for piece in pieces(len(output)):
            np.floor_divide(output[piece], max(1, size), out=batch[piece])
            np.subtract(output[piece], batch[piece] * size, out=within[piece])
        if self._last_start < (self.batches - 1) * self.batch_size:
            given_away = np.flatnonzero(output == self._last_start)
            batch[given_away], within[given_away] = self.batches - 1, 0
        return batch, within


@dataclass(frozen=True, slots=True, eq=False)
class ListedCut:
    """Output places cut into batches at edges that are listed."""

    edges: NDArray[np.int64]  # where each batch begins, and where the last ends

    @property
    def rows(self) -> int:
        """Output places."""
        return int(self.edges[-1])

    @property
    def batches(self) -> int:
        """How many batches."""
        return len(self.edges) - 1

    def start_of(self, batch: int) -> int:
        """Return the first output place of a batch."""
        return int(self.edges[batch])

    def size_of(self, batch: int) -> int:
        """Return the rows of a batch."""
        return int(self.edges[batch + 1] - self.edges[batch])

    def batch_of(self, output: int) -> int:
        """Return the batch of one output place."""
        return int(np.searchsorted(self.edges, output, side="right")) - 1

    def locate(self, output: Places) -> tuple[Places, Places]:
        """Give batch and place in it for output places."""
        batch, within = (new_array(len(output), output.dtype) for _ in range(2))
        if len(output):
            batch[:] = np.searchsorted(self.edges, output, side="right") - 1
            np.subtract(output, self.edges[batch], out=within, casting="same_kind")
        return batch, within


Cut = BatchCut | ListedCut
