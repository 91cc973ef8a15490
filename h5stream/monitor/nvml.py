"""GPU readings through NVML; every value may be missing.

The only module that uses ``pynvml``. Unsupported values are None; a lost device reports that, and the others continue;
a driver that goes away raises `DriverGone`, once, with the reason.

Guarantees:
    An `NvmlReader` belongs to one thread: the one that opens it reads and closes it.
    NVML itself may block while the driver recovers; no lock may be held over a call into it.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple, TypedDict, TypeVar

from h5stream.monitor import GpuSample

# nvidia-smi's names for the bits of the clocks-event-reasons mask (nvml.h, nvmlClocksEventReasons).
THROTTLE_BITS = (
    *["gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown"],
    *["hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting"],
)

# Errors of the driver, and of one device; others concern a single call and may be temporary.
_GONE = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "LIB_RM_VERSION_MISMATCH")
_LOST = ("GPU_IS_LOST", "RESET_REQUIRED")


class _Figures(TypedDict, total=False):
    """Figures of a `GpuSample`."""

    utilization_ratio: float
    memory_used_bytes: int
    memory_total_bytes: int
    throttle_reasons: tuple[str, ...]
    power_w: float
    power_limit_w: float
    temperature_c: float
    sm_clock_hz: float
    memory_clock_hz: float
    sm_activity_ratio: float | None
    pcie_receive_bytes_per_s: float | None


# Functions with their arguments, newest first, of which the first that succeeds is used, and the figures made from its
# result; for a MIG instance itself, or for the whole card.
Reads = tuple[tuple[tuple[str, ...], Callable[[Any], _Figures]], ...]
_OF_DEVICE: Reads = (
    (("nvmlDeviceGetUtilizationRates",), lambda rates: {"utilization_ratio": rates.gpu / 100}),
    (  # version 2 excludes the driver's own share from "used"
        ("nvmlDeviceGetMemoryInfo nvmlMemory_v2", "nvmlDeviceGetMemoryInfo"),
        lambda memory: {"memory_used_bytes": int(memory.used), "memory_total_bytes": int(memory.total)},
    ),
)
_OF_CARD: Reads = (
    (
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        lambda mask: {"throttle_reasons": tuple(name for bit, name in enumerate(THROTTLE_BITS) if mask & 1 << bit)},
    ),
    (("nvmlDeviceGetPowerUsage",), lambda milliwatts: {"power_w": 1e-3 * milliwatts}),
    (("nvmlDeviceGetEnforcedPowerLimit",), lambda milliwatts: {"power_limit_w": 1e-3 * milliwatts}),
    (
        ("nvmlDeviceGetTemperatureV NVML_TEMPERATURE_GPU", "nvmlDeviceGetTemperature NVML_TEMPERATURE_GPU"),
        lambda degrees: {"temperature_c": float(degrees)},
    ),
    (("nvmlDeviceGetClockInfo NVML_CLOCK_SM",), lambda megahertz: {"sm_clock_hz": 1e6 * megahertz}),
    (("nvmlDeviceGetClockInfo NVML_CLOCK_MEM",), lambda megahertz: {"memory_clock_hz": 1e6 * megahertz}),
)

ResultT = TypeVar("ResultT")


class DriverGone(Exception):  # noqa: N818 - an event, not an error: machines without a GPU are ordinary
    """The driver is absent, or went away during use; the message has the reason."""


def installed_nvml() -> ModuleType:
    """Return nvidia-ml-py's module; importing it does not touch the driver."""
    return importlib.import_module("pynvml")


@dataclass(slots=True, kw_only=True)
class Device:
    """A card, or a MIG instance, with its handles and readings."""

    uuid: str  # ``GPU-...`` or ``MIG-...``
    name: str  # of the product
    parent_uuid: str | None = None  # the card of a MIG instance; None for a card
    gpu_instance_id: int | None = None  # NVML's number of a MIG instance
    pci_bus_id: str | None = None  # as in ``/sys/bus/pci/devices``; that of the card for a MIG instance
    handle: object = None
    card: object = None  # the handle of the whole card; the same as `handle` unless this is a MIG instance
    samples: list[object] = field(default_factory=list)  # two of GPM's, used alternately
    received: tuple[int, float] | None = None  # PCIe bytes so far, and the time


