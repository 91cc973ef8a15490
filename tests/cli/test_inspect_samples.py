"""`h5stream inspect --samples`: what a shuffled batch of samples costs, beside reading them one at a time."""

import json

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from h5stream import Sequences
from h5stream.advice.program import samples_from_text
from h5stream.cli.app import app


@pytest.fixture
def demos(tmp_path):
    with h5py.File(tmp_path / "demos.h5", "w") as file:
        for k, rows in enumerate((40, 3, 25)):
            values = np.random.default_rng(k).random((rows, 8))
            file.create_dataset(f"data/{k}/x", data=values, chunks=(10, 8), maxshape=(None, 8), compression="gzip")
    return str(tmp_path / "demos.h5")


def test_a_batch_of_sequences_is_counted(demos):
    asked = ["inspect", demos, "--samples", "Sequences(4, of='data/*')", "--fields", "x", "--batch-size", "16"]
    (found,) = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert found["samples"] == 37 + 22
    assert found["left_out"] == 1
    assert found["shapes"] == {"x": "4 x 8 float64"}
    # All 7 chunks, once for the whole epoch; one at a time each sample needs one or two.
    assert found["ours"]["decoded_nbytes"] == pytest.approx(7 * 10 * 8 * 8 * 16 / 59)
    assert 16 <= found["alone"]["chunks"] <= 32
    shown = CliRunner().invoke(app, asked)
    assert "Sequences(4, of='data/*'): 59 of 256 B; 1 segments are shorter than one." in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80 or len(demos) > 80


def test_text_is_read_as_python_has_it():
    assert samples_from_text("Sequences(16, stride=4, of=['a', 'b'])") == Sequences(16, stride=4, of=["a", "b"])


@pytest.fixture
def events(tmp_path):
    with h5py.File(tmp_path / "events.h5", "w") as file:
        file["hits"], file["index"], file["label"] = np.arange(100.0), np.arange(0, 101, 5), np.arange(20)
    return str(tmp_path / "events.h5")


@pytest.mark.parametrize(
    "fields",
    [
        "{'x': Field('hits', lookup=Bounds('index'), ragged=Ragged('pad', crop=Crop(3, at='start'))), 'y': 'label'}",
        "Field('hits', lookup=Bounds('index')), 'label'",
        "['label', Field('hits', lookup=Bounds('index'), ragged=Ragged(crop=Crop(2)))]",
    ],
)
def test_ragged_fields_are_counted(events, fields):
    done = CliRunner().invoke(app, ["inspect", events, "--fields", fields, "--batch-size", "4", "--json"])
    (found,) = json.loads(done.stdout)
    assert (found["samples"], found["batch_samples"]) == (20, 4)
    assert found["ours"]["read_nbytes"] > 0


def test_suggest_knows_samples_and_ragged_fields(events):
    ragged = ["--fields", "{'x': Field('hits', lookup=Bounds('index')), 'y': 'label'}"]
    for given in (ragged, ["--fields", "hits", "--samples", "Sequences(4)"]):
        done = CliRunner().invoke(app, ["suggest", events, *given, "--batch-size", "4"], catch_exceptions=False)
        assert done.exit_code == 0


def test_many_files_are_named_by_the_first_and_the_last_and_objects_left_out_by_why(tmp_path):
    for k in range(30):
        with h5py.File(tmp_path / f"{k:02}.h5", "w") as file:
            file["x" if k % 10 else "other"] = np.arange(3)
    asked = ["inspect", str(tmp_path / "*.h5"), "--fields", "x", "--samples", "Objects('files', missing='skip')"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert "00.h5 ... " in done.stdout
    assert "29.h5 (30 files)" in done.stdout
    assert "12.h5" not in done.stdout
    assert "3 objects lack a field" in " ".join(done.stdout.split())
