"""Check that CHANGELOG.md follows Keep a Changelog and that its newest release is the package's version."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Performance", "Upgrading"}


def problems(changelog: str, version: str) -> list[str]:
    """List what is wrong with the text of a changelog, nothing if all is well."""
    found = []
    releases = re.findall(r"^## \[(.+?)\](.*)$", changelog, flags=re.M)
    if not releases or releases[0][0] != "Unreleased":
        found.append("the first release heading must be '## [Unreleased]'")
    numbered = [(name, rest) for name, rest in releases if name != "Unreleased"]
    if version not in [name for name, _ in numbered] and "### " not in changelog:
        found.append(f"neither [Unreleased] nor [{version}] says anything")
    found += [
        f"release [{name}] needs a date, ' - YYYY-MM-DD'"
        for name, rest in numbered
        if not re.fullmatch(r" - \d{4}-\d\d-\d\d", rest)
    ]
    found += [
        f"unknown section '### {name}' (known: {', '.join(sorted(SECTIONS))})"
        for name in re.findall(r"^### (.+)$", changelog, flags=re.M)
        if name not in SECTIONS
    ]
    if "### Performance" not in changelog:
        found.append("there must be a '### Performance' section")
    return found


def main() -> int:
    """Print the problems; the exit status is 1 if there are any."""
    version_text = (ROOT / "h5stream" / "_version.py").read_text()
    version = re.search(r'__version__ = "(.+)"', version_text)
    if version is None:
        print("h5stream/_version.py: no __version__")
        return 1
    found = problems((ROOT / "CHANGELOG.md").read_text(), version.group(1))
    for problem in found:
        print(f"CHANGELOG.md: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
