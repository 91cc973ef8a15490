"""What holds for the whole suite: how much is drawn, and what the garbage collector need not look at again."""

import functools
import gc
import logging
import os
import signal
import sys
import time

import hypothesis
import pytest
import typer.main
from support.amounts import FULL

# What is compiled is kept, also where a container's environment says otherwise: hundreds of processes begin in a run,
# and each would compile the package anew, in a second.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Typer would build all commands anew for each that a test runs, in a tenth of a second. `typer.testing` takes what is
# here when a test first imports it.
typer.main.get_command = functools.cache(typer.main.get_command)


# A test's garbage is collected at its end. Where a turn comes in a thread that fetches from a store, and is skipped,
# all that was set aside below is looked at again, in a quarter of a second: so turns are few.
gc.set_threshold(20_000)

# One more than the project's CI has processors, since some tests wait for a process or a time, and not as many as a
# machine has: each may take a GiB or two.
PROCESSES = 3


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Share a run of more than one file among processes; ``-n`` says otherwise, ``-n 0`` not at all.

    Each begins with half of the tests, in their order, and one that is done takes half of what the other has left: what
    a file makes for all its tests is made once, or twice where a file is parted. Here and not among `addopts`, which
    pytest would not understand without pytest-xdist.
    """
    option = config.option
    if not config.pluginmanager.hasplugin("xdist") or hasattr(config, "workerinput"):
        return
    if option.numprocesses is None and not (option.usepdb or option.collectonly or _is_one_file(config.args)):
        option.numprocesses = PROCESSES
    if option.numprocesses and option.dist == "no":
        option.dist = "worksteal"
        # Each process is one of as many as there are processors; torch's own threads, which wait by spinning, take from
        # each other what all of them need.
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def _is_one_file(arguments):
    return len({argument.partition("::")[0] for argument in arguments}) == 1 and ".py" in arguments[0]


def _is_full(config):
    return config.getoption("markexpr") == "slow"


def pytest_configure(config):
    logging.getLogger("h5stream.defaults").disabled = True  # once per process, whichever test comes first
    hypothesis.settings.load_profile(FULL if _is_full(config) else "a share")
    # In the background a shell lets it be ignored, and every process that a test interrupts would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect no garbage meanwhile: thousands of tests are made, and none of them is any."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Look for examples in docstrings of the package alone: tests have none, and each process would look for them."""
    return [one for one in (yield) if isinstance(one, pytest.Module)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Let `-m slow` run every property too, with all of its examples: see `amounts.examples`."""
    for item in items if _is_full(config) else ():
        if isinstance(item, pytest.Function) and hypothesis.is_hypothesis_test(item.obj):
            item.add_marker("slow")


SLOW_S = 0.03
"""A collection that takes longer walks through more than what a test can leave."""


@pytest.fixture(scope="module", autouse=True)
def quick_collections():
    """What is there before a file's tests stays: every `gc.collect()` in one would walk through millions of objects.

    So does what a test imports, and what was set free by a collection in a thread that fetches from a store. The list
    has an entry for each time that this was kept too: what is garbage by then is collected after the file's last test.
    """
    gc.collect()
    gc.freeze()
    late = []
    yield late
    if late:
        gc.unfreeze()
    gc.collect()  # garbage of this file's own fixtures
    gc.freeze()


@pytest.fixture(autouse=True)
def own_garbage(quick_collections):
    """Collect a test's garbage at its end: what it left open is then its own failure, and not that of a later test."""
    yield
    start = time.process_time()
    gc.collect()
    if time.process_time() - start > SLOW_S:
        gc.freeze()
        quick_collections.append("more was frozen")


@pytest.fixture(autouse=True)
def seeded():
    """Begin each test with torch's generator in one state: a loader without ``seed=`` draws its seed from it."""
    import torch  # here, since the process that shares the tests among others has no use for it

    torch.manual_seed(0)


@pytest.fixture
def sample(tmp_path, monkeypatch):
    """A file of a thousand rows that are streamed, and not kept in memory as small ones are."""
    from support.inner import stream_all
    from support.sample_files import write_sample

    stream_all(monkeypatch)
    return write_sample(tmp_path)


@pytest.fixture(params=["kept", "streamed"])
def either_way(request, monkeypatch):
    """Run a test with small datasets kept in memory, and with all of them streamed."""
    from support.inner import stream_all

    if request.param == "streamed":
        stream_all(monkeypatch)


@pytest.fixture
def server(folder):
    """A server of the objects in the folder that a test has."""
    from support.object_server import ObjectServer  # with bench/, which belongs to a checkout

    with ObjectServer(folder) as server:
        yield server


@pytest.fixture
def uncollected():
    """Leave what keeps itself alive where it is: its memory would come back at some time, or never."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
