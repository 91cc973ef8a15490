"""Train with Lightning: a loader for training, one for validation, and a checkpoint that holds the place in the epoch.

    python examples/lightning_fit.py train.h5 held_out.h5

Each file has a field ``x`` of numbers and a field ``y`` of whole-number labels. Lightning leaves the loaders as they
are, gives them their ranks through its process group, and keeps their state in its checkpoints: with ``--resume`` it
goes on in the middle of an epoch. Needs ``pip install lightning``.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn

from h5stream import H5StreamLoader

try:
    import lightning.pytorch as lightning
except ModuleNotFoundError:
    print("lightning_fit.py needs Lightning: pip install lightning", file=sys.stderr)
    sys.exit(2)


class Classifier(lightning.LightningModule):
    """A linear classifier of rows."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, classes)

    def training_step(self, batch, number):
        """Give the loss of a batch."""
        x, y = batch
        loss = nn.functional.cross_entropy(self.layer(x.flatten(1).float()), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, number):
        """Log the accuracy on a batch, weighted by its rows."""
        x, y = batch
        right = (self.layer(x.flatten(1).float()).argmax(dim=1) == y).float().mean()
        self.log("accuracy", right, batch_size=len(y), prog_bar=True)

    def configure_optimizers(self):
        """Give the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main(train: str, held_out: str, *, epochs: int = 2, batch_size: int = 256, resume: str | None = None, **options):
    """Fit, and give the trainer; `options` are Lightning's."""
    loader = H5StreamLoader(train, batch_size, shuffle=True, fields=["x", "y"])
    # No gradients are kept in validation, so twice the rows fit.
    validation = H5StreamLoader(held_out, 2 * batch_size, fields=["x", "y"])
    x, _ = loader.dataset[0]
    classes = 1 + max(int(y.max()) for y in H5StreamLoader(train, 65_536, fields="y"))
    trainer = lightning.Trainer(max_epochs=epochs, **options)
    trainer.fit(Classifier(x.numel(), classes), loader, validation, ckpt_path=resume)
    print(loader.stats())
    return trainer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train")
    parser.add_argument("held_out")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--resume", help="a checkpoint that Lightning wrote")
    arguments = parser.parse_args()
    main(
        arguments.train,
        arguments.held_out,
        epochs=arguments.epochs,
        batch_size=arguments.batch_size,
        resume=arguments.resume,
    )
