"""The command does what the functions do, in lines that people and scripts can read."""

import pytest
from typer.testing import CliRunner

from h5stream.cli.app import app
from h5stream.errors import StagingError


@pytest.fixture
def run():
    def call(*arguments, status=0):
        result = CliRunner().invoke(app, ["stage", *map(str, arguments)], catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result.output

    return call


def test_a_round_trip(run, write, ram, left):
    sources = [write("a.h5", 1 << 20), write("b.h5", 0)]
    output = run(*sources, "--to", ram)
    assert f"  {ram}/a.h5\n" in output
    assert "2 copied (1.00 MiB" in output
    assert f"h5stream stage --remove {ram}" in output
    assert "0 copied (0 B), 2 reused" in run(*sources, "--to", ram)
    listing = run("--list", ram)
    assert f"{ram}/a.h5\t1.00 MiB\tfresh\t-\t" in listing
    assert "2 files, 1.00 MiB" in listing
    assert "As they were staged: 2 of 2 files" in run("--verify", ram)
    assert "1 file removed, 1.00 MiB freed" in run("--remove", ram, ram / "a.h5")
    assert "1 file removed, 0 B freed" in run("--remove", ram)
    assert left(ram) == []
    assert "nothing is staged" in run("--list", ram)


def test_follow_is_passed_on(run, tmp_path, ram):
    import h5py

    for name, target in (("a.h5", "b.h5"), ("b.h5", "a.h5")):
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = h5py.ExternalLink(target, "/y")
    assert "--follow" in run(tmp_path / "a.h5", "--to", ram)
    assert "1 copied" in run(tmp_path / "a.h5", "--to", ram, "--follow")


def test_what_is_damaged_was_not_staged_or_has_line_breaks_is_named(run, write, ram):
    run(write("a\nb.h5", 1000), "--to", ram)
    assert "a\N{REPLACEMENT CHARACTER}b.h5\t1000 B" in run("--list", ram)
    (ram / "a\nb.h5").write_bytes(bytes(1000))
    assert f"DAMAGED {ram}/a" in run("--verify", ram, status=1)
    (ram / "mine").write_bytes(b"")
    with pytest.raises(StagingError, match="not in the manifest"):
        run("--remove", ram, "mine")
