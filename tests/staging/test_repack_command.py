"""`h5stream repack` on the command line."""

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from h5stream.cli.app import app
from h5stream.errors import StagingError
from h5stream.order.permutation import permutation
from tests.staging.same_file import assert_same_tree


@pytest.fixture
def source(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(40_000).reshape(10_000, 4), chunks=(1, 4), compression="gzip")
        file["y"] = np.arange(10_000)
        file["words"] = ["a", "b"]
    return tmp_path / "a.h5"


def run(*arguments):
    result = CliRunner().invoke(app, ["repack", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return " ".join(result.output.split())


def test_it_says_what_it_did_and_what_it_gained(source, tmp_path):
    output = run(source, tmp_path / "b.h5", "--chunk-bytes", "256KiB", "--compress", "lz4")
    assert_same_tree(source, tmp_path / "b.h5")
    assert "copied as it is: words (variable length)" in output
    assert "2 datasets rewritten, 1 copied as they are; all verified" in output
    assert "rows/s (" in output
    assert "x), opened anew and shuffled: x, y" in output


def test_it_says_what_compression_is_undone_before_it_writes(source, tmp_path):
    with h5py.File(source, "a") as file:
        file.create_dataset("z", data=np.zeros(1 << 20), chunks=True, compression="gzip")
    output = run(source, tmp_path / "b.h5", "--no-measure")
    assert "gzip-4 is undone and not replaced: " in output
    assert "MiB; compress=" in output
    assert output.index("is undone") < output.index("copied as it is: words")
    assert output.count("is undone") == 1
    assert "undone" not in run(source, tmp_path / "c.h5", "--no-measure", "--compress", "lz4")


def test_every_option_reaches_repack(source, tmp_path):
    options = ["--contiguous", "--shuffle-rows", "5", "--fields", "x, y", "--no-measure"]
    output = run(source, tmp_path / "b.h5", *options)
    assert "2 datasets rewritten, 2 of them shuffled" in output
    assert "rows/s" not in output
    assert_same_tree(source, tmp_path / "b.h5", order=permutation(10_000, 5), samples=10_000)
    with h5py.File(tmp_path / "b.h5") as file:
        assert file["x"].chunks is None


def test_a_target_is_overwritten_only_when_asked(source, tmp_path):
    (tmp_path / "b.h5").write_bytes(b"precious")
    with pytest.raises(StagingError, match="--overwrite"):
        run(source, tmp_path / "b.h5")
    run(source, tmp_path / "b.h5", "--overwrite", "--no-measure")
    assert_same_tree(source, tmp_path / "b.h5")
