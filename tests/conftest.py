"""What holds for the whole suite: how much is drawn, and what the garbage collector need not look at again."""

from __future__ import annotations

import functools
import gc
import signal

import hypothesis
import pytest
import typer.testing
from amounts import FULL

# Typer would build all commands anew for each that a test runs, in a tenth of a second.
typer.main.get_command = typer.testing._get_command = functools.cache(typer.main.get_command)


def _is_full(config):
    return config.getoption("markexpr") == "slow"


def pytest_configure(config):
    hypothesis.settings.load_profile(FULL if _is_full(config) else "a share")
    # In the background a shell lets it be ignored, and every process that a test interrupts would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Let `-m slow` run every property too, with all of its examples: see `amounts.examples`."""
    for item in items if _is_full(config) else ():
        if isinstance(item, pytest.Function) and hypothesis.is_hypothesis_test(item.obj):
            item.add_marker("slow")


def pytest_collection_finish():
    """Thousands of tests are millions of objects, which every `gc.collect()` of a test would walk through."""
    gc.collect()
    gc.freeze()
