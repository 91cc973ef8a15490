"""`tune`: what is tried, what is chosen, and that batch size and order stay."""

import re
from dataclasses import replace

import numpy as np
import pytest
from support.commands import invoke
from support.each import for_each
from support.making import write_datasets

from h5stream import H5StreamLoader
from h5stream.advice.tune import (
    AS_FAST,
    LEAST_GAIN,
    TURNS,
    WORTH_MIXING,
    Bench,
    TuningRun,
    compare,
    search,
    thread_counts,
    tune,
    window_sizes,
)
from h5stream.engine.statistics import LoaderStatistics
from h5stream.errors import OptionError
from h5stream.profiles import read_profile

ROWS, BATCH, CHUNK = 6000, 100, 10


@pytest.fixture
def file(tmp_path):
    x = {"data": np.arange(ROWS, dtype="i4"), "chunks": (CHUNK,), "compression": "gzip"}
    return write_datasets(tmp_path / "a.h5", x=x, y={"data": np.arange(ROWS), "chunks": (1000,)})


class Machine:
    """Answers as a machine whose rates a test wrote down; notes what was asked."""

    def __init__(self, by_threads, by_window, *, reading=0.0, fits=1 << 60):
        self.by_threads, self.by_window, self.reading, self.fits = by_threads, by_window, reading, fits
        self.asked = []

    def measure(self, knob, threads, window):
        self.asked.append((knob, threads, window))
        if window > self.fits:
            return TuningRun(knob=knob, threads=threads, window_rows=window, blocks=0, refused="needs more")
        rate = self.by_threads.get(threads, 1.0) * self.by_window.get(window, 1.0)
        statistics = LoaderStatistics(threads=1, running_s=1.0, read_s=self.reading)
        return TuningRun(
            knob=knob, threads=threads, window_rows=window, blocks=window // 10, rows_per_s=rate, statistics=statistics
        )

    def search(self, cpus=8, default_window=10_240):
        default = self.measure("default", cpus, default_window)
        return search(self.measure, default, cpus=cpus, rows=1_000_000, batch_size=BATCH)


def test_the_fewest_threads_that_are_as_fast_as_any_are_chosen():
    assert Machine({1: 1, 2: 2, 4: 4, 8: 3}, {}).search().threads == 4
    assert Machine({1: 1, 2: 2, 4: AS_FAST * 2.01, 8: 2.0}, {}).search().threads == 2


def test_more_threads_than_processors_are_tried_only_where_they_wait_for_reads():
    computing = Machine({}, {})
    computing.search()
    assert max(threads for _, threads, _ in computing.asked) == 8
    waiting = Machine({8: 8, 16: 16, 32: 32, 64: 40}, {}, reading=0.9)
    assert waiting.search().threads == 64
    assert max(threads for _, threads, _ in waiting.asked) == 64


WINDOWS = [  # rates by window, and the one that is chosen: of those that are nearly as fast the largest
    ({5120: 1.0, 10_240: 0.95, 20_480: 1 / 1.01 * WORTH_MIXING, 40_960: 0.5}, 10_240),
    ({20_480: 0.95, 40_960: 0.92}, 40_960),
    ({1280: 1.05, 2560: 1.05}, 40_960),
    ({1280: 3.0}, 1280),
]


@for_each(WINDOWS)
def test_a_smaller_window_is_chosen_only_for_a_gain_that_counts(rates, chosen):
    assert Machine({}, rates).search().window_rows == chosen


def test_a_window_that_does_not_fit_is_left_out():
    machine = Machine({}, {}, fits=20_480)
    assert machine.search().window_rows == 20_480
    assert ("window", 1, 40_960) in machine.asked


def test_windows_keep_enough_blocks_and_batches_and_threads_end_at_the_processors():
    default = TuningRun(knob="default", threads=1, window_rows=1024, blocks=1024)
    assert window_sizes(default, rows=3000, batch_size=10) == (128, 256, 512, 2048, 3000)
    assert window_sizes(default, rows=1024, batch_size=200) == ()
    assert [thread_counts(cpus) for cpus in (1, 2, 6, 8)] == [(1,), (1, 2), (1, 2, 4, 6), (1, 2, 4, 8)]


def run(*options):
    return invoke("tune", *options, width=80)


