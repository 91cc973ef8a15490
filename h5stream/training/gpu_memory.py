"""What training a model takes of a GPU's memory, and how many rows fit: arithmetic, no device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from h5stream.advice.rules import at_least
from h5stream.advice.suggestion import Suggestion
from h5stream.errors import OptionError
from h5stream.training.optimizer_states import Shape, find_optimizer, optimizer_state_bytes
from h5stream.units import text_of_bytes

# The CUDA context with the kernels of torch and its libraries; several hundred MiB on every recent card.
CONTEXT_BYTES = 512 << 20
# Of the card's memory. Between the notes that leave 0.2 of 8 GB (2.5 %) and call it full, and those that
# keep 4 of 24 GB (17 %): allocator fragmentation, library workspaces and the backward pass's own temporaries.
SAFETY_SHARE = 0.10

_ZERO = "16 bytes a parameter for mixed-precision Adam: arXiv:1910.02054, section 3.1"


class Module(Protocol):
    """The part of `torch.nn.Module` that counting needs."""

    def parameters(self) -> Iterable[Any]:
        """Give the parameters."""

    def buffers(self) -> Iterable[Any]:
        """Give the buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """How large a model is.

    Attributes
    ----------
    parameters : int
        Elements of all parameters.
    weight_bytes : int
        Their bytes.
    buffer_bytes : int
        Bytes of buffers (running means and the like).
    trainable : tuple of (shape, int)
        Shape and element bytes of each parameter that gets a gradient.
    """

    parameters: int
    weight_bytes: int
    buffer_bytes: int
    trainable: tuple[tuple[Shape, int], ...]

    @property
    def trainable_elements(self) -> int:
        """Elements of the parameters that get a gradient."""
        return sum(_elements(shape) for shape, _ in self.trainable)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients, which have their parameters' types."""
        return sum(_elements(shape) * size for shape, size in self.trainable)

    def state_bytes(self, optimizer: str) -> int:
        """Give the bytes that an optimizer keeps for the trainable parameters."""
        return sum(optimizer_state_bytes(optimizer, [shape], element_bytes=size) for shape, size in self.trainable)


def _elements(shape: Shape) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def count_parameters(model: Module) -> ParameterCount:
    """Count a `torch.nn.Module`; a parameter that two layers share counts once.

    Examples
    --------
    >>> import torch
    >>> count = count_parameters(torch.nn.Linear(255, 10))
    >>> count.parameters, count.weight_bytes
    (2560, 10240)
    """
    parameters, buffers = list(model.parameters()), list(model.buffers())
    return ParameterCount(
        parameters=sum(p.numel() for p in parameters),
        weight_bytes=sum(p.numel() * p.element_size() for p in parameters),
        buffer_bytes=sum(b.numel() * b.element_size() for b in buffers),
        trainable=tuple((tuple(p.shape), p.element_size()) for p in parameters if p.requires_grad),
    )


