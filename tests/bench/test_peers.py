"""Every peer that is here gives each row once with the source's bytes; what is measured is the same work."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
pytest.importorskip("bench.peers", reason="bench/ belongs to a checkout, not to an installed package")

from bench.peers.measure import Checker, checksum_of  # noqa: E402
from bench.peers.on_hdf5 import Ours  # noqa: E402
from bench.peers.registry import PEERS  # noqa: E402
from bench.peers.source import sums_path, write_source  # noqa: E402
from bench.programs import PROGRAMS, check  # noqa: E402

ROWS = 1500
# Workers that fork beside reader threads, and peers that warn of themselves: not what is tested here.
IN_A_CHILD = {peer.name for peer in PEERS if peer.needs or re.search("[1-9] workers", peer.name)}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("peers") / "source.h5"
    write_source(path, ROWS, "gzip4_shuffle")
    return path


@pytest.mark.parametrize("name", [peer.name for peer in PEERS if peer.name not in IN_A_CHILD])
def test_a_peer_gives_each_row_once_with_its_label_and_bytes(source, tmp_path, name):
    peer = next(peer for peer in PEERS if peer.name == name)
    sums = np.load(sums_path(source))
    checker = Checker(sums)
    for x, y in peer.open(peer.prepare(source, tmp_path), 512):
        assert x.shape == (len(y), 256)
        checker.add(x, y)
    assert checker.rows == ROWS
    assert checker.checksum == checksum_of(sums, np.arange(ROWS))


def test_the_checker_notices_a_wrong_byte_and_a_row_that_comes_twice(source):
    sums = np.load(sums_path(source))
    x, y = next(iter(Ours().open(source, 100)))
    Checker(sums).add(x, y)
    changed = x.clone()
    changed[3, 4] += 1
    with pytest.raises(ValueError, match="bytes differ"):
        Checker(sums).add(changed, y)
    checker = Checker(sums)
    checker.add(x[:50], y[:50])
    with pytest.raises(ValueError, match="twice"):
        checker.add(x[49:], y[49:])


# --- programs that are measured: both readers give equal samples -------------------------------------------------


def written(name, stored, folder):
    program = PROGRAMS[name]
    program.write(folder / program.file, stored, 0, *program.tiny)
    return program


@pytest.mark.parametrize(("name", "stored"), [(name, one) for name in PROGRAMS for one in PROGRAMS[name].stored])
@pytest.mark.filterwarnings("ignore")  # those of the programs
def test_both_readers_give_each_sample_once_with_the_same_bytes(name, stored, tmp_path):
    if absent := PROGRAMS[name].absent():
        pytest.skip(f"needs {', '.join(absent)}")
    assert check(written(name, stored, tmp_path), tmp_path, workers=0)["samples"] > 7


def test_samples_that_differ_in_one_value_are_noticed(tmp_path, monkeypatch):
    program = written("labram", "none", tmp_path)
    opened = program.ours

    def changed(batch):
        batch[3, 2, 1] += 1
        return batch

    monkeypatch.setattr(program, "ours", lambda path, **how: opened(path, **how, batch_transform=changed))
    with pytest.raises(AssertionError, match="samples are not theirs"):
        check(program, tmp_path, workers=0)