class NvmlReader:
    """Reads devices through NVML, by default nvidia-ml-py's; raises `DriverGone` without a working driver."""

    def __init__(self, api: Any = None) -> None:
        self._api = api or installed_nvml()
        try:
            self._api.nvmlInit()
        except self._api.NVMLError as error:
            raise DriverGone(f"no NVIDIA driver: {error}") from None
        self._gone, self._lost = (
            [getattr(self._api, f"NVML_ERROR_{one}") for one in names] for names in (_GONE, _LOST)
        )
        self.devices = list(self._enumerate())  # every card in NVML's order, each followed by its MIG instances
        self.watched: list[Device] = []  # the devices to read

    def close(self) -> None:
        """Free NVML's buffers and shut it down; harmless after the driver has gone."""
        with contextlib.suppress(self._api.NVMLError):
            for sample in [one for device in self.devices for one in device.samples]:
                self._api.nvmlGpmSampleFree(sample)
            self._api.nvmlShutdown()

    def read(self) -> tuple[GpuSample, ...]:
        """Read every watched device; after a `DriverGone`, only `close` may be called."""
        return tuple(map(self._read_device, self.watched))

    def ask(self, function: str, *arguments: object) -> Any:
        """Return the result of an NVML function; None if it fails, or the driver or the library lacks it."""
        with contextlib.suppress(self._api.NVMLError):
            return self._try(getattr(self._api, function), *arguments)

    def _enumerate(self) -> Iterator[Device]:
        ask = self.ask
        for index in range(ask("nvmlDeviceGetCount") or 0):
            card = ask("nvmlDeviceGetHandleByIndex", index)
            if card is None or (uuid := ask("nvmlDeviceGetUUID", card)) is None:
                continue  # A lost card has neither; continue with the others.
            name, pci = ask("nvmlDeviceGetName", card) or "unnamed GPU", ask("nvmlDeviceGetPciInfo", card)
            # The kernel writes ``0000:17:00.0`` for NVML's ``00000000:17:00.0``.
            bus = None if pci is None else pci.busId.lower()[-12:]
            yield Device(uuid=uuid, name=name, pci_bus_id=bus, handle=card, card=card)
            mode = ask("nvmlDeviceGetMigMode", card)
            for place in range((mode and mode[0] and ask("nvmlDeviceGetMaxMigDeviceCount", card)) or 0):
                handle = ask("nvmlDeviceGetMigDeviceHandleByIndex", card, place)
                if handle is None or (instance := ask("nvmlDeviceGetUUID", handle)) is None:
                    continue  # The numbers of instances have gaps.
                yield Device(
                    uuid=instance,
                    name=ask("nvmlDeviceGetName", handle) or name,
                    parent_uuid=uuid,
                    gpu_instance_id=ask("nvmlDeviceGetGpuInstanceId", handle),
                    pci_bus_id=bus,
                    handle=handle,
                    card=card,
                )

    def _read_device(self, device: Device) -> GpuSample:
        try:
            return GpuSample(uuid=device.uuid, name=device.name, **self._values(device))
        except self._api.NVMLError as error:
            return GpuSample(uuid=device.uuid, name=device.name, unavailable=str(error))

    def _values(self, device: Device) -> _Figures:
        values: _Figures = {}
        for handle, reads in ((device.handle, _OF_DEVICE), (device.card, _OF_CARD)):
            for calls, figures in reads:
                answers = (self._named(call, handle) for call in calls)
                if (answer := next((one for one in answers if one is not None), None)) is not None:
                    values |= figures(answer)
        rates = self._try(self._gpm, device)
        busy, received = rates or (None, None)
        return values | {"sm_activity_ratio": busy, "pcie_receive_bytes_per_s": self._pcie(device, received)}

    def _named(self, call: str, handle: object) -> Any:
        """Call a function with its constants; None if an older nvidia-ml-py lacks them."""
        function, *constants = (getattr(self._api, name, None) for name in call.split())
        return function and self._try(function, handle, *constants)

    def _gpm(self, device: Device) -> tuple[float | None, float | None] | None:
        """Return the share of busy multiprocessors, and PCIe bytes per second, since the last reading; None first."""
        api, is_first = self._api, not device.samples
        if not api.nvmlGpmQueryDeviceSupport(device.card).isSupportedDevice:
            return None
        while len(device.samples) < 2:
            device.samples.append(api.nvmlGpmSampleAlloc())
        earlier, later = device.samples
        if device.gpu_instance_id is None:
            api.nvmlGpmSampleGet(device.card, later)
        else:
            api.nvmlGpmMigSampleGet(device.card, device.gpu_instance_id, later)
        device.samples.reverse()
        if is_first:
            return None
        request = api.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = api.NVML_GPM_METRICS_GET_VERSION, 2
        request.sample1, request.sample2 = earlier, later
        request.metrics[0].metricId = api.NVML_GPM_METRIC_SM_UTIL
        request.metrics[1].metricId = api.NVML_GPM_METRIC_PCIE_RX_PER_SEC
        api.nvmlGpmMetricsGet(request)
        # Two samples without a clock tick between them give NaN.
        busy, mebibytes = (
            None if metric.nvmlReturn or not math.isfinite(metric.value) else float(metric.value)
            for metric in request.metrics[:2]
        )
        # Drivers report slightly more than 100 for some MIG instances.
        return None if busy is None else min(busy / 100, 1.0), None if mebibytes is None else mebibytes * 2**20

    def _pcie(self, device: Device, from_gpm: float | None) -> float | None:
        """Return the rate of the card's byte counter, or of GPM; MIG instances use GPM, which excludes neighbours."""
        if device.parent_uuid is not None:
            return from_gpm
        count = self._try(self._pcie_counter, device.card)
        before, now = device.received, None if count is None else (count, time.monotonic())
        device.received = now
        if before is None or now is None or now[0] < before[0]:
            return from_gpm
        return float(now[0] - before[0]) / max(now[1] - before[1], 1e-9)

    def _pcie_counter(self, card: object) -> int | None:
        api = self._api
        value = api.nvmlDeviceGetFieldValues(card, [api.NVML_FI_DEV_PCIE_COUNT_RX_BYTES])[0]
        if value.nvmlReturn:
            raise api.NVMLError(value.nvmlReturn)
        # A 32-bit counter wraps every 4 GiB, ten times a second at full rate, so it is useless.
        wide = value.valueType == api.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        return int(value.value.ullVal) if wide else None

    def _try(self, call: Callable[..., ResultT], *arguments: object) -> ResultT | None:
        """Return the result of a call; None if it fails; raise NVML's error if the device is lost."""
        try:
            return call(*arguments)
        except self._api.NVMLError as error:
            value = getattr(error, "value", -1)
            if value in self._gone:
                raise DriverGone(f"the NVIDIA driver went away: {error}") from None
            if value in self._lost:  # only this device is lost
                raise
            return None