def test_the_command_prints_the_curve_and_writes_plot_and_profile(file, tmp_path):
    pytest.importorskip("matplotlib")
    for option, wrong in (("--plot", tmp_path / "t.nothing"), ("--seconds", 0)):
        with pytest.raises(OptionError, match=option.strip("-")):
            run(file, option, str(wrong))
    done = run(
        *(file, "--fields", "x,y", "--batch-size", "100", "--seconds", "0.005", "--device", "cpu"),
        *("--plot", str(tmp_path / "t.png"), "--out", str(tmp_path / "p.toml")),
    )
    assert done.exit_code == 0, (done.output, done.exception)
    assert "rows/s" in done.output
    assert "<-" in done.output
    assert "The batch size stays 100." in done.output
    said = [line for line in done.output.splitlines() if not line.startswith(("plot: ", "profile: ", "use it: "))]
    assert max(map(len, said)) <= 80
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    profile = read_profile(tmp_path / "p.toml")
    assert profile.dataset == file
    assert profile.fields == ("x", "y")
    with H5StreamLoader.from_profile(tmp_path / "p.toml", shuffle=True) as loader:
        assert loader.batch_size == 100
        assert sum(len(x) for x, y in loader) == ROWS


def tuned_with_rates(file, monkeypatch, host=100.0, **told):
    """Tune with rates that a test wrote down, in place of measured ones; the loaders are real."""
    real = Bench.run

    def run(self, knob, threads, window):
        rate = host((threads, window)) if callable(host) else host
        return replace(real(self, knob, threads, window), rows_per_s=rate)

    monkeypatch.setattr(Bench, "run", run)
    return tune(file, fields="x", batch_size=BATCH, memory_budget=50_000_000, seconds=0.001, **told)


def test_where_nothing_is_faster_that_is_the_answer_and_the_profile_keeps_what_there_is(file, monkeypatch):
    left = list[int]()
    found = tuned_with_rates(file, monkeypatch, progress=lambda attempt: left.append(attempt.left))
    assert left[2:] == [*range(left[2], left[-1] - 1, -1)]  # of windows that are not tried none is counted
    assert found.best == found.default
    assert found.gain == 1.0
    assert found.answer.startswith("no setting is faster than the loader's own beyond the noise; keep num_workers=")
    assert found.profile.loader["window"] == found.default.window_rows
    kept = {"batch_size": BATCH, "memory_budget": 50_000_000, "shuffle": True}
    assert kept.items() <= found.profile.loader.items()


def test_noise_alone_recommends_nothing(file, monkeypatch):
    rng = np.random.default_rng(1)
    for _ in range(2):
        found = tuned_with_rates(file, monkeypatch, host=lambda setting: 100 * rng.lognormal(0, 0.4))
        assert found.best.setting == found.default.setting
        assert any("two runs of one setting differed by" in line for line in found.caveats)


def test_what_is_faster_beyond_the_noise_is_recommended_with_its_gain(file, monkeypatch):
    rng = np.random.default_rng(1)

    def rate(setting):  # the default window holds all rows
        return (100 if setting[1] == ROWS else 150) * rng.uniform(0.95, 1.05)

    found = tuned_with_rates(file, monkeypatch, host=rate)
    assert found.best.setting != found.default.setting
    assert found.gain == pytest.approx(1.5, rel=0.15)
    assert f"{found.gain:.2f} times the rate of the loader's own setting" in found.answer
    decided = re.search(r"in turns decide.* ran at (1\.\d\d) to (1\.\d\d) times the rate of", found.caveats[0])
    assert float(decided[1]) <= found.gain <= float(decided[2])
    assert found.profile.loader["window"] == found.best.window_rows


def is_faster(ours, theirs):
    gain, _ = compare(ours, theirs)
    return gain > 1.0


def found_faster(rng, gain, noise, trials=1000):
    """Give the share of comparisons that find a setting faster which is so by `gain`, with noise like a neighbour's."""
    found = 0
    for _ in range(trials):
        ours, theirs = (speed * rng.lognormal(0.0, noise, TURNS) for speed in (gain, 1.0))
        found += is_faster(list(ours), list(theirs))
    return found / trials


@for_each([0.001, 0.1, 0.6])
def test_equal_settings_are_told_apart_by_chance_once_in_a_hundred_times_at_most(noise):
    assert found_faster(np.random.default_rng(0), 1.0, noise) <= 0.015


@for_each([(1.10, 0.01), (1.3, 0.04), (2.0, 0.1)])
def test_a_gain_well_beyond_the_noise_is_found_if_it_is_worth_another_setting(gain, noise):
    assert found_faster(np.random.default_rng(0), gain, noise) > 0.95
    assert not is_faster([1 + LEAST_GAIN / 2] * TURNS, [1.0] * TURNS), "however quiet it is"


def test_one_disturbed_run_does_not_hide_a_gain_and_does_not_make_one():
    assert compare([150, 151, 149, 152, 150], [100, 101, 40, 100, 100])[0] == 1.5
    assert not is_faster([100, 101, 99, 100, 300], [100, 101, 99, 100, 100])
