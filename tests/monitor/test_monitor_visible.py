"""CUDA's view of the devices, from names and environment."""

from __future__ import annotations

import pytest

from h5stream.monitor.nvml import DeviceName, visible_devices

A = DeviceName(uuid="GPU-aa11", name="H100")
B = DeviceName(uuid="GPU-ab22", name="H100")
C = DeviceName(uuid="GPU-cc33", name="A10")
M1 = DeviceName(uuid="MIG-m1", name="H100 MIG", parent_uuid=A.uuid, gpu_instance_id=7, compute_instance_id=0)
M2 = DeviceName(uuid="MIG-m2", name="H100 MIG", parent_uuid=A.uuid, gpu_instance_id=9, compute_instance_id=1)


def seen(devices, listed=None, cuda=(), order="PCI_BUS_ID"):
    environment = {"CUDA_DEVICE_ORDER": order} if order else {}
    if listed is not None:
        environment["CUDA_VISIBLE_DEVICES"] = listed
    return visible_devices(devices, environment, cuda)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, ["GPU-aa11", "GPU-ab22", "GPU-cc33"]),
        ("1", ["GPU-ab22"]),
        ("2,0", ["GPU-cc33", "GPU-aa11"]),
        (" 2 , 1 ", ["GPU-cc33", "GPU-ab22"]),
        ("1,7,0", ["GPU-ab22"]),  # an index that does not exist ends the list
        ("1,-1,0", ["GPU-ab22"]),
        ("1,1", []),  # twice the same: CUDA shows nothing
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("GPU-cc33,GPU-aa11", ["GPU-cc33", "GPU-aa11"]),
        ("GPU-c,0", ["GPU-cc33", "GPU-aa11"]),
        ("GPU-CC33", ["GPU-cc33"]),
        ("GPU-a", []),  # ambiguous
        ("GPU-zz", []),
    ],
)
def test_the_list_is_read_as_cuda_reads_it(listed, expected):
    assert list(seen([A, B, C], listed).uuids) == expected


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, ["MIG-m1", "MIG-m2", "GPU-ab22"]),
        ("MIG-m2", ["MIG-m2"]),
        ("MIG-m2,MIG-m1", ["MIG-m2"]),  # one instance is all that CUDA shows
        ("MIG-GPU-aa11/9/1", ["MIG-m2"]),
        ("MIG-GPU-aa11/9/0", []),
        ("0", ["MIG-m1"]),  # a card in MIG mode shows its first instance
        ("1", ["GPU-ab22"]),
        ("GPU-aa11", ["MIG-m1"]),
    ],
)
def test_mig_instances_are_found_in_every_form_of_the_list(listed, expected):
    assert list(seen([A, M1, M2, B], listed).uuids) == expected


def test_what_cuda_says_wins_over_the_environment():
    assert seen([A, B, C], "0,1", cuda=["cc33", "GPU-aa11"]).uuids == ("GPU-cc33", "GPU-aa11")


def test_a_mig_instance_in_the_list_wins_over_a_driver_that_names_its_card():
    assert seen([A, M1, M2], "MIG-m2", cuda=["aa11"]).uuids == ("MIG-m2",)


def test_a_card_that_cuda_names_in_mig_mode_is_its_first_instance():
    assert seen([A, M1, M2], cuda=["aa11"]).uuids == ("MIG-m1",)


def test_a_uuid_of_cuda_that_nvml_does_not_know_falls_back_to_the_environment():
    assert seen([A, B], "1", cuda=["ffff"]).uuids == ("GPU-ab22",)


def test_unlike_cards_by_index_are_uncertain_until_cuda_has_started():
    assert "known only after CUDA has started" in seen([A, C], "1", order=None).note
    assert "known only after CUDA has started" in seen([A, C], order="FASTEST_FIRST").note


@pytest.mark.parametrize(
    ("devices", "listed", "order", "cuda"),
    [
        ([A, C], "1", "PCI_BUS_ID", ()),
        ([A, B], "1", None, ()),
        ([A, C], "GPU-aa11", None, ()),
        ([A, C], "1", None, ("cc33",)),
    ],
)
def test_the_order_is_certain_otherwise(devices, listed, order, cuda):
    assert seen(devices, listed, cuda, order).note is None


def test_a_list_that_shows_nothing_says_so():
    assert seen([A, B], "7").note == "CUDA_VISIBLE_DEVICES='7' shows none of the 2 GPUs"
