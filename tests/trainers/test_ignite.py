"""PyTorch Ignite: an engine runs over any iterable with a length."""

import pytest
from inner import stream_all
from recorded import HELD_OUT, ROWS, Noted, assert_each_row_once_an_epoch, assert_fast_path, loaders_of, write_files

engine = pytest.importorskip("ignite.engine", reason="needs pytorch-ignite: pip install h5stream[trainers]")

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


def test_two_epochs_with_validation(tmp_path, monkeypatch):
    stream_all(monkeypatch)
    train, held_out = loaders_of(*write_files(tmp_path))
    model = Noted()

    def step(_, batch):
        return model.train()(*batch)["loss"].item()

    evaluator = engine.Engine(lambda _, batch: model.eval()(*batch)["loss"].item())
    trainer = engine.Engine(step)
    trainer.add_event_handler(engine.Events.EPOCH_COMPLETED, lambda: evaluator.run(held_out))
    trainer.run(train, max_epochs=2)
    assert_each_row_once_an_epoch(model.train_rows, ROWS, 2)
    assert_each_row_once_an_epoch(model.held_out_rows, HELD_OUT, 2)
    assert_fast_path(train)
    assert_fast_path(held_out, HELD_OUT)
