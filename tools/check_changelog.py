"""Check the fragments of ``changelog.d/``, and that the newest release in CHANGELOG.md is the package's version."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START = "<!-- towncrier release notes start -->\n"
MAX_LINE, MAX_LINES = 120, 12


def sections(pyproject: str) -> dict[str, str]:
    """Give the heading of each type of fragment, by the type, as towncrier is configured."""
    return {one["directory"]: one["name"] for one in tomllib.loads(pyproject)["tool"]["towncrier"]["type"]}


def fragment_problems(fragments: Mapping[str, str], types: Mapping[str, str]) -> list[str]:
    """List what is wrong with fragments, given by file name."""
    problems = []
    for name, text in sorted(fragments.items()):
        parts = re.fullmatch(r"(\d+|\+[\w-]+)\.(\w+)\.md", name)
        if parts is None or parts[2] not in types:
            problems.append(f"{name}: the name must be ISSUE.TYPE.md or +WORDS.TYPE.md, TYPE one of {', '.join(types)}")
        if not text.strip():
            problems.append(f"{name}: it is empty")
        if text.startswith(("-", "*", "#")):
            problems.append(f"{name}: it must begin with a sentence; the release adds the bullet and the heading")
        if len(text.splitlines()) > MAX_LINES or any(len(line) > MAX_LINE for line in text.splitlines()):
            problems.append(f"{name}: at most {MAX_LINES} lines of {MAX_LINE} characters")
    return problems


def changelog_problems(changelog: str, version: str, headings: Mapping[str, str]) -> list[str]:
    """List what is wrong with the text of a changelog."""
    problems = []
    if START not in changelog:
        problems.append(f"the line {START.strip()!r} is missing, after which a release is put")
    releases = re.findall(r"^## \[(.+?)\](.*)$", changelog, flags=re.M)
    if not releases or releases[0][0] != version:
        problems.append(f"the first release must be [{version}], which is h5stream/_version.py")
    problems += [
        f"release [{name}] needs a date, ' - YYYY-MM-DD'"
        for name, rest in releases
        if not re.fullmatch(r" - \d{4}-\d\d-\d\d", rest)
    ]
    known = set(headings.values())
    problems += [
        f"unknown section '### {name}' (known: {', '.join(sorted(known))})"
        for name in re.findall(r"^### (.+)$", changelog, flags=re.M)
        if name not in known
    ]
    return problems


def main() -> int:
    """Print the problems; the exit status is 1 if there are any."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "h5stream" / "_version.py").read_text())
    if version is None:
        print("h5stream/_version.py: no __version__")
        return 1
    headings = sections((ROOT / "pyproject.toml").read_text())
    files = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    fragments = {path.name: path.read_text() for path in files}
    problems = [f"changelog.d/{problem}" for problem in fragment_problems(fragments, headings)]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    problems += [f"CHANGELOG.md: {problem}" for problem in changelog_problems(changelog, version[1], headings)]
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
