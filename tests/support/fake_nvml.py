"""A stand-in for the module pynvml: cards made of numbers, and every call can be made to fail.

``fake.fail("nvmlDeviceGetPowerUsage", fake.NVML_ERROR_NOT_SUPPORTED)`` fails that call from then on, for
every card or for one; ``fake.calls`` records what was called, ``fake.gate`` can hold a call up.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import pynvml

GIB = 1 << 30


@dataclass(eq=False)
class Card:
    uuid: str
    name: str = "Fake H100"
    utilization: int = 85
    memory: tuple[int, int] = (12 * GIB, 24 * GIB)  # used, total
    sm_util: float = 42.0
    pcie_mib_per_s: float = 100.0
    received: int = 0
    wide_counter: bool = True
    power_mw: int = 350_500
    limit_mw: int = 700_000
    temperature: int = 61
    clocks: dict[int, int] = field(default_factory=lambda: {1: 1980, 2: 2619})
    throttle: int = 0b100
    gpm: bool = True
    bus_id: str = "00000000:17:00.0"
    mig: list[Instance] = field(default_factory=list)
    mig_mode: bool | None = None
    failures: dict[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class Instance:
    uuid: str
    gi: int
    memory: tuple[int, int] = (1 * GIB, 10 * GIB)
    parent: Card | None = None


class FakeError(Exception):
    def __init__(self, value):
        super().__init__(f"error {value}")
        self.value = value


class FakeNvml:
    NVMLError = FakeError
    locals().update({name: number for name, number in vars(pynvml).items() if name.startswith("NVML_")})
    nvmlMemory_v2 = pynvml.nvmlMemory_v2  # noqa: N815

    def __init__(self, *cards, init_error=None):
        self.cards = list(cards)
        self.init_error = init_error
        self.everywhere = {}
        self.calls = Counter()
        self.open_samples = 0
        self.initialised = 0
        self.threads = set()
        self.gate = None  # an Event: calls wait for it, as when the driver hangs
        self.reached = threading.Event()
        for card in cards:
            for instance in card.mig:
                instance.parent = card

    def fail(self, call, code, device=None):
        (self.everywhere if device is None else device.failures)[call] = code

    def vanish(self):
        """The driver goes: every call fails from now on."""
        self.everywhere["*"] = self.NVML_ERROR_DRIVER_NOT_LOADED

    def _enter(self, call, device=None):
        self.calls[call] += 1
        self.threads.add(threading.get_ident())
        if self.gate is not None:
            self.reached.set()
            self.gate.wait()
        for failures in (self.everywhere, getattr(device, "failures", {})):
            code = failures.get("*", failures.get(call))
            if code is not None:
                raise FakeError(code)
        if call != "nvmlInit" and not self.initialised:
            raise FakeError(self.NVML_ERROR_UNINITIALIZED)
        return device

    def nvmlInit(self):
        self._enter("nvmlInit")
        if self.init_error is not None:
            raise FakeError(self.init_error)
        self.initialised += 1

    def nvmlShutdown(self):
        self._enter("nvmlShutdown")
        self.initialised -= 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return self._enter("nvmlDeviceGetHandleByIndex", self.cards[index])

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        self._enter("nvmlDeviceGetMemoryInfo" if version is None else "nvmlDeviceGetMemoryInfo_v2", handle)
        used, total = handle.memory
        # Version 1 counts what the driver reserves as used.
        return SimpleNamespace(used=used if version else used + GIB // 2, total=total)

    def nvmlDeviceGetFieldValues(self, handle, fields):
        assert fields == [self.NVML_FI_DEV_PCIE_COUNT_RX_BYTES]
        self._enter("nvmlDeviceGetFieldValues", handle)
        kind = self.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG if handle.wide_counter else self.NVML_VALUE_TYPE_UNSIGNED_INT
        value = SimpleNamespace(ullVal=handle.received, uiVal=handle.received & 0xFFFFFFFF)
        return [SimpleNamespace(nvmlReturn=0, valueType=kind, value=value)]

    # GPM: a sample is a list that holds the card or the instance it was taken from.

    def nvmlGpmSampleAlloc(self):
        self._enter("nvmlGpmSampleAlloc")
        self.open_samples += 1
        return []

    def nvmlGpmSampleFree(self, sample):
        self._enter("nvmlGpmSampleFree")
        self.open_samples -= 1

    @staticmethod
    def c_nvmlGpmMetricsGet_t():
        metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(4)]
        return SimpleNamespace(version=0, numMetrics=0, sample1=None, sample2=None, metrics=metrics)

    def nvmlGpmMetricsGet(self, request):
        self._enter("nvmlGpmMetricsGet")
        assert request.version == self.NVML_GPM_METRICS_GET_VERSION
        assert request.sample1 is not request.sample2
        card, instance = request.sample2
        assert request.sample1 == [card, instance], "both samples must be of the same device"
        values = {self.NVML_GPM_METRIC_SM_UTIL: card.sm_util, self.NVML_GPM_METRIC_PCIE_RX_PER_SEC: card.pcie_mib_per_s}
        for metric in request.metrics[: request.numMetrics]:
            metric.nvmlReturn = card.failures.get("gpm metric", 0)
            metric.value = values[metric.metricId]


def mig_mode(card):
    if card.mig_mode is None and not card.mig:
        raise FakeError(FakeNvml.NVML_ERROR_NOT_SUPPORTED)
    return [int(bool(card.mig))] * 2


def instance_of(card, index):
    """Like a real card: the numbers have gaps."""
    if index % 2 or index // 2 >= len(card.mig):
        raise FakeError(FakeNvml.NVML_ERROR_NOT_FOUND)
    return card.mig[index // 2]


def utilization(handle):
    if isinstance(handle, Instance):
        raise FakeError(FakeNvml.NVML_ERROR_NOT_SUPPORTED)
    return SimpleNamespace(gpu=handle.utilization, memory=0)


# What is asked of a device, and what it answers.
ANSWERS = {
    "nvmlDeviceGetUUID": lambda handle: handle.uuid,
    "nvmlDeviceGetName": lambda one: one.name if isinstance(one, Card) else f"{one.parent.name} MIG 1g.10gb",
    "nvmlDeviceGetPciInfo": lambda card: SimpleNamespace(busId=card.bus_id),
    "nvmlDeviceGetMigMode": mig_mode,
    "nvmlDeviceGetMaxMigDeviceCount": lambda card: 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": instance_of,
    "nvmlDeviceGetGpuInstanceId": lambda instance: instance.gi,
    "nvmlDeviceGetUtilizationRates": utilization,
    "nvmlDeviceGetPowerUsage": lambda card: card.power_mw,
    "nvmlDeviceGetEnforcedPowerLimit": lambda card: card.limit_mw,
    "nvmlDeviceGetTemperatureV": lambda card, sensor: card.temperature,
    "nvmlDeviceGetTemperature": lambda card, sensor: card.temperature,
    "nvmlDeviceGetClockInfo": lambda card, clock: card.clocks[clock],
    "nvmlDeviceGetCurrentClocksEventReasons": lambda card: card.throttle,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda card: card.throttle,
    "nvmlGpmQueryDeviceSupport": lambda card: SimpleNamespace(isSupportedDevice=int(card.gpm)),
    "nvmlGpmSampleGet": lambda card, sample: sample.__setitem__(slice(None), [card, None]),
    "nvmlGpmMigSampleGet": lambda card, instance, sample: sample.__setitem__(slice(None), [card, instance]),
}
# And of the driver.
SYSTEM = {"nvmlSystemGetDriverVersion": lambda fake: "570.86.15", "nvmlDeviceGetCount": lambda fake: len(fake.cards)}
SYSTEM |= {"nvmlSystemGetCudaDriverVersion": lambda fake: 12080}


def _method(call, answer):
    def asked(self, *given):
        self._enter(call, *given[:1])
        return answer(*given or (self,))

    return asked


for _call, _answer in {**ANSWERS, **SYSTEM}.items():
    setattr(FakeNvml, _call, _method(_call, _answer))
