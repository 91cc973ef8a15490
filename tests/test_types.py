"""What a type checker says of a user's script: a wrong word of an argument that takes a few is an error."""

import pytest

api = pytest.importorskip("mypy.api")

CONFIG = """
[mypy]
[mypy-torch.*,numpy.*,h5py.*,PIL.*,pandas.*,scipy.*,rich.*,typer.*,concurrent.*,asyncio.*,multiprocessing.*]
follow_imports = skip
follow_imports_for_stubs = True
ignore_missing_imports = True

[mypy-h5stream.*]
# What they give is looked at, not how they come by it.
ignore_errors = True
"""

ARGUMENTS = {
    "Field('x', ragged={!r})": "pad",
    "Field('x', take=h5stream.Take(pad={!r}))": "edge",
    "Field('x', take=h5stream.Take(axis={!r}))": "rows",
    "Field('x', decode={!r})": "jpeg",
    "Crop(8, at={!r})": "center",
    "Sequences(8, pad={!r})": "zeros",
    "Sequences(8, tail={!r})": "shift",
    "Sequences(8, starts={!r})": "random",
    "Sequences(8, draw={!r})": "rows",
    "Sequences(8, lengths={!r})": "shortest",
    "Boxes((8,), draw={!r})": "segments",
    "Boxes((8,), pad={!r})": "reflect",
    "Table(row=[0], pad={!r})": "edge",
    "Objects('*', missing={!r})": "skip",
    "Mixture({{}}, [], stop={!r})": "all",
    "H5StreamLoader('a.h5', 8, window={!r})": "all",
    "H5StreamLoader('a.h5', 8, keep={!r})": "never",
    "H5StreamLoader('a.h5', 8, on_error={!r})": "skip",
    "ChunkBatchSampler(h5stream.H5Dataset('a.h5'), 8, window={!r})": "all",
    "repack('a.h5', 'b.h5', compress={!r})": "lz4",
}


def test_wrong_words_and_names_are_errors_of_types_and_right_ones_are_none(tmp_path):
    lines = ["import h5stream"]
    for call, word in ARGUMENTS.items():
        lines += [f"h5stream.{call.format(word)}", f"h5stream.{call.format('wrong')}"]
    for right, wrong in (("H5StreamLoader('a.h5').stats", "H5StreamLoader('a.h5').wrong"), ("Field", "wrong")):
        lines += [f"h5stream.{right}", f"h5stream.{wrong}"]
    (tmp_path / "script.py").write_text("\n".join(lines) + "\n")
    (tmp_path / "mypy.ini").write_text(CONFIG)
    options = ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(tmp_path / "cache")]
    said, crashed, _ = api.run([*options, str(tmp_path / "script.py")])
    assert not crashed, crashed
    found = [line for line in said.splitlines() if "script.py:" in line and " error: " in line]
    numbers = [int(line.partition("script.py:")[2].split(":")[0]) for line in found]
    assert numbers == list(range(3, len(lines) + 1, 2)), said
    assert all("wrong" in line or "No overload variant" in line for line in found), said
