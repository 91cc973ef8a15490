"""What `h5stream inspect` prints for the files of every program of the gallery runs, and says what a sample is."""

import inspect
import re
import sys
from pathlib import Path

import h5py
import pytest
from typer.testing import CliRunner

from h5stream.cli.app import app

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
pytest.importorskip("examples.gallery", reason="examples/ belongs to a checkout, not to an installed package")
from examples.gallery import PROGRAMS

KINDS = re.compile(r"\b(Sequences|Objects|Rows|Table|Boxes)\(")
OTHERWISE = {
    "SeisBench": "a catalogue beside the file says where traces lie; a few buckets of one length may be columns",
    "ImageCaptioning": "five captions for each image lie beside the file; of the file alone a sample is an image",
    "PyTorchVQA": "questions lie beside the file; of the file alone a sample is an image's features",
    "EarthFormer": "which 13 frames of an event are a sample is said by a catalogue beside the files",
    "RoboticsDiffusionTransformer": "actions of the next 16 steps beside one image are the program's choice",
    "Poseidon": "which pairs of times are a sample is the program's choice",
    "VideoClips": "frames or clips: how many frames are a sample is the program's choice",
}
"""Of which programs the printed kind of samples is another than theirs, and why the files cannot tell."""

QUICK = {"BigGAN", "Robomimic", "ManiSkill", "D4RL", "DnCNN", "Mace", "TorchAni", "Ssl4Mis", "WatChMaL", "AnnData"}
"""One of each layout; the default run is to be short."""


def given(folder):
    """Give what a user names of a program's files: a pattern for those that are numbered, or a file."""
    patterns = {}
    for path in sorted(folder.rglob("*")):
        if h5py.is_hdf5(path):
            path = path.relative_to(folder)
            patterns.setdefault(str(path.with_name(re.sub(r"\d+", "*", path.stem) + path.suffix)), []).append(path)
    return [pattern if len(paths) > 1 else str(paths[0]) for pattern, paths in patterns.items()]


def printed(path):
    """Give the lines that are printed first."""
    shown = CliRunner().invoke(app, ["inspect", path], catch_exceptions=False)
    lines = shown.stdout.splitlines()
    last = lines.index("        ...  # your training step")
    first = next(k for k in range(last, 0, -1) if lines[k] and not lines[k].startswith("    ")) + 1
    return "\n".join(line.removeprefix("    ") for line in lines[first : last + 1])


def kind_in(text):
    found = KINDS.search(text)
    return found[1] if found else "rows"


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS]
)
def test_lines_for_the_files_of_a_program_run_and_say_what_a_sample_is(name, tmp_path, monkeypatch):
    program, kinds = PROGRAMS[name], set()
    program.make(tmp_path, 2)
    monkeypatch.chdir(tmp_path)
    for path in given(Path()):
        text = printed(path)
        kinds.add(kind_in(text))
        scope = {}
        exec(compile(text.replace("    ...  # your training step", "    break"), "<printed>", "exec"), scope)
        with scope["loader"] as loader:
            batch = next(iter(loader))
        assert len(batch) > 0, text
    wanted = kind_in(inspect.getsource(program.ours))
    assert (wanted in kinds) != (name in OTHERWISE), text
