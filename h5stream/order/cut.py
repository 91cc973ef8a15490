"""How a run of output places becomes batches: of one size, or at edges that are listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.order.places import Places, new_array, pieces


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """A run of output places cut into batches: at `edges`, or each full but the last.

    Where the run would fill only ``batches - 1`` full ones (another rank has one row more), the last full batch gives
    its last row away, so that all ranks count alike.
    """

    rows: int
    batches: int
    size: int = 0  # rows of a full batch
    edges: NDArray[np.int64] | None = None  # where each batch begins, and where the last ends

    @property
    def _last(self) -> int:
        return min((self.batches - 1) * self.size, self.rows - 1)

    def start_of(self, batch: int) -> int:
        """Return the first output place of a batch; behind the last batch, the end of all."""
        if batch >= self.batches:
            return self.rows
        if self.edges is not None:
            return int(self.edges[batch])
        return self._last if batch == self.batches - 1 else batch * self.size

    def size_of(self, batch: int) -> int:
        """Return the rows of a batch."""
        return self.start_of(batch + 1) - self.start_of(batch)

    def batch_of(self, output: int) -> int:
        """Return the batch of one output place."""
        if self.edges is not None:
            return int(np.searchsorted(self.edges, output, side="right")) - 1
        return self.batches - 1 if output >= self._last else output // self.size

    def locate(self, output: Places) -> tuple[Places, Places]:
        """Return the batch of each output place, and its place in that."""
        batch, within = (new_array(len(output), output.dtype) for _ in range(2))
        size = min(self.size, self.rows)  # which may be more than the numbers' type can hold
        for piece in pieces(len(output)):
            if self.edges is not None:
                batch[piece] = np.searchsorted(self.edges, output[piece], side="right") - 1
                np.subtract(output[piece], self.edges[batch[piece]], out=within[piece], casting="same_kind")
            else:
                np.floor_divide(output[piece], size, out=batch[piece])
                np.subtract(output[piece], batch[piece] * size, out=within[piece])
        if self.edges is None and self._last < (self.batches - 1) * self.size:
            given_away = np.flatnonzero(output == self._last)
            batch[given_away], within[given_away] = self.batches - 1, 0
        return batch, within

    def of_run(self, begin: int, end: int, dtype: Any) -> tuple[Places, Places]:
        """Return the same for consecutive output places, without a division for each."""
        first, after = self.batch_of(begin), self.batch_of(end - 1) + 1
        starts = np.array([self.start_of(batch) for batch in range(first, after + 1)], dtype=dtype)
        sizes = np.diff(np.clip(starts, begin, end))
        within = np.arange(begin, end, dtype=dtype)
        within -= np.repeat(starts[:-1], sizes)
        return np.repeat(np.arange(first, after, dtype=dtype), sizes), within
