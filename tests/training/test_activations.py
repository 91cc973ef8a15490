"""What a forward pass keeps is counted, and the model is as it was."""

from collections import namedtuple

import pytest
import torch

from h5stream.errors import OptionError
from h5stream.training.measured import measure_activations


def mlp():
    # Kept for the backward pass: the sigmoid's result (32 float32) and, for the last layer, the same tensor.
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Sigmoid(), torch.nn.Linear(32, 1))


def test_a_tensor_that_two_layers_keep_counts_once():
    measured = measure_activations(mlp(), torch.zeros(8, 16))
    assert (measured.bytes_per_row, measured.fixed_bytes) == (32 * 4, 0)
    assert measured.rows == (4, 8)
    assert measured.kept_bytes == (4 * 128, 8 * 128)


def test_frozen_layers_keep_nothing_and_no_grad_around_hides_nothing():
    assert measure_activations(mlp().requires_grad_(False), torch.zeros(8, 16)).bytes_per_row == 0
    with torch.no_grad():
        assert measure_activations(mlp(), torch.zeros(8, 16)).bytes_per_row == 128


def test_what_does_not_grow_with_the_batch_is_fixed():
    weight = torch.nn.Parameter(torch.ones(64))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def forward(self, x):
            return x * self.weight.exp()

    measured = measure_activations(Net(), torch.zeros(8, 64))
    assert (measured.bytes_per_row, measured.fixed_bytes) == (0, 64 * 4)


def test_autocast_inside_forward_is_measured_as_it_trains():
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Sigmoid())

    def forward(batch):
        with torch.autocast("cpu", torch.bfloat16):
            return net(batch).float().sum()

    # The sigmoid's result and the batch in 16 bits.
    assert measure_activations(net, torch.zeros(8, 16), forward=forward).bytes_per_row == 32 * 2 + 16 * 2


def test_the_model_is_left_as_it_was():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout())
    net[2].eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    random = torch.get_rng_state()
    measure_activations(net, torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert [module.training for module in net] == [True, True, False]
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_forward_that_fails_leaves_the_model_as_it_was_too():
    net = torch.nn.BatchNorm1d(4)

    def forward(batch):
        net(batch)
        net.eval()
        raise KeyError("made up")

    with pytest.raises(KeyError):
        measure_activations(net, torch.ones(8, 4), forward=forward)
    assert net.training
    assert net.num_batches_tracked.item() == 0
    assert net.running_mean.tolist() == [0] * 4


Pair = namedtuple("Pair", "x y")


BATCHES = [
    Pair(torch.zeros(8, 16), torch.zeros(8)),
    [torch.zeros(8, 16), torch.zeros(8)],
    {"x": torch.zeros(8, 16), "y": torch.zeros(8)},
    {"x": torch.zeros(8, 16), "y": torch.tensor(1.0)},
]


@pytest.mark.parametrize("batch", [*BATCHES, tuple(BATCHES[0])])
def test_batches_come_in_the_shapes_that_loaders_give(batch):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, x, y):
            return self.inner(x)

    assert measure_activations(Net(), batch).bytes_per_row == 128


@pytest.mark.parametrize("batch", [torch.zeros(3, 16), {}, (torch.zeros(8, 16), torch.zeros(4)), torch.tensor(1.0)])
def test_a_batch_that_tells_nothing_is_refused(batch):
    with pytest.raises(OptionError, match=r"rows"):
        measure_activations(mlp(), batch)
