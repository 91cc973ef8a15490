"""Find the largest batch that a training step takes, by trying."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from h5stream.advice.suggestion import Suggestion, at_least
from h5stream.device.cuda import release_cached_memory
from h5stream.errors import OptionError

# Of the largest batch that worked. Memory of a step varies with the data and the allocator's history.
MARGIN_SHARE = 0.10

# What libraries say, in lower case, when memory ran out and they raise a plain RuntimeError.
_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cusolver_status_alloc_failed",
    "cufft_alloc_failed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One batch size that was tried."""

    batch_size: int  # rows
    fits: bool  # False if memory ran out
    message: str = ""  # the first line of what was raised, empty if it fits

    def __str__(self) -> str:
        return f"{self.batch_size}: " + ("fits" if self.fits else f"out of memory ({self.message})")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch(Suggestion):
    """The batch that a step takes.

    Attributes
    ----------
    batch_size, largest : int
        The suggestion: the largest that worked, less a margin; and that itself.
    smallest_failure : int or None
        The smallest that did not, None if none failed up to the limit.
    attempts : tuple of Attempt
        All that was tried, in order.
    steps_run : int
        How often the step was called.
    """

    batch_size: int
    largest: int
    smallest_failure: int | None
    attempts: tuple[Attempt, ...]
    steps_run: int


def is_out_of_memory(error: BaseException | None) -> bool:
    """Tell whether an error, or one that caused it, says that memory ran out, on a GPU or on the host."""
    while error is not None:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            return True
        if isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _MESSAGES):
            return True
        error = error.__cause__
    return False


def find_batch_size(
    step: Callable[[int], Any],
    start: int,
    *,
    limit: int | None = None,
    resolution: int | None = None,
    steps_per_try: int = 2,
    margin_share: float = MARGIN_SHARE,
    restore: Sequence[Any] = (),
    free: Callable[[], Any] | None = None,
) -> BatchSearch:
    """Grow the batch until memory runs out, step back, and return the largest that worked less a margin.

    The batch doubles (or, if not even the first fits, halves), then the gap between the largest that worked
    and the smallest that did not is halved down to `resolution`.

    The search itself changes nothing, but `step` does whatever it does: a step that trains has trained
    afterwards, on made-up rows perhaps. Name model and optimizer in `restore`, or search with copies.

    Parameters
    ----------
    step : callable
        Takes a number of rows, makes such a batch and runs one whole training step: forward, backward,
        optimizer. What it returns is dropped.
    start : int
        Rows to begin with, a size that surely fits.
    limit : int, optional
        Rows that are never exceeded, by default 64 times `start`. On a CPU memory is overcommitted, and the
        kernel may end the process instead of raising: set it low there.
    resolution : int, optional
        Rows between the last two tries, by default a sixteenth of what worked.
    steps_per_try : int, optional
        Calls for each size. The optimizer's states come into being at the end of the first step, so that
        only the second meets all of the memory; 2 by default.
    margin_share : float, optional
        Of the largest that worked, taken off the suggestion.
    restore : sequence of objects with state_dict and load_state_dict, optional
        Put back to where they were, from copies in host memory; their gradients are set to None.
    free : callable, optional
        Called between tries, after garbage collection; by default gives torch's cached GPU memory back.

    Returns
    -------
    BatchSearch
        The suggestion, the largest batch that worked, and every try.

    Raises
    ------
    OptionError
        Not even one row fits, or an argument breaks a rule.
    Exception
        Whatever else `step` raises passes through.

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
            # Only the text survives: the traceback's frames hold the tensors of the failed step.
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
    """Return the largest size that fits, 0 for none, and the smallest that does not, None for none up to the limit."""
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
        answer=f"{suggested} rows ({low} worked, less {margin_share:.0%})",
        arithmetic=(*map(str, attempts), f"{low} x (1 - {margin_share:g}) = {suggested}"),
        caveats=tuple(caveats),
        batch_size=suggested,
        largest=low,
        smallest_failure=high,
        attempts=tuple(attempts),
        steps_run=steps_run,
    )


def _to_host(state: Any) -> Any:
    """Copy a state into host memory, so that the copy takes no room where the search looks for it."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        # A shallow copy first: a module's state carries the versions of its layouts as an attribute.
        copied = copy.copy(state)
        copied.update({name: _to_host(value) for name, value in state.items()})
        return copied
    if isinstance(state, (list, tuple)):
        return type(state)([_to_host(value) for value in state])
    return copy.deepcopy(state)
