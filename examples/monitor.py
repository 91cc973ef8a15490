"""Watch the machine while training, tell the monitor how long training waits, and keep a log and a picture.

python examples/monitor.py train.h5 monitor.jsonl
"""

import sys
import time

import torch

from h5stream import H5StreamLoader, SystemMonitor
from h5stream.monitor.export import JsonlLog


class WaitShare:
    """The share of the time since the last call that the loop waited for batches, from the loader's own statistics."""

    def __init__(self, loader):
        self.loader, self.waited_s, self.at_s = loader, 0.0, time.perf_counter()

    def __call__(self):
        stats, now_s = self.loader.stats(), time.perf_counter()
        waited_s, passed_s = stats.wait_s + stats.transform_s, now_s - self.at_s
        # A new epoch counts from 0 again.
        new_s = waited_s - self.waited_s if waited_s >= self.waited_s else waited_s
        self.waited_s, self.at_s = waited_s, now_s
        return min(1.0, new_s / passed_s) if passed_s else None


def main(path, log_path):
    loader = H5StreamLoader(path, batch_size=256, shuffle=True, fields=["x", "y"])
    model = torch.nn.Linear(loader.dataset[0][0].numel(), 1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    watch = SystemMonitor(interval_s=0.2, data_wait=WaitShare(loader), sinks=[JsonlLog(log_path)])
    with loader, watch as monitor:
        until_s = time.monotonic() + 1.0
        while time.monotonic() < until_s:
            for x, y in loader:
                loss = torch.nn.functional.mse_loss(model(x.flatten(1))[:, 0], y.float())
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            print(monitor.line())
    print(monitor.summary())
    print(loader.stats())


if __name__ == "__main__":
    main(*sys.argv[1:])
