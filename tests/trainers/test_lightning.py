"""Lightning `Trainer.fit`: it leaves an iterable alone that is no DataLoader, and keeps its state."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.forking import python_path
from support.making import write_datasets
from support.recorded import HELD_OUT, ROWS, Noted, assert_each_row_once_an_epoch, assert_two_epochs, loaders_of

lightning = pytest.importorskip("lightning.pytorch", reason="needs lightning: pip install '.[trainers]'")

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Noted()

    def training_step(self, batch, number):
        return self.model(*batch)["loss"]

    def validation_step(self, batch, number):
        self.log("val", self.model(*batch)["loss"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-9)


def trainer(folder, **options):
    return lightning.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, **{"enable_checkpointing": False, **options},
    )  # fmt: skip


def test_two_epochs_with_validation(files, tmp_path):
    train, held_out = loaders_of(*files)
    module = Module()
    trainer(tmp_path, max_epochs=2, num_sanity_val_steps=0).fit(module, train, held_out)
    assert_two_epochs(module.model, train, held_out)
    assert module.model.train_rows[:16] != module.model.train_rows[16:]


@pytest.mark.parametrize("steps", [7, 16, 20])
def test_a_checkpoint_holds_the_loaders_place(files, tmp_path, steps):
    """The first run goes on after its checkpoint, as one that is killed later on would."""
    train, _ = loaders_of(*files)
    first = Module()
    keep = lightning.callbacks.ModelCheckpoint(tmp_path / "kept", every_n_train_steps=steps, save_top_k=-1)
    trainer(tmp_path, max_epochs=2, enable_checkpointing=True, callbacks=[keep]).fit(first, train)
    checkpoint = next((tmp_path / "kept").glob(f"*step={steps}.ckpt"))
    train, _ = loaders_of(*files)
    second = Module()
    trainer(tmp_path, max_epochs=2).fit(second, train, ckpt_path=checkpoint, weights_only=True)
    assert first.model.train_rows[steps:] == second.model.train_rows
    assert_each_row_once_an_epoch(first.model.train_rows, ROWS, 2)


SCRIPT = """
import json, os, sys
import torch.distributed as dist
from support.recorded import loaders_of
from support.sample_files import Sample
from test_lightning import Module, lightning
train, held_out = loaders_of(Sample(sys.argv[1], None, None), Sample(sys.argv[2], None, None))
assert train.world_size == 1  # the process group comes later
module = Module()
lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_progress_bar=False,
    enable_model_summary=False, enable_checkpointing=False, num_sanity_val_steps=0,
).fit(module, train, held_out)
with open(f"{sys.argv[3]}/{train.rank}.json", "w") as file:
    json.dump([module.model.train_rows, module.model.held_out_rows], file)
"""


def test_a_loader_that_is_made_before_lightnings_processes_parts_the_rows_among_them(files, tmp_path):
    (tmp_path / "job.py").write_text(SCRIPT)
    here = Path(__file__).resolve().parent
    paths = python_path(here.parent.parent, here.parent, here)
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(tmp_path / "job.py"), files[0].path, files[1].path, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    for kind, rows in ((0, ROWS), (1, HELD_OUT)):
        assert len(ranks[0][kind]) == len(ranks[1][kind])
        assert sorted(row for rank in ranks for batch in rank[kind] for row in batch) == list(range(rows))


def test_the_example_learns_and_goes_on_from_its_checkpoint(tmp_path):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
    from lightning_fit import main

    paths = [str(write_labelled(tmp_path / name, rows)) for name, rows in (("train.h5", 2000), ("held_out.h5", 500))]
    quiet = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False}
    torch.manual_seed(0)
    first = main(*paths, batch_size=100, default_root_dir=tmp_path, **quiet)
    assert first.global_step == 40
    assert first.callback_metrics["accuracy"] > 0.8
    later = main(
        *paths, epochs=3, batch_size=100, resume=first.checkpoint_callback.best_model_path, **quiet,
        default_root_dir=tmp_path / "later",
    )  # fmt: skip
    assert later.global_step == 60


def write_labelled(path, rows):
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, 8), dtype=np.float32)
    stored = {"data": x, "chunks": (64, 8), "compression": "gzip"}
    return write_datasets(path, x=stored, y=(x[:, 0] > 0).astype("i8"))
