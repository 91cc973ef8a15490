"""The programs that are measured: both readers give equal samples, and samples that differ are noticed."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
pytest.importorskip("bench.programs", reason="bench/ belongs to a checkout, not to an installed package")

from bench.programs import PROGRAMS, SHUFFLED, check  # noqa: E402

CASES = [(name, stored) for name, program in PROGRAMS.items() for stored in program.stored]


def written(name, stored, folder):
    program = PROGRAMS[name]
    program.write(folder / program.file, stored, 0, *program.tiny)
    return program


@pytest.mark.parametrize(("name", "stored"), CASES)
@pytest.mark.filterwarnings("ignore")  # those of the programs
def test_both_readers_give_each_sample_once_with_the_same_bytes(name, stored, tmp_path):
    if absent := PROGRAMS[name].absent():
        pytest.skip(f"needs {', '.join(absent)}")
    assert check(written(name, stored, tmp_path), tmp_path, workers=0)["samples"] > 7


def test_samples_that_differ_in_one_value_are_noticed(tmp_path, monkeypatch):
    program = written("labram", "none", tmp_path)
    opened = program.ours

    def changed(batch):
        batch[3, 2, 1] += 1
        return batch

    monkeypatch.setattr(program, "ours", lambda path, **how: opened(path, **how, batch_transform=changed))
    with pytest.raises(AssertionError, match="samples are not theirs"):
        check(program, tmp_path, workers=0)


@pytest.mark.parametrize("stored", PROGRAMS["the_well"].stored)
def test_frames_of_the_well_are_joined_along_their_channels(stored, tmp_path):
    batch = next(iter(written("the_well", stored, tmp_path).open(SHUFFLED, tmp_path, shuffle=False)))
    with h5py.File(tmp_path / "data.hdf5") as file:
        density, velocity = file["t0_fields/density"][1, 2:7], file["t1_fields/velocity"][1, 2:7]
    wanted = np.concatenate([density[..., None], velocity], axis=-1)
    assert np.array_equal(np.concatenate([batch["input_fields"][6], batch["output_fields"][6]]), wanted)


def test_tracks_of_salt_that_are_not_there_are_zero(tmp_path):
    inputs, padded, labels = next(iter(written("salt", "lz4", tmp_path).open(SHUFFLED, tmp_path, shuffle=False)))
    with h5py.File(tmp_path / "jets.h5") as file:
        tracks, flavour = file["tracks"][:1000], file["jets"]["flavour_label"][:1000]
    assert np.array_equal(padded["tracks"], ~tracks["valid"])
    assert np.array_equal(labels["jets"]["flavour_label"], flavour)
    assert np.array_equal(inputs["tracks"][..., 11], tracks["hits1"] * tracks["valid"])
