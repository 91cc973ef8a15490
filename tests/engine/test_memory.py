"""What a loader takes of a process, and what is kept of a batch: measured on processes, not on counters."""

import gc
import io
import json

import h5py
import numpy as np
import pytest
import torch
from support.amounts import crossed
from support.forking import run
from support.inner import ahead_of, default_budget, iterations_of
from support.making import write_datasets

from bench import memory
from h5stream import H5Dataset, H5StreamLoader

MIB = 1 << 20
SLACK = 48 * MIB
"""What the interpreter adds while an epoch runs: stacks of threads, and what the C library keeps."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("memory")


def in_fork(code, *arguments):
    """Run some code in a process that begins with everything imported; give what it said at last."""
    ended = run(code, *arguments)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


MEASURE = """
import json, sys
from pathlib import Path
from bench import memory
path, *rest = json.loads(sys.argv[1])
print(json.dumps(memory.measure_here(Path(path), *rest)))
"""


def measured(path, case, batch_size, budget, most_batches=None):
    return in_fork(MEASURE, json.dumps([str(path), memory.CASES[case], batch_size, budget, most_batches]))


CASES = [*(("4 B", 6_000_000, case) for case in ("auto", "subset")), ("1 B", 6_000_000, "rank 1 of 3")]
CASES += [*(("768 B", 200_000, case) for case in ("two epochs", "all")), ("1 MiB", 200, "sampler")]


@pytest.mark.parametrize(("kind", "rows", "case"), CASES)
def test_a_loader_takes_no_more_than_its_budget(folder, kind, rows, case):
    """Each kind of rows and each mode once; the rest of the cross is slow."""
    path = memory.make_file(folder, kind, rows=rows)
    found = measured(path, case, memory.batch_size_of(kind, memory.CASES[case]), 128 * MIB)
    assert found["says"] <= found["budget"]
    assert found["grew"] <= found["budget"] + SLACK


def test_a_budget_counts_what_tensors_of_each_sample_take_beside_their_numbers(folder):
    """A few MiB are left to the C library."""
    path = memory.make_file(folder, "vlen_list", rows=120_000)
    found = in_fork(MEASURE, json.dumps([str(path), {}, 8192, 64 * MIB, None]))
    assert found["grew"] <= found["says"] + 6 * MIB


@pytest.mark.parametrize(("case", "rows"), [("short batches", 12_000_000), ("short batches, gzip", 6_000_000)])
def test_short_batches_of_narrow_rows_take_no_more_than_the_budget(folder, case, rows):
    path = memory.make_file(folder, "1 B", rows=rows, compression="gzip" in case)
    found = measured(path, case, 256, 96 * MIB, 8000)
    assert found["says"] <= 96 * MIB
    assert found["grew"] <= 96 * MIB + SLACK


@pytest.mark.slow
@pytest.mark.parametrize("case", list(memory.CASES))
@pytest.mark.parametrize("kind", list(memory.ROWS))
def test_no_kind_of_rows_takes_more_than_the_budget(folder, kind, case):
    options = memory.CASES[case]
    path = memory.make_file(folder, kind, compression=bool(options.get("compression")))
    found = memory.measure(path, options, batch_size=memory.batch_size_of(kind, options), budget=256 * MIB)
    assert found["grew"] <= found["budget"] + SLACK


def test_an_epoch_in_file_order_takes_a_few_batches(folder):
    path = memory.make_file(folder, "768 B", rows=200_000)
    found = measured(path, "in file order", 1024, 1 << 30)
    assert found["grew"] <= 100 * MIB + SLACK


# --- samples by weights --------------------------------------------------------------------------------------


REFUSED = """
import gc, json, sys
from pathlib import Path
import numpy as np
from bench.memory import forget_peak, resident_nbytes, warmed
from h5stream import Balanced, H5Dataset, H5StreamLoader, Mixture, Weighted
from h5stream.errors import BudgetError
path, options = json.loads(sys.argv[1])
base = warmed(Path(path).parent)
source = H5Dataset(path, ["x"])
if options.pop("mixed", False):
    source = Mixture({"a": source.subset(slice(0, 1_000_000)), "b": source}, [1, 3])
