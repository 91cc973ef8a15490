"""Which devices CUDA would show to a process, and in which order: pure, from names and environment alone.

NVML counts the cards in PCI order and knows nothing of ``CUDA_VISIBLE_DEVICES``; CUDA's device 0 is another
card as soon as that variable or the default order (fastest first) says so. Matching by index watches the
wrong card, so everything here ends in UUIDs.

Source: "CUDA Environment Variables" of the CUDA C++ programming guide; "Device Enumeration" of the MIG user
guide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceName:
    """What NVML says of a card, or of a MIG instance, before anything is measured."""

    uuid: str
    """``GPU-...`` or ``MIG-...``."""
    name: str
    """Product name."""
    parent_uuid: str | None = None
    """The card of a MIG instance; None for a card."""
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    """NVML's numbers of a MIG instance; None for a card."""
    pci_bus_id: str | None = None
    """Address on the PCI bus, as in ``/sys/bus/pci/devices``; a MIG instance has its card's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """The devices that a process sees."""

    uuids: tuple[str, ...]
    """In CUDA's order."""
    note: str | None = None
    """What is uncertain about the order, or why nothing is visible; None where all is known."""


_UNSURE = (
    "unlike GPUs and CUDA_DEVICE_ORDER is not PCI_BUS_ID: which card an index names is known only after "
    "CUDA has started in this process; shown in PCI order until then"
)


def visible_devices(
    devices: Sequence[DeviceName], environment: Mapping[str, str], cuda_uuids: Sequence[str] = ()
) -> Visible:
    """Return the devices that a process sees, in CUDA's order, of those in NVML's: an instance stands after its card.

    What CUDA itself says (`cuda_uuids`, with or without the ``GPU-`` prefix), if it has started in that process, wins
    over the environment, except that it names a MIG instance by its card with some drivers.

    Examples
    --------
    >>> cards = [DeviceName(uuid="GPU-aa", name="A"), DeviceName(uuid="GPU-bb", name="A")]
    >>> visible_devices(cards, {"CUDA_VISIBLE_DEVICES": "1,0"}).uuids
    ('GPU-bb', 'GPU-aa')
    >>> visible_devices(cards, {"CUDA_VISIBLE_DEVICES": "GPU-b"}).uuids
    ('GPU-bb',)
    >>> visible_devices(cards, {}, cuda_uuids=["bb", "aa"]).uuids
    ('GPU-bb', 'GPU-aa')
    """
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    tokens = None if listed is None else [token.strip() for token in listed.split(",")]
    names_mig = tokens is not None and tokens[0].startswith("MIG-")
    if cuda_uuids and not names_mig:
        known = [_by_bare_uuid(devices, uuid) for uuid in cuda_uuids]
        if all(known):
            return Visible(uuids=tuple(uuid for uuid in known if uuid))
    if tokens is None:
        uuids = tuple(one.uuid for card in _cards(devices) for one in (_instances(devices, card) or [card]))
    else:
        uuids = _follow(tokens, devices)
    return Visible(uuids=uuids, note=_note(tokens, devices, uuids, environment))


def _cards(devices: Sequence[DeviceName]) -> list[DeviceName]:
    return [device for device in devices if device.parent_uuid is None]


def _instances(devices: Sequence[DeviceName], card: DeviceName) -> list[DeviceName]:
    return [device for device in devices if device.parent_uuid == card.uuid]


def _by_bare_uuid(devices: Sequence[DeviceName], uuid: str) -> str | None:
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    for device in devices:
        if device.uuid.removeprefix("GPU-").removeprefix("MIG-") == bare:
            card_with_instances = _instances(devices, device)
            return card_with_instances[0].uuid if card_with_instances else device.uuid
    return None


def _follow(tokens: Sequence[str], devices: Sequence[DeviceName]) -> tuple[str, ...]:
    """Read the list as CUDA does: up to the first entry that names nothing; twice the same makes it void."""
    found: list[str] = []
    for token in tokens:
        uuid = _named(token, devices)
        if uuid is None:
            break
        if uuid in found:
            return ()
        found.append(uuid)
        if uuid.startswith("MIG-"):
            break  # CUDA shows a process one MIG instance, whatever follows.
    return tuple(found)


def _named(token: str, devices: Sequence[DeviceName]) -> str | None:
    if token.startswith("MIG-GPU-"):
        return _legacy_mig(token, devices)
    if token.startswith(("GPU-", "MIG-")):
        matches = [device for device in devices if device.uuid.lower().startswith(token.lower())]
        return _first_instance(matches[0], devices) if len(matches) == 1 else None
    cards = _cards(devices)
    if not token.isdecimal() or int(token) >= len(cards):
        return None
    return _first_instance(cards[int(token)], devices)


def _first_instance(device: DeviceName, devices: Sequence[DeviceName]) -> str:
    instances = _instances(devices, device)
    return instances[0].uuid if instances else device.uuid


def _legacy_mig(token: str, devices: Sequence[DeviceName]) -> str | None:
    """Read the form of drivers before 470, ``MIG-GPU-<uuid>/<GPU instance>/<compute instance>``."""
    card, _, numbers = token.removeprefix("MIG-").partition("/")
    for device in devices:
        if device.parent_uuid == card and f"{device.gpu_instance_id}/{device.compute_instance_id}" == numbers:
            return device.uuid
    return None


def _note(
    tokens: Sequence[str] | None, devices: Sequence[DeviceName], uuids: tuple[str, ...], environment: Mapping[str, str]
) -> str | None:
    if tokens is not None and not uuids:
        return f"CUDA_VISIBLE_DEVICES={','.join(tokens)!r} shows none of the {len(_cards(devices))} GPUs"
    by_index = tokens is None or any(token.isdecimal() for token in tokens)
    unlike = len({card.name for card in _cards(devices)}) > 1
    if by_index and unlike and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return _UNSURE
    return None
