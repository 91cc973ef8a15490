"""The two rules, which optimizer gets which, and the warm-up."""

import math

import pytest
import torch
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st

from h5stream.errors import OptionError
from h5stream.training.arithmetic import accumulation_for, learning_rate_for, what_to_try_first
from h5stream.training.presets import Setting, preset_for


def test_the_notes_rates_follow_the_square_root_rule_and_are_rounded_there():
    # The notes print 0.00048 and 0.0006; exactly it is a little more and a little less.
    assert learning_rate_for(12, old_batch_size=8, old_lr=0.0004).figures["lr"] == pytest.approx(0.00049, abs=5e-6)
    assert learning_rate_for(16, old_batch_size=8, old_lr=0.0004).figures["lr"] == pytest.approx(0.000566, abs=5e-7)


def test_goyals_imagenet_rate_follows_the_linear_rule():
    rate = learning_rate_for(8192, old_batch_size=256, old_lr=0.1, optimizer="momentum", rows=1_281_167)
    found = [rate.figures[name] for name in ("rule", "lr", "warmup_start")]
    assert found == ["linear", pytest.approx(3.2), 0.1]
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
    assert there.figures["warmup_start"] <= there.figures["lr"]


def test_a_warm_up_follows_adams_second_moment_or_sgds_epochs_and_a_long_one_is_said():
    assert learning_rate_for(64, old_batch_size=32, old_lr=1e-3).figures["warmup_steps"] == 2000
    rate = learning_rate_for(64, old_batch_size=32, old_lr=0.1, optimizer="sgd")
    assert rate.figures["warmup_steps"] is None
    assert "give the rows" in str(rate)
    rate = learning_rate_for(64, old_batch_size=32, old_lr=0.1, rows=6400)
    assert "the warm-up is 20.0 epochs of 100 steps" in rate.caveats


@given(target=st.integers(1, 100_000), batch=st.integers(1, 10_000))
def test_all_rows_are_there_and_an_even_batch_divides_them(target, batch):
    found = accumulation_for(target, batch).figures
    *full, last = found["microbatch_rows"]
    assert (len(full) + 1, sum(full) + last) == (found["steps"], target)
    assert set(full) <= {batch}
    assert 1 <= last <= batch
    assert target % found["even_batch_size"] == 0
    assert found["even_batch_size"] <= batch


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


def setting(batch_size=8192, workers=8, prefetch_factor=16):
    return Setting(batch_size=batch_size, workers=workers, prefetch_factor=prefetch_factor)


def names(**options):
    return [knob.knob for knob in what_to_try_first(setting(), **options).figures["knobs"]]


def test_the_measured_wait_decides_what_comes_first():
    usual = ["batch_size", "num_workers", "memory_budget", "precision"]
    assert [names(waiting_share=share) for share in (None, 0.05, 0.10, 0.20)] == [usual] * 4
    assert names(waiting_share=0.21)[:2] == ["num_workers", "memory_budget"]
    assert names(waiting_share=0.04)[:2] == ["batch_size", "precision"]


@pytest.mark.parametrize(
    ("now", "gpu", "batch", "workers"),
    [
        (setting(64, 2, 2), "RTX 4090", "7168 (the preset)", "8"),
        (setting(8192, 8, 16), "RTX 5090", "10240 (the preset of an underused RTX 5090)", "12"),
        (setting(7168, 8, 16), "RTX 4090", "8960 (a quarter more than now)", "16"),
        (setting(64, 2, 2), None, "128 (double)", "4"),
    ],
)
def test_the_next_value_is_the_presets_where_there_is_one(now, gpu, batch, workers):
    knobs = what_to_try_first(now, preset=preset_for(gpu) if gpu else None).figures["knobs"]
    assert [knobs[0].try_next, knobs[1].try_next] == [batch, workers]


@given(workers=st.integers(0, 64), cpus=st.integers(1, 64), preset=st.booleans())
def test_workers_never_exceed_the_processors(workers, cpus, preset):
    knob = what_to_try_first(
        setting(workers=workers), cpus=cpus, preset=preset_for("RTX 5090") if preset else None
    ).figures["knobs"][1]
    if workers > cpus:
        assert knob.try_next == f"{cpus} (no more processors are allowed here)"
    elif workers == cpus:
        assert knob.try_next == f"leave it: {cpus} processors allowed"
    else:
        assert workers < int(knob.try_next.split()[0]) <= cpus


def test_every_knob_says_why_and_when_to_stop():
    advice = what_to_try_first(setting(), precision="bf16")
    for knob in advice.figures["knobs"]:
        assert f"{knob.knob}: {knob.present} -> {knob.try_next}" in str(advice)
        assert f"{knob.why}; stop {knob.stop}" in str(advice)
    assert advice.figures["knobs"][3].try_next == "leave it"


REFUSED = [
    *(lambda bad=bad: learning_rate_for(64, **{"old_batch_size": 32, "old_lr": 0.1} | bad)
      for bad in ({"old_lr": 0}, {"old_lr": math.nan}, {"old_batch_size": 0})),
    *(lambda bad=bad: accumulation_for(*bad) for bad in ((0, 1), (1, 0))),
    *(lambda bad=bad: what_to_try_first(setting(), **bad)
      for bad in ({"waiting_share": 1.1}, {"waiting_share": -0.1}, {"precision": "int8"})),
]  # fmt: skip


@pytest.mark.parametrize("asked", REFUSED)
def test_numbers_that_cannot_be_are_refused(asked):
    with pytest.raises(OptionError):
        asked()
