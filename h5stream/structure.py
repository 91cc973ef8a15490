"""Functions for batches of any structure: tensors, dicts, tuples, lists, and ragged or sparse rows."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.samples.ragged import DENSE, STACKED


class Packed(NamedTuple):
    """Rows of samples of different lengths, one sample after another.

    Attributes
    ----------
    values : Tensor, shape (rows of all samples, ...)
        The rows.
    offsets : Tensor of int64, shape (samples + 1,)
        Where the rows of each sample begin, and where those of the last one end.

    Examples
    --------
    >>> batch = Packed(torch.arange(5), torch.tensor([0, 2, 2, 5]))
    >>> batch.sample(2)
    tensor([2, 3, 4])
    """

    values: torch.Tensor
    offsets: torch.Tensor

    def sample(self, k: int) -> torch.Tensor:
        """Return the rows of one sample.

        Parameters
        ----------
        k : int
            Number of the sample in the batch.

        Returns
        -------
        Tensor
            A view into `values`.
        """
        return self.values[int(self.offsets[k]) : int(self.offsets[k + 1])]


class Padded(NamedTuple):
    """Rows of samples of different lengths, each padded to the length of the longest.

    Attributes
    ----------
    values : Tensor, shape (samples, rows of the longest, ...)
        The rows.
    lengths : Tensor of int64, shape (samples,)
        Number of rows of each sample.

    Examples
    --------
    >>> Padded(torch.tensor([[1, 0], [2, 3]]), torch.tensor([1, 2])).sample(0)
    tensor([1])
    """

    values: torch.Tensor
    lengths: torch.Tensor

    def sample(self, k: int) -> torch.Tensor:
        """Return the rows of one sample.

        Parameters
        ----------
        k : int
            Number of the sample in the batch.

        Returns
        -------
        Tensor
            A view into `values`.
        """
        return self.values[k, : int(self.lengths[k])]


class SparseRows(NamedTuple):
    """Rows of a sparse matrix, one after another.

    Attributes
    ----------
    values : Tensor, shape (values of all rows,)
        The values that are stored.
    columns : Tensor, shape (values of all rows,)
        The column of each.
    offsets : Tensor of int64, shape (rows + 1,)
        Where the values of each row begin, and where those of the last one end.
    width : int
        Columns of the matrix.

    Examples
    --------
    >>> rows = SparseRows(torch.tensor([5, 7]), torch.tensor([2, 0]), torch.tensor([0, 1, 2]), 3)
    >>> rows.sample(1).columns
    tensor([0])
    """

    values: torch.Tensor
    columns: torch.Tensor
    offsets: torch.Tensor
    width: int

    def sample(self, k: int) -> SparseRows:
        """Return one row.

        Parameters
        ----------
        k : int
            Number of the sample in the batch.

        Returns
        -------
        SparseRows
            It views the same memory.
        """
        low, high = self.offsets[k : k + 2].tolist()
        bounds = torch.tensor([0, high - low])
        return SparseRows(self.values[low:high], self.columns[low:high], bounds, self.width)

    def to_csr(self) -> torch.Tensor:
        """Return the rows as a sparse tensor of torch.

        Returns
        -------
        Tensor
            In the layout ``torch.sparse_csr``, over the same memory where columns are int64 or int32.
        """
        shape = (len(self.offsets) - 1, self.width)
        offsets = self.offsets.to(self.columns.dtype)
        return torch.sparse_csr_tensor(offsets, self.columns, self.values, shape, check_invariants=False)


def in_form(
    values: torch.Tensor, lengths: NDArray[np.int64], offsets: NDArray[np.int64], form: str
) -> Packed | Padded | torch.Tensor | list[torch.Tensor]:
    """Return the rows of several samples in the form that a field asks for."""
    if form == "pad":
        return Padded(values, torch.from_numpy(lengths.copy()))
    if form in (STACKED, DENSE):
        return values
    if form == "list":
        return list(torch.split(values, lengths.tolist()))
    # A copy, because other fields of the batch share the offsets.
    bounds = torch.from_numpy(offsets.copy())
    return torch.nested.nested_tensor_from_jagged(values, bounds) if form == "nested" else Packed(values, bounds)


def renumbered(rows: SparseRows) -> SparseRows:
    """Return the rows with sorted columns, without columns that the matrix does not have."""
    count = len(rows.offsets) - 1
    columns = rows.columns[: rows.values.shape[0]].to(torch.int64)
    numbers = torch.arange(count, device=columns.device)
    row = torch.repeat_interleave(numbers, rows.offsets.diff(), output_size=len(columns))
    is_wanted = columns < rows.width
    order = torch.argsort((row * (rows.width + 1) + columns)[is_wanted], stable=True)
    counts = torch.bincount(row[is_wanted], minlength=count)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(rows.offsets.dtype)
    return SparseRows(rows.values[is_wanted][order], rows.columns[is_wanted][order], offsets, rows.width)


RAGGED = (Packed, Padded, SparseRows)


def sample_of(batch: Any, i: int) -> Any:
    """Return one sample of a batch."""
    if isinstance(batch, RAGGED):
        return batch.sample(i)
    if isinstance(batch, dict):
        return {key: sample_of(value, i) for key, value in batch.items()}
    return tuple(sample_of(value, i) for value in batch) if isinstance(batch, tuple) else batch[i]


def samples_of(batch: Any, count: int) -> list[Any]:
    """Split a batch into samples that view it."""
    if isinstance(batch, RAGGED):
        return [batch.sample(k) for k in range(count)]
    if isinstance(batch, dict):
        return [dict(zip(batch, values, strict=True)) for values in samples_of((*batch.values(),), count)]
    if isinstance(batch, tuple):
        return list(zip(*(samples_of(value, count) for value in batch), strict=True))
    return list(batch.unbind(0)) if isinstance(batch, torch.Tensor) else list(batch)


def with_tensors(value: object, change: Callable[[torch.Tensor], object]) -> Any:
    """Return a copy of a structure with each of its tensors changed."""
    if isinstance(value, dict):
        return {key: with_tensors(inner, change) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return _rebuilt(value, [with_tensors(inner, change) for inner in value])
    return change(value) if isinstance(value, torch.Tensor) else value


def as_numpy(value: object) -> Any:
    """Return a structure with NumPy arrays over its tensors' memory; single numbers as NumPy scalars, as h5py does.

    NumPy has no nested arrays: of a nested tensor come its samples in a list.
    """

    def array(tensor: torch.Tensor) -> object:
        if tensor.is_nested:
            return [array(one) for one in tensor.unbind()]
        if (dtype := foreign_dtype(tensor.dtype)) is None:
            return tensor.numpy()[()]
        return tensor.view(torch.uint8 if dtype.itemsize == 1 else torch.uint16).numpy().view(dtype)[()]

    return with_tensors(value, array)


def numbers_in(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's numbers as a NumPy array; types that NumPy lacks become float32."""
    is_small = tensor.is_floating_point() and tensor.dtype not in (torch.float64, torch.float32, torch.float16)
    return (tensor.to(torch.float32) if is_small else tensor).numpy()


