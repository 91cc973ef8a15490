"""A sample as one line of text, and the number formats that every view of the monitor shares."""

from __future__ import annotations

from h5stream.monitor.sample import SystemSample
from h5stream.units import text_of_bytes

NA = "n/a"
_GIB = 1 << 30


def percent(ratio: float | None, digits: int = 1) -> str:
    """Return a ratio as a percentage, or ``n/a``.

    Examples
    --------
    >>> percent(0.4521), percent(0.854, 0), percent(None)
    ('45.2%', '85%', 'n/a')
    """
    return NA if ratio is None else f"{100 * ratio:.{digits}f}%"


def amount(used: int | None, total: int | None) -> str:
    """Give memory as used/total and its share, in units of 2**30 bytes, or ``n/a``.

    Examples
    --------
    >>> amount(int(12.3 * 2**30), 24 * 2**30)
    '12.3/24.0GiB(51.2%)'
    """
    if used is None or not total:
        return NA
    return f"{used / _GIB:.1f}/{total / _GIB:.1f}GiB({percent(used / total)})"


def size(nbytes: float | None, per: str = "") -> str:
    """Give bytes, or bytes a second with ``"/s"``, or ``n/a``.

    Examples
    --------
    >>> size(3 << 20), size(1e9, "/s"), size(None)
    ('3.00 MiB', '954 MiB/s', 'n/a')
    """
    return NA if nbytes is None else text_of_bytes(nbytes) + per


def scaled(value: float | None, unit: str) -> str:
    """Return a number with a decimal prefix, or ``n/a``.

    Examples
    --------
    >>> scaled(1.98e9, "Hz"), scaled(340, "W"), scaled(None, "W")
    ('1.98 GHz', '340 W', 'n/a')
    """
    if value is None:
        return NA
    for prefix in ("", "k", "M", "G"):
        if abs(value) < 999.5:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} T{unit}"


def format_line(sample: SystemSample, device: int = 0) -> str:
    """Write the machine's state as one line, for a progress bar.

    Parameters
    ----------
    sample : SystemSample
        What to show.
    device : int, default 0
        Which GPU, by its position in CUDA's order.

    Returns
    -------
    str
        Utilisation and memory of the GPU, processors and memory of the machine; ``n/a`` for what is not known.

    Examples
    --------
    >>> from h5stream.monitor.sample import GpuSample, HostSample
    >>> gib = 2**30
    >>> gpu = GpuSample(uuid="GPU-1", name="A", utilization_ratio=0.85,
    ...                 memory_used_bytes=int(12.3 * gib), memory_total_bytes=24 * gib)
    >>> host = HostSample(cpu_ratio=0.452, ram_used_bytes=int(18.41 * gib), ram_total_bytes=64 * gib)
    >>> format_line(SystemSample(time_s=0, gpus=(gpu,), host=host))
    'GPU: 85% | VRAM:12.3/24.0GiB(51.2%) | CPU: 45.2% | RAM:18.4/64.0GiB(28.8%)'
    >>> format_line(SystemSample(time_s=0, host=host))
    'GPU: n/a | VRAM:n/a | CPU: 45.2% | RAM:18.4/64.0GiB(28.8%)'
    """
    gpu = sample.gpu(device)
    vram = amount(gpu.memory_used_bytes, gpu.memory_total_bytes) if gpu else NA
    host = sample.host
    return (
        f"GPU: {percent(gpu.utilization_ratio if gpu else None, 0)} | VRAM:{vram} | "
        f"CPU: {percent(host.cpu_ratio)} | RAM:{amount(host.ram_used_bytes, host.ram_total_bytes)}"
    )
