"""`bench/gpu.py` runs from end to end without a GPU, so that nothing but CUDA itself is new where there is one."""

import json
from pathlib import Path

from support import forking

ROOT = Path(__file__).resolve().parents[2]
ONLY = "feed_share,steady_state,delayed_consumers"  # the others take a minute, most of it the naive loader's


def script(name, *arguments):
    """Run a script of the checkout; give what it printed."""
    path = ROOT / name
    process = forking.Forked(path.read_text(), *arguments, path=path)
    out, err = process.communicate(200)
    assert process.returncode == 0, err
    return out


def test_the_gpu_benchmark_runs_on_the_processor_and_finds_no_wrong_batch(tmp_path):
    out = tmp_path / "gpu.json"
    script("bench/gpu.py", "--device", "cpu", "--quick", "--only", ONLY, "--out", out)
    report = json.loads(out.read_text())["results"]
    assert report["delayed_consumers"]["wrong"] == 0
    assert report["delayed_consumers"]["batches"] >= 48
    assert report["feed_share"]["feed_gb_per_s"] > 0
    steady = report["steady_state"]
    assert steady["held_bytes_after_second_epoch"] == steady["held_bytes_after_last_epoch"]
    assert "delayed consumers: batches" in script("tools/bench_report.py", out)
