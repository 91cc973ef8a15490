"""What `train.py` says at its end: was the machine used well? Pass, fail, or n/a where it is not known."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import torch

log = logging.getLogger("train")

LEAST_SAMPLES = 5  # Fewer than this many of the monitor's samples say nothing about utilisation.


def checklist(args, trainer, seen):
    """Give (verdict, what was asked, what was found) for each figure; a verdict of None is n/a."""
    gpu = seen.gpus[0] if seen and seen.gpus else None
    busy = gpu.utilization_ratio if gpu else None
    if busy and busy.count < LEAST_SAMPLES:
        busy, why = None, f"only {busy.count} samples"
    else:
        why = (seen.gpu_reason if seen else "no monitor") or "the driver does not say"
    rate = trainer.rows / trainer.elapsed_s if trainer.elapsed_s else None
    wait = trainer.wait_s / trainer.elapsed_s if trainer.elapsed_s else None
    used, total, what = peak_memory(gpu, seen)
    peak = f"{used / 2**30:.1f} of {total / 2**30:.1f} GiB {what}" if used and total else "no monitor"
    return [
        line("GPU utilisation over 90 %", busy and busy.mean, lambda v: v > 0.9, f"{busy.mean:.0%}" if busy else why),
        line(f"samples/s over {args.least_rate:,.0f}", rate, lambda v: v > args.least_rate, f"{rate or 0:,.0f}"),
        line("data wait under 5 %", wait, lambda v: v < 0.05, f"{wait or 0:.1%} of the training time"),
        line("peak memory under 95 %", used and total and used / total, lambda v: v < 0.95, peak),
    ]


def line(asked, value, holds, found):
    return None if value is None else bool(holds(value)), asked, found


def peak_memory(gpu, seen):
    """Give used and total bytes: the GPU's, or the machine's where there is none."""
    if gpu and gpu.memory_used_bytes:
        return gpu.memory_used_bytes.high, gpu.memory_total_bytes, "GPU memory"
    if seen and seen.ram_used_bytes:
        return seen.ram_used_bytes.high, seen.ram_total_bytes, "main memory"
    return None, None, ""


def print_checklist(rows):
    log.info("\nChecklist")
    for verdict, asked, found in rows:
        log.info("  %-4s  %-26s %s", {True: "pass", False: "fail", None: "n/a"}[verdict], asked, found)
    if any(verdict is False for verdict, _, _ in rows):
        log.info("  What failed is a question for `h5stream diagnose`, `h5stream doctor` and docs/troubleshooting.md")


def write_report(args, trainer, trained, validated, rows):
    """Write what the run found, for programs."""
    figures = {
        "options": {name: value for name, value in vars(args).items() if not isinstance(value, Path)},
        "rows_per_s": trainer.rows / trainer.elapsed_s if trainer.elapsed_s else None,
        "data_wait_share": trainer.wait_s / trainer.elapsed_s if trainer.elapsed_s else None,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if args.device.startswith("cuda") else None,
        "steps": trainer.done.steps,
        "training_loss": trained[0] if trained else None,
        "validation_loss": validated[0],
        "checklist": [{"passed": verdict, "asked": asked, "found": found} for verdict, asked, found in rows],
    }
    args.report.write_text(json.dumps(figures, indent=1) + "\n")
