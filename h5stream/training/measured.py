"""Measurements of a training that the user starts: the memory kept for the backward pass, and the largest batch.

The first uses a small batch; the second grows the batch until memory runs out.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from h5stream.advice import Suggestion, at_least
from h5stream.base.texts import text_of_bytes
from h5stream.device.cuda import release_cached_memory
from h5stream.errors import OptionError
from h5stream.structure import tensors_of, with_tensors

_LEAST_ROWS = 4  # two points define a line, and batch normalization needs two rows in the smaller batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationMemory(Suggestion):
    """Memory that a forward pass keeps for the backward pass.

    Attributes
    ----------
    rows, kept_bytes : tuple of int
        Rows of the two measured batches, and the bytes kept for each.
    bytes_per_row, fixed_bytes : int
        Bytes kept per additional row, and bytes kept for any batch (16-bit copies of weights under autocast, for
        example).
    """

    rows: tuple[int, int]
    kept_bytes: tuple[int, int]
    bytes_per_row: int
    fixed_bytes: int


def measure_activations(
    model: torch.nn.Module, batch: object, *, forward: Callable[[Any], object] | None = None
) -> ActivationMemory:
    """Run the forward pass on a small batch and on half of it, and count the memory that autograd keeps.

    Nothing stays changed: there is no backward pass, and buffers (running means), the random state and each module's
    mode are restored. The model runs on its device; on the device used for training, the kernels, and so the memory
    that they keep, are the right ones.

    Parameters
    ----------
    model : torch.nn.Module
        In the mode in which it will train.
    batch : tensor, or tuple, list or dict of tensors
        At least 4 rows along each first axis, on the model's device. 8 to 32 rows are enough.
    forward : callable, optional
        Takes the batch and returns a result with the loss in it; under ``torch.autocast`` if training is.
        By default ``model(batch)``, with a tuple, list or dict spread over the arguments.

    Returns
    -------
    ActivationMemory
        Bytes per row, and bytes kept for any batch.

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

    def first_half(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[:half] if tensor.ndim else tensor

    def run(part: object) -> object:
        if forward is not None:
            return forward(part)
        if isinstance(part, dict):
            return model(**part)
        return model(*part) if isinstance(part, (tuple, list)) else model(part)

    with _unchanged(model):
        kept_half = _kept_bytes(model, with_tensors(batch, first_half), run)
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


def _kept_bytes(model: torch.nn.Module, batch: object, forward: Callable[[object], object]) -> int:
    def key(tensor: torch.Tensor) -> int:
        return int(tensor.untyped_storage()._cdata)

    excluded = {key(tensor) for tensor in (*model.parameters(), *model.buffers(), *tensors_of(batch))}
    # The storages are held until they are summed, so that no address is reused.
    kept: dict[int, torch.UntypedStorage] = {}
    odd_bytes = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal odd_bytes
        if tensor.layout is not torch.strided:
            odd_bytes += tensor._nnz() * tensor.element_size()
        elif key(tensor) not in excluded:
            kept[key(tensor)] = tensor.untyped_storage()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward(batch)
    total = odd_bytes + sum(storage.nbytes() for storage in kept.values())
    del result
    return total


@contextlib.contextmanager
def _unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Restore buffers, modes and the random state afterwards."""
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


# --- searching the largest batch of a step ------------------------------------------------------------------


# Share of the largest batch that worked. The memory of a step varies with the data and the allocator's history.
MARGIN_SHARE = 0.10

# Lower-case messages of libraries that raise a plain RuntimeError when memory runs out.
_MESSAGES = ("out of memory", "t allocate memory", "_alloc_failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A batch size that was tried."""

    batch_size: int  # rows
    fits: bool  # False if memory ran out
    message: str = ""  # the first line of the error, empty if it fits

    def __str__(self) -> str:
        return f"{self.batch_size}: " + ("fits" if self.fits else f"out of memory ({self.message})")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch(Suggestion):
    """The largest batch of a step.

    Attributes
    ----------
    batch_size, largest : int
        The suggestion, which is the largest batch that worked minus a margin; and this largest batch.
    smallest_failure : int or None
        The smallest batch that failed, None if none failed up to the limit.
    attempts : tuple of Attempt
        All attempts, in order.
    steps_run : int
        The number of calls of the step.
    """

    batch_size: int
    largest: int
    smallest_failure: int | None
    attempts: tuple[Attempt, ...]
    steps_run: int


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, means that memory ran out, on a GPU or on the host."""
    while error is not None:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            return True
        if isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _MESSAGES):
            return True
        error = error.__cause__
    return False


def find_batch_size(
    step: Callable[[int], object],
    start: int,
    *,
    limit: int | None = None,
    resolution: int | None = None,
    steps_per_try: int = 2,
    margin_share: float = MARGIN_SHARE,
    restore: Sequence[Any] = (),
    free: Callable[[], object] | None = None,
) -> BatchSearch:
    """Grow the batch until memory runs out, step back, and return the largest that worked minus a margin.

    The batch doubles (or, if not even the first fits, halves), then the gap between the largest that worked
    and the smallest that did not is halved down to `resolution`.

    The search itself changes nothing, but `step` has its effects: a step that trains changes the model, perhaps with
    made-up rows. Name model and optimizer in `restore`, or search with copies.

    Parameters
    ----------
    step : callable
        Takes a number of rows, makes such a batch and runs one whole training step: forward, backward, optimizer. Its
        result is dropped.
    start : int
        Rows of the first attempt, a size that surely fits.
    limit : int, optional
        Rows that are never exceeded, by default 64 times `start`. On a CPU memory is overcommitted, and the
        kernel may end the process instead of raising: set it low there.
    resolution : int, optional
        Rows between the last two attempts, by default a sixteenth of the size that worked.
    steps_per_try : int, optional
        Calls for each size, 2 by default. The optimizer's states are created at the end of the first step, so only the
        second step needs all of the memory.
    margin_share : float, optional
        The share of the largest size that worked to subtract for the suggestion.
    restore : sequence of objects with state_dict and load_state_dict, optional
        Objects to restore from copies in host memory; their gradients are set to None.
    free : callable, optional
        Called between attempts, after garbage collection; by default releases torch's cached GPU memory.

    Returns
    -------
    BatchSearch
        The suggestion, the largest batch that worked, and every attempt.

    Raises
    ------
    OptionError
        If not even one row fits, or an argument breaks a rule.
    Exception
        Other errors of `step` are not caught.

    Examples
    --------
    >>> def step(rows):
    ...     if rows > 1000:
    ...         raise MemoryError("made up")
    >>> found = find_batch_size(step, start=64, resolution=8)
    >>> found.largest, found.batch_size
    (1000, 900)
    """
    at_least(1, start=start, limit=limit, resolution=resolution, steps_per_try=steps_per_try)
    at_least(0, margin_share=margin_share)
    if margin_share >= 1:
        raise OptionError(f"margin_share must be under 1, not {margin_share}")
    most = limit if limit is not None else 64 * start
    if most < start:
        raise OptionError(f"limit must be at least start: {limit} < {start}")
    free = free or release_cached_memory
    saved = [(owner, _to_host(owner.state_dict())) for owner in restore]
    attempts, steps_run = list[Attempt](), 0

    def fits(rows: int) -> bool:
        nonlocal steps_run
        gc.collect()
        free()
        message = ""
        try:
            for _ in range(steps_per_try):
                steps_run += 1
                step(rows)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            # Keep only the text: the traceback's frames hold the tensors of the failed step.
            message = str(error).split("\n", 1)[0] or type(error).__name__
        attempts.append(Attempt(batch_size=rows, fits=not message, message=message))
        return not message

    try:
        low, high = _edge(fits, start, most, resolution)
    finally:
        for owner, state in saved:
            owner.load_state_dict(state)
            if isinstance(owner, (torch.nn.Module, torch.optim.Optimizer)):
                owner.zero_grad(set_to_none=True)
        gc.collect()
        free()
    if not low:
        raise OptionError(
            f"not even 1 row fits: {attempts[-1].message}. Free memory, or make the model or the row smaller"
        )
    return _report(attempts, steps_run, low, high, margin_share, restored=bool(saved))


def _edge(fits: Callable[[int], bool], start: int, most: int, resolution: int | None) -> tuple[int, int | None]:
    """Return the largest size that fits, 0 for none, and the smallest that fails, None for none up to the limit."""
    low, high, rows = 0, most + 1, start
    while True:
        low, high = (rows, high) if fits(rows) else (low, rows)
        if high > most:
            if low == most:
                return low, None
            rows = min(2 * low, most)
        elif high == 1 or (low and high - low <= (resolution or max(1, low // 16))):
            return low, high
        else:
            rows = (low + high) // 2


def _report(
    attempts: Sequence[Attempt], steps_run: int, low: int, high: int | None, margin_share: float, *, restored: bool
) -> BatchSearch:
    suggested = max(1, int(low * (1 - margin_share)))
    caveats = [f"nothing failed up to {low}, the limit: a larger one may fit"] * (high is None)
    if not restored:
        caveats.append(
            f"the step ran {steps_run} times and did whatever it does; nothing was put back, so "
            "restore weights and optimizer if it trained them"
        )
    return BatchSearch(
        title="Largest batch",
        answer=f"{suggested} row{'s' * (suggested > 1)} ({low} worked, less {margin_share:.0%})",
        arithmetic=(*map(str, attempts), f"{low} x (1 - {margin_share:g}) = {suggested}"),
        caveats=tuple(caveats),
        batch_size=suggested,
        largest=low,
        smallest_failure=high,
        attempts=tuple(attempts),
        steps_run=steps_run,
    )


def _to_host(state: object) -> Any:
    """Copy a state into host memory, so that the copy does not use the memory under test."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        # A shallow copy first: a module's state has the versions of its layouts as an attribute.
        copied = copy.copy(state)
        copied.update({name: _to_host(value) for name, value in state.items()})
        return copied
    if isinstance(state, (list, tuple)):
        return type(state)([_to_host(value) for value in state])
    return copy.deepcopy(state)
