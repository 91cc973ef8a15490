"""`track`: what is printed, what is counted, and what stays as it was."""

import io
import re
import threading
import weakref

import numpy as np
import pytest
import torch
from rich.console import Console
from support.each import for_each
from support.fake_nvml import FakeNvml
from support.making import make_file
from torch.utils.data import DataLoader, IterableDataset

from h5stream import H5StreamLoader
from h5stream.advice.diagnose import loop_limit
from h5stream.advice.loaders import LoaderKnobs
from h5stream.advice.track import EpochSummary
from h5stream.device import facts
from h5stream.engine.statistics import LoaderStatistics
from h5stream.errors import OptionError
from h5stream.monitor import SystemMonitor, nvml
from h5stream.training import track


@pytest.fixture(autouse=True)
def no_driver(monkeypatch):
    """Spare tests the driver of a GPU, which may take seconds to start for each of many processes."""
    monkeypatch.setattr(nvml, "installed_nvml", FakeNvml)


class Loader:
    """Gives batches and statistics as a test wants them."""

    def __init__(self, batches=20, rows=4, batch_size=4, statistics=None):
        self._batches, self._rows, self.batch_size, self._statistics = batches, rows, batch_size, statistics
        self.num_workers = 3

    def __len__(self):
        return self._batches

    def __iter__(self):
        for _ in range(self._batches):
            yield torch.zeros(self._rows, 2)

    def stats(self):
        return self._statistics


