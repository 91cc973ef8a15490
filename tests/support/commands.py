"""Running a command in this process."""

import pytest
from support.forking import guards_are_forks
from typer.testing import CliRunner

from h5stream.cli.app import app


def invoke(*words, width=100):
    """Run a command, whose guards are forks; give its exit status and what it printed."""
    with pytest.MonkeyPatch.context() as patch:
        guards_are_forks(patch)
        return CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": str(width)}, catch_exceptions=False)


def printed(*words, status=0, width=100):
    """Give what a command prints, which ends with this exit status."""
    result = invoke(*words, width=width)
    assert result.exit_code == status, result.output
    return result.output
