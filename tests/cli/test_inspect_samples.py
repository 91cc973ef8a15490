"""`h5stream inspect --samples`: what a shuffled batch of samples costs, beside reading them one at a time."""

import json

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from h5stream import Sequences
from h5stream.advice.samples_cost import samples_from_text
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
    found = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert found["samples"] == 37 + 22
    assert found["left_out"] == 1
    assert found["shapes"] == {"x": "4 x 8 float64"}
    # All 7 chunks, once for the whole epoch; one at a time each sample needs one or two.
    assert found["ours"]["decoded_nbytes"] == pytest.approx(7 * 10 * 8 * 8 * 16 / 59)
    assert 16 <= found["alone"]["chunks"] <= 32
    shown = CliRunner().invoke(app, asked)
    assert "Sequences(4, of='data/*'): 59 of 256 B; 1 segments are shorter than one." in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80 or len(demos) > 80


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Nothing(3)", "Nothing is none of Sequences"),
        ("Sequences(", "is not that"),
        ("Sequences(16, of=open('x'))", "open is none of"),
        ("3", "takes one of Sequences"),
        ("Sequences(0)", "length must be at least 1"),
    ],
)
def test_what_is_no_kind_of_samples_is_refused(demos, text, says):
    done = CliRunner().invoke(app, ["inspect", demos, "--samples", text])
    assert done.exit_code != 0
    assert says in " ".join((done.stderr + str(done.exception)).split())


def test_text_is_read_as_python_has_it():
    assert samples_from_text("Sequences(16, stride=4, of=['a', 'b'])") == Sequences(16, stride=4, of=["a", "b"])
