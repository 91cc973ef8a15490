"""The public door: what it offers, and that opening it does nothing."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import h5stream
from h5stream.base.texts import missing_extra
from h5stream.loader.arguments import OLD
from h5stream.storage.layout.field_options import WAY_OUTS

PUBLIC = """
Balanced Between Bounds Boxes ChunkBatchSampler Crop Ends Field H5Dataset H5StreamError H5StreamLoader Ids Lengths
Mixture Objects Padding Ragged Rows SampleNumber Sequences Sized SourceNumber Table Take Values Weighted __version__
collate diagnose errors repack stage staged tune
"""

WATCHED_IMPORT = """
import logging, os, sys, threading
import torch, h5py, hdf5plugin, imagecodecs  # what they do on import is theirs

reads = []

def asked_by_us(frame):
    while frame:
        folders = frame.f_code.co_filename.split(os.sep)
        if "h5stream" in folders:
            return True
        frame = frame.f_back
    return False

class Watched(type(os.environ)):
    def __getitem__(self, key):
        if asked_by_us(sys._getframe(1)):
            reads.append(key)
        return super().__getitem__(key)

os.environ.__class__ = Watched
before = set(sys.modules)
import h5stream
h5stream.H5StreamLoader
print(*set(sys.modules) - before)
import psutil
for name in h5stream.__all__:  # they are looked up at the first use
    getattr(h5stream, name)
new = {name.split(".")[0] for name in set(sys.modules) - before}

assert not reads, reads
assert not torch.cuda.is_initialized(), "CUDA was initialised"
assert not new & {"typer", "matplotlib"}, new
assert [t.name for t in threading.enumerate()] == ["MainThread"], threading.enumerate()
assert logging.root.handlers == [] and logging.getLogger("h5stream").handlers == []
"""


def test_the_public_names_are_these():
    assert h5stream.__all__ == PUBLIC.split()
    assert [name for name in PUBLIC.split() if not hasattr(h5stream, name)] == []


def test_the_changelog_says_what_to_write_for_every_old_argument():
    root = Path(__file__).parents[2]
    released = re.findall(r"^### Upgrading\n(.*?)(?=^##)", (root / "CHANGELOG.md").read_text(), flags=re.M | re.S)
    upgrading = "".join([*released, *(path.read_text() for path in (root / "changelog.d").glob("*.upgrading.md"))])
    missing = [name for name in [*OLD, *WAY_OUTS] if not re.search(rf"\b{name}=", upgrading)]
    assert missing == []


@pytest.fixture(scope="module")
def imported():
    """A new process that imports the loader, says which modules that took, and imports all."""
    return subprocess.run([sys.executable, "-c", WATCHED_IMPORT], capture_output=True, text=True, check=False)


def test_importing_does_nothing_but_define_names(imported):
    assert imported.returncode == 0, imported.stderr
    assert len(imported.stdout.splitlines()) == 1


ROOMS = "advice baseline cli mixture monitor profiles ray repacking results staging training workers.sample_engine"
LIBRARIES = "matplotlib obstore prometheus_client psutil pynvml ray rich tomllib typer"
FOR_LATER = {*(f"h5stream.{room}" for room in ROOMS.split()), *LIBRARIES.split()}


def test_the_loader_imports_only_what_every_loader_needs(imported):
    loaded = set(imported.stdout.split())
    assert "h5stream.loader.loader" in loaded
    assert loaded & FOR_LATER == set()


WITHOUT_TERMINAL = """
import sys
import torch, hdf5plugin, imagecodecs, h5py, numpy as np  # what they import is theirs

BLOCKED, asked = {"typer", "rich", "psutil", "pynvml"}, []
for name in [name for name in sys.modules if name.split(".")[0] in BLOCKED]:
    del sys.modules[name]

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            asked.append(name)
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Blocked())
from h5stream import H5Dataset, H5StreamLoader

with h5py.File(sys.argv[1], "w") as file:
    file.create_dataset("x", data=np.arange(12), chunks=(4,), compression="gzip")
with H5StreamLoader(H5Dataset(sys.argv[1], ["x"]), batch_size=4, seed=1, num_workers=1) as loader:
    rows = sorted(int(row) for batch in loader for row in batch[0])
    loader.stats()
assert rows == list(range(12)), rows
print(*asked, *BLOCKED & {name.split(".")[0] for name in sys.modules})
"""


def test_the_core_needs_nothing_that_is_for_terminals_or_watching_the_machine(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TERMINAL, tmp_path / "x.h5"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_a_name_that_is_not_offered_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'h5stream' has no attribute 'load'"):
        _ = h5stream.load


def test_without_ray_its_reader_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        h5stream.errors.MissingExtraError,
        match=r"pip install 'ray\[data\]', or, in a clone of h5stream, .* '\.\[ray\]'",
    ):
        importlib.import_module("h5stream.ray").read_hdf5("a.h5", "x")


# --- the README stays short and true; test_docs.py runs its code, tests/bench/test_reports.py checks its table


ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_code_runs_and_prints_what_its_comment_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", README, flags=re.S):
        exec(compile(block, "README.md", "exec"), {})
    promised = re.search(r"print\(.*\)  # (.*)", README).group(1)
    assert capsys.readouterr().out.splitlines()[0] == promised


def test_it_stays_under_6_kb():
    assert len(README.encode()) < 6000


def test_it_gives_the_very_test_command_that_ci_runs():
    command = "python -m pip install -c constraints.txt '.[test]' && python -m pytest"
    assert command in README
    assert command in (ROOT / ".ci" / "run").read_text()


def test_what_an_error_says_to_install_is_what_the_extra_brings():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in ("remote", "ray", "plot", "prometheus", "tensorboard"):
        package = re.search(r"pip install '?([\w-]+)", str(missing_extra("this needs it", extra))).group(1)
        assert [re.match(r"[\w-]+", one).group() for one in extras[extra]] == [package]
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "h5stream").rglob("*.py"), ROOT / "README.md"]
    assert [page for page in pages if "h5stream[" in page.read_text()] == []
