"""What to try first follows the measured wait; the present setting is never changed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h5stream.errors import OptionError
from h5stream.training.presets import Setting, preset_for
from h5stream.training.steps import what_to_try_first


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


@pytest.mark.parametrize("bad", [{"waiting_share": 1.1}, {"waiting_share": -0.1}, {"precision": "int8"}])
def test_values_that_cannot_be_are_refused(bad):
    with pytest.raises(OptionError):
        what_to_try_first(setting(), **bad)
