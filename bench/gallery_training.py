"""Five programs of the gallery trained with a small model: their own reader under a DataLoader, and ours.

    python -m bench.gallery_training --out bench/results/gallery-training.json

Each run is a process of its own, and begins with the same weights; the two readers take turns, seed by seed. What the
model learns is made up, a fixed function of what it sees, so that losses of both readers can be compared. Files are in
the page cache; ours decodes anew in each epoch.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from bench.child import warm
from bench.machine import describe
from bench.test_gallery import WORKERS
from examples.gallery import PROGRAMS

SEEDS, EPOCHS, HIDDEN, RATE = 3, 4, 64, 1e-3

SEEN: dict[str, tuple[str, Callable[[Any], torch.Tensor]]] = {
    "BigGAN": ("rows", lambda batch: batch["image"].flatten(1) / 60 - 0.5),
    "Robomimic": ("sequences", lambda batch: batch["image"][..., ::2, ::2, :].flatten(1) / 60 - 0.5),
    "CNOBenchmarks": ("objects", lambda batch: batch["input"].flatten(1) / 50),
    "AnnData": ("sparse rows", lambda batch: batch["x"].float().log1p()),
    "TorchEM": ("boxes of a volume", lambda batch: batch["raw"][:, ::8, ::8, ::8].flatten(1) / 50),
}
"""Of each program the kind of its samples, and what the model sees of a batch: a row of numbers for each sample."""


def timed(batches: Any, waits: list[float]) -> Iterator[Any]:
    """Give the batches of an epoch, and note the seconds waited for each."""
    iterator = iter(batches)
    while True:
        since = time.perf_counter()
        batch = next(iterator, None)
        waits.append(time.perf_counter() - since)
        if batch is None:
            return
        yield batch


def train(name: str, folder: Path, side: str, seed: int, pipe: Any) -> None:
    """Train, and send the loss of each step, with the seconds of each epoch and those waited in it."""
    program, seen = PROGRAMS[name], SEEN[name][1]
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    options = {"batch_size": program.batch, "shuffle": True, "num_workers": WORKERS, "seed": seed, "keep": "never"}
    loader = program(folder).loader(WORKERS) if side == "theirs" else program.ours(folder, **options)
    model, optimizer, wanted = None, None, None
    losses, epochs = [], []
    for _ in range(EPOCHS):
        waits: list[float] = []
        since = time.perf_counter()
        for batch in timed(loader, waits):
            x = seen(batch).float()
            if model is None:
                torch.manual_seed(seed)
                wanted = torch.randn(x.shape[1], generator=torch.Generator().manual_seed(0)) / x.shape[1] ** 0.5
                model = torch.nn.Sequential(
                    torch.nn.Linear(x.shape[1], HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1)
                )
                optimizer = torch.optim.Adam(model.parameters(), RATE)
            loss = torch.nn.functional.mse_loss(model(x)[:, 0], torch.tanh(x @ wanted))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        epochs.append({"seconds": time.perf_counter() - since, "waited_s": sum(waits)})
    pipe.send({"losses": losses, "epochs": epochs})


def in_a_process(train: Callable[..., None], *arguments: Any) -> dict[str, Any]:
    """Train in a forked process; `train` sends its report through a pipe, its last argument."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=train, args=(*arguments, there))
    process.start()
    there.close()
    found: dict[str, Any] = here.recv()
    process.join()
    return found


def measure(name: str) -> dict[str, Any]:
    """Train one program with both readers, in turns."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        PROGRAMS[name].make(folder, PROGRAMS[name].size)
        warm(folder)
        turns: dict[str, list[dict[str, Any]]] = {"theirs": [], "ours": []}
        for seed in range(SEEDS):
            for side, found in turns.items():
                found.append(in_a_process(train, name, folder, side, seed))
    report: dict[str, Any] = {"program": name, "samples": SEEN[name][0]}
    for side, runs in turns.items():
        later = [epoch for run in runs for epoch in run["epochs"][1:]]
        report[side] = {
            "first_epoch_s": statistics.median(run["epochs"][0]["seconds"] for run in runs),
            "epoch_s": statistics.median(epoch["seconds"] for epoch in later),
            "waiting": statistics.median(epoch["waited_s"] / epoch["seconds"] for epoch in later),
            "losses": [[round(loss, 5) for loss in run["losses"]] for run in runs],
        }
    return report


def main() -> None:
    """Measure the programs that are asked for, and keep what is known of the others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(SEEN), choices=list(SEEN))
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    known = json.loads(asked.out.read_text())["results"] if asked.out.exists() else []
    found = {one["program"]: one for one in known}
    for name in asked.only:
        found[name] = measure(name)
        print({side: {k: v for k, v in found[name][side].items() if k != "losses"} for side in ("theirs", "ours")})
    report = {**describe(), "seeds": SEEDS, "epochs": EPOCHS}
    report["results"] = [found[name] for name in SEEN if name in found]
    text = re.sub(r"(?<=\d),\s+(?=-?\d)", ", ", json.dumps(report, indent=1))  # losses of a run are one line
    asked.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