def printed(loader, monitor=False, *, terminal=False, width=100, **options):
    """Track an epoch; give the text and the summary."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)
    epoch = track(loader, monitor, console=console, **options)
    for _ in epoch:
        pass
    return console.file.getvalue(), epoch.summary


@pytest.fixture
def file(tmp_path):
    rows = np.arange(2000, dtype="f4").reshape(1000, 2)
    return make_file(tmp_path / "a.h5", data=rows, chunks=(100, 2), compression="gzip")


def test_the_batches_are_the_loaders_own(file):
    options = {"shuffle": True, "seed": 0}
    with H5StreamLoader(file, 64, **options) as loader, H5StreamLoader(file, 64, **options) as same:
        tracked = [batch.tolist() for batch in track(loader, False)]
        assert tracked == [batch.tolist() for batch in same]


def test_the_summary_has_the_lines_that_people_know(file):
    text, summary = printed(Loader(rows=8192, batch_size=8192), description="train")
    known = ["Batch size: 8192 (expected: 8192)", "DataLoader avg: ", "GPU memory: "]
    for part in (*known, "samples/s", "batches/s", str(summary)):
        assert part in text
    assert (summary.samples, summary.batches) == (20 * 8192, 20)
    with H5StreamLoader(file, 4096) as loader:
        assert "Batch size: 1000 (expected: 4096)" in printed(loader)[0]


def test_without_a_terminal_there_is_a_line_every_tenth_of_the_epoch():
    text, _ = printed(Loader(batches=100), description="train")
    lines = [line for line in text.splitlines() if line.startswith("train: ") and "left" in line]
    assert len(lines) == 10
    assert lines[0].startswith("train:  10% 10/100 | ")
    assert "\x1b" not in text


@for_each([0, -1, 1.1, float("nan")])
def test_every_must_be_a_share(every):
    with pytest.raises(OptionError, match="every="):
        track(Loader(), every=every)


@pytest.mark.parametrize("width", [60, 100])
def test_on_a_terminal_there_is_a_bar_that_fits_and_is_gone_at_the_end(width):
    with SystemMonitor(interval_s=0.1) as monitor:
        monitor.sample()
        text, _ = printed(Loader(batches=10), monitor, terminal=True, width=width)
    bar = [line for line in text.replace("\r", "\n").splitlines() if "/10 " in line]
    assert "10/10" in text
    assert all(len(_without_escapes(line)) <= width for line in bar)
    assert "\x1b[2K" in text  # lines are taken away again


def _without_escapes(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_running_monitor_samples_the_share_of_waiting_and_has_its_own_back_after_the_epoch():
    own, waited = (lambda: 0.0), threading.Event()
    with SystemMonitor(interval_s=0.1, data_wait=own) as monitor:

        def slow():
            while not any(sample.data_wait_ratio for sample in monitor.history):
                assert not waited.wait(0.01)
                yield torch.zeros(1)

        for _ in track(slow(), monitor, console=Console(file=io.StringIO())):
            pass
        assert 0.5 < max(sample.data_wait_ratio or 0 for sample in monitor.history) <= 1
        assert monitor.data_wait is own


def test_without_a_monitor_one_is_started_and_stopped_and_its_line_is_shown():
    before = threading.active_count()
    text, summary = printed(Loader(), monitor=None)
    assert re.search(r"\| GPU: .*RAM:", text)
    assert summary.machine is not None
    assert threading.active_count() == before


def test_a_loop_that_ends_early_says_so_and_leaves_no_thread(file):
    console = Console(file=io.StringIO())
    with H5StreamLoader(file, 10) as loader:
        epoch = track(loader, console=console)
        for _ in epoch:
            break
        assert epoch.summary.batches == 1
        assert not any("h5stream-" in thread.name.replace("h5stream-requests", "") for thread in threading.enumerate())
    assert "ended after 1 of 100 batches" in console.file.getvalue()


def test_an_error_of_the_loop_or_of_the_loader_arrives():
    epoch = track(Loader(), False, console=Console(file=io.StringIO()))
    with pytest.raises(ZeroDivisionError):
        [1 / 0 for _ in epoch]
    assert epoch.summary.batches == 1

    def broken():
        yield torch.zeros(2)
        raise KeyError("row 7")

    with pytest.raises(KeyError, match="row 7"):
        list(track(broken(), False, console=Console(file=io.StringIO())))


def test_a_batch_is_not_kept_while_the_loop_works_on_it():
    for batch in track(Loader(), False, console=Console(file=io.StringIO())):
        alive = weakref.ref(batch)
        del batch
        assert alive() is None


def test_a_stock_loader_without_a_length_or_without_batches_will_do():
    class Rows(IterableDataset):
        def __iter__(self):
            yield from torch.arange(10)

    text, summary = printed(DataLoader(Rows(), batch_size=4))
    assert (summary.batches, summary.samples, summary.expected_batches) == (3, 10, None)
    assert "Batch size: 4 (expected: 4)" in text
    assert summary.limit is None
    assert printed([])[0].strip() == ""


COUNTED = {"batches": 20, "expected_batches": 20, "samples": 80, "batch_size": 4, "expected_batch_size": 4}
WAITS = {"epoch_s": 10.0, "wait_mean_s": 0.4, "wait_max_s": 0.5, "wait_first_s": 0.4, "waiting_share": 0.8}


def summary_at(gpu_ratio, statistics, loader=None):
    knobs = LoaderKnobs.of(loader or Loader(statistics=statistics))
    limit = None if statistics is None else loop_limit(statistics, knobs, cpus=4)
    told = {"gpu_ratio": gpu_ratio, "statistics": statistics, "limit": limit}
    return EpochSummary(description="train", knobs=knobs, **told, **COUNTED, **WAITS)


WAITING = {"batches": 20, "elapsed_s": 10.0, "wait_s": 8.0, "running_s": 10.0, "threads": 3}
DECODING = LoaderStatistics(**WAITING, read_s=1.0, decode_s=25.0, decoded_bytes=10**9)


def test_python_is_the_cause_where_the_transform_takes_the_time():
    loader = Loader()
    loader.batch_transform = lambda batch: batch
    statistics = LoaderStatistics(**WAITING | {"wait_s": 1.0, "transform_s": 7.0, "decode_s": 5.0})
    text = str(summary_at(0.2, statistics, loader))
    assert "Likely cause: Python: 350.0 ms a batch" in text
    assert re.search(r"of the time \(tensors, batch_transform and collate_fn: [\d.]+%\)$", text, flags=re.M)


def test_the_knobs_are_shown_with_their_present_values_also_where_there_are_no_statistics():
    text = str(summary_at(0.11, DECODING))
    assert "LOW GPU UTILIZATION (11.0%)! Likely cause: decode: " in text
    assert "num_workers: 3 -> 4 (4 processors are allowed)" in text
    assert "batch_size (current: 4)" in text
    text = str(summary_at(0.11, None))
    assert "Likely cause: n/a (this loader keeps no statistics)." in text
    assert "batch_size (current: 4), num_workers (current: 3)" in text
    assert [summary_at(ratio, DECODING).warning() for ratio in (0.30, 0.9)] == [(), ()], "a GPU that works"


def test_gpu_memory_is_said_at_the_first_batch(monkeypatch):
    memory = facts.DeviceMemory(device=0, allocated_bytes=3 << 30, peak_bytes=5 << 30)
    monkeypatch.setattr("h5stream.advice.track.device_memory", lambda: memory)
    text, _ = printed(Loader())
    assert text.index("GPU memory at the first batch: 3.00 GiB") < text.index("Batch size: ")
    assert "GPU memory: 3.00 GiB allocated, 5.00 GiB peak" in text
