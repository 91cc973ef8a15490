"""Accumulated gradients with the given weights are the whole batch's."""

import pytest
import torch
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st

from h5stream.errors import OptionError
from h5stream.training.steps import accumulation_for


@given(target=st.integers(1, 100_000), batch=st.integers(1, 10_000))
def test_all_rows_are_there_and_the_weights_sum_to_one(target, batch):
    plan = accumulation_for(target, batch)
    assert sum(plan.figures["microbatch_rows"]) == target
    assert len(plan.figures["microbatch_rows"]) == plan.figures["steps"]
    assert all(rows == batch for rows in plan.figures["microbatch_rows"][:-1])
    assert 1 <= plan.figures["microbatch_rows"][-1] <= batch
    assert sum(plan.figures["weights"]) == pytest.approx(1)
    assert target % plan.figures["even_batch_size"] == 0
    assert plan.figures["even_batch_size"] <= batch


@examples(25)
@given(target=st.integers(1, 40), batch=st.integers(1, 40))
def test_weighted_microbatches_give_the_whole_batchs_gradient(target, batch):
    rows = torch.randn(target, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(target))
    whole = torch.nn.Linear(3, 1).double()
    parts = torch.nn.Linear(3, 1).double()
    parts.load_state_dict(whole.state_dict())
    whole(rows).square().mean().backward()
    plan = accumulation_for(target, batch)
    for part, weight in zip(rows.split(plan.figures["microbatch_rows"]), plan.figures["weights"], strict=True):
        (parts(part).square().mean() * weight).backward()
    torch.testing.assert_close(parts.weight.grad, whole.weight.grad)


def test_an_uneven_last_batch_is_said_with_its_weight_and_its_alternatives():
    plan = accumulation_for(300, 128)
    assert plan.figures["microbatch_rows"] == (128, 128, 44)
    text = str(plan)
    assert "the last 44/300 = 0.1467 (1/3 = 0.3333 would be wrong)" in text
    assert "batches of 100 (3 of them)" in text
    assert plan.figures["effective_batch_size"] == 384


def test_an_epochs_short_last_step_is_said():
    plan = accumulation_for(300, 100, rows=1000)
    assert plan.figures["last_step_rows"] == 100
    assert any("last optimizer step has 100 rows" in caveat for caveat in plan.caveats)
    assert accumulation_for(300, 100, rows=900).figures["last_step_rows"] == 300


def test_a_target_within_one_batch_needs_no_accumulation():
    plan = accumulation_for(100, 128)
    assert (plan.figures["steps"], plan.figures["microbatch_rows"]) == (1, (100,))
    assert plan.answer == "no accumulation: one batch of 100 does it"


@pytest.mark.parametrize("bad", [(0, 1), (1, 0)])
def test_batches_of_nothing_are_refused(bad):
    with pytest.raises(OptionError):
        accumulation_for(*bad)
