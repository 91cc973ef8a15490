"""Running a command as the shell does, in this process, and the files that commands are given."""

import functools
import io
import os
import sys
from dataclasses import dataclass

import forking
import h5py
import numpy as np
import pytest

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
def content(rows):
    """Give the bytes of a good file."""
    rng, bytes_of_it = np.random.default_rng(0), io.BytesIO()
    with h5py.File(bytes_of_it, "w") as file:
        file.create_dataset("x", data=rng.random((rows, 16), dtype="f4"), chunks=(200, 16), compression="gzip")
        file["y"] = np.arange(rows) % 10
    return bytes_of_it.getvalue()


def write_file(path, rows=4000):
    with open(path, "wb") as file:
        file.write(content(rows))
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in a folder with two good files: names stay short."""
    monkeypatch.chdir(tmp_path)
    for name in ("a1.h5", "a2.h5"):
        write_file(name)
    return tmp_path


def _truncated():
    write_file("truncated.h5")
    os.truncate("truncated.h5", os.path.getsize("truncated.h5") // 2)
    return "truncated.h5"


def _written(name, content):
    with open(name, "wb") as file:
        file.write(content)
    return name


def _linked():
    os.symlink("gone.h5", "dangling.h5")
    return "dangling.h5"


def _pipe():
    os.mkfifo("pipe.h5")
    return "pipe.h5"


def _folder():
    os.mkdir("folder.h5")
    return "folder.h5"


# What is named, and which words of the error say what is wrong with it.
BAD_FILES = {
    "missing": (lambda: "missing.h5", "missing.h5"),
    "pattern": (lambda: "nothing*.h5", "no file matches"),
    "folder": (_folder, "folder"),
    "text": (lambda: _written("text.h5", b"a,b\n1,2\n" * 1000), "text.h5"),
    "empty": (lambda: _written("empty.h5", b""), "empty.h5"),
    "truncated": (_truncated, "truncated"),
    "dangling": (_linked, "dangling.h5"),
    "pipe": (_pipe, "pipe.h5"),
    "device": (lambda: "/dev/null", "/dev/null"),
    "unreadable": (lambda: "/proc/self/mem", "/proc/self/mem"),
}


@pytest.fixture(params=BAD_FILES)
def bad_file(request, here):
    """Give a file that cannot be read, and words that the error must have."""
    make, words = BAD_FILES[request.param]
    return make(), words
