"""What a peer must do to be measured."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

BATCH_ROWS = 8192
CHUNK_ROWS = 1024
WORKERS = 2


class Peer(Protocol):
    """A way to get shuffled batches of ``x`` (float32) and ``y`` (int64, the number of the row).

    A peer lives in one process and is used by one thread. What `open` gives belongs to the caller and may be
    iterated several times: one epoch each. A batch is a pair of tensors with the same number of rows.
    """

    name: str
    needs: tuple[str, ...]
    """Modules that must be importable."""
    reads: str
    """``plain HDF5``, ``converted`` (its own format on disk) or ``memory``."""
    shuffle: str
    """The kind of shuffle it gives, in words."""
    batch_rows: int
    """Rows of the batches that it is measured with: `BATCH_ROWS`, or fewer where those would take minutes."""
    together: int
    """Batches that workers fill side by side: an epoch is cut off behind a multiple of it, so that no work is lost."""

    def load(self) -> None:
        """Import what it needs, so that importing is not timed."""
        ...

    def prepare(self, source: Path, folder: Path) -> Path:
        """Convert the HDF5 file into `folder`, and give what `open` reads; the source itself if nothing is needed."""
        ...

    def open(self, path: Path, batch_rows: int) -> Iterable[tuple[Any, Any]]:
        """Make a loader."""
        ...


class ByImport:
    """For peers that are there once their modules are imported."""

    needs: tuple[str, ...] = ()
    batch_rows: int = BATCH_ROWS
    together: int = WORKERS

    def load(self) -> None:
        for module in self.needs:
            importlib.import_module(module)


class OnPlainHdf5(ByImport):
    """For peers that read the file as it is."""

    reads = "plain HDF5"

    def prepare(self, source: Path, folder: Path) -> Path:
        return source
