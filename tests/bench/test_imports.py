"""Every benchmark can be run: what it imports is there."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPORTED = "import importlib, sys; [importlib.import_module(f'bench.{name}') for name in sys.argv[1:]]"


def test_every_benchmark_is_imported():
    names = sorted(path.stem for path in (ROOT / "bench").glob("*.py"))
    done = subprocess.run([sys.executable, "-c", IMPORTED, *names], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
