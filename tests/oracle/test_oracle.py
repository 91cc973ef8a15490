"""Whatever the files, the samples, the fields and the way of reading: right, or refused in words.

The same cases each time, each read in one way; ``python -m tools.fuzz`` draws others for as long as wanted. Where bytes
change or structure is damaged, a case runs in a process of its own, which may end.
"""

import collections

import h5py
import pytest
from support.forking import SERVED

from tools.fuzz_workers import Worker

from .hazards import without_references
from .kinds import KINDS, case_of
from .reading import Reading
from .run import run, write
from .storage import VARYING

SEEDS = {"rows": 70, "group_rows": 45, "axis_rows": 30, "sequences": 70, "table": 45, "objects": 65, "boxes": 40}
SEEDS |= {"unlike": 60}
"""Cases of each kind in the default run; the long one reads as many again."""

MOST_REFUSED = {"rows": 0.15, "axis_rows": 0.2, "boxes": 0.15, "objects": 0.25, "sequences": 0.35, "table": 0.35}
MOST_REFUSED |= {"group_rows": 0.2, "unlike": 0.65}
"""The share of cases that may be refused, and one more, since they are few; of all together it is below a quarter."""

HAZARDS = {"changed", "keyed", "repacked", "faulty"}

AWAITED: frozenset[str] = frozenset()
"""What is drawn and not yet right: cases with one of these marks, or forms, are read, and may fail. To be emptied."""


@pytest.fixture(autouse=True)
def catalogue_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def worker():
    found = Worker(start_method=SERVED.get_start_method())
    yield found
    found.close()


def one_form(seed, kind):
    """Draw a case, and choose one of its ways of reading."""
    case = case_of(seed, kind)
    return {**case, "forms": [case["forms"][seed % len(case["forms"])]]}


@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        pytest.param(kind, seeds, marks=marks)
        for kind in KINDS
        for seeds, marks in (
            (range(SEEDS[kind]), ()),
            (range(SEEDS[kind], 2 * SEEDS[kind]), pytest.mark.slow),
        )
    ],
)
def test_every_case_is_what_h5py_says_or_refused_in_words(kind, seeds, worker):
    counts, wrong = collections.Counter(), []
    for seed in seeds:
        case = one_form(seed, kind)
        form = case["forms"][0]["form"]
        (result,) = (worker.run if form in HAZARDS else run)(case)
        is_awaited = AWAITED & {*case["marks"], f"form: {form}"}
        status = "awaited" if is_awaited and result["status"] not in ("right", "refused") else result["status"]
        counts[status] += 1
        if status not in ("right", "refused", "awaited"):
            wrong.append((seed, result["form"], status, result["said"][-400:]))
    assert not wrong, f"python -m tools.fuzz --kind {kind} --case {wrong[0][0]} makes it smaller: {wrong[0]}"
    assert counts["refused"] <= MOST_REFUSED[kind] * counts.total() + 1, counts


def test_a_case_is_the_same_whenever_it_is_drawn():
    for kind in KINDS:
        assert case_of(3, kind) == case_of(3, kind)


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("group_rows", 7300066),
        pytest.param("objects", 7200296, marks=pytest.mark.slow),  # thousands of groups
        ("objects", 7200183),
    ],
)
def test_a_case_of_rare_draws_can_be_written_and_has_a_model(kind, seed, tmp_path):
    case = case_of(seed, kind)
    write(case, tmp_path)
    reading = Reading(case, tmp_path)
    assert list(reading.model.sample(0)) == list(case["fields"])


def test_a_virtual_dataset_in_a_file_and_of_a_name_with_percent_signs_is_written(tmp_path):
    node = {"shape": [1, 4], "type": "<f8", "seed": 3449, "layout": "virtual", "written": 1, "path": "o/k%20/x1"}
    described = {"name": "f0%20.h5", "libver": ["earliest", "latest"], "userblock": 0, "track": False, "nodes": [node]}
    write({"files": [described]}, tmp_path)
    with h5py.File(tmp_path / "f0%20.h5") as file:
        assert file["o/k%20/x1"].is_virtual
        assert file["o/k%20/x1"][()].all()


def test_attributes_of_datasets_that_are_left_out_are_left_out_too():
    (file,) = case_of(41000208, "objects")["files"]
    owners = {node["path"] for node in file["nodes"] if "attr" not in node}
    attributes = [node["path"] for node in file["nodes"] if "attr" in node]
    assert attributes == ["o/0/x1", "o/1/x1"]
    assert owners >= {*attributes}


@pytest.mark.parametrize("stored", [{"layout": "contiguous"}, {"chunks": [2, 2], "filters": ["shuffle", "gzip"]}])
@pytest.mark.parametrize("kind", VARYING)
def test_members_beside_those_of_variable_length_are_read_where_h5py_reads_none(tmp_path, kind, stored):
    kind = {"members": [*kind["members"], ["text", "S3"]]}
    node = {"path": "x", "shape": [5, 2], "type": kind, "seed": 3, **stored}
    described = {"name": "a.h5", "libver": ["earliest", "latest"], "userblock": 512, "nodes": [node]}
    write({"files": [described]}, tmp_path)
    with h5py.File(tmp_path / "a.h5") as file:
        values, fixed = file["x"][()], without_references(file["x"])
    for name in ("b", "c", "text"):
        assert fixed[name].tolist() == values[name].tolist()
    assert fixed["a"].dtype == "V16"


def test_a_damaged_case_is_read_in_one_way_alone():
    for seed, kind in ((7300329, "sequences"), (9503666, "objects")):
        assert [form["form"] for form in case_of(seed, kind)["forms"]] == ["damaged"]
