"""Make `docs/command-line.md` of what the commands say of themselves; ``--check`` only compares.

python tools/command_line_page.py [--check]
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "command-line.md"
MADE = "<!-- made by tools/command_line_page.py from the commands' own help: change that -->\n"
SEVERAL = 4
"""How many commands have what is said once."""


def page() -> str:
    """Give the page; typer writes it, in HTML's characters and with Python's names of types."""
    words = [sys.executable, "-m", "typer", "h5stream.cli.app", "utils", "docs", "--name", "h5stream"]
    made = subprocess.run([*words, "--title", "Command line"], capture_output=True, text=True, check=True).stdout
    plain = re.sub(r"^(\* `[^`<]+) <[^`]+>`", r"\1`", html.unescape(made), flags=re.M)
    plain = re.sub(r"^(\* `[^`]+`: .*?)  \[", r"\1 [", plain, flags=re.M)
    first, commands, rest = plain.partition("**Commands**")
    listed, heading, sections = rest.partition("\n## ")
    return MADE + first + commands + listed + _said_once((heading + sections).replace(";  x", "; x"))


def _said_once(sections: str) -> str:
    """Say what several commands have once, ahead of them, and only name it in each."""
    sections = sections.replace("* `--help`: Show this message and exit.\n", "")
    counts = Counter(re.findall(r"^\* .*$", sections, flags=re.M))
    common = [line for line in dict.fromkeys(re.findall(r"^\* .*$", sections, flags=re.M)) if counts[line] >= SEVERAL]
    parts = []
    for section in sections.split("\n## ")[1:]:
        lines = section.splitlines()
        shared = [line for line in lines if line in common]
        own = "\n".join(line for line in lines if line not in common)
        own = re.sub(r"\*\*Usage\*\*:\n+```console\n\$ (.*)\n```", r"`\1`", own)
        own = re.sub(r"\*\*(Options|Arguments)\*\*:\n*(?=\*\*|\Z)", "", own)
        names = ", ".join(f"`{line.split('`')[1].split()[0]}`" for line in shared)
        parts.append(f"\n## {own.strip()}\n" + (f"\nAlso: {names} ([above](#common-options)).\n" if shared else ""))
    return "\n\n## Common options\n\n" + "\n".join(common) + "\n" + "".join(parts)


def main() -> int:
    """Write the page, or compare it."""
    made = page()
    if "--check" in sys.argv[1:]:
        same = PAGE.exists() and PAGE.read_text() == made
        if not same:
            print(f"{PAGE} is not what the commands say; run python tools/command_line_page.py")
        return 0 if same else 1
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
