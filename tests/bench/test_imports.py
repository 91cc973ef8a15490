"""Every benchmark can be run: what it imports is there."""

from pathlib import Path

import forking

ROOT = Path(__file__).parents[2]
IMPORTED = "import importlib, sys; [importlib.import_module(f'bench.{name}') for name in sys.argv[2:]]"


def test_every_benchmark_is_imported():
    names = sorted(path.stem for path in (ROOT / "bench").glob("*.py"))
    done = forking.run(f"import sys; sys.path.insert(0, sys.argv[1]); {IMPORTED}", ROOT, *names)
    assert done.returncode == 0, done.stderr[-3000:]
