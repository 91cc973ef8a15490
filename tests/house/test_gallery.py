"""Every program of the gallery: its samples, as its authors read them and through h5stream."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from support.batches import flat

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
pytest.importorskip("examples.gallery", reason="examples/ belongs to a checkout, not to an installed package")

from examples.gallery import PROGRAMS  # noqa: E402
from tools import gallery_page  # noqa: E402


def plain(value):
    """Give a value without axes of one element, which a field of one step keeps."""
    if isinstance(value, str | bytes):
        return value if isinstance(value, bytes) else value.encode()
    return np.squeeze(value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value))


def key(sample):
    """Give what two equal samples have in common."""
    found = {name: plain(value) for name, value in sample.items()}
    return tuple(
        (name, value if isinstance(value, bytes) else (value.shape, value.astype(value.dtype).tobytes()))
        for name, value in sorted(found.items())
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_samples_are_those_of_the_program(name, tmp_path):
    program = PROGRAMS[name]
    program.make(tmp_path)
    theirs = program(tmp_path)
    shuffled = program.ours(tmp_path, batch_size=5, shuffle=True)
    assert len(shuffled.dataset) == len(theirs) > 4
    if program.drawn:
        possible = {key(sample) for sample in theirs.possible()}
        epochs = [{key(sample) for sample in flat(shuffled)} for _ in range(2)]
        assert epochs[0] | epochs[1] <= possible
        assert epochs[0] != epochs[1]
        return
    expected = [key(theirs[k]) for k in range(len(theirs))]
    assert [key(sample) for sample in flat(program.ours(tmp_path, batch_size=5))] == expected
    assert Counter(key(sample) for sample in flat(shuffled)) == Counter(expected)


def test_the_page_is_what_programs_figures_and_verdicts_say():
    assert gallery_page.PAGE.read_text() == gallery_page.page()


def test_verdicts_are_those_of_the_gallery():
    verdicts, figures = gallery_page.verdicts(), gallery_page.measured()[1]
    assert len({one["repository"] for one in verdicts}) == len(verdicts) == 106
    for one in verdicts:
        assert one["verdict"] in ("fast", "slower", "impossible")
        assert (one["as"] in PROGRAMS) == (one["verdict"] != "impossible"), one
        assert one["missing"] or one["verdict"] == "fast", one
    own = {one["repository"]: one for one in verdicts}
    for name, program in PROGRAMS.items():
        assert own[program.repository]["as"] == name
        if name in figures:
            assert (figures[name]["ratio"] >= 1) == (own[program.repository]["verdict"] == "fast"), name
    assert set(figures) == set(PROGRAMS)
