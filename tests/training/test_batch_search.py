"""The batch search finds the edge, frees between tries, and puts back what it is told to."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.each import for_each

from h5stream.errors import OptionError
from h5stream.training.measured import find_batch_size, is_out_of_memory


def full_at(edge, error=MemoryError):
    def step(rows):
        if rows > edge:
            raise error(f"no room for {rows}")

    return step


@pytest.fixture(scope="module", autouse=True)
def _collected_is_what_a_test_asks_for():
    """Between tries all that Python holds would be looked through, hundreds of times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("h5stream.training.measured.gc", SimpleNamespace(collect=lambda: None))
        yield


@given(edge=st.integers(1, 5000), start=st.integers(1, 5000), resolution=st.integers(1, 50))
def test_it_ends_within_the_resolution_of_the_edge(edge, start, resolution):
    found = find_batch_size(full_at(edge), start, limit=10**6, resolution=resolution, free=lambda: None)
    assert found.largest <= edge < found.smallest_failure
    assert found.smallest_failure - found.largest <= resolution
    assert 1 <= found.batch_size <= found.largest


@given(start=st.integers(1, 1000), factor=st.floats(1, 200))
def test_it_never_exceeds_the_limit(start, factor):
    asked = []
    limit = int(start * factor)
    found = find_batch_size(asked.append, start, limit=limit, free=lambda: None)
    assert max(asked) == found.largest == limit
    assert found.smallest_failure is None
    assert "the limit: a larger one may fit" in found.caveats[0]
    assert find_batch_size(full_at(10**9), 2).largest == 128  # by default 64 times the start


def test_every_size_is_tried_twice_because_optimizer_states_come_after_the_first_step():
    states = []

    def step(rows):
        if rows + 100 * len(states) > 1000:
            raise MemoryError
        states[:] = ["moments"]

    # 950 rows fit once, before there are states, and never again.
    assert find_batch_size(step, 950, resolution=1).largest == 900


RAN_OUT = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


@for_each(RAN_OUT)
def test_memory_that_runs_out_is_known_by_type_or_text(error):
    assert is_out_of_memory(error)
    wrapped = ValueError("in the compiler")
    wrapped.__cause__ = error
    assert is_out_of_memory(wrapped)


def test_the_real_allocators_error_is_known_and_others_are_not_taken_for_it():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 62, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    for error in (RuntimeError("size mismatch"), ValueError("out of memory"), None):
        assert not is_out_of_memory(error)


def test_other_errors_pass_through_and_still_put_back():
    model = torch.nn.Linear(1, 1)
    before = model.weight.item()

    def step(rows):
        with torch.no_grad():
            model.weight += 1
        raise ValueError("a bug of the step")

    with pytest.raises(ValueError, match="a bug of the step"):
        find_batch_size(step, 1, restore=[model])
    assert model.weight.item() == before


def test_memory_of_a_failed_try_is_free_before_the_next(monkeypatch):
    monkeypatch.setattr("h5stream.training.measured.gc", gc)

    class Tensor:
        pass

    alive, freed_at = [], []

    def step(rows):
        assert [reference() for reference in alive] == [None] * len(alive)
        held = Tensor()
        held.itself = held
        alive.append(weakref.ref(held))
        if rows > 10:
            raise torch.OutOfMemoryError("made up")

    enabled = gc.isenabled()
    gc.disable()
    try:
        find_batch_size(step, 8, steps_per_try=1, free=lambda: freed_at.append(len(alive)))
    finally:
        if enabled:
            gc.enable()
    assert freed_at == list(range(len(alive) + 1)), "before each try, and once at the end"


def train_step(model, optimizer, edge):
    def step(rows):
        loss = model(torch.ones(rows, 3)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rows > edge:
            raise MemoryError

    return step


def test_model_and_optimizer_are_put_back_where_they_are_named():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    train_step(model, optimizer, 1000)(4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    moments = {k: v["exp_avg"].clone() for k, v in optimizer.state_dict()["state"].items()}
    found = find_batch_size(train_step(model, optimizer, 50), 8, restore=[model, optimizer])
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    after = optimizer.state_dict()["state"]
    assert all(torch.equal(moments[key], after[key]["exp_avg"]) for key in moments)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert found.caveats == ()


def test_a_state_that_cannot_be_pickled_is_put_back_and_of_a_view_no_more_than_its_values_is_held():
    class Owner:
        state = {"view": torch.arange(10**6)[:3], "function": lambda: 0}  # noqa: RUF012

        def state_dict(self):
            return self.state

        def load_state_dict(self, state):
            assert (state["view"].untyped_storage().nbytes(), state["function"]()) == (24, 0)

    assert find_batch_size(full_at(40), 16, restore=[Owner()]).largest <= 40


def test_what_is_not_named_is_left_as_the_step_left_it_and_that_is_said():
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.clone()
    found = find_batch_size(train_step(model, optimizer, 50), 8)
    assert not torch.equal(before, model.weight)
    assert f"the step ran {found.steps_run} times" in found.caveats[-1]
    assert found.steps_run <= 2 * len(found.attempts)


def test_every_try_is_printed_and_that_not_even_one_row_fits_is_an_error():
    found = find_batch_size(full_at(40), 16, resolution=4)
    assert [attempt.batch_size for attempt in found.attempts] == [16, 32, 64, 48, 40, 44]
    assert "64: out of memory (no room for 64)" in str(found)
    assert found.arithmetic[-1] == "40 x (1 - 0.1) = 36"
    with pytest.raises(OptionError, match="not even 1 row fits: no room for 1"):
        find_batch_size(full_at(0), 8)


@pytest.mark.parametrize(
    "bad", [{"start": 0}, {"limit": 1}, {"margin_share": 1}, {"steps_per_try": 0}, {"resolution": 0}]
)
def test_numbers_that_cannot_be_are_refused_before_any_step(bad):
    ran = []
    with pytest.raises(OptionError):
        find_batch_size(ran.append, **{"start": 8} | bad)
    assert ran == []