kind, draw = options.pop("draw", [None, None])
draw = {"Balanced": Balanced, "Weighted": Weighted}[kind](**draw) if kind else draw
gc.collect()
given = resident_nbytes() - base
forget_peak()
try:
    H5StreamLoader(source, 8192, True, memory_budget="32MiB", draw=draw)
    sys.exit("not refused")
except BudgetError as error:
    needed = error.needed
refused = resident_nbytes("VmHWM") - base
loader = H5StreamLoader(source, 8192, True, memory_budget=needed, draw=draw)
assert loader.memory_budget == needed
for number, batch in enumerate(loader):
    if number == 200:
        break
print(json.dumps([given, refused, needed, resident_nbytes("VmHWM") - base]))
"""


DRAWN = [["Weighted", {"weights": "x", "count": 100_000, "replacement": False}], ["Balanced", {"by": "x"}]]
DRAWN += [["Weighted", {"count": 5_000_000, "replacement": False}]]


@pytest.mark.parametrize("options", [*({"draw": draw} for draw in DRAWN), {"mixed": True}], ids=str)
def test_a_budget_is_refused_before_the_memory_is_taken_and_the_number_that_it_names_will_do(folder, options):
    path = memory.make_file(folder, "1 B", rows=8_000_000)
    given, refused, needed, grew = in_fork(REFUSED, json.dumps([str(path), options]))
    assert refused <= given + SLACK
    assert needed > 32 * MIB
    assert grew <= needed + SLACK


# --- samples of unlike lengths -------------------------------------------------------------------------------

RAGGED = """
import json, sys
from pathlib import Path
from bench.memory import forget_peak, resident_nbytes, warmed
from h5stream import Bounds, Field, H5StreamLoader, Sized
path, form, sizes = json.loads(sys.argv[1])
base = warmed(Path(path).parent)
forget_peak()
fields = [Field("hits", lookup=Bounds("bounds"), ragged=form), "image"]
loader = H5StreamLoader(path, 128, True, fields=fields, memory_budget="256MiB", draw=Sized(**sizes) if sizes else None)
for _ in range(2):
    for batch in loader:
        pass
