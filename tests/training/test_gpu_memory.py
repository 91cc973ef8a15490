"""GPU memory: torch's own optimizers and autograd are the oracle."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from h5stream.errors import OptionError
from h5stream.training.gpu_memory import count_parameters, gpu_memory, parameter_count
from h5stream.training.optimizer_states import OPTIMIZERS, find_optimizer, optimizer_state_bytes

TORCH = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adam": lambda p: torch.optim.Adam(p),
    "adamw": lambda p: torch.optim.AdamW(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adafactor": lambda p: torch.optim.Adafactor(p),
}


def model(dtype=torch.float32):
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 5)
    ).to(dtype)


def real_state_bytes(optimizer):
    return sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for name, value in state.items()
        # Scalars that count steps or multiply momenta.
        if isinstance(value, torch.Tensor) and name not in ("step", "mu_product")
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", TORCH)
def test_optimizer_states_are_what_torch_keeps(name, dtype):
    net = model(dtype)
    optimizer = TORCH[name](net.parameters())
    net(torch.ones(4, 3, 8, 8, dtype=dtype)).sum().backward()
    optimizer.step()
    assert count_parameters(net).state_bytes(name) == real_state_bytes(optimizer)


def test_gradients_and_weights_are_what_torch_keeps():
    net = model()
    net[0].requires_grad_(False)
    net(torch.ones(4, 3, 8, 8)).sum().backward()
    count = count_parameters(net)
    assert count.gradient_bytes == sum(p.grad.nbytes for p in net.parameters() if p.grad is not None)
    assert count.weight_bytes == sum(p.nbytes for p in net.parameters())
    assert count.buffer_bytes == sum(b.nbytes for b in net.buffers())


def test_a_shared_parameter_counts_once():
    layer = torch.nn.Linear(4, 4)
    assert count_parameters(torch.nn.Sequential(layer, layer)).parameters == 20


def test_eight_bit_states_take_two_bytes_and_a_scale_a_block():
    assert optimizer_state_bytes("adamw8bit", [(1 << 20,)]) == 2 * ((1 << 20) + 4 * 4096)
    assert optimizer_state_bytes("adamw8bit", [(100,)]) == 2 * 400, "small tensors stay in 32 bits"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("AdamW", "adamw"),
        ("8-bit AdamW", "adamw8bit"),
        ("adamw_8bit", "adamw8bit"),
        ("PagedAdamW8bit", "adamw8bit"),
        ("SGD", "sgd"),
        ("Nesterov", "momentum"),
        ("sgd+momentum", "momentum"),
    ],
)
def test_optimizers_are_found_as_people_write_them(written, name):
    assert find_optimizer(written).name == name


def test_an_unknown_optimizer_is_answered_with_the_nearest_first():
    with pytest.raises(OptionError, match=r"no optimizer is known as 'adamx'; known: adam"):
        find_optimizer("adamx")


@given(shapes=st.lists(st.lists(st.integers(1, 64), max_size=4).map(tuple), max_size=6))
def test_no_optimizer_keeps_less_than_nothing_and_factored_keeps_little(shapes):
    for name in OPTIMIZERS:
        assert optimizer_state_bytes(name, shapes) >= 0
    elements = sum(math.prod(shape) for shape in shapes)
    assert optimizer_state_bytes("amsgrad", shapes) == 12 * elements
    assert optimizer_state_bytes("adam", shapes) == 2 * optimizer_state_bytes("momentum", shapes)


@given(
    parameters=st.integers(1, 10**10),
    batch=st.integers(1, 10**6),
    per_row=st.integers(0, 1 << 24),
    fixed=st.integers(0, 1 << 30),
    row=st.integers(0, 1 << 16),
    memory=st.floats(1, 200),
    foreach=st.booleans(),
    optimizer=st.sampled_from(list(OPTIMIZERS)),
)
def test_the_batch_that_would_fit_fits_and_one_more_row_does_not(
    parameters, batch, per_row, fixed, row, memory, foreach, optimizer
):
    def need(rows):
        return gpu_memory(
            parameter_count(parameters),
            optimizer=optimizer,
            batch_size=rows,
            memory_gib=memory,
            activation_bytes_per_row=per_row,
            activation_fixed_bytes=fixed,
            row_bytes=row,
            foreach=foreach,
        )

    asked = need(batch)
    assert asked.fits == (asked.total_bytes <= asked.capacity_bytes)
    if asked.largest_batch_size is None:
        assert per_row == row == 0
        return
    if asked.largest_batch_size > 0:
        assert need(asked.largest_batch_size).fits
    more = asked.largest_batch_size + max(2, asked.largest_batch_size // 1_000_000)
    assert not need(more).fits


def test_the_peak_takes_the_larger_of_activations_and_the_steps_temporaries():
    small = gpu_memory(parameter_count(10**8), optimizer="adamw", batch_size=1, memory_gib=24)
    large = gpu_memory(
        parameter_count(10**8), optimizer="adamw", batch_size=1, memory_gib=24, activation_fixed_bytes=1 << 30
    )
    assert small.step_bytes == 4 * 10**8
    assert large.total_bytes - small.total_bytes == (1 << 30) - 4 * 10**8


def test_sixteen_bytes_a_parameter_for_mixed_precision_adam_with_a_master_copy():
    need = gpu_memory(
        parameter_count(10**6, element_bytes=2),
        optimizer="adam",
        batch_size=1,
        memory_gib=8,
        master_weights=True,
    )
    assert need.weight_bytes + need.gradient_bytes + need.optimizer_bytes == 16 * 10**6


def test_without_activations_it_says_what_is_missing():
    need = gpu_memory(parameter_count(10**6), optimizer="sgd", batch_size=8, memory_gib=8)
    assert "activations are not in here" in need.caveats[0]


@pytest.mark.parametrize("bad", [{"memory_gib": 0}, {"safety_share": 1}, {"batch_size": 0}, {"row_bytes": -1}])
def test_numbers_that_cannot_be_are_refused(bad):
    good = {"optimizer": "sgd", "batch_size": 1, "memory_gib": 8.0}
    with pytest.raises(OptionError):
        gpu_memory(parameter_count(10), **good | bad)
