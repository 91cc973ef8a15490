"""The commands do what the functions do, in lines that people and scripts can read."""

import h5py
import numpy as np
import pytest
from support.commands import printed
from support.making import write_datasets
from support.same_file import assert_same_tree

from h5stream.errors import StagingError
from h5stream.order.places import permutation


def test_a_round_trip(write, ram, left):
    sources = [write("a.h5", 1 << 20), write("b.h5", 0)]
    output = printed("stage", *sources, "--to", ram)
    assert f"  {ram}/a.h5\n" in output
    assert "2 copied (1.00 MiB" in output
    assert f"h5stream stage --remove {ram}" in output
    assert "0 copied (0 B), 2 reused" in printed("stage", *sources, "--to", ram)
    listing = printed("stage", "--list", ram)
    assert f"{ram}/a.h5\t1.00 MiB\tfresh\t-\t" in listing
    assert "2 files, 1.00 MiB" in listing
    assert "As they were staged: 2 of 2 files" in printed("stage", "--verify", ram)
    assert "1 file removed, 1.00 MiB freed" in printed("stage", "--remove", ram, ram / "a.h5")
    assert "1 file removed, 0 B freed" in printed("stage", "--remove", ram)
    assert left(ram) == []
    assert "nothing is staged" in printed("stage", "--list", ram)
    assert f"nothing is staged in {ram}, so nothing was removed" in printed("stage", "--remove", ram)


def test_follow_is_passed_on(tmp_path, ram):
    for name, target in (("a.h5", "b.h5"), ("b.h5", "a.h5")):
        write_datasets(tmp_path / name, x=h5py.ExternalLink(target, "/y"))
    assert "--follow" in printed("stage", tmp_path / "a.h5", "--to", ram)
    assert "1 copied" in printed("stage", tmp_path / "a.h5", "--to", ram, "--follow")


def test_what_is_damaged_was_not_staged_or_has_line_breaks_is_named(write, ram):
    printed("stage", write("a\nb.h5", 1000), "--to", ram)
    assert "a\N{REPLACEMENT CHARACTER}b.h5\t1000 B" in printed("stage", "--list", ram)
    (ram / "a\nb.h5").write_bytes(bytes(1000))
    assert f"DAMAGED {ram}/a" in printed("stage", "--verify", ram, status=1)
    (ram / "mine").write_bytes(b"")
    with pytest.raises(StagingError, match="not in the manifest"):
        printed("stage", "--remove", ram, "mine")


@pytest.fixture
def source(tmp_path):
    x = {"data": np.arange(40_000).reshape(10_000, 4), "chunks": (1, 4), "compression": "gzip"}
    return write_datasets(tmp_path / "a.h5", x=x, y=np.arange(10_000), words=["a", "b"])


def repack(*arguments):
    return " ".join(printed("repack", *arguments).split())


def test_it_says_what_it_did_and_what_it_gained(source, tmp_path):
    output = repack(source, tmp_path / "b.h5", "--chunk-bytes", "256KiB", "--compress", "lz4")
    assert_same_tree(source, tmp_path / "b.h5")
    assert "copied as it is: words (variable length)" in output
    assert "2 datasets rewritten, 1 copied as they are; all verified" in output
    assert "rows/s (" in output
    assert "x), opened anew and shuffled: x, y" in output


def test_it_says_what_compression_is_undone_before_it_writes(source, tmp_path):
    with h5py.File(source, "a") as file:
        file.create_dataset("z", data=np.zeros(1 << 20), chunks=True, compression="gzip")
    output = repack(source, tmp_path / "b.h5", "--no-measure")
    assert "gzip-4 is undone and not replaced: " in output
    assert "MiB; compress=" in output
    assert output.index("is undone") < output.index("copied as it is: words")
    assert output.count("is undone") == 1
    assert "undone" not in repack(source, tmp_path / "c.h5", "--no-measure", "--compress", "lz4")


def test_every_option_reaches_repack(source, tmp_path):
    options = ["--contiguous", "--shuffle-rows", "5", "--fields", "x, y", "--no-measure"]
    (tmp_path / "b.h5").write_bytes(b"precious")
    with pytest.raises(StagingError, match="--overwrite"):
        repack(source, tmp_path / "b.h5", *options)
    options.append("--overwrite")
    output = repack(source, tmp_path / "b.h5", *options)
    assert "2 datasets rewritten, 2 of them shuffled" in output
    assert "rows/s" not in output
    assert_same_tree(source, tmp_path / "b.h5", order=permutation(10_000, 5), samples=10_000)
    with h5py.File(tmp_path / "b.h5") as file:
        assert file["x"].chunks is None


def test_a_repack_says_which_filters_changed_and_that_a_slower_file_is_not_worth_it(tmp_path, monkeypatch):
    write_datasets(tmp_path / "c.h5", x={"data": np.zeros((9000, 9)), "chunks": (90, 9), "compression": "gzip"})
    monkeypatch.setattr("h5stream.baseline.measure.fresh_rates", lambda *given: [100.0, 50.0])
    said = repack(tmp_path / "c.h5", tmp_path / "d.h5")
    assert said.index("gzip-4 -> none, ") < said.index(", larger") < said.index("slower: 0.5 x; keep the old file")
