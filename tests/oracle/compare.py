"""Whether what h5stream gives is what the model says: by sample, by batch, and where no number tells which it is."""

from typing import Any

import numpy as np
import torch

from h5stream.results import Packed
from h5stream.structure import Padded, SparseRows

from .model import Crops

SMALL = {
    torch.bfloat16: ("bfloat16", torch.uint16),
    torch.float8_e4m3fn: ("e4m3", torch.uint8),
    torch.float8_e5m2: ("e5m2", torch.uint8),
}
"""The names of small floats, as the model has them, and integers that have their bits."""


class WrongError(Exception):
    """A sample, or the number of samples, is not what the model says."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts


def plain(value: Any) -> Any:
    """Turn a sample's value, ours or the model's, into NumPy, lists and dicts: native, and dates as their counts."""
    if isinstance(value, torch.Tensor):
        name, bits = SMALL.get(value.dtype, ("", torch.uint8))
        return {name: value.contiguous().view(bits).numpy()} if name else value.numpy()
    if isinstance(value, SparseRows):
        found = np.zeros(value.width, value.values.numpy().dtype)
        np.add.at(found, value.columns.numpy(), value.values.numpy())
        return found
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, np.void) and value.dtype.names:
        value = np.asarray(value)
    if isinstance(value, np.void) and not value.dtype.names:
        return value.tobytes()
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    if value.dtype.names:
        offsets = {name: value.dtype.fields[name][1] for name in value.dtype.names}
        return {name: plain(value[name]) for name in sorted(offsets, key=offsets.__getitem__)}
    if value.dtype.kind in "SOV":
        return plain(value.tolist() if isinstance(value, np.ndarray) else value.item())
    if value.dtype.kind in "mM":
        return np.asarray(value).astype("i8")
    return np.asarray(value, dtype=value.dtype.newbyteorder("="))


def differs(ours: Any, theirs: Any, near: bool = False) -> str:
    """Say how two values differ, both as `plain` makes them; nothing where they are equal, NaN beside NaN as well."""
    if isinstance(theirs, dict):
        if isinstance(ours, list):  # one value of a compound, as h5py gives it, is a tuple
            return "" if _unpacked(ours) == _unpacked(theirs) else f"{_short(ours)} instead of {theirs}"
        if not isinstance(ours, dict) or list(ours) != list(theirs):
            return f"{_short(ours)} instead of a dict of {list(theirs)}"
        return next((found for name in theirs if (found := differs(ours[name], theirs[name]))), "")
    if isinstance(theirs, list):
        if not isinstance(ours, list) or len(ours) != len(theirs):
            return f"{_short(ours)} instead of {_short(theirs)}"
        return next((found for a, b in zip(ours, theirs, strict=True) if (found := differs(a, b))), "")
    if isinstance(theirs, np.ndarray):
        if not isinstance(ours, (np.ndarray, int, float, bool)):
            return f"{_short(ours)} instead of {_short(theirs)}"
        ours = np.asarray(ours)
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return f"{ours.dtype}{list(ours.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
        if near:
            alike = np.allclose(ours, theirs, rtol=1e-3, atol=1e-4, equal_nan=True)
        else:
            alike = _bytes(ours) == _bytes(theirs)
        return "" if alike else f"{_short(ours)} instead of {_short(theirs)}"
    return "" if type(ours) is type(theirs) and ours == theirs else f"{_short(ours)} instead of {_short(theirs)}"


def _unpacked(value: Any) -> Any:
    """Return nothing but lists and Python's own values."""
    if isinstance(value, (dict, list)):
        return [_unpacked(one) for one in (value.values() if isinstance(value, dict) else value)]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _bytes(values: np.ndarray) -> bytes:
    values = values.view("u1") != 0 if values.dtype == bool else values  # a byte above 1 is true
    return np.ascontiguousarray(values).tobytes()


def _short(value: Any) -> str:
    told = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    return told if len(told) < 200 else f"{told[:200]}..."


def matches(ours: Any, theirs: Any, near: bool = False) -> str:
    """Compare a value as a sample has it with the model's, which may leave open where a crop begins."""
    ours = plain(ours)
    if not isinstance(theirs, Crops):
        return differs(ours, plain(theirs), near)
    stretches = range(len(theirs.rows) - theirs.length + 1)
    if any(not differs(ours, plain(theirs.rows[k : k + theirs.length]), near) for k in stretches):
        return ""
    return f"{_short(ours)} is no stretch of {theirs.length} of {_short(theirs.rows)}"


def count_of(batch: Any) -> int:
    """Count the samples of a batch's field."""
    if isinstance(batch, dict):
        return count_of(next(iter(batch.values())))
    if isinstance(batch, (Packed, SparseRows)):
        return len(batch.offsets) - 1
    return len(batch.lengths) if isinstance(batch, Padded) else len(batch)


def parts_of(batch: Any) -> list[Any]:
    """Take the samples out of a batch's field."""
    count = count_of(batch)
    if isinstance(batch, dict):
        members = {name: parts_of(one) for name, one in batch.items()}
        return [{name: parts[k] for name, parts in members.items()} for k in range(count)]
    if isinstance(batch, (Packed, Padded, SparseRows)):
        return [batch.sample(k) for k in range(count)]
    return list(batch.unbind()) if isinstance(batch, torch.Tensor) and batch.is_nested else list(batch)


CONTAINERS = {"packed": (Packed, SparseRows), "pad": (Padded,), "nested": (torch.Tensor,), "list": (list,)}


def check_container(batch: Any, tree: Any) -> None:
    """Tell whether a ragged field of a batch comes as its option says, filled up with what it says."""
    options = tree["options"] if isinstance(tree, dict) else {}
    wanted = CONTAINERS.get(options.get("ragged", ""))
    if wanted and not isinstance(batch, wanted):
        raise WrongError(f"ragged={options['ragged']!r} gives {type(batch).__name__}")
    if isinstance(batch, Padded) and batch.values.ndim > 1:
        lengths = batch.lengths.tolist()
        if batch.values.shape[1] != max(lengths, default=0):
            raise WrongError(f"{batch.values.shape[1]} rows of the longest, {max(lengths)}")
        for place, count in enumerate(lengths):
            behind = plain(batch.values[place, count:])
            if (
                not isinstance(behind, dict)
                and not (behind == np.asarray(options.get("pad_value", 0), behind.dtype)).all()
            ):
                raise WrongError(f"behind a padded sample stands {_short(behind)}")


def canonical(value: Any) -> Any:
    """Return something hashable that is the same for equal values, to find a sample by.

    One value of a compound is a tuple in a sample and a dict in the model, so members count by their order alone.
    """
    if isinstance(value, (dict, list)):
        return tuple(map(canonical, value.values() if isinstance(value, dict) else value))
    if isinstance(value, np.ndarray) and value.ndim:
        return str(value.dtype), value.shape, _bytes(value)
    return value.item() if isinstance(value, (np.ndarray, np.generic)) else value
