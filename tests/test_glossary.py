"""Every noun of the engine that a reader meets is explained in docs/design.md, once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from each import for_each

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("samples", "engine", "order", "device", "storage", "routes", "workers")

PAGE = (ROOT / "docs" / "design.md").read_text()
TABLES = re.findall(r"^\| word \| meaning \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, flags=re.M)
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for table in TABLES for line in table.splitlines()]
WORDS = Counter(word.strip() for row in ROWS for word in row[0].split(","))
NAMES = {name for row in ROWS for name in re.findall(r"`(\w+)`", row[1])}


def classes():
    """Yield the public classes of the rooms that bytes pass on their way; errors explain themselves."""
    for folder in FOLDERS:
        for path in sorted((ROOT / "h5stream" / folder).rglob("*.py")):
            for name in re.findall(r"^ *class (\w+)", path.read_text(), flags=re.M):
                if not re.search("^_|Error$|Warning$", name):
                    yield name


CLASSES = sorted(set(classes()))


def head(name):
    """Return the last word of a class's name, in the singular where it has one."""
    word = re.findall(r"[A-Z][a-z0-9]*", name)[-1].lower()
    return next((each for each in (word, word.removesuffix("s"), word.removesuffix("es")) if each in WORDS), word)


def test_there_is_a_glossary():
    assert len(WORDS) > 60
    assert len(CLASSES) > 60


@for_each(CLASSES)
def test_a_class_is_called_what_the_glossary_explains(name):
    """`RowsTask` is a task: its last word is explained, or its whole name is."""
    assert name in NAMES or head(name) in WORDS, f"docs/design.md, Words, explains neither {name} nor {head(name)!r}"


def test_a_word_is_explained_once():
    assert [word for word, times in WORDS.items() if times > 1] == []
