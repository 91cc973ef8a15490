"""The README stays short and true; tests/test_docs.py runs its code, tests/bench/test_reports.py checks its table."""

import re
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


def test_it_gives_the_very_test_command_that_ci_runs():
    command = "python -m pip install -c constraints.txt '.[test]' && python -m pytest"
    assert command in README
    assert command in (ROOT / ".ci" / "run").read_text()
