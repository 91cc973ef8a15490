"""The words of docs/design.md are few, each is explained once, and the code uses them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "design.md").read_text()
ROWS = re.findall(r"^\| ([a-z ]+) \| .+ \|$", PAGE.partition("## Words")[2], flags=re.M)
WORDS = [word for word in ROWS if word != "word"]
CODE = "\n".join(path.read_text().lower() for path in (ROOT / "h5stream").rglob("*.py"))
KERNELS = "\n".join(path.read_text().lower() for path in (ROOT / "h5stream" / "compiled").glob("*.h"))


def test_a_newcomer_learns_forty_words():
    assert 30 <= len(WORDS) == len(set(WORDS)) <= 40


def test_the_code_uses_every_word():
    # Each begins with its own letters, which `re` looks for at once.
    assert [word for word in WORDS if len(re.findall(rf"{word}(?<!\w{word})s?\b", CODE)) < 10] == []


def test_what_the_page_names_is_in_the_code():
    names = {name for name in re.findall(r"`([\w.]+)[^`]*`", PAGE) if re.search("[a-z][A-Z]|[a-z]_[a-z]", name)}
    missing = [name for name in names if name.split(".")[-1].lower() not in CODE + KERNELS]
    assert missing == []


def test_its_files_are_there():
    named = set(re.findall(r"`((?:storage|samples|order|engine|routes|tests|tools|bench|docs)/[\w./]*)`", PAGE))
    homes = [ROOT, ROOT / "h5stream"]
    assert [name for name in sorted(named) if not any((home / name).exists() for home in homes)] == []
