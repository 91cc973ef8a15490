"""Running a command as the shell does, in this process, and the files that commands are given."""

import functools
import io
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from support import forking
from support.making import write_datasets

from h5stream.cli.app import main


@pytest.fixture(autouse=True)
def quick_guard(monkeypatch):
    """Let the process that looks at a file first be a fork; tests/workers/test_guard.py has real ones."""
    forking.guards_are_forks(monkeypatch)


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str

    @property
    def text(self):
        return self.out + self.err


@pytest.fixture
def h5stream(monkeypatch, capsys):
    """Run a command line, errors and exit status included."""

    def run(*words, width=80):
        monkeypatch.setattr(sys, "argv", ["h5stream", *map(str, words)])
        monkeypatch.setenv("COLUMNS", str(width))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return Ended(int(ended.value.code or 0), told.out, told.err)

    return run


@functools.cache
def content():
    """Give the bytes of a good file."""
    rng, bytes_of_it = np.random.default_rng(0), io.BytesIO()
    x = {"data": rng.random((4000, 16), dtype="f4"), "chunks": (200, 16), "compression": "gzip"}
    write_datasets(bytes_of_it, x=x, y=np.arange(4000) % 10)
    return bytes_of_it.getvalue()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in a folder with two good files: names stay short."""
    monkeypatch.chdir(tmp_path)
    for name in ("a1.h5", "a2.h5"):
        (tmp_path / name).write_bytes(content())
    return tmp_path