print(json.dumps([loader.window_size.needed_nbytes, resident_nbytes("VmHWM") - base]))
"""


def make_ragged(folder, spread):
    """Write samples of 1 to 100,000 rows, 4 bytes each, beside 8 KiB of which each has as much; all of it is a hole."""
    path = folder / f"ragged {spread}.h5"
    if not path.exists():
        rng = np.random.default_rng(0)
        lengths = np.exp(rng.uniform(0, np.log(1e5), 9_000)).astype("i8")
        if spread != "of any length":
            lengths = np.where(rng.random(24_000) < 0.02, 100_000, rng.integers(1, 5_000, 24_000))
        lengths[:2] = 1, 100_000
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        with h5py.File(path, "w") as file:
            for name, kind, shape in (
                (b"hits", h5py.h5t.IEEE_F32LE, (int(lengths.sum()),)),
                (b"image", h5py.h5t.STD_U8LE, (len(lengths), 8192)),
            ):
                h5py.h5d.create(file.id, name, kind, h5py.h5s.create_simple(shape), creation)
            file["bounds"] = np.append(0, np.cumsum(lengths))
    return path


SPREADS = ("of any length", "short but for a few")
SIZES = ({}, {"rows": 400_000}, {"bucket": True}, {"rows": 400_000, "bucket": True})


@pytest.mark.parametrize(("spread", "form", "options"), crossed(SPREADS, ("packed", "pad", "list"), SIZES))
def test_samples_of_1_to_100_000_rows_take_no_more_than_the_budget(folder, spread, form, options):
    says, grew = in_fork(RAGGED, json.dumps([str(make_ragged(folder, spread)), form, options]))
    assert says <= 256 * MIB
    assert grew <= 256 * MIB + SLACK


def loader_of(path, *arguments, **options):
    return H5StreamLoader(path, *arguments, fields=["x", "y"], seed=0, **options)


# --- loaders that take turns ---------------------------------------------------------------------------------


@pytest.fixture
def wide(tmp_path):
    x = {"data": np.zeros((20_000, 784), "u1"), "chunks": (100, 784)}
    return write_datasets(tmp_path / "wide.h5", x=x, y=np.arange(20_000))


def test_loaders_without_a_budget_share_one_as_they_take_turns(wide, monkeypatch):
    default_budget(monkeypatch, 24 * MIB)
    train = loader_of(wide, 500, shuffle=True)
    orders = []
    for _ in train:
        pass
    held = train.held_nbytes
    assert held > 0
    small = loader_of(wide, 50)
    for _ in small:
        pass
    assert train.is_idle
    other = loader_of(wide, 500, shuffle=True)
    for _, y in other:
        orders.append(y)
        assert train.held_nbytes + other.held_nbytes <= 24 * MIB
    train.set_epoch(0)
    assert torch.equal(torch.cat([y for _, y in train]), torch.cat(orders))


def test_what_an_idle_loader_has_read_ahead_goes_where_both_do_not_fit(wide, monkeypatch):
    default_budget(monkeypatch, 96 * MIB)
    roomy = loader_of(wide, 500)
    default_budget(monkeypatch, 24 * MIB)
    train, other = loader_of(wide, 500, shuffle=True), loader_of(wide, 500, shuffle=True)
    for _ in train:
        pass
    assert ahead_of(train)  # the next epoch's first windows
    next(iter(roomy))
    assert ahead_of(train)
    next(iter(other))
    assert not ahead_of(train)


def test_a_loader_that_is_under_way_keeps_what_it_has(wide, monkeypatch):
    default_budget(monkeypatch, 24 * MIB)
    train, other = loader_of(wide, 500, shuffle=True), loader_of(wide, 500, shuffle=True)
    batches = iter(train)
    next(batches)
    held = train.held_nbytes
    for _ in other:
        pass
    assert train.held_nbytes >= held > 0
    assert len(list(batches)) == 39


# --- what is kept of a batch ---------------------------------------------------------------------------------


def saved_nbytes(tensor):
    to = io.BytesIO()
    torch.save(tensor, to)
    return to.tell()


def test_kept_labels_do_not_keep_their_batch(wide):
    with loader_of(wide, 500, shuffle=True) as loader:
        kept = [y for _, y in loader]
        assert all(y.untyped_storage().nbytes() == 4000 for y in kept)
        assert saved_nbytes(kept[0]) < 4000 + 2000
        slots = iterations_of(loader).engine.slots
        gc.collect()
        assert slots.free_slots * slots.slot_nbytes >= slots.held_nbytes - 3 * slots.slot_nbytes
    assert sorted(torch.cat(kept).tolist()) == list(range(20_000))


def test_saving_a_field_writes_that_field(wide):
    x, y = next(iter(loader_of(wide, 500)))
    assert saved_nbytes(x) < x.nbytes + 2000
    dataset = H5Dataset(wide, ["x", "y"])
    x, y = dataset[0:1000]
    assert saved_nbytes(y) < y.nbytes + 2000
    assert saved_nbytes(x) < x.nbytes + 2000


def test_a_large_field_is_not_copied_and_keeps_its_slot(wide):
    loader = loader_of(wide, 500)
    batches = iter(loader)
    x, _ = next(batches)
    before = x.clone()
    slots = iterations_of(loader).engine.slots
    for _ in batches:
        pass
    assert torch.equal(x, before)
    gc.collect()
    free = slots.free_slots
    del x
    gc.collect()
    assert slots.free_slots == free + 1
