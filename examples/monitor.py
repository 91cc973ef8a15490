"""Watch the machine while training, with a progress bar that says what the loop waits for, and keep a log.

python examples/monitor.py train.h5 monitor.jsonl
"""

import argparse
import time

import torch

from h5stream import H5StreamLoader
from h5stream.monitor import JsonlLog, SystemMonitor
from h5stream.training import track


def main(path, log_path, at_least_s=1.0):
    loader = H5StreamLoader(path, batch_size=256, shuffle=True, fields=["x", "y"])
    model = torch.nn.Linear(loader.dataset[0][0].numel(), 1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    until_s = time.monotonic() + at_least_s
    with loader, SystemMonitor(interval_s=0.2, sinks=[JsonlLog(log_path)]) as monitor:
        while time.monotonic() < until_s:
            # While it runs, `track` tells the monitor which share of the time the loop waits.
            for x, y in track(loader, monitor, description="training"):
                loss = torch.nn.functional.mse_loss(model(x.flatten(1))[:, 0], y.float())
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
    print(monitor.summary())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", metavar="train.h5", help="a file with a field x of numbers and a field y of labels")
    parser.add_argument("log", metavar="monitor.jsonl", help="where the log of the machine goes")
    arguments = parser.parse_args()
    main(arguments.file, arguments.log)