@functools.cache
def foreign_dtype(dtype: torch.dtype) -> np.dtype | None:
    """Return the dtype of ml_dtypes for a torch type that NumPy lacks; None if NumPy has it.

    Raises `ImportError` without ml_dtypes, and `TypeError` if it has none either.
    """
    try:
        torch.empty(0, dtype=dtype).numpy()
    except TypeError:
        importlib.import_module("ml_dtypes")  # NumPy then knows its types by name
        return np.dtype(str(dtype).removeprefix("torch."))
    return None


def copy_batch(batch: object, static: object) -> int:
    """Copy a batch into tensors of the same structure, and return its number of rows."""
    if isinstance(batch, torch.Tensor):
        if (
            not isinstance(static, torch.Tensor)
            or (static.dtype, static.ndim, static.shape[1:]) != (batch.dtype, batch.ndim, batch.shape[1:])
            or len(static) < len(batch)
        ):
            actual = f"{getattr(static, 'dtype', type(static))} {[*getattr(static, 'shape', ())]}"
            expected = f"a {batch.dtype} tensor of at least {len(batch)} rows of {tuple(batch.shape[1:])}, not {actual}"
            raise OptionError(f"copy_into needs {expected}")
        static[: len(batch)].copy_(batch, non_blocking=True)
        return len(batch)
    if isinstance(batch, dict) and isinstance(static, dict) and batch.keys() == static.keys():
        return min(copy_batch(batch[key], static[key]) for key in batch)
    if isinstance(batch, (tuple, list)) and isinstance(static, (tuple, list)) and len(batch) == len(static):
        return min(copy_batch(a, b) for a, b in zip(batch, static, strict=True))
    raise OptionError(f"copy_into needs what a batch is, {type(batch).__name__}, not {type(static)}")


