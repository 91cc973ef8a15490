"""Asks ``mutant_reader.py`` about mutated files, and counts the outcomes."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent


class MutantReader:
    """The program that reads mutated files in guarded children; started once a module."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        folders = [str(TESTS.parent), str(TESTS), str(TESTS / "faults")]
        self._program = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(TESTS / "faults" / "mutant_reader.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what codecs print about bytes that they do not like
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        )

    def outcomes(self, original: str, mutations) -> list[tuple[str, str, list]]:
        """Give outcome, detail and mutation for each mutation of a file."""
        mutations = list(mutations)
        request = {"original": original, "scratch": str(self._scratch / "mutant.h5"), "mutations": mutations}
        self._program.stdin.write(json.dumps(request) + "\n")
        self._program.stdin.flush()
        answers = json.loads(self._program.stdout.readline())
        return [(outcome, detail, m) for (outcome, detail), m in zip(answers, mutations, strict=True)]

    def close(self) -> None:
        self._program.stdin.close()
        self._program.wait(120)
        self._program.stdout.close()


def count(outcomes) -> collections.Counter:
    """Count outcomes by class."""
    return collections.Counter(outcome for outcome, _, _ in outcomes)
