"""Notebooks: IPython's plain text of the values that people look at, and a session in a process of its own."""

from types import SimpleNamespace

import forking
import h5py
import numpy as np

from h5stream import H5StreamLoader
from h5stream.advice import Suggestion
from h5stream.monitor import SystemMonitor
from h5stream.training import track


def shown(value):
    texts = []
    value._repr_pretty_(SimpleNamespace(text=texts.append), cycle=False)  # IPython's printer, as far as it is used
    return "".join(texts)


def test_statistics_summaries_and_monitors_are_shown_as_text(sample):
    with H5StreamLoader(sample.path, 100, fields="x") as loader:
        epoch = track(loader, monitor=False)
        list(epoch)
        values = [loader.stats(), epoch.summary, Suggestion(title="a", answer="b", arithmetic=())]
    for value in values:
        assert shown(value) == str(value) != repr(value)
    with SystemMonitor(interval_s=0.1) as monitor:
        monitor.sample()
    assert "data wait" in shown(monitor.summary())
    assert "data wait" in shown(monitor)


# --- a session ---------------------------------------------------------------------------------------------------


ROWS, WIDTH = 32_768, 256

SESSION = """
import gc, resource, sys
import h5py, psutil, torch
from h5stream import H5Dataset, H5StreamLoader

path, rows = sys.argv[1], int(sys.argv[2])
resident = lambda: psutil.Process().memory_info().rss >> 20

looked_at = h5py.File(path)  # as the first cell of a notebook does, and nobody closes it
assert looked_at["x"].shape[0] == rows
whole = H5Dataset(path, ["x", "y"])
held_out = torch.arange(rows) % 8 == 0
train = H5StreamLoader(whole.subset(~held_out.numpy()), batch_size=2048, shuffle=True)
validation = H5StreamLoader(whole.subset(held_out.numpy()), batch_size=2048)

def epoch(loader):
    labels = [y for x, y in loader]
    return torch.cat(labels), labels

kept = [epoch(train)[1], epoch(validation)[1]]
first = resident()
for _ in range(4):
    seen, labels = epoch(train)
    kept.append(labels)
    held, labels = epoch(validation)
    kept.append(labels)
    assert torch.equal(torch.sort(torch.cat([seen, held])).values, torch.arange(rows))
    assert looked_at["x"][0, 0] == 0.0
try:
    for number, (x, y) in enumerate(train):
        if number == 5:
            raise KeyboardInterrupt
except KeyboardInterrupt:
    pass
del x, y
train = H5StreamLoader(path, batch_size=2048, shuffle=True, fields=["x", "y"])  # the cell is run again
seen, labels = epoch(train)
kept.append(labels)
with h5py.File(path) as again:  # and another cell opens the file while the loaders hold it
    assert again["y"][-1] == rows - 1
gc.collect()
print(first, resident())
"""


def test_a_notebook_session_neither_fails_nor_grows(tmp_path):
    path = tmp_path / "train.h5"
    with h5py.File(path, "w") as f:
        x = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
        f.create_dataset("x", data=x, chunks=(1024, WIDTH), compression="gzip", compression_opts=1, shuffle=True)
        f["y"] = np.arange(ROWS)
    done = forking.run(SESSION, path, ROWS)
    assert done.returncode == 0, done.stderr
    first, last = map(int, done.stdout.split())
    assert last - first < 50, f"{first} MiB after the first epoch, {last} MiB at the end"
