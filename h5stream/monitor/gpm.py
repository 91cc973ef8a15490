"""SM activity and PCIe traffic from NVML's GPU performance monitoring (Hopper and later).

Utilisation only says that some kernel ran; GPM counts how many multiprocessors were busy. It works on pairs
of samples, and gives means over the time between them.

Source: ``nvmlGpmMetricsGet`` in the NVML API reference.
"""

from __future__ import annotations

import math
from typing import Any

Means = tuple[float | None, float | None]
"""The share of the multiprocessors that were busy, 0 to 1, and bytes a second over PCIe, between two samples."""


class GpmPair:
    """Two GPM samples of one device that take turns; owned by the thread of its `NvmlReader`.

    The device is the whole card, or the MIG instance of it that has NVML's number `gpu_instance`.
    """

    def __init__(self, api: Any, card: Any, gpu_instance: int | None) -> None:
        self._api, self._card, self._gpu_instance = api, card, gpu_instance
        self._samples: list[Any] = []
        # 19 kB of ctypes structure: made once, filled at every reading.
        self._request = api.c_nvmlGpmMetricsGet_t()
        self._has_first = False

    def read(self) -> Means | None:
        """Return the means since the reading before, or None the first time."""
        api = self._api
        while len(self._samples) < 2:
            self._samples.append(api.nvmlGpmSampleAlloc())
        earlier, later = self._samples
        if self._gpu_instance is None:
            api.nvmlGpmSampleGet(self._card, later)
        else:
            api.nvmlGpmMigSampleGet(self._card, self._gpu_instance, later)
        self._samples.reverse()
        if not self._has_first:
            self._has_first = True
            return None
        return self._between(earlier, later)

    def close(self) -> None:
        """Return the samples back to NVML."""
        for sample in self._samples:
            try:
                self._api.nvmlGpmSampleFree(sample)
            except self._api.NVMLError:
                break  # The driver has gone, and the samples with it.
        self._samples = []

    def _between(self, earlier: Any, later: Any) -> Means:
        api, request = self._api, self._request
        request.version = api.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = 2
        request.sample1, request.sample2 = earlier, later
        request.metrics[0].metricId = api.NVML_GPM_METRIC_SM_UTIL
        request.metrics[1].metricId = api.NVML_GPM_METRIC_PCIE_RX_PER_SEC
        api.nvmlGpmMetricsGet(request)
        busy, mebibytes = _value(request.metrics[0]), _value(request.metrics[1])
        # Drivers have given MIG instances a little over 100.
        return None if busy is None else min(busy / 100, 1.0), None if mebibytes is None else mebibytes * 2**20


def _value(metric: Any) -> float | None:
    """Return a metric's value; two samples without a clock tick between them make it not a number."""
    if metric.nvmlReturn or not math.isfinite(metric.value):
        return None
    return float(metric.value)
