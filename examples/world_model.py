"""A small world model: from frames and the actions between them, it learns to predict the next frames.

    python examples/world_model.py                               # makes a file, and trains on it for some seconds
    python examples/world_model.py s3://bucket/pusht.h5 --steps 1000

Files of world-model programs have all episodes one behind the other: frames in `pixels` (uint8), `action`, and in
`ep_len` and `ep_offset` how many rows each episode has and where it begins. A sample is four frames, five rows apart,
and every action between them; none leaves its episode. An address is read in place: docs/buckets.md.
"""

import argparse
import tempfile
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from h5stream import Field, H5StreamLoader, Lengths, Sequences

FRAMES, SKIP = 4, 5


def loader_of(path, batch_size=32):
    fields = {
        "pixels": Field("pixels", take=range(0, FRAMES * SKIP, SKIP)),
        "action": Field("action", take=range((FRAMES - 1) * SKIP)),
    }
    return H5StreamLoader(
        path, batch_size, shuffle=True, drop_last=True, seed=0, fields=fields, samples=Sequences(of=Lengths("ep_len"))
    )


class WorldModel(nn.Module):
    def __init__(self, action_size, width=64):
        super().__init__()
        self.see = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=4, padding=2), nn.GELU(), nn.Flatten(), nn.LazyLinear(width), nn.GELU()
        )
        self.act = nn.Linear(action_size * SKIP, width)
        self.go_on = nn.GRU(2 * width, width, batch_first=True)
        self.show = nn.LazyLinear(3 * 16 * 16)

    def forward(self, frames, actions):
        """Predict frames 1, 2, ... at 16 x 16 from frames 0, 1, ... and the actions behind each."""
        seen = self.see(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
        acted = self.act(actions.unflatten(1, (-1, SKIP)).flatten(2))
        state, _ = self.go_on(torch.cat([seen, acted], dim=-1))
        return self.show(state).unflatten(-1, (3, 16, 16))


def loss_of(model, batch):
    frames = batch["pixels"].permute(0, 1, 4, 2, 3).float() / 255
    wanted = functional.adaptive_avg_pool2d(frames[:, 1:].flatten(0, 1), 16).unflatten(0, frames[:, 1:].shape[:2])
    return functional.mse_loss(model(frames[:, :-1], batch["action"].float()), wanted)


def main(path, steps):
    torch.manual_seed(0)
    with loader_of(path) as loader:
        print(loader.dataset)
        model, step = None, 0
        while step < steps:
            for batch in loader:
                if model is None:
                    model = WorldModel(batch["action"].shape[-1])
                    loss_of(model, batch)  # the lazy layers learn their sizes
                    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
                loss = loss_of(model, batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step in (1, steps):
                    print(f"step {step}: loss {loss.item():.4f}")
                if step == steps:
                    break


def write(path, episodes=24):
    """Write a world of a bright square that actions push about."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(40, 90, episodes)
    with h5py.File(path, "w") as f:
        f["ep_len"], f["ep_offset"] = lengths, np.cumsum(lengths) - lengths
        action = np.repeat(rng.uniform(-1, 1, (lengths.sum() // 8 + 1, 2)), 8, axis=0)[: lengths.sum()]
        pixels = np.zeros((lengths.sum(), 32, 32, 3), "u1")
        for first, count in zip(f["ep_offset"][:], lengths, strict=True):
            place = np.array([14.0, 14.0])
            for row in range(first, first + count):
                y, x = place.astype(int)
                pixels[row, y : y + 5, x : x + 5] = 255
                place = np.clip(place + action[row], 0, 27)
        f["action"] = action.astype("f4")
        f.create_dataset("pixels", data=pixels, chunks=(64, 32, 32, 3), compression="gzip", compression_opts=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", help="a file or an address, with pixels, action and ep_len")
    parser.add_argument("--steps", type=int, default=50)
    given = parser.parse_args()
    if given.path:
        main(given.path, given.steps)
    else:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / "world.h5")
            main(str(Path(folder) / "world.h5"), given.steps)
