"""The small programs in `examples/` do what their first lines say."""

import difflib
import importlib.util
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.making import write_datasets
from support.object_server import ObjectServer

from h5stream.monitor.export import read_log

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def file(tmp_path):
    return str(write(tmp_path / "a.h5", 1500))


def write(path, rows):
    rng = np.random.default_rng(0)
    x = {"data": rng.random((rows, 6), dtype="f4"), "chunks": (128, 6), "compression": "gzip"}
    return write_datasets(path, x=x, y=np.arange(rows) % 10)


def test_the_swap_gives_the_same_sum_and_changes_the_loop_by_nothing(file, capsys):
    example("swap_in_before").main(file)
    example("swap_in_after").main(file)
    before, after = (line.split(", ") for line in capsys.readouterr().out.splitlines())
    assert before[0] == after[0] == "6 batches"
    assert float(before[1]) == pytest.approx(float(after[1]), rel=1e-5)
    mains = [
        (EXAMPLES / f"swap_in_{name}.py").read_text().split("def main(path):")[1].splitlines()
        for name in ("before", "after")
    ]
    changed = [line for line in difflib.ndiff(*mains) if line.startswith(("- ", "+ "))]
    assert len(changed) == 2  # one line, before and after


def test_several_files_are_one_dataset(tmp_path, capsys):
    write(tmp_path / "day1.h5", 700)
    write(tmp_path / "day2.h5", 800)
    example("multi_file").main(str(tmp_path / "day*.h5"))
    out = capsys.readouterr().out
    assert "1,500 rows of signal, label; 2 files" in out
    assert "5 batches of (256, 4) torch.float32 and (256,) torch.int64" in out


def test_two_halves_are_the_whole(file, capsys):
    example("resume").main(file)
    assert capsys.readouterr().out == "6 batches at once, 6 in two parts: the same\n"


def test_copies_are_read_and_gone_afterwards(file, tmp_path, capsys):
    example("staging").main(str(tmp_path / "fast"), file)
    out = capsys.readouterr().out
    assert str(tmp_path / "fast" / "a.h5") in out
    assert "1,500 rows; still there afterwards: []" in out


def test_the_monitor_hears_how_long_training_waits(file, tmp_path, capsys):
    example("monitor").main(file, tmp_path / "log.jsonl")
    said = capsys.readouterr()
    assert "Waiting for data: " in said.err
    assert "data wait n/a" not in said.out
    waits = [sample.data_wait_ratio for sample in read_log(tmp_path / "log.jsonl")]
    assert any(wait is not None for wait in waits)
    assert all(wait is None or 0 <= wait <= 1 for wait in waits)


def test_a_graph_is_replayed_or_the_machine_has_no_gpu(file, capsys):
    example("cuda_graph").main(file)
    out = capsys.readouterr().out
    assert out.startswith("epoch 0: loss" if torch.cuda.is_available() else "skipped: no CUDA device")


PARTS = {"train_model", "train_checklist"}
"""What `train.py` imports; run by themselves they do nothing."""


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_without_arguments_says_how_it_is_used(path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    if path.stem in {*PARTS, "world_model"}:
        runpy.run_path(str(path), run_name="__main__")
        return
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 2
    assert re.search(r"usage: |pip install", capsys.readouterr().err)


def test_a_world_model_learns_from_a_file_and_from_an_address(tmp_path, capsys, monkeypatch):
    world = example("world_model")
    world.write(tmp_path / "world.h5", episodes=6)
    world.main(str(tmp_path / "world.h5"), 20)
    local = capsys.readouterr().out.splitlines()
    assert float(local[1].split()[-1]) > float(local[2].split()[-1])
    with ObjectServer(tmp_path) as server:
        world.main(f"{server.url}/world.h5", 20)
    assert capsys.readouterr().out.splitlines() == local


def test_the_page_of_examples_names_each():
    page = (EXAMPLES.parent / "docs" / "training.md").read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f"{path.name}`" not in page and path.stem not in PARTS] == []


def test_rare_classes_come_as_often_as_common_ones(tmp_path, capsys):
    path = write_datasets(tmp_path / "a.h5", label=(np.arange(500) % 50 == 0).astype(int), w=np.arange(500) < 100)
    example("imbalanced").main(path, "label", "w")
    plain, even, short, weighted = capsys.readouterr().out.splitlines()
    assert plain == "a plain epoch: {0: 490, 1: 10}"
    assert even == "an even one: {0: 250, 1: 250}"
    assert short == "one without repeats: {0: 10, 1: 10}"
    assert weighted.startswith("one by weights: {0: 4")


def test_images_are_augmented(tmp_path, capsys):
    images = np.random.default_rng(0).integers(0, 255, (100, 20, 24, 3), dtype="u1")
    example("image_augmentation").main(write_datasets(tmp_path / "a.h5", image=images, label=np.arange(100) % 7), 0)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("epoch 0: 4 batches")
    assert first.split("sum")[1] != second.split("sum")[1]
