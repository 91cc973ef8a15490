"""Hugging Face `transformers.Trainer`: it takes loaders from two methods, and is told not to skip batches itself."""

import json
from pathlib import Path

import pytest
from support.recorded import BATCH, ROWS, Noted, assert_each_row_once_an_epoch, assert_two_epochs, loaders_of

from h5stream.errors import OptionError

pytest.importorskip("accelerate", reason="needs accelerate: pip install '.[trainers]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install '.[trainers]'")

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


class StreamTrainer(transformers.Trainer):
    """A Trainer that is given loaders instead of datasets."""

    def __init__(self, *args, loaders, **kwargs):
        self.loaders = loaders
        super().__init__(*args, train_dataset=loaders[0].dataset, eval_dataset=loaders[1].dataset, **kwargs)

    def get_train_dataloader(self):
        return self.loaders[0]

    def get_eval_dataloader(self, eval_dataset=None):
        return self.loaders[1]


class KeepPlace(transformers.TrainerCallback):
    """Saves the loader's place beside each checkpoint."""

    def __init__(self, loader):
        self.loader = loader

    def on_save(self, args, state, control, **kwargs):
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        (folder / "loader.json").write_text(json.dumps(self.loader.state_dict()))


def make(files, folder, **options):
    loaders = loaders_of(*files, fields={"x": "x", "labels": "y"})
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), num_train_epochs=2, per_device_train_batch_size=BATCH, use_cpu=True, report_to=[],
        disable_tqdm=True, learning_rate=1e-9, **{"save_strategy": "no", **options},
    )  # fmt: skip
    return StreamTrainer(Noted(), arguments, loaders=loaders)


def test_two_epochs_with_validation(files, tmp_path):
    trainer = make(files, tmp_path, eval_strategy="epoch")
    trainer.train()
    assert_two_epochs(trainer.model, *trainer.loaders)


def stopped(files, folder, steps):
    trainer = make(files, folder, max_steps=steps, save_strategy="steps", save_steps=steps)
    trainer.add_callback(KeepPlace(trainer.loaders[0]))
    trainer.train()
    return trainer.model.train_rows, folder / f"checkpoint-{steps}"


def test_a_run_goes_on_with_the_loaders_own_state(files, tmp_path):
    taken, checkpoint = stopped(files, tmp_path, 7)
    later = make(files, tmp_path, ignore_data_skip=True)
    later.loaders[0].load_state_dict(json.loads((checkpoint / "loader.json").read_text()))
    later.train(resume_from_checkpoint=str(checkpoint))
    assert_each_row_once_an_epoch(taken + later.model.train_rows, ROWS, 2)
    assert later.state.global_step == 32


def test_left_to_skip_batches_itself_it_is_an_error_that_says_what_to_write(files, tmp_path):
    _, checkpoint = stopped(files, tmp_path, 7)
    said = r"stock DataLoader.*loader.load_state_dict\(state\).*TrainingArguments\(ignore_data_skip=True\)"
    with pytest.raises(OptionError, match=said):
        make(files, tmp_path).train(resume_from_checkpoint=str(checkpoint))
