"""`stage --repack`: rewritten on the way, reused by recipe, and as hard to get wrong as a copy."""

import subprocess
import sys

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from h5stream import stage, staged
from h5stream.cli.app import app
from h5stream.errors import NotHDF5Error, OptionError, StagedFileDamagedError
from h5stream.staging import StagedState, list_staged, verify_staged
from tests.staging.same_file import assert_same_tree

LZ4 = {"compress": "lz4", "chunk_nbytes": 1 << 15}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "data" / "a.h5"
    path.parent.mkdir()
    with h5py.File(path, "w") as file:
        values = np.random.default_rng(0).integers(0, 50, (4000, 25)).astype("f4")
        file.create_dataset("x", data=values, chunks=(3, 25), compression="gzip")
        file["y"] = np.arange(4000)
    return path


def chunks_of(path):
    with h5py.File(path) as file:
        return file["x"].chunks


def test_a_repacked_copy_holds_the_same_and_is_reused(source, ram):
    first = stage(source, to=ram, repack=LZ4, lease=False)
    assert first.copied == (ram / "a.h5",)
    assert first.bytes_copied == (ram / "a.h5").stat().st_size
    assert_same_tree(source, ram / "a.h5")
    assert chunks_of(ram / "a.h5") == ((1 << 15) // 100, 25)
    again = stage(source, to=ram, repack=LZ4, lease=False)
    assert (again.copied, again.reused) == ((), (ram / "a.h5",))
    (file,) = list_staged(ram)
    assert (file.state, file.size_bytes) == (StagedState.FRESH, (ram / "a.h5").stat().st_size)
    assert '"compress": "lz4"' in file.recipe
    assert all(result.ok for result in verify_staged(ram))


@pytest.mark.parametrize("other", [None, {}, LZ4 | {"compress": "gzip"}, LZ4 | {"shuffle_rows": 1, "fields": "x"}])
def test_another_recipe_or_none_replaces_the_copy(source, ram, other):
    stage(source, to=ram, repack=LZ4, lease=False)
    result = stage(source, to=ram, repack=other, lease=False)
    assert result.copied == (ram / "a.h5",)
    assert len(list_staged(ram)) == 1
    assert stage(source, to=ram, repack=other, lease=False).copied == ()
    if other is None:
        assert (ram / "a.h5").read_bytes() == source.read_bytes()


def test_a_repacked_file_of_a_block_goes_with_it_and_damage_leaves_nothing(source, ram, left, monkeypatch):
    with staged(source, to=ram, repack={}) as paths:
        assert_same_tree(source, paths[0])
    assert left(ram) == []
    monkeypatch.setattr("h5stream.repacking.survey.difference", lambda *_: "row 3 differs")
    with pytest.raises(StagedFileDamagedError):
        stage(source, to=ram, repack={})
    assert left(ram) == []


def test_what_cannot_be_repacked_is_refused(write, source, ram, left):
    with pytest.raises(NotHDF5Error):
        stage(write("a.bin", 1000), to=ram, repack={})
    with pytest.raises(OptionError, match="cannot repack"):
        stage(source, to=ram, follow=True, repack={})
    assert left(ram) == []


def test_the_command_shares_its_options_with_repack(source, ram):
    command = ["stage", str(source), "--to", str(ram), "--repack", "--compress", "zstd", "--chunk-bytes", "0.5MiB"]
    run = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "1 repacked" in run.output
    assert "fresh, repacked" in CliRunner().invoke(app, ["stage", "--list", str(ram)]).output
    for wrong in (command[:4] + command[5:], ["stage", "--list", str(ram), "--repack"]):
        with pytest.raises(OptionError, match="--repack"):
            CliRunner().invoke(app, wrong, catch_exceptions=False)


def test_plain_staging_needs_no_torch(source, ram):
    script = "import sys; from h5stream import stage; stage(sys.argv[1], to=sys.argv[2]); print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script, str(source), str(ram)], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"
