"""`H5Dataset`: a map-style dataset over HDF5 files, for single rows, slices, lists, and a stock DataLoader."""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from h5stream.engine.assemble import Assembler
from h5stream.engine.carry import Carrier
from h5stream.engine.emit import Sink
from h5stream.engine.slots import Memory, SlotFormat, address_of, map_memory
from h5stream.errors import OptionError
from h5stream.order.blocks import Blocks, make_blocks, select_rows
from h5stream.order.epoch import Window
from h5stream.storage.fields import Fields, Source
from h5stream.storage.layout import DIRECT, SampleLayout
from h5stream.storage.opening import open_layout

REUSED_NBYTES = 32 * 1024 * 1024
"""The C library gives memory of fewer bytes again once it is freed; mapping it afresh costs more than reading into it.
Source: ``mallopt(3)``, M_MMAP_THRESHOLD, whose limit this is."""

_CACHED_BLOCK_NBYTES = 8 * 1024 * 1024
_CACHED_BLOCKS = 4


class H5Dataset(Dataset[Any]):
    """Rows of HDF5 files as samples.

    Opening reads the chunk index and checks every field once; afterwards no file stays open through h5py
    unless a field needs it. The object travels to other processes by pickling and works after fork, spawn and
    forkserver.

    Parameters
    ----------
    source : path, pattern, or sequence of them
        One file or several, which follow one another as one sequence of rows.
    fields : str, Field, sequence or mapping, optional
        ``"x"`` gives a tensor a sample, ``["x", "y"]`` a tuple, ``{"image": "x"}`` a dict. By default the
        datasets at the file's root, if they agree in length.
    rows : array-like of int or bool, optional
        The rows to use, as indices or a mask; they keep the file's order.
    allow_external : bool
        Whether external links, external storage and virtual sources may lead out of the opened files.

    Attributes
    ----------
    layout : SampleLayout
        The fields and how their bytes are reached.

    Raises
    ------
    H5StreamError
        See `h5stream.errors`: no such file, not HDF5, no such field, fields of unlike length, and so on.

    Examples
    --------
    >>> import h5py, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["x"] = np.arange(12, dtype="f4").reshape(6, 2)
    ...     f["y"] = np.arange(6)
    >>> dataset = H5Dataset(path, ["x", "y"])
    >>> len(dataset), dataset[4]
    (6, (tensor([8., 9.]), tensor(4)))
    >>> dataset[[5, 0]][1]
    tensor([5, 0])
    """

    def __init__(
        self, source: Source, fields: Fields = None, *, rows: Any = None, allow_external: bool = False
    ) -> None:
        self.layout: SampleLayout = open_layout(source, fields, allow_external=allow_external)
        self._rows = select_rows(rows, self.layout.rows)
        self._carrier = Carrier(self.layout)
        self._assembler = Assembler(self.layout)
        self._cache = _BlockCache()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _cache=_BlockCache())

    def __len__(self) -> int:
        return self.layout.rows if self._rows is None else len(self._rows)

    def __repr__(self) -> str:
        names = ", ".join(f.name for f in self.layout.fields)
        return f"H5Dataset({len(self):,} rows of {names}; {len(self.layout.files)} file(s))"

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        self._carrier.close()

    def subset(self, indices: Any) -> H5Dataset:
        """Give a dataset over some of these rows, as ``rows=`` would; the files are not opened again."""
        chosen = select_rows(indices, len(self))
        twin = H5Dataset.__new__(H5Dataset)
        twin.__dict__.update(self.__dict__, _cache=_BlockCache(), _carrier=Carrier(self.layout))
        twin._rows = chosen if self._rows is None or chosen is None else self._rows[chosen]
        return twin

    def over(self, layout: SampleLayout) -> H5Dataset:
        """Give the same rows of the same files elsewhere: of byte for byte copies, for instance staged ones."""
        twin = H5Dataset.__new__(H5Dataset)
        own = {"layout": layout, "_carrier": Carrier(layout), "_assembler": Assembler(layout), "_cache": _BlockCache()}
        twin.__dict__.update(self.__dict__ | own)
        return twin

    @property
    def blocks(self) -> Blocks:
        """The rows cut into blocks, the unit of the coarse shuffle."""
        return make_blocks(self.layout.file_starts, self.layout.block_rows, self._rows)

    # --- samples and batches ----------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        """Give one sample for an integer, a batch for a slice, a list or an array of rows."""
        if type(index) is int and 0 <= index < len(self):  # the common case, without arrays
            return self._sample(index if self._rows is None else int(self._rows[index]))
        if _is_one_row(index):
            return self._sample(self._row_numbers(np.array([int(index)]))[0])
        if isinstance(index, slice):
            rows = np.arange(*index.indices(len(self)), dtype=np.int64)
            return self._read(rows if self._rows is None else self._rows[rows])
        chosen = np.asarray(index)
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                raise OptionError(f"a mask needs one value a row: {len(self):,} rows, shape {chosen.shape}")
            chosen = np.flatnonzero(chosen)
        elif chosen.size and not np.issubdtype(chosen.dtype, np.integer):
            raise OptionError(f"rows are named by integers, a slice or a mask, not {chosen.dtype}")
        return self.read(chosen.astype(np.int64).reshape(-1))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Give a list of samples, each chunk decoded once; a stock DataLoader calls this.

        The samples view one batch; `h5stream.collate` gives it back whole, without stacking.
        """
        return Samples(self.read(np.asarray(indices, dtype=np.int64)), len(indices))

    def read(self, rows: NDArray[np.int64]) -> Any:
        """Read rows as one batch, in the order given; rows may repeat.

        Parameters
        ----------
        rows : ndarray of int64
            Rows of this dataset; negative ones count from the end.
        """
        return self._read(self._row_numbers(rows))

    def _read(self, numbers: NDArray[np.int64]) -> Any:
        """Read rows by their numbers in the files."""
        count = len(numbers)
        by_row = np.arange(count)
        if not (numbers[1:] >= numbers[:-1]).all():
            by_row = np.argsort(numbers, kind="stable")
            numbers = numbers[by_row]
        slot_format = SlotFormat.for_rows(self.layout.fields, count)
        memory = _allocate(slot_format.nbytes)
        objects = {f: [None] * count for f, field in enumerate(self.layout.fields) if field.kind == "object"}
        sink = Sink(
            slots=np.array([address_of(memory)], dtype=np.int64),
            format=slot_format,
            row_nbytes=tuple(f.row_nbytes for f in self.layout.fields),
            objects=[objects],
        )
        if count:
            window = Window(rows=numbers, batch=np.zeros(count, dtype=np.int64), within=by_row)
            self._carrier.read(window, sink)
            self._check_unchanged(numbers)
        return self._assembler.batch(torch.from_numpy(memory), slot_format, count, objects)

    def _check_unchanged(self, numbers: NDArray[np.int64]) -> None:
        """Refuse rows of files that are not what was opened: their chunks may lie elsewhere by now."""
        for file in self.layout.files_of(numbers):
            self.layout.files[file].check_unchanged()

    def _row_numbers(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        count = len(self)
        if len(rows) and rows.min() >= 0 and rows.max() < count:
            return rows if self._rows is None else self._rows[rows]
        wrong = rows[(rows < -count) | (rows >= count)]
        if len(wrong):
            # IndexError, because iterating over a sequence ends with it.
            raise IndexError(f"row {wrong[0]} is not there: the dataset has {count:,} rows, 0 to {count - 1:,}")
        places = np.where(rows < 0, rows + count, rows)
        return places if self._rows is None else self._rows[places]

    def _sample(self, row: int) -> Any:
        """Read one row; compressed blocks are kept for a while, for neighbours that are asked for next."""
        values = self._carrier.single.read(row)
        if values is not None:
            return self.layout.assemble(values)
        part = next(p for p in reversed(self.layout.leading) if p.row_start <= row)
        block_nbytes = part.chunk_rows * self.layout.row_nbytes
        if part.access == DIRECT or block_nbytes > _CACHED_BLOCK_NBYTES or self._rows is not None:
            return sample_of(self._read(np.array([row])), 0)
        first = part.row_start + (row - part.row_start) // part.chunk_rows * part.chunk_rows
        block = self._cache.get(first)
        if block is None:
            last = min(first + part.chunk_rows, part.row_start + part.rows)
            block = self.read(np.arange(first, last, dtype=np.int64))
            self._cache.put(first, block)
        else:
            self._check_unchanged(np.array([row]))
        return _cloned(sample_of(block, row - first))


def _is_one_row(index: Any) -> bool:
    if isinstance(index, (bool, slice)):
        return False
    one = np.asarray(index) if isinstance(index, (np.ndarray, torch.Tensor)) else index
    return isinstance(one, int) or (np.ndim(one) == 0 and np.issubdtype(getattr(one, "dtype", object), np.integer))


class _BlockCache:
    """The blocks that single rows were taken from last.

    # Guarantees: any thread may call; entries are never changed, and callers copy what they hand out.
    """

    def __init__(self) -> None:
        self._blocks: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, first: int) -> Any:
        with self._lock:
            block = self._blocks.get(first)
            if block is not None:
                self._blocks.move_to_end(first)
            return block

    def put(self, first: int, block: Any) -> None:
        with self._lock:
            self._blocks[first] = block
            while len(self._blocks) > _CACHED_BLOCKS:
                self._blocks.popitem(last=False)


class Samples(list[Any]):
    """The samples of one batch; `batch` is the batch that they view."""

    def __init__(self, batch: Any, count: int) -> None:
        super().__init__(samples_of(batch, count))
        self.batch = batch

    def __reduce__(self) -> tuple[Any, ...]:
        return Samples, (self.batch, len(self))


def collate(samples: list[Any]) -> Any:
    """Give the batch that the samples of an `H5Dataset` came from, or stack them as torch would.

    Pass it as ``collate_fn`` of a stock DataLoader over an `H5Dataset`: stacking 8,192 samples costs more than
    reading them.

    Examples
    --------
    >>> collate([torch.tensor(1), torch.tensor(2)])
    tensor([1, 2])
    """
    if isinstance(samples, Samples):
        return samples.batch
    return torch.utils.data.default_collate(samples)


def sample_of(batch: Any, i: int) -> Any:
    """Take one sample out of a batch."""
    if isinstance(batch, dict):
        return {key: sample_of(value, i) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(sample_of(value, i) for value in batch)
    return batch[i]


def samples_of(batch: Any, count: int) -> list[Any]:
    """Take a batch apart into samples that view it."""
    if isinstance(batch, dict):
        columns = [samples_of(value, count) for value in batch.values()]
        keys = list(batch)
        return [dict(zip(keys, values, strict=True)) for values in zip(*columns, strict=True)]
    if isinstance(batch, tuple):
        return list(zip(*(samples_of(value, count) for value in batch), strict=True))
    return list(batch.unbind(0)) if isinstance(batch, torch.Tensor) else list(batch)


def _cloned(sample: Any) -> Any:
    if isinstance(sample, dict):
        return {key: _cloned(value) for key, value in sample.items()}
    if isinstance(sample, tuple):
        return tuple(_cloned(value) for value in sample)
    if isinstance(sample, list):
        return [_cloned(value) for value in sample]
    return sample.clone() if isinstance(sample, torch.Tensor) else sample


def _allocate(nbytes: int) -> Memory:
    return map_memory(nbytes) if nbytes >= REUSED_NBYTES else np.empty(nbytes, dtype=np.uint8)
