"""What the README says is so: its code runs, its figures are those of the committed results, it stays short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_the_code_runs_and_prints_what_its_comment_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", README, flags=re.S):
        exec(compile(block, "README.md", "exec"), {})
    promised = re.search(r"print\(.*\)  # (.*)", README).group(1)
    assert capsys.readouterr().out.splitlines()[0] == promised


def test_it_stays_under_6_kb():
    assert len(README.encode()) < 6000


def test_its_table_and_the_pages_are_made_from_the_committed_results():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "bench_pages.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_gives_the_very_test_command_that_ci_runs():
    command = "python -m pip install -c constraints.txt '.[test]' && python -m pytest"
    assert command in README
    assert command in (ROOT / ".ci" / "run").read_text()