def parameter_count(parameters: int, *, element_bytes: int = 4) -> ParameterCount:
    """Describe a model of which only the number of parameters is known, all of them trained.

    It stands for one square matrix, which matters to factored optimizers alone (and flatters them).

    Examples
    --------
    >>> parameter_count(110_000_000).gradient_bytes
    440000000
    """
    at_least(1, parameters=parameters, element_bytes=element_bytes)
    side = int(parameters**0.5)
    shapes: tuple[Shape, ...] = ((side, side), (parameters - side * side,))
    return ParameterCount(
        parameters=parameters,
        weight_bytes=parameters * element_bytes,
        buffer_bytes=0,
        trainable=tuple((shape, element_bytes) for shape in shapes if _elements(shape)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory(Suggestion):
    """GPU memory of a training step.

    Attributes
    ----------
    weight_bytes, gradient_bytes, optimizer_bytes : int
        What is there all the time: weights with buffers (and a 32-bit master copy where there is one),
        gradients, optimizer states.
    activation_bytes : int
        Kept from the forward to the backward pass, for the whole batch.
    batch_bytes : int
        The batches on the device.
    step_bytes : int
        Temporaries of the optimizer's step, when the activations are gone already.
    context_bytes, safety_bytes : int
        The CUDA context, and the margin.
    total_bytes : int
        The peak, margin included.
    capacity_bytes : int
        The card's memory.
    largest_batch_size : int or None
        Rows that would fit by this arithmetic; None where no row costs anything.
    fits : bool
        True if `total_bytes` is within `capacity_bytes`.
    """

    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    batch_bytes: int
    step_bytes: int
    context_bytes: int
    safety_bytes: int
    total_bytes: int
    capacity_bytes: int
    largest_batch_size: int | None
    fits: bool


def gpu_memory(
    model: ParameterCount,
    *,
    optimizer: str,
    batch_size: int,
    memory_gib: float,
    activation_bytes_per_row: float = 0,
    activation_fixed_bytes: int = 0,
    row_bytes: int = 0,
    batches_on_device: int = 2,
    master_weights: bool = False,
    foreach: bool = True,
    safety_share: float = SAFETY_SHARE,
    context_bytes: int = CONTEXT_BYTES,
) -> GpuMemory:
    """Give what a training step takes of a GPU's memory, part by part, and the batch that would fit.

    Parameters
    ----------
    model : ParameterCount
        From `count_parameters` or `parameter_count`.
    optimizer : str
        Its kind, a name of `h5stream.training.optimizer_states.OPTIMIZERS`.
    batch_size : int
        Rows. Only compared with what fits.
    memory_gib : float
        The card's memory in GiB.
    activation_bytes_per_row, activation_fixed_bytes : float, int, optional
        From `h5stream.training.activations.measure_activations`.
    row_bytes : int, optional
        Bytes of a row on the device.
    batches_on_device : int, optional
        The batch in use and those prefetched.
    master_weights : bool, optional
        A 32-bit copy of 16-bit weights, with 32-bit states, as in ZeRO's 16 bytes a parameter. Not for
        ``torch.autocast``, which leaves the weights in 32 bits.
    foreach : bool, optional
        torch's default implementation on CUDA, which takes another copy of the parameters for a moment.
    safety_share : float, optional
        Of the card's memory, kept free.
    context_bytes : int, optional
        Of the CUDA context.

    Notes
    -----
    Activations and the optimizer's temporaries are not there at the same time, so the peak takes the larger
    of the two. 16 bytes a parameter for mixed-precision Adam: https://arxiv.org/abs/1910.02054, section 3.1.

    Examples
    --------
    >>> need = gpu_memory(parameter_count(110_000_000), optimizer="adamw", batch_size=96, memory_gib=8,
    ...                   activation_bytes_per_row=40 << 20)
    >>> need.fits, need.largest_batch_size
    (True, 129)
    """
    at_least(0, row_bytes=row_bytes, batches_on_device=batches_on_device, context_bytes=context_bytes)
    at_least(0, per_row=activation_bytes_per_row, fixed=activation_fixed_bytes, safety_share=safety_share)
    at_least(1, batch_size=batch_size)
    if not memory_gib > 0 or safety_share >= 1:
        raise OptionError(f"memory_gib must be above 0 and safety_share under 1: {memory_gib}, {safety_share}")
    master = 4 * model.trainable_elements if master_weights else 0
    capacity = int(memory_gib * (1 << 30))
    parts = {
        "weight_bytes": model.weight_bytes + model.buffer_bytes + master,
        "gradient_bytes": model.gradient_bytes,
        "optimizer_bytes": _state_bytes(model, optimizer, master_weights),
        "context_bytes": context_bytes,
        "safety_bytes": int(capacity * safety_share),
    }
    room = capacity - sum(parts.values())
    step = (master or model.gradient_bytes) if foreach else 0
    activations = int(activation_fixed_bytes + activation_bytes_per_row * batch_size)
    batches = batches_on_device * batch_size * row_bytes
    total = capacity - room + batches + max(activations, step)
    parts |= {"activation_bytes": activations, "batch_bytes": batches, "step_bytes": step}
    on_device = batches_on_device * row_bytes
    largest = _largest_batch(room, step, activation_fixed_bytes, activation_bytes_per_row, on_device)
    return GpuMemory(
        title="GPU memory",
        answer=_memory_answer(total, capacity, largest),
        arithmetic=(
            *_model_lines(model, optimizer, parts, master),
            f"activations: {text_of_bytes(activation_fixed_bytes)} + {batch_size} rows x "
            f"{text_of_bytes(activation_bytes_per_row)} = {text_of_bytes(activations)}",
            f"optimizer step's temporaries: {text_of_bytes(step)}; the larger of the two counts: "
            f"{text_of_bytes(max(activations, step))}",
            f"batches: {batches_on_device} x {batch_size} rows x {row_bytes} B = {text_of_bytes(batches)}",
            f"CUDA context {text_of_bytes(context_bytes)}, safety {safety_share:.0%} of the card "
            f"{text_of_bytes(parts['safety_bytes'])}",
            f"together {text_of_bytes(total)} of {text_of_bytes(capacity)}",
        ),
        caveats=_memory_caveats(activations),
        sources=(_ZERO,) if master else (),
        total_bytes=total,
        capacity_bytes=capacity,
        largest_batch_size=largest,
        fits=total <= capacity,
        **parts,
    )


def _memory_answer(total: int, capacity: int, largest: int | None) -> str:
    verdict = "fits" if total <= capacity else f"{text_of_bytes(total - capacity)} too much"
    rows = "" if largest is None else f"; {largest} rows would fit"
    return f"{text_of_bytes(total)} of {text_of_bytes(capacity)}: {verdict}{rows}"


def _model_lines(model: ParameterCount, optimizer: str, parts: dict[str, int], master: int) -> tuple[str, ...]:
    kind = find_optimizer(optimizer)
    copied = " with a 32-bit master copy" if master else ""
    return (
        f"weights: {model.parameters:,} parameters and buffers{copied} = {text_of_bytes(parts['weight_bytes'])}",
        f"gradients: {model.trainable_elements:,} trained parameters = {text_of_bytes(parts['gradient_bytes'])}",
        f"optimizer, {kind.name}: keeps {kind.keeps} = {text_of_bytes(parts['optimizer_bytes'])}",
    )


def _state_bytes(model: ParameterCount, optimizer: str, master_weights: bool) -> int:
    if not master_weights:
        return model.state_bytes(optimizer)
    return optimizer_state_bytes(optimizer, [shape for shape, _ in model.trainable], element_bytes=4)


def _largest_batch(room: int, step: int, fixed: int, activations_per_row: float, on_device: int) -> int | None:
    """Solve ``batches + max(activations, step) <= room`` for the rows; None where rows cost nothing."""
    per_row = activations_per_row + on_device
    if per_row <= 0:
        return None
    by_activations = (room - fixed) / per_row
    if on_device > 0:
        by_step = (room - step) / on_device
    else:
        by_step = by_activations if room >= step else 0
    return max(0, int(min(by_activations, by_step)))


def _memory_caveats(activations: int) -> tuple[str, ...]:
    if not activations:
        return ("activations are not in here: measure_activations(model, batch) on a small batch gives them",)
    return ("workspaces and the backward pass's temporaries are in the safety; find_batch_size() measures",)
