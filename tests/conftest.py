"""What holds for the whole suite: how much is drawn, and what the garbage collector need not look at again."""

from __future__ import annotations

import gc

import hypothesis
import pytest
from amounts import FULL


def _is_full(config):
    return config.getoption("markexpr") == "slow"


def pytest_configure(config):
    hypothesis.settings.load_profile(FULL if _is_full(config) else "a share")


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