def _rebuilt(like: Any, parts: list[object]) -> Any:
    """Return a list or tuple of the same kind as another one; a named tuple takes its parts one by one."""
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


def tensors_of(batch: object) -> list[torch.Tensor]:
    """List the tensors of a structure, in its order."""
    tensors: list[torch.Tensor] = []
    with_tensors(batch, tensors.append)
    return tensors


def leaves(batch: object) -> list[object]:
    """List the value of each field of a batch: a tensor, a list of strings, or ragged rows of any form."""
    if isinstance(batch, (dict, tuple)) and not isinstance(batch, RAGGED):
        return [leaf for value in (batch.values() if isinstance(batch, dict) else batch) for leaf in leaves(value)]
    return [batch]


def rows_of(batch: object, of_fields: bool | None = False) -> int | None:
    """Return the number of rows of a batch, from its first value that has a length; None if none has.

    Fields are in a tuple or a dict, a list has a value for each row; `of_fields` tells that the batch, if it is a list,
    holds fields as well, and None that this is not known of any list in it.
    """
    if isinstance(batch, RAGGED):
        return len(batch.lengths) if isinstance(batch, Padded) else len(batch.offsets) - 1
    if (parts := _fields_of(batch, of_fields)) is not None:
        counts = (rows_of(part, _inside(of_fields)) for part in parts)
        return next((rows for rows in counts if rows is not None), None)
    if isinstance(batch, (list, tuple)):
        return len(batch)
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else None


def first_rows(batch: Any, count: int, of_fields: bool | None = False) -> Any:
    """Return the first rows of any batch; values without rows are returned unchanged. `of_fields` as in `rows_of`."""
    if isinstance(batch, (Packed, SparseRows)):
        offsets = batch.offsets[: count + 1]
        rows = batch._replace(values=batch.values[: offsets[-1]], offsets=offsets)
        return rows._replace(columns=rows.columns[: offsets[-1]]) if isinstance(rows, SparseRows) else rows
    if isinstance(batch, Padded):
        return Padded(batch.values[:count], batch.lengths[:count])
    if isinstance(batch, torch.Tensor) and batch.is_nested:  # torch does not slice them
        return torch.nested.as_nested_tensor(list(batch.unbind()[:count]), layout=batch.layout)
    if (parts := _fields_of(batch, of_fields)) is not None:
        kept = [first_rows(part, count, _inside(of_fields)) for part in parts]
        return dict(zip(batch, kept, strict=True)) if isinstance(batch, dict) else _rebuilt(batch, kept)
    return batch[:count] if rows_of(batch) is not None else batch


def _inside(of_fields: bool | None) -> bool | None:
    """Return what is known of lists within a batch: among fields, each has a value for each row."""
    return None if of_fields is None else False


def _fields_of(batch: object, of_fields: bool | None) -> list[object] | None:
    """List the fields of a batch, or None if it is a single one; torch leaves texts that it collates in a tuple."""
    if isinstance(batch, dict):
        return [*batch.values()]
    if isinstance(batch, list) and not (_is_equally_long(batch) if of_fields is None else of_fields):
        return None
    if not isinstance(batch, (list, tuple)) or isinstance(next(iter(batch), None), (str, bytes)):
        return None
    return [*batch]


def _is_equally_long(parts: list[object]) -> bool:
    """Whether the tensors of a list, or its parts if there are none, have one length, as fields that torch collated."""
    tensors = [part for part in parts if getattr(part, "shape", None) is not None]
    return len({rows_of(part, None) for part in tensors or parts} - {None}) == 1
