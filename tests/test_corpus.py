"""Every dataset of the shared corpus of real files equals h5py byte for byte, or is refused with one of our errors.

The folder lies beside the checkout, ``../shared/corpus``; the environment variable ``H5STREAM_CORPUS`` names
another place. Run with ``-s`` to see how many datasets went which way.
"""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
CORPUS = Path(os.environ.get("H5STREAM_CORPUS") or TESTS.parent.parent / "shared" / "corpus")
FILES = sorted(p for p in CORPUS.rglob("*") if p.is_file() and p.suffix not in (".md", ".tsv"))

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(
        not FILES, reason=f"the corpus of real files is not at {CORPUS} (H5STREAM_CORPUS names another)"
    ),
]

# Files that h5py opens but lists no dataset of.
REFUSED_FILES = {"ExternalDataError", "FieldLengthError", "SourceError", "NotHDF5Error", "TruncatedFileError"}

# Types and shapes that no batch can hold, by design; h5py may well read them.
REFUSED_BY_DESIGN = (
    "so it has no rows",
    "references point into the file",
    "date and time types",
    "opaque bytes",
    "wider than any torch dtype",
    "a member of variable length, which only whole datasets may have",
    "an array of compounds inside a compound",
)


@pytest.fixture(scope="module")
def reader():
    """Start the program that reads files in guarded children, and give a function that asks it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    program = subprocess.Popen(
        # From Python 3.12 on forking beside other threads warns; here they are idle pools of NumPy and torch.
        [
            sys.executable,
            "-W",
            "error",
            "-W",
            "ignore:This process:DeprecationWarning",
            "-W",
            "ignore:the shuffle is weak:UserWarning",  # windows are tiny on purpose
            str(TESTS / "corpus_reader.py"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )

    def ask(path):
        program.stdin.write(f"{path}\n")
        program.stdin.flush()
        return json.loads(program.stdout.readline())

    with program:
        yield ask
        program.stdin.close()


@pytest.fixture(scope="module")
def tally():
    """Count the datasets by the way they went, and print the table at the end."""
    counts = collections.Counter()
    yield counts
    width = max((len(key) for key in counts), default=0)
    lines = [f"  {key:<{width}}  {count:>6,}" for key, count in sorted(counts.items(), key=lambda kv: -kv[1])]
    sys.stdout.write("\n".join(["", f"corpus: {sum(counts.values()):,} datasets of {len(FILES)} files", *lines, ""]))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(CORPUS)))
def test_every_dataset_of_a_file_equals_h5py_or_is_refused(path, reader, tally):
    report = reader(path)
    assert "died" not in report, f"the child that read it ended with {report['died']}"
    wrong = []
    for found in report["datasets"]:
        outcome = found["outcome"]
        tally[f"refused: {found['error']}" if outcome == "refused" else outcome] += 1
        if outcome == "wrong":
            wrong.append(f"{found['name']}: {found['message']} (h5py: {found['h5py'] or 'reads it'})")
        elif found.get("error") == "UnsupportedFieldError" and not found["h5py"]:
            assert any(why in found["message"] for why in REFUSED_BY_DESIGN), found["message"]
    assert not wrong, "\n".join(wrong)
    if not report["datasets"]:
        tally["no dataset in the file"] += 1
        assert report["file"] in REFUSED_FILES


def test_the_corpus_has_every_way_of_reading(tally, request):
    # After the files: a corpus of which nothing was read directly would have tested nothing.
    if sum("test_every_dataset_of_a_file" in item.name for item in request.session.items) < len(FILES):
        pytest.skip("only some of the corpus's files were asked for")
    assert min(tally["direct"], tally["decoded"], tally["h5py"]) > 50
