"""Every branch of the NVML reader, on cards that fail on demand."""

import re
import time
from pathlib import Path

import pynvml
import pytest
from support.each import for_each
from support.fake_nvml import GIB, Card, FakeNvml, Instance

from h5stream.monitor import nvml
from h5stream.monitor.nvml import Device, DriverGone, NvmlReader, visible_devices


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests turn by hand."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def reader_of(fake, *uuids):
    reader = NvmlReader(fake)
    reader.watched = [one for one in reader.devices if one.uuid in (uuids or [card.uuid for card in fake.cards])]
    return reader


def read_twice(reader):
    reader.read()
    return reader.read()


def test_every_value_comes_in_base_units(clock):
    card = Card("GPU-1", received=1000)
    reader = reader_of(FakeNvml(card))
    reader.read()
    card.received, clock[0] = 5_001_000, 102.0
    (gpu,) = reader.read()
    known = {"uuid": "GPU-1", "name": "Fake H100", "unavailable": None, "throttle_reasons": ("sw_power_cap",)}
    known |= {"memory_used_bytes": 12 * GIB, "memory_total_bytes": 24 * GIB, "memory_ratio": 0.5}
    known |= {"utilization_ratio": 0.85, "sm_activity_ratio": 0.42, "pcie_receive_bytes_per_s": 2_500_000}
    known |= {"power_w": 350.5, "power_limit_w": 700.0, "temperature_c": 61}
    known |= {"sm_clock_hz": 1.98e9, "memory_clock_hz": 2.619e9}
    assert {name: getattr(gpu, name) for name in known} == known


GPM = ("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet", "gpm metric")
NOT_SUPPORTED = [
    *((call, "sm_activity_ratio") for call in GPM),
    ("nvmlDeviceGetUtilizationRates", "utilization_ratio"),
    ("nvmlDeviceGetPowerUsage", "power_w"),
    ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_w"),
    ("nvmlDeviceGetClockInfo", "sm_clock_hz"),
    ("nvmlDeviceGetClockInfo", "memory_clock_hz"),
]


@for_each(NOT_SUPPORTED)
def test_a_call_that_fails_makes_its_value_none_and_no_other(call, value):
    whole = read_twice(reader_of(FakeNvml(Card("GPU-1"))))[0]
    fake = FakeNvml(Card("GPU-1"))
    fake.fail(call, fake.NVML_ERROR_UNKNOWN)
    fake.fail(call, fake.NVML_ERROR_UNKNOWN, fake.cards[0])
    gpu = read_twice(reader_of(fake))[0]
    assert getattr(whole, value) is not None
    assert getattr(gpu, value) is None
    assert gpu.memory_used_bytes == whole.memory_used_bytes
    assert gpu.unavailable is None


