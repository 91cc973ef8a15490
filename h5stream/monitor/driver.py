"""Facts about the NVIDIA driver that do not change while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from h5stream.monitor.nvml import DriverGone, NvmlApi, NvmlReader
from h5stream.monitor.visible import DeviceName


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """The driver and its devices."""

    version: str | None = None
    """The driver's version, None without a driver."""
    cuda_version: tuple[int, int] | None = None
    """The newest CUDA that the driver runs, as (major, minor)."""
    devices: tuple[DeviceName, ...] = ()
    """Every card and MIG instance in NVML's order."""
    reason: str | None = None
    """Why there is no driver, or None."""


def driver_facts(api: NvmlApi | None = None) -> DriverFacts:
    """Ask the driver once and give NVML back.

    Examples
    --------
    >>> facts = driver_facts()
    >>> (facts.version is None) == (facts.reason is not None)
    True
    """
    try:
        reader = NvmlReader(api)
    except DriverGone as gone:
        return DriverFacts(reason=str(gone))
    try:
        return DriverFacts(
            version=reader.driver_version() or "unknown version",
            cuda_version=reader.cuda_version(),
            devices=tuple(reader.list_devices()),
        )
    except DriverGone as gone:
        return DriverFacts(reason=str(gone))
    finally:
        reader.close()
