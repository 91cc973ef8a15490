"""Epochs by weights, by classes and in shares, against a plain one over the same file.

    python -m pytest bench/test_weights.py --benchmark-enable --benchmark-json=weights.json -s

All are shuffled, with one budget that holds less than the file, and as many readers, in turns. What is compared is
samples a second: how often each sample comes is drawn anew for each epoch, and that is counted too.
"""

from __future__ import annotations

import statistics
import warnings

import numpy as np
import pytest

from bench import cases
from h5stream import Balanced, H5Dataset, H5StreamLoader, Mixture, Weighted
from h5stream.errors import WeakShuffleWarning

ROUNDS = 5
BUDGET = "384MiB"
OF_PLAIN = 0.8
"""What samples a second are to be of a plain epoch's."""

PLACES = np.arange(cases.ROWS)
RARE = PLACES < cases.ROWS // 100
"""A class of one in a hundred, all of it at the file's beginning."""


def mixture(path: str) -> Mixture:
    whole = H5Dataset(path, ["x", "y"])
    parts = {"few": whole.subset(RARE), "many": whole.subset(~RARE)}
    return Mixture(parts, [0.3, 0.7], stop="all")


CASES = {
    "weights": Weighted(np.random.default_rng(0).random(cases.ROWS)),
    "uneven weights": Weighted(np.random.default_rng(0).random(cases.ROWS) ** 10),
    "balance, scattered": Balanced(PLACES % 100 == 0),
    "balance, sorted": Balanced(RARE),
    "mixture": None,
}


@pytest.mark.parametrize("kind", ["gzip4_shuffle", "unfiltered"])
@pytest.mark.parametrize("case", CASES)
def test_an_epoch_of_what_was_drawn(benchmark, bench_file, case, kind):
    path = bench_file(kind)
    given = {"shuffle": True, "memory_budget": BUDGET, "num_workers": cases.THREADS}
    source = mixture(path) if case == "mixture" else H5Dataset(path, ["x", "y"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakShuffleWarning)
        ours = H5StreamLoader(source, 8192, keep="never", draw=CASES[case], **given)
        plain = H5StreamLoader(H5Dataset(path, ["x", "y"]), 8192, keep="never", **given)
    samples: dict[H5StreamLoader, int] = {}

    def epoch_of(loader: H5StreamLoader) -> None:
        samples[loader] = sum(len(y) for _, y in loader)

    for loader in (ours, plain):
        epoch_of(loader)
    pairs = [tuple(cases.seconds_of(lambda one=one: epoch_of(one)) for one in (ours, plain)) for _ in range(ROUNDS)]
    benchmark.pedantic(epoch_of, (ours,), rounds=1)
    for loader in (ours, plain):
        loader.close()
    ours_s = statistics.median(pair[0] for pair in pairs)
    of_plain = statistics.median(theirs / mine for mine, theirs in pairs) * samples[ours] / samples[plain]
    benchmark.group = "weights"
    benchmark.extra_info.update(
        case=case, stored=kind, samples=samples[ours], samples_per_s=samples[ours] / ours_s, of_plain=of_plain
    )
    print(f"\n{case}, {kind}: {samples[ours] / ours_s:,.0f} samples/s, {of_plain:.2f} of a plain epoch's")
    assert of_plain >= OF_PLAIN
