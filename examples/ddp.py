"""Train on many processes: each rank reads its own part of the file, and all take equally many steps.

One machine::

    torchrun --nproc-per-node 2 examples/ddp.py train.h5

Two machines: the same line on each, with its own ``--node-rank``::

    torchrun --nnodes 2 --node-rank 0 --nproc-per-node 2 --master-addr HOST --master-port 29500 examples/ddp.py train.h5

The file has a field ``x`` of numbers and a field ``y`` of labels. Nothing here names a rank: the loader takes it from
the process group. Stopped, it goes on where it was: also with another number of processes.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from h5stream import H5StreamLoader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--checkpoint", type=Path, help="where the state is kept")
    parser.add_argument("--record", type=Path, help="folder for a record of what each rank was given")
    options = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    loader = H5StreamLoader(
        options.file, options.batch_size, shuffle=True, fields=["x", "y"], device=device, num_workers=1, seed=1
    )
    model = DistributedDataParallel(torch.nn.Linear(loader.dataset[0][0].numel(), 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)

    epoch, given = 0, []
    if options.checkpoint and options.checkpoint.exists():
        saved = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        epoch = saved["loader"]["epoch"]

    steps = 0
    while epoch < options.epochs and steps != options.steps:
        for x, y in loader:
            loss = (model(x.flatten(1)).squeeze(1) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            given.append([epoch, y.tolist()])
            steps += 1
            if steps == options.steps:
                break
        epoch += 1
        chunks = loader.stats().chunks
        print(
            f"rank {dist.get_rank()} of {dist.get_world_size()}: epoch {epoch}, {steps} steps, {chunks} chunks decoded"
        )
    if options.checkpoint and dist.get_rank() == 0:  # the state of any rank will do
        torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, options.checkpoint)
    if options.record:
        weights = [p.tolist() for p in model.parameters()]
        text = json.dumps({"batches": given, "chunks": chunks, "weights": weights, "world": dist.get_world_size()})
        (options.record / f"{dist.get_rank()}.json").write_text(text)
    loader.close()
    dist.barrier()  # no rank leaves while another still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
