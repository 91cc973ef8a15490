"""The changelog and its fragments are what a release needs."""

import sys
from pathlib import Path

import pytest
from support.each import for_each

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
pytest.importorskip("tools.check_changelog", reason="tools/ belongs to a checkout, not to an installed package")

from tools import check_changelog  # noqa: E402

HEADINGS = {"added": "Added", "fixed": "Fixed"}
CHANGELOG = f"# Changelog\n\n{check_changelog.START}\n## [0.3.0] - 2026-11-27\n\n### Added\n\n- A thing.\n"


def test_the_changelog_and_its_fragments_are_in_order(capsys):
    assert check_changelog.main() == 0, capsys.readouterr().out


def test_fragments_of_any_known_type_are_taken():
    fragments = {"12.added.md": "A folder is a source.\n", "+two-loops.fixed.md": "Two loops\nare fair.\n"}
    assert check_changelog.fragment_problems(fragments, HEADINGS) == []


@for_each(
    [
        ("folders.added.md", "A folder is a source.\n", "the name must be"),
        ("+folders.feature.md", "A folder is a source.\n", "the name must be"),
        ("+folders.added", "A folder is a source.\n", "the name must be"),
        ("+folders.added.md", "\n", "it is empty"),
        ("+folders.added.md", "- A folder is a source.\n", "it must begin with a sentence"),
        ("+folders.added.md", "x" * 121, "at most 12 lines of 120"),
        ("+folders.added.md", "x\n" * 13, "at most 12 lines of 120"),
    ]
)
def test_a_fragment_that_no_release_can_take_is_named(name, text, problem):
    (found,) = check_changelog.fragment_problems({name: text}, HEADINGS)
    assert found.startswith(f"{name}: {problem}")


def test_a_changelog_in_order_has_no_problems():
    assert check_changelog.changelog_problems(CHANGELOG, "0.3.0", HEADINGS) == []


@for_each(
    [
        (CHANGELOG.replace(check_changelog.START, ""), "0.3.0", "is missing"),
        (CHANGELOG, "0.4.0", "the first release must be [0.4.0]"),
        (CHANGELOG.replace(" - 2026-11-27", ""), "0.3.0", "needs a date"),
        (CHANGELOG.replace("Added", "New"), "0.3.0", "unknown section '### New'"),
    ]
)
def test_a_changelog_out_of_order_is_named(text, version, problem):
    (found,) = check_changelog.changelog_problems(text, version, HEADINGS)
    assert problem in found
