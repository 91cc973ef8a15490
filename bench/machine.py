"""What a results file says about where it was made."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from h5stream.base import limits

PACKAGES = ("torch", "h5py", "hdf5plugin", "numpy", "imagecodecs")


def describe(more_versions: dict[str, str] | None = None) -> dict[str, Any]:
    """Give machine, versions and date, as every results file begins."""
    return {
        "machine": {
            "cpu": _cpu(),
            "cpus": limits.cpus(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": f"{platform.system()} {platform.machine()}",
            "load_before": round(os.getloadavg()[0], 2),
        },
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in PACKAGES}
        | (more_versions or {}),
        "when": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()
