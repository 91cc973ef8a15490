"""`examples/train.py`: it learns, every switch works, and a killed run ends where an uninterrupted one does."""

import importlib
import json
import logging
import os
import re
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from support.forking import OPTIMIZERS, Forked

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
CORPUS = Path(os.environ.get("H5STREAM_CORPUS", ROOT.parent / "shared" / "corpus"))
PBMC = CORPUS / "real" / "pbmc68k_reduced.h5ad"

SMALL = ["--no-monitor", "--no-progress", "--workers", "1", "--width", "32", "--epochs", "2"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path, rng, rows = tmp_path_factory.mktemp("train") / "a.h5", np.random.default_rng(0), 2000
    y, centers = rng.integers(0, 3, rows), rng.normal(size=(3, 12)).astype("f4")
    x = centers[y] + 0.3 * rng.normal(size=(rows, 12)).astype("f4")
    with h5py.File(path, "w") as f:
        f.create_dataset("x", data=x, chunks=(100, 12), compression="gzip", shuffle=True)
        f["label"], f["height"], f["missing"] = y.astype("i1"), (3 * x.sum(1) + 50).astype("f8"), y - 1
        f["image"] = (40 * x + 128).clip(0, 255).astype("u1").reshape(rows, 3, 4)
        f["name"] = np.array([b"a", b"b"])[y % 2]
    return path


@pytest.fixture
def train(monkeypatch, tmp_path, caplog):
    """Give a function that runs the script with a report, and returns that and what was logged."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    # One thread: steps are tiny, and on a busy machine threads that wait for one another take minutes.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    script = importlib.import_module("train")
    caplog.set_level(logging.INFO)

    def run(*arguments):
        report = tmp_path / "report.json"
        caplog.clear()
        script.main([*map(str, arguments), "--report", str(report)])
        return json.loads(report.read_text()), caplog.text

    yield run
    torch.set_num_threads(threads)


def test_it_learns_classes_and_ends_with_a_checklist(train, file):
    report, said = train(
        "--data", file, "--y", "label", "--workers", 1, "--epochs", 3, "--no-progress", "--log-every", 8
    )
    assert "Task: 3 classes" in said
    assert "Using fused AdamW optimizer" in said
    assert "TF32: n/a" in said or "TF32 enabled" in said
    assert re.search(r"step 8: loss .* \| GPU: ", said)
    assert report["validation_loss"] < 0.3
    assert report["steps"] == 3 * 21
    asked = [line["asked"].split(" over")[0].split(" under")[0] for line in report["checklist"]]
    assert asked == ["GPU utilisation", "samples/s", "data wait", "peak memory"]
    assert {line["passed"] for line in report["checklist"]} <= {True, False, None}


def test_floating_point_targets_are_regressed(train, file):
    report, said = train("--data", file, "--y", "height", *SMALL, "--epochs", 8, "--lr", 0.01)
    assert "Task: regression" in said
    assert report["validation_loss"] < 0.1  # in units of the target's variance


OTHERWISE = {
    "transformer": ["--model", "transformer", "--tokens", "5"],
    "bf16": ["--bf16"],
    "everything off": ["--no-fused", "--no-cosine", "--no-set-to-none", "--no-tf32", "--no-device-feed", "--no-bf16"],
    "preset": ["--profile", "rtx3090_max_perf", "--batch-size", "100"],
    "whole shuffle": ["--window", "all", "--accumulate", "4", "--batch-size", "50"],
}


@pytest.mark.parametrize("options", OTHERWISE.values(), ids=OTHERWISE)
def test_every_switch_trains(train, file, options):
    report, _ = train("--data", file, "--y", "label", *SMALL, "--width", 64, *options)
    assert report["validation_loss"] < 1.0  # guessing gives log(3) = 1.0986


def test_attention_by_hand_and_recomputing_give_the_same_loss(train, file):
    common = ("--data", file, "--y", "label", *SMALL, "--model", "transformer", "--epochs", 1)
    losses = [train(*common, *more)[0]["validation_loss"] for more in ([], ["--no-sdpa"], ["--checkpointing"])]
    rounding = 1e-3 if torch.cuda.is_available() else 1e-4  # bfloat16 there
    assert losses == pytest.approx([losses[0]] * 3, rel=rounding)


def test_accumulated_batches_make_one_step_and_the_rest_of_an_epoch_too(train, file):
    report, said = train("--data", file, "--y", "label", *SMALL, "--batch-size", 100, "--accumulate", 3)
    batches = -(-int(re.search(r"Rows: ([\d,]+) for training", said).group(1).replace(",", "")) // 100)
    assert report["steps"] == 2 * -(-batches // 3)


def test_it_reads_staged_copies_and_learns_the_same(train, file, tmp_path):
    common = ("--data", file, "--y", "label", *SMALL)
    plain, _ = train(*common)
    staged, _ = train(*common, "--stage-to", tmp_path / "fast")
    assert (tmp_path / "fast" / "a.h5").exists()
    assert staged["validation_loss"] == plain["validation_loss"]


WRONG = [("missing", "from -1 to 1"), ("name", "strings"), ("image", "a class is one integer")]


@pytest.mark.parametrize(("y", "words"), [*WRONG, ("label --x name", "inputs must be numbers")])
def test_targets_that_cannot_be_learned_are_refused_in_words(train, file, y, words):
    with pytest.raises(SystemExit, match=words):
        train("--data", file, *SMALL, "--y", *y.split())


def test_resume_without_a_checkpoint_begins(train, file, tmp_path):
    _, said = train("--data", file, "--y", "label", *SMALL, "--checkpoint", tmp_path / "none.pt", "--resume")
    assert "beginning" in said
    assert (tmp_path / "none.pt").exists()
    assert not (tmp_path / "none.pt.part").exists()


SCRIPT = """
import runpy, sys, torch
torch.set_num_threads(1)
sys.stdout.reconfigure(line_buffering=True)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_run_killed_within_an_epoch_ends_with_the_same_loss(file, tmp_path):
    def start(name, *more):
        options = ["--data", file, "--y", "label", *SMALL, "--batch-size", 32, "--log-every", 10]
        files = ["--checkpoint", tmp_path / f"{name}.pt", "--report", tmp_path / f"{name}.json"]
        every = ["--checkpoint-every", 7, *more]
        return Forked(SCRIPT, *options, *files, *every, path=EXAMPLES / "train.py", imports=OPTIMIZERS)

    with start("whole") as whole:
        whole.communicate()
    assert whole.returncode == 0
    with start("killed") as killed:
        for line in killed.stdout:
            if line.startswith("step 60"):  # within the second epoch, which has 50
                killed.kill()
                break
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed.json").exists()
    with start("killed", "--resume") as resumed:
        said, _ = resumed.communicate()
    assert resumed.returncode == 0
    assert re.search(r"Resumed after 1 epochs and [1-9]\d* batches", said)
    reports = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("whole", "killed")]
    for figure in ("steps", "training_loss", "validation_loss"):
        assert reports[1][figure] == reports[0][figure]


