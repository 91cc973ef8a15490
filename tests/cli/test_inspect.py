"""`h5stream inspect` from the outside."""

import json
import os
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.commands import printed
from support.forking import Forked
from support.making import make_file, write_datasets

REPOSITORY = Path(__file__).resolve().parents[2]
CORPUS = Path(os.environ.get("H5STREAM_CORPUS", REPOSITORY.parent / "shared" / "corpus"))


def inspect(*options, **how):
    return printed("inspect", *options, **how)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    ratios = np.random.default_rng(0).standard_normal((20_000, 160), "f4")
    held = {"label": np.arange(20_000), "names": ["abc"] * 300, "version": 3}
    held["turned"] = {"shape": (300,), "dtype": h5py.vlen_dtype(">i4")}
    held["a_group_of_some/length_of_name/signal_to_noise_ratio"] = {
        "data": ratios, "chunks": (2000, 20), "compression": "lzf", "shuffle": True
    }  # fmt: skip
    for k, letter in enumerate("abcdefghijklmnopqrst"):
        held |= {f"many/{k}": np.arange(30), f"lengths/{letter}": np.arange(100 + k), f"alike/{k}": np.arange(100 + k)}
    return write_datasets(tmp_path_factory.mktemp("inspect") / "a.h5", **held)


@pytest.mark.parametrize("width", ["80", "120"])
def test_all_is_printed_whole_and_no_line_is_wider_than_the_terminal_but_the_command(path, width, monkeypatch):
    monkeypatch.chdir(Path(path).parent)  # a long path is not broken
    text = inspect("a.h5", width=width)
    lines = [line for line in text.splitlines() if not line.startswith("h5stream repack")]
    assert max(map(len, lines)) <= int(width)
    assert "\nh5stream repack a.h5 a.repacked.h5 --chunk-bytes 1MiB --compress lz4\n" in text
    words = ["20,000 rows", "A shuffled batch of 1,024 rows", "row by row", "The shuffle", "Advice", "decoded"]
    for word in [*words, "direct", "shuffle + lzf" if int(width) > 100 else "shuffle+lzf", "length_of_name/"]:
        assert word in text
    assert "signal_to_noise_ratio: each row is cut into 8 chunks" in " ".join(text.split())


def test_long_listings_are_cut_unless_all_is_asked_for_and_reasons_are_given(path):
    text, everything = inspect(path), inspect(path, "--all")
    for cut in ("other lengths (--all)", "datasets like one of these (--all)", "and 8 more (--all)"):
        assert cut in text
    for name in ("lengths/a", "alike/0"):
        assert (name in text, name in everything) == (False, True)
    assert "(--all)" not in everything
    assert "h5py  turned: variable length" in everything


def test_fields_and_batch_size_are_the_users(path):
    (found,) = json.loads(inspect(path, "--fields", "label", "--batch-size", "100", "--json"))
    sample = found["sample"]
    assert (sample["fields"], sample["chosen_by"]) == (["label"], "named")
    assert (sample["batch_size"], sample["batch_rows"], sample["batch_nbytes"]) == (100, 100, 800)
    assert sample["naive"]["read_amplification"] == 1
    assert (found["advice"], found["repack_command"]) == ([], "")


# What scripts may rely on; a key that goes away breaks them.
KEYS = "file file_nbytes asked groups left_out sample no_sample kinds lines advice repack_command"
SAMPLE_KEYS = """fields chosen_by rows row_nbytes batch_size batch_rows batch_nbytes needed_read_nbytes
needed_decoded_nbytes naive ours datasets shuffle memory_nbytes memory_budget threads kept_rows_nbytes
decode_rows_per_s first_batch notice naive_words our_words"""
DATASET_KEYS = """clues path shape dtype element_nbytes variable_length layout chunk_shape filters stored_nbytes
stored_chunks cache_nbytes cache_chunks access reason rows row_nbytes raw_nbytes chunk_rows chunk_nbytes chunks
chunks_across ratio members role matlab_class"""


