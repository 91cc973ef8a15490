"""Make `docs/command-line.md` of what the commands say of themselves; ``--check`` only compares.

python tools/command_line_page.py [--check]
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "command-line.md"
MADE = "<!-- made by tools/command_line_page.py from the commands' own help: change that -->\n"


def page() -> str:
    """Give the page; typer writes it, in HTML's characters and with Python's names of types."""
    words = [sys.executable, "-m", "typer", "h5stream.cli.app", "utils", "docs", "--name", "h5stream"]
    made = subprocess.run([*words, "--title", "Command line"], capture_output=True, text=True, check=True).stdout
    plain = re.sub(r"^(\* `[^`<]+) <[^`]+>`", r"\1`", html.unescape(made), flags=re.M)
    plain = re.sub(r"^(\* `[^`]+`: .*?)  \[", r"\1 [", plain, flags=re.M)
    first, commands, rest = plain.partition("**Commands**")
    rest = rest.replace("* `--help`: Show this message and exit.\n", "")  # which each has
    plain = first + commands + re.sub(r"\*\*Options\*\*:\n\n(?!\*)", "", rest)
    return MADE + plain.replace(";  x", "; x").strip() + "\n"


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
