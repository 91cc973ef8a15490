"""Presets are the documented ones, names are matched as people and drivers write them."""

import pytest
from each import for_each
from hypothesis import given
from hypothesis import strategies as st

from h5stream.errors import OptionError
from h5stream.training.presets import CARDS, Setting, find_card, memory_of, preset_for, validation_batch

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


def test_an_underused_5090_goes_to_10240_rows_and_12_workers():
    underused = preset_for("RTX 5090").underused
    assert (underused.batch_size, underused.workers) == (10240, 12)
    assert preset_for("RTX 4090").underused is None
    assert any("32 GiB" in caveat for caveat in preset_for("RTX 5090").caveats)


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
    ("RTX4090", "RTX 4090"),
    ("4090", "RTX 4090"),
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
    # A memory that the card is not sold with is not believed.
    several = "the card is sold with 96 or 144 GiB; give --gpu-memory to choose"
    assert memory_of("GH200", "NVIDIA GH200 480GB") == (96, several)


@given(memory=st.floats(0.001, 4096), more=st.floats(0, 1000))
def test_more_memory_never_means_a_smaller_batch(memory, more):
    small = preset_for(memory_gib=memory).setting
    assert 1 <= small.batch_size <= preset_for(memory_gib=memory + more).setting.batch_size


@for_each([{"memory_gib": 0}, {"memory_gib": float("nan")}, {}, {"gpu": "nvidia"}, {"gpu": "Radeon RX 7900"}])
def test_a_preset_needs_a_name_that_says_something_or_a_real_memory(bad):
    with pytest.raises(OptionError):
        preset_for(**bad)


def test_the_validation_batch_follows_either_note_and_no_other():
    found = {
        (batch, rule): validation_batch(batch, rule=rule).figures["batch_size"]
        for batch, rule in ((8192, "half"), (1, "half"), (96, "twice"), (80, "twice"))
    }
    assert [*found.values()] == [4096, 1, 192, 160]
    assert {"half", "twice"} <= set(str(validation_batch(8192)).replace(":", " ").split())
    with pytest.raises(OptionError, match="rule must be 'half' or 'twice', not 'same'"):
        validation_batch(8, rule="same")