def test_json_has_the_keys_that_are_promised(path):
    (found,) = json.loads(inspect(path, "--json", "--all"))
    assert set(found) == set(KEYS.split())
    assert set(found["sample"]) == set(SAMPLE_KEYS.split())
    assert {key for group in found["groups"] for one in group["datasets"] for key in one} == set(DATASET_KEYS.split())
    assert set(found["advice"][0]) == {"key", "fields", "problem", "way_out", "costs", "repack"}
    assert {group["rows"] for group in found["groups"]} >= {20_000, 300, 30, None}


@pytest.fixture
def tables(tmp_path):
    """A file as PyTables and AnnData write them: compounds, an index, long names."""
    obs = np.zeros(50, [("bulk_labels", "i1"), ("at", [("lat", "f4"), ("lon", "f4")])])
    index = {"a_building_of_some/electricity/_i_table/index/sorted": np.zeros(7000)}
    tables = {TABLE: np.zeros(9, [("index", "i8")]), **index}
    return write_datasets(tmp_path / "t.h5", X=np.zeros((50, 3), "f4"), obs=obs, **tables)


NAMES = ("obs:bulk_labels", "obs:at:lat", TABLE := "a_building_of_some/electricity/meter_number_1/table_of_values")


@pytest.mark.parametrize("width", ["80", "120"])
@pytest.mark.parametrize("options", [(), ("--all",)])
def test_every_name_is_whole_and_can_be_pasted_back(tables, width, options):
    lines = inspect(tables, *options, width=width).splitlines()
    for name in (*NAMES, f"{TABLE}:index"):
        assert any(name in line.split() for line in lines), name
        assert json.loads(inspect(tables, "--fields", name, "--json"))[0]["sample"]["fields"] == [name]


def test_what_pytables_keeps_for_itself_is_no_sample_and_not_listed(tables):
    text = inspect(tables, width="80")
    assert ("_i_table" in text, "_i_table" in inspect(tables, "--all", width="80")) == (False, True)
    assert "and 1 dataset without data of its own (--all)" in text
    assert "what PyTables keeps to find rows of its tables" in " ".join(text.split())


def test_one_dataset_is_not_counted_and_one_that_almost_pairs_is_named(tmp_path):
    made = write_datasets(tmp_path / "one.h5", x=np.zeros((50, 3), "f4"))
    assert "A sample is a row of the dataset at the root" in " ".join(inspect(made, width="80").split())
    made = write_datasets(tmp_path / "unlike.h5", x=np.zeros((50, 3), "f4"), y=np.zeros(49, "f4"))
    text = " ".join(inspect(made, width="80").split())
    assert "A sample is taken for a row of the field with the most data" in text
    assert "1. y: it has 49 rows, and x 50, so they do not pair. way out: write both with one length" in text


def test_a_compound_is_named_that_comes_as_a_dict(tmp_path):
    made = write_datasets(tmp_path / "t.h5", x=np.zeros((50, 3), "f4"), two=np.zeros(50, [("a", "i1"), ("b", "f4")]))
    text = " ".join(inspect(made, width="80").split())
    assert "two comes as a dict of its members; a member alone is a field too, such as 'two:a'." in text


def test_no_block_has_more_rows_than_there_are_and_read_bytes_are_not_decoded_ones(here, h5stream):
    make_file("few.h5", data=np.zeros((14, 8)), chunks=(1820, 8), maxshape=(None, 8), compression="gzip")
    text = " ".join(h5stream("inspect", "few.h5").out.split())
    assert "all rows (1 block of 14 rows) fit one window" in text
    assert re.search(
        r"first batch: after [\d.]+ K?i?B of the file \(114 KiB decoded\); .* takes (under|about) \d+ ms", text
    )


# --- what a shuffled batch of samples costs, beside reading them one at a time ---------------------------------


@pytest.fixture
def demos(tmp_path):
    held, stored = {}, {"chunks": (10, 8), "maxshape": (None, 8), "compression": "gzip"}
    for k, rows in enumerate((40, 3, 25)):
        held[f"data/{k}/x"] = {"data": np.random.default_rng(k).random((rows, 8)), **stored}
    return write_datasets(tmp_path / "demos.h5", **held)