def test_what_the_library_refuses_is_said_in_one_line(file):
    with Forked(SCRIPT, "--data", file, "--x", "nothing", path=EXAMPLES / "train.py", imports=OPTIMIZERS) as run:
        said, errors = run.communicate()
    assert run.returncode == 1
    assert re.search(r"^error: .*has no dataset 'nothing'", said + (errors or ""), re.M)
    assert "Traceback" not in said + (errors or "")


@pytest.mark.corpus
@pytest.mark.skipif(not PBMC.exists(), reason=f"no corpus of real files at {CORPUS} (H5STREAM_CORPUS names another)")
def test_it_learns_cell_types_of_a_real_file(train):
    report, said = train("--data", PBMC, "--x", "X", "--y", "obs:bulk_labels", *SMALL, "--epochs", 4)
    assert "Task: 10 classes" in said
    share = float(re.search(r"final validation .*, ([\d.]+)% right", said).group(1))
    assert share > 60
    assert report["data_wait_share"] < 0.9


@pytest.mark.gpu
def test_it_trains_on_a_gpu_with_every_switch(train, file):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    report, said = train("--data", file, "--y", "label", *SMALL, "--model", "transformer", "--width", 64)
    assert "TF32 enabled for matmul and cuDNN operations" in said
    assert report["validation_loss"] < 1.0
    assert report["peak_allocated_bytes"] > 0
