"""PyTorch Ignite: an engine runs over any iterable with a length."""

import pytest
from support.recorded import Noted, assert_two_epochs, loaders_of

engine = pytest.importorskip("ignite.engine", reason="needs pytorch-ignite: pip install '.[trainers]'")

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


def test_two_epochs_with_validation(files):
    train, held_out = loaders_of(*files)
    model = Noted()

    def step(_, batch):
        return model.train()(*batch)["loss"].item()

    evaluator = engine.Engine(lambda _, batch: model.eval()(*batch)["loss"].item())
    trainer = engine.Engine(step)
    trainer.add_event_handler(engine.Events.EPOCH_COMPLETED, lambda: evaluator.run(held_out))
    trainer.run(train, max_epochs=2)
    assert_two_epochs(model, train, held_out)
