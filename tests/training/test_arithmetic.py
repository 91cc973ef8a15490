"""What suggestions reckon: memory (torch is the oracle), learning rates, steps, and presets by the names of cards."""

import math

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.amounts import examples
from support.each import for_each

from h5stream import H5StreamLoader
from h5stream.advice.inspection import inspect_file
from h5stream.errors import OptionError
from h5stream.training import CARDS, Setting, find_card, memory_of, preset_for, validation_batch
from h5stream.training.arithmetic import (
    OPTIMIZERS,
    accumulation_for,
    dataloader_memory,
    find_optimizer,
    gpu_memory,
    learning_rate_for,
    loader_memory,
    what_to_try_first,
)

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
    assert OPTIMIZERS[name][0] * sum(p.numel() for p in net.parameters()) == real_state_bytes(optimizer)


OPTIMIZERS_AS_WRITTEN = [
    ("AdamW", "adamw"),
    ("8-bit AdamW", "adamw8bit"),
    ("PagedAdamW8bit", "adamw8bit"),
    ("Nesterov", "momentum"),
    ("sgd+momentum", "momentum"),
]


@for_each(OPTIMIZERS_AS_WRITTEN)
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
    is_room = asked["total_bytes"] <= asked["capacity_bytes"]
    assert asked["fits"] == (is_room if needs["activation_bytes_per_row"] or not is_room else None)
    if largest is None:
        assert needs["activation_bytes_per_row"] == 0
        return
    if largest > 0:
        assert need(largest)["fits"]
    assert not need(largest + max(2, largest // 1_000_000))["fits"]


def test_the_peak_takes_the_larger_of_activations_and_the_steps_temporaries():
    small = gpu_memory(10**8, optimizer="adamw", batch_size=1, memory_gib=24).figures
    large = gpu_memory(10**8, optimizer="adamw", batch_size=1, memory_gib=24, activation_bytes_per_row=1 << 30).figures
    assert small["step_bytes"] == 4 * 10**8
    assert large["total_bytes"] - small["total_bytes"] == (1 << 30) - 4 * 10**8


def test_without_activations_no_batch_is_said_to_fit():
    found = gpu_memory(25_000_000, optimizer="adamw", batch_size=256, memory_gib=40)
    assert found.answer == "4.97 GiB of 40.0 GiB: without activations, which are not known"
    assert "0 B" not in str(found)
    assert "measure_activations(model, batch)" in found.caveats[0]
    assert (found.figures["fits"], found.figures["largest_batch_size"]) == (None, None)
    small = gpu_memory(25_000_000, optimizer="adamw", batch_size=256, memory_gib=40, row_bytes=1024)
    assert "would fit" not in small.answer
    too_much = gpu_memory(10**10, optimizer="adamw", batch_size=256, memory_gib=40)
    assert (too_much.figures["fits"], too_much.answer[-27:]) == (False, "too much without activations"[-27:])


# --- host memory: the DataLoader's queue, and the loader's one budget --------------------------------------------


def test_too_little_memory_is_said():
    setting = {"row_bytes": 1024, "batch_size": 8192, "workers": 8, "prefetch_factor": 16}
    assert dataloader_memory(**setting, available_bytes=1 << 30).caveats[0].startswith("more than there is")
    assert dataloader_memory(**setting, available_bytes=1 << 40).caveats[0].startswith("fits")


def test_the_window_is_the_most_of_four_batches_1024_blocks_and_256_mib():
    def rows(row_bytes, batch_size, chunk_bytes, **budget):
        found = loader_memory(row_bytes=row_bytes, batch_size=batch_size, chunk_bytes=chunk_bytes, **budget)
        return found.figures["window_rows"]

    for budget in ({}, {"memory_budget": 1 << 45}):
        assert rows(1024, 8192, 1 << 19, **budget) == 1024 * 512
        assert rows(1024, 8192, 1024, **budget) == 256 * 1024
        assert rows(1 << 13, 12_000, 1 << 13, **budget) == 4 * 12_000
        assert rows(8, 64, 8, **budget) == 1 << 20
        assert 500 * 1024 < rows(1024, 8192, 1 << 20, **budget) < 1024 * 1024  # of which two fit 2 GiB


@pytest.mark.parametrize(("rows", "budget"), [(20_000, None), (20_000, 24 << 20), (300_000, 96 << 20)])
def test_suggest_inspect_and_the_loader_name_one_number(tmp_path, rows, budget):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        chunk = np.random.default_rng(0).integers(0, 256, (1024, 1024), "u1")
        x = file.create_dataset("x", (rows, 1024), "u1", chunks=(1024, 1024), compression="gzip", compression_opts=1)
        for start in range(0, min(rows, 20_000), 1024):
            x[start : start + 1024] = chunk[: min(1024, rows - start)]
    loader = H5StreamLoader(path, 2048, shuffle=True, num_workers=2, memory_budget=budget)
    sample = inspect_file(path, batch_size=2048, memory_budget=budget, threads=2).sample
    assert sample.resources.memory_nbytes == loader.window_size.needed_nbytes
    assert sample.shuffle.window_rows <= loader.window_size.window_rows + 1024
    said = loader_memory(row_bytes=1024, batch_size=2048, threads=2, rows=rows, memory_budget=budget)
    fresh = H5StreamLoader(path, 2048, shuffle=True, num_workers=2, memory_budget=budget, keep="never")
    assert said.figures["total_bytes"] == pytest.approx(fresh.window_size.needed_nbytes, rel=0.02)
    assert abs(said.figures["window_rows"] - loader.window_size.window_rows) <= 1024


def test_a_capped_window_says_what_it_does_to_the_shuffle():
    memory = loader_memory(row_bytes=1024, batch_size=8192, memory_budget=512 << 20)
    assert memory.figures["capped"]
    assert any("blocks at a time instead of 736" in caveat for caveat in memory.caveats)


# --- learning rates, accumulation and what to try first ----------------------------------------------------------


def test_the_notes_rates_follow_the_square_root_rule_and_are_rounded_there():
    # The notes print 0.00048 and 0.0006; exactly it is a little more and a little less.
    assert learning_rate_for(12, old_batch_size=8, old_lr=0.0004).figures["lr"] == pytest.approx(0.00049, abs=5e-6)
    assert learning_rate_for(16, old_batch_size=8, old_lr=0.0004).figures["lr"] == pytest.approx(0.000566, abs=5e-7)


def test_goyals_imagenet_rate_follows_the_linear_rule():
    rate = learning_rate_for(8192, old_batch_size=256, old_lr=0.1, optimizer="momentum", rows=1_281_167)
    found = [rate.figures[name] for name in ("rule", "lr", "warmup_start")]
    assert found == ["linear", pytest.approx(3.2), 0.1]
    assert rate.figures["warmup_steps"] == 5 * math.ceil(1_281_167 / 8192)


def test_a_warm_up_follows_adams_second_moment_or_sgds_epochs_and_a_long_one_is_said():
    assert learning_rate_for(64, old_batch_size=32, old_lr=1e-3).figures["warmup_steps"] == 2000
    rate = learning_rate_for(64, old_batch_size=32, old_lr=0.1, optimizer="sgd")
    assert rate.figures["warmup_steps"] is None
    assert "give the rows" in str(rate)
    rate = learning_rate_for(64, old_batch_size=32, old_lr=0.1, rows=6400)
    assert "the warm-up is 20.0 epochs of 100 steps" in rate.caveats


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


def setting(batch_size=8192, workers=8, prefetch_factor=16):
    return Setting(batch_size=batch_size, workers=workers, prefetch_factor=prefetch_factor)


def names(**options):
    return [knob.knob for knob in what_to_try_first(setting(), **options).figures["knobs"]]


def test_the_measured_wait_decides_what_comes_first():
    usual = ["batch_size", "num_workers", "memory_budget", "precision"]
    assert [names(waiting_share=share) for share in (None, 0.05, 0.10, 0.20)] == [usual] * 4
    assert names(waiting_share=0.21)[:2] == ["num_workers", "memory_budget"]
    assert names(waiting_share=0.04)[:2] == ["batch_size", "precision"]


@for_each([(64, "leave it: it holds all rows of the data"), (100, "128 (double)"), (None, "128 (double)")])
def test_a_batch_of_all_rows_is_left_as_it_is(rows, to_try):
    assert what_to_try_first(setting(64, 2, 2), rows=rows).figures["knobs"][0].try_next == to_try


@pytest.mark.parametrize(
    ("now", "gpu", "batch", "workers"),
    [
        (setting(64, 2, 2), "RTX 4090", "128 (double)", "8"),
        (setting(4096, 2, 2), "RTX 4090", "7168 (the preset)", "8"),
        (setting(8192, 8, 16), "RTX 5090", "10240 (the preset of an underused RTX 5090)", "12"),
        (setting(7168, 8, 16), "RTX 4090", "14336 (double)", "16"),
        (setting(64, 2, 2), None, "128 (double)", "4"),
    ],
)
def test_the_next_value_is_the_presets_where_there_is_one(now, gpu, batch, workers):
    knobs = what_to_try_first(now, preset=preset_for(gpu) if gpu else None).figures["knobs"]
    assert [knobs[0].try_next, knobs[1].try_next] == [batch, workers]


REFUSED = [
    *(lambda bad=bad: learning_rate_for(64, old_batch_size=32, old_lr=bad) for bad in (0, math.nan)),
    lambda: loader_memory(row_bytes=0, batch_size=1),
    *(lambda bad=bad: what_to_try_first(setting(), **bad)
      for bad in ({"waiting_share": 1.1}, {"waiting_share": -0.1}, {"precision": "int8"})),
    *(lambda bad=bad: preset_for(**bad)
      for bad in ({"memory_gib": 0}, {"memory_gib": math.nan}, {}, {"gpu": "nvidia"}, {"gpu": "Radeon RX 7900"})),
]  # fmt: skip


@pytest.mark.parametrize("asked", REFUSED)
def test_numbers_that_cannot_be_and_names_that_say_nothing_are_refused(asked):
    with pytest.raises(OptionError):
        asked()


# --- presets -----------------------------------------------------------------------------------------------------


DOCUMENTED = [
    ("RTX 5090", 24, Setting(8192, 8, 16)),
    ("RTX 4090", 24, Setting(7168, 8, 16)),
    ("RTX 3090", 24, Setting(6144, 8, 12)),
    ("RTX 4080", 16, Setting(5120, 6, 12)),
]


@for_each(DOCUMENTED)
def test_the_documented_presets_are_kept_to_the_letter(name, memory, setting):
    preset = preset_for(name)
    assert (preset.documented, preset.memory_gib, preset.setting) == (True, memory, setting)


SCALED = [
    ("RTX 3070", 8, 2048),
    ("A100", 40, 10240),
    ("NVIDIA A100-SXM4-80GB", 80, 20480),
    ("NVIDIA H200", 141, 35840),
    ("RTX 5090 32GB", 32, 8192),
]


@for_each(SCALED)
def test_other_cards_are_scaled_from_memory(name, memory, batch):
    preset = preset_for(name)
    assert (preset.memory_gib, preset.setting.batch_size, preset.documented) == (memory, batch, False)
    assert f"{memory} GiB x 256 rows/GiB" in str(preset)


WRITTEN = [
    ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ("rtx-4090", "RTX 4090"),
    ("geforce rtx 4080 super", "RTX 4080 SUPER"),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 Laptop"),
    ("Tesla V100-SXM2-16GB", "V100"),
    ("NVIDIA H100 NVL", "H100"),
    ("NVIDIA GH200 480GB", "GH200"),
    ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
    ("Quadro RTX 4000 Ada", "RTX 4000 Ada"),
    ("2080ti", "RTX 2080 Ti"),
]


@for_each(WRITTEN)
def test_names_are_found_as_drivers_and_people_write_them(written, card):
    assert find_card(written) == card


@for_each([("RTX 490", "RTX 4090"), ("RTX 4O90", "RTX 4090"), ("A1000", "A100"), ("H20O", "H200")])
def test_a_misspelt_name_gets_the_nearest_names_and_no_guess(misspelt, nearest):
    with pytest.raises(OptionError, match="no GPU is known as") as caught:
        preset_for(misspelt)
    assert nearest in str(caught.value)


def test_all_cards_have_names_that_do_not_collide():
    assert all(find_card(card) == card for card in CARDS)
    assert all(preset_for(card).setting.batch_size >= 1024 for card in CARDS)


def test_a_memory_given_by_hand_counts_before_the_name_and_serves_where_no_table_knows_it():
    preset = preset_for("Radeon RX 7900", memory_gib=24)
    assert (preset.gpu, preset.setting.batch_size, preset.documented) == ("Radeon RX 7900", 6144, False)
    assert preset_for(memory_gib=24).setting == preset.setting
    assert preset_for("RTX 4090", memory_gib=48).setting.batch_size == 12288
    assert preset_for("A100 80GB", memory_gib=40).memory_gib == 40
    assert any("32 GiB" in caveat for caveat in preset_for("RTX 5090").caveats)
    # A memory that the card is not sold with is not believed.
    several = "the card is sold with 96 or 144 GiB; give --gpu-memory to choose"
    assert memory_of("GH200", "NVIDIA GH200 480GB") == (96, several)


def test_the_validation_batch_follows_either_note_and_no_other():
    found = {
        (batch, rule): validation_batch(batch, rule=rule).figures["batch_size"]
        for batch, rule in ((8192, "half"), (1, "half"), (96, "twice"), (80, "twice"))
    }
    assert [*found.values()] == [4096, 1, 192, 160]
    assert "half:  5 / 2 = 2, rounded down, where" in str(validation_batch(5))
    assert {"half", "twice"} <= set(str(validation_batch(8192)).replace(":", " ").split())
