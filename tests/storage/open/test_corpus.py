"""Every dataset of the shared corpus of real files equals h5py byte for byte, or is refused with one of our errors.

The folder lies beside the checkout, ``../shared/corpus``; the environment variable ``H5STREAM_CORPUS`` names
another place.
"""

import json
import os
from pathlib import Path

import pytest
from support.forking import Forked

TESTS = Path(__file__).resolve().parents[2]
CORPUS = Path(os.environ.get("H5STREAM_CORPUS") or TESTS.parent.parent / "shared" / "corpus")
FILES = sorted(p for p in CORPUS.rglob("*") if p.is_file() and p.suffix not in (".md", ".tsv"))

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(
        not FILES, reason=f"the corpus of real files is not at {CORPUS} (H5STREAM_CORPUS names another)"
    ),
]

# Of a file's datasets that differ in their bytes alone so many are read by default; some files have a thousand.
MOST_ALIKE = 1

# Of the files so many are read by default, in their order: those of one program lie together.
EVERY = 3

# Two smaller files of the same program are read by default, and test_main_job.py reads as many rows.
SLOW = {"manycontigs.cool"}

# Files that h5py opens but lists no dataset of.
REFUSED_FILES = {"ExternalDataError", "FieldLengthError", "SourceError", "NotHDF5Error", "TruncatedFileError"}

# Types and shapes that no batch can hold, by design; h5py may well read them.
REFUSED_BY_DESIGN = (
    "so it has no rows",
    "references point into the file",
    "opaque bytes",
    "wider than any torch dtype",
    "a member of variable length, which only whole datasets may have",
    "an array of compounds inside a compound",
)


@pytest.fixture(scope="module")
def reader():
    """Start the program that reads files in guarded children, and give a function that asks it."""
    program = TESTS / "support" / "corpus_reader.py"
    with Forked(program.read_text(), path=program) as process:

        def ask(path, most):
            process.stdin.write(json.dumps([str(path), most]) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask


def case(number, path):
    is_slow = path.name in SLOW or number % EVERY > 0
    return pytest.param(path, id=str(path.relative_to(CORPUS)), marks=[pytest.mark.slow] * is_slow)


@pytest.mark.parametrize("most", [MOST_ALIKE, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("path", [case(number, path) for number, path in enumerate(FILES)])
def test_every_dataset_of_a_file_equals_h5py_or_is_refused(path, most, reader):
    report = reader(path, most)
    assert "died" not in report, f"the child that read it ended with {report['died']}"
    wrong = []
    for found in report["datasets"]:
        if found["outcome"] == "wrong":
            wrong.append(f"{found['name']}: {found['message']} (h5py: {found['h5py'] or 'reads it'})")
        elif found.get("error") == "UnsupportedFieldError" and not found["h5py"]:
            assert any(why in found["message"] for why in REFUSED_BY_DESIGN), found["message"]
    assert not wrong, "\n".join(wrong)
    if not report["datasets"]:
        assert report["file"] in REFUSED_FILES
