"""Torch's dtypes in what is requested, and copies of tensors of any of them."""

from __future__ import annotations

import contextlib
import difflib
from dataclasses import replace

import numpy as np
import torch

from h5stream.errors import OptionError
from h5stream.samples.columns import Values, VirtualField
from h5stream.samples.ragged import changed
from h5stream.storage.layout.fields import Field
from h5stream.storage.layout.request import SampleShape


def with_torch_dtypes(shape: SampleShape) -> SampleShape:
    """Return a copy whose fields' dtypes are torch's, if they were given by name or as NumPy's.

    Raises `OptionError` for a dtype that torch cannot cast to.
    """

    def torch_dtype_of(value: object, option: str) -> object:
        name = value.removeprefix("torch.") if isinstance(value, str) else None
        if isinstance(value, (type, np.dtype)):
            with contextlib.suppress(TypeError):
                name = np.dtype(value).name
        dtype = value if name is None else getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            if not isinstance(value, str):
                return value
            with contextlib.suppress(TypeError):
                name = np.dtype(value).name  # such as that of "f4"
            every = sorted(one for one in dir(torch) if isinstance(getattr(torch, one), torch.dtype))
            near = difflib.get_close_matches(str(name).casefold(), every, n=2, cutoff=0.8)
            hint = f" Did you mean {' or '.join(map(repr, near[: 1 if near[0] == name else 2]))}?" if near else ""
            hint = hint or " It has a name such as 'float32', 'bfloat16' or 'int64'."
            raise OptionError(f"{option}: dtype= takes a torch dtype, not {value!r}.{hint}")
        if not dtype.is_complex:  # those of half size warn
            try:
                torch.zeros(1).to(dtype)
            except RuntimeError:  # of packed and of quantized numbers
                raise OptionError(
                    f"{option}: torch casts no numbers to {dtype}; leave dtype= out, and pack them in batch_transform="
                ) from None
        return dtype

    def with_torch_dtype(one: Field | VirtualField) -> Field | VirtualField:
        if not isinstance(one, (Field, Values)) or one.dtype is None:
            return one
        dtype = torch_dtype_of(one.dtype, f"field {one.name!r}")
        return changed(one, dtype=dtype) if isinstance(one, Field) else replace(one, dtype=dtype)

    return replace(shape, fields=tuple(map(with_torch_dtype, shape.fields)))


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""The bytes of an element, and a type of that size which NumPy has."""


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with memory of its own."""
    # By NumPy, in this thread: torch copies with a team of threads, which a forked child waits for in vain.
    words = tensor.view(_WORDS[tensor.element_size()]).numpy()
    return torch.from_numpy(words.copy()).view(tensor.dtype)
