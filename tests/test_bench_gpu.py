"""`bench/gpu.py` runs from end to end without a GPU, so that it runs when one is lent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ONLY = "feed_share,steady_state,delayed_consumers"  # the others take a minute, most of it the naive loader's


def test_the_gpu_benchmark_runs_on_the_processor_and_finds_no_wrong_batch(tmp_path):
    out = tmp_path / "gpu.json"
    subprocess.run(
        [sys.executable, ROOT / "bench" / "gpu.py", "--device", "cpu", "--quick", "--only", ONLY, "--out", out],
        check=True,
        capture_output=True,
        timeout=200,
    )
    report = json.loads(out.read_text())
    assert report["delayed_consumers"]["wrong"] == 0
    assert report["delayed_consumers"]["batches"] >= 48
    assert report["feed_share"]["feed_gb_per_s"] > 0
    assert report["feed_share"]["feed_alone_gb_per_s"] > 0
    steady = report["steady_state"]
    for kind in ("feed", "device_window"):
        assert steady[f"{kind}_held_bytes_after_second_epoch"] == steady[f"{kind}_held_bytes_after_last_epoch"]
    drawn = subprocess.run(
        [sys.executable, ROOT / "tools" / "bench_report.py", out], check=True, capture_output=True, text=True
    )
    assert "delayed consumers: batches" in drawn.stdout
