"""Mutated files: an error of ours, or what h5py gives; never a crash, a hang, wrong bytes or unbounded memory.

hypothesis draws the mutants and shrinks what fails to the fewest changes; each is read in a child of its own with a
limit on memory and time, see ``mutant_reader.py``. The default run always draws the same few hundred; ``-m slow`` draws
thousands, others each time (``--hypothesis-seed=0`` repeats them).
"""

import functools

import pytest
from support.mutant_reader import BOTH_CRASHED, CRASH, EQUAL, ERROR, GOOD, HANG, WRONG
from support.mutants import Flip, Mutant, Put, all_cuts, cuts, fuzz, in_chunks, in_filter_parameters, in_structure
from support.seeds import FILTERS, INDEXES, write_seed


@pytest.fixture(scope="module")
def seed_of(tmp_path_factory):
    return functools.cache(functools.partial(write_seed, tmp_path_factory.mktemp("seeds")))


@pytest.fixture
def check(reader):
    """Give a function that reads a mutant of a seed and fails where that went as it must not."""

    def check(seed, where, mutant):
        outcome, detail = reader.outcome_of(mutant, seed)
        assert outcome in GOOD or (where, outcome) == ("structure", BOTH_CRASHED), f"{outcome}: {detail}"
        return outcome

    return check


def amounts(default, slow):
    """Run so many, always the same; and with ``-m slow`` so many others."""
    slow_run = pytest.param(slow, False, id=f"{slow} anew", marks=[pytest.mark.slow, pytest.mark.timeout(1200)])
    return pytest.mark.parametrize(("amount", "fixed"), [pytest.param(default, True, id=str(default)), slow_run])


@amounts(4, 150)
@pytest.mark.parametrize("name", FILTERS)
def test_damaged_chunks_give_an_error_or_what_h5py_gives(check, seed_of, name, amount, fixed):
    seed = seed_of(name)
    fuzz(functools.partial(check, seed, "chunks"), in_chunks(seed), amount, fixed=fixed)


@amounts(6, 400)
@pytest.mark.parametrize("name", INDEXES)
def test_damaged_headers_and_indexes_give_an_error_or_what_h5py_gives(check, seed_of, name, amount, fixed):
    seed = seed_of(name)
    fuzz(functools.partial(check, seed, "structure"), in_structure(seed), amount, fixed=fixed)


@amounts(2, 40)
@pytest.mark.parametrize("name", sorted(set(FILTERS) - {"no filter"}))
def test_damaged_parameters_of_filters_give_an_error_or_what_h5py_gives(check, seed_of, name, amount, fixed):
    seed = seed_of(name)
    fuzz(functools.partial(check, seed, "structure"), in_filter_parameters(seed), amount, fixed=fixed)


FOUND = {
    "libhdf5 fails where an object is asked what it is": Mutant("btree v2", (Flip(447, 0),)),
    "a shuffle of elements of no bytes": Mutant("shuffle gzip", (Put(941, bytes(4)),)),
}
"""What long runs have found, where the seeds are written as they were then."""


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_once_stays_mended(check, seed_of, what):
    mutant = FOUND[what]
    check(seed_of(mutant.seed), "structure", mutant)


@pytest.mark.parametrize("name", sorted(set(INDEXES) - {"contiguous"}))
def test_a_chunk_without_an_address_is_what_h5py_takes_it_for(check, seed_of, name):
    """Each chunk's address, wherever it stands, made the one that means none; its size, which follows, is left."""
    seed = seed_of(name)
    for start, _ in seed.field_chunks:
        at = seed.data.find(start.to_bytes(8, "little"))
        assert at > 0
        check(seed, "structure", Mutant(name, (Put(at, b"\xff" * 8),)))


@pytest.mark.parametrize("name", INDEXES)
def test_a_file_cut_off_anywhere_is_refused(check, seed_of, name):
    def refused(mutant):
        assert check(seed_of(name), "chunks", mutant) == ERROR

    fuzz(refused, cuts(seed_of(name)), 3, fixed=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", INDEXES)
def test_a_file_cut_off_at_any_structure_is_refused(check, seed_of, name):
    for mutant in all_cuts(seed_of(name)):
        assert check(seed_of(name), "chunks", mutant) == ERROR, mutant


def test_the_harness_tells_an_undamaged_file_from_a_hang_a_crash_and_an_exit(reader, seed_of):
    """A check that cannot fail is a defect: what it must notice is shown to it."""
    seed = seed_of("no filter")
    assert reader.outcome_of(Mutant("no filter", (Put(0, b"\x89"),)), seed)[0] == EQUAL
    for how, outcome in {"crash": CRASH, "exit": CRASH, "hang": HANG, "wrong": WRONG}.items():
        assert reader.outcome(seed.path, how)[0] == outcome
