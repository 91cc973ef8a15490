"""Asks ``mutant_reader.py`` about files that may harm; it is started once for all who ask."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.forking import python_path
from support.mutant_reader import BOTH_HUNG, H5PY_HUNG, HANG
from support.mutants import Mutant
from support.seeds import Seed

TESTS = Path(__file__).resolve().parent.parent

SECONDS, SECONDS_AFTER_HANG = 120, 5
"""How long a child may take, on a machine that does much else too; once one hung, the rest of a test is mostly
shrinking it."""

NO_THREAD_CACHE = "glibc.malloc.tcache_count=0"
"""What comes out of that cache keeps its content, whatever ``M_PERTURB`` says fresh memory shall hold."""


class MutantReader:
    """The program that reads files in guarded children."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch / "mutant.h5"
        self._program = self._start()
        self.seconds = SECONDS

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", str(TESTS / "support" / "mutant_reader.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what codecs print about bytes that they do not like
            text=True,
            env={**os.environ, "PYTHONPATH": python_path(TESTS.parent, TESTS), "GLIBC_TUNABLES": NO_THREAD_CACHE},
        )

    def outcome(self, path: str, how: str = "whole", original: str | None = None) -> tuple[str, str]:
        """Give the outcome of reading a file, with a word of detail."""
        request = {"path": path, "original": original or path, "how": how, "seconds": self.seconds}
        self._program.stdin.write(json.dumps(request) + "\n")
        self._program.stdin.flush()
        outcome, detail = json.loads(self._program.stdout.readline())
        if outcome in (HANG, BOTH_HUNG, H5PY_HUNG):
            self.seconds = SECONDS_AFTER_HANG
        return outcome, detail

    def outcome_of(self, mutant: Mutant, seed: Seed) -> tuple[str, str]:
        """Give the outcome of reading a mutant of a seed."""
        self._scratch.write_bytes(mutant.of(seed.data))
        return self.outcome(str(self._scratch), original=seed.path)

    def close(self) -> None:
        self._program.stdin.close()
        self._program.wait(120)
        self._program.stdout.close()


@pytest.fixture(scope="session")
def started_reader(tmp_path_factory):
    reader = MutantReader(tmp_path_factory.mktemp("mutants"))
    yield reader
    reader.close()


@pytest.fixture
def reader(started_reader):
    started_reader.seconds = SECONDS
    return started_reader
