"""Rows and chunks through h5py, under its lock: for what cannot be decoded directly."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hdf5plugin  # noqa: F401  registers its filters with libhdf5
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import CorruptChunkError, H5StreamError, SourceError
from h5stream.storage.check import chunk_box, read_raw_box
from h5stream.storage.handles import open_file, watch
from h5stream.storage.images import MOST_NBYTES
from h5stream.storage.layout import DatasetPart, SampleLayout
from h5stream.storage.many_files import FilesIdentity
from h5stream.storage.rowbox import columns_of
from h5stream.storage.values import in_stored_byte_order

_log = logging.getLogger("h5stream")

_SYSTEM_ERROR = re.compile(r"errno = \d+, error message = '([^']*)'")
"""How libhdf5 words what the system said; without it the file's bytes are at fault."""


class H5pyReader:
    """Reads through h5py; opens each file once in each process, and again where the system reports an error.

    # Guarantees: any thread may call; h5py's own lock serialises them. Handles opened before a fork are not
    # used in the child: `_pid` tells, and the child opens its own. Those opened before an error stay open until
    # `close`, because other threads may be about to read through them. Pickling carries the layout's paths only.
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
            if part.file in self._files and not self._files[part.file]:  # it changed, and was opened anew elsewhere
                self._forget(part.file)
            if key not in self._datasets:
                if part.file not in self._files:
                    identity = self._layout.files[part.file]
                    identity.check_unchanged()
                    self._files[part.file] = open_file(identity.path)
                watch(self._files[part.file], [self._layout.files[number].path for number in part.behind])
                self._datasets[key] = self._files[part.file][part.path]
            return self._datasets[key]

    def rows(self, part: DatasetPart, first: int, count: int) -> NDArray[Any]:
        """Read `count` rows from row `first` of a dataset part, converted to its dtype, columns taken."""
        data = self._read(part, (first,), lambda dataset: in_stored_byte_order(dataset[first : first + count]))
        rows: NDArray[Any] = columns_of(data, part.columns)
        return rows

    def bytes_of(self, part: DatasetPart, row: int) -> NDArray[np.uint8]:
        """Read the bytes of an object."""
        one = replace(part, path=part.objects[row])

        def read(dataset: Any) -> NDArray[np.uint8]:
            if dataset.nbytes > MOST_NBYTES:
                raise ValueError(f"it claims {dataset.nbytes:,} bytes")
            return np.frombuffer(dataset[()].tobytes(), dtype=np.uint8)

        found: NDArray[np.uint8] = self._read(one, (0,), read)
        return found

    def box(self, part: DatasetPart, start: tuple[int, ...], count: tuple[int, ...]) -> NDArray[Any]:
        """Read a box of a dataset part, converted to its dtype."""
        where = tuple(slice(first, first + some) for first, some in zip(start, count, strict=True))
        box: NDArray[Any] = self._read(part, start, lambda dataset: in_stored_byte_order(dataset[where]))
        return box

    def chunk(self, part: DatasetPart, number: int) -> NDArray[np.uint8]:
        """Read one chunk as its raw stored elements, padded with zeros beyond the data."""
        index = part.chunk_index
        if part.objects:
            own, inner = part.in_object(number)
            files = self._layout.files[part.file]
            if not isinstance(files, FilesIdentity):
                return self.chunk(own, inner)
            one = files.at(int(index.offset[index.find(np.array([number]))[0]]))[0]
            reader = H5pyReader(replace(self._layout, files=(one,)))  # what is read of one of many is not kept open
            try:
                return reader.chunk(replace(own, file=0), inner)
            finally:
                reader.close()
        start = index.coordinates(number)
        count = chunk_box(index.shape, index.chunk_shape, start)
        box = self._read(part, start, lambda dataset: read_raw_box(dataset, start, count))
        chunk = np.zeros(index.chunk_shape, dtype=box.dtype)
        chunk[tuple(slice(0, n) for n in count)] = box
        return chunk.reshape(-1).view(np.uint8)

    def _read(self, part: DatasetPart, start: tuple[int, ...], read: Callable[[Any], Any]) -> Any:
        path = self._layout.files[part.file].path
        what = f"{path!r}, dataset {part.path!r}: h5py cannot read the rows from {start[0]} on"
        first = ""
        while True:
            dataset = None
            try:
                dataset = self._dataset(part)
                return read(dataset)
            except H5StreamError:
                raise  # the file changed, say
            except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
                if dataset is not None and (self._datasets.get((part.file, part.path)) is not dataset or not dataset):
                    continue  # another thread closed it
                said = _SYSTEM_ERROR.search(str(error))
                if said is None:
                    raise CorruptChunkError(f"{what}: {error}", file=path, field=part.path, chunk=start) from error
                if first:
                    raise SourceError(
                        f"{what}: {first}; then, with the file opened afresh: {said[1]}", file=path
                    ) from error
                first = said[1]
                _log.warning("%s: %s; trying once more with the file opened afresh", what, first)
                self._close_file(part, dataset)

    def _close_file(self, part: DatasetPart, dataset: Any) -> None:
        """Close the file of a dataset, so that it is opened afresh: while it is open, libhdf5 would share it.

        `dataset` is None where not even that could be opened.
        """
        with self._lock:
            if part.file in self._files and self._datasets.get((part.file, part.path)) is dataset:
                self._forget(part.file).close()

    def _forget(self, number: int) -> Any:
        self._datasets = {key: other for key, other in self._datasets.items() if key[0] != number}
        return self._files.pop(number)