def test_a_batch_of_sequences_is_counted(demos):
    asked = [demos, "--samples", "Sequences(4, of='data/*')", "--fields", "x", "--batch-size", "16"]
    (found,) = json.loads(inspect(*asked, "--json"))
    assert found["samples"] == 37 + 22
    assert found["left_out"] == 1
    assert found["shapes"] == {"x": "4 x 8 float64"}
    # All 7 chunks, once for the whole epoch; one at a time each sample needs one or two.
    assert found["ours"]["decoded_nbytes"] == pytest.approx(7 * 10 * 8 * 8 * 16 / 59)
    assert 16 <= found["alone"]["chunks"] <= 32
    shown = inspect(*asked, width="80")
    assert "Sequences(4, of='data/*'): 59 of 256 B; left out: 1 segment shorter than one." in shown
    assert max(map(len, shown.splitlines())) <= 80 or len(demos) > 80


@pytest.fixture
def events(tmp_path):
    return write_datasets(tmp_path / "a.h5", hits=np.arange(100.0), index=np.arange(0, 101, 5), label=np.arange(20))


RAGGED = [
    "{'x': Field('hits', lookup=Bounds('index'), ragged=Ragged('pad', crop=Crop(3, at='start'))), 'y': 'label'}",
    "Field('hits', lookup=Bounds('index')), 'label'",
    "['label', Field('hits', lookup=Bounds('index'), ragged=Ragged(crop=Crop(2)))]",
]


def test_ragged_fields_are_counted_and_suggest_knows_them_and_samples(events):
    for fields in RAGGED:
        (found,) = json.loads(inspect(events, "--fields", fields, "--batch-size", "4", "--json"))
        assert (found["samples"], found["batch_samples"]) == (20, 4)
        assert found["ours"]["read_nbytes"] > 0
    for given in (["--fields", RAGGED[0]], ["--fields", "hits", "--samples", "Sequences(4)"]):
        printed("suggest", events, *given, "--batch-size", "4")


def test_many_files_are_named_by_the_first_and_the_last_and_objects_left_out_by_why(tmp_path):
    for k in range(30):
        write_datasets(tmp_path / f"{k:02}.h5", **{"x" if k % 10 else "other": np.arange(3)})
    asked = [str(tmp_path / "*.h5"), "--fields", "x", "--samples", "Objects('files', missing='skip')"]
    text = inspect(*asked, width="80")
    assert "00.h5 ... " in text
    assert "29.h5 (30 files)" in text
    assert "12.h5" not in text
    assert "left out: 3 objects without a field" in " ".join(text.split())


# --- real files -----------------------------------------------------------------------------------------------

# Runs in a child: some of these files are broken, and libhdf5 might take the process with it.
_EVERY_FILE = """
import json, sys, warnings
from typer.testing import CliRunner
from h5stream.cli.app import app
from h5stream.errors import H5StreamError

warnings.simplefilter("error")
for path, *views in json.load(sys.stdin):
    print(path, flush=True)
    for options in views:
        result = CliRunner().invoke(app, ["inspect", path, *options], env={"COLUMNS": "80"})
        if result.exception is not None and not isinstance(result.exception, H5StreamError):
            raise result.exception
"""


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"the corpus of real files is not at {CORPUS}")
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["in turns", "all"])
def test_every_file_of_the_corpus_is_inspected_or_refused_without_a_traceback(whole):
    """By default every thirtieth, as a screen and as JSON in turns, and none of the two with thousands of datasets."""
    views = [[], ["--json", "--all"]]
    files = sorted(str(p) for p in CORPUS.rglob("*") if p.is_file() and p.suffix not in (".md", ".tsv"))
    if whole:
        asked = [[path, *views] for path in files]
    else:
        small = [path for path in files if "large_group" not in path][::30]
        asked = [[path, views[number % 2]] for number, path in enumerate(small)]
    child = Forked(_EVERY_FILE)
    child.stdin.write(json.dumps(asked))
    out, err = child.communicate(timeout=240)
    assert child.returncode == 0, f"{out.splitlines()[-1:]}\n{err[-4000:]}"
    assert len(out.splitlines()) == len(asked)