class DriverFacts(NamedTuple):
    """The driver and its devices."""

    version: str | None = None  # None without a driver
    cuda_version: tuple[int, int] | None = None  # the newest CUDA that the driver runs, as (major, minor)
    devices: tuple[Device, ...] = ()  # every card and MIG instance in NVML's order
    reason: str | None = None  # why there is no driver, or None


def driver_facts(api: object = None) -> DriverFacts:
    """Query the driver once, and shut NVML down."""
    try:
        with contextlib.closing(NvmlReader(api)) as reader:
            version = reader.ask("nvmlSystemGetDriverVersion") or "unknown version"
            cuda = reader.ask("nvmlSystemGetCudaDriverVersion")
            runs = None if cuda is None else (cuda // 1000, cuda % 1000 // 10)
            return DriverFacts(version, runs, tuple(reader.devices))
    except DriverGone as gone:
        return DriverFacts(reason=str(gone))


# --- which devices CUDA would show -----------------------------------------------------------------------


_UNSURE = (
    "unlike GPUs and CUDA_DEVICE_ORDER is not PCI_BUS_ID: which card an index names is known only after "
    "CUDA has started in this process; shown in PCI order until then"
)


def visible_devices(
    devices: Sequence[Device], environment: Mapping[str, str], cuda_uuids: Sequence[str] = ()
) -> tuple[list[str], str | None]:
    """Return the devices that a process sees, in CUDA's order, and a note if this is uncertain or none is visible."""
    cards = [one.uuid for one in devices if one.parent_uuid is None]
    parts = {card: [one.uuid for one in devices if one.parent_uuid == card] or [card] for card in cards}
    # A card in MIG mode is represented by its first instance.
    shown = {one.uuid: parts.get(one.uuid, [one.uuid])[0] for one in devices}
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    tokens = None if listed is None else [token.strip() for token in listed.split(",")]
    if cuda_uuids and not (tokens and tokens[0].startswith("MIG-")):
        bare = {uuid.partition("-")[2]: first for uuid, first in shown.items()}
        if all(uuid in bare for uuid in cuda_uuids):
            return [bare[uuid] for uuid in cuda_uuids], None
    uuids = [uuid for card in cards for uuid in parts[card]]
    if tokens is not None:
        # As CUDA does: up to the first invalid name, or the first MIG instance; duplicates make the list invalid.
        valid = itertools.takewhile(bool, (_named(token, [*shown], cards) for token in tokens))
        uuids = [shown[one] for one in valid]
        uuids = uuids[: next((k for k, uuid in enumerate(uuids, 1) if uuid.startswith("MIG-")), None)]
        if not uuids or len(set(uuids)) < len(uuids):
            return [], f"CUDA_VISIBLE_DEVICES={','.join(tokens)!r} shows none of the {len(cards)} GPUs"
    by_index = tokens is None or any(token.isdecimal() for token in tokens)
    differ = len({one.name for one in devices if one.parent_uuid is None}) > 1
    unsure = by_index and differ and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    return uuids, _UNSURE if unsure else None


def _named(token: str, uuids: Sequence[str], cards: Sequence[str]) -> str:
    """Return the device that an entry names, by the beginning of its UUID or the index of a card; else an empty one."""
    matches = [uuid for uuid in uuids if uuid.lower().startswith(token.lower())]
    if not token.startswith(("GPU-", "MIG-")):
        matches = list(cards[int(token) :][:1]) if token.isdecimal() else []
    return matches[0] if len(matches) == 1 else ""
