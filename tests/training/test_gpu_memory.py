"""GPU memory: torch's own optimizers and autograd are the oracle."""

import pytest
import torch
from each import for_each
from hypothesis import given
from hypothesis import strategies as st

from h5stream.errors import OptionError
from h5stream.training.arithmetic import OPTIMIZERS, find_optimizer, gpu_memory, optimizer_state_bytes

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


def model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 5)
    )


def real_state_bytes(optimizer):
    return sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for name, value in state.items()
        # Scalars that count steps or multiply momenta.
        if isinstance(value, torch.Tensor) and name not in ("step", "mu_product")
    )


@pytest.mark.parametrize("name", TORCH)
def test_optimizer_states_are_what_torch_keeps(name):
    net = model()
    optimizer = TORCH[name](net.parameters())
    net(torch.ones(4, 3, 8, 8)).sum().backward()
    optimizer.step()
    assert optimizer_state_bytes(name, [tuple(p.shape) for p in net.parameters()]) == real_state_bytes(optimizer)


def test_eight_bit_states_take_two_bytes_and_a_scale_a_block():
    assert optimizer_state_bytes("adamw8bit", [(1 << 20,)]) == 2 * ((1 << 20) + 4 * 4096)


WRITTEN = [
    ("AdamW", "adamw"),
    ("8-bit AdamW", "adamw8bit"),
    ("PagedAdamW8bit", "adamw8bit"),
    ("Nesterov", "momentum"),
    ("sgd+momentum", "momentum"),
]


@for_each(WRITTEN)
def test_optimizers_are_found_as_people_write_them(written, name):
    assert find_optimizer(written) == name


def test_an_unknown_optimizer_is_answered_with_the_nearest_first():
    with pytest.raises(OptionError, match=r"no optimizer is known as 'adamx'; known: adam"):
        find_optimizer("adamx")


NEEDS = {
    "parameters": st.integers(1, 10**10),
    "activation_bytes_per_row": st.integers(0, 1 << 24),
    "row_bytes": st.integers(0, 1 << 16),
    "memory_gib": st.floats(1, 200),
    "optimizer": st.sampled_from(list(OPTIMIZERS)),
}


@given(batch=st.integers(1, 10**6), needs=st.fixed_dictionaries(NEEDS))
def test_the_batch_that_would_fit_fits_and_one_more_row_does_not(batch, needs):
    def need(rows):
        return gpu_memory(batch_size=rows, **needs).figures

    asked = need(batch)
    largest = asked["largest_batch_size"]
    assert asked["fits"] == (asked["total_bytes"] <= asked["capacity_bytes"])
    if largest is None:
        assert needs["activation_bytes_per_row"] == needs["row_bytes"] == 0
        return
    if largest > 0:
        assert need(largest)["fits"]
    assert not need(largest + max(2, largest // 1_000_000))["fits"]


def test_the_peak_takes_the_larger_of_activations_and_the_steps_temporaries():
    small = gpu_memory(10**8, optimizer="adamw", batch_size=1, memory_gib=24).figures
    large = gpu_memory(10**8, optimizer="adamw", batch_size=1, memory_gib=24, activation_bytes_per_row=1 << 30).figures
    assert small["step_bytes"] == 4 * 10**8
    assert large["total_bytes"] - small["total_bytes"] == (1 << 30) - 4 * 10**8


def test_without_activations_it_says_what_is_missing():
    need = gpu_memory(10**6, optimizer="sgd", batch_size=8, memory_gib=8)
    assert "activations are not in here" in need.caveats[0]


@pytest.mark.parametrize("bad", [{"memory_gib": 0}, {"batch_size": 0}, {"row_bytes": -1}])
def test_numbers_that_cannot_be_are_refused(bad):
    good = {"optimizer": "sgd", "batch_size": 1, "memory_gib": 8.0}
    with pytest.raises(OptionError):
        gpu_memory(10, **good | bad)
