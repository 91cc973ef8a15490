"""Mutated files: an error of ours, or what h5py gives; never a crash, a hang, wrong bytes or unbounded memory.

Each mutated copy is read in a child of its own with a limit on memory and time; see ``mutant_reader.py``. Run with
``-s`` to see how many went which way. SZ3 and its like are C++ that ends the process on damaged bytes, under h5py
as well; they are counted apart.
"""

from __future__ import annotations

import collections
import sys

import numpy as np
import pytest
from guarded import MutantReader, count
from mutant_reader import CRASH, EQUAL, ERROR, GOOD, H5PY_CRASHED, HANG
from seeds import CHUNK, FILTERS, INDEXES, cuts, in_chunks, in_structure, write_seed

CRASHES_IN_H5PY_TOO = {"sz3"}


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    reader = MutantReader(tmp_path_factory.mktemp("mutants"))
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def tally():
    """Count all outcomes, and print the table at the end."""
    counts = collections.Counter()
    yield counts
    lines = [f"  {outcome:<28} {n:>6,}" for outcome, n in counts.most_common()]
    sys.stdout.write("\n".join(["", f"{counts.total():,} mutated files", *lines, ""]))


def check(reader, tally, seed, mutations, *, codec_may_crash=False):
    outcomes = reader.outcomes(seed.path, mutations)
    tally.update(count(outcomes))
    allowed = {*GOOD, CRASH} if codec_may_crash else {*GOOD}
    bad = [f"{outcome} {mutation}: {detail}" for outcome, detail, mutation in outcomes if outcome not in allowed]
    assert not bad, "\n".join(bad[:5])
    return count(outcomes)


def amounts(default, slow):
    return [pytest.param(default, id=str(default)), pytest.param(slow, id=str(slow), marks=pytest.mark.slow)]


@pytest.mark.parametrize("amount", amounts(16, 400))
@pytest.mark.parametrize("name", FILTERS)
def test_damaged_chunks_give_an_error_or_what_h5py_gives(tmp_path, reader, tally, name, amount):
    seed = write_seed(tmp_path / "seed.h5", **FILTERS[name])
    mutations = in_chunks(seed, amount, np.random.default_rng([amount, len(name)]))
    check(reader, tally, seed, mutations, codec_may_crash=name in CRASHES_IN_H5PY_TOO)


@pytest.mark.parametrize("amount", amounts(24, 1000))
@pytest.mark.parametrize("name", INDEXES)
def test_damaged_headers_and_indexes_give_an_error_or_what_h5py_gives(tmp_path, reader, tally, name, amount):
    seed = indexed_seed(tmp_path, name)
    mutations = in_structure(seed, amount, np.random.default_rng([amount, len(name)]))
    check(reader, tally, seed, mutations)


@pytest.mark.parametrize("amount", amounts(10, None))
@pytest.mark.parametrize("name", INDEXES)
def test_a_file_cut_off_at_any_structure_is_refused(tmp_path, reader, tally, name, amount):
    seed = indexed_seed(tmp_path, name)
    outcomes = check(reader, tally, seed, cuts(seed, amount, np.random.default_rng(0)))
    assert set(outcomes) == {ERROR}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(FILTERS) - CRASHES_IN_H5PY_TOO))
def test_damaged_parameters_of_filters_give_an_error_or_what_h5py_gives(tmp_path, reader, tally, name):
    seed = write_seed(tmp_path / "seed.h5", **FILTERS[name])
    check(reader, tally, seed, in_structure(seed, 200, np.random.default_rng(len(name))))


def indexed_seed(folder, name):
    storage = {"compression": "gzip"} if "chunks" in INDEXES[name] else {"chunks": None}
    return write_seed(folder / "seed.h5", **{**storage, **INDEXES[name]})


def test_the_harness_tells_an_undamaged_file_from_a_hang_and_a_crash(tmp_path, reader, monkeypatch):
    """A check that cannot fail is a defect: what it must notice is shown to it."""
    seed = write_seed(tmp_path / "seed.h5", chunks=CHUNK)
    ((outcome, _, _),) = reader.outcomes(seed.path, [["put", 0, "89"]])
    assert outcome == EQUAL
    outcomes = reader.outcomes(seed.path, [["read", "crash"], ["read", "hang"], ["read", "wrong"]])
    assert [outcome for outcome, _, _ in outcomes] == [CRASH, HANG, "wrong bytes"]
    assert H5PY_CRASHED not in count(outcomes)
