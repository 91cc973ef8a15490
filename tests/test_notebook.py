"""What a notebook shows: IPython's plain text of the values that people look at, and no flood from loggers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sample_files import write_sample

from h5stream import H5StreamLoader, SystemMonitor, track
from h5stream.advice.suggestion import Suggestion


class Printer:
    """IPython's, as far as it is used."""

    def __init__(self):
        self.shown = ""

    def text(self, text):
        self.shown += text


def shown(value):
    printer = Printer()
    value._repr_pretty_(printer, cycle=False)
    return printer.shown


@pytest.fixture
def sample(tmp_path):
    return write_sample(tmp_path)


def test_statistics_and_summaries_are_shown_as_they_are_printed(sample, capsys):
    with H5StreamLoader(sample.path, 100, fields="x") as loader:
        epoch = track(loader, monitor=False)
        list(epoch)
        values = [loader.stats(), epoch.summary, Suggestion(title="a", answer="b", arithmetic=())]
    for value in values:
        assert shown(value) == str(value) != repr(value)


def test_a_monitor_and_its_summary_are_shown_as_text():
    with SystemMonitor(interval_s=0.1) as monitor:
        monitor.sample()
    assert "data wait" in shown(monitor.summary())
    assert "data wait" in shown(monitor)


PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
{first}
import h5stream.engine.kernels
import numba
numba.njit(lambda x: x + 1)(1)
print("numba's level", logging.getLogger("numba").getEffectiveLevel())
"""


def told(first=""):
    """Give what is logged while something is compiled, as the kernels are in their first run."""
    command = [sys.executable, "-c", PROGRAM.format(first=first)]
    environment = {"PATH": "", "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_root_logger_at_debug_is_not_flooded_by_the_compiler():
    text = told()
    assert "numba.core" not in text
    assert "numba's level 30" in text


def test_a_level_that_the_user_chose_for_the_compiler_stays():
    assert "numba's level 40" in told('logging.getLogger("numba").setLevel(logging.ERROR)')
    assert "numba.core" in told('logging.getLogger("numba").setLevel(logging.DEBUG)')
