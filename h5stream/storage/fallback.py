"""Rows and chunks through h5py, under its lock: for what cannot be decoded directly."""

from __future__ import annotations

import os
import threading
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  registers its filters with libhdf5
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import CorruptChunkError, H5StreamError
from h5stream.storage.check import chunk_box, read_raw_box
from h5stream.storage.layout import DatasetPart, SampleLayout


class H5pyReader:
    """Reads through h5py; opens each file once in each process.

    # Guarantees: any thread may call; h5py's own lock serialises them. Handles opened before a fork are not
    # used in the child: `_pid` tells, and the child opens its own. Pickling carries the layout's paths only.
    """

    def __init__(self, layout: SampleLayout) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._files: dict[int, Any] = {}
        self._datasets: dict[tuple[int, str], Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"layout": self._layout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["layout"])  # type: ignore[misc]

    def close(self) -> None:
        """Close the files; a later read opens them again."""
        with self._lock:
            files, self._files, self._datasets = self._files, {}, {}
            if self._pid == os.getpid():
                for file in files.values():
                    file.close()

    def _dataset(self, part: DatasetPart) -> Any:
        key = (part.file, part.path)
        with self._lock:
            if self._pid != os.getpid():
                # The parent's handles are left alone: closing them here would touch its libhdf5 state.
                self._pid, self._files, self._datasets = os.getpid(), {}, {}
            if key not in self._datasets:
                if part.file not in self._files:
                    identity = self._layout.files[part.file]
                    identity.check_unchanged()
                    self._files[part.file] = h5py.File(identity.path, "r", locking=False)
                self._datasets[key] = self._files[part.file][part.path]
            return self._datasets[key]

    def rows(self, part: DatasetPart, first: int, count: int) -> NDArray[Any]:
        """Read `count` rows from row `first` of a dataset part, converted to its dtype, columns taken.

        Raises
        ------
        CorruptChunkError
            If libhdf5 fails.
        SourceChangedError
            If the file is not the one that was opened.
        """
        try:
            data = self._dataset(part)[first : first + count]
        except H5StreamError:
            raise  # the file changed, say
        except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
            raise self._failed(part, first, error) from error
        rows: NDArray[Any] = data if part.columns is None else data[:, part.columns]
        return rows

    def chunk(self, part: DatasetPart, number: int) -> NDArray[np.uint8]:
        """Read one chunk as its raw stored elements, padded with zeros beyond the data.

        Raises
        ------
        CorruptChunkError
            If libhdf5 fails.
        SourceChangedError
            If the file is not the one that was opened.
        """
        index = part.index
        assert index is not None
        start = index.coordinates(number)
        count = chunk_box(index.shape, index.chunk_shape, start)
        try:
            box = read_raw_box(self._dataset(part), start, count)
        except H5StreamError:
            raise
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise self._failed(part, start[0], error, start) from error
        chunk = np.zeros(index.chunk_shape, dtype=box.dtype)
        chunk[tuple(slice(0, n) for n in count)] = box
        return chunk.reshape(-1).view(np.uint8)

    def _failed(self, part: DatasetPart, row: int, error: Exception, chunk: tuple[int, ...] = ()) -> CorruptChunkError:
        path = self._layout.files[part.file].path
        return CorruptChunkError(
            f"{path!r}, dataset {part.path!r}: h5py cannot read the rows from {row} on: {error}",
            file=path,
            field=part.path,
            chunk=chunk or (row,),
        )
