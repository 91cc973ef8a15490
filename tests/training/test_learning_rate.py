"""The two rules, which optimizer gets which, and the warm-up."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h5stream.errors import OptionError
from h5stream.training.steps import learning_rate_for


def test_the_notes_rates_follow_the_square_root_rule_and_are_rounded_there():
    # The notes print 0.00048 and 0.0006; exactly it is a little more and a little less.
    assert learning_rate_for(12, old_batch_size=8, old_lr=0.0004).figures["lr"] == pytest.approx(0.00049, abs=5e-6)
    assert learning_rate_for(16, old_batch_size=8, old_lr=0.0004).figures["lr"] == pytest.approx(0.000566, abs=5e-7)


def test_goyals_imagenet_rate_follows_the_linear_rule():
    rate = learning_rate_for(8192, old_batch_size=256, old_lr=0.1, optimizer="momentum", rows=1_281_167)
    assert (rate.figures["rule"], rate.figures["lr"], rate.figures["warmup_start"]) == (
        "linear",
        pytest.approx(3.2),
        0.1,
    )
    assert rate.figures["warmup_steps"] == 5 * math.ceil(1_281_167 / 8192)


@given(
    old=st.integers(1, 10**6),
    new=st.integers(1, 10**6),
    lr=st.floats(1e-8, 10),
    optimizer=st.sampled_from(["sgd", "adamw"]),
)
def test_there_and_back_is_where_it_began(old, new, lr, optimizer):
    there = learning_rate_for(new, old_batch_size=old, old_lr=lr, optimizer=optimizer)
    back = learning_rate_for(old, old_batch_size=new, old_lr=there.figures["lr"], optimizer=optimizer)
    assert back.figures["lr"] == pytest.approx(lr)
    low, high = sorted((there.figures["sqrt"], there.figures["linear"]))
    assert (low, high) == (
        (there.figures["sqrt"], there.figures["linear"])
        if new >= old
        else (there.figures["linear"], there.figures["sqrt"])
    )
    assert there.figures["warmup_start"] <= there.figures["lr"]


def test_adams_warm_up_follows_its_second_moment():
    assert learning_rate_for(64, old_batch_size=32, old_lr=1e-3).figures["warmup_steps"] == 2000


def test_sgds_warm_up_needs_the_rows_of_an_epoch():
    rate = learning_rate_for(64, old_batch_size=32, old_lr=0.1, optimizer="sgd")
    assert rate.figures["warmup_steps"] is None
    assert "give the rows" in str(rate)


def test_a_warm_up_longer_than_an_epoch_is_said():
    rate = learning_rate_for(64, old_batch_size=32, old_lr=0.1, rows=6400)
    assert "the warm-up is 20.0 epochs of 100 steps" in rate.caveats


@pytest.mark.parametrize("bad", [{"old_lr": 0}, {"old_lr": float("nan")}, {"old_batch_size": 0}])
def test_numbers_that_cannot_be_are_refused(bad):
    with pytest.raises(OptionError):
        learning_rate_for(64, **{"old_batch_size": 32, "old_lr": 0.1} | bad)