MEMORY = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo")
CLOCKS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
NEW_AND_OLD = [
    (MEMORY, "memory_used_bytes", 12 * GIB + GIB // 2),
    (MEMORY, "memory_total_bytes", 24 * GIB),
    (("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"), "temperature_c", 61),
    (CLOCKS, "throttle_reasons", ("sw_power_cap",)),
]


@for_each(NEW_AND_OLD)
def test_an_old_driver_is_asked_by_the_old_call_and_where_both_fail_there_is_no_value(calls, value, by_old):
    fake = FakeNvml(Card("GPU-1"))
    for call, found in zip(calls, (by_old, None), strict=True):
        fake.fail(call, fake.NVML_ERROR_FUNCTION_NOT_FOUND)
        assert getattr(reader_of(fake).read()[0], value) == found


@for_each([FakeNvml.NVML_ERROR_GPU_IS_LOST, FakeNvml.NVML_ERROR_RESET_REQUIRED])
def test_a_lost_gpu_says_so_and_the_other_goes_on(code):
    lost, fine = Card("GPU-1"), Card("GPU-2")
    fake = FakeNvml(lost, fine)
    reader = reader_of(fake)
    fake.fail("nvmlDeviceGetUtilizationRates", code, lost)
    for gpus in (reader.read(), reader.read()):
        assert [gpu.uuid for gpu in gpus] == ["GPU-1", "GPU-2"]
        assert gpus[0].unavailable == f"error {code}"
        assert gpus[0].utilization_ratio is gpus[0].memory_used_bytes is None
        assert gpus[1].utilization_ratio == 0.85
    fake.cards[0].failures.clear()
    assert reader.read()[0].utilization_ratio == 0.85, "it may come back"


@for_each(["UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "LIB_RM_VERSION_MISMATCH"])
def test_a_driver_that_goes_away_is_told_with_its_reason(name):
    fake, code = FakeNvml(Card("GPU-1")), getattr(FakeNvml, f"NVML_ERROR_{name}")
    reader = reader_of(fake)
    fake.fail("*", code)
    with pytest.raises(DriverGone, match=f"went away: error {code}"):
        reader.read()
    reader.close()  # harmless


def test_a_card_without_handle_or_uuid_is_left_out():
    fake = FakeNvml(Card("GPU-1"), Card("GPU-2"), Card("GPU-3"))
    fake.fail("nvmlDeviceGetHandleByIndex", fake.NVML_ERROR_GPU_IS_LOST, fake.cards[0])
    fake.fail("nvmlDeviceGetUUID", fake.NVML_ERROR_UNKNOWN, fake.cards[1])
    fake.fail("nvmlDeviceGetName", fake.NVML_ERROR_UNKNOWN, fake.cards[2])
    fake.fail("nvmlDeviceGetPciInfo", fake.NVML_ERROR_UNKNOWN, fake.cards[2])
    (name,) = NvmlReader(fake).devices
    assert (name.uuid, name.name, name.pci_bus_id) == ("GPU-3", "unnamed GPU", None)


def test_driver_and_cuda_version_are_read_or_none_and_a_driver_that_vanishes_meanwhile_is_no_driver():
    fake = FakeNvml()
    facts = nvml.driver_facts(fake)
    assert (facts.version, facts.cuda_version, facts.reason) == ("570.86.15", (12, 8), None)
    fake.fail("nvmlSystemGetCudaDriverVersion", fake.NVML_ERROR_UNKNOWN)
    assert nvml.driver_facts(fake).cuda_version is None
    fake.fail("nvmlSystemGetDriverVersion", fake.NVML_ERROR_DRIVER_NOT_LOADED)
    assert nvml.driver_facts(fake).reason == "the NVIDIA driver went away: error 9"


@pytest.fixture
def parted():
    card = Card("GPU-1", mig=[Instance("MIG-a", gi=7), Instance("MIG-b", gi=9, memory=(2 * GIB, 10 * GIB))])
    return FakeNvml(card, Card("GPU-2", mig_mode=False))


def test_instances_stand_after_their_card(parted):
    names = NvmlReader(parted).devices
    assert [name.uuid for name in names] == ["GPU-1", "MIG-a", "MIG-b", "GPU-2"]
    assert [name.parent_uuid for name in names] == [None, "GPU-1", "GPU-1", None]
    assert names[2].gpu_instance_id == 9
    assert names[2].pci_bus_id == "0000:17:00.0"


def test_an_instance_has_its_own_memory_and_activity_its_cards_power_and_not_its_cards_counter(parted, clock):
    reader = reader_of(parted, "MIG-b")
    reader.read()
    parted.cards[0].received, clock[0] = 1 << 40, 101.0
    (gpu,) = reader.read()
    assert gpu.memory_used_bytes == 2 * GIB
    assert gpu.utilization_ratio is None
    assert (gpu.sm_activity_ratio, gpu.power_w) == (0.42, 350.5)
    assert gpu.pcie_receive_bytes_per_s == 100 * 2**20, "from GPM"
    assert (parted.calls["nvmlGpmMigSampleGet"], parted.calls["nvmlDeviceGetFieldValues"]) == (2, 0)


NOT_BELIEVED = [
    ({"received": 1000, "gpm": False}, None),  # the counter jumped back
    ({"wide_counter": False}, 100 * 2**20),  # from GPM
    ({"wide_counter": False, "gpm": False}, None),
]


@pytest.mark.parametrize(("facts", "rate"), NOT_BELIEVED)
def test_a_counter_of_received_bytes_that_cannot_be_right_is_not_believed(facts, rate, clock):
    card = Card("GPU-1", **facts)
    reader = reader_of(FakeNvml(card))
    reader.read()
    card.received, clock[0] = 10, clock[0] + 1.0
    assert reader.read()[0].pcie_receive_bytes_per_s == rate


def test_every_throttle_bit_has_nvidias_name():
    (gpu,) = reader_of(FakeNvml(Card("GPU-1", throttle=0x1FF))).read()
    assert gpu.throttle_reasons == nvml.THROTTLE_BITS
    theirs = {name.lower(): value for name, value in vars(pynvml).items() if "EventReason" in name}
    for bit, name in enumerate(nvml.THROTTLE_BITS):
        assert theirs["nvmlclockseventreason" + name.replace("_", "")] == 1 << bit


def test_the_fake_and_nvidia_ml_py_have_every_name_that_is_used():
    text = Path(nvml.__file__).read_text()
    names = set(re.findall(r"""(?:api\.|")(nvml[A-Z]\w+|c_nvml\w+|NVMLError)\b""", text))
    names |= set(re.findall(r"\bNVML_[A-Z]\w+", text)) - {"NVML_ERROR_"}
    assert len(names) > 30
    assert [name for name in names if not (hasattr(pynvml, name) and hasattr(FakeNvml, name))] == []


def test_gpm_works_on_nvidia_ml_pys_own_structures():
    class Typed(FakeNvml):
        c_nvmlGpmMetricsGet_t = staticmethod(pynvml.c_nvmlGpmMetricsGet_t)  # noqa: N815

        def nvmlGpmSampleAlloc(self):
            return pynvml.c_nvmlGpmSample_t()

        def nvmlGpmSampleGet(self, card, sample):
            assert isinstance(sample, pynvml.c_nvmlGpmSample_t)

        def nvmlGpmMetricsGet(self, request):
            assert [request.metrics[i].metricId for i in range(request.numMetrics)] == [2, 21]
            request.metrics[0].value, request.metrics[1].value = 50.0, 3.0

    (gpu,) = read_twice(reader_of(Typed(Card("GPU-1"))))
    assert gpu.sm_activity_ratio == 0.5
    assert gpu.pcie_receive_bytes_per_s is not None


# --- CUDA's view of the devices, from names and environment ------------------------------------------


A = Device(uuid="GPU-aa11", name="H100")
B = Device(uuid="GPU-ab22", name="H100")
C = Device(uuid="GPU-cc33", name="A10")
M1 = Device(uuid="MIG-m1", name="H100 MIG", parent_uuid=A.uuid)
M2 = Device(uuid="MIG-m2", name="H100 MIG", parent_uuid=A.uuid)


def seen(devices, listed=None, cuda=(), order="PCI_BUS_ID"):
    environment = {"CUDA_DEVICE_ORDER": order} if order else {}
    if listed is not None:
        environment["CUDA_VISIBLE_DEVICES"] = listed
    return visible_devices(devices, environment, cuda)


CARDS, PARTS = [A, B, C], [A, M1, M2, B]
LISTED = [
    (CARDS, None, ["GPU-aa11", "GPU-ab22", "GPU-cc33"]),
    (CARDS, "1", ["GPU-ab22"]),
    (CARDS, " 2 , 1 ", ["GPU-cc33", "GPU-ab22"]),
    (CARDS, "1,7,0", ["GPU-ab22"]),  # an index that does not exist ends the list
    (CARDS, "1,-1,0", ["GPU-ab22"]),
    (CARDS, "1,1", []),  # twice the same: CUDA shows nothing
    (CARDS, "", []),
    (CARDS, "NoDevFiles", []),
    (CARDS, "GPU-c,0", ["GPU-cc33", "GPU-aa11"]),
    (CARDS, "GPU-CC33", ["GPU-cc33"]),
    (CARDS, "GPU-a", []),  # ambiguous
    (CARDS, "GPU-zz", []),
    (PARTS, None, ["MIG-m1", "MIG-m2", "GPU-ab22"]),
    (PARTS, "MIG-m2,MIG-m1", ["MIG-m2"]),  # one instance is all that CUDA shows
    (PARTS, "0", ["MIG-m1"]),  # a card in MIG mode shows its first instance
    (PARTS, "1", ["GPU-ab22"]),
    (PARTS, "GPU-aa11", ["MIG-m1"]),
]


@for_each(LISTED)
def test_the_list_is_read_as_cuda_reads_it(devices, listed, expected):
    assert seen(devices, listed)[0] == expected


CUDA_SAYS = [
    ([A, B, C], "0,1", ["cc33", "aa11"], ("GPU-cc33", "GPU-aa11")),
    ([A, M1, M2], "MIG-m2", ["aa11"], ("MIG-m2",)),  # of a driver that names its card
    ([A, M1, M2], None, ["aa11"], ("MIG-m1",)),  # a card in MIG mode is its first instance
    ([A, B], "1", ["ffff"], ("GPU-ab22",)),  # unknown to NVML
]


@for_each(CUDA_SAYS)
def test_what_cuda_says_wins_over_the_environment(devices, listed, cuda, expected):
    assert seen(devices, listed, cuda=cuda)[0] == list(expected)


UNSURE = [
    ([A, C], "1", None, (), True),
    ([A, C], None, "FASTEST_FIRST", (), True),
    ([A, C], "1", "PCI_BUS_ID", (), False),
    ([A, B], "1", None, (), False),
    ([A, C], "GPU-aa11", None, (), False),
    ([A, C], "1", None, ("cc33",), False),
]


@for_each(UNSURE)
def test_unlike_cards_by_index_are_uncertain_until_cuda_has_started(devices, listed, order, cuda, unsure):
    note = seen(devices, listed, cuda, order)[1]
    assert ("known only after CUDA has started" in note) if unsure else note is None


def test_a_list_that_shows_nothing_says_so():
    assert seen([A, B], "7")[1] == "CUDA_VISIBLE_DEVICES='7' shows none of the 2 GPUs"
