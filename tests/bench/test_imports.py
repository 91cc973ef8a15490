"""Every benchmark can be run: what it imports is there."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_benchmark_is_collected():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "bench", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    every = {path.name for path in (ROOT / "bench").glob("test_*.py")}
    assert every <= {line.partition("::")[0].rpartition("/")[2] for line in done.stdout.splitlines()}
