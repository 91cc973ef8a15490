"""Samples in Prometheus' text format: base units, ratios from 0 to 1, nothing where nothing is known.

Source: "Metric and label naming" of the Prometheus documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from h5stream.errors import MissingExtraError
from h5stream.monitor.figures import GPU_FIGURES, SYSTEM_FIGURES, value_at
from h5stream.monitor.sample import SystemSample

# Prometheus writes units out.
_UNITS = {"_per_s": "_per_second", "_w": "_watts", "_c": "_celsius", "_hz": "_hertz"}


def _client() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError as error:
        raise MissingExtraError(
            "Prometheus text needs prometheus-client, which is absent: pip install 'h5stream[prometheus]'"
        ) from error
    return prometheus_client


class PrometheusCollector:
    """Gives the newest sample, most often ``monitor.sample``, to a Prometheus registry whenever that is scraped.

    Examples
    --------
    Beside the metrics that a training script exports already::

        prometheus_client.REGISTRY.register(PrometheusCollector(monitor.sample))
        prometheus_client.start_http_server(9100)
    """

    def __init__(self, newest: Callable[[], SystemSample]) -> None:
        self._newest = newest
        self._family = _client().core.GaugeMetricFamily

    def describe(self) -> list[Any]:
        """Name no metrics in advance, so that registering takes no sample."""
        return []

    def collect(self) -> Iterator[Any]:
        """Return one gauge for each figure that is known."""
        sample = self._newest()
        for figure in SYSTEM_FIGURES:
            value = value_at(figure.path, sample)
            if value is not None:
                yield self._family(_metric("h5stream_" + figure.name), figure.help, value=value)
        for figure in GPU_FIGURES:
            known = [(str(i), gpu, value_at(figure.path, sample, i)) for i, gpu in enumerate(sample.gpus)]
            gauge = self._family(_metric("h5stream_gpu_" + figure.name), figure.help, labels=["gpu", "uuid", "name"])
            for position, gpu, value in known:
                if value is not None:
                    gauge.add_metric([position, gpu.uuid, gpu.name], value)
            if gauge.samples:
                yield gauge
        yield from self._throttling(sample)

    def _throttling(self, sample: SystemSample) -> Iterator[Any]:
        gauge = self._family(
            "h5stream_gpu_throttled", "1 for each reason that holds the clocks back.", labels=["gpu", "uuid", "reason"]
        )
        for position, gpu in enumerate(sample.gpus):
            for reason in gpu.throttle_reasons or ():
                gauge.add_metric([str(position), gpu.uuid, reason], 1)
        if gauge.samples:
            yield gauge


def prometheus_text(sample: SystemSample) -> str:
    """Return one sample in the text format, for the node exporter's textfile collector or a page of one's own."""
    client = _client()
    registry = client.CollectorRegistry()
    registry.register(PrometheusCollector(lambda: sample))
    text: bytes = client.generate_latest(registry)
    return text.decode()


def _metric(name: str) -> str:
    for short, full in _UNITS.items():
        if name.endswith(short):
            return name.removesuffix(short) + full
    return name
