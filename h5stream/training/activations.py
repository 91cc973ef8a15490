"""Measure what a model keeps from its forward to its backward pass, on a small batch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from h5stream.advice.suggestion import Suggestion
from h5stream.errors import OptionError
from h5stream.structure import first_rows, tensors_of
from h5stream.units import text_of_bytes

# Two points make a line, and batch normalisation needs two rows in the smaller.
_LEAST_ROWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationMemory(Suggestion):
    """What a forward pass keeps for the backward pass.

    Attributes
    ----------
    rows, kept_bytes : tuple of int
        Rows of the two batches that were measured, and what was kept with each.
    bytes_per_row, fixed_bytes : int
        What one more row keeps, and what is kept whatever the batch (16-bit copies of weights under autocast, for
        example).
    """

    rows: tuple[int, int]
    kept_bytes: tuple[int, int]
    bytes_per_row: int
    fixed_bytes: int


def measure_activations(
    model: torch.nn.Module, batch: Any, *, forward: Callable[[Any], Any] | None = None
) -> ActivationMemory:
    """Run the forward pass on a small batch and on half of it, and count what autograd keeps.

    Nothing is left changed: no backward pass is run, and buffers (running means), the random state and each
    module's mode are put back. The model runs where it is; on the device that will train it the kernels,
    and so what they keep, are the right ones.

    Parameters
    ----------
    model : torch.nn.Module
        In the mode in which it will train.
    batch : tensor, or tuple, list or dict of tensors
        At least 4 rows along each first axis, on the model's device. 8 to 32 rows tell enough.
    forward : callable, optional
        Takes the batch and gives something with the loss in it; under ``torch.autocast`` if training is.
        By default ``model(batch)``, with a tuple, list or dict spread over the arguments.

    Returns
    -------
    ActivationMemory
        Bytes a row, and those that are kept whatever the batch.

    Raises
    ------
    OptionError
        Fewer than 4 rows, no tensor, or tensors that disagree in rows.

    Notes
    -----
    Counted by https://docs.pytorch.org/docs/stable/autograd.html#torch.autograd.graph.saved_tensors_hooks,
    each storage once, without parameters, buffers and the batch. Compiled models and activation
    checkpointing save differently from what the hooks see in the first run; measure these with
    `find_batch_size`.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Sigmoid(), torch.nn.Linear(32, 1))
    >>> measure_activations(model, torch.zeros(8, 16)).bytes_per_row  # the sigmoid's 32 float32
    128
    """
    lengths = {tensor.shape[0] for tensor in tensors_of(batch) if tensor.ndim}
    if len(lengths) != 1:
        raise OptionError(f"the batch's tensors must agree in rows, and there must be one: {sorted(lengths)}")
    if (rows := int(lengths.pop())) < _LEAST_ROWS:
        raise OptionError(f"measure_activations() needs a batch of at least {_LEAST_ROWS} rows, not {rows}")
    half = rows // 2

    def run(part: Any) -> Any:
        if forward is not None:
            return forward(part)
        if isinstance(part, dict):
            return model(**part)
        return model(*part) if isinstance(part, (tuple, list)) else model(part)

    with _unchanged(model):
        kept_half = _kept_bytes(model, first_rows(batch, half), run)
        kept_whole = _kept_bytes(model, batch, run)
    per_row = max(0, math.ceil((kept_whole - kept_half) / (rows - half)))
    fixed = max(0, kept_half - per_row * half)
    return ActivationMemory(
        title="Activations",
        answer=f"{text_of_bytes(per_row)} a row and {text_of_bytes(fixed)} whatever the batch",
        arithmetic=(
            f"kept for the backward pass: {half} rows {text_of_bytes(kept_half)}, {rows} rows "
            f"{text_of_bytes(kept_whole)}",
            f"a row: ({kept_whole} - {kept_half}) / ({rows} - {half}) = {per_row} B",
            f"the rest: {kept_half} - {half} x {per_row} = {fixed} B",
        ),
        caveats=("a line through two points: kernels that choose by size may bend it",),
        sources=("torch.autograd.graph.saved_tensors_hooks",),
        rows=(half, rows),
        kept_bytes=(kept_half, kept_whole),
        bytes_per_row=per_row,
        fixed_bytes=fixed,
    )


def _kept_bytes(model: torch.nn.Module, batch: Any, forward: Callable[[Any], Any]) -> int:
    def key(tensor: torch.Tensor) -> int:
        return int(tensor.untyped_storage()._cdata)

    known = {key(tensor) for tensor in (*model.parameters(), *model.buffers(), *tensors_of(batch))}
    # The storages are held until the sum is made, so that no address is given out twice.
    kept: dict[int, torch.UntypedStorage] = {}
    odd_bytes = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal odd_bytes
        if tensor.layout is not torch.strided:
            odd_bytes += tensor._nnz() * tensor.element_size()
        elif key(tensor) not in known:
            kept[key(tensor)] = tensor.untyped_storage()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward(batch)
    total = odd_bytes + sum(storage.nbytes() for storage in kept.values())
    del result
    return total


@contextlib.contextmanager
def _unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Put buffers, modes and the random state back, whatever happens inside."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    modes = [(module, module.training) for module in model.modules()]
    devices = {tensor.device for tensor in model.parameters() if tensor.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=[device.index for device in devices]):
            yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
